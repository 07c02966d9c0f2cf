//! What became of the CONNECTs, and what the controller says of itself.

use prometheus::{Gauge, Histogram, HistogramOpts, IntCounter, IntGauge, Registry};

use super::families::{add, counters, each, gauge, measure, registered};
use super::lanes::Lanes;
use crate::admission::sources::Exceeded;
use crate::reason::Reason;
use crate::telemetry::ending::{Attempt, Decision};
use crate::telemetry::labels::Each;

/// Seconds. A hold is of use below the patience of clients: fine up to 5 s, then the patience of the calmer ones (10,
/// 15, 30, 60 s).
const HOLD_BUCKETS: [f64; 13] = [
    0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 15.0, 30.0, 60.0,
];

/// What became of the CONNECTs, and the controller.
pub(super) struct Admission {
    pub(super) lanes: Lanes,
    pub(super) dry_run: Each<Reason, IntCounter>,
    /// The same of those that no CONNECT is known of yet.
    pub(super) dry_run_sources: Each<Exceeded, IntCounter>,
    pub(super) hold_seconds: Histogram,
    pub(super) rate: Gauge,
    pub(super) rate_floor: Gauge,
    pub(super) tokens: Gauge,
    pub(super) in_flight: IntGauge,
    pub(super) window: IntGauge,
    pub(super) appointments: IntGauge,
    pub(super) bad_credentials: IntGauge,
    pub(super) bad_credentials_alarm: IntGauge,
}

impl Admission {
    pub(super) fn new(registry: &Registry, lanes: &[String]) -> Result<Self, prometheus::Error> {
        let dry_run = counters(
            registry,
            "seawall_dry_run_total",
            "CONNECTs and connections let in by a dry run that would have been turned away",
            &["reason"],
        )?;
        let hold = HistogramOpts::new(
            "seawall_hold_seconds",
            "How long held CONNECTs waited, whatever the end",
        )
        .buckets(HOLD_BUCKETS.to_vec());
        let rate = Gauge::new("seawall_admission_rate", "Tokens a second now")?;
        let rate_floor = Gauge::new(
            "seawall_admission_rate_floor",
            "Tokens a second below which admission.adaptive does not go, 0 where it is off",
        )?;
        let tokens = Gauge::new("seawall_admission_tokens", "Tokens in the bucket now")?;
        let in_flight = IntGauge::new(
            "seawall_upstream_in_flight",
            "CONNECTs sent to a broker without an answer",
        )?;
        Ok(Self {
            lanes: Lanes::new(registry, lanes)?,
            dry_run: each(&dry_run),
            dry_run_sources: each(&dry_run),
            hold_seconds: registered(registry, Histogram::with_opts(hold)?)?,
            rate: registered(registry, rate)?,
            rate_floor: registered(registry, rate_floor)?,
            tokens: registered(registry, tokens)?,
            in_flight: registered(registry, in_flight)?,
            window: gauge(
                registry,
                "seawall_admission_window",
                "CONNECTs that may be in flight now",
            )?,
            appointments: gauge(
                registry,
                "seawall_appointments",
                "Refused clients that have a slot",
            )?,
            bad_credentials: gauge(
                registry,
                "seawall_bad_credentials",
                "Credentials that the brokers have refused lately",
            )?,
            bad_credentials_alarm: gauge(
                registry,
                "seawall_bad_credentials_alarm",
                "1 while the brokers refuse the credentials of most of the fleet",
            )?,
        })
    }

    pub(super) fn decision(&self, decision: Decision, attempt: &Attempt) {
        let lane = self.lanes.of(attempt.lane);
        lane.decided(decision.into(), attempt.protocol);
        if let Some(held) = attempt.held {
            measure(Some(&self.hold_seconds), held);
        }
        match decision {
            Decision::Refused(reason) | Decision::Invalid(Some(reason)) => {
                lane.refused(reason);
            }
            Decision::Admitted {
                would_refuse: Some(reason),
            } => add(self.dry_run.get(reason), 1),
            Decision::Admitted { would_refuse: None }
            | Decision::Invalid(None)
            | Decision::TimedOut
            | Decision::Left => {}
        }
    }
}
