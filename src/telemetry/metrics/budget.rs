//! The budget in common with other replicas.

use std::time::Duration;

use prometheus::{Gauge, IntCounter, IntGauge, Registry};

use super::families::{counters, registered};

/// What one question to the table came to.
#[derive(Clone, Copy, Debug)]
pub struct Beat {
    /// Whether it was answered.
    pub answered: bool,
    /// The part of the whole that is gone by, 0 to 1.
    pub share: f64,
    /// Replicas that share the budget, as last heard.
    pub replicas: u32,
    /// Since when there was no answer.
    pub staleness: Duration,
}

/// The gauges; of a process that shares with nobody they stay as they begin.
pub(super) struct Budget {
    share: Gauge,
    replicas: IntGauge,
    staleness: Gauge,
    answered: IntCounter,
    failed: IntCounter,
}

impl Budget {
    pub(super) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let share = Gauge::new(
            "seawall_shared_budget_share",
            "Part of the shared budget that this replica goes by, 0 to 1",
        )?;
        let replicas = IntGauge::new(
            "seawall_shared_budget_replicas",
            "Replicas that share the budget, as last heard",
        )?;
        let staleness = Gauge::new(
            "seawall_shared_budget_staleness_seconds",
            "Time since the table of shares last answered",
        )?;
        let asked = counters(
            registry,
            "seawall_shared_budget_requests_total",
            "Questions to the table of shares",
            &["result"],
        )?;
        share.set(1.0);
        replicas.set(1);
        Ok(Self {
            share: registered(registry, share)?,
            replicas: registered(registry, replicas)?,
            staleness: registered(registry, staleness)?,
            answered: asked.with_label_values(&["answered"]),
            failed: asked.with_label_values(&["failed"]),
        })
    }

    pub(super) fn set(&self, beat: Beat) {
        self.share.set(beat.share);
        self.replicas.set(i64::from(beat.replicas));
        self.staleness.set(beat.staleness.as_secs_f64());
        if beat.answered {
            self.answered.inc();
        } else {
            self.failed.inc();
        }
    }
}
