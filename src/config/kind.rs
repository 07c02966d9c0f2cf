//! The kinds of values that a key can have: how each is read from TOML and from text, what it allows, how it is shown.

use config::ValueKind;
use toml::de::DeValue;

use super::keys::Hidden;
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
    /// What was found is not to be shown, there where it stands either.
    pub(super) secret: bool,
}

/// A kind of value: one, or a list of them.
pub(super) trait Kind {
    type Value;

    fn read(&self, found: Found<'_>, places: &Places) -> Result<Self::Value, Vec<Wrong>>;
    fn show(&self, value: &Self::Value) -> toml::Value;
    fn allowed(&self) -> String;

    /// The whole of a value of which [`Self::show`] keeps something back.
    fn hidden(&self, _: &Self::Value) -> Option<Hidden> {
        None
    }
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
    pub(super) fn text(self) -> Option<&'a str> {
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
            secret: false,
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

/// A string that holds a password: what was found is not shown, and of its value what `mask` leaves. Nothing else masks.
pub(super) struct Secret<T> {
    pub(super) exact: Parsed<T>,
    pub(super) mask: fn(&T) -> String,
}

impl<T> Kind for Secret<T> {
    type Value = T;

    fn read(&self, found: Found<'_>, _: &Places) -> Result<T, Vec<Wrong>> {
        self.exact.parse(found.raw).map_err(|hint| {
            vec![Wrong {
                found: "found what is not shown here, since it may hold a password".to_owned(),
                secret: true,
                ..found.wrong(Scalar::allowed(&self.exact), hint)
            }]
        })
    }

    fn show(&self, value: &T) -> toml::Value {
        toml::Value::String((self.mask)(value))
    }

    fn allowed(&self) -> String {
        Scalar::allowed(&self.exact)
    }

    fn hidden(&self, value: &T) -> Option<Hidden> {
        Some(Hidden(Scalar::show(&self.exact, value)))
    }
}

/// Who writes `--set key='"value"'` has the rules of the file in mind.
pub(super) fn quoted(text: &str) -> Option<String> {
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
