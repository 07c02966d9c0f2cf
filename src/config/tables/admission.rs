//! `[admission]`.

use std::time::Duration;

use super::{MOST_TOKENS, SHORTEST, gate};
use crate::admission::lanes::{Glob, Lane, Members};
use crate::admission::{Cost, Settings, adaptive, clients, credentials, sources};
use crate::config::address::NETWORK;
use crate::config::keys::Change::OnReload;
use crate::config::kind::{Number, Parsed, Switch, Whole};
use crate::config::list::List;
use crate::config::quantity::Span;
use crate::config::reader::Table;

/// With the limits by source address, which are kept before TLS.
pub(super) fn table(table: &mut Table<'_, '_>) -> (Settings, sources::Settings) {
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
    let cost = table.table("cost", cost);
    let adaptive = table.table("adaptive", adaptive);
    let sources = table.table("per_source", gate::per_source);
    let per_client = table.table("per_client", per_client);
    let bad_credentials = table.table("bad_credentials", bad_credentials);
    let mut lanes = table.tables("lanes", OnReload, MOST_LANES, lane);
    for (label, lane) in lanes.iter_mut().enumerate() {
        lane.label = label;
    }
    let burst = if burst == 0.0 { rate.max(1.0) } else { burst };
    let settings = Settings {
        rate,
        burst,
        max_in_flight,
        max_wait,
        max_held,
        dry_run,
        cost,
        lanes,
        adaptive,
        per_client,
        bad_credentials,
        ..Settings::default()
    };
    (settings, sources)
}

fn cost(table: &mut Table<'_, '_>) -> Cost {
    let tokens = Number {
        least: 0.001,
        most: MOST_TOKENS,
    };
    // 1: a token is a CONNECT, until the operator has measured what a session costs the broker.
    Cost {
        clean: table.key("clean", OnReload, &tokens, 1.0),
        persistent: table.key("persistent", OnReload, &tokens, 1.0),
    }
}

fn adaptive(table: &mut Table<'_, '_>) -> adaptive::Settings {
    let latencies = Span {
        least: Duration::from_millis(1),
        most: Duration::from_secs(60),
    };
    let rates = Number {
        least: 0.001,
        most: MOST_TOKENS,
    };
    let settings = adaptive::Settings {
        // Off: a rate that was measured is known, one that is found has to be found.
        enabled: table.key("enabled", OnReload, &Switch, false),
        // 200 ms: a twentieth of the patience of the most impatient client; handshake and queue come on top.
        target_latency: table.key("target_latency", OnReload, &latencies, Duration::from_millis(200)),
        // 5: low enough for a broker on a router, high enough to find out in seconds that it is none.
        min_rate: table.key("min_rate", OnReload, &rates, 5.0),
        // 5000: what no single broker node has been seen to authenticate.
        max_rate: table.key("max_rate", OnReload, &rates, 5000.0),
    };
    if settings.min_rate > settings.max_rate {
        let found = format!("is above max_rate, {}", settings.max_rate);
        table.contradiction("min_rate", &["max_rate"], &found, "a min_rate up to max_rate");
    }
    settings
}

fn per_client(table: &mut Table<'_, '_>) -> clients::Settings {
    // 0, no limit: what is too often for one client depends on what it does.
    clients::Settings {
        rate: table.key("rate", OnReload, &gate::RATES, 0.0),
        burst: table.key("burst", OnReload, &gate::BURSTS, 0) as f64,
    }
}

fn bad_credentials(table: &mut Table<'_, '_>) -> credentials::Settings {
    let refusals = Whole {
        least: 0,
        most: 1_000_000,
    };
    let days = Span {
        least: SHORTEST,
        most: Duration::from_secs(24 * 3600),
    };
    let settings = credentials::Settings {
        // 3: a broker that is restarting its authentication refuses once or twice without meaning it.
        after: table.key("after", OnReload, &refusals, 3) as u32,
        // 5 s: the shortest pause of a device that knows a pause.
        first: table.key("first", OnReload, &days, Duration::from_secs(5)),
        // 10 min: who corrects an account at the broker waits this long for its device at most.
        most: table.key("most", OnReload, &days, Duration::from_mins(10)),
    };
    if settings.first > settings.most {
        table.contradiction("first", &["most"], "is longer than most", "a first up to most");
    }
    settings
}

/// More lanes than classes of clients that anybody can tell apart. Each is compared with each CONNECT, in about 100 ns,
/// and adds 34 series to a scrape.
const MOST_LANES: usize = 32;

/// Word of a metric's label.
const LANE_NAME: Parsed<String> = Parsed {
    allowed: "a name of 1 to 64 letters, digits, \"-\" and \"_\" other than \"default\"",
    parse: lane_name,
    show: String::clone,
};

const GLOB: Parsed<String> = Parsed {
    allowed: "a pattern such as \"tablet-*\" (\"*\": any characters, \"?\": one), up to 256 bytes; \"\" for any",
    parse: |text| {
        if text.len() <= 256 {
            Ok(text.to_owned())
        } else {
            Err(None)
        }
    },
    show: String::clone,
};

fn lane(table: &mut Table<'_, '_>) -> Lane {
    // 256 networks: as for those who may send PROXY headers.
    let networks = List {
        item: NETWORK,
        least: 0,
        most: 256,
    };
    let reserves = Number {
        least: 0.0,
        most: MOST_TOKENS,
    };
    let priorities = Whole {
        least: -1000,
        most: 1000,
    };
    let name = table.required("name", OnReload, &LANE_NAME);
    // Any: who gives no pattern asks for none.
    let mut glob = |key: &str| {
        let pattern = table.key(key, OnReload, &GLOB, String::new());
        (!pattern.is_empty()).then_some(pattern)
    };
    let members = Members {
        client_id: glob("client_id").as_deref().map(Glob::new),
        username: glob("username").as_deref().map(Glob::new),
        common_name: glob("common_name").as_deref().map(Glob::new),
        server_name: glob("server_name").map(|name| Glob::new(&name.to_ascii_lowercase())),
        source: table.key("source", OnReload, &networks, Vec::new()),
    };
    Lane {
        name,
        label: 0,
        members,
        // 0: a lane is a label before it is a privilege.
        reserve: table.key("reserve", OnReload, &reserves, 0.0),
        // 0: that of the lane "default".
        priority: table.key("priority", OnReload, &priorities, 0) as i32,
    }
}

fn lane_name(text: &str) -> Result<String, Option<String>> {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if text == "default" {
        Err(Some(
            "\"default\" is the lane of those that are in none".to_owned(),
        ))
    } else if (1..=64).contains(&text.len()) && text.bytes().all(is_word) {
        Ok(text.to_owned())
    } else {
        Err(None)
    }
}
