//! What is decided before TLS: `[handshake]` and `[admission.per_source]`.

use std::time::Duration;

use super::{DEADLINE, MOST_TOKENS};
use crate::admission::gate::{Budget, Settings};
use crate::admission::sources;
use crate::config::keys::Change::OnReload;
use crate::config::kind::{Number, Whole};
use crate::config::reader::Table;

/// A number a second, 0 for no limit.
pub(super) const RATES: Number = Number {
    least: 0.0,
    most: MOST_TOKENS,
};

/// What may come at once; it is counted in whole connections.
pub(super) const BURSTS: Whole = Whole {
    least: 0,
    most: MOST_TOKENS as i64,
};

/// The deadline of the whole handshake, and the gate.
pub(super) fn handshake(table: &mut Table<'_, '_>) -> (Duration, Settings) {
    // 15 s: a slow modem needs 10 s for a handshake (docs of PubSubClient: 15 s of patience); longer only holds
    // places for the dead.
    let timeout = table.key("timeout", OnReload, &DEADLINE, Duration::from_secs(15));
    let settings = Settings {
        // 64: the default rate of 200 a second over a mobile network, where the client's answer takes 300 ms.
        max_in_flight: table.key(
            "max_in_flight",
            OnReload,
            &Whole {
                least: 1,
                most: 1_000_000,
            },
            64,
        ) as u32,
        // 4096: nobody waits for longer than 4 s, in which 64 places serve so many at a round trip of 60 ms. At about
        // 6 kB each they are 25 MB.
        max_waiting: table.key(
            "max_waiting",
            OnReload,
            &Whole {
                least: 0,
                most: 10_000_000,
            },
            4096,
        ) as usize,
        // 0, no limit: the places alone bound the work, and what a handshake costs depends on key and machine.
        full: budget(table, "full_rate", "full_burst").map(|(rate, burst)| Budget { rate, burst }),
        resumed: budget(table, "resumed_rate", "resumed_burst").map(|(rate, burst)| Budget { rate, burst }),
    };
    (timeout, settings)
}

/// `[admission.per_source]`: no limits, since behind one address there may be one device or a carrier's whole network.
pub(super) fn per_source(table: &mut Table<'_, '_>) -> sources::Settings {
    let rate = budget(table, "rate", "burst").map(|(rate, burst)| sources::Rate { rate, burst });
    let connections = Whole {
        least: 0,
        most: 10_000_000,
    };
    sources::Settings {
        rate,
        max_connections: match table.key("max_connections", OnReload, &connections, 0) {
            0 => None,
            most => Some(most as u32),
        },
    }
}

/// A rate and its burst; `None` for a rate of 0, whatever the burst.
fn budget(table: &mut Table<'_, '_>, rate: &'static str, burst: &'static str) -> Option<(f64, f64)> {
    let rate = table.key(rate, OnReload, &RATES, 0.0);
    let burst = table.key(burst, OnReload, &BURSTS, 0) as f64;
    let burst = if burst == 0.0 { rate.max(1.0) } else { burst };
    (rate > 0.0).then_some((rate, burst))
}
