//! The frame that all charts share: title and description for readers who don't see, axes, grid, legend.

use std::fmt::{self, Display, Write};

use super::scale::{Axis, Scale};

/// A drawn chart: an `<svg>` element for a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Svg(pub(super) String);

impl Display for Svg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// `text` for HTML and SVG, inside elements and attributes. Control characters, which XML 1.0 does not allow, become
/// U+FFFD; so do the marks that turn the direction of a line.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            other => out.push(printable(other)),
        }
    }
    out
}

/// What a terminal and a page can be shown: nothing that moves a cursor or turns the text around.
pub(super) fn printable(character: char) -> char {
    match character {
        '\u{200e}'
        | '\u{200f}'
        | '\u{202a}'..='\u{202e}'
        | '\u{2066}'..='\u{2069}'
        | '\u{fffe}'
        | '\u{ffff}' => char::REPLACEMENT_CHARACTER,
        other if other.is_control() => char::REPLACEMENT_CHARACTER,
        other => other,
    }
}

/// Colours in the style of the page; a ninth series begins again.
pub(super) const COLOURS: usize = 8;

const WIDTH: f64 = 760.0;
const PLOT_HEIGHT: f64 = 220.0;
const LEFT: f64 = 72.0;
const RIGHT: f64 = 24.0;
const ABOVE: f64 = 14.0;
const BELOW: f64 = 46.0;
const LEGEND_ROW: f64 = 20.0;
/// Of a character at 12 px: no font can be asked here.
const CHARACTER: f64 = 7.0;

/// The drawing of one chart.
pub(super) struct Canvas {
    out: String,
    top: f64,
    height: f64,
}

impl Canvas {
    /// Begins a chart with `legend` above the plot, one entry a series; empty: none.
    pub(super) fn new(title: &str, description: &str, legend: &[&str]) -> Self {
        let mut keys = String::new();
        let (mut left, mut row) = (LEFT, 0.0);
        for (number, name) in legend.iter().enumerate() {
            let width = 34.0 + CHARACTER * name.chars().count() as f64;
            if left > LEFT && left + width > WIDTH - RIGHT {
                (left, row) = (LEFT, row + 1.0);
            }
            let y = row * LEGEND_ROW + 12.0;
            let class = number % COLOURS;
            let _ = write!(
                keys,
                r#"<path class="line c{class}" d="M{left:.1} {y:.1}h18"/><text x="{:.1}" y="{:.1}">{}</text>"#,
                left + 24.0,
                y + 4.0,
                escape(name)
            );
            left += width;
        }
        let rows = if legend.is_empty() { 0.0 } else { row + 1.0 };
        let top = rows * LEGEND_ROW + ABOVE;
        let height = top + PLOT_HEIGHT + BELOW;
        let (title, description) = (escape(title), escape(description));
        let out = format!(
            r#"<svg class="chart" role="img" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-size="12" fill="currentColor"><title>{title}</title><desc>{description}</desc>{keys}"#
        );
        Self {
            out,
            top,
            height: PLOT_HEIGHT,
        }
    }

    pub(super) fn x(share: f64) -> f64 {
        LEFT + share * (WIDTH - LEFT - RIGHT)
    }

    pub(super) fn y(&self, share: f64) -> f64 {
        self.top + (1.0 - share) * self.height
    }

    /// Horizontal grid lines with their labels, and the axis' name.
    pub(super) fn y_axis(&mut self, axis: &Axis, scale: &Scale) {
        let (left, right) = (Self::x(0.0), Self::x(1.0));
        for (value, label) in scale.ticks() {
            let y = self.y(scale.place(value));
            let _ = write!(
                self.out,
                r#"<path class="grid" d="M{left:.1} {y:.1}H{right:.1}"/><text class="tick" text-anchor="end" x="{:.1}" y="{:.1}">{}</text>"#,
                left - 6.0,
                y + 4.0,
                escape(&label)
            );
        }
        let middle = self.y(0.5);
        let _ = write!(
            self.out,
            r#"<text class="name" text-anchor="middle" transform="translate(14 {middle:.1}) rotate(-90)">{}{}</text>"#,
            escape(&axis.label),
            axis.unit.suffix()
        );
    }

    /// Labels under the plot at (share of the width, text), and the axis' name below them.
    pub(super) fn x_axis(&mut self, name: &str, ticks: impl Iterator<Item = (f64, String)>) {
        let bottom = self.y(0.0);
        let _ = write!(
            self.out,
            r#"<path class="axis" d="M{:.1} {bottom:.1}H{:.1}"/>"#,
            Self::x(0.0),
            Self::x(1.0)
        );
        for (share, label) in ticks {
            let x = Self::x(share);
            let _ = write!(
                self.out,
                r#"<path class="axis" d="M{x:.1} {bottom:.1}v5"/><text class="tick" text-anchor="middle" x="{x:.1}" y="{:.1}">{}</text>"#,
                bottom + 18.0,
                escape(&label)
            );
        }
        let _ = write!(
            self.out,
            r#"<text class="name" text-anchor="middle" x="{:.1}" y="{:.1}">{}</text>"#,
            Self::x(0.5),
            bottom + 38.0,
            escape(name)
        );
    }

    pub(super) fn path(&mut self, class: &str, series: usize, data: &str) {
        let _ = write!(
            self.out,
            r#"<path class="{class} c{}" d="{data}"/>"#,
            series % COLOURS
        );
    }

    /// A bar from `from` to `to` (shares of the width) up to `share` of the height, with its words for the pointer.
    pub(super) fn bar(&mut self, from: f64, to: f64, share: f64, words: &str) {
        let (x, y) = (Self::x(from), self.y(share));
        let _ = write!(
            self.out,
            r#"<rect class="bar c0" x="{x:.1}" y="{y:.1}" width="{:.1}" height="{:.1}"><title>{}</title></rect>"#,
            (Self::x(to) - x).max(0.5),
            self.y(0.0) - y,
            escape(words)
        );
    }

    pub(super) fn finish(mut self) -> Svg {
        self.out.push_str("</svg>");
        Svg(self.out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_a_text_is_markup() {
        assert_eq!(
            escape("<a href=\"x\">&'"),
            "&lt;a href=&quot;x&quot;&gt;&amp;&#39;"
        );
        assert_eq!(
            escape("a\0b\u{1b}[2Jc\u{202e}d"),
            "a\u{fffd}b\u{fffd}[2Jc\u{fffd}d"
        );
        assert_eq!(escape("Zähler 7 – 🌊"), "Zähler 7 – 🌊");
    }
}
