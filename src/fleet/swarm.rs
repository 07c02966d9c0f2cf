//! Running devices, in groups that lose their networks together.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::device::{Device, Outage, Surroundings, Tower};
use super::population::Population;
use super::tally::Tally;
pub use super::tally::{Counts, Handshakes, Return};
use crate::reconnect::ScheduleError;

/// First connections under way at a time: keeps two cores busy without a queue at the target.
const FILLING: usize = 32;
/// Between two looks at what is waited for: well below what a report tells apart.
const LOOK: Duration = Duration::from_millis(10);

/// Running devices; dropping it ends them and closes their sockets.
#[derive(Debug)]
pub struct Fleet {
    surroundings: Arc<Surroundings>,
    size: usize,
    _devices: JoinSet<()>,
}

impl Fleet {
    /// Starts the devices on `runtimes`, in turn (at least one). They fill the target, a few at a time, and stay; or they
    /// are off until [`Self::restore`], where the population says so.
    pub fn start(population: &Population, runtimes: &[Handle]) -> Result<Self, ScheduleError> {
        let tower = Tower {
            is_up: population.boot.is_none(),
            cut: 0,
            outage: 0,
            since: Instant::now(),
        };
        let surroundings = Arc::new(Surroundings {
            towers: population
                .groups
                .iter()
                .map(|_| watch::Sender::new(tower))
                .collect(),
            tally: Tally::new(),
            filling: Semaphore::new(FILLING),
            patience: population.patience,
            heeds_retry_after: population.heeds_retry_after,
            boot: population.boot,
        });
        let mut devices = JoinSet::new();
        for (traits, runtime) in population.devices()?.zip(runtimes.iter().cycle()) {
            let Some(tower) = surroundings.towers.get(traits.group) else {
                continue;
            };
            let device = Device {
                identity: traits.identity,
                target: traits.target,
                source: traits.source,
                schedule: traits.schedule,
                random: traits.random,
                tower: tower.subscribe(),
                surroundings: Arc::clone(&surroundings),
                outage: Outage::default(),
            };
            devices.spawn_on(device.live(), runtime);
        }
        Ok(Self {
            surroundings,
            size: population.numbers.len(),
            _devices: devices,
        })
    }

    /// Waits until every device is connected.
    pub async fn all_connected(&self) {
        while self.surroundings.tally.connected() < self.size {
            sleep(LOOK).await;
        }
    }

    /// A group's sockets are dropped at once, and no attempt of it reaches the network.
    pub fn lose(&self, group: usize) {
        self.change(group, |tower| {
            tower.is_up = false;
            tower.cut += 1;
        });
    }

    /// A group's network is back; [`Return::after`] counts from here.
    pub fn restore(&self, group: usize) {
        self.change(group, |tower| {
            tower.is_up = true;
            tower.outage += 1;
            tower.since = Instant::now();
        });
    }

    /// A group's sockets are dropped at once, and the network is there.
    pub fn cut(&self, group: usize) {
        self.change(group, |tower| {
            tower.cut += 1;
            tower.outage += 1;
            tower.since = Instant::now();
        });
    }

    /// Whoever of a group is dropped by the other side from now on is expected back.
    pub fn watch(&self, group: usize) {
        self.change(group, |tower| {
            tower.outage += 1;
            tower.since = Instant::now();
        });
    }

    /// What was counted so far.
    pub fn counts(&self) -> Counts {
        self.surroundings.tally.counts()
    }

    /// Every device's return after an outage, in no order.
    pub fn returns(&self) -> Vec<Return> {
        self.surroundings.tally.returns()
    }

    fn change(&self, group: usize, change: impl FnOnce(&mut Tower)) {
        if let Some(tower) = self.surroundings.towers.get(group) {
            tower.send_modify(change);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::broker::{Answer, Behaviour, Broker, Settings};
    use super::super::bystander::{self, Bystanders};
    use super::super::client::Target;
    use super::super::population::tests::population;
    use super::*;

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

    fn start(population: &Population) -> Fleet {
        Fleet::start(population, &[Handle::current()]).unwrap()
    }

    async fn within<F: Future>(limit: Duration, future: F) -> F::Output {
        tokio::time::timeout(limit, future).await.expect("too late")
    }

    const LIMIT: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn a_fleet_fills_loses_its_tower_and_comes_back() {
        let (broker, target) = broker().await;
        let fleet = start(&population(&target, 100));
        within(LIMIT, fleet.all_connected()).await;
        assert_eq!(broker.figures().connected, 100);

        fleet.lose(0);
        within(LIMIT, async {
            while fleet.counts().connected > 0 || broker.figures().connected > 0 {
                tokio::task::yield_now().await;
            }
        })
        .await;
        fleet.restore(0);
        within(LIMIT, fleet.all_connected()).await;

        let returns = fleet.returns();
        assert_eq!(returns.len(), 100);
        assert!(
            returns
                .iter()
                .all(|back| back.attempts == 1 && back.after < LIMIT),
            "{returns:?}"
        );
        let counts = fleet.counts();
        assert_eq!(
            (counts.arrivals, counts.admitted, counts.connected),
            (200, 200, 100)
        );
        assert_eq!(
            (counts.refused_in_all(), counts.gave_up(), counts.broken()),
            (0, 0, 0)
        );
        assert_eq!((counts.dropped, counts.returned), (0, 100));
    }

    #[tokio::test]
    async fn a_group_alone_is_hit() {
        let (broker, target) = broker().await;
        let population = Population {
            groups: vec![30, 70],
            ..population(&target, 100)
        };
        let hit = population.size_of_group(0);
        let fleet = start(&population);
        within(LIMIT, fleet.all_connected()).await;
        fleet.lose(0);
        within(LIMIT, async {
            while broker.figures().connected > 100 - hit {
                tokio::task::yield_now().await;
            }
        })
        .await;
        fleet.restore(0);
        within(LIMIT, fleet.all_connected()).await;
        assert_eq!((hit, fleet.returns().len()), (30, 30));
    }

    #[tokio::test]
    async fn a_cut_drops_all_and_counts_from_there() {
        let (_broker, target) = broker().await;
        let fleet = start(&population(&target, 50));
        within(LIMIT, fleet.all_connected()).await;
        fleet.cut(0);
        within(LIMIT, async {
            while fleet.counts().returned < 50 {
                tokio::task::yield_now().await;
            }
        })
        .await;
        // The pause of the population.
        let pause = Duration::from_millis(200);
        assert!(fleet.returns().iter().all(|back| back.after >= pause));
    }

    #[tokio::test]
    async fn a_fleet_without_power_waits_for_it() {
        let (broker, target) = broker().await;
        let fleet = start(&Population {
            boot: Some(Duration::from_millis(100)),
            ..population(&target, 50)
        });
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(broker.figures().connects, 0);
        fleet.restore(0);
        within(LIMIT, fleet.all_connected()).await;
        let slowest = fleet.returns().into_iter().map(|back| back.after).max().unwrap();
        assert!(
            (Duration::from_millis(80)..LIMIT).contains(&slowest),
            "{slowest:?}"
        );
    }

    #[tokio::test]
    async fn refused_devices_try_again_by_their_schedule_until_they_are_in() {
        let (broker, target) = broker().await;
        broker.behave(Behaviour {
            answer: Answer::Refuse(3),
            ..SERVED_AT_ONCE
        });
        let fleet = start(&population(&target, 10));
        within(LIMIT, async {
            while fleet.counts().refused_in_all() < 30 {
                tokio::task::yield_now().await;
            }
        })
        .await;
        assert_eq!(fleet.counts().refused.into_keys().collect::<Vec<_>>(), [3]);
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
        let fleet = start(&Population {
            patience: Duration::from_millis(50),
            ..population(&target, 5)
        });
        within(LIMIT, async {
            while fleet.counts().gave_up() < 10 {
                tokio::task::yield_now().await;
            }
        })
        .await;
        assert_eq!(fleet.counts().connected, 0);
    }

    fn pairs(count: usize) -> bystander::Settings {
        bystander::Settings {
            pairs: count,
            pause: Duration::from_millis(5),
            prefix: String::new(),
            credentials: None,
        }
    }

    #[tokio::test]
    async fn bystanders_measure_and_count_every_message() {
        let (broker, target) = broker().await;
        let bystanders = Bystanders::start(&target, pairs(3)).await.unwrap();
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
        let bystanders = Bystanders::start(&target, pairs(1)).await.unwrap();
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
