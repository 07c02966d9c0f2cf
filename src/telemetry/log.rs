//! The log, on stderr.

/// `[log]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Least level that is written; also `tracing` filter directives.
    pub level: String,
    /// How a line looks.
    pub format: Format,
}

/// `log.format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// For people and journald.
    Text,
    /// One JSON object a line.
    Json,
}
