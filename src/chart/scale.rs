//! Values to words and to places: units, ticks that a reader would choose, and a scale.

use time::OffsetDateTime;

/// What the numbers of an axis are. Decides where ticks stand and how a value is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Things, in whole numbers.
    Count,
    /// Things a second.
    PerSecond,
    /// A duration, or time since something, in seconds.
    Seconds,
    /// A share in percent: 0 to 100.
    Percent,
    /// A moment, in Unix seconds; shown in UTC.
    Clock,
}

/// What one direction of a chart shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axis {
    /// What is measured, without its unit.
    pub label: String,
    /// In what.
    pub unit: Unit,
}

impl Axis {
    /// An axis with this label.
    pub fn new(label: impl Into<String>, unit: Unit) -> Self {
        Self {
            label: label.into(),
            unit,
        }
    }
}

impl Unit {
    /// `value` as a reader writes it: "1,204", "80/s", "250 ms", "2 min 5 s", "12 %", "10:15:00".
    pub fn show(self, value: f64) -> String {
        if !value.is_finite() {
            return "–".to_owned();
        }
        match self {
            Self::Count => decimal(value),
            Self::PerSecond => format!("{}/s", decimal(value)),
            Self::Percent => format!("{} %", decimal(value)),
            Self::Seconds => duration(value),
            Self::Clock => clock(value),
        }
    }

    /// What goes behind an axis' label.
    pub(super) fn suffix(self) -> &'static str {
        match self {
            Self::Clock => " (UTC)",
            Self::PerSecond => " (a second)",
            Self::Percent => " (%)",
            Self::Count | Self::Seconds => "",
        }
    }

    /// A tick, shorter than [`Self::show`] where the axis says the unit already.
    pub(super) fn tick(self, value: f64, step: f64) -> String {
        match self {
            Self::PerSecond | Self::Percent => decimal(value),
            Self::Clock if step >= DAY => date(value),
            Self::Clock if step >= MINUTE => clock(value).chars().take(5).collect(),
            _ => self.show(value),
        }
    }

    /// The distance between ticks that is nice and not below `least`.
    fn step(self, least: f64) -> f64 {
        match self {
            Self::Count => decimal_step(least).max(1.0),
            Self::Seconds | Self::Clock if least > 1.0 => TIME_STEPS
                .iter()
                .copied()
                .find(|step| *step >= least)
                .unwrap_or_else(|| decimal_step(least / DAY) * DAY),
            Self::PerSecond | Self::Percent | Self::Seconds => decimal_step(least),
            Self::Clock => 1.0,
        }
    }
}

const MINUTE: f64 = 60.0;
const HOUR: f64 = 3600.0;
const DAY: f64 = 86_400.0;
/// What divides a minute, an hour, a day.
const TIME_STEPS: [f64; 17] = [
    2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0, 3600.0, 7200.0, 10_800.0, 21_600.0,
    43_200.0, 86_400.0,
];
/// More would be a ruler. Also what bounds the ticks of a nonsensical range.
const MOST_TICKS: usize = 20;

/// From values to pixels, with its ticks.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Scale {
    low: f64,
    high: f64,
    step: f64,
    unit: Unit,
}

impl Scale {
    /// Holds all finite `values`, from their least to their greatest.
    pub(super) fn tight(unit: Unit, values: impl Iterator<Item = f64>, most_ticks: usize) -> Self {
        let (low, high) = range(values);
        let high = if high > low { high } else { low + 1.0 };
        let step = unit.step((high - low) / most_ticks.clamp(1, MOST_TICKS) as f64);
        Self {
            low,
            high,
            step,
            unit,
        }
    }

    /// From zero (or below, if there is anything) to the tick above the greatest.
    pub(super) fn from_zero(unit: Unit, values: impl Iterator<Item = f64>, most_ticks: usize) -> Self {
        let tight = Self::tight(unit, values.chain([0.0]), most_ticks);
        Self {
            low: (tight.low / tight.step).floor() * tight.step,
            high: (tight.high / tight.step).ceil() * tight.step,
            ..tight
        }
    }

    /// A nice width, of which at most `most` (and one for the edges) hold all finite `values`.
    pub(super) fn width_of_bins(unit: Unit, values: impl Iterator<Item = f64>, most: usize) -> f64 {
        let (low, high) = range(values);
        unit.step((high - low) / most.max(1) as f64)
    }

    /// Where `value` stands: 0 at the low end, 1 at the high one. Nothing stands outside.
    pub(super) fn place(&self, value: f64) -> f64 {
        ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
    }

    pub(super) fn low(&self) -> f64 {
        self.low
    }

    pub(super) fn high(&self) -> f64 {
        self.high
    }

    /// Ticks as (value, label), lowest first.
    pub(super) fn ticks(&self) -> impl Iterator<Item = (f64, String)> {
        let first = (self.low / self.step).ceil();
        (0..=MOST_TICKS)
            .map(move |number| (first + number as f64) * self.step)
            .take_while(|value| *value <= self.high + self.step * 1e-9)
            .map(|value| (value, self.unit.tick(value, self.step)))
    }
}

fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) = values
        .filter(|value| value.is_finite())
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
            (low.min(value), high.max(value))
        });
    if low > high { (0.0, 1.0) } else { (low, high) }
}

/// 1, 2 or 5 times a power of ten, not below `least`.
fn decimal_step(least: f64) -> f64 {
    let power = 10_f64.powf(least.max(1e-9).log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|factor| factor * power)
        .find(|step| *step >= least * (1.0 - 1e-9))
        .unwrap_or(10.0 * power)
}

/// A whole number with its thousands apart: 1,204.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Whole where it is whole or large, else with two digits that mean something.
fn decimal(value: f64) -> String {
    let sign = if value < 0.0 { "−" } else { "" };
    let size = value.abs();
    if size >= 100.0 || (size - size.round()).abs() < 1e-6 {
        return format!("{sign}{}", grouped(size.round() as u64));
    }
    let digits = if size >= 10.0 {
        1
    } else if size >= 0.1 {
        2
    } else {
        4
    };
    let text = format!("{size:.digits$}");
    format!("{sign}{}", text.trim_end_matches('0').trim_end_matches('.'))
}

fn duration(seconds: f64) -> String {
    let size = seconds.abs();
    if size < 1e-9 {
        return "0 s".to_owned();
    }
    if size < 0.9995 {
        return format!("{} ms", decimal(seconds * 1e3));
    }
    if size < MINUTE {
        return format!("{} s", decimal(seconds));
    }
    let sign = if seconds < 0.0 { "−" } else { "" };
    let whole = size.round() as u64;
    let (large, large_name, small, small_name) = match whole {
        0..3600 => (whole / 60, "min", whole % 60, "s"),
        3600..86_400 => (whole / 3600, "h", whole % 3600 / 60, "min"),
        _ => (whole / 86_400, "d", whole % 86_400 / 3600, "h"),
    };
    if small == 0 {
        format!("{sign}{} {large_name}", grouped(large))
    } else {
        format!("{sign}{} {large_name} {small} {small_name}", grouped(large))
    }
}

fn clock(unix: f64) -> String {
    let of_day = unix.rem_euclid(DAY) as u64;
    format!(
        "{:02}:{:02}:{:02}",
        of_day / 3600,
        of_day % 3600 / 60,
        of_day % 60
    )
}

fn date(unix: f64) -> String {
    OffsetDateTime::from_unix_timestamp(unix as i64)
        .map_or_else(|_| clock(unix), |moment| moment.date().to_string())
}

// Whole hours and minutes are told apart by this alone.
const _: () = assert!(HOUR == 60.0 * MINUTE && DAY == 24.0 * HOUR);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_as_people_write_them() {
        for (unit, value, expected) in [
            (Unit::Count, 0.0, "0"),
            (Unit::Count, 999.0, "999"),
            (Unit::Count, 1204.0, "1,204"),
            (Unit::Count, 1_234_567.0, "1,234,567"),
            (Unit::Count, -1204.0, "−1,204"),
            (Unit::Count, f64::NAN, "–"),
            (Unit::PerSecond, 79.96, "80/s"),
            (Unit::PerSecond, 0.25, "0.25/s"),
            (Unit::Percent, 12.5, "12.5 %"),
            (Unit::Seconds, 0.0, "0 s"),
            (Unit::Seconds, 0.0005, "0.5 ms"),
            (Unit::Seconds, 0.25, "250 ms"),
            (Unit::Seconds, 5.0, "5 s"),
            (Unit::Seconds, 59.96, "60 s"),
            (Unit::Seconds, 125.0, "2 min 5 s"),
            (Unit::Seconds, 7200.0, "2 h"),
            (Unit::Seconds, 90_000.0, "1 d 1 h"),
            (Unit::Clock, 1_795_947_300.0, "10:15:00"),
        ] {
            assert_eq!(unit.show(value), expected, "{unit:?} {value}");
        }
    }

    #[test]
    fn ticks_stand_where_a_reader_would_put_them() {
        let labels = |scale: Scale| scale.ticks().map(|(_, label)| label).collect::<Vec<_>>();
        let upto = |unit, high| labels(Scale::from_zero(unit, [high].into_iter(), 5));
        assert_eq!(upto(Unit::Count, 3.0), ["0", "1", "2", "3"]);
        assert_eq!(upto(Unit::Count, 1204.0), ["0", "500", "1,000", "1,500"]);
        assert_eq!(upto(Unit::PerSecond, 0.9), ["0", "0.2", "0.4", "0.6", "0.8", "1"]);
        assert_eq!(upto(Unit::Seconds, 0.3), ["0 s", "100 ms", "200 ms", "300 ms"]);
        assert_eq!(
            upto(Unit::Seconds, 100.0),
            ["0 s", "30 s", "1 min", "1 min 30 s", "2 min"]
        );
        let day = 1_795_947_300.0;
        let clock = |until| labels(Scale::tight(Unit::Clock, [day, until].into_iter(), 4));
        assert_eq!(
            clock(day + 20.0),
            ["10:15:00", "10:15:05", "10:15:10", "10:15:15", "10:15:20"]
        );
        assert_eq!(clock(day + 3600.0), ["10:15", "10:30", "10:45", "11:00", "11:15"]);
        assert_eq!(clock(day + 3.0 * DAY), ["2026-11-30", "2026-12-01", "2026-12-02"]);
    }

    #[test]
    fn a_scale_holds_whatever_it_is_given() {
        for values in [
            vec![],
            vec![f64::NAN, f64::INFINITY],
            vec![7.0],
            vec![0.0, 0.0],
            vec![-3.0, 4.0],
            vec![0.0, 1e300],
            vec![1e-300],
        ] {
            for unit in [
                Unit::Count,
                Unit::PerSecond,
                Unit::Seconds,
                Unit::Percent,
                Unit::Clock,
            ] {
                let scale = Scale::from_zero(unit, values.iter().copied(), 5);
                let ticks: Vec<_> = scale.ticks().collect();
                assert!(
                    (1..=MOST_TICKS + 1).contains(&ticks.len()),
                    "{unit:?} {values:?}: {ticks:?}"
                );
                for value in values.iter().filter(|value| value.is_finite()) {
                    assert!((0.0..=1.0).contains(&scale.place(*value)), "{unit:?} {values:?}");
                }
            }
        }
    }
}
