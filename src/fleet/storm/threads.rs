//! The threads on which devices live, and whether they keep up with them.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::setpriority_process;
use rustix::thread::gettid;
use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::effort::{Effort, Gauge};

/// Between two pulses of a thread. One that comes late says that devices of that thread are late as well.
const PULSE: Duration = Duration::from_millis(20);

/// Threads with a runtime each: devices do not wander, and nobody is woken across threads. Dropping it ends them.
#[derive(Debug)]
pub(in crate::fleet) struct Threads {
    handles: Vec<Handle>,
    pulses: Vec<Arc<Pulse>>,
    gauge: Gauge,
    owns_process: bool,
    _stop: DropGuard,
}

/// What a thread says of itself.
#[derive(Debug, Default)]
pub(super) struct Pulse {
    /// Processor time since its start, in microseconds.
    cpu_us: AtomicU64,
    /// The latest pulse since somebody looked, in microseconds.
    late_us: AtomicU64,
}

impl Threads {
    /// `nice`: how far they give way to others, 0 not at all. `owns_process`: nothing but the generator runs in this
    /// process, so that all its processor time is the generator's.
    pub(in crate::fleet) fn start(count: usize, nice: i32, owns_process: bool) -> io::Result<Self> {
        let stop = CancellationToken::new();
        let mut handles = Vec::new();
        let mut pulses = Vec::new();
        for _ in 0..count.max(1) {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            handles.push(runtime.handle().clone());
            let pulse = Arc::new(Pulse::default());
            pulses.push(Arc::clone(&pulse));
            let stopped = stop.clone();
            thread::Builder::new().name("devices".into()).spawn(move || {
                if nice != 0 {
                    // Where it is not allowed a trial is only less exact.
                    let _ = setpriority_process(Some(gettid()), nice);
                }
                runtime.block_on(stopped.run_until_cancelled(pulse.beat()));
            })?;
        }
        Ok(Self {
            handles,
            gauge: Gauge::new(pulses.len()),
            pulses,
            owns_process,
            _stop: stop.drop_guard(),
        })
    }

    pub(in crate::fleet) fn handles(&self) -> &[Handle] {
        &self.handles
    }

    /// What they did since the last call.
    pub(super) fn effort(&self) -> Effort {
        let busy = self.pulses.iter().map(|pulse| {
            let microseconds = pulse.cpu_us.load(Ordering::Relaxed);
            Duration::from_micros(microseconds)
        });
        let late = self
            .pulses
            .iter()
            .map(|pulse| pulse.late_us.swap(0, Ordering::Relaxed));
        let process = self.owns_process.then(|| cpu_time(ClockId::ProcessCPUTime));
        self.gauge.read(
            &busy.collect::<Vec<_>>(),
            process,
            Duration::from_micros(late.max().unwrap_or_default()),
        )
    }
}

impl Pulse {
    /// For ever.
    async fn beat(&self) {
        let mut due = Instant::now();
        loop {
            due += PULSE;
            sleep_until(due).await;
            let now = Instant::now();
            let late = now.saturating_duration_since(due);
            self.late_us.fetch_max(
                u64::try_from(late.as_micros()).unwrap_or(u64::MAX),
                Ordering::Relaxed,
            );
            let cpu = cpu_time(ClockId::ThreadCPUTime);
            self.cpu_us.store(
                u64::try_from(cpu.as_micros()).unwrap_or(u64::MAX),
                Ordering::Relaxed,
            );
            due = due.max(now);
        }
    }
}

fn cpu_time(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    let nanoseconds = u32::try_from(time.tv_nsec).unwrap_or_default();
    Duration::new(seconds, nanoseconds)
}
