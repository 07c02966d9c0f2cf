//! `[admission]`.

use std::time::Duration;

use super::{MOST_TOKENS, gate};
use crate::admission::{Cost, Settings, sources};
use crate::config::keys::Change::OnReload;
use crate::config::kind::{Number, Switch, Whole};
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
    let sources = table.table("per_source", gate::per_source);
    let burst = if burst == 0.0 { rate.max(1.0) } else { burst };
    let settings = Settings {
        rate,
        burst,
        max_in_flight,
        max_wait,
        max_held,
        dry_run,
        cost,
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
