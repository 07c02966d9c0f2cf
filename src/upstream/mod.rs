//! The brokers: pick, dial, first answer.

mod addresses;
mod answer;
mod brokers;
mod dial;
mod health;
pub mod pick;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

pub use answer::{Answer, NoAnswer, Patience, Unauthenticated, first_answer, see_out};
pub use brokers::{Brokers, Probing, Renewal, TooManyBrokers};
pub use dial::{DialError, Introduction, Upstream, Way};
pub use health::Health;

use rustls_pki_types::ServerName;

use crate::proxy_header;
use crate::tls::connector;

/// `[upstream]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The brokers, at least one.
    pub servers: Vec<Server>,
    /// In which order they are tried.
    pub balance: pick::Balance,
    /// Deadline of a dial, TLS included; the addresses of a name share it.
    pub connect_timeout: Duration,
    /// Local addresses that the dials are spread over; empty: the system picks one.
    pub source_addresses: Vec<IpAddr>,
    /// CONNECT forwarded to CONNACK received.
    pub connack_timeout: Duration,
    /// The PROXY protocol header that tells a broker who its client is; `None`: none is sent.
    pub proxy_header: Option<proxy_header::Version>,
    /// `[upstream.tls]`; `None`: brokers are spoken to in plain.
    pub tls: Option<connector::Settings>,
}

/// Where a broker listens, and how it was written: metric label `server`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Server {
    /// As written in the configuration.
    pub name: String,
    /// Where to dial.
    pub endpoint: Endpoint,
}

/// Where to dial.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// A literal address.
    Address(SocketAddr),
    /// A name to look up, and a port.
    Name(String, u16),
    /// A unix socket.
    Unix(PathBuf),
}

impl Endpoint {
    /// What the certificate of a broker is for which is dialled there; `None`: there is no TLS, or no certificate can be
    /// for a name like that.
    pub fn host(&self) -> Option<ServerName<'static>> {
        match self {
            Self::Address(address) => Some(ServerName::from(address.ip())),
            Self::Name(name, _) => ServerName::try_from(name.clone()).ok(),
            Self::Unix(_) => None,
        }
    }
}
