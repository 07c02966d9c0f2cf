//! Several series over one axis: lines and areas.

use std::fmt::Write;

use super::scale::{Axis, Scale};
use super::svg::{Canvas, Svg};
use super::terminal;

/// What is drawn of a series at most; past it each run of points is drawn as its highest. More than a screen has pixels.
const MOST_POINTS: usize = 1500;

/// How a series is drawn on a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A line.
    Line,
    /// A line with the space below it shaded.
    Area,
}

/// One series: points in the order of their x.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// How it is drawn.
    pub shape: Shape,
    /// (x, y) in the units of the axes. A point whose y is not finite is a gap.
    pub points: Vec<(f64, f64)>,
}

impl Series {
    /// A line.
    pub fn line(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self {
            name: name.into(),
            shape: Shape::Line,
            points,
        }
    }

    /// An area.
    pub fn area(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self {
            shape: Shape::Area,
            ..Self::line(name, points)
        }
    }
}

/// A chart of series over x, mostly time. y begins at zero.
#[derive(Clone, Debug, PartialEq)]
pub struct Lines {
    /// What it shows, in a few words.
    pub title: String,
    /// What is to be seen in it, for readers who don't see it.
    pub description: String,
    /// Along the bottom.
    pub x: Axis,
    /// Along the left side.
    pub y: Axis,
    /// Drawn in this order.
    pub series: Vec<Series>,
}

impl Lines {
    /// For a page.
    pub fn svg(&self) -> Svg {
        let names: Vec<&str> = self.series.iter().map(|series| &*series.name).collect();
        let legend: &[&str] = if names.len() > 1 { &names } else { &[] };
        let mut canvas = Canvas::new(&self.title, &self.description, legend);
        let (x, y) = self.scales(8);
        canvas.y_axis(&self.y, &y);
        let name = format!("{}{}", self.x.label, self.x.unit.suffix());
        canvas.x_axis(&name, x.ticks().map(|(value, label)| (x.place(value), label)));
        for (number, series) in self.series.iter().enumerate() {
            for run in runs(&thinned(&series.points)) {
                let line = line(&canvas, run, &x, &y);
                if let (Shape::Area, Some(first), Some(last)) = (series.shape, run.first(), run.last()) {
                    let ground = canvas.y(y.place(0.0));
                    let (from, to) = (Canvas::x(x.place(first.0)), Canvas::x(x.place(last.0)));
                    canvas.path(
                        "area",
                        number,
                        &format!("{line}L{to:.1} {ground:.1}L{from:.1} {ground:.1}Z"),
                    );
                }
                canvas.path("line", number, &line);
            }
        }
        canvas.finish()
    }

    /// For a terminal of `width` columns: a band of `rows` lines a series, all on one scale, each with its name and its
    /// highest value.
    pub fn text(&self, width: usize, rows: usize) -> String {
        let (x, y) = self.scales(4);
        terminal::bands(self, &x, &y, width, rows)
    }

    fn scales(&self, x_ticks: usize) -> (Scale, Scale) {
        let points = || self.series.iter().flat_map(|series| &series.points);
        (
            Scale::tight(self.x.unit, points().map(|(x, _)| *x), x_ticks),
            Scale::from_zero(self.y.unit, points().map(|(_, y)| *y), 5),
        )
    }
}

/// The parts between gaps.
fn runs(points: &[(f64, f64)]) -> impl Iterator<Item = &[(f64, f64)]> {
    points
        .split(|(x, y)| !x.is_finite() || !y.is_finite())
        .filter(|run| !run.is_empty())
}

fn line(canvas: &Canvas, run: &[(f64, f64)], x: &Scale, y: &Scale) -> String {
    let mut data = String::new();
    for (number, point) in run.iter().enumerate() {
        let command = if number == 0 { 'M' } else { 'L' };
        let (left, top) = (Canvas::x(x.place(point.0)), canvas.y(y.place(point.1)));
        let _ = write!(data, "{command}{left:.1} {top:.1}");
    }
    if run.len() == 1 {
        // A point alone is seen through the round end of its line.
        data.push_str("h0.1");
    }
    data
}

/// Peaks are what such a chart is looked at for, so they are what stays.
fn thinned(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let each = points.len().div_ceil(MOST_POINTS).max(1);
    points
        .chunks(each)
        .filter_map(|chunk| chunk.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::scale::Unit;
    use super::*;

    fn chart(series: Vec<Series>) -> Lines {
        Lines {
            title: "Attempts <of> devices".into(),
            description: "They come & go.".into(),
            x: Axis::new("since the tower", Unit::Seconds),
            y: Axis::new("attempts", Unit::PerSecond),
            series,
        }
    }

    #[test]
    fn a_line_chart_has_its_words_axes_legend_and_lines() {
        let svg = chart(vec![
            Series::area("arrivals", vec![(0.0, 100.0), (10.0, 0.0)]),
            Series::line("admitted & \"in\"", vec![(0.0, 50.0), (10.0, 25.0)]),
        ])
        .svg()
        .to_string();
        for part in [
            "<title>Attempts &lt;of&gt; devices</title>",
            "<desc>They come &amp; go.</desc>",
            "role=\"img\"",
            ">admitted &amp; &quot;in&quot;</text>",
            ">arrivals</text>",
            ">since the tower</text>",
            ">attempts (a second)</text>",
            ">10 s</text>",
            ">100</text>",
            // From the top left to the bottom right: y grows upwards.
            r#"<path class="line c0" d="M72.0 34.0L736.0 254.0"/>"#,
            r#"<path class="line c1" d="M72.0 144.0L736.0 199.0"/>"#,
            r#"<path class="area c0" d="M72.0 34.0L736.0 254.0L736.0 254.0L72.0 254.0Z"/>"#,
        ] {
            assert!(svg.contains(part), "no {part} in {svg}");
        }
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>"));
    }

    #[test]
    fn one_series_needs_no_legend_and_gaps_are_not_bridged() {
        let svg = chart(vec![Series::line(
            "alone",
            vec![(0.0, 1.0), (1.0, 1.0), (2.0, f64::NAN), (3.0, 1.0)],
        )])
        .svg()
        .to_string();
        assert!(!svg.contains("alone"));
        assert_eq!(svg.matches("<path class=\"line c0\"").count(), 2);
        let nothing = chart(vec![]).svg().to_string();
        assert!(
            nothing.contains("<title>") && !nothing.contains("NaN"),
            "{nothing}"
        );
    }

    #[test]
    fn a_long_series_is_thinned_to_its_peaks() {
        let mut points: Vec<_> = (0..100_000).map(|x| (f64::from(x), 1.0)).collect();
        points[77_777].1 = 9.0;
        let thin = thinned(&points);
        assert!(thin.len() <= MOST_POINTS);
        assert!(thin.contains(&(77_777.0, 9.0)));
        assert_eq!(thinned(&points[..10]), points[..10]);
    }
}
