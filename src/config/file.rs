//! A TOML file → a layer that knows line and column of every value.

use std::io::ErrorKind;
use std::ops::Range;
use std::path::Path;

use config::{Map, Value, ValueKind};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::layer::{Layer, Places};
use super::mistake::{Mistake, Place};
use crate::named_file::{self, ReadError};

/// Largest file in bytes; the one with every key and its reason has a hundredth of it.
const LARGEST: u64 = 1 << 20;

/// What came of a file.
pub(super) struct File {
    pub(super) layer: Layer,
    /// What is wrong with its TOML.
    pub(super) syntax: Vec<Mistake>,
}

impl File {
    /// Whether a mistake at `place` is one in spite of those in the TOML. A table whose header or a list whose end is
    /// broken takes in what does not belong to it.
    pub(super) fn trusts(&self, place: Option<&Place>) -> bool {
        let Some(Place::Line { line, .. }) = place else {
            return true;
        };
        self.syntax.iter().all(|mistake| match &mistake.place {
            Some(Place::Line {
                line: broken, source, ..
            }) => broken != line && !source.trim_start().starts_with('[') && !is_open(&mistake.found),
            _ => false,
        })
    }
}

/// Reads a file; fails where it can't be read at all.
pub(super) fn read(path: &Path, places: &mut Places) -> Result<File, Mistake> {
    let text = contents(path)?;
    let (table, errors) = DeTable::parse_recoverable(&text);
    let mut lines = Lines {
        path,
        text: &text,
        places,
    };
    let mut syntax: Vec<Mistake> = errors
        .iter()
        .map(|error| Mistake {
            place: Some(lines.place(&error.span().unwrap_or(0..0))),
            path: String::new(),
            found: error.message().to_owned(),
            allowed: String::new(),
            hint: syntax_hint(error.message()),
        })
        .collect();
    syntax.sort_by_key(Mistake::line);
    // What more is wrong with a line, and with all that an open list takes in, are consequences.
    syntax.dedup_by_key(|mistake| mistake.line());
    let open = syntax.iter().position(|mistake| is_open(&mistake.found));
    syntax.truncate(open.map_or(syntax.len(), |open| open + 1));
    let values = lines.table(table.get_ref());
    Ok(File {
        layer: Layer(Value::new(None, ValueKind::Table(values))),
        syntax,
    })
}

/// Whether the message is about a list or table that has no end, or whose end was not found where it should be.
fn is_open(message: &str) -> bool {
    message.starts_with("unclosed") || message.starts_with("missing comma")
}

fn contents(path: &Path) -> Result<String, Mistake> {
    let wrong = |found: String, hint: Option<&str>| Mistake {
        place: Some(Place::File(path.to_owned())),
        path: String::new(),
        found,
        allowed: String::new(),
        hint: hint.map(str::to_owned),
    };
    let bytes = named_file::read(path, LARGEST)
        .map_err(|error| wrong(format!("can't be read: {error}"), unreadable_hint(&error)))?;
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let before = error.as_bytes().get(..valid).unwrap_or_default();
        let line = before.split(|byte| *byte == b'\n').count();
        wrong(
            format!("not UTF-8: line {line}, byte {valid} of the file"),
            Some("save it as UTF-8"),
        )
    })
}

fn unreadable_hint(error: &ReadError) -> Option<&'static str> {
    match error {
        ReadError::System(error) => match error.kind() {
            ErrorKind::NotFound => Some("another file is named by --config FILE"),
            ErrorKind::PermissionDenied => Some("the user that Seawall runs as must be allowed to read it"),
            _ => None,
        },
        ReadError::Kind("a folder") => Some("name the file in it"),
        ReadError::Kind(_) => Some("write it to a file: it is read again on each reload"),
        ReadError::TooLong(_) => Some("a configuration is TOML text of a few hundred lines"),
    }
}

fn syntax_hint(message: &str) -> Option<String> {
    let hint = if message.contains("must be quoted") {
        "words, durations, sizes and addresses are in quotes: timeout = \"15s\""
    } else if message.contains("duplicate key") {
        "each key and each [table] stands once"
    } else if message.contains("leading zero") {
        "numbers have no leading zero"
    } else if message.contains("missing comma") {
        "a list that begins above has no comma or no ] here"
    } else if message.contains("key with no value") {
        "a line is key = value or [table]"
    } else {
        return None;
    };
    Some(hint.to_owned())
}

/// The text of a file, to turn spans into lines.
struct Lines<'a> {
    path: &'a Path,
    text: &'a str,
    places: &'a mut Places,
}

impl Lines<'_> {
    fn table(&mut self, table: &DeTable<'_>) -> Map<String, Value> {
        let mut values = Map::new();
        for (key, value) in table {
            values.insert(key.get_ref().to_string(), self.value(Some(key.span()), value));
        }
        values
    }

    fn value(&mut self, key: Option<Range<usize>>, value: &Spanned<DeValue<'_>>) -> Value {
        let kind = match value.get_ref() {
            DeValue::String(text) => ValueKind::String(text.to_string()),
            DeValue::Integer(integer) => i64::from_str_radix(integer.as_str(), integer.radix())
                .map_or(ValueKind::Float(f64::INFINITY), ValueKind::I64),
            DeValue::Float(float) => ValueKind::Float(float.as_str().parse().unwrap_or(f64::NAN)),
            DeValue::Boolean(boolean) => ValueKind::Boolean(*boolean),
            DeValue::Datetime(_) => ValueKind::Nil,
            DeValue::Array(items) => {
                ValueKind::Array(items.iter().map(|item| self.value(None, item)).collect())
            }
            DeValue::Table(table) => ValueKind::Table(self.table(table)),
        };
        let span = value.span();
        let written = self.text.get(span.clone()).unwrap_or_default().to_owned();
        let place = self.place(&span);
        let key = key.map(|key| self.place(&key));
        let origin = self.places.in_file(place, key, written);
        Value::new(Some(&origin), kind)
    }

    /// Line and column of a span of bytes, and what of it is on that line.
    fn place(&self, span: &Range<usize>) -> Place {
        let before = self.text.get(..span.start).unwrap_or(self.text);
        let begin = before.rfind('\n').map_or(0, |at| at + 1);
        let rest = self.text.get(begin..).unwrap_or_default();
        let source = rest
            .lines()
            .next()
            .unwrap_or_default()
            .trim_start_matches('\u{feff}');
        let column = before
            .get(begin..)
            .unwrap_or_default()
            .trim_start_matches('\u{feff}')
            .chars()
            .count()
            + 1;
        let written = self
            .text
            .get(span.clone())
            .unwrap_or_default()
            .lines()
            .next()
            .unwrap_or_default();
        Place::Line {
            file: self.path.to_owned(),
            line: before.matches('\n').count() + 1,
            column,
            width: written.chars().count(),
            source: source.to_owned(),
        }
    }
}
