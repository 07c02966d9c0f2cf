//! What is counted of each broker. A reload may add brokers and take some away: the counters of those that are gone stay
//! as they are, and their gauges, which would tell of now, go.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};

use super::BrokerTotals;
use super::families::{counters, histograms, registered};
use crate::admission::breaker::State;
use crate::telemetry::ending::HandshakeKind;
use crate::telemetry::labels::EachCode;

/// Seconds. A broker without work answers within a few ms; 0.2 is the default of `admission.adaptive.target_latency`
/// and 30 of `upstream.connack_timeout`, with factors of two and more in between.
const CONNACK_BUCKETS: [f64; 14] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 10.0, 30.0,
];

/// All brokers.
pub(super) struct Upstreams {
    families: Families,
    /// By index.
    known: ArcSwap<Vec<Arc<Upstream>>>,
}

struct Families {
    connack_seconds: HistogramVec,
    connacks: IntCounterVec,
    up: IntGaugeVec,
    breaker: IntGaugeVec,
    no_port: IntCounterVec,
    handshakes: IntCounterVec,
}

/// One broker.
pub(super) struct Upstream {
    pub(super) name: String,
    connack_seconds: Histogram,
    connacks: EachCode<IntCounter>,
    pub(super) no_port: IntCounter,
    handshakes: Handshakes,
    /// `None`: a reload took it away.
    pub(super) now: Option<Now>,
}

/// TLS handshakes with a broker.
struct Handshakes {
    full: IntCounter,
    resumed: IntCounter,
    failed: IntCounter,
}

/// What tells of now.
pub(super) struct Now {
    pub(super) up: IntGauge,
    pub(super) breaker: IntGauge,
}

impl Upstreams {
    /// All of `servers` are in use.
    pub(super) fn new(registry: &Registry, servers: &[String]) -> Result<Self, prometheus::Error> {
        let up = Opts::new(
            "seawall_upstream_up",
            "Whether the broker can be used, as far as is known",
        );
        let breaker = Opts::new(
            "seawall_upstream_breaker",
            "Circuit breaker of the broker: 0 closed, 1 half-open, 2 open",
        );
        let families = Families {
            connack_seconds: histograms(
                registry,
                "seawall_connack_seconds",
                "CONNECT forwarded to CONNACK received",
                &["server"],
                &CONNACK_BUCKETS,
            )?,
            connacks: counters(
                registry,
                "seawall_broker_connacks_total",
                "CONNACKs of the brokers, passed on as they came",
                &["server", "code"],
            )?,
            up: registered(registry, IntGaugeVec::new(up, &["server"])?)?,
            breaker: registered(registry, IntGaugeVec::new(breaker, &["server"])?)?,
            no_port: counters(
                registry,
                "seawall_upstream_no_port_total",
                "Dials for which no local port was left",
                &["server"],
            )?,
            handshakes: counters(
                registry,
                "seawall_upstream_handshakes_total",
                "TLS handshakes with the broker, for clients",
                &["server", "kind"],
            )?,
        };
        let upstreams = Self {
            families,
            known: ArcSwap::default(),
        };
        upstreams.renew(servers, &[]);
        Ok(upstreams)
    }

    /// `servers` by index: those that are known and then perhaps more, of which the `retired` are not in use.
    pub(super) fn renew(&self, servers: &[String], retired: &[usize]) {
        let known = self.known.load();
        let renewed = servers.iter().enumerate().map(|(server, name)| {
            let in_use = !retired.contains(&server);
            match known.get(server) {
                Some(known) if known.now.is_some() == in_use => Arc::clone(known),
                _ => Arc::new(self.families.upstream(name, in_use)),
            }
        });
        self.known.store(Arc::new(renewed.collect()));
    }

    /// The broker with this index.
    pub(super) fn get(&self, server: usize) -> Option<Arc<Upstream>> {
        self.known.load().get(server).cloned()
    }

    /// Those in use, and whether they can be used.
    pub(super) fn in_use(&self) -> Vec<(String, bool)> {
        let known = self.known.load();
        let in_use = known.iter().filter_map(|upstream| {
            let now = upstream.now.as_ref()?;
            Some((upstream.name.clone(), now.up.get() == 1))
        });
        in_use.collect()
    }
}

impl Upstreams {
    /// What was counted of those in use.
    pub(super) fn totals(&self) -> Vec<BrokerTotals> {
        let known = self.known.load();
        let totals = known.iter().filter_map(|upstream| {
            let now = upstream.now.as_ref()?;
            Some(BrokerTotals {
                name: upstream.name.clone(),
                up: now.up.get() == 1,
                breaker: State::ALL
                    .into_iter()
                    .find(|state| *state as i64 == now.breaker.get())
                    .map_or(State::Open.word(), State::word),
                connacks: upstream.connack_seconds.get_sample_count(),
                seconds: upstream.connack_seconds.get_sample_sum(),
            })
        });
        totals.collect()
    }
}

impl Families {
    fn upstream(&self, name: &str, in_use: bool) -> Upstream {
        let now = in_use.then(|| {
            let now = Now {
                up: self.up.with_label_values(&[name]),
                breaker: self.breaker.with_label_values(&[name]),
            };
            now.up.set(1);
            now
        });
        if !in_use {
            // One that was never there is gone as well.
            let _ = self.up.remove_label_values(&[name]);
            let _ = self.breaker.remove_label_values(&[name]);
        }
        Upstream {
            name: name.to_owned(),
            connack_seconds: self.connack_seconds.with_label_values(&[name]),
            connacks: EachCode::build(|code| self.connacks.with_label_values(&[name, code])),
            no_port: self.no_port.with_label_values(&[name]),
            handshakes: Handshakes {
                full: self
                    .handshakes
                    .with_label_values(&[name, HandshakeKind::Full.word()]),
                resumed: self
                    .handshakes
                    .with_label_values(&[name, HandshakeKind::Resumed.word()]),
                failed: self.handshakes.with_label_values(&[name, "failed"]),
            },
            now,
        }
    }
}

impl Upstream {
    pub(super) fn connack(&self, code: u8, latency: Duration) {
        self.connack_seconds.observe(latency.as_secs_f64());
        self.connacks.get(code).inc();
    }

    pub(super) fn handshake(&self, kind: Option<HandshakeKind>) {
        let counter = match kind {
            Some(HandshakeKind::Full) => &self.handshakes.full,
            Some(HandshakeKind::Resumed) => &self.handshakes.resumed,
            None => &self.handshakes.failed,
        };
        counter.inc();
    }
}
