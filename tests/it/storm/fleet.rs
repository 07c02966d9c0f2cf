//! Devices that lost their connections together and come back, each by its own schedule, until they are in.

use super::wire::{Session, join};
use crate::rig::device::read_packet;
use seawall::reconnect::{Backoff, Schedule, from_seed};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// What the simplest of client libraries have: five seconds for everything up to the CONNACK.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// A storm under way. Who is in stays in; whose session ends comes back.
pub struct Fleet {
    devices: tokio::task::JoinSet<()>,
    size: usize,
    log: Arc<Log>,
}

/// When whoever knocked, and when somebody came in, since the beginning.
pub struct Log {
    from: Instant,
    inside: AtomicUsize,
    knocks: Mutex<Vec<Duration>>,
    joins: Mutex<Vec<Duration>>,
}

impl Fleet {
    /// All devices at once.
    pub fn start(target: SocketAddr, size: usize, schedule: Schedule) -> Self {
        let log = Arc::new(Log {
            from: Instant::now(),
            inside: AtomicUsize::new(0),
            knocks: Mutex::default(),
            joins: Mutex::default(),
        });
        let mut devices = tokio::task::JoinSet::new();
        for number in 0..size {
            devices.spawn(live(target, number, schedule, Arc::clone(&log)));
        }
        Self { devices, size, log }
    }

    pub fn inside(&self) -> usize {
        self.log.inside.load(Ordering::Relaxed)
    }

    pub fn elapsed(&self) -> Duration {
        self.log.from.elapsed()
    }

    /// Waits until all are in, or for so long since the beginning; says how many are and when it was.
    pub async fn gather(&self, limit: Duration) -> (usize, Duration) {
        while self.inside() < self.size && self.elapsed() < limit {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        (self.inside(), self.elapsed())
    }

    /// Everybody leaves.
    pub fn finish(self) -> Timeline {
        drop(self.devices);
        let take = |times: &Mutex<Vec<Duration>>| {
            let mut times: Vec<f64> = times.lock().unwrap().iter().map(Duration::as_secs_f64).collect();
            times.sort_by(f64::total_cmp);
            times
        };
        Timeline {
            knocks: take(&self.log.knocks),
            joins: take(&self.log.joins),
        }
    }
}

async fn live(target: SocketAddr, number: usize, schedule: Schedule, log: Arc<Log>) {
    let id = format!("device-{number}");
    let mut random = from_seed(4, &id);
    loop {
        let mut session = persist(target, &id, schedule, &mut random, &log).await;
        log.inside.fetch_add(1, Ordering::Relaxed);
        while read_packet(&mut session).await.is_ok() {}
        log.inside.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Tries until it is in.
async fn persist(
    target: SocketAddr,
    id: &str,
    schedule: Schedule,
    random: &mut fastrand::Rng,
    log: &Log,
) -> Session {
    let mut backoff = Backoff::new();
    loop {
        log.knocks.lock().unwrap().push(log.from.elapsed());
        if let Ok(Ok(session)) = tokio::time::timeout(PATIENCE, join(target, id)).await {
            log.joins.lock().unwrap().push(log.from.elapsed());
            return session;
        }
        tokio::time::sleep(backoff.next(&schedule, random)).await;
    }
}

/// Seconds since the beginning at which somebody knocked, and came in; in ascending order.
pub struct Timeline {
    pub knocks: Vec<f64>,
    pub joins: Vec<f64>,
}

/// Seconds of a storm that are judged together.
pub const STRETCH: f64 = 5.0;

impl Timeline {
    /// Where every stretch of five seconds begins, one each tenth of a second, in which at least five seconds' worth of
    /// devices knocked, and in time: a door that refuses nobody whose turn comes within [`PATIENCE`] would have had work
    /// for the broker in all of it. (Who knocks together in its last second can't be served in its first.)
    pub fn busy(&self, capacity: f64) -> Vec<f64> {
        let end = self.knocks.last().copied().unwrap_or(0.0);
        let worth = (STRETCH * capacity) as usize;
        let work = self.work(capacity, end + STRETCH);
        let ticks = (STRETCH / TICK) as usize;
        work.windows(ticks)
            .zip(0..)
            .filter(|(work, _)| work.iter().all(|has_work| *has_work))
            .map(|(_, tick)| f64::from(tick) * TICK)
            .filter(|from| between(&self.knocks, *from, from + STRETCH) >= worth)
            .collect()
    }

    /// How many came in between these seconds.
    pub fn joined(&self, from: f64, to: f64) -> f64 {
        between(&self.joins, from, to) as f64
    }

    /// For each tick whether somebody was there to be served.
    fn work(&self, capacity: f64, end: f64) -> Vec<bool> {
        let mut waiting = 0.0_f64;
        (0..=(end / TICK) as usize)
            .map(|tick| {
                let from = tick as f64 * TICK;
                let knocked = between(&self.knocks, from, from + TICK) as f64;
                waiting = (waiting + knocked).min(PATIENCE.as_secs_f64() * capacity);
                let served = waiting.min(capacity * TICK);
                waiting -= served;
                served >= capacity * TICK * 0.99
            })
            .collect()
    }

    /// For people: joins a second over the whole storm.
    pub fn joins_by_second(&self) -> Vec<usize> {
        let end = self.joins.last().copied().unwrap_or(0.0) as usize;
        (0..=end)
            .map(|second| between(&self.joins, second as f64, second as f64 + 1.0))
            .collect()
    }
}

const TICK: f64 = 0.1;

fn between(times: &[f64], from: f64, to: f64) -> usize {
    times.partition_point(|time| *time < to) - times.partition_point(|time| *time < from)
}
