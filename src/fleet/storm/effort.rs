//! What the generator itself costs, and whether it was the bottleneck: a storm that its own generator slowed down says
//! nothing of the target.

use std::fs;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

/// A thread that worked for this share of a second had no room for more: the rest goes to interrupts and to the scheduler.
const FULL: f64 = 0.9;
/// Devices that come later than this do not come when their policy says: ten times what a loaded machine takes to wake a
/// thread.
const LATE: Duration = Duration::from_millis(100);
/// Over less than this a thread's share of the time is noise: its clock is read every 20 ms.
const SHORTEST: Duration = Duration::from_millis(250);

/// What the generator did in a stretch of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Effort {
    /// Processor time in seconds.
    pub cpu_s: f64,
    /// Share of the time for which its busiest thread worked, 0 to 1.
    pub busiest: f64,
    /// How much later than due its timers fired at worst, in milliseconds.
    pub late_ms: f64,
}

impl Effort {
    /// Whether the devices could not do what their policies say because the generator had no time for them.
    pub fn is_bottleneck(&self) -> bool {
        self.busiest >= FULL || self.late_ms >= LATE.as_secs_f64() * 1000.0
    }

    /// Together with that of another process, over the same time or over the time before.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self {
            cpu_s: self.cpu_s + other.cpu_s,
            busiest: self.busiest.max(other.busiest),
            late_ms: self.late_ms.max(other.late_ms),
        }
    }
}

/// Reads growing clocks as efforts.
#[derive(Debug)]
pub(super) struct Gauge(Mutex<Before>);

#[derive(Debug)]
struct Before {
    at: Instant,
    threads: Vec<Duration>,
    process: Duration,
}

impl Gauge {
    pub(super) fn new(threads: usize) -> Self {
        Self(Mutex::new(Before {
            at: Instant::now(),
            threads: vec![Duration::ZERO; threads],
            process: Duration::ZERO,
        }))
    }

    /// The effort since the last reading, without `busiest` where that was just now: `threads` and `process` are processor times since their starts; without
    /// `process` the effort is that of the threads.
    pub(super) fn read(&self, threads: &[Duration], process: Option<Duration>, late: Duration) -> Effort {
        let mut before = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let elapsed = now - before.at;
        let worked = threads
            .iter()
            .zip(&before.threads)
            .map(|(now, before)| now.saturating_sub(*before));
        let longest = worked.clone().max().unwrap_or_default();
        let busiest = if elapsed < SHORTEST {
            0.0
        } else {
            longest.as_secs_f64() / elapsed.as_secs_f64()
        };
        let cpu = match process {
            Some(process) => process.saturating_sub(before.process),
            None => worked.sum(),
        };
        *before = Before {
            at: now,
            threads: threads.to_vec(),
            process: process.unwrap_or_default(),
        };
        Effort {
            cpu_s: cpu.as_secs_f64(),
            busiest: busiest.min(1.0),
            late_ms: late.as_secs_f64() * 1000.0,
        }
    }
}

/// How busy the whole machine is, by `/proc/stat`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Machine {
    busy: u64,
    all: u64,
}

impl Machine {
    /// Share of the machine's processors that worked since the last call, 0 to 1; `None` where the system does not tell.
    pub(super) fn busy(&mut self) -> Option<f64> {
        let before = *self;
        *self = Self::of_stat(&fs::read_to_string("/proc/stat").ok()?)?;
        let all = self.all.saturating_sub(before.all);
        let busy = self.busy.saturating_sub(before.busy);
        (before.all > 0 && all > 0).then(|| busy as f64 / all as f64)
    }

    /// proc(5): `cpu user nice system idle iowait irq softirq steal …`
    fn of_stat(text: &str) -> Option<Self> {
        let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let ticks: Vec<u64> = line
            .split_ascii_whitespace()
            .take(8)
            .map_while(|field| field.parse().ok())
            .collect();
        let idle = ticks.get(3)? + ticks.get(4)?;
        let all = ticks.iter().sum();
        Some(Self {
            busy: all - idle,
            all,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn efforts_are_differences() {
        let gauge = Gauge::new(2);
        tokio::time::advance(SECOND).await;
        let first = gauge.read(&[SECOND / 2, SECOND / 4], None, Duration::ZERO);
        assert!(
            (first.cpu_s - 0.75).abs() < 1e-9 && (first.busiest - 0.5).abs() < 1e-9,
            "{first:?}"
        );
        assert!(!first.is_bottleneck());
        tokio::time::advance(SECOND).await;
        let second = gauge.read(&[SECOND / 2, SECOND / 4 + SECOND], Some(3 * SECOND), SECOND / 50);
        assert!(
            (second.cpu_s - 3.0).abs() < 1e-9 && second.is_bottleneck(),
            "{second:?}"
        );
    }

    #[test]
    fn a_late_generator_is_a_bottleneck() {
        let late = Effort {
            late_ms: 120.0,
            ..Effort::default()
        };
        assert!(late.is_bottleneck());
        assert!(Effort::default().with(late).is_bottleneck());
    }

    #[test]
    fn the_machine_is_read_from_proc_stat() {
        let machine = Machine::of_stat("cpu  100 5 50 800 20 1 4 20 0 0\ncpu0 1 2 3\n").unwrap();
        assert_eq!((machine.busy, machine.all), (180, 1000));
        assert!(Machine::of_stat("intr 0").is_none());
    }
}
