//! Looks at the brokers, their breakers and the rate, and tells log and audit how they change.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::parts::Parts;
use crate::admission::breaker::State;
use crate::connection::House;
use crate::telemetry::audit::{self, Change};

/// How often it is looked: a line tells the moment to a tenth of a second.
const LOOK: Duration = Duration::from_millis(100);

/// Looks between two looks at the rate: a line a second at most.
const LOOKS_A_RATE: u32 = 10;

/// Least time between two lines about one broker's being out of reach: under load a broker that is only just reached
/// would fill the log with both words.
const PAUSE: Duration = Duration::from_secs(10);

/// A change of the rate by less is no step.
const STEP: f64 = 0.1;

/// Runs for ever.
pub(super) async fn watch(parts: Arc<Parts>) {
    let mut breakers = BTreeMap::new();
    let mut told = BTreeMap::new();
    let mut rate = parts.door.snapshot().rate;
    // Without it nobody could say afterwards how much of the rate was used.
    tell_rate(&parts.house, None, rate);
    let mut looks = 0;
    loop {
        sleep(LOOK).await;
        breakers = look(&parts, &breakers);
        told = tell_troubles(&parts, told);
        looks += 1;
        if looks == LOOKS_A_RATE {
            looks = 0;
            let now = parts.door.snapshot().rate;
            if (now - rate).abs() > rate * STEP {
                tell_rate(&parts.house, Some(rate), now);
                rate = now;
            }
        }
    }
}

/// The breakers of the brokers in use, by index; tells of those that have changed. One that was not there was closed.
fn look(parts: &Parts, before: &BTreeMap<usize, State>) -> BTreeMap<usize, State> {
    let mut now = BTreeMap::new();
    for (server, _) in parts.brokers.up() {
        let state = parts.door.breaker(server);
        if state != before.get(&server).copied().unwrap_or(State::Closed) {
            let name = parts.metrics.server(server).unwrap_or_default();
            tell_breaker(&parts.house, &name, state);
        }
        now.insert(server, state);
    }
    now
}

/// What was last told of a broker that was once out of reach, and when.
struct Told {
    trouble: Option<String>,
    at: Instant,
}

/// Tells of brokers that can't be reached, why, and that they can again. None of it is a client's doing. By index; of one
/// that was always reached nothing is kept.
fn tell_troubles(parts: &Parts, mut told: BTreeMap<usize, Told>) -> BTreeMap<usize, Told> {
    let in_use = parts.brokers.up();
    told.retain(|server, _| in_use.iter().any(|(known, _)| known == server));
    let mut troubles: BTreeMap<usize, String> = parts.brokers.troubles().into_iter().collect();
    for (server, up) in in_use {
        let trouble = troubles.remove(&server);
        let before = told.get(&server);
        let is_news = match (&trouble, before.and_then(|told| told.trouble.as_ref())) {
            (Some(now), before) => before != Some(now),
            // One that was reached and has not answered yet may be in the same trouble.
            (None, Some(_)) => up,
            (None, None) => false,
        };
        if !is_news || before.is_some_and(|told| told.at.elapsed() < PAUSE) {
            continue;
        }
        let name = parts.metrics.server(server).unwrap_or_default();
        if let Some(why) = &trouble {
            tracing::warn!(server = name, why, "a broker can't be reached");
        } else {
            tracing::info!(server = name, "a broker is reached again");
        }
        let at = Instant::now();
        told.insert(server, Told { trouble, at });
    }
    told
}

/// Three states, each of which lasts for long: no client can fill the log with them.
fn tell_breaker(house: &House, server: &str, state: State) {
    let word = state.word();
    if state == State::Open {
        tracing::warn!(server, "the breaker is open: nobody is sent to this broker");
    } else {
        tracing::info!(server, state = word, "the breaker has changed");
    }
    if let Some(audit) = house.telemetry().audit() {
        let details = audit::details(&[("server", server), ("state", word)]);
        audit.change(Change::Breaker, details);
    }
}

/// `from` is `None` for the first.
fn tell_rate(house: &House, from: Option<f64>, to: f64) {
    tracing::debug!(from, to, "the admission rate");
    if let Some(audit) = house.telemetry().audit() {
        let from = from.map(|from| format!("{from:.1}"));
        let to = format!("{to:.1}");
        let from = from.as_deref().map(|from| ("from", from));
        let words: Vec<_> = from.into_iter().chain([("to", &*to)]).collect();
        audit.change(Change::Rate, audit::details(&words));
    }
}
