//! `[upstream]`.

use std::time::Duration;

use rustls_pki_types::ServerName;

use super::tls::OPTIONAL_FILE;
use super::{DEADLINE, LONGEST, SHORTEST};
use crate::admission::breaker;
use crate::config::address::{SERVER, SOURCE};
use crate::config::keys::Change::OnReload;
use crate::config::kind::{Choice, Parsed, Switch, Whole};
use crate::config::list::List;
use crate::config::quantity::Span;
use crate::config::reader::Table;
use crate::proxy_header;
use crate::tls::connector;
use crate::upstream::Settings;
use crate::upstream::pick::Balance;

/// With its breakers' settings, which the door keeps.
pub(super) fn table(table: &mut Table<'_, '_>) -> (Settings, breaker::Settings) {
    // 64: a large cluster. Each adds 70 series to a scrape, and a microsecond to the order in which a client tries them.
    let servers = List {
        item: SERVER,
        least: 1,
        most: 64,
    };
    // 64: 1.8 million connections to one broker.
    let sources = List {
        item: SOURCE,
        least: 0,
        most: 64,
    };
    let balances = Choice(&[
        ("client-id", Balance::ClientId),
        ("least-connections", Balance::LeastConnections),
        ("round-robin", Balance::RoundRobin),
    ]);
    let headers = Choice(&[
        ("off", None),
        ("v1", Some(proxy_header::Version::V1)),
        ("v2", Some(proxy_header::Version::V2)),
    ]);
    let settings = Settings {
        servers: table.required("servers", OnReload, &servers),
        // By client id: a device returns to the node that has its session, and no session has to move between nodes.
        balance: table.key("balance", OnReload, &balances, Balance::ClientId),
        // 3 s: within a data centre a dial takes a millisecond; a lost SYN is sent again after one second and three.
        connect_timeout: table.key("connect_timeout", OnReload, &DEADLINE, Duration::from_secs(3)),
        // 30 s: as long as patient clients wait for it themselves.
        connack_timeout: table.key("connack_timeout", OnReload, &DEADLINE, Duration::from_secs(30)),
        // Off: a broker that does not expect a header takes it for garbage.
        proxy_header: table.key("proxy_protocol", OnReload, &headers, None),
        // Any: one address has 28,000 ports for each broker, which is enough for most.
        source_addresses: table.key("source_addresses", OnReload, &sources, Vec::new()),
        tls: table.table("tls", tls),
    };
    (settings, table.table("breaker", breaker))
}

/// A name that a certificate can be for, or none.
const SERVER_NAME: Parsed<Option<ServerName<'static>>> = Parsed {
    allowed: "a name such as \"broker.example.com\" or an IP address, or \"\" for the host of each server",
    parse: |text| match text {
        "" => Ok(None),
        text => ServerName::try_from(text.to_owned())
            .map(Some)
            .map_err(|_| text.contains(':').then(|| "without a port".to_owned())),
    },
    show: |name| {
        name.as_ref()
            .map_or_else(String::new, |name| name.to_str().into_owned())
    },
};

fn tls(table: &mut Table<'_, '_>) -> Option<connector::Settings> {
    // Off: the broker is most often on the same machine, or in a network that is trusted as much.
    let enabled = table.key("enabled", OnReload, &Switch, false);
    // None: who may vouch for a broker only its operator knows, and the system's authorities are at another place on each.
    let ca = table.key("ca", OnReload, &OPTIONAL_FILE, None);
    // Empty, the host as it is dialled: what a certificate is for.
    let server_name = table.key("server_name", OnReload, &SERVER_NAME, None);
    // None: most brokers ask for none.
    let certificate = table.key("certificate", OnReload, &OPTIONAL_FILE, None);
    let private_key = table.key("private_key", OnReload, &OPTIONAL_FILE, None);
    let certificate = match (certificate, private_key) {
        (Some(certificate), Some(private_key)) => Some((certificate, private_key)),
        (Some(_), None) => {
            let hint = "set upstream.tls.private_key";
            table.contradiction("certificate", &["private_key"], "has no private key", hint);
            None
        }
        (None, Some(_)) => {
            let hint = "set upstream.tls.certificate";
            table.contradiction("private_key", &["certificate"], "has no certificate", hint);
            None
        }
        (None, None) => None,
    };
    if !enabled {
        return None;
    }
    let Some(ca) = ca else {
        let found = "no authority is named that could have signed a broker's certificate";
        let hint = "set upstream.tls.ca; for a certificate of a public authority: \
                    \"/etc/ssl/certs/ca-certificates.crt\" (Debian, Ubuntu, Alpine), \
                    \"/etc/pki/tls/certs/ca-bundle.crt\" (Fedora, RHEL)";
        table.contradiction("enabled", &["ca"], found, hint);
        return None;
    };
    Some(connector::Settings {
        ca,
        server_name,
        certificate,
    })
}

fn breaker(table: &mut Table<'_, '_>) -> breaker::Settings {
    let failures = Whole {
        least: 1,
        most: 1_000_000,
    };
    // Longer than the longest pause of a breaker that fails its probes it can't be.
    let open = Span {
        least: SHORTEST,
        most: breaker::LONGEST,
    };
    let rises = Span {
        least: Duration::ZERO,
        most: LONGEST,
    };
    breaker::Settings {
        // 5: one lost connection is chance, five in a row are not.
        failures: table.key("failures", OnReload, &failures, 5) as u32,
        // 2 s: what a broker takes to start.
        open_for: table.key("open_for", OnReload, &open, Duration::from_secs(2)),
        // 10 s: caches, sessions and the pools of an authentication service warm up in seconds.
        slow_start: table.key("slow_start", OnReload, &rises, Duration::from_secs(10)),
    }
}
