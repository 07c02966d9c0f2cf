//! Both directions of an admitted connection, bounded.

use std::time::Duration;

/// `[relay]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// A client silent for this many of its keep-alives is closed; at least 1.
    pub keepalive_factor: f64,
    /// A peer that takes not one byte for this long is closed.
    pub write_timeout: Duration,
    /// Most bytes that wait in one direction of one connection.
    pub buffer: usize,
}
