//! Where each open connection is in its life, in a gauge that can't drift.

use std::sync::Arc;

use super::ending::Phase;
use super::metrics::Metrics;

/// Holds a connection's place in `seawall_connections_open`: exactly one phase, from [`Metrics::enter`] to its drop,
/// by whichever way the connection ends.
#[must_use = "the connection counts as open only as long as this lives"]
pub struct PhaseGuard {
    metrics: Arc<Metrics>,
    phase: Phase,
}

impl PhaseGuard {
    pub(super) fn enter(metrics: Arc<Metrics>, phase: Phase) -> Self {
        let guard = Self { metrics, phase };
        guard.add(1);
        guard
    }

    /// The connection is in `phase` from now on.
    pub fn to(&mut self, phase: Phase) {
        self.add(-1);
        self.phase = phase;
        self.add(1);
    }

    /// The phase that it is in.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    fn add(&self, amount: i64) {
        if let Some(gauge) = self.metrics.open(self.phase) {
            gauge.add(amount);
        }
    }
}

impl Drop for PhaseGuard {
    fn drop(&mut self) {
        self.add(-1);
    }
}
