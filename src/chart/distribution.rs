//! How values are spread: a histogram.

use super::scale::{Axis, Scale, Unit};
use super::svg::{Canvas, Svg};
use super::terminal;

/// More is no longer a shape.
const MOST_BINS: usize = 200;

/// How many values lie from `from` up to, but not at, `to`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bin {
    /// Included.
    pub from: f64,
    /// Not included.
    pub to: f64,
    /// How many.
    pub count: u64,
}

/// A histogram. Bins may differ in width; they are given in order.
#[derive(Clone, Debug, PartialEq)]
pub struct Distribution {
    /// What it shows, in a few words.
    pub title: String,
    /// What is to be seen in it, for readers who don't see it.
    pub description: String,
    /// What the values are.
    pub values: Axis,
    /// What is counted: "devices".
    pub counted: String,
    /// In order.
    pub bins: Vec<Bin>,
}

impl Distribution {
    /// At most `most` bins of one nice width that hold all finite `values`. Empty for no values.
    pub fn bins(unit: Unit, values: &[f64], most: usize) -> Vec<Bin> {
        let most = most.clamp(1, MOST_BINS);
        let finite = || values.iter().copied().filter(|value| value.is_finite());
        if finite().next().is_none() {
            return Vec::new();
        }
        let width = Scale::width_of_bins(unit, finite(), most);
        let number = |value: f64| (value / width).floor();
        let first = finite().map(number).fold(f64::INFINITY, f64::min);
        let last = finite().map(number).fold(f64::NEG_INFINITY, f64::max);
        let mut bins: Vec<Bin> = (0..=(last - first) as usize)
            .take(MOST_BINS + 2)
            .map(|place| Bin {
                from: (first + place as f64) * width,
                to: (first + place as f64 + 1.0) * width,
                count: 0,
            })
            .collect();
        for value in finite() {
            if let Some(bin) = bins.get_mut((number(value) - first) as usize) {
                bin.count += 1;
            }
        }
        bins
    }

    /// For a page.
    pub fn svg(&self) -> Svg {
        let mut canvas = Canvas::new(&self.title, &self.description, &[]);
        let y = Scale::from_zero(Unit::Count, self.bins.iter().map(|bin| bin.count as f64), 5);
        let x = Scale::tight(
            self.values.unit,
            self.bins.iter().flat_map(|bin| [bin.from, bin.to]),
            10,
        );
        canvas.y_axis(&Axis::new(&*self.counted, Unit::Count), &y);
        let name = format!("{}{}", self.values.label, self.values.unit.suffix());
        canvas.x_axis(&name, x.ticks().map(|(value, label)| (x.place(value), label)));
        for bin in self.bins.iter().filter(|bin| bin.count > 0) {
            let words = format!("{}: {}", self.range(bin), Unit::Count.show(bin.count as f64));
            canvas.bar(
                x.place(bin.from),
                x.place(bin.to),
                y.place(bin.count as f64),
                &words,
            );
        }
        canvas.finish()
    }

    /// For a terminal of `width` columns: a line a bin. Give it few bins.
    pub fn text(&self, width: usize) -> String {
        let rows: Vec<_> = self
            .bins
            .iter()
            .map(|bin| {
                let count = bin.count as f64;
                (self.range(bin), count, Unit::Count.show(count))
            })
            .collect();
        terminal::rows(&self.title, &rows, width)
    }

    fn range(&self, bin: &Bin) -> String {
        let unit = self.values.unit;
        if unit == Unit::Count && (bin.to - bin.from - 1.0).abs() < 1e-9 {
            return unit.show(bin.from);
        }
        format!("{} – {}", unit.show(bin.from), unit.show(bin.to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(unit: Unit, values: &[f64], most: usize) -> Distribution {
        Distribution {
            title: "Time back".into(),
            description: String::new(),
            values: Axis::new("since the tower", unit),
            counted: "devices".into(),
            bins: Distribution::bins(unit, values, most),
        }
    }

    #[test]
    fn bins_are_nice_and_hold_every_value() {
        let counts = |unit, values: &[f64], most| {
            Distribution::bins(unit, values, most)
                .iter()
                .map(|bin| (bin.from, bin.to, bin.count))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            counts(Unit::Seconds, &[0.1, 4.9, 5.0, 17.0, f64::NAN], 4),
            [(0.0, 5.0, 2), (5.0, 10.0, 1), (10.0, 15.0, 0), (15.0, 20.0, 1)]
        );
        assert_eq!(
            counts(Unit::Count, &[1.0, 1.0, 3.0], 20),
            [(1.0, 2.0, 2), (2.0, 3.0, 0), (3.0, 4.0, 1)]
        );
        assert_eq!(counts(Unit::Count, &[], 20), []);
        assert_eq!(counts(Unit::Seconds, &[0.0], 20).len(), 1);
        for most in [1, 7, 200, usize::MAX] {
            let values: Vec<f64> = (0..1000).map(|number| f64::from(number) * 0.37).collect();
            let bins = Distribution::bins(Unit::Seconds, &values, most);
            assert_eq!(bins.iter().map(|bin| bin.count).sum::<u64>(), 1000);
            assert!(bins.len() <= most.min(MOST_BINS) + 1, "{most}: {}", bins.len());
        }
        assert!(Distribution::bins(Unit::Count, &[0.0, 1e300], 10).len() <= 11);
    }

    #[test]
    fn a_histogram_is_drawn() {
        let chart = chart(Unit::Seconds, &[1.0, 2.0, 7.0], 4);
        let svg = chart.svg().to_string();
        for part in [
            "<title>0 s – 2 s: 1</title>",
            "<title>6 s – 8 s: 1</title>",
            ">devices</text>",
            ">8 s</text>",
        ] {
            assert!(svg.contains(part), "no {part} in {svg}");
        }
        assert_eq!(svg.matches("<rect").count(), 3);
        assert_eq!(
            chart.text(30),
            "Time back\n  0 s – 2 s ████████████████ 1\n  2 s – 4 s ████████████████ 1\n  4 s – 6 s                  0\n  6 s – 8 s ████████████████ 1\n"
        );
    }
}
