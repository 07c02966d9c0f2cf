//! A fleet of devices behind one tower.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::client::{Identity, Target};
use super::device::{Device, Surroundings, Tower};
use super::tally::Tally;
pub use super::tally::{Figures, Return};
use crate::mqtt::Version;
use crate::reconnect::{Schedule, from_seed};

/// First connections under way at a time: keeps two cores busy without a queue at the target.
const FILLING: usize = 32;

/// What a fleet is made of.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where all devices connect.
    pub target: Target,
    /// How many; every second one speaks 5.0, the others 3.1.1.
    pub devices: usize,
    /// When they try again.
    pub schedule: Schedule,
    /// Dial to CONNACK, after which a device gives up.
    pub patience: Duration,
    /// Seconds.
    pub keep_alive: u16,
    /// The same seed gives the same delays.
    pub seed: u64,
}

/// Running devices; dropping it ends them and closes their sockets.
#[derive(Debug)]
pub struct Fleet {
    surroundings: Arc<Surroundings>,
    size: usize,
    _devices: JoinSet<()>,
}

impl Fleet {
    /// Starts the devices on `runtime`. They fill the target, a few at a time, and stay.
    pub fn start(plan: &Plan, runtime: &Handle) -> Self {
        let surroundings = Arc::new(Surroundings {
            tower: watch::Sender::new(Tower::Up {
                since: Instant::now(),
            }),
            tally: Tally::new(),
            filling: Semaphore::new(FILLING),
            schedule: plan.schedule,
            patience: plan.patience,
        });
        let mut devices = JoinSet::new();
        for index in 0..plan.devices {
            devices.spawn_on(device(plan, index, &surroundings).live(), runtime);
        }
        Self {
            surroundings,
            size: plan.devices,
            _devices: devices,
        }
    }

    /// Waits until every device is connected.
    pub async fn all_connected(&self) {
        self.surroundings.tally.connected(self.size).await;
    }

    /// Every socket is dropped at once, and no attempt reaches the network.
    pub fn lose_tower(&self) {
        self.surroundings.tower.send_replace(Tower::Down);
    }

    /// The network is back; [`Return::after`] counts from here.
    pub fn restore_tower(&self) {
        self.surroundings.tower.send_replace(Tower::Up {
            since: Instant::now(),
        });
    }

    /// What was counted so far.
    pub fn figures(&self) -> Figures {
        self.surroundings.tally.figures()
    }

    /// CONNACK codes that refused so far, and how often each.
    pub fn refusals(&self) -> Vec<(u8, u64)> {
        self.surroundings.tally.refusals().collect()
    }

    /// Every device's return after an outage, in the order of time.
    pub fn returns(&self) -> Vec<Return> {
        self.surroundings.tally.returns()
    }
}

fn device(plan: &Plan, index: usize, surroundings: &Arc<Surroundings>) -> Device {
    let client_id = format!("device-{index:06}");
    let version = if index.is_multiple_of(2) {
        Version::V3_1_1
    } else {
        Version::V5
    };
    Device {
        random: from_seed(plan.seed, &client_id),
        identity: Identity {
            client_id,
            version,
            keep_alive: plan.keep_alive,
        },
        target: plan.target.with_own_sessions(),
        surroundings: Arc::clone(surroundings),
    }
}

#[cfg(test)]
mod tests {
    use super::super::broker::{Answer, Behaviour, Broker, Settings};
    use super::super::bystander::Bystanders;
    use super::*;
    use crate::reconnect::Policy;

    const SERVED_AT_ONCE: Behaviour = Behaviour {
        service_time: Duration::ZERO,
        answer: Answer::Accept,
    };

    async fn broker() -> (Broker, Target) {
        let address = "127.0.0.1:0".parse().unwrap();
        let broker = Broker::start(Settings {
            address,
            servers: 1,
            behaviour: SERVED_AT_ONCE,
        })
        .await
        .unwrap();
        let target = Target {
            address: broker.address(),
            tls: None,
        };
        (broker, target)
    }

    fn plan(target: &Target, devices: usize) -> Plan {
        let pause = Duration::from_millis(200);
        Plan {
            target: target.clone(),
            devices,
            schedule: Schedule::new(Policy::Fixed, pause, 1.0, pause).unwrap(),
            patience: Duration::from_secs(5),
            keep_alive: 60,
            seed: 1,
        }
    }

    async fn within<F: Future>(limit: Duration, future: F) -> F::Output {
        tokio::time::timeout(limit, future).await.expect("too late")
    }

    const LIMIT: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn a_fleet_fills_loses_its_tower_and_comes_back() {
        let (broker, target) = broker().await;
        let fleet = Fleet::start(&plan(&target, 100), &Handle::current());
        within(LIMIT, fleet.all_connected()).await;
        assert_eq!(broker.figures().connected, 100);

        fleet.lose_tower();
        within(LIMIT, async {
            while fleet.figures().connected > 0 || broker.figures().connected > 0 {
                tokio::task::yield_now().await;
            }
        })
        .await;
        fleet.restore_tower();
        within(LIMIT, fleet.all_connected()).await;

        let returns = fleet.returns();
        assert_eq!(returns.len(), 100);
        assert!(
            returns
                .iter()
                .all(|back| back.attempts == 1 && back.after < LIMIT),
            "{returns:?}"
        );
        let Figures {
            arrivals,
            admitted,
            refused,
            broken,
            gave_up,
            connected,
        } = fleet.figures();
        assert_eq!(
            (arrivals, admitted, refused, broken, gave_up, connected),
            (200, 200, 0, 0, 0, 100)
        );
    }

    #[tokio::test]
    async fn refused_devices_try_again_by_their_schedule_until_they_are_in() {
        let (broker, target) = broker().await;
        broker.behave(Behaviour {
            answer: Answer::Refuse(3),
            ..SERVED_AT_ONCE
        });
        let fleet = Fleet::start(&plan(&target, 10), &Handle::current());
        within(LIMIT, async {
            while fleet.figures().refused < 30 {
                tokio::task::yield_now().await;
            }
        })
        .await;
        assert_eq!(
            fleet.refusals().iter().map(|(code, _)| *code).collect::<Vec<_>>(),
            [3]
        );
        broker.behave(SERVED_AT_ONCE);
        within(LIMIT, fleet.all_connected()).await;
    }

    #[tokio::test]
    async fn impatient_devices_give_up_on_a_mute_broker() {
        let (broker, target) = broker().await;
        broker.behave(Behaviour {
            answer: Answer::Mute,
            ..SERVED_AT_ONCE
        });
        let mut plan = plan(&target, 5);
        plan.patience = Duration::from_millis(50);
        let fleet = Fleet::start(&plan, &Handle::current());
        within(LIMIT, async {
            while fleet.figures().gave_up < 10 {
                tokio::task::yield_now().await;
            }
        })
        .await;
        assert_eq!(fleet.figures().connected, 0);
    }

    #[tokio::test]
    async fn bystanders_measure_and_count_every_message() {
        let (broker, target) = broker().await;
        let bystanders = Bystanders::start(&target, 3, Duration::from_millis(5))
            .await
            .unwrap();
        within(LIMIT, async {
            while bystanders.messages().received < 30 {
                tokio::task::yield_now().await;
            }
        })
        .await;
        let (latency, messages) = within(LIMIT, bystanders.stop()).await;
        assert_eq!(messages.lost(), 0);
        assert_eq!(
            (latency.messages, broker.figures().published),
            (messages.received, messages.sent)
        );
        assert!(
            latency.p50_us <= latency.p99_us && latency.p99_us <= latency.max_us,
            "{latency:?}"
        );
    }

    #[tokio::test]
    async fn what_bystanders_could_not_send_counts_as_lost() {
        let (broker, target) = broker().await;
        let bystanders = Bystanders::start(&target, 1, Duration::from_millis(5))
            .await
            .unwrap();
        drop(broker);
        within(LIMIT, async {
            while bystanders.messages().lost() < 5 {
                tokio::task::yield_now().await;
            }
        })
        .await;
        let (_, messages) = within(LIMIT, bystanders.stop()).await;
        assert!(messages.lost() >= 5, "{messages:?}");
    }
}
