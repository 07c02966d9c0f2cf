//! Bind, accept, errno, shed.

use std::net::SocketAddr;

/// `[listen]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Addresses to listen on, at least one.
    pub addresses: Vec<SocketAddr>,
    /// Length of the kernel's accept queue.
    pub backlog: u32,
    /// Most connections at a time; `None`: from the descriptor limit.
    pub max_connections: Option<usize>,
}
