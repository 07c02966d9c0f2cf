//! A value for each of some names.

use super::scale::{Axis, Scale, Unit};
use super::svg::{Canvas, Svg};
use super::terminal;

/// More stand too close for their names; the rest is summed up.
const MOST_BARS: usize = 24;

/// One of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Bar {
    /// Whose value.
    pub name: String,
    /// Zero or more, in the unit of the axis.
    pub value: f64,
}

impl Bar {
    /// The value of `name`.
    pub fn new(name: impl Into<String>, value: f64) -> Self {
        Self {
            name: name.into(),
            value,
        }
    }
}

/// A chart of values by name, in the order given. Past 24 the rest is one bar, "others".
#[derive(Clone, Debug, PartialEq)]
pub struct Bars {
    /// What it shows, in a few words.
    pub title: String,
    /// What is to be seen in it, for readers who don't see it.
    pub description: String,
    /// What the names are.
    pub names: String,
    /// What the values are.
    pub values: Axis,
    /// Largest first is read best.
    pub bars: Vec<Bar>,
}

impl Bars {
    /// For a page.
    pub fn svg(&self) -> Svg {
        let bars = self.shown();
        let mut canvas = Canvas::new(&self.title, &self.description, &[]);
        let y = Scale::from_zero(self.values.unit, bars.iter().map(|bar| bar.value), 5);
        canvas.y_axis(&self.values, &y);
        let slot = 1.0 / bars.len().max(1) as f64;
        // What fits under a bar, at 7 of the plot's 664 pixels a character.
        let fits = (slot * 664.0 / 7.0) as usize;
        let labels: Vec<_> = bars
            .iter()
            .enumerate()
            .map(|(number, bar)| ((number as f64 + 0.5) * slot, terminal::shortened(&bar.name, fits)))
            .collect();
        canvas.x_axis(&self.names, labels.into_iter());
        for (number, bar) in bars.iter().enumerate() {
            let from = (number as f64 + 0.15) * slot;
            let words = format!("{}: {}", bar.name, self.values.unit.show(bar.value));
            canvas.bar(from, from + 0.7 * slot, y.place(bar.value), &words);
        }
        canvas.finish()
    }

    /// For a terminal of `width` columns: a line a bar, with its value.
    pub fn text(&self, width: usize) -> String {
        let rows: Vec<_> = self
            .shown()
            .into_iter()
            .map(|bar| (bar.name, bar.value, self.values.unit.show(bar.value)))
            .collect();
        terminal::rows(&self.title, &rows, width)
    }

    fn shown(&self) -> Vec<Bar> {
        if self.bars.len() <= MOST_BARS {
            return self.bars.clone();
        }
        let (first, rest) = self.bars.split_at(MOST_BARS - 1);
        let mut shown = first.to_vec();
        let values = rest.iter().map(|bar| bar.value);
        let rest = match self.values.unit {
            // A sum of durations or shares means nothing.
            Unit::Count | Unit::PerSecond => values.sum(),
            Unit::Seconds | Unit::Percent | Unit::Clock => values.fold(0.0, f64::max),
        };
        shown.push(Bar::new("others", rest));
        shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(bars: Vec<Bar>) -> Bars {
        Bars {
            title: "By lane".into(),
            description: String::new(),
            names: "lane".into(),
            values: Axis::new("refused", Unit::Count),
            bars,
        }
    }

    #[test]
    fn bars_stand_on_zero_and_tell_their_values() {
        let chart = chart(vec![Bar::new("tablet<s>", 1500.0), Bar::new("default", 0.0)]);
        let svg = chart.svg().to_string();
        for part in [
            "<title>tablet&lt;s&gt;: 1,500</title>",
            r#"width="232.4" height="220.0""#,
            r#"width="232.4" height="0.0""#,
            ">lane</text>",
        ] {
            assert!(svg.contains(part), "no {part} in {svg}");
        }
        assert_eq!(
            chart.text(40),
            "By lane\n  tablet<s> ██████████████████████ 1,500\n  default                              0\n"
        );
    }

    #[test]
    fn many_bars_are_summed_up() {
        let svg = chart(
            (0..100)
                .map(|number| Bar::new(format!("b{number}"), 1.0))
                .collect(),
        )
        .svg()
        .to_string();
        assert_eq!(svg.matches("<rect").count(), 24);
        assert!(svg.contains("<title>others: 77</title>"));
    }
}
