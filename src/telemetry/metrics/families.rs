//! Every metric: its name, its labels, its buckets.

use std::time::Duration;

use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
};

use crate::admission::{gate, sources};
use crate::telemetry::ending::{Handshake, HandshakeFailure, HandshakeKind, Phase, Side};
use crate::telemetry::labels::{Each, HandshakeOutcome, HandshakeVersion, Label, Shed};

/// Seconds. A LAN does a handshake in 1 to 3 ms, a cellular modem in two or three round trips of 100 to 600 ms. Above
/// that the bounds are what clients wait before they give up (4 s old is late, 5, 10, 15) and our own deadline, 15 s.
const HANDSHAKE_BUCKETS: [f64; 14] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 10.0, 15.0,
];

/// The side of the devices: sockets, handshakes, sessions.
pub(super) struct Clients {
    pub(super) accepted: IntCounter,
    pub(super) open: Each<Phase, IntGauge>,
    pub(super) shed: Each<Shed, IntCounter>,
    pub(super) handshakes: Each<HandshakeOutcome, Each<HandshakeVersion, IntCounter>>,
    pub(super) handshake_failures: Each<HandshakeFailure, IntCounter>,
    pub(super) handshake_seconds: Each<HandshakeKind, Histogram>,
    pub(super) bytes_up: IntCounter,
    pub(super) bytes_down: IntCounter,
    pub(super) closed: Each<Side, Each<Phase, IntCounter>>,
    pub(super) limit: IntGauge,
}

impl Clients {
    pub(super) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let open = Opts::new(
            "seawall_connections_open",
            "Connections by where they are in their life",
        );
        let open = registered(registry, IntGaugeVec::new(open, &["phase"])?)?;
        let shed = counters(
            registry,
            "seawall_shed_total",
            "Sockets closed before TLS",
            &["reason"],
        )?;
        let handshakes = counters(
            registry,
            "seawall_handshakes_total",
            "TLS handshakes that came to an end",
            &["kind", "version"],
        )?;
        let handshake_failures = counters(
            registry,
            "seawall_handshake_failures_total",
            "TLS handshakes that did not come about",
            &["cause"],
        )?;
        let handshake_seconds = histograms(
            registry,
            "seawall_handshake_seconds",
            "Accepted socket to the end of the handshake",
            &["kind"],
            &HANDSHAKE_BUCKETS,
        )?;
        let bytes = counters(
            registry,
            "seawall_relay_bytes_total",
            "Bytes relayed after the CONNACK",
            &["direction"],
        )?;
        let closed = counters(
            registry,
            "seawall_closed_total",
            "Connections that ended",
            &["side", "phase"],
        )?;
        Ok(Self {
            accepted: counter(registry, "seawall_connections_total", "Accepted sockets")?,
            open: Each::build(|phase: Phase| open.with_label_values(&[phase.word()])),
            shed: each(&shed),
            handshakes: each_pair(&handshakes),
            handshake_failures: each(&handshake_failures),
            handshake_seconds: Each::build(|kind: HandshakeKind| {
                handshake_seconds.with_label_values(&[kind.word()])
            }),
            bytes_up: bytes.with_label_values(&["up"]),
            bytes_down: bytes.with_label_values(&["down"]),
            closed: each_pair(&closed),
            limit: gauge(
                registry,
                "seawall_connections_limit",
                "Connections that may be open at a time",
            )?,
        })
    }

    pub(super) fn handshake(&self, handshake: Result<Handshake, HandshakeFailure>) {
        let (outcome, version) = match handshake {
            Ok(Handshake { kind, version, .. }) => {
                (HandshakeOutcome::from(kind), HandshakeVersion::from(version))
            }
            Err(failure) => (HandshakeOutcome::of_failure(failure), HandshakeVersion::None),
        };
        add(
            self.handshakes
                .get(outcome)
                .and_then(|versions| versions.get(version)),
            1,
        );
        match handshake {
            Ok(Handshake { kind, took, .. }) => measure(self.handshake_seconds.get(kind), took),
            Err(failure) => add(self.handshake_failures.get(failure), 1),
        }
    }
}

/// The gate before TLS.
pub(super) struct Gate {
    in_flight: IntGauge,
    waiting: Each<HandshakeKind, IntGauge>,
    sources: IntGauge,
    untracked: IntCounter,
}

impl Gate {
    pub(super) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let in_flight = IntGauge::new("seawall_handshakes_in_flight", "Handshakes being worked on")?;
        let waiting = Opts::new(
            "seawall_handshakes_waiting",
            "Connections that wait for a place or a token",
        );
        let waiting = registered(registry, IntGaugeVec::new(waiting, &["kind"])?)?;
        let sources = IntGauge::new("seawall_sources", "Source addresses that are remembered")?;
        let untracked = "seawall_sources_untracked_total";
        Ok(Self {
            in_flight: registered(registry, in_flight)?,
            waiting: Each::build(|kind: HandshakeKind| waiting.with_label_values(&[kind.word()])),
            sources: registered(registry, sources)?,
            untracked: counter(
                registry,
                untracked,
                "Connections let in without limits for their address",
            )?,
        })
    }

    pub(super) fn set(&self, handshakes: gate::Snapshot, sources: sources::Snapshot) {
        set(Some(&self.in_flight), handshakes.in_flight);
        set(
            self.waiting.get(HandshakeKind::Resumed),
            handshakes.waiting_resumed,
        );
        set(self.waiting.get(HandshakeKind::Full), handshakes.waiting_full);
        set(Some(&self.sources), sources.sources);
        self.untracked
            .inc_by(sources.untracked.saturating_sub(self.untracked.get()));
    }
}

/// The audit log.
pub(in crate::telemetry) struct Audit {
    pub(in crate::telemetry) records: IntCounter,
    pub(in crate::telemetry) dropped: IntCounter,
    pub(in crate::telemetry) failing: IntGauge,
}

impl Audit {
    pub(super) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let failing = IntGauge::new("seawall_audit_failing", "1 while the audit log can't be written")?;
        Ok(Self {
            records: counter(
                registry,
                "seawall_audit_records_total",
                "Lines written to the audit log",
            )?,
            dropped: counter(
                registry,
                "seawall_audit_dropped_total",
                "Audit records that were lost",
            )?,
            failing: registered(registry, failing)?,
        })
    }
}

/// Registers what tells replicas with different settings apart.
pub(super) fn config_hash(registry: &Registry) -> Result<IntGauge, prometheus::Error> {
    gauge(
        registry,
        "seawall_config_hash",
        "A hash of the settings that replicas should have in common",
    )
}

/// Registers what says which build runs.
pub(super) fn build_info(registry: &Registry) -> Result<(), prometheus::Error> {
    let build = Opts::new("seawall_build_info", "Always 1; the labels say what runs")
        .const_label("version", env!("CARGO_PKG_VERSION"));
    registered(registry, IntGauge::with_opts(build)?)?.set(1);
    Ok(())
}

pub(super) fn registered<C: prometheus::core::Collector + Clone + 'static>(
    registry: &Registry,
    collector: C,
) -> Result<C, prometheus::Error> {
    registry.register(Box::new(collector.clone()))?;
    Ok(collector)
}

pub(super) fn counter(registry: &Registry, name: &str, help: &str) -> Result<IntCounter, prometheus::Error> {
    registered(registry, IntCounter::new(name, help)?)
}

pub(super) fn gauge(registry: &Registry, name: &str, help: &str) -> Result<IntGauge, prometheus::Error> {
    registered(registry, IntGauge::new(name, help)?)
}

pub(super) fn counters(
    registry: &Registry,
    name: &str,
    help: &str,
    labels: &[&str],
) -> Result<IntCounterVec, prometheus::Error> {
    registered(registry, IntCounterVec::new(Opts::new(name, help), labels)?)
}

pub(super) fn histograms(
    registry: &Registry,
    name: &str,
    help: &str,
    labels: &[&str],
    buckets: &[f64],
) -> Result<HistogramVec, prometheus::Error> {
    registered(
        registry,
        HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets.to_vec()), labels)?,
    )
}

pub(super) fn each<L: Label>(counters: &IntCounterVec) -> Each<L, IntCounter> {
    Each::build(|label: L| counters.with_label_values(&[label.word()]))
}

pub(super) fn each_pair<A: Label, B: Label>(counters: &IntCounterVec) -> Each<A, Each<B, IntCounter>> {
    Each::build(|outer: A| Each::build(|inner: B| counters.with_label_values(&[outer.word(), inner.word()])))
}

pub(super) fn add(counter: Option<&IntCounter>, amount: u64) {
    if let Some(counter) = counter {
        counter.inc_by(amount);
    }
}

fn set(gauge: Option<&IntGauge>, value: usize) {
    if let Some(gauge) = gauge {
        gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
    }
}

pub(super) fn measure(histogram: Option<&Histogram>, span: Duration) {
    if let Some(histogram) = histogram {
        histogram.observe(span.as_secs_f64());
    }
}
