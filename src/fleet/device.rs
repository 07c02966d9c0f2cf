//! One simulated device: connects, stays, loses its tower, comes back by its policy.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, interval, sleep, timeout};

use super::client::{Client, Failure, Identity, Target};
use super::packet::PINGREQ;
use super::tally::{Return, Tally};
use crate::reconnect::{Backoff, Schedule};

/// Share of the keep-alive after which a device pings: early enough for one lost round trip.
const PING_SHARE: f64 = 0.75;

/// Whether there is a network, and since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tower {
    Up { since: Instant },
    Down,
}

/// What all devices of a fleet share.
#[derive(Debug)]
pub(super) struct Surroundings {
    pub(super) tower: watch::Sender<Tower>,
    pub(super) tally: Tally,
    /// First connections at a time: a fleet is filled, not stormed in.
    pub(super) filling: Semaphore,
    pub(super) schedule: Schedule,
    pub(super) patience: Duration,
}

/// A device; [`Device::live`] runs it.
pub(super) struct Device {
    pub(super) identity: Identity,
    pub(super) target: Target,
    pub(super) random: fastrand::Rng,
    pub(super) surroundings: Arc<Surroundings>,
}

impl Device {
    /// Never returns: the fleet ends it.
    pub(super) async fn live(mut self) {
        let surroundings = Arc::clone(&self.surroundings);
        let mut tower = surroundings.tower.subscribe();
        let place = surroundings.filling.acquire().await;
        let mut client = match self.attempt(&mut tower).await {
            Some(client) => client,
            None => self.come_back(&mut tower).await.0,
        };
        drop(place);
        loop {
            let present = surroundings.tally.admitted();
            let end = stay(client, self.identity.keep_alive, &mut tower).await;
            drop(present);
            let back;
            (client, back) = self.come_back(&mut tower).await;
            if end == End::TowerLost {
                surroundings.tally.returned(back);
            }
        }
    }

    /// Waits and tries until an attempt succeeds.
    async fn come_back(&mut self, tower: &mut watch::Receiver<Tower>) -> (Client, Return) {
        let mut backoff = Backoff::new();
        let mut attempts = 0_u32;
        loop {
            sleep(backoff.next(&self.surroundings.schedule, &mut self.random)).await;
            let Tower::Up { since } = *tower.borrow_and_update() else {
                continue;
            };
            attempts = attempts.saturating_add(1);
            if let Some(client) = self.attempt(tower).await {
                return (
                    client,
                    Return {
                        after: since.elapsed(),
                        attempts,
                    },
                );
            }
        }
    }

    /// `None`: counted as what it was.
    async fn attempt(&self, tower: &mut watch::Receiver<Tower>) -> Option<Client> {
        let Surroundings { tally, patience, .. } = &*self.surroundings;
        tally.arrived();
        let connecting = timeout(*patience, Client::connect(&self.target, &self.identity));
        let outcome = tokio::select! {
            outcome = connecting => outcome,
            () = lost(tower) => Ok(Err(Failure::Broken)),
        };
        match outcome {
            Ok(Ok(client)) => return Some(client),
            Ok(Err(failure)) => tally.failed(&failure),
            Err(_) => tally.gave_up(),
        }
        None
    }
}

/// How a connection of a device ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    TowerLost,
    ClosedByPeer,
}

/// Keeps the connection until the other side ends it or the tower is lost; then the socket is dropped without a word.
async fn stay(mut client: Client, keep_alive: u16, tower: &mut watch::Receiver<Tower>) -> End {
    let pause = Duration::from_secs(u64::from(keep_alive.max(1))).mul_f64(PING_SHARE);
    let mut pings = interval(pause);
    pings.reset();
    loop {
        let goes_on = tokio::select! {
            packet = client.next() => packet.map(drop),
            _ = pings.tick() => client.send(&PINGREQ).await,
            () = lost(tower) => return End::TowerLost,
        };
        if goes_on.is_err() {
            return End::ClosedByPeer;
        }
    }
}

async fn lost(tower: &mut watch::Receiver<Tower>) {
    // An error means that the fleet is going down, which ends this device as well.
    let _ = tower.wait_for(|tower| *tower == Tower::Down).await;
}
