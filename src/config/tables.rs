//! The keys: each is named here once, with its kind, its range, its default and the reason for it. A new key is a
//! line here, one in `config/seawall.toml` and one in `docs/configuration.md`; tests hold the three together.

mod admission;
mod audit;
mod budget;
mod gate;
mod refusal;
mod relay;
mod tls;
mod upstream;

use std::path::PathBuf;
use std::time::Duration;

use super::Config;
use super::address::{LISTEN, LONGEST_SOCKET, NETWORK};
use super::keys::Change::{OnReload, OnRestart};
use super::kind::{Choice, Parsed, Switch, Whole};
use super::list::List;
use super::mistake::similar;
use super::quantity::{Size, Span};
use super::reader::Table;
use crate::telemetry::log;
use crate::{admin, connection, listener, proxy_header};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Shortest of all deadlines: below it a scheduler's delay looks like a dead peer.
const SHORTEST: Duration = Duration::from_millis(10);

/// Longest of all deadlines: what is later than an hour is no deadline, and a typing mistake.
const LONGEST: Duration = Duration::from_secs(3600);

/// Any deadline.
const DEADLINE: Span = Span {
    least: SHORTEST,
    most: LONGEST,
};

/// A number of tokens, for one CONNECT or in the bucket.
const MOST_TOKENS: f64 = 1_000_000.0;

/// The whole configuration.
pub(super) fn config(root: &mut Table<'_, '_>) -> Config {
    let listen = root.table("listen", listen);
    let tls = root.table("tls", tls::table);
    let (handshake_timeout, gate) = root.table("handshake", gate::handshake);
    let (connect_timeout, connect_max_size) = root.table("connect", connect);
    let (mut admission, sources) = root.table("admission", admission::table);
    let refusal = root.table("refusal", refusal::table);
    let (upstream, breaker) = root.table("upstream", upstream::table);
    admission.breaker = breaker;
    admission.connack_timeout = upstream.connack_timeout;
    admission.servers = upstream.servers.len();
    Config {
        listen,
        tls,
        gate,
        sources,
        connection: connection::Settings {
            handshake_timeout,
            connect_timeout,
            connect_max_size,
        },
        admission,
        refusal,
        upstream,
        relay: root.table("relay", relay::relay),
        drain: root.table("drain", relay::drain),
        admin: root.table("admin", admin),
        audit: root.table("audit", audit::table),
        shared_budget: root.table("shared_budget", budget::table),
        log: root.table("log", log),
        watch: root.table("reload", reload),
        keys: Vec::new(),
    }
}

fn listen(table: &mut Table<'_, '_>) -> listener::Settings {
    // 64 addresses: one for each interface of a large host.
    let addresses = List {
        item: LISTEN,
        least: 1,
        most: 64,
    };
    let everywhere = vec![std::net::SocketAddr::from(([0, 0, 0, 0], 8883))];
    listener::Settings {
        // 8883 is the registered port of MQTT over TLS.
        addresses: table.key("addresses", OnRestart, &addresses, everywhere),
        // 4096: what arrives in a tenth of a second of a storm of 40,000 a second. The kernel cuts it to somaxconn,
        // which is 4096 since Linux 5.4.
        backlog: table.key(
            "backlog",
            OnRestart,
            &Whole {
                least: 1,
                most: 1 << 20,
            },
            4096,
        ) as u32,
        // None: who does not know of it must not find two processes at one port.
        takeover: table.key("takeover", OnRestart, &SOCKET, None),
        // 0, from the descriptor limit: only the system knows what it can bear.
        max_connections: match table.key(
            "max_connections",
            OnReload,
            &Whole {
                least: 0,
                most: 10_000_000,
            },
            0,
        ) {
            0 => None,
            most => Some(most as usize),
        },
        proxy_header: proxy_protocol(table),
    }
}

fn proxy_protocol(table: &mut Table<'_, '_>) -> proxy_header::Settings {
    let modes = Choice(&[
        ("off", proxy_header::Mode::Off),
        ("optional", proxy_header::Mode::Optional),
        ("required", proxy_header::Mode::Required),
    ]);
    // 256 networks: more than the balancers of a large site; they are gone through for each connection, in about 1 µs.
    let networks = List {
        item: NETWORK,
        least: 0,
        most: 256,
    };
    proxy_header::Settings {
        // Off: who believes a header that anybody may send believes anybody's address.
        mode: table.key("proxy_protocol", OnRestart, &modes, proxy_header::Mode::Off),
        // Nobody: only the operator knows his balancers.
        trusted: table.key("trusted_proxies", OnReload, &networks, Vec::new()),
    }
}

fn connect(table: &mut Table<'_, '_>) -> (Duration, usize) {
    // 15 s: slow modems need 10 s for a CONNECT of some kilobytes.
    let timeout = table.key("timeout", OnReload, &DEADLINE, Duration::from_secs(15));
    // 256 KiB: above the largest useful CONNECT, a JWT of 64 KiB and a Will of 64 KiB. The limit is what one stranger
    // can make the process hold.
    let max_size = table.key(
        "max_size",
        OnReload,
        &Size {
            least: 64,
            most: 16 * MIB,
        },
        256 * KIB,
    );
    (timeout, max_size as usize)
}

fn admin(table: &mut Table<'_, '_>) -> admin::Settings {
    // Loopback: who is on this machine may look, and nobody else is asked who he is unless one of the others is set.
    let loopback = std::net::SocketAddr::from(([127, 0, 0, 1], 9883));
    admin::Settings {
        address: table.key("address", OnRestart, &LISTEN, loopback),
        guard: admin::Guard {
            // None: a token that everybody has is none.
            token_file: table.key("token_file", OnReload, &TOKEN_FILE, None),
            tls: table.table("tls", admin_tls),
        },
    }
}

fn admin_tls(table: &mut Table<'_, '_>) -> Option<(PathBuf, PathBuf)> {
    // None: on loopback there is nobody to hide it from.
    let certificate = table.key("certificate", OnReload, &tls::OPTIONAL_FILE, None);
    let private_key = table.key("private_key", OnReload, &tls::OPTIONAL_FILE, None);
    match (certificate, private_key) {
        (Some(certificate), Some(private_key)) => return Some((certificate, private_key)),
        (Some(_), None) => {
            let found = "has no private key";
            table.contradiction(
                "certificate",
                &["private_key"],
                found,
                "set admin.tls.private_key",
            );
        }
        (None, Some(_)) => {
            let found = "has no certificate";
            table.contradiction(
                "private_key",
                &["certificate"],
                found,
                "set admin.tls.certificate",
            );
        }
        (None, None) => {}
    }
    None
}

/// A file with tokens, or none.
const TOKEN_FILE: Parsed<Option<PathBuf>> = Parsed {
    allowed: "path of a file with one token a line, each of 16 characters or more, or \"\"",
    parse: tls::optional_path,
    show: tls::show_optional_path,
};

/// A unix socket, or none.
const SOCKET: Parsed<Option<PathBuf>> = Parsed {
    allowed: "path of a unix socket such as \"/run/seawall/takeover\", or \"\" for none",
    parse: |text| match text {
        "" => Ok(None),
        text if !text.starts_with('/') => Err(Some("the path of the socket begins with /".to_owned())),
        // The process id is added while it is made.
        text if text.len() > LONGEST_SOCKET - 12 => Err(Some("a path of up to 95 bytes".to_owned())),
        text => tls::optional_path(text),
    },
    show: tls::show_optional_path,
};

fn reload(table: &mut Table<'_, '_>) -> bool {
    // Off: who edits a file in place would put a limit into effect with each save.
    table.key("watch", OnReload, &Switch, false)
}

fn log(table: &mut Table<'_, '_>) -> log::Settings {
    let levels = Parsed {
        allowed: "\"error\", \"warn\", \"info\", \"debug\", \"trace\", \"off\", or a list of them by target such as \
                  \"info,seawall::tls=debug\"",
        parse: level,
        show: String::clone,
    };
    let formats = Choice(&[("text", log::Format::Text), ("json", log::Format::Json)]);
    log::Settings {
        // Changes of state are at info; what a peer can cause at will is at debug.
        level: table.key("level", OnReload, &levels, "info".to_owned()),
        format: table.key("format", OnReload, &formats, log::Format::Text),
    }
}

fn level(text: &str) -> Result<String, Option<String>> {
    const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];
    match log::check(text) {
        Ok(()) => Ok(text.to_owned()),
        Err(log::BadLevel { found }) => {
            let word = found.rsplit('=').next().unwrap_or_default();
            Err(similar(word, LEVELS).map(|level| format!("did you mean \"{level}\"?")))
        }
    }
}
