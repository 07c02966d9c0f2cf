//! Layers of settings, each from one source and with the place of every value, and how they are laid over each other.

use config::{Config, ConfigError, Map, Source, Value, ValueKind};

use super::mistake::Place;

/// What one file, one variable or one flag says: a table of tables.
#[derive(Clone, Debug)]
pub(super) struct Layer(pub(super) Value);

impl Layer {
    /// One that says nothing.
    pub(super) fn empty() -> Self {
        Self(Value::new(None, ValueKind::Table(Map::new())))
    }
}

/// The register of places. A [`Value`] carries its origin through a merge as a string: here the index of its place.
#[derive(Debug, Default)]
pub(super) struct Places(Vec<Written>);

#[derive(Debug)]
struct Written {
    value: Place,
    key: Option<Place>,
    text: Option<String>,
}

impl Places {
    /// Registers a value of a file: the places of value and key, and the value as it stands there.
    pub(super) fn in_file(&mut self, value: Place, key: Option<Place>, text: String) -> String {
        self.register(Written {
            value,
            key,
            text: Some(text),
        })
    }

    /// Registers a variable or a flag.
    pub(super) fn as_text(&mut self, place: Place) -> String {
        self.register(Written {
            value: place,
            key: None,
            text: None,
        })
    }

    fn register(&mut self, written: Written) -> String {
        self.0.push(written);
        (self.0.len() - 1).to_string()
    }

    /// The index of the place of `value`.
    pub(super) fn origin(value: &Value) -> Option<usize> {
        value.origin()?.parse().ok()
    }

    /// Where the value is.
    pub(super) fn of_value(&self, origin: Option<usize>) -> Option<Place> {
        Some(self.0.get(origin?)?.value.clone())
    }

    /// Where its key is.
    pub(super) fn of_key(&self, origin: Option<usize>) -> Option<Place> {
        let written = self.0.get(origin?)?;
        Some(written.key.as_ref().unwrap_or(&written.value).clone())
    }

    /// The value as it stands in its file.
    pub(super) fn written(&self, origin: Option<usize>) -> Option<&str> {
        self.0.get(origin?)?.text.as_deref()
    }

    /// Whether it came from a variable or a flag.
    pub(super) fn is_text(&self, origin: Option<usize>) -> bool {
        origin
            .and_then(|origin| self.0.get(origin))
            .is_some_and(|written| matches!(written.value, Place::Variable(..) | Place::Flag(_)))
    }
}

/// A layer that is merged: only `tables`, for a merge reads the names of the outermost level as paths, and
/// `"x[999999999]" = 1` would make a list of that length.
#[derive(Clone, Debug)]
struct Known {
    layer: Layer,
    tables: Vec<String>,
}

impl Source for Known {
    fn clone_into_box(&self) -> Box<dyn Source + Send + Sync> {
        Box::new(self.clone())
    }

    fn collect(&self) -> Result<Map<String, Value>, ConfigError> {
        let ValueKind::Table(table) = &self.layer.0.kind else {
            return Ok(Map::new());
        };
        let known = table.iter().filter(|(name, _)| self.tables.contains(name));
        Ok(known.map(|(name, value)| (name.clone(), value.clone())).collect())
    }
}

/// All layers laid over each other, a later one over the earlier ones.
pub(super) fn merge(layers: &[Layer], tables: &[String]) -> Result<Layer, ConfigError> {
    let mut builder = Config::builder();
    for layer in layers {
        builder = builder.add_source(Known {
            layer: layer.clone(),
            tables: tables.to_vec(),
        });
    }
    Ok(Layer(builder.build()?.cache))
}
