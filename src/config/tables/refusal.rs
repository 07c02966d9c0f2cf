//! `[refusal]`.

use std::time::Duration;

use crate::config::keys::Change::OnReload;
use crate::config::kind::{Choice, Parsed, Switch, Whole};
use crate::config::quantity::Span;
use crate::config::reader::Table;
use crate::refusal::{Method, Settings};

/// A Server Reference (MQTT 5.0 section 4.11), or none.
const SERVER_REFERENCE: Parsed<Option<String>> = Parsed {
    allowed: "servers such as \"mqtt-2.example.com:8883\", separated by spaces, up to 1024 bytes; \"\" for none",
    parse: server_reference,
    show: |reference| reference.clone().unwrap_or_default(),
};

/// Longest reference: the whole list of a large site. A client with a small packet size gets none at all.
const LONGEST_REFERENCE: usize = 1024;

pub(super) fn table(table: &mut Table<'_, '_>) -> Settings {
    let methods = Choice(&[("connack", Method::Connack), ("close", Method::Close)]);
    // A client that waits longer than a minute for its CONNACK was not found.
    let delays = Span {
        least: Duration::ZERO,
        most: Duration::from_secs(60),
    };
    let delayed = Whole {
        least: 0,
        most: 10_000_000,
    };
    Settings {
        // A CONNACK is what the specification asks for; to some libraries it is final, and they need "close".
        method: table.key("method", OnReload, &methods, Method::Connack),
        // 0: how long it may be depends on how long the fleet's clients wait, 3 s where they wait 5.
        delay: table.key("delay", OnReload, &delays, Duration::ZERO),
        // 20,000 at about 10 kB each: 200 MB.
        max_delayed: table.key("max_delayed", OnReload, &delayed, 20_000) as usize,
        // Costs 24 bytes; a client that does not know the property skips it.
        retry_after: table.key("retry_after", OnReload, &Switch, true),
        // Costs 30 bytes, and tells whoever reads the device's log why.
        reason_string: table.key("reason_string", OnReload, &Switch, true),
        // None: only the operator knows another entry.
        server_reference: table.key("server_reference", OnReload, &SERVER_REFERENCE, None),
    }
}

/// What MQTT takes for a string ([MQTT-1.5.4-2]) and a log can show.
fn server_reference(text: &str) -> Result<Option<String>, Option<String>> {
    if text.is_empty() {
        Ok(None)
    } else if text.len() > LONGEST_REFERENCE || text.trim().is_empty() || text.contains(char::is_control) {
        Err(None)
    } else {
        Ok(Some(text.to_owned()))
    }
}
