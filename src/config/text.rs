//! Environment variables and `--set` → a layer each.

use std::ffi::OsString;

use config::{Map, Value, ValueKind};

use super::keys::Key;
use super::layer::{Layer, Places};
use super::mistake::{Mistake, Place};

/// What all variables begin with.
const PREFIX: &str = "SEAWALL_";

/// Most names in a path: twice what any key has, and what is cut off would not make it known.
const DEEPEST: usize = 6;

/// What Kubernetes sets in every container for a service, here one that is called `seawall-TABLE`, without the name.
const SERVICE_VARIABLES: [&str; 3] = ["SERVICE_HOST", "SERVICE_PORT", "PORT"];

/// Layers of the variables that concern Seawall, in the order of their names.
pub(super) fn variables(
    environment: &[(OsString, OsString)],
    keys: &[Key],
    places: &mut Places,
) -> (Vec<Layer>, Vec<Mistake>) {
    let mut ours: Vec<&(OsString, OsString)> = environment
        .iter()
        .filter(|(name, _)| name.as_encoded_bytes().starts_with(PREFIX.as_bytes()))
        .collect();
    ours.sort();
    let mut layers = Vec::new();
    let mut mistakes = Vec::new();
    for (name, value) in ours {
        match variable(name, value, keys) {
            Ok(Some((path, value))) => {
                let name = name.to_string_lossy().into_owned();
                layers.push(layer(
                    &path,
                    value,
                    Place::Variable(name, value.to_owned()),
                    places,
                ));
            }
            Ok(None) => {}
            Err(mistake) => mistakes.push(mistake),
        }
    }
    (layers, mistakes)
}

/// Layers of the flags, in their order.
pub(super) fn flags(set: &[String], places: &mut Places) -> (Vec<Layer>, Vec<Mistake>) {
    let mut layers = Vec::new();
    let mut mistakes = Vec::new();
    for flag in set {
        let place = Place::Flag(flag.clone());
        match flag.split_once('=') {
            Some((key, value)) if !key.trim().is_empty() => {
                let path: Vec<String> = key
                    .split('.')
                    .take(DEEPEST)
                    .map(|part| part.trim().to_owned())
                    .collect();
                layers.push(layer(&path, value.trim(), place, places));
            }
            _ => mistakes.push(Mistake {
                place: Some(place),
                path: String::new(),
                found: "no key and value".to_owned(),
                allowed: "KEY=VALUE".to_owned(),
                hint: Some("such as --set admission.rate=500".to_owned()),
            }),
        }
    }
    (layers, mistakes)
}

/// The path that a variable sets; `None` where it is not meant for Seawall.
fn variable<'a>(
    name: &OsString,
    value: &'a OsString,
    keys: &[Key],
) -> Result<Option<(Vec<String>, &'a str)>, Mistake> {
    let wrong = |path: String, found: &str, hint: String| Mistake {
        place: Some(Place::Variable(
            name.to_string_lossy().into_owned(),
            value.to_string_lossy().into_owned(),
        )),
        path,
        found: found.to_owned(),
        allowed: String::new(),
        hint: Some(hint),
    };
    let Some(rest) = name.to_str().and_then(|name| name.strip_prefix(PREFIX)) else {
        return Ok(None);
    };
    let lower = rest.to_ascii_lowercase();
    let path: Vec<String> = lower.split("__").take(DEEPEST).map(str::to_owned).collect();
    if path.len() == 1 {
        return match meant(&lower, keys) {
            Some(key) if key.in_file_alone => Err(wrong(
                key.path.clone(),
                "can be set in the file alone",
                format!("a table [[{}]] for each", key.path),
            )),
            Some(key) => Err(wrong(
                key.path.clone(),
                "two underscores stand between table and key",
                format!("{} is the variable of this key", key.variable()),
            )),
            None if concerns(&lower, keys) => Err(wrong(
                String::new(),
                "the variable names a table of the configuration, and no key in it",
                "two underscores stand between table and key: SEAWALL_ADMISSION__RATE".to_owned(),
            )),
            None => Ok(None),
        };
    }
    if rest != rest.to_ascii_uppercase() {
        let right = format!("{PREFIX}{}", rest.to_ascii_uppercase());
        return Err(wrong(path.join("."), "variables are written in capitals", right));
    }
    let Some(value) = value.to_str() else {
        return Err(wrong(
            path.join("."),
            "the value is not UTF-8",
            "set it to UTF-8 text".to_owned(),
        ));
    };
    Ok(Some((path, value)))
}

/// The key that a variable with single underscores was meant for.
fn meant<'a>(name: &str, keys: &'a [Key]) -> Option<&'a Key> {
    keys.iter().find(|key| key.path.replace('.', "_") == name)
}

/// Whether a variable without two underscores begins with the name of a table.
fn concerns(name: &str, keys: &[Key]) -> bool {
    keys.iter().any(|key| {
        let Some(rest) = name.strip_prefix(key.outermost()) else {
            return false;
        };
        let Some(rest) = rest.strip_prefix('_') else {
            return rest.is_empty();
        };
        let rest = rest.to_ascii_uppercase();
        !SERVICE_VARIABLES.iter().any(|ending| {
            rest.strip_prefix(ending)
                .is_some_and(|more| more.is_empty() || more.starts_with('_'))
        })
    })
}

fn layer(path: &[String], value: &str, place: Place, places: &mut Places) -> Layer {
    let origin = places.as_text(place);
    let leaf = Value::new(Some(&origin), ValueKind::String(value.to_owned()));
    Layer(path.iter().rev().fold(leaf, |inner, name| {
        Value::new(
            Some(&origin),
            ValueKind::Table(Map::from([(name.clone(), inner)])),
        )
    }))
}
