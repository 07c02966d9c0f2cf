//! THE life of one connection, from accepted socket to its end.

use std::time::Duration;

/// `[handshake]` and `[connect]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Accept to the end of the handshake.
    pub handshake_timeout: Duration,
    /// End of the handshake to a whole CONNECT.
    pub connect_timeout: Duration,
    /// Largest CONNECT in bytes, the whole packet.
    pub connect_max_size: usize,
}
