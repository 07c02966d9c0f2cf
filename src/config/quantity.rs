//! Durations and sizes: numbers with units.

use std::time::Duration;

use super::kind::{Raw, Scalar, quoted};

/// The caller's: no duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no duration: a number with a unit (us, ms, s, m, h or d), such as 250ms or 1m30s")]
pub struct NoDuration(String);

/// A duration as keys and flags have it, such as `250ms` or `1m30s`.
pub fn duration(text: &str) -> Result<Duration, NoDuration> {
    quantity(text, &TIMES)
        .map(Duration::from_micros)
        .ok_or_else(|| NoDuration(text.to_owned()))
}

/// A time such as `"250ms"`, from `least` to `most`.
pub(super) struct Span {
    pub(super) least: Duration,
    pub(super) most: Duration,
}

/// Units of time in microseconds, largest first.
const TIMES: [(&str, u64); 6] = [
    ("d", 86_400_000_000),
    ("h", 3_600_000_000),
    ("m", 60_000_000),
    ("s", 1_000_000),
    ("ms", 1_000),
    ("us", 1),
];

impl Scalar for Span {
    type Value = Duration;

    fn parse(&self, raw: Raw<'_>) -> Result<Duration, Option<String>> {
        let text = match raw {
            Raw::Integer(value) if value >= 0 => {
                return Err(Some(format!("a unit, in quotes: \"{value}s\"")));
            }
            Raw::Number(value) if value.is_finite() && value >= 0.0 => {
                return Err(Some(format!("a unit, in quotes: \"{value}s\"")));
            }
            other => other.text().ok_or(None)?,
        };
        let value = quantity(text, &TIMES)
            .map(Duration::from_micros)
            .ok_or_else(|| respelled(text, &SPELLED_TIMES).or_else(|| quoted(text)))?;
        if (self.least..=self.most).contains(&value) {
            Ok(value)
        } else {
            Err(None)
        }
    }

    fn show(&self, value: &Duration) -> toml::Value {
        toml::Value::String(span(*value))
    }

    fn allowed(&self) -> String {
        format!(
            "a duration in us, ms, s, m, h or d such as \"250ms\" or \"1m30s\", from {} to {}",
            span(self.least),
            span(self.most)
        )
    }
}

/// A size such as `"64KiB"` in bytes, from `least` to `most`.
pub(super) struct Size {
    pub(super) least: u64,
    pub(super) most: u64,
}

/// Units of size in bytes, largest first.
const SIZES: [(&str, u64); 4] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

impl Scalar for Size {
    type Value = u64;

    fn parse(&self, raw: Raw<'_>) -> Result<u64, Option<String>> {
        let text = match raw {
            Raw::Integer(value) if value >= 0 => {
                return Err(Some(format!("a unit, in quotes: \"{value}B\"")));
            }
            other => other.text().ok_or(None)?,
        };
        let value =
            quantity(text, &SIZES).ok_or_else(|| respelled(text, &SPELLED_SIZES).or_else(|| quoted(text)))?;
        if (self.least..=self.most).contains(&value) {
            Ok(value)
        } else {
            Err(None)
        }
    }

    fn show(&self, value: &u64) -> toml::Value {
        toml::Value::String(size(*value))
    }

    fn allowed(&self) -> String {
        format!(
            "a size in B, KiB, MiB or GiB such as \"64KiB\", from {} to {}",
            size(self.least),
            size(self.most)
        )
    }
}

/// One or more numbers with a unit each, such as `1m30s` or `0.5s`, summed up in the smallest unit.
fn quantity(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let mut rest = text.trim();
    let mut sum: u64 = 0;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(rest.len());
        let (figure, tail) = rest.split_at_checked(digits)?;
        let letters = tail
            .find(|c: char| !c.is_ascii_alphabetic())
            .unwrap_or(tail.len());
        let (unit, tail) = tail.split_at_checked(letters)?;
        let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
        sum = sum.checked_add(scaled(figure, *factor)?)?;
        rest = tail;
    }
    Some(sum)
}

/// `figure`, which may have a fraction, times `factor`; `None` where that is not whole.
fn scaled(figure: &str, factor: u64) -> Option<u64> {
    let (whole, fraction) = figure.split_once('.').unwrap_or((figure, "0"));
    let mut value = whole.parse::<u64>().ok()?.checked_mul(factor)?;
    let places = u32::try_from(fraction.len()).ok()?;
    let part = fraction.parse::<u64>().ok()?.checked_mul(factor)?;
    let scale = 10_u64.checked_pow(places)?;
    if part % scale != 0 {
        return None;
    }
    value = value.checked_add(part / scale)?;
    Some(value)
}

/// In the largest unit that is exact.
fn span(value: Duration) -> String {
    // A single day stands beside keys in hours.
    if value == Duration::from_hours(24) {
        return "24h".to_owned();
    }
    exact(u64::try_from(value.as_micros()).unwrap_or(u64::MAX), &TIMES, "0s")
}

fn size(value: u64) -> String {
    exact(value, &SIZES, "0B")
}

fn exact(value: u64, units: &[(&str, u64)], zero: &str) -> String {
    units
        .iter()
        .find(|(_, factor)| value >= *factor && value.is_multiple_of(*factor))
        .map_or_else(
            || zero.to_owned(),
            |(unit, factor)| format!("{}{unit}", value / factor),
        )
}

/// The same with the unit spelled as it is here, where it was another spelling.
fn respelled(text: &str, spellings: &[(&str, &[&str])]) -> Option<String> {
    let text = text.trim();
    let digits = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (figure, unit) = text.split_at_checked(digits)?;
    let word = unit.trim().to_lowercase();
    let (spelled, _) = spellings
        .iter()
        .find(|(_, words)| words.contains(&word.as_str()))?;
    (!figure.is_empty() && unit != *spelled).then(|| format!("the unit is {spelled}: \"{figure}{spelled}\""))
}

const SPELLED_TIMES: [(&str, &[&str]); 5] = [
    ("ms", &["ms", "msec", "millis", "milliseconds"]),
    ("s", &["", "s", "sec", "secs", "second", "seconds"]),
    ("m", &["m", "min", "mins", "minute", "minutes"]),
    ("h", &["h", "hr", "hour", "hours"]),
    ("d", &["d", "day", "days"]),
];

const SPELLED_SIZES: [(&str, &[&str]); 4] = [
    ("B", &["", "b", "byte", "bytes"]),
    ("KiB", &["k", "kb", "ki", "kib"]),
    ("MiB", &["m", "mb", "mi", "mib"]),
    ("GiB", &["g", "gb", "gi", "gib"]),
];

#[cfg(test)]
mod tests {
    use super::{SIZES, TIMES, duration, exact, quantity, span};

    #[test]
    fn durations_of_flags_say_what_they_want() {
        assert_eq!(duration("1m30s"), Ok(std::time::Duration::from_secs(90)));
        assert_eq!(
            duration("90").unwrap_err().to_string(),
            "\"90\" is no duration: a number with a unit (us, ms, s, m, h or d), such as 250ms or 1m30s"
        );
    }

    #[test]
    fn quantities_are_sums_of_numbers_with_units() {
        for (text, microseconds) in [
            ("0s", Some(0)),
            ("1us", Some(1)),
            ("250ms", Some(250_000)),
            ("15s", Some(15_000_000)),
            (" 15s ", Some(15_000_000)),
            ("1m30s", Some(90_000_000)),
            ("30s1m", Some(90_000_000)),
            ("0.5s", Some(500_000)),
            ("1.000001s", Some(1_000_001)),
            ("2d", Some(172_800_000_000)),
            ("18446744073709551615us", Some(u64::MAX)),
            // Beyond what fits, or finer than the smallest unit.
            ("18446744073709551616us", None),
            ("18446744073709551615us1us", None),
            ("18446744073709551615s", None),
            ("0.5us", None),
            ("1.00000000000000000000000000s", None),
            ("", None),
            (" ", None),
            ("s", None),
            ("15", None),
            ("15 s", None),
            ("15S", None),
            ("-15s", None),
            ("+15s", None),
            ("1e3s", None),
            (".s", None),
            (".5s", None),
            ("5.s", None),
            ("1.2.3s", None),
            ("1s,", None),
            ("1s1", None),
            ("\u{661}s", None),
            ("1\u{b5}s", None),
            ("15KiB", None),
        ] {
            assert_eq!(quantity(text, &TIMES), microseconds, "{text:?}");
        }
        assert_eq!(quantity("1.5KiB", &SIZES), Some(1536));
        assert_eq!(quantity("1MiB1B", &SIZES), Some(1_048_577));
        assert_eq!(quantity("1kB", &SIZES), None);
    }

    #[test]
    fn quantities_are_shown_in_the_largest_exact_unit() {
        for (microseconds, text) in [
            (0, "0s"),
            (1, "1us"),
            (1_500, "1500us"),
            (250_000, "250ms"),
            (60_000_000, "1m"),
            (90_000_000, "90s"),
            (86_400_000_000, "1d"),
        ] {
            assert_eq!(exact(microseconds, &TIMES, "0s"), text);
            assert_eq!(quantity(text, &TIMES), Some(microseconds));
        }
        assert_eq!(span(std::time::Duration::from_hours(24)), "24h");
        assert_eq!(span(std::time::Duration::from_hours(48)), "2d");
        assert_eq!(exact(1536, &SIZES, "0B"), "1536B");
        assert_eq!(exact(1 << 30, &SIZES, "0B"), "1GiB");
    }
}
