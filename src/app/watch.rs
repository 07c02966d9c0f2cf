//! Looks at the breakers and the rate, and tells log and audit how they change.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use crate::admission::breaker::State;
use crate::connection::House;
use crate::door::Door;
use crate::telemetry::audit::{self, Change};

/// How often it is looked: a line tells the moment to a tenth of a second.
const LOOK: Duration = Duration::from_millis(100);

/// Looks between two looks at the rate: a line a second at most.
const LOOKS_A_RATE: u32 = 10;

/// A change of the rate by less is no step.
const STEP: f64 = 0.1;

/// Runs for ever. `servers` are the names of the brokers, in the order of their index.
pub(super) async fn watch(house: Arc<House>, door: Arc<Door>, servers: Vec<String>) {
    let mut breakers = vec![State::Closed; servers.len()];
    let mut rate = door.snapshot().rate;
    let mut looks = 0;
    loop {
        sleep(LOOK).await;
        for (index, (server, before)) in servers.iter().zip(&mut breakers).enumerate() {
            let state = door.breaker(index);
            if state != std::mem::replace(before, state) {
                tell_breaker(&house, server, state);
            }
        }
        looks += 1;
        if looks == LOOKS_A_RATE {
            looks = 0;
            let now = door.snapshot().rate;
            if (now - rate).abs() > rate * STEP {
                tell_rate(&house, rate, now);
                rate = now;
            }
        }
    }
}

/// Three states, each of which lasts for long: no client can fill the log with them.
fn tell_breaker(house: &House, server: &str, state: State) {
    let word = match state {
        State::Closed => "closed",
        State::HalfOpen => "half-open",
        State::Open => "open",
    };
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

fn tell_rate(house: &House, from: f64, to: f64) {
    tracing::debug!(from, to, "the admission rate has taken a step");
    if let Some(audit) = house.telemetry().audit() {
        let (from, to) = (format!("{from:.1}"), format!("{to:.1}"));
        audit.change(Change::Rate, audit::details(&[("from", &from), ("to", &to)]));
    }
}
