//! Reads keys out of a layer: each is named once, where it is read, and what was not named is a mistake.

mod entries;

use std::collections::BTreeSet;

use config::{Map, Value, ValueKind};

use super::keys::{Change, Key};
use super::kind::{Found, Kind, Wrong};
use super::layer::{Layer, Places};
use super::mistake::{Mistake, Place, similar};

/// What is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// One layer alone: every value and every name is checked, nothing need be there.
    Layer,
    /// All of them together: what must be there is, and what was said fits together.
    Whole,
}

/// Collects what is read and what is wrong with it.
pub(super) struct Reader<'a> {
    places: &'a Places,
    stage: Stage,
    keys: Vec<Key>,
    /// Keys within tables in lists. Their paths have the number of the table, and they are shown with the list.
    entries: Vec<Key>,
    mistakes: Vec<Mistake>,
    unknown: Vec<Unknown>,
    /// Paths of keys with a mistake, of which nothing more can be said.
    mistaken: BTreeSet<String>,
    incomplete: bool,
}

/// A name that nothing reads.
struct Unknown {
    origin: Option<usize>,
    name: String,
    table: String,
    siblings: Vec<String>,
}

/// One table that is being read.
pub(super) struct Table<'r, 'a> {
    reader: &'r mut Reader<'a>,
    path: String,
    values: Option<&'a Map<String, Value>>,
    names: Vec<String>,
    /// Where it begins, if it is one of a list: what must be set in it can be set nowhere else.
    entry: Option<usize>,
}

impl<'a> Reader<'a> {
    pub(super) const fn new(places: &'a Places, stage: Stage) -> Self {
        Self {
            places,
            stage,
            keys: Vec::new(),
            entries: Vec::new(),
            mistakes: Vec::new(),
            unknown: Vec::new(),
            mistaken: BTreeSet::new(),
            incomplete: false,
        }
    }

    /// Reads the outermost table of `layer`.
    pub(super) fn read<T>(&mut self, layer: &'a Layer, read: impl FnOnce(&mut Table<'_, 'a>) -> T) -> T {
        let values = match &layer.0.kind {
            ValueKind::Table(values) => Some(values),
            _ => None,
        };
        self.table(String::new(), values, None, read)
    }

    /// Reports that values which are legal by themselves do not fit together: at `path`, unless one of `others` or
    /// itself is mistaken anyway.
    pub(super) fn contradiction(&mut self, path: &str, others: &[&str], found: String, hint: &str) {
        self.report(path, others, found, Some(hint));
    }

    /// Reports that what is named at `path` can't be used, unless the key itself is mistaken.
    pub(super) fn unusable(&mut self, path: &str, found: String, hint: Option<&str>) {
        self.report(path, &[], found, hint);
    }

    fn report(&mut self, path: &str, others: &[&str], found: String, hint: Option<&str>) {
        if others
            .iter()
            .copied()
            .chain([path])
            .any(|path| self.mistaken.contains(path))
        {
            return;
        }
        // The place of the key itself, or else of what contradicts it.
        let keys = self.keys.iter().chain(&self.entries);
        let written = |path: &str| keys.clone().find(|key| key.path == path)?.place.clone();
        let place = written(path).or_else(|| others.iter().find_map(|path| written(path)));
        let hint = hint.map(str::to_owned);
        self.mistakes.push(Mistake {
            place,
            path: path.to_owned(),
            found,
            allowed: String::new(),
            hint,
        });
    }

    /// Whether a key that must be set is not.
    pub(super) const fn is_incomplete(&self) -> bool {
        self.incomplete
    }

    /// The keys that were read, and what is wrong.
    pub(super) fn finish(mut self) -> (Vec<Key>, Vec<Mistake>) {
        let unknown = std::mem::take(&mut self.unknown);
        let mistakes = unknown
            .iter()
            .map(|unknown| self.unknown_name(unknown))
            .collect::<Vec<_>>();
        self.mistakes.extend(mistakes);
        (self.keys, self.mistakes)
    }

    fn table<T>(
        &mut self,
        path: String,
        values: Option<&'a Map<String, Value>>,
        entry: Option<usize>,
        read: impl FnOnce(&mut Table<'_, 'a>) -> T,
    ) -> T {
        let mut table = Table {
            reader: self,
            path,
            values,
            names: Vec::new(),
            entry,
        };
        let result = read(&mut table);
        table.close();
        result
    }

    fn wrong(&mut self, path: &str, wrong: Wrong) {
        // A table loses its place when layers are merged. It was reported in its layer, as all that has a place.
        if self.stage == Stage::Whole && wrong.origin.is_none() {
            return;
        }
        let path = wrong
            .index
            .map_or_else(|| path.to_owned(), |index| format!("{path}[{index}]"));
        let place = self.places.of_value(wrong.origin);
        let Wrong {
            found,
            allowed,
            hint,
            secret,
            ..
        } = wrong;
        let place = place.map(|place| if secret { place.hidden() } else { place });
        self.mistakes.push(Mistake {
            place,
            path,
            found,
            allowed,
            hint,
        });
    }

    fn unknown_name(&self, unknown: &Unknown) -> Mistake {
        let siblings = unknown.siblings.iter().map(String::as_str);
        let nested = |table: &str, name: &str| join(table, name);
        let elsewhere = self.keys.iter().find(|key| key.name() == unknown.name);
        let hint = similar(&unknown.name, siblings.clone())
            .map(|name| format!("did you mean {}?", nested(&unknown.table, name)))
            .or_else(|| {
                elsewhere.map(|key| format!("there is {}, in the table [{}]", key.path, key.table()))
            });
        let what = if unknown.table.is_empty() {
            "no table of this name"
        } else {
            "no key of this name"
        };
        Mistake {
            place: self.places.of_key(unknown.origin),
            path: join(&unknown.table, &unknown.name),
            found: what.to_owned(),
            allowed: siblings.collect::<Vec<_>>().join(", "),
            hint,
        }
    }
}

impl<'a> Table<'_, 'a> {
    /// A key that has a default. While there is a mistake in it, its default stands for it.
    pub(super) fn key<K: Kind>(
        &mut self,
        name: &str,
        change: Change,
        kind: &K,
        default: K::Value,
    ) -> K::Value {
        self.read(name, change, kind, Some(&default)).unwrap_or(default)
    }

    /// A key that must be set. While it is not, an empty value stands for it.
    pub(super) fn required<K: Kind>(&mut self, name: &str, change: Change, kind: &K) -> K::Value
    where
        K::Value: Default,
    {
        self.read(name, change, kind, None).unwrap_or_default()
    }

    /// A table in this one.
    pub(super) fn table<T>(&mut self, name: &str, read: impl FnOnce(&mut Table<'_, 'a>) -> T) -> T {
        self.names.push(name.to_owned());
        let path = join(&self.path, name);
        let values = self
            .values
            .and_then(|values| values.get(name))
            .and_then(|value| match &value.kind {
                ValueKind::Table(values) => Some(values),
                kind => {
                    let hint = match kind {
                        ValueKind::Array(items) if items.iter().all(is_table) => {
                            format!("its header has single brackets: [{path}]")
                        }
                        _ => format!("its keys are set one by one: {path}.KEY"),
                    };
                    let wrong = Found::of(value, self.reader.places).wrong("a table".to_owned(), Some(hint));
                    self.reader.wrong(&path, wrong);
                    self.reader.mistaken.insert(path.clone());
                    None
                }
            });
        self.reader.table(path, values, None, read)
    }

    /// Reports that values which are legal by themselves do not fit together: at the key `name` of this table, unless
    /// it or one of `others` is mistaken anyway. Of the whole alone: what one layer lacks another may have.
    pub(super) fn contradiction(&mut self, name: &str, others: &[&str], found: &str, hint: &str) {
        if self.reader.stage == Stage::Whole {
            let others: Vec<String> = others.iter().map(|other| join(&self.path, other)).collect();
            let others: Vec<&str> = others.iter().map(String::as_str).collect();
            self.reader
                .contradiction(&join(&self.path, name), &others, found.to_owned(), hint);
        }
    }

    fn read<K: Kind>(
        &mut self,
        name: &str,
        change: Change,
        kind: &K,
        default: Option<&K::Value>,
    ) -> Option<K::Value> {
        self.names.push(name.to_owned());
        let path = join(&self.path, name);
        let places = self.reader.places;
        let found = self
            .values
            .and_then(|values| values.get(name))
            .map(|value| Found::of(value, places));
        let place = found.and_then(|found| places.of_value(found.origin));
        let result = match found {
            Some(found) => kind.read(found, places).map(Some),
            None if default.is_some() || self.reader.stage == Stage::Layer => Ok(None),
            // A table that is none was reported as such.
            None if self.reader.mistaken.contains(&self.path) => Ok(None),
            None => {
                self.reader.incomplete |= self.entry.is_none();
                let entry = places.of_value(self.entry);
                self.reader.mistakes.push(missing(kind.allowed(), &path, entry));
                Err(Vec::new())
            }
        };
        let value = result.unwrap_or_else(|wrongs| {
            for wrong in wrongs {
                self.reader.wrong(&path, wrong);
            }
            self.reader.mistaken.insert(path.clone());
            None
        });
        let said = value.as_ref().or(default);
        let nothing = || toml::Value::String(String::new());
        self.reader.keys.push(Key {
            path,
            value: said.map_or_else(nothing, |value| kind.show(value)),
            secret: said.and_then(|value| kind.hidden(value)),
            default: default.map(|default| kind.show(default)),
            allowed: kind.allowed(),
            change,
            place,
            in_file_alone: false,
        });
        value
    }

    fn close(self) {
        // In the whole every name was already seen in its layer, and tables have lost their places.
        let Some(values) = self.values.filter(|_| self.reader.stage == Stage::Layer) else {
            return;
        };
        for (name, value) in values.iter().filter(|(name, _)| !self.names.contains(name)) {
            self.reader.unknown.push(Unknown {
                origin: Places::origin(value),
                name: name.clone(),
                table: self.path.clone(),
                siblings: self.names.clone(),
            });
        }
    }
}

fn missing(allowed: String, path: &str, entry: Option<Place>) -> Mistake {
    let hint = match entry {
        Some(_) => "set it in this table of the list".to_owned(),
        None => format!("set it in the file, by --set {path}=…, or by its variable"),
    };
    Mistake {
        place: entry,
        path: path.to_owned(),
        found: "must be set".to_owned(),
        allowed,
        hint: Some(hint),
    }
}

fn is_table(value: &Value) -> bool {
    matches!(value.kind, ValueKind::Table(_))
}

fn join(table: &str, name: &str) -> String {
    if table.is_empty() {
        name.to_owned()
    } else {
        format!("{table}.{name}")
    }
}
