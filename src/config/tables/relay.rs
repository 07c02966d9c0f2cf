//! `[relay]` and `[drain]`.

use std::time::Duration;

use super::{DEADLINE, KIB, MIB};
use crate::config::keys::Change::OnReload;
use crate::config::kind::{Choice, Number, Switch};
use crate::config::quantity::{Size, Span};
use crate::config::reader::Table;
use crate::drain::{self, Listener};
use crate::relay::Settings;

/// Longest age of a connection: a limit of more than a year is none.
const LONGEST_AGE: Duration = Duration::from_hours(365 * 24);

/// Longest drain: a service manager that waits for a day has been told to.
const LONGEST_DRAIN: Duration = Duration::from_hours(24);

pub(super) fn relay(table: &mut Table<'_, '_>) -> Settings {
    let ages = Span {
        least: Duration::ZERO,
        most: LONGEST_AGE,
    };
    Settings {
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
        // 0, no limit: a connection that is closed for its age comes back as a login at the broker.
        max_age: Some(table.key("max_age", OnReload, &ages, Duration::ZERO)).filter(|age| !age.is_zero()),
    }
}

pub(super) fn drain(table: &mut Table<'_, '_>) -> drain::Settings {
    let spreads = Span {
        least: Duration::ZERO,
        most: LONGEST_DRAIN,
    };
    let listeners = Choice(&[("answer", Listener::Answer), ("close", Listener::Close)]);
    drain::Settings {
        // 30 s: 6,000 sessions come back elsewhere at the default rate; and service managers wait 30 to 90 s.
        spread: table.key("spread", OnReload, &spreads, Duration::from_secs(30)),
        // False: a deploy is no death of devices.
        keep_wills: table.key("keep_wills", OnReload, &Switch, false),
        // An answer tells a client to go elsewhere; a closed port looks like a machine that is gone.
        listener: table.key("listener", OnReload, &listeners, Listener::Answer),
    }
}
