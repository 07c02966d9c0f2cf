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
    let mut told = BTreeMap::new();
    let mut rate = parts.door.snapshot().rate;
    // Without it nobody could say afterwards how much of the rate was used.
    tell_rate(&parts.house, None, rate);
    let mut looks = 0;
    loop {
        sleep(LOOK).await;
        tell_breakers(&parts);
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

/// Tells of every change since the last look, also of those that were over before it.
fn tell_breakers(parts: &Parts) {
    let changes = parts.door.breaker_changes();
    if changes.dropped > 0 {
        let dropped = changes.dropped;
        tracing::warn!(dropped, "breakers have changed too often to tell of each");
    }
    for (server, state) in changes.states {
        let name = parts.metrics.server(server).unwrap_or_default();
        tell_breaker(&parts.house, &name, state);
    }
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
        let now = Instant::now();
        if !is_news(told.get(&server), trouble.as_deref(), up, now) {
            continue;
        }
        let name = parts.metrics.server(server).unwrap_or_default();
        if let Some(why) = &trouble {
            tracing::warn!(server = name, why, "a broker can't be reached");
        } else {
            tracing::info!(server = name, "a broker is reached again");
        }
        told.insert(server, Told { trouble, at: now });
    }
    told
}

/// Whether this `trouble` with a broker, or that there is none, is to be told: it is another than before, and not too
/// soon. One that was reached and is not `up` has not answered yet, and may be in the same trouble.
fn is_news(before: Option<&Told>, trouble: Option<&str>, up: bool, now: Instant) -> bool {
    let Some(before) = before else {
        return trouble.is_some();
    };
    let is_another = before.trouble.as_deref() != trouble && (trouble.is_some() || up);
    is_another && now.duration_since(before.at) >= PAUSE
}

/// A breaker that opens again stays open for longer each time: no client can fill the log with its states.
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
        let from = from.map(|from| ("from", audit::figure(from)));
        let steps = from.into_iter().chain([("to", audit::figure(to))]);
        let details = steps.map(|(key, figure)| (key.to_owned(), figure)).collect();
        audit.change(Change::Rate, details);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trouble_is_told_once_and_its_end_and_neither_too_often() {
        let at = Instant::now();
        let told = |trouble: Option<&str>| Told {
            trouble: trouble.map(str::to_owned),
            at,
        };
        let (refused, clear) = (told(Some("refused")), told(None));
        for (before, trouble, up, seconds, expected) in [
            (None, Some("refused"), false, 0, true),
            (None, None, true, 0, false),
            // It broke off, which a client may have caused.
            (None, None, false, 0, false),
            (Some(&refused), Some("refused"), false, 60, false),
            (Some(&refused), Some("not trusted"), false, 9, false),
            (Some(&refused), Some("not trusted"), false, 10, true),
            (Some(&refused), None, true, 9, false),
            (Some(&refused), None, true, 10, true),
            (Some(&refused), None, false, 60, false),
            (Some(&clear), None, true, 60, false),
            (Some(&clear), Some("refused"), false, 9, false),
            (Some(&clear), Some("refused"), false, 10, true),
        ] {
            let now = at + Duration::from_secs(seconds);
            let found = is_news(before, trouble, up, now);
            let last = before.map(|told| told.trouble.as_deref());
            assert_eq!(found, expected, "{last:?} {trouble:?} {up} {seconds}");
        }
    }
}
