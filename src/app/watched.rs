//! The running daemon as its admin pages see it.

use std::collections::BTreeMap;

use super::parts::Parts;
use crate::admin::{NotReady, State};
use crate::admission::controller::Snapshot;

impl State for Parts {
    fn snapshot(&self) -> Snapshot {
        for (server, up) in self.brokers.up() {
            self.metrics.upstream(server, up, self.door.breaker(server));
        }
        let gate = self.gate.snapshot();
        self.metrics.gate(gate.handshakes, gate.sources);
        let (up, down) = self.house.traffic().take();
        self.metrics.relayed(up, down);
        self.metrics.limit(self.places.most());
        self.door.snapshot()
    }

    fn ready(&self) -> Result<(), NotReady> {
        if self.tasks.is_draining() {
            return Err(NotReady::Draining);
        }
        if !self.brokers.any_up() || !self.door.snapshot().usable {
            return Err(NotReady::NoBroker);
        }
        Ok(())
    }

    fn troubles(&self) -> BTreeMap<String, String> {
        let troubles = self.brokers.troubles().into_iter();
        troubles
            .filter_map(|(server, why)| Some((self.metrics.server(server)?, why)))
            .collect()
    }
}
