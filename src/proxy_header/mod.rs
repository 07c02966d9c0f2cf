//! PROXY protocol headers, versions 1 and 2 (HAProxy's `doc/proxy-protocol.txt`): who a connection speaks for, told by
//! the balancer in front of us, and by us to the broker. Pure: bytes in, values out.

mod crc32c;
mod inbound;
mod outbound;

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

pub use inbound::{Detection, Header, HeaderError, Progress, detect, read};
pub use outbound::{Certificate, MAX_LENGTH, Session, write};

/// `listen.proxy_protocol` and `listen.trusted_proxies`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Whether connections begin with a header.
    pub mode: Mode,
    /// Who may send one.
    pub trusted: Vec<IpNet>,
}

/// Whether connections begin with a header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// None does; one that comes is no TLS.
    #[default]
    Off,
    /// Those of trusted peers may.
    Optional,
    /// All do, and come from trusted peers.
    Required,
}

/// The two forms of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Version {
    /// A line of text.
    V1,
    /// Binary, with room for what is known of the TLS session.
    V2,
}

/// Both ends of the connection that a header speaks of. Always of one address family: IPv4 where both ends are IPv4,
/// mapped into IPv6 or not (RFC 4291 section 2.5.5.2), else IPv6 with an IPv4 end mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    source: SocketAddr,
    destination: SocketAddr,
}

impl Route {
    /// From the client at `source` to `destination`, where it connected to.
    pub fn new(source: SocketAddr, destination: SocketAddr) -> Self {
        let (source, destination) = (canonical(source), canonical(destination));
        if source.is_ipv4() == destination.is_ipv4() {
            return Self { source, destination };
        }
        Self {
            source: mapped(source),
            destination: mapped(destination),
        }
    }

    /// The client, IPv4 wherever it is one: limits by IPv6 prefix must not take all of IPv4 for one client.
    pub fn source(&self) -> SocketAddr {
        canonical(self.source)
    }

    /// Where the client connected to.
    pub fn destination(&self) -> SocketAddr {
        canonical(self.destination)
    }
}

/// Why a connection is closed for its header, or for want of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The peer is not among `listen.trusted_proxies`.
    #[error("PROXY header from an address that is not trusted")]
    Untrusted,
    /// A client came directly where a header is required.
    #[error("PROXY header missing")]
    Missing,
    /// A trusted peer sent a header that can't be read.
    #[error(transparent)]
    Unreadable(#[from] HeaderError),
}

impl Refused {
    /// In a few words from a closed set.
    pub const fn cause(self) -> &'static str {
        match self {
            Self::Untrusted => "PROXY header not trusted",
            Self::Missing => "PROXY header missing",
            Self::Unreadable(_) => "PROXY header unreadable",
        }
    }
}

impl Settings {
    /// What `bytes`, the first of a connection from `peer`, amount to under these settings. TLS clients speak first,
    /// so that [`Mode::Optional`] never waits for a header that does not come.
    pub fn read(&self, peer: SocketAddr, bytes: &[u8]) -> Result<Progress, Refused> {
        let trusted = self.trusts(peer.ip());
        match (self.mode, trusted) {
            (Mode::Off, _) => Ok(Progress::Absent),
            (Mode::Required, false) => Err(Refused::Untrusted),
            (Mode::Required, true) => match read_from(peer, bytes)? {
                Progress::Absent => Err(Refused::Missing),
                progress => Ok(progress),
            },
            (Mode::Optional, true) => Ok(read_from(peer, bytes)?),
            (Mode::Optional, false) => match detect(bytes) {
                Detection::Undecided(length) => Ok(Progress::Need(length)),
                Detection::Absent => Ok(Progress::Absent),
                Detection::Present(_) => Err(Refused::Untrusted),
            },
        }
    }

    /// Whether a connection from `peer` may turn out to be that of another.
    pub fn may_name_another(&self, peer: IpAddr) -> bool {
        self.mode != Mode::Off && self.trusts(peer)
    }

    fn trusts(&self, peer: IpAddr) -> bool {
        let peer = peer.to_canonical();
        self.trusted.iter().any(|network| network.contains(&peer))
    }
}

/// Reads a header of `peer`. One that names the peer itself says the same as LOCAL: so does a balancer for its own
/// health checks where it has only a line to say it in (HAProxy with `send-proxy`).
fn read_from(peer: SocketAddr, bytes: &[u8]) -> Result<Progress, HeaderError> {
    Ok(match read(bytes)? {
        Progress::Complete(Header::Proxied(route), length) if route.source() == canonical(peer) => {
            Progress::Complete(Header::Local, length)
        }
        progress => progress,
    })
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn mapped(address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) => SocketAddr::new(ip.to_ipv6_mapped().into(), address.port()),
        IpAddr::V6(_) => address,
    }
}

#[cfg(test)]
mod tests;
