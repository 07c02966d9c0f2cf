//! What to set, from what is known of the fleet and its broker: the rules of `docs/operations.md` and `docs/devices.md`.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::report::duration;
use super::{Outcome, Scenario};

/// Of the broker's capacity: the rest is for what it does beside logging in.
const RATE_SHARE: f64 = 0.8;

/// Resident memory of an idle connection at the proxy, in bytes: README, "What it costs".
const CONNECTION_BYTES: f64 = 10_700.0;

/// Cores are to be this busy at most in the busiest second: messages of the connected go through them as well.
const BUSY: f64 = 0.7;

/// Settings for one fleet in front of one broker.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Advice {
    /// `admission.rate` and `admission.burst`
    pub rate: f64,
    /// `admission.max_in_flight`
    pub max_in_flight: u32,
    /// `admission.max_wait`, in seconds.
    pub max_wait: f64,
    /// `admission.max_held`
    pub max_held: u64,
    /// `handshake.max_in_flight`: those of the busiest second wait for a round trip each.
    pub handshakes: u64,
    /// Cap of the devices with full jitter, in seconds, with which they knock as often as they can be admitted.
    pub cap: f64,
    /// Cores for the busiest second of the proxy in this run; `None`: there was none.
    pub cores: Option<f64>,
    /// Memory for the whole fleet connected, in bytes.
    pub memory: f64,
    /// Machines of the given number of cores.
    pub replicas: Option<u64>,
}

impl Advice {
    /// For `scenario`, after it came out like this.
    pub fn of(scenario: &Scenario, outcome: &Outcome) -> Self {
        let broker = scenario.broker;
        let devices = f64::from(scenario.fleet.devices);
        let rate = RATE_SHARE * broker.capacity;
        let max_in_flight = (2.0 * rate * broker.service().as_secs_f64()).ceil().max(2.0);
        let max_wait = whole_seconds(scenario.fleet.patience);
        let admitted_soon = rate * max_wait + rate;
        // Whoever knocks in the busiest second and can be held or admitted at all has to get through its handshake.
        let handshakes =
            f64::from(outcome.peak_knocks).min(2.0 * admitted_soon) * 2.0 * scenario.round_trip.as_secs_f64();
        let proxy = scenario.proxy.as_ref();
        let cores = proxy.map(|_| outcome.peak_cores / BUSY);
        Self {
            rate,
            max_in_flight: max_in_flight as u32,
            max_wait,
            max_held: (rate * max_wait).ceil() as u64,
            handshakes: handshakes.ceil().max(64.0) as u64,
            cap: 2.0 * devices / rate,
            cores,
            memory: devices * CONNECTION_BYTES,
            replicas: proxy
                .zip(cores)
                .map(|(proxy, cores)| (cores / f64::from(proxy.cores)).ceil().max(1.0) as u64),
        }
    }
}

/// The patience less a second for the handshake and the broker; less a fifth where it is shorter than five.
fn whole_seconds(patience: Duration) -> f64 {
    let patience = patience.as_secs_f64();
    (patience - 1.0).max(patience * 0.8)
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = |f: &mut fmt::Formatter<'_>, label: &str, text: &str| writeln!(f, "  {label:<20} {text}");
        writeln!(f, "what to set")?;
        row(
            f,
            "[admission]",
            &format!(
                "rate = {:.0}, burst = {:.0}, max_in_flight = {}, max_wait = \"{:.1}s\", max_held = {}",
                self.rate, self.rate, self.max_in_flight, self.max_wait, self.max_held
            ),
        )?;
        row(f, "[handshake]", &format!("max_in_flight = {}", self.handshakes))?;
        row(
            f,
            "devices",
            &format!("full jitter with a cap of {}", duration(self.cap)),
        )?;
        let gibibytes = self.memory / f64::from(1 << 30);
        let cores = self
            .cores
            .map_or_else(String::new, |cores| format!("{cores:.1} cores, "));
        let replicas = self.replicas.map_or_else(String::new, |replicas| {
            format!(": machines like this one: {replicas}")
        });
        row(
            f,
            "the proxy needs",
            &format!("{cores}{gibibytes:.1} GiB with all connected{replicas}"),
        )
    }
}
