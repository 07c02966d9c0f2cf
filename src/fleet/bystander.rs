//! Clients that are connected before the storm and have nothing to do with it: pairs of publisher and subscriber that
//! measure how late a message is. Established clients come first; these say whether they did.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use hdrhistogram::Histogram;
use mqttbytes::QoS;
use serde::Serialize;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{Instant, Interval, interval_at, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::client::{Client, Ended, Progress, Target};
use super::identity::{Credentials, Identity};
use super::packet::{self, FromBroker, Message};
use crate::mqtt::Version;

/// Longest latency told apart, in microseconds: a minute. What is later is counted as a minute.
const LONGEST_US: u64 = 60_000_000;
/// A pair that is not connected and subscribed by then will not be: the target is down.
const SET_UP_LIMIT: Duration = Duration::from_secs(30);
/// After the last message is sent, those on their way may take this long.
const LAST_MESSAGES: Duration = Duration::from_secs(5);
/// Seconds. Messages flow all the time, so that no ping is due.
const KEEP_ALIVE: u16 = 60;

/// Who they are.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Publisher and subscriber pairs.
    pub pairs: usize,
    /// How often each publishes (`QoS` 1).
    pub pause: Duration,
    /// Client ids and topics begin with this.
    pub prefix: String,
    /// What they log in with.
    pub credentials: Option<Credentials>,
}

/// Latencies in microseconds, from the moment a message was due to its arrival.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Latency {
    /// Messages measured.
    pub messages: u64,
    /// Half of them were faster.
    pub p50_us: u64,
    /// One in a hundred was slower.
    pub p99_us: u64,
    /// The slowest.
    pub max_us: u64,
}

/// What became of the messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Messages {
    /// Published, or due to be when the connection was gone.
    pub sent: u64,
    /// Arrived at their subscriber.
    pub received: u64,
}

impl Messages {
    /// Those that never arrived.
    pub fn lost(&self) -> u64 {
        self.sent.saturating_sub(self.received)
    }
}

/// The pairs could not be set up: the target's, or its broker's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BystanderError {
    /// No connection, or no answer to SUBSCRIBE.
    #[error("the bystanders could not connect and subscribe within {} s", SET_UP_LIMIT.as_secs())]
    NotConnected,
    /// No thread for them.
    #[error("no thread for the bystanders")]
    NoThread,
}

/// Running pairs, on a thread of their own so that nobody else's work is measured.
#[derive(Debug)]
pub struct Bystanders {
    record: Arc<Record>,
    stop: DropGuard,
    finished: oneshot::Receiver<()>,
}

impl Bystanders {
    /// Connects the pairs, and waits until all have subscribed.
    pub async fn start(target: &Target, settings: Settings) -> Result<Self, BystanderError> {
        let record = Arc::new(Record::new()?);
        let stop = CancellationToken::new();
        let (ready, is_ready) = oneshot::channel();
        let (finish, finished) = oneshot::channel();
        let run = run_pairs(target.clone(), settings, Arc::clone(&record), stop.clone(), ready);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|_| BystanderError::NoThread)?;
        thread::Builder::new()
            .name("bystanders".into())
            .spawn(move || {
                runtime.block_on(run);
                // Whoever waited for the end may be gone.
                let _ = finish.send(());
            })
            .map_err(|_| BystanderError::NoThread)?;
        match is_ready.await {
            Ok(()) => Ok(Self {
                record,
                stop: stop.drop_guard(),
                finished,
            }),
            Err(_) => Err(BystanderError::NotConnected),
        }
    }

    /// Latencies since the last call.
    pub fn take_second(&self) -> Latency {
        take(&mut self.record.lock().second)
    }

    /// Latencies since the last call; independent of [`Self::take_second`].
    pub fn take_phase(&self) -> Latency {
        take(&mut self.record.lock().phase)
    }

    /// Messages since the start.
    pub fn messages(&self) -> Messages {
        self.record.messages()
    }

    /// Stops to publish, waits for what is on its way, and closes.
    pub async fn stop(self) -> (Latency, Messages) {
        self.stop.disarm().cancel();
        // The thread may have ended before.
        let _ = self.finished.await;
        (take(&mut self.record.lock().phase), self.record.messages())
    }
}

#[derive(Debug)]
struct Record {
    histograms: Mutex<Histograms>,
    sent: AtomicU64,
    received: AtomicU64,
}

#[derive(Debug)]
struct Histograms {
    second: Histogram<u64>,
    phase: Histogram<u64>,
}

impl Record {
    fn new() -> Result<Self, BystanderError> {
        // Three digits are more than a trial on one machine can repeat.
        let empty = Histogram::new_with_bounds(1, LONGEST_US, 3).map_err(|_| BystanderError::NotConnected)?;
        Ok(Self {
            histograms: Mutex::new(Histograms {
                second: empty.clone(),
                phase: empty,
            }),
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
        })
    }

    fn received(&self, latency: Duration) {
        self.received.fetch_add(1, Ordering::Relaxed);
        let microseconds = u64::try_from(latency.as_micros()).unwrap_or(LONGEST_US);
        let mut histograms = self.lock();
        histograms.second.saturating_record(microseconds);
        histograms.phase.saturating_record(microseconds);
    }

    fn messages(&self) -> Messages {
        // Received first: a message between the two loads must not look as if it had arrived unsent.
        let received = self.received.load(Ordering::Relaxed);
        Messages {
            sent: self.sent.load(Ordering::Relaxed),
            received,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Histograms> {
        self.histograms.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn take(histogram: &mut Histogram<u64>) -> Latency {
    let latency = Latency {
        messages: histogram.len(),
        p50_us: histogram.value_at_quantile(0.5),
        p99_us: histogram.value_at_quantile(0.99),
        max_us: histogram.max(),
    };
    histogram.reset();
    latency
}

/// Drops `ready` unused when a pair can't be set up.
async fn run_pairs(
    target: Target,
    settings: Settings,
    record: Arc<Record>,
    stop: CancellationToken,
    ready: oneshot::Sender<()>,
) {
    let Settings { pairs, pause, .. } = settings;
    let setting_up = async {
        let mut tasks = JoinSet::new();
        for index in 0..pairs {
            let (target, settings) = (target.clone(), settings.clone());
            tasks.spawn(async move { Pair::set_up(&target, &settings, index).await });
        }
        tasks.join_all().await.into_iter().collect::<Result<Vec<_>, _>>()
    };
    let Ok(Ok(set_up)) = timeout(SET_UP_LIMIT, setting_up).await else {
        return;
    };
    if ready.send(()).is_err() {
        return;
    }
    let origin = Instant::now();
    let mut running = JoinSet::new();
    for (pair, index) in set_up.into_iter().zip(0_u32..) {
        // Staggered, so that the pairs do not measure one another.
        let share = f64::from(index) / pairs as f64;
        let ticks = interval_at(origin + pause.mul_f64(share), pause);
        running.spawn(pair.run(ticks, origin, Arc::clone(&record), stop.clone()));
    }
    running.join_all().await;
}

struct Pair {
    publisher: Client,
    subscriber: Client,
    topic: String,
    sent: u64,
    received: u64,
    /// Both connections are there. Afterwards what is due counts as sent and lost.
    whole: bool,
}

impl Pair {
    async fn set_up(target: &Target, settings: &Settings, index: usize) -> Result<Self, Ended> {
        let Settings {
            prefix, credentials, ..
        } = settings;
        let topic = format!("{prefix}bystander/{index}");
        let connect = async |role: &str, version| {
            let identity = Identity {
                client_id: format!("{prefix}bystander-{index}-{role}"),
                version,
                keep_alive: KEEP_ALIVE,
                persistent: false,
                credentials: credentials.clone().map(Arc::new),
                number: index,
            };
            Client::connect(target, None, &identity, &mut Progress::default())
                .await
                .map_err(|_| Ended::Broken)
        };
        let publisher = connect("publisher", Version::V3_1_1).await?;
        let mut subscriber = connect("subscriber", Version::V5).await?;
        let mut subscribe = BytesMut::new();
        packet::write_subscribe(1, &topic, QoS::AtLeastOnce, subscriber.version(), &mut subscribe)?;
        subscriber.send(&subscribe).await?;
        match subscriber.next().await? {
            FromBroker::Suback { codes } if codes == [1] => {}
            _ => return Err(Ended::NotMqtt),
        }
        Ok(Self {
            publisher,
            subscriber,
            topic,
            sent: 0,
            received: 0,
            whole: true,
        })
    }

    async fn run(
        mut self,
        mut ticks: Interval,
        origin: Instant,
        record: Arc<Record>,
        stop: CancellationToken,
    ) {
        loop {
            let done = tokio::select! {
                due = ticks.tick() => {
                    self.sent += 1;
                    record.sent.fetch_add(1, Ordering::Relaxed);
                    self.publish(due - origin).await
                }
                heard = self.hear(origin, &record), if self.whole => heard,
                () = stop.cancelled() => break,
            };
            self.whole &= done.is_ok();
        }
        let last_messages = async {
            while self.whole && self.received < self.sent {
                self.whole &= self.hear(origin, &record).await.is_ok();
            }
        };
        // What is not there by then is lost, and the counts say so.
        let _ = timeout(LAST_MESSAGES, last_messages).await;
        for client in [&mut self.publisher, &mut self.subscriber] {
            // The end of the trial either way.
            let _ = client.send(&packet::DISCONNECT).await;
        }
    }

    async fn publish(&mut self, due: Duration) -> Result<(), Ended> {
        if !self.whole {
            return Err(Ended::Broken);
        }
        let due_us = u64::try_from(due.as_micros()).unwrap_or(u64::MAX);
        let payload = Bytes::copy_from_slice(&due_us.to_be_bytes());
        let message = Message {
            topic: self.topic.clone(),
            payload,
            qos: QoS::AtLeastOnce,
        };
        // Identifiers are never in use for long enough to be met again.
        let id = u16::try_from(self.sent % 0xFFFF).unwrap_or(0) + 1;
        let mut out = BytesMut::new();
        packet::write_publish(&message, id, self.publisher.version(), &mut out)?;
        self.publisher.send(&out).await
    }

    /// One packet on either connection.
    async fn hear(&mut self, origin: Instant, record: &Record) -> Result<(), Ended> {
        tokio::select! {
            packet = self.subscriber.next() => match packet? {
                FromBroker::Publish { message, id } => {
                    let due = message.payload.as_ref().try_into().map_err(|_| Ended::NotMqtt)?;
                    let due = Duration::from_micros(u64::from_be_bytes(due));
                    record.received(origin.elapsed().saturating_sub(due));
                    self.received += 1;
                    self.acknowledge(&message, id).await
                }
                _ => Ok(()),
            },
            packet = self.publisher.next() => packet.map(drop),
        }
    }

    async fn acknowledge(&mut self, message: &Message, id: u16) -> Result<(), Ended> {
        if message.qos == QoS::AtMostOnce {
            return Ok(());
        }
        let mut out = BytesMut::new();
        packet::write_puback(id, &mut out);
        self.subscriber.send(&out).await
    }
}
