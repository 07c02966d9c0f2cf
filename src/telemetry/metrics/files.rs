//! Certificates and revocation lists: when they expire, and how often they were read.

use std::collections::BTreeMap;

use prometheus::{IntCounter, IntGaugeVec, Opts, Registry};

use super::families::{counters, each, registered};
use crate::telemetry::labels::{Each, Reload};

/// Certificates and revocation lists.
pub(super) struct Files {
    certificates: IntGaugeVec,
    lists: IntGaugeVec,
    pub(super) reloads: Each<Reload, IntCounter>,
}

impl Files {
    pub(super) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let certificates = Opts::new(
            "seawall_certificate_expiry_seconds",
            "Unix time at which the certificate expires",
        );
        let lists = Opts::new(
            "seawall_client_crl_expiry_seconds",
            "Unix time after which the revocation list no longer holds",
        );
        let reloads = counters(
            registry,
            "seawall_reloads_total",
            "Times that changed files were read",
            &["result"],
        )?;
        Ok(Self {
            certificates: registered(registry, IntGaugeVec::new(certificates, &["name"])?)?,
            lists: registered(registry, IntGaugeVec::new(lists, &["name"])?)?,
            reloads: each(&reloads),
        })
    }

    pub(super) fn certificates<'a>(&self, expiries: impl Iterator<Item = (&'a str, i64)>) {
        replace(&self.certificates, expiries);
    }

    pub(super) fn lists<'a>(&self, expiries: impl Iterator<Item = (&'a str, i64)>) {
        replace(&self.lists, expiries);
    }
}

/// These and no others. Of several with the same name the earliest.
fn replace<'a>(gauges: &IntGaugeVec, expiries: impl Iterator<Item = (&'a str, i64)>) {
    let mut earliest = BTreeMap::new();
    for (name, expiry) in expiries {
        let known = earliest.entry(name).or_insert(expiry);
        *known = expiry.min(*known);
    }
    gauges.reset();
    for (name, expiry) in earliest {
        gauges.with_label_values(&[name]).set(expiry);
    }
}
