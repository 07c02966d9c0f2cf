//! What `/status` says. No client id and no address of a client.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Pages;
use crate::telemetry::metrics::Totals;

#[derive(Serialize)]
pub(super) struct Status {
    version: &'static str,
    uptime_seconds: u64,
    ready: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    not_ready: Option<&'static str>,
    connections: BTreeMap<&'static str, i64>,
    admission: Admission,
    upstreams: Vec<Upstream>,
    totals: Totals,
}

#[derive(Serialize)]
struct Admission {
    rate: f64,
    tokens: f64,
    in_flight: u32,
    held: usize,
}

#[derive(Serialize)]
struct Upstream {
    server: String,
    up: bool,
    /// Why not, where it could not be reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    trouble: Option<String>,
}

impl Status {
    pub(super) fn of(pages: &Pages) -> Self {
        let snapshot = pages.state.snapshot();
        let ready = pages.state.ready();
        let mut troubles = pages.state.troubles();
        Self {
            version: env!("CARGO_PKG_VERSION"),
            uptime_seconds: pages.started.elapsed().as_secs(),
            ready: ready.is_ok(),
            not_ready: ready.err().map(super::NotReady::word),
            connections: pages.metrics.phases(),
            admission: Admission {
                rate: snapshot.rate,
                tokens: snapshot.tokens,
                in_flight: snapshot.in_flight,
                held: snapshot.held,
            },
            upstreams: pages
                .metrics
                .upstreams()
                .into_iter()
                .map(|(server, up)| Upstream {
                    trouble: troubles.remove(&server),
                    server,
                    up,
                })
                .collect(),
            totals: pages.metrics.totals(),
        }
    }
}
