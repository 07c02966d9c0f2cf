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

use std::time::Duration;

use super::Config;
use super::address::{LISTEN, NETWORK};
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
    // Loopback: the page has no access control of its own.
    let loopback = std::net::SocketAddr::from(([127, 0, 0, 1], 9883));
    admin::Settings {
        address: table.key("address", OnRestart, &LISTEN, loopback),
    }
}

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
