//! The keys: each is named here once, with its kind, its range, its default and the reason for it. A new key is a
//! line here, one in `config/seawall.toml` and one in `docs/configuration.md`; tests hold the three together.

use std::path::PathBuf;
use std::time::Duration;

use super::Config;
use super::address::{LISTEN, SERVER};
use super::keys::Change::{OnReload, OnRestart};
use super::kind::{Choice, Number, Parsed, Switch, Whole};
use super::list::List;
use super::mistake::similar;
use super::quantity::{Size, Span};
use super::reader::Table;
use crate::telemetry::log;
use crate::{admin, admission, connection, listener, refusal, relay, tls, upstream};

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
    let tls = root.table("tls", tls);
    // 15 s: a slow modem needs 10 s for a handshake (docs of PubSubClient: 15 s of patience); longer only holds
    // places for the dead.
    let timeout = Duration::from_secs(15);
    let handshake_timeout = root.table("handshake", |t| t.key("timeout", OnReload, &DEADLINE, timeout));
    let (connect_timeout, connect_max_size) = root.table("connect", connect);
    Config {
        listen,
        tls,
        connection: connection::Settings {
            handshake_timeout,
            connect_timeout,
            connect_max_size,
        },
        admission: root.table("admission", admission),
        refusal: root.table("refusal", refusal),
        upstream: root.table("upstream", upstream),
        relay: root.table("relay", relay),
        admin: root.table("admin", admin),
        log: root.table("log", log),
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
    }
}

fn tls(table: &mut Table<'_, '_>) -> tls::Settings {
    let file = Parsed {
        allowed: "path of a PEM file",
        parse: path,
        show: |path| path.display().to_string(),
    };
    let versions = Choice(&[("1.2", tls::MinVersion::V1_2), ("1.3", tls::MinVersion::V1_3)]);
    // RFC 7301 section 3.1: a name has 1 to 255 bytes.
    let alpn = Parsed {
        allowed: "protocol name of 1 to 255 bytes such as \"mqtt\"",
        parse: alpn,
        show: String::clone,
    };
    tls::Settings {
        certificate: table.required("certificate", OnReload, &file),
        private_key: table.required("private_key", OnReload, &file),
        // 1.2: most firmware in the field has nothing newer.
        min_version: table.key("min_version", OnRestart, &versions, tls::MinVersion::V1_2),
        // Empty: a device that offers a wrong name is still a device.
        alpn: table.key(
            "alpn",
            OnRestart,
            &List {
                item: alpn,
                least: 0,
                most: 16,
            },
            Vec::new(),
        ),
        resumption: table.table("resumption", resumption),
    }
}

fn resumption(table: &mut Table<'_, '_>) -> Option<tls::ticket::Settings> {
    let secret_file = Parsed {
        allowed: "path of a file with 32 random bytes or more (raw, hexadecimal or base64), or \"\"",
        parse: |text| {
            if text.is_empty() {
                Ok(None)
            } else {
                path(text).map(Some)
            }
        },
        show: |path: &Option<PathBuf>| {
            path.as_ref()
                .map_or_else(String::new, |path| path.display().to_string())
        },
    };
    // A key for less than a second would seal a handful of tickets. RFC 8446 section 4.6.1: seven days are the most.
    let span = Span {
        least: Duration::from_secs(1),
        most: Duration::from_hours(7 * 24),
    };
    let enabled = table.key("enabled", OnRestart, &Switch, true);
    let settings = tls::ticket::Settings {
        // Empty: no secret can be a default. What that costs is said at the start.
        secret_file: table.key("secret_file", OnReload, &secret_file, None),
        // 6 h: far from the 2^32 tickets that one key of AES-GCM may seal, even at 20,000 a second.
        rotation: table.key("rotation", OnRestart, &span, Duration::from_hours(6)),
        // 24 h: a device that reports once a day is resumed; a stolen ticket is good for no longer.
        lifetime: table.key("lifetime", OnRestart, &span, Duration::from_hours(24)),
        // 2: a client of TLS 1.3 uses a ticket once, and burns one for each refused attempt.
        tickets: table.key("tickets", OnRestart, &Whole { least: 0, most: 4 }, 2) as usize,
    };
    enabled.then_some(settings)
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

fn admission(table: &mut Table<'_, '_>) -> admission::Settings {
    // From one CONNECT in a quarter of an hour, a rate that only a test has, to a hundred times any broker.
    let rates = Number {
        least: 0.001,
        most: MOST_TOKENS,
    };
    let windows = Whole {
        least: 1,
        most: 1_000_000,
    };
    // 200 a second: what a broker with an authentication service in a database behind it serves with ease.
    let rate = table.key("rate", OnReload, &rates, 200.0);
    // 200: one second's worth, which a broker's own queues take in.
    let burst = table.key(
        "burst",
        OnReload,
        &Number {
            least: 0.0,
            most: MOST_TOKENS,
        },
        200.0,
    );
    // 100: half a second's worth. Brokers die of unanswered CONNECTs more than of their rate.
    let max_in_flight = table.key("max_in_flight", OnReload, &windows, 100) as u32;
    // 0: whom to hold depends on how long the fleet's clients wait. Above the patience of every client (60 s for
    // libmosquitto) a hold only keeps the dead.
    let max_wait = Span {
        least: Duration::ZERO,
        most: Duration::from_secs(60),
    };
    let max_wait = table.key("max_wait", OnReload, &max_wait, Duration::ZERO);
    // 10,000 held at about 10 kB each: 100 MB.
    let max_held = table.key(
        "max_held",
        OnReload,
        &Whole {
            least: 0,
            most: 10_000_000,
        },
        10_000,
    ) as usize;
    let dry_run = table.key("dry_run", OnReload, &Switch, false);
    let cost = table.table("cost", |table| {
        let tokens = Number {
            least: 0.001,
            most: MOST_TOKENS,
        };
        // 1: a token is a CONNECT, until the operator has measured what a session costs the broker.
        admission::Cost {
            clean: table.key("clean", OnReload, &tokens, 1.0),
            persistent: table.key("persistent", OnReload, &tokens, 1.0),
        }
    });
    let burst = if burst == 0.0 { rate.max(1.0) } else { burst };
    admission::Settings {
        rate,
        burst,
        max_in_flight,
        max_wait,
        max_held,
        dry_run,
        cost,
    }
}

fn refusal(table: &mut Table<'_, '_>) -> refusal::Settings {
    let methods = Choice(&[
        ("connack", refusal::Method::Connack),
        ("close", refusal::Method::Close),
    ]);
    refusal::Settings {
        // A CONNACK is what the specification asks for; to some libraries it is final, and they need "close".
        method: table.key("method", OnReload, &methods, refusal::Method::Connack),
        // Costs 30 bytes, and tells whoever reads the device's log why.
        reason_string: table.key("reason_string", OnReload, &Switch, true),
    }
}

fn upstream(table: &mut Table<'_, '_>) -> upstream::Settings {
    let servers = List {
        item: SERVER,
        least: 1,
        most: 1,
    };
    upstream::Settings {
        servers: table.required("servers", OnReload, &servers),
        // 3 s: within a data centre a dial takes a millisecond; a lost SYN is sent again after one second and three.
        connect_timeout: table.key("connect_timeout", OnReload, &DEADLINE, Duration::from_secs(3)),
        // 30 s: as long as patient clients wait for it themselves.
        connack_timeout: table.key("connack_timeout", OnReload, &DEADLINE, Duration::from_secs(30)),
    }
}

fn relay(table: &mut Table<'_, '_>) -> relay::Settings {
    relay::Settings {
        // 1.5: what the specification asks of a server ([MQTT-3.1.2-24]); less would close who keeps to it.
        keepalive_factor: table.key(
            "keepalive_factor",
            OnReload,
            &Number {
                least: 1.0,
                most: 100.0,
            },
            1.5,
        ),
        // 30 s without one byte taken: longer than a mobile network's change of cell.
        write_timeout: table.key("write_timeout", OnReload, &DEADLINE, Duration::from_secs(30)),
        // 16 KiB: one TLS record. More adds memory for each slow reader, and no speed.
        buffer: table.key(
            "buffer",
            OnReload,
            &Size {
                least: KIB,
                most: 16 * MIB,
            },
            16 * KIB,
        ) as usize,
    }
}

fn admin(table: &mut Table<'_, '_>) -> admin::Settings {
    // Loopback: the page has no access control of its own.
    let loopback = std::net::SocketAddr::from(([127, 0, 0, 1], 9883));
    admin::Settings {
        address: table.key("address", OnRestart, &LISTEN, loopback),
    }
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

fn path(text: &str) -> Result<PathBuf, Option<String>> {
    if text.trim().is_empty() || text.contains('\0') {
        Err(None)
    } else {
        Ok(PathBuf::from(text))
    }
}

fn alpn(text: &str) -> Result<String, Option<String>> {
    if (1..=255).contains(&text.len()) {
        Ok(text.to_owned())
    } else {
        Err(None)
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
