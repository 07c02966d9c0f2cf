//! TLS towards the clients.

use std::path::PathBuf;

/// `[tls]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// PEM chain of the default certificate.
    pub certificate: PathBuf,
    /// PEM private key that goes with it.
    pub private_key: PathBuf,
    /// Least version that is served.
    pub min_version: MinVersion,
    /// Protocols to agree to; empty: whatever the client offers is accepted.
    pub alpn: Vec<String>,
}

/// `tls.min_version`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MinVersion {
    /// TLS 1.2 and 1.3.
    V1_2,
    /// TLS 1.3 alone.
    V1_3,
}
