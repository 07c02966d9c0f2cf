//! `/metrics`, `/healthz`, `/readyz`, `/status`, on a thread of its own so that a scrape is answered during a storm.

use std::net::SocketAddr;

/// `[admin]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Address to listen on.
    pub address: SocketAddr,
}
