//! Tables in a list.

use config::{Value, ValueKind};

use super::{Change, Found, Key, Places, Table, Wrong, is_table, join};

impl<'a> Table<'_, 'a> {
    /// A list of up to `most` tables in the order of the file, each with the header `[[PATH.NAME]]` and read by `read`,
    /// which reads keys and no tables from it. Empty by default. The list is one key. The file alone can set it: the
    /// name of a variable or a flag can't say which table of the list is meant.
    pub(in crate::config) fn tables<T>(
        &mut self,
        name: &str,
        change: Change,
        most: usize,
        read: impl Fn(&mut Table<'_, 'a>) -> T,
    ) -> Vec<T> {
        self.names.push(name.to_owned());
        let path = join(&self.path, name);
        let places = self.reader.places;
        let allowed = format!("up to {most} tables, each with the header [[{path}]]");
        let value = self.values.and_then(|values| values.get(name));
        let items = value.map_or(Ok(&[][..]), |value| {
            list_of_tables(value, places, &path, most, &allowed)
        });
        let items = items.unwrap_or_else(|wrongs| {
            for wrong in wrongs {
                self.reader.wrong(&path, wrong);
            }
            self.reader.mistaken.insert(path.clone());
            &[]
        });
        let mut read_tables = Vec::with_capacity(items.len());
        let mut shown = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            let ValueKind::Table(values) = &item.kind else {
                continue;
            };
            let before = self.reader.keys.len();
            let path = format!("{path}[{index}]");
            read_tables.push(self.reader.table(path, Some(values), Places::origin(item), &read));
            let keys = self.reader.keys.split_off(before);
            debug_assert!(
                keys.iter().all(|key| key.secret.is_none()),
                "a list hides nothing"
            );
            let pairs = keys.iter().map(|key| (key.name().to_owned(), key.value.clone()));
            shown.push(toml::Value::Table(pairs.collect()));
            self.reader.entries.extend(keys);
        }
        self.reader.keys.push(Key {
            path,
            value: toml::Value::Array(shown),
            secret: None,
            default: Some(toml::Value::Array(Vec::new())),
            allowed,
            change,
            place: value.and_then(|value| places.of_value(Places::origin(value))),
            in_file_alone: true,
        });
        read_tables
    }
}

/// The items of `value`, all of them tables and not too many.
fn list_of_tables<'a>(
    value: &'a Value,
    places: &Places,
    path: &str,
    most: usize,
    allowed: &str,
) -> Result<&'a [Value], Vec<Wrong>> {
    let found = Found::of(value, places);
    let whole = |said: Option<String>, hint: Option<String>| {
        let wrong = found.wrong(allowed.to_owned(), hint);
        Wrong {
            found: said.unwrap_or_else(|| wrong.found.clone()),
            ..wrong
        }
    };
    if places.is_text(found.origin) {
        return Err(vec![whole(Some("can be set in the file alone".to_owned()), None)]);
    }
    let ValueKind::Array(items) = &value.kind else {
        let hint = is_table(value).then(|| format!("its header has double brackets: [[{path}]]"));
        return Err(vec![whole(None, hint)]);
    };
    let mut wrongs: Vec<Wrong> = items
        .iter()
        .enumerate()
        .filter(|(_, item)| !is_table(item))
        .map(|(index, item)| Wrong {
            index: Some(index),
            ..Found::of(item, places).wrong("a table".to_owned(), None)
        })
        .collect();
    if items.len() > most {
        wrongs.push(whole(Some(format!("found {} tables", items.len())), None));
    }
    if wrongs.is_empty() { Ok(items) } else { Err(wrongs) }
}
