//! The kinds of values that a key can have: how each is read from TOML and from text, what it allows, how it is shown.

use std::time::Duration;

use config::ValueKind;
use toml::de::DeValue;

use super::layer::Places;
use super::mistake::{printable, similar};

/// A value as it was found, with where.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found<'a> {
    pub(super) raw: Raw<'a>,
    /// Index into the register of places.
    pub(super) origin: Option<usize>,
    /// The value as it stands in the file, where it came from one.
    pub(super) written: Option<&'a str>,
}

/// What a value is before it is known what it should be.
#[derive(Clone, Copy, Debug)]
pub(super) enum Raw<'a> {
    /// From a variable or a flag: it is what its key makes of it.
    Text(&'a str),
    String(&'a str),
    Integer(i64),
    Number(f64),
    Boolean(bool),
    Date,
    List(&'a [config::Value]),
    Table,
}

/// What is wrong with a value.
#[derive(Clone, Debug)]
pub(super) struct Wrong {
    pub(super) origin: Option<usize>,
    /// Which item of a list it is.
    pub(super) index: Option<usize>,
    pub(super) found: String,
    pub(super) allowed: String,
    pub(super) hint: Option<String>,
}

/// A kind of value: one, or a list of them.
pub(super) trait Kind {
    type Value;

    fn read(&self, found: Found<'_>, places: &Places) -> Result<Self::Value, Vec<Wrong>>;
    fn show(&self, value: &Self::Value) -> toml::Value;
    fn allowed(&self) -> String;
}

/// A kind of value that is one value.
pub(super) trait Scalar {
    type Value;

    /// The value, or a hint how to mend it.
    fn parse(&self, raw: Raw<'_>) -> Result<Self::Value, Option<String>>;
    fn show(&self, value: &Self::Value) -> toml::Value;
    fn allowed(&self) -> String;
}

impl<S: Scalar> Kind for S {
    type Value = S::Value;

    fn read(&self, found: Found<'_>, _: &Places) -> Result<S::Value, Vec<Wrong>> {
        self.parse(found.raw)
            .map_err(|hint| vec![found.wrong(Scalar::allowed(self), hint)])
    }

    fn show(&self, value: &S::Value) -> toml::Value {
        Scalar::show(self, value)
    }

    fn allowed(&self) -> String {
        Scalar::allowed(self)
    }
}

/// A list of at least `least` and at most `most` values.
pub(super) struct List<S> {
    pub(super) item: S,
    pub(super) least: usize,
    pub(super) most: usize,
}

impl<S: Scalar> Kind for List<S> {
    type Value = Vec<S::Value>;

    fn read(&self, found: Found<'_>, places: &Places) -> Result<Vec<S::Value>, Vec<Wrong>> {
        let read: Vec<Result<S::Value, Vec<Wrong>>> = match found.raw {
            Raw::Text(text) => text
                .split(',')
                .map(str::trim)
                .filter(|part| !text.trim().is_empty() || !part.is_empty())
                .map(|part| {
                    self.item.read(
                        Found {
                            raw: Raw::Text(part),
                            ..found
                        },
                        places,
                    )
                })
                .collect(),
            Raw::List(values) => values
                .iter()
                .map(|value| self.item.read(Found::of(value, places), places))
                .collect(),
            Raw::String(text) => {
                return Err(vec![
                    found.wrong(self.allowed(), Some(format!("in brackets: [{text:?}]"))),
                ]);
            }
            _ => return Err(vec![found.wrong(self.allowed(), None)]),
        };
        let count = read.len();
        let mut values = Vec::with_capacity(count);
        let mut wrongs = Vec::new();
        for (index, result) in read.into_iter().enumerate() {
            match result {
                Ok(value) => values.push(value),
                Err(wrong) => {
                    wrongs.extend(wrong.into_iter().map(|wrong| Wrong {
                        index: Some(index),
                        ..wrong
                    }));
                }
            }
        }
        if count < self.least || count > self.most {
            let found_count = format!("found {count} {}", if count == 1 { "entry" } else { "entries" });
            wrongs.push(Wrong {
                found: found_count,
                ..found.wrong(self.allowed(), None)
            });
        }
        if wrongs.is_empty() {
            Ok(values)
        } else {
            Err(wrongs)
        }
    }

    fn show(&self, values: &Vec<S::Value>) -> toml::Value {
        toml::Value::Array(
            values
                .iter()
                .map(|value| Scalar::show(&self.item, value))
                .collect(),
        )
    }

    fn allowed(&self) -> String {
        let count = match (self.least, self.most) {
            (1, 1) => return format!("a list of one: {}", Scalar::allowed(&self.item)),
            (0, most) => format!("up to {most}"),
            (least, most) => format!("{least} to {most}"),
        };
        format!("a list of {count}: each {}", Scalar::allowed(&self.item))
    }
}

impl<'a> Raw<'a> {
    fn of(kind: &'a ValueKind, text: bool) -> Self {
        match kind {
            ValueKind::String(value) if text => Self::Text(value),
            ValueKind::String(value) => Self::String(value),
            ValueKind::I64(value) => Self::Integer(*value),
            ValueKind::Float(value) => Self::Number(*value),
            ValueKind::Boolean(value) => Self::Boolean(*value),
            ValueKind::Array(values) => Self::List(values),
            ValueKind::Table(_) => Self::Table,
            // Layers hold a date as nothing, and never make the wide integers.
            ValueKind::Nil | ValueKind::I128(_) | ValueKind::U64(_) | ValueKind::U128(_) => Self::Date,
        }
    }

    /// The text of a string, wherever it came from.
    fn text(self) -> Option<&'a str> {
        match self {
            Self::Text(text) | Self::String(text) => Some(text),
            _ => None,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Text(_) => "text",
            Self::String(_) => "a string",
            Self::Integer(_) => "an integer",
            Self::Number(_) => "a number",
            Self::Boolean(_) => "a boolean",
            Self::Date => "a date",
            Self::List(_) => "a list",
            Self::Table => "a table",
        }
    }
}

impl<'a> Found<'a> {
    pub(super) fn of(value: &'a config::Value, places: &'a Places) -> Self {
        let origin = Places::origin(value);
        let raw = Raw::of(&value.kind, places.is_text(origin));
        Self {
            raw,
            origin,
            written: places.written(origin),
        }
    }

    pub(super) fn wrong(&self, allowed: String, hint: Option<String>) -> Wrong {
        let found = match (self.raw, self.written) {
            (Raw::Text(""), _) => "found nothing".to_owned(),
            (Raw::Text(text), _) => format!("found {}", printable(text)),
            (Raw::Table | Raw::List(_), _) | (_, None) => format!("found {}", self.raw.name()),
            (raw, Some(written)) => format!("found {} ({})", printable(written), raw.name()),
        };
        Wrong {
            origin: self.origin,
            index: None,
            found,
            allowed,
            hint,
        }
    }
}

/// `true` or `false`.
pub(super) struct Switch;

impl Scalar for Switch {
    type Value = bool;

    fn parse(&self, raw: Raw<'_>) -> Result<bool, Option<String>> {
        match raw {
            Raw::Boolean(value) => Ok(value),
            Raw::Text("true") => Ok(true),
            Raw::Text("false") => Ok(false),
            Raw::String("true" | "false") => Err(Some("without the quotes".to_owned())),
            _ => Err(None),
        }
    }

    fn show(&self, value: &bool) -> toml::Value {
        toml::Value::Boolean(*value)
    }

    fn allowed(&self) -> String {
        "true or false".to_owned()
    }
}

/// A whole number from `least` to `most`.
pub(super) struct Whole {
    pub(super) least: i64,
    pub(super) most: i64,
}

impl Scalar for Whole {
    type Value = i64;

    fn parse(&self, raw: Raw<'_>) -> Result<i64, Option<String>> {
        let value = match raw {
            Raw::Integer(value) => value,
            Raw::Text(text) => integer(text).ok_or(None)?,
            Raw::String(text) => return Err(integer(text).map(|_| "without the quotes".to_owned())),
            _ => return Err(None),
        };
        if (self.least..=self.most).contains(&value) {
            Ok(value)
        } else {
            Err(None)
        }
    }

    fn show(&self, value: &i64) -> toml::Value {
        toml::Value::Integer(*value)
    }

    fn allowed(&self) -> String {
        format!("a whole number from {} to {}", self.least, self.most)
    }
}

/// A number from `least` to `most`, which may have a fraction.
pub(super) struct Number {
    pub(super) least: f64,
    pub(super) most: f64,
}

impl Scalar for Number {
    type Value = f64;

    fn parse(&self, raw: Raw<'_>) -> Result<f64, Option<String>> {
        let value = match raw {
            Raw::Integer(value) => value as f64,
            Raw::Number(value) => value,
            Raw::Text(text) => number(text).ok_or(None)?,
            Raw::String(text) => return Err(number(text).map(|_| "without the quotes".to_owned())),
            _ => return Err(None),
        };
        // A NaN is in no range.
        if (self.least..=self.most).contains(&value) {
            Ok(value)
        } else {
            Err(None)
        }
    }

    fn show(&self, value: &f64) -> toml::Value {
        // Up to 2^53 every whole number is exact.
        if value.fract() == 0.0 && value.abs() < 9_007_199_254_740_992.0 {
            toml::Value::Integer(*value as i64)
        } else {
            toml::Value::Float(*value)
        }
    }

    fn allowed(&self) -> String {
        format!("a number from {} to {}", self.least, self.most)
    }
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

/// One of a few words.
pub(super) struct Choice<T: 'static>(pub(super) &'static [(&'static str, T)]);

impl<T: Copy + PartialEq> Scalar for Choice<T> {
    type Value = T;

    fn parse(&self, raw: Raw<'_>) -> Result<T, Option<String>> {
        let text = match raw {
            Raw::Number(_) | Raw::Integer(_) => return Err(Some("in quotes".to_owned())),
            other => other.text().ok_or(None)?,
        };
        self.0
            .iter()
            .find(|(word, _)| *word == text)
            .map(|(_, value)| *value)
            .ok_or_else(|| {
                quoted(text).or_else(|| {
                    similar(text, self.0.iter().map(|(word, _)| *word))
                        .map(|word| format!("did you mean \"{word}\"?"))
                })
            })
    }

    fn show(&self, value: &T) -> toml::Value {
        let word = self
            .0
            .iter()
            .find(|(_, candidate)| candidate == value)
            .map_or("", |(word, _)| word);
        toml::Value::String(word.to_owned())
    }

    fn allowed(&self) -> String {
        let words: Vec<String> = self.0.iter().map(|(word, _)| format!("\"{word}\"")).collect();
        words.join(" or ")
    }
}

/// A string that `parse` makes something of; it fails with a hint.
pub(super) struct Parsed<T> {
    pub(super) allowed: &'static str,
    pub(super) parse: fn(&str) -> Result<T, Option<String>>,
    pub(super) show: fn(&T) -> String,
}

impl<T> Scalar for Parsed<T> {
    type Value = T;

    fn parse(&self, raw: Raw<'_>) -> Result<T, Option<String>> {
        let text = raw.text().ok_or(None)?;
        (self.parse)(text).map_err(|hint| hint.or_else(|| quoted(text)))
    }

    fn show(&self, value: &T) -> toml::Value {
        toml::Value::String((self.show)(value))
    }

    fn allowed(&self) -> String {
        self.allowed.to_owned()
    }
}

/// Who writes `--set key='"value"'` has the rules of the file in mind.
fn quoted(text: &str) -> Option<String> {
    text.starts_with('"')
        .then(|| "without the inner quotes".to_owned())
}

/// Text as TOML would read it, so that `0123` and `1_000` mean the same in a variable as in the file.
fn integer(text: &str) -> Option<i64> {
    match DeValue::parse(text.trim()).ok()?.get_ref() {
        DeValue::Integer(value) => i64::from_str_radix(value.as_str(), value.radix()).ok(),
        _ => None,
    }
}

fn number(text: &str) -> Option<f64> {
    match DeValue::parse(text.trim()).ok()?.get_ref() {
        DeValue::Integer(value) => i64::from_str_radix(value.as_str(), value.radix())
            .ok()
            .map(|v| v as f64),
        DeValue::Float(value) => value.as_str().parse().ok(),
        _ => None,
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
    exact(u64::try_from(value.as_micros()).unwrap_or(u64::MAX), &TIMES, "0s")
}

fn size(value: u64) -> String {
    exact(value, &SIZES, "0B")
}

fn exact(value: u64, units: &[(&str, u64)], zero: &str) -> String {
    units
        .iter()
        .find(|(_, factor)| value >= *factor && value % factor == 0)
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
    use super::{SIZES, TIMES, exact, quantity};

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
        assert_eq!(exact(1536, &SIZES, "0B"), "1536B");
        assert_eq!(exact(1 << 30, &SIZES, "0B"), "1GiB");
    }
}
