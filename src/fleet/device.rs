//! One simulated device: connects, stays, loses its network, comes back by its policy.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, interval, sleep, sleep_until, timeout};

use super::client::{Client, Failure, Progress, Target};
use super::identity::Identity;
use super::outcome::Loss;
use super::packet::PINGREQ;
use super::tally::{Return, Tally};
use crate::reconnect::{Backoff, Schedule};

/// Share of the keep-alive after which a device pings: early enough for one lost round trip.
const PING_SHARE: f64 = 0.75;
/// Between two tries while the fleet fills: that is no storm, and no policy is on trial.
const FILL_PAUSE: Duration = Duration::from_secs(1);

/// The network of a group of devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tower {
    pub(super) is_up: bool,
    /// Changes whenever all connections are lost.
    pub(super) cut: u32,
    /// Changes when the devices can come back; 0: nothing has happened yet.
    pub(super) outage: u32,
    /// From when on their return counts.
    pub(super) since: Instant,
}

/// What all devices of a fleet share.
#[derive(Debug)]
pub(super) struct Surroundings {
    /// One for each group.
    pub(super) towers: Vec<watch::Sender<Tower>>,
    pub(super) tally: Tally,
    /// First connections at a time: a fleet is filled, not stormed in.
    pub(super) filling: Semaphore,
    pub(super) patience: Duration,
    /// Whether a device heeds `retry-after-ms`.
    pub(super) heeds_retry_after: bool,
    /// Devices are switched on within this time after their tower is up; `None`: they are on, and fill the target.
    pub(super) boot: Option<Duration>,
}

/// A device; [`Device::live`] runs it.
pub(super) struct Device {
    pub(super) identity: Identity,
    pub(super) target: Target,
    /// Where it dials from; `None`: as the system chooses.
    pub(super) source: Option<IpAddr>,
    pub(super) schedule: Schedule,
    pub(super) random: fastrand::Rng,
    pub(super) tower: watch::Receiver<Tower>,
    pub(super) surroundings: Arc<Surroundings>,
    pub(super) outage: Outage,
}

/// The outage that a device comes back from.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Outage {
    number: u32,
    is_over: bool,
    attempts: u32,
}

impl Device {
    /// Never returns: the fleet ends it.
    pub(super) async fn live(mut self) {
        let surroundings = Arc::clone(&self.surroundings);
        let mut client = match surroundings.boot {
            None => self.fill().await,
            Some(within) => self.boot(within).await,
        };
        loop {
            let present = surroundings.tally.admitted();
            self.tell_return();
            let end = self.stay(client).await;
            drop(present);
            if end == End::ByPeer {
                surroundings.tally.dropped();
            }
            client = self.come_back(None).await;
        }
    }

    /// The first connection, a few devices at a time.
    async fn fill(&mut self) -> Client {
        let surroundings = Arc::clone(&self.surroundings);
        let _place = surroundings.filling.acquire().await;
        loop {
            match self.attempt().await {
                Ok(client) => return client,
                Err(_) => sleep(FILL_PAUSE).await,
            }
        }
    }

    /// The first connection, when there is power.
    async fn boot(&mut self, within: Duration) -> Client {
        // An error means that the fleet is going down, which ends this device as well.
        let up = self.tower.wait_for(|tower| tower.is_up).await.map(|tower| *tower);
        let delay = within.mul_f64(self.random.f64());
        if let Ok(tower) = up {
            sleep_until(tower.since + delay).await;
        }
        match self.attempt().await {
            Ok(client) => client,
            Err(failure) => self.come_back(Some(failure)).await,
        }
    }

    /// Waits and tries until an attempt succeeds. `failure`: that of an attempt before.
    async fn come_back(&mut self, mut failure: Option<Failure>) -> Client {
        let mut backoff = Backoff::new();
        loop {
            let scheduled = backoff.next(&self.schedule, &mut self.random);
            sleep(self.asked_for(failure).unwrap_or(scheduled)).await;
            if !self.tower.borrow().is_up {
                failure = None;
                continue;
            }
            match self.attempt().await {
                Ok(client) => return client,
                Err(failed) => failure = Some(failed),
            }
        }
    }

    /// The delay that the other side asked for, where this device heeds it: with up to a tenth on top, and no more than
    /// the base, as in [`crate::reconnect::Reconnect`].
    fn asked_for(&mut self, failure: Option<Failure>) -> Option<Duration> {
        let Some(Failure::Refused {
            retry_after: Some(asked),
            ..
        }) = failure
        else {
            return None;
        };
        let spread = (asked / 10).min(self.schedule.base());
        self.surroundings
            .heeds_retry_after
            .then(|| asked + spread.mul_f64(self.random.f64()))
    }

    /// An attempt that reaches for the network, counted as what it was.
    async fn attempt(&mut self) -> Result<Client, Failure> {
        let tower = *self.tower.borrow_and_update();
        if self.outage.number != tower.outage {
            self.outage = Outage {
                number: tower.outage,
                ..Outage::default()
            };
        }
        self.outage.attempts = self.outage.attempts.saturating_add(1);

        let Surroundings { tally, patience, .. } = &*self.surroundings;
        tally.arrived();
        let mut progress = Progress::default();
        let connecting = timeout(
            *patience,
            Client::connect(&self.target, self.source, &self.identity, &mut progress),
        );
        let outcome = tokio::select! {
            outcome = connecting => outcome,
            () = lost(&mut self.tower, tower.cut) => Ok(Err(Failure::Lost(Loss::NetworkLost))),
        };
        let outcome = outcome.unwrap_or_else(|_| Err(Failure::Lost(Loss::impatient(progress.stage))));
        if let Some(kind) = progress.handshake {
            tally.shook_hands(kind, outcome.is_err());
        }
        outcome.inspect_err(|failure| tally.failed(*failure))
    }

    /// The first connection after an outage is told once.
    fn tell_return(&mut self) {
        let tower = *self.tower.borrow();
        let Outage {
            number,
            is_over,
            attempts,
        } = self.outage;
        if number == 0 || is_over || number != tower.outage {
            return;
        }
        self.outage.is_over = true;
        self.surroundings.tally.returned(Return {
            after: tower.since.elapsed(),
            attempts,
        });
    }

    /// Keeps the connection until the other side ends it or the network is lost; then the socket is dropped without a word.
    async fn stay(&mut self, mut client: Client) -> End {
        let cut = self.tower.borrow().cut;
        // [MQTT-3.1.2-10]: without a keep-alive nothing has to be sent.
        let pause = match self.identity.keep_alive {
            0 => Duration::MAX / 8,
            seconds => Duration::from_secs(u64::from(seconds)).mul_f64(PING_SHARE),
        };
        let mut pings = interval(pause);
        pings.reset();
        loop {
            let goes_on = tokio::select! {
                packet = client.next() => packet.map(drop),
                _ = pings.tick() => client.send(&PINGREQ).await,
                () = lost(&mut self.tower, cut) => return End::NetworkLost,
            };
            if goes_on.is_err() {
                return End::ByPeer;
            }
        }
    }
}

/// How a connection of a device ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    NetworkLost,
    ByPeer,
}

async fn lost(tower: &mut watch::Receiver<Tower>, cut: u32) {
    // An error means that the fleet is going down, which ends this device as well.
    let _ = tower.wait_for(|tower| tower.cut != cut).await;
}
