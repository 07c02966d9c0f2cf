//! What the configuration says and what it means. File, environment and `--set` are laid over each other, every
//! mistake in any of them is found in one go, and what comes out is legal: a [`Config`] that exists can be run.

mod address;
mod agreement;
mod checks;
mod file;
mod files;
mod keys;
mod kind;
mod layer;
mod list;
mod mistake;
mod quantity;
mod reader;
mod reload;
mod tables;
mod text;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

pub use keys::{Change, Key};
pub use mistake::{Mistake, Mistakes, Place};
pub use quantity::{NoDuration, duration};
pub use reload::{Difference, Reloaded, reload};

use layer::{Layer, Places};
use reader::{Reader, Stage};

/// Where the file is looked for when none is named.
pub const DEFAULT_FILES: [&str; 2] = ["config/seawall.toml", "/etc/seawall/seawall.toml"];

/// The whole configuration, validated.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// `[listen]`
    pub listen: crate::listener::Settings,
    /// `[tls]`
    pub tls: crate::tls::Settings,
    /// `[handshake]`, without its timeout
    pub gate: crate::admission::gate::Settings,
    /// `[admission.per_source]`
    pub sources: crate::admission::sources::Settings,
    /// `[handshake]` and `[connect]`
    pub connection: crate::connection::Settings,
    /// `[admission]`
    pub admission: crate::admission::Settings,
    /// `[refusal]`
    pub refusal: crate::refusal::Settings,
    /// `[upstream]`
    pub upstream: crate::upstream::Settings,
    /// `[relay]`
    pub relay: crate::relay::Settings,
    /// `[drain]`
    pub drain: crate::drain::Settings,
    /// `[admin]`
    pub admin: crate::admin::Settings,
    /// `[audit]`; `None`: it has no path.
    pub audit: Option<crate::telemetry::audit::Settings>,
    /// `[shared_budget]`; `None`: this process shares with nobody.
    pub shared_budget: Option<crate::budget::Settings>,
    /// `[log]`
    pub log: crate::telemetry::log::Settings,
    /// `reload.watch`: whether a change of the file is taken without being asked to.
    pub watch: bool,
    keys: Vec<Key>,
}

/// What a configuration is made of; a later field beats the earlier ones.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// The file; `None`: there is none.
    pub file: Option<PathBuf>,
    /// Where a file was looked for in vain.
    pub searched: Vec<PathBuf>,
    /// Names and values of environment variables; those that don't begin with `SEAWALL_` are ignored.
    pub environment: Vec<(OsString, OsString)>,
    /// `KEY=VALUE` of each `--set`; a later one beats an earlier one.
    pub set: Vec<String>,
}

impl Sources {
    /// The sources of this process: `file`, or else the first of [`DEFAULT_FILES`] that exists, and its environment.
    pub fn of_process(file: Option<PathBuf>, set: Vec<String>) -> Self {
        // A file that can't be looked at is there: reading it says what is wrong.
        let exists = |path: &PathBuf| path.try_exists().unwrap_or(true);
        let file = file.or_else(|| DEFAULT_FILES.iter().map(PathBuf::from).find(exists));
        let searched = if file.is_none() {
            DEFAULT_FILES.iter().map(PathBuf::from).collect()
        } else {
            Vec::new()
        };
        Self {
            file,
            searched,
            environment: std::env::vars_os().collect(),
            set,
        }
    }
}

impl Config {
    /// Every key with its value and where that comes from, in the order of the contract. Says what was loaded: a
    /// field that was changed by hand afterwards does not show here.
    pub fn keys(&self) -> &[Key] {
        &self.keys
    }

    /// The configuration as a TOML file that means the same.
    pub fn to_toml(&self) -> String {
        keys::to_toml(&self.keys)
    }
}

/// Every key with its default, in the order of the contract.
pub fn keys() -> Vec<Key> {
    let (places, empty) = (Places::default(), Layer::empty());
    let mut reader = Reader::new(&places, Stage::Layer);
    let _ = reader.read(&empty, tables::config);
    reader.finish().0
}

/// Reads all sources. Fails with every mistake in them, also in those values that a later source beats.
pub fn load(sources: &Sources) -> Result<Config, Mistakes> {
    Gathered::of(sources).read(|_, _| {})
}

/// As [`load`], and opens what the configuration names as well: everything that can be found wrong before a run.
pub fn check(sources: &Sources) -> Result<Config, Mistakes> {
    Gathered::of(sources).read(files::inspect)
}

/// As [`check`], and looks whether what a run writes to can be written: for who asks before a run.
pub fn check_all(sources: &Sources) -> Result<Config, Mistakes> {
    Gathered::of(sources).read(files::inspect_all)
}

/// What was collected from the sources.
struct Gathered<'a> {
    sources: &'a Sources,
    places: Places,
    layers: Vec<Layer>,
    mistakes: Vec<Mistake>,
    /// Whether the file could be read to its end.
    whole: bool,
}

impl<'a> Gathered<'a> {
    fn of(sources: &'a Sources) -> Self {
        let mut gathered = Self {
            sources,
            places: Places::default(),
            layers: Vec::new(),
            mistakes: Vec::new(),
            whole: true,
        };
        gathered.file(sources.file.as_deref());
        gathered.texts(sources);
        gathered
    }

    /// What all of it means together.
    fn read(&self, inspect: impl Fn(&Config, &mut Reader<'_>)) -> Result<Config, Mistakes> {
        let mut mistakes = self.mistakes.clone();
        let merged = layer::merge(&self.layers, &tables()).unwrap_or_else(|error| {
            mistakes.push(Mistake::general(
                format!("the sources can't be laid over each other: {error}"),
                None,
            ));
            Layer::empty()
        });
        // Of half a file it can't be said what is missing in it.
        let stage = if self.whole { Stage::Whole } else { Stage::Layer };
        let mut reader = Reader::new(&self.places, stage);
        let mut config = reader.read(&merged, tables::config);
        if self.whole {
            checks::contradictions(&config, &mut reader);
            inspect(&config, &mut reader);
        }
        let incomplete = reader.is_incomplete();
        let (keys, wrong) = reader.finish();
        mistakes.extend(wrong);
        if incomplete && !self.sources.searched.is_empty() {
            mistakes.push(no_file(&self.sources.searched));
        }
        config.keys = keys;
        Mistakes::of(mistakes).map_or(Ok(config), Err)
    }

    fn file(&mut self, path: Option<&Path>) {
        let Some(path) = path else { return };
        match file::read(path, &mut self.places) {
            Ok(file) => {
                self.whole = file.syntax.is_empty();
                let said = self.wrong_in(&file.layer);
                self.mistakes.extend(
                    said.into_iter()
                        .filter(|mistake| file.trusts(mistake.place.as_ref())),
                );
                self.mistakes.extend(file.syntax);
                // The rest of a broken file was checked by itself; nothing is built on it.
                if self.whole {
                    self.layers.push(file.layer);
                }
            }
            Err(mistake) => {
                self.whole = false;
                self.mistakes.push(mistake);
            }
        }
    }

    fn texts(&mut self, sources: &Sources) {
        let (variables, wrong) = text::variables(&sources.environment, &keys(), &mut self.places);
        self.mistakes.extend(wrong);
        let (flags, wrong) = text::flags(&sources.set, &mut self.places);
        self.mistakes.extend(wrong);
        for layer in variables.into_iter().chain(flags) {
            let wrong = self.wrong_in(&layer);
            self.mistakes.extend(wrong);
            self.layers.push(layer);
        }
    }

    /// What is wrong with one layer by itself.
    fn wrong_in(&self, layer: &Layer) -> Vec<Mistake> {
        let mut reader = Reader::new(&self.places, Stage::Layer);
        let _ = reader.read(layer, tables::config);
        reader.finish().1
    }
}

/// The names of the outermost tables.
fn tables() -> Vec<String> {
    let mut names: Vec<String> = keys().iter().map(|key| key.outermost().to_owned()).collect();
    names.dedup();
    names
}

fn no_file(searched: &[PathBuf]) -> Mistake {
    let paths: Vec<String> = searched.iter().map(|path| path.display().to_string()).collect();
    Mistake::general(
        format!("no configuration file: there is neither {}", paths.join(" nor ")),
        Some("another one is named by --config FILE"),
    )
}

#[cfg(test)]
mod tests;
