//! What is counted of each broker.

use std::time::Duration;

use prometheus::{Histogram, IntCounter, IntGauge, IntGaugeVec, Opts, Registry};

use super::BrokerTotals;
use super::families::{counters, histograms, registered};
use crate::telemetry::labels::EachCode;

/// Seconds. A broker without work answers within a few ms; 0.2 is the default of `admission.adaptive.target_latency`
/// and 30 of `upstream.connack_timeout`, with factors of two and more in between.
const CONNACK_BUCKETS: [f64; 14] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 10.0, 30.0,
];

/// One broker.
pub(super) struct Upstream {
    pub(super) name: String,
    pub(super) connack_seconds: Histogram,
    pub(super) connacks: EachCode<IntCounter>,
    pub(super) up: IntGauge,
    pub(super) breaker: IntGauge,
    pub(super) no_port: IntCounter,
}

impl Upstream {
    pub(super) fn all(registry: &Registry, servers: &[String]) -> Result<Vec<Self>, prometheus::Error> {
        let seconds = histograms(
            registry,
            "seawall_connack_seconds",
            "CONNECT forwarded to CONNACK received",
            &["server"],
            &CONNACK_BUCKETS,
        )?;
        let connacks = counters(
            registry,
            "seawall_broker_connacks_total",
            "CONNACKs of the brokers, passed on as they came",
            &["server", "code"],
        )?;
        let up = Opts::new(
            "seawall_upstream_up",
            "Whether the broker can be used, as far as is known",
        );
        let up = registered(registry, IntGaugeVec::new(up, &["server"])?)?;
        let breaker = Opts::new(
            "seawall_upstream_breaker",
            "Circuit breaker of the broker: 0 closed, 1 half-open, 2 open",
        );
        let breaker = registered(registry, IntGaugeVec::new(breaker, &["server"])?)?;
        let no_port = counters(
            registry,
            "seawall_upstream_no_port_total",
            "Dials for which no local port was left",
            &["server"],
        )?;
        let upstream = |name: &String| {
            let up = up.with_label_values(&[name]);
            up.set(1);
            Self {
                name: name.clone(),
                connack_seconds: seconds.with_label_values(&[name]),
                connacks: EachCode::build(|code| connacks.with_label_values(&[name, code])),
                up,
                breaker: breaker.with_label_values(&[name]),
                no_port: no_port.with_label_values(&[name]),
            }
        };
        Ok(servers.iter().map(upstream).collect())
    }

    pub(super) fn totals(&self) -> BrokerTotals {
        BrokerTotals {
            name: self.name.clone(),
            up: self.up.get() == 1,
            breaker: match self.breaker.get() {
                0 => "closed",
                1 => "half-open",
                _ => "open",
            },
            connacks: self.connack_seconds.get_sample_count(),
            seconds: self.connack_seconds.get_sample_sum(),
        }
    }

    pub(super) fn connack(&self, code: u8, latency: Duration) {
        self.connack_seconds.observe(latency.as_secs_f64());
        self.connacks.get(code).inc();
    }
}
