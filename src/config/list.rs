//! Lists of values.

use super::kind::{Found, Kind, Raw, Scalar, Wrong};
use super::layer::Places;

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
