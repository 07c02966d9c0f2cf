//! Connected clients, whom the storm must not concern.

use super::wire::{Session, join};
use crate::rig::device::read_packet;
use crate::rig::packet;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;

const PAIRS: usize = 20;
const PUBLISH_EVERY: Duration = Duration::from_millis(100);
/// How long after the last PUBLISH a message may still come before it counts as lost.
const STRAGGLERS: Duration = Duration::from_secs(2);

/// Publishers and subscribers in session, on a thread of their own: what they see is not the fleet's own slowness.
pub struct Pairs {
    over: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<Vec<(usize, Vec<Duration>)>>,
}

impl Pairs {
    pub async fn connect(target: SocketAddr) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&over);
        let (ready, connected) = tokio::sync::oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async move {
                let mut pairs = Vec::new();
                for number in 0..PAIRS {
                    pairs.push(Pair::connect(target, number).await);
                }
                ready.send(()).unwrap();
                let mut running = tokio::task::JoinSet::new();
                for pair in pairs {
                    running.spawn(pair.exchange(Arc::clone(&seen)));
                }
                running.join_all().await
            })
        });
        connected.await.expect("the pairs did not come in");
        Self { over, thread }
    }

    pub fn finish(self) -> Messages {
        self.over.store(true, Ordering::Relaxed);
        let pairs = self.thread.join().unwrap();
        let sent = pairs.iter().map(|pair| pair.0).sum();
        let mut latencies: Vec<Duration> = pairs.into_iter().flat_map(|pair| pair.1).collect();
        latencies.sort();
        Messages { sent, latencies }
    }
}

/// What became of their messages.
pub struct Messages {
    pub sent: usize,
    /// Of those received, in ascending order.
    latencies: Vec<Duration>,
}

impl Messages {
    pub fn received(&self) -> usize {
        self.latencies.len()
    }

    /// Of those sent: what was lost is late for ever.
    pub fn percentile(&self, percent: f64) -> Duration {
        let place = (self.sent as f64 * percent / 100.0) as usize;
        self.latencies
            .get(place.min(self.sent.saturating_sub(1)))
            .copied()
            .unwrap_or(Duration::MAX)
    }
}

impl fmt::Display for Messages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of {} messages, p50 {}, p99 {}, max {}",
            self.received(),
            self.sent,
            shown(self.percentile(50.0)),
            shown(self.percentile(99.0)),
            shown(self.percentile(100.0))
        )
    }
}

fn shown(latency: Duration) -> String {
    if latency == Duration::MAX {
        "lost".to_owned()
    } else {
        format!("{latency:.1?}")
    }
}

struct Pair {
    topic: String,
    publisher: Session,
    subscriber: Session,
}

impl Pair {
    async fn connect(target: SocketAddr, number: usize) -> Self {
        let topic = format!("pair/{number}");
        let mut subscriber = join(target, &format!("subscriber-{number}")).await.unwrap();
        subscriber
            .write_all(&packet::subscribe(4, &topic, 0))
            .await
            .unwrap();
        subscriber.flush().await.unwrap();
        assert_eq!(read_packet(&mut subscriber).await.unwrap()[0], 0x90, "no SUBACK");
        let publisher = join(target, &format!("publisher-{number}")).await.unwrap();
        Self {
            topic,
            publisher,
            subscriber,
        }
    }

    /// Publishes until it is over: how many messages were sent, and the latency of each that came.
    async fn exchange(self, over: Arc<AtomicBool>) -> (usize, Vec<Duration>) {
        let Self {
            topic,
            mut publisher,
            mut subscriber,
        } = self;
        let epoch = Instant::now();
        let (sent_all, all_sent) = tokio::sync::watch::channel(false);
        let publishing = async {
            let mut sent = 0;
            let mut clock = tokio::time::interval(PUBLISH_EVERY);
            while !over.load(Ordering::Relaxed) {
                clock.tick().await;
                let now = (epoch.elapsed().as_micros() as u64).to_be_bytes();
                sent += 1;
                let message = packet::publish(4, &topic, None, &now);
                if publisher.write_all(&message).await.is_err() || publisher.flush().await.is_err() {
                    break;
                }
            }
            sent_all.send(true).unwrap();
            sent
        };
        let receiving = async {
            let mut latencies = Vec::new();
            let mut all_sent = all_sent.clone();
            let lost = async {
                all_sent.wait_for(|all| *all).await.unwrap();
                tokio::time::sleep(STRAGGLERS).await;
            };
            tokio::pin!(lost);
            loop {
                tokio::select! {
                    message = read_packet(&mut subscriber) => {
                        let Ok(message) = message else { break };
                        let (_, _, payload) = packet::published(4, &message);
                        let sent = Duration::from_micros(u64::from_be_bytes(payload.try_into().unwrap()));
                        latencies.push(epoch.elapsed().saturating_sub(sent));
                    }
                    () = &mut lost => break,
                }
            }
            latencies
        };
        tokio::join!(publishing, receiving)
    }
}
