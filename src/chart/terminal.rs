//! Charts of block characters.

use std::fmt::Write;

use super::lines::Lines;
use super::scale::Scale;
use super::svg::printable;

/// Eighths of a block, from below and from the left.
const UPWARDS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const RIGHTWARDS: [char; 9] = [' ', '▏', '▎', '▍', '▌', '▋', '▊', '▉', '█'];
/// A terminal may be narrower or wider than is of use.
const WIDTHS: std::ops::RangeInclusive<usize> = 30..=240;
const ROWS: std::ops::RangeInclusive<usize> = 1..=40;

/// Each series as a band of `rows` lines over the same x and the same scale.
pub(super) fn bands(chart: &Lines, x: &Scale, y: &Scale, width: usize, rows: usize) -> String {
    let (width, rows) = clamped(width, rows);
    let names: Vec<String> = chart
        .series
        .iter()
        .map(|series| shortened(&series.name, width / 4))
        .collect();
    let peaks: Vec<String> = chart
        .series
        .iter()
        .map(|series| {
            let peak = series
                .points
                .iter()
                .map(|point| point.1)
                .filter(|y| y.is_finite());
            chart.y.unit.show(peak.fold(f64::NAN, f64::max))
        })
        .collect();
    let (name_width, peak_width) = (widest(&names), widest(&peaks));
    let columns = width.saturating_sub(2 + name_width + 1 + 6 + peak_width).max(8);

    let mut out = line_of(&chart.title);
    for ((series, name), peak) in chart.series.iter().zip(&names).zip(&peaks) {
        let heights = columns_of(&series.points, x, y, columns);
        for row in (0..rows).rev() {
            let blocks: String = heights.iter().map(|height| block(*height, row, rows)).collect();
            let last = row == 0;
            let (name, peak) = if last {
                (&**name, format!(" peak {peak:>peak_width$}"))
            } else {
                ("", String::new())
            };
            let line = format!("  {name:<name_width$} {blocks}{peak}");
            let _ = writeln!(out, "{}", line.trim_end());
        }
    }
    let (from, to) = (chart.x.unit.show(x.low()), chart.x.unit.show(x.high()));
    let between = columns.saturating_sub(to.chars().count());
    let _ = writeln!(
        out,
        "  {:name_width$} {from:<between$}{to}  {}",
        "", chart.x.label
    );
    out
}

/// A line for each (name, value, value in words): names in a column, bars to scale, values at the right.
pub(super) fn rows(title: &str, rows: &[(String, f64, String)], width: usize) -> String {
    let (width, _) = clamped(width, 1);
    let names: Vec<String> = rows.iter().map(|row| shortened(&row.0, width / 3)).collect();
    let words: Vec<&str> = rows.iter().map(|row| &*row.2).collect();
    let (name_width, word_width) = (widest(&names), widest(&words));
    let columns = width.saturating_sub(2 + name_width + 1 + 1 + word_width).max(8);
    let highest = rows
        .iter()
        .map(|row| row.1)
        .filter(|value| value.is_finite())
        .fold(0.0, f64::max);
    let mut out = line_of(title);
    for (name, (_, value, words)) in names.iter().zip(rows) {
        let share = if highest > 0.0 { value / highest } else { 0.0 };
        let bar = bar(share, columns);
        let _ = writeln!(out, "  {name:<name_width$} {bar:<columns$} {words:>word_width$}");
    }
    out
}

/// At most `most` characters, the last of them an ellipsis where something was cut off; printable.
pub(super) fn shortened(text: &str, most: usize) -> String {
    let most = most.max(2);
    let mut out: String = text.chars().take(most).map(printable).collect();
    if text.chars().nth(most).is_some() {
        out.pop();
        out.push('…');
    }
    out
}

fn clamped(width: usize, rows: usize) -> (usize, usize) {
    (
        width.clamp(*WIDTHS.start(), *WIDTHS.end()),
        rows.clamp(*ROWS.start(), *ROWS.end()),
    )
}

fn line_of(title: &str) -> String {
    let mut line: String = title.chars().map(printable).collect();
    line.push('\n');
    line
}

fn widest(texts: &[impl AsRef<str>]) -> usize {
    texts
        .iter()
        .map(|text| text.as_ref().chars().count())
        .max()
        .unwrap_or(0)
}

/// The highest point within each column, as share of the height; what has no point of its own is like the one before.
fn columns_of(points: &[(f64, f64)], x: &Scale, y: &Scale, columns: usize) -> Vec<f64> {
    let mut highest: Vec<Option<f64>> = vec![None; columns];
    for (at, value) in points.iter().filter(|(x, y)| x.is_finite() && y.is_finite()) {
        let column = ((x.place(*at) * columns as f64) as usize).min(columns - 1);
        if let Some(height) = highest.get_mut(column) {
            let share = y.place(*value);
            *height = Some(height.map_or(share, |height| height.max(share)));
        }
    }
    let mut before = 0.0;
    highest
        .into_iter()
        .map(|height| {
            before = height.unwrap_or(before);
            before
        })
        .collect()
}

/// What is seen in `row` (0: the lowest) of a column of this height. Whatever is not zero is seen.
fn block(height: f64, row: usize, rows: usize) -> char {
    let eighths = (height * rows as f64 * 8.0).round();
    let eighths = if height > 0.0 { eighths.max(1.0) } else { eighths };
    let here = (eighths as usize).saturating_sub(row * 8).min(8);
    UPWARDS.get(here).copied().unwrap_or(' ')
}

fn bar(share: f64, columns: usize) -> String {
    let eighths = (share.clamp(0.0, 1.0) * columns as f64 * 8.0).round();
    let eighths = if share > 0.0 { eighths.max(1.0) as usize } else { 0 };
    let mut out = "█".repeat(eighths / 8);
    if let Some(part) = RIGHTWARDS.get(eighths % 8).filter(|part| **part != ' ') {
        out.push(*part);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::scale::{Axis, Unit};
    use super::super::{Lines, Series};
    use super::*;

    fn chart(series: Vec<Series>) -> Lines {
        Lines {
            title: "Storm\u{1b}[2J".into(),
            description: String::new(),
            x: Axis::new("since the tower", Unit::Seconds),
            y: Axis::new("attempts", Unit::PerSecond),
            series,
        }
    }

    #[test]
    fn bands_share_their_scale_and_say_their_peaks() {
        let ramp = |most: f64| {
            (0..=16)
                .map(|x| (f64::from(x), f64::from(x) / 16.0 * most))
                .collect()
        };
        let chart = chart(vec![
            Series::line("arrivals", ramp(16.0)),
            Series::line("in", ramp(8.0)),
        ]);
        assert_eq!(
            chart.text(39, 1),
            "Storm\u{fffd}[2J\n  arrivals  ▁▁▁▂▂▂▃▃▃▄▄▄▅▅▆▆▆ peak 16/s\n  in        ▁▁▁▁▁▁▁▁▂▂▂▂▂▃▃▃▃ peak  8/s\n           \
             0 s           16 s  since the tower\n"
        );
        let high = chart.text(80, 3);
        assert_eq!(high.lines().count(), 1 + 2 * 3 + 1);
        assert!(high.contains('█'));
    }

    #[test]
    fn a_column_is_as_high_as_its_share() {
        let column = |height| (0..3).map(|row| block(height, row, 3)).collect::<String>();
        assert_eq!(column(0.0), "   ");
        assert_eq!(column(0.001), "▁  ");
        assert_eq!(column(0.5), "█▄ ");
        assert_eq!(column(1.0), "███");
        assert_eq!(bar(0.0, 10), "");
        assert_eq!(bar(0.0001, 10), "▏");
        assert_eq!(bar(0.55, 10), "█████▌");
        assert_eq!(bar(7.0, 2), "██");
    }

    #[test]
    fn no_terminal_is_too_small_and_no_name_too_long() {
        let name = "a name that is longer than it has any right to be".repeat(5);
        for width in [0, 1, 30, 79, 100_000] {
            let text =
                chart(vec![Series::line(&*name, vec![(0.0, 1.0), (1.0, f64::NAN)])]).text(width, width);
            let longest = text.lines().map(|line| line.chars().count()).max().unwrap();
            assert!(longest <= width.clamp(30, 240) + 20, "{width}: {longest}");
            assert!(!rows(&name, &[(name.clone(), f64::NAN, "–".into())], width).is_empty());
        }
        assert_eq!(chart(vec![]).text(80, 1).lines().count(), 2);
        assert_eq!(shortened("abcdef", 4), "abc…");
        assert_eq!(shortened("abcd", 4), "abcd");
    }
}
