//! What daemon and broker show of themselves during a storm, a few times a second.

use crate::rig::http::{self, Metrics};
use crate::rig::{Daemon, Mosquitto};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

const EVERY: Duration = Duration::from_millis(100);

/// One look.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    pub at: Instant,
    /// Seconds for which the broker's only thread has had work: it ran, or waited for a processor.
    pub busy: f64,
    pub rate: f64,
    pub in_flight: f64,
    pub held: f64,
    /// 0 closed, 1 half-open, 2 open.
    pub breaker: f64,
}

/// Looks until it is finished, on a thread of its own.
pub struct Watch {
    over: Arc<AtomicBool>,
    broker: Arc<AtomicU32>,
    thread: std::thread::JoinHandle<Vec<Look>>,
}

impl Watch {
    pub fn start(daemon: &Daemon, broker: &Mosquitto) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&over);
        let broker = Arc::new(AtomicU32::new(broker.id()));
        let (admin, process) = (daemon.admin(), Arc::clone(&broker));
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            let mut looks = Vec::new();
            while !seen.load(Ordering::Relaxed) {
                looks.push(runtime.block_on(look(admin, process.load(Ordering::Relaxed))));
                std::thread::sleep(EVERY);
            }
            looks
        });
        Self { over, broker, thread }
    }

    /// The broker was started again.
    pub fn follow(&self, broker: &Mosquitto) {
        self.broker.store(broker.id(), Ordering::Relaxed);
    }

    pub fn finish(self) -> Vec<Look> {
        self.over.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

async fn look(admin: SocketAddr, broker: u32) -> Look {
    let metrics = Metrics::parse(&http::get(admin, "/metrics").await.body);
    Look {
        at: Instant::now(),
        busy: busy(broker).unwrap_or(0.0),
        rate: metrics.sum("seawall_admission_rate", &[]),
        in_flight: metrics.sum("seawall_upstream_in_flight", &[]),
        held: metrics.sum("seawall_connections_open", &[("phase", "held")]),
        breaker: metrics.sum("seawall_upstream_breaker", &[]),
    }
}

/// `/proc/PID/schedstat`: nanoseconds that it ran, and that it waited for a processor.
fn busy(process: u32) -> Option<f64> {
    let text = std::fs::read_to_string(format!("/proc/{process}/schedstat")).ok()?;
    let mut fields = text
        .split_whitespace()
        .map_while(|field| field.parse::<f64>().ok());
    Some((fields.next()? + fields.next()?) / 1e9)
}
