//! Addresses to listen on and brokers to dial, as they are written.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use ipnet::IpNet;

use super::kind::Parsed;
use crate::upstream::{Endpoint, Server};

/// Longest path of a unix socket: `sun_path` of unix(7) without its final zero.
pub(super) const LONGEST_SOCKET: usize = 107;

/// Length of the prefix `::ffff:0:0/96`, behind which IPv4 addresses stand in IPv6 (RFC 4291 section 2.5.5.2).
const IPV4_MAPPED: u8 = 96;

/// An address to listen on.
pub(super) const LISTEN: Parsed<SocketAddr> = Parsed {
    allowed: "IP:PORT such as \"0.0.0.0:8883\" or \"[::]:8883\" (port 0: any that is free)",
    parse: listen,
    show: ToString::to_string,
};

/// A broker.
pub(super) const SERVER: Parsed<Server> = Parsed {
    allowed: "HOST:PORT, IP:PORT, [IPV6]:PORT or unix:/PATH such as \"127.0.0.1:1883\"",
    parse: server,
    show: |server| server.name.clone(),
};

/// An address of this host to dial from.
pub(super) const SOURCE: Parsed<IpAddr> = Parsed {
    allowed: "an IP address of this host such as \"192.0.2.10\"",
    parse: |text| {
        let address = text.parse::<IpAddr>().map_err(|_| None)?;
        if address.is_unspecified() {
            Err(Some("an empty list for any address".to_owned()))
        } else {
            Ok(address)
        }
    },
    show: ToString::to_string,
};

/// A network.
pub(super) const NETWORK: Parsed<IpNet> = Parsed {
    allowed: "network in CIDR notation such as \"10.0.0.0/8\" or \"2001:db8::/32\"",
    parse: network,
    show: ToString::to_string,
};

fn listen(text: &str) -> Result<SocketAddr, Option<String>> {
    text.parse().map_err(|_| {
        if let Some(port) = text
            .strip_prefix(':')
            .or(Some(text))
            .filter(|port| port.parse::<u16>().is_ok())
        {
            return Some(format!(
                "\"0.0.0.0:{port}\" for all IPv4 addresses, \"[::]:{port}\" for all of IPv6"
            ));
        }
        if let Some(port) = text.strip_prefix("*:") {
            return Some(format!(
                "\"0.0.0.0:{port}\" for all IPv4 addresses, \"[::]:{port}\" for all of IPv6"
            ));
        }
        if let Some(port) = text.strip_prefix("localhost:") {
            return Some(format!("an address, not a name: \"127.0.0.1:{port}\""));
        }
        address_hint(text, 8883)
    })
}

fn network(text: &str) -> Result<IpNet, Option<String>> {
    let Ok(network) = text.parse::<IpNet>() else {
        let alone = text.parse::<IpAddr>().ok().map(IpNet::from);
        return Err(alone.map(|network| format!("one address alone is \"{network}\"")));
    };
    // What a host part was meant to say can't be told from a typing mistake in the prefix.
    if network != network.trunc() {
        return Err(Some(format!(
            "the network of this address is \"{}\"",
            network.trunc()
        )));
    }
    // Peers are compared by their IPv4 address, wherever they come from.
    if let IpNet::V6(mapped) = network
        && mapped.prefix_len() >= IPV4_MAPPED
        && let Some(address) = mapped.addr().to_ipv4_mapped()
    {
        let prefix = mapped.prefix_len() - IPV4_MAPPED;
        return Err(Some(format!("as IPv4: \"{address}/{prefix}\"")));
    }
    Ok(network)
}

fn server(text: &str) -> Result<Server, Option<String>> {
    let endpoint = endpoint(text)?;
    Ok(Server {
        name: text.to_owned(),
        endpoint,
    })
}

fn endpoint(text: &str) -> Result<Endpoint, Option<String>> {
    if let Some(path) = text.strip_prefix("unix:") {
        return socket(path);
    }
    if let Some((_, rest)) = text.split_once("://") {
        return Err(Some(format!(
            "without the scheme: \"{}\"",
            rest.trim_end_matches('/')
        )));
    }
    if let Ok(address) = text.parse::<SocketAddr>() {
        return if address.port() == 0 {
            Err(Some(port_zero()))
        } else {
            Ok(Endpoint::Address(address))
        };
    }
    let Some((host, port)) = text
        .rsplit_once(':')
        .filter(|(host, _)| !host.contains([':', '[', ']']))
    else {
        return Err(address_hint(text, 1883));
    };
    let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    let port: u16 = match port.parse() {
        Ok(0) => return Err(Some(port_zero())),
        Ok(port) if digits => port,
        _ => return Err(Some("the port is a number from 1 to 65535".to_owned())),
    };
    if is_host_name(host) {
        Ok(Endpoint::Name(host.to_owned(), port))
    } else {
        Err(None)
    }
}

fn socket(path: &str) -> Result<Endpoint, Option<String>> {
    if !path.starts_with('/') {
        return Err(Some("the path of the socket begins with /".to_owned()));
    }
    if path.len() > LONGEST_SOCKET {
        return Err(Some(format!(
            "the system takes paths of up to {LONGEST_SOCKET} bytes for a socket"
        )));
    }
    if path.contains('\0') {
        return Err(None);
    }
    Ok(Endpoint::Unix(PathBuf::from(path)))
}

/// RFC 1123 section 2.1, with the underscore that container networks use. A name whose last label is digits alone is
/// a mistyped address.
fn is_host_name(host: &str) -> bool {
    let host = host.strip_suffix('.').unwrap_or(host);
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let last = host.rsplit('.').next().unwrap_or_default();
    host.len() <= 253 && host.split('.').all(label) && !last.bytes().all(|byte| byte.is_ascii_digit())
}

fn port_zero() -> String {
    "port 0 can't be dialled".to_owned()
}

fn address_hint(text: &str, port: u16) -> Option<String> {
    match text.parse::<IpAddr>() {
        Ok(IpAddr::V4(address)) => return Some(format!("with a port: \"{address}:{port}\"")),
        // Whether the last part was meant as a port can't be told.
        Ok(IpAddr::V6(_)) => {
            return Some(format!(
                "an IPv6 address is in brackets, the port after them: \"[::1]:{port}\""
            ));
        }
        Err(_) => {}
    }
    let (host, _) = text.rsplit_once(':')?;
    host.parse::<IpAddr>()
        .ok()
        .map(|_| "the port is a number up to 65535".to_owned())
}
