//! Every key with its value: what `check --print` prints, and what documentation and reload are held against.

use std::fmt::{self, Write};

use super::mistake::{Place, printable};

/// When a change of a key takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// On reload, for connections that come after it: marked R in the contract.
    OnReload,
    /// On restart.
    OnRestart,
}

/// One key.
#[derive(Clone, Debug)]
pub struct Key {
    /// Its path, such as `admission.cost.clean`.
    pub path: String,
    /// Its value, as it would be written; of a secret what may be shown.
    pub value: toml::Value,
    /// The whole of it, where [`Self::value`] is not.
    pub(super) secret: Option<Hidden>,
    /// Its default; `None`: it must be set.
    pub default: Option<toml::Value>,
    /// What it may be, in words.
    pub allowed: String,
    /// When a change of it takes effect.
    pub change: Change,
    /// Where its value was written; `None`: it is the default.
    pub place: Option<Place>,
    /// Whether neither a variable nor a flag can set it: a list of tables.
    pub in_file_alone: bool,
}

/// A value that is compared, and shown nowhere.
#[derive(Clone, PartialEq)]
pub(super) struct Hidden(pub(super) toml::Value);

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl Key {
    /// What it says, secrets and all: to compare and to keep, not to show.
    pub(super) fn exact(&self) -> &toml::Value {
        self.secret.as_ref().map_or(&self.value, |Hidden(value)| value)
    }

    /// The table that it stands in.
    pub fn table(&self) -> &str {
        self.path.rsplit_once('.').map_or("", |(table, _)| table)
    }

    /// The outermost table that it stands in.
    pub(super) fn outermost(&self) -> &str {
        self.path.split_once('.').map_or("", |(table, _)| table)
    }

    /// Its name within the table.
    pub fn name(&self) -> &str {
        self.path
            .rsplit_once('.')
            .map_or(self.path.as_str(), |(_, name)| name)
    }

    /// The environment variable that sets it, or that is refused with the reason where [`Self::in_file_alone`] is true.
    pub fn variable(&self) -> String {
        format!("SEAWALL_{}", self.path.replace('.', "__").to_ascii_uppercase())
    }
}

/// Two keys are the same when they say the same, wherever it was written.
impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.path == other.path && self.exact() == other.exact()
    }
}

/// The keys as a TOML file, each with where its value comes from.
pub(super) fn to_toml(keys: &[Key]) -> String {
    let mut text = String::new();
    let mut tables: Vec<&str> = Vec::new();
    for key in keys {
        if !tables.contains(&key.table()) {
            tables.push(key.table());
        }
    }
    for table in tables {
        let gap = if text.is_empty() { "" } else { "\n" };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{gap}[{table}]");
        for key in keys.iter().filter(|key| key.table() == table) {
            let _ = writeln!(
                text,
                "{:<48} # {}",
                format!("{} = {}", key.name(), key.value),
                source(key)
            );
        }
    }
    text
}

fn source(key: &Key) -> String {
    match &key.place {
        None => "default".to_owned(),
        Some(Place::Variable(name, _)) => printable(name),
        Some(Place::Flag(_)) => "--set".to_owned(),
        Some(Place::File(file)) => printable(&file.display().to_string()),
        Some(Place::Line { file, line, .. }) => printable(&format!("{}:{line}", file.display())),
    }
}
