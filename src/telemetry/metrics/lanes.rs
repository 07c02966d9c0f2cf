//! What is counted by lane. A reload may add lanes; the series of one that is gone stay as they are.

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use prometheus::{IntCounter, IntCounterVec, Registry};

use super::LaneTotals;
use super::families::{add, counters};
use crate::mqtt::Protocol;
use crate::reason::Reason;
use crate::telemetry::labels::{DecisionLabel, Each, Label};

/// What is in no lane of the configuration, and what was not classified.
const DEFAULT: &str = "default";

/// All lanes.
pub(super) struct Lanes {
    connects: IntCounterVec,
    refused: IntCounterVec,
    /// By label.
    named: ArcSwap<Vec<Arc<Lane>>>,
    default: Arc<Lane>,
}

/// One lane.
pub(super) struct Lane {
    pub(super) name: String,
    connects: Each<DecisionLabel, Each<Protocol, IntCounter>>,
    refused: Each<Reason, IntCounter>,
}

impl Lanes {
    pub(super) fn new(registry: &Registry, names: &[String]) -> Result<Self, prometheus::Error> {
        let connects = counters(
            registry,
            "seawall_connects_total",
            "Connections that got past TLS, by what became of their CONNECT",
            &["decision", "protocol", "lane"],
        )?;
        let refused = counters(
            registry,
            "seawall_refused_total",
            "CONNECTs that Seawall answered itself",
            &["reason", "lane"],
        )?;
        let lanes = Self {
            default: Arc::new(Lane::new(DEFAULT, &connects, &refused)),
            connects,
            refused,
            named: ArcSwap::default(),
        };
        lanes.extend(names);
        Ok(lanes)
    }

    /// `names` by label: those that are known, and then perhaps more.
    pub(super) fn extend(&self, names: &[String]) {
        let known = self.named.load();
        let new = names.iter().skip(known.len());
        let new = new.map(|name| Arc::new(Lane::new(name, &self.connects, &self.refused)));
        self.named
            .store(Arc::new(known.iter().cloned().chain(new).collect()));
    }

    /// The one with this label.
    pub(super) fn of(&self, label: Option<usize>) -> Arc<Lane> {
        let named = self.named.load();
        let lane = label.and_then(|label| named.get(label));
        Arc::clone(lane.unwrap_or(&self.default))
    }

    /// CONNECTs of all lanes by what became of them.
    pub(super) fn decisions(&self) -> BTreeMap<&'static str, u64> {
        let mut sums = BTreeMap::new();
        self.each(|lane| {
            for (decision, protocols) in lane.connects.iter() {
                *sums.entry(decision).or_default() +=
                    protocols.iter().map(|(_, counter)| counter.get()).sum::<u64>();
            }
        });
        sums
    }

    /// Refusals of all lanes by reason.
    pub(super) fn refusals(&self) -> BTreeMap<&'static str, u64> {
        let mut sums = BTreeMap::new();
        self.each(|lane| {
            for (reason, counter) in lane.refused.iter() {
                *sums.entry(reason).or_default() += counter.get();
            }
        });
        sums
    }

    /// What was counted of each, "default" last.
    pub(super) fn totals(&self) -> Vec<LaneTotals> {
        let mut totals = Vec::new();
        self.each(|lane| totals.push(lane.totals()));
        totals
    }

    fn each(&self, mut look: impl FnMut(&Lane)) {
        for lane in self.named.load().iter().chain([&self.default]) {
            look(lane);
        }
    }
}

impl Lane {
    fn new(name: &str, connects: &IntCounterVec, refused: &IntCounterVec) -> Self {
        Self {
            name: name.to_owned(),
            connects: Each::build(|decision: DecisionLabel| {
                Each::build(|protocol: Protocol| {
                    connects.with_label_values(&[decision.word(), protocol.word(), name])
                })
            }),
            refused: Each::build(|reason: Reason| refused.with_label_values(&[reason.word(), name])),
        }
    }

    fn totals(&self) -> LaneTotals {
        let admitted = self.connects.get(DecisionLabel::Admitted);
        let admitted = admitted.into_iter().flat_map(Each::iter);
        LaneTotals {
            name: self.name.clone(),
            admitted: admitted.map(|(_, counter)| counter.get()).sum(),
            refused: self.refused.iter().map(|(_, counter)| counter.get()).sum(),
        }
    }

    pub(super) fn decided(&self, decision: DecisionLabel, protocol: Protocol) {
        let protocols = self.connects.get(decision);
        add(protocols.and_then(|protocols| protocols.get(protocol)), 1);
    }

    pub(super) fn refused(&self, reason: Reason) {
        add(self.refused.get(reason), 1);
    }
}
