//! A device that survives its broker: `seawall::reconnect` on top of rumqttc.
//!
//! What it does, and why, in the order in which it matters:
//! - a **stable client id** and a **persistent session**: the broker keeps subscriptions and QoS 1 messages meanwhile;
//! - **QoS 1** both ways: received messages are acknowledged after they were worked on, sent ones are kept until their PUBACK,
//!   also when the broker has forgotten the session;
//! - a retained **Last Will** "offline" against a retained "online" at each connect, and "stopped" at a clean stop, whose
//!   DISCONNECT suppresses the Will;
//! - **keep-alive** below the idle time after which a NAT forgets a connection;
//! - **backoff** with full jitter, begun anew only after a connection that lasted, permanent refusals held at the cap;
//! - a **connect rate limit** for all clients of this host, through a lock file;
//! - an **audit** line for every attempt.
//!
//! ```text
//! cargo run --example resilient_client -- --broker 127.0.0.1:1883 --id pump-7
//! ```
//!
//! It speaks plain TCP so that the example needs no TLS library; `MqttOptions::set_transport` adds it.
#![allow(clippy::print_stdout, clippy::print_stderr, clippy::disallowed_methods)]

use std::collections::VecDeque;
use std::error::Error;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use rumqttc::{
    AsyncClient, ConnectReturnCode, ConnectionError, Event, EventLoop, LastWill, MqttOptions, Outgoing,
    Packet, Publish, QoS, Request, StateError, Subscribe,
};
use seawall::moment::Moment;
use seawall::reconnect::{
    Audit, Cause, HostLimit, Next, Policy, Rate, Reason, Reconnect, Record, Schedule, Settings, Wait,
    from_entropy,
};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::{interval, sleep, timeout};

/// Below the shortest idle time that is seen in mobile networks, a minute.
const KEEP_ALIVE: Duration = Duration::from_secs(45);
/// TCP, TLS and CONNACK together. Longer than a proxy holds a CONNECT for its turn: giving up earlier loses the place.
const PATIENCE_SECONDS: u64 = 15;
/// A broker closes at once on a DISCONNECT; one that does not holds up nobody for longer.
const LAST_READ: Duration = Duration::from_secs(2);
/// Between two connects of this host, whatever the number of its clients.
const SPACING: Duration = Duration::from_millis(250);
/// No host has so many clients that a turn is further away.
const LONGEST_TURN: Duration = Duration::from_mins(10);
/// Own messages without a PUBACK, wherever they are. The device holds its next ones back until some are acknowledged.
const MAX_UNACKNOWLEDGED: usize = 200;
/// rumqttc sends everything unacknowledged at once after a reconnect, and where two messages meet at one packet identifier
/// it forgets one: there must be more identifiers than messages.
const IDENTIFIERS: u16 = 1000;
/// Requests between the application and the network. More than a broker has in flight to one client (20 in Mosquitto),
/// so that neither side ever waits for the other while the other waits for it.
const QUEUE: usize = 100;

struct Options {
    broker: (String, u16),
    id: String,
    subscribe: String,
    publish: String,
    every: Duration,
    base: Duration,
    cap: Duration,
    audit: Option<PathBuf>,
    lock: PathBuf,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse(std::env::args().skip(1))?;
    let (client, events) = AsyncClient::new(mqtt_options(&options), QUEUE);
    let (inbox, messages) = mpsc::channel(QUEUE);
    let (stop, stopping) = watch::channel(false);
    let room = Semaphore::new(MAX_UNACKNOWLEDGED);
    let network = Network::new(&options, events, inbox, stopping)?;
    let status = status_topic(&options.id);
    tokio::select! {
        () = network.run(&room) => Ok(()),
        ended = application(&client, &options, messages, &room) => ended,
        ended = stop_when_asked(&client, &status, &stop) => ended,
    }
}

fn mqtt_options(options: &Options) -> MqttOptions {
    let (host, port) = options.broker.clone();
    let will = LastWill::new(status_topic(&options.id), "offline", QoS::AtLeastOnce, true);
    let mut mqtt = MqttOptions::new(&options.id, host, port);
    mqtt.set_clean_session(false)
        .set_inflight(IDENTIFIERS)
        .set_keep_alive(KEEP_ALIVE)
        .set_manual_acks(true)
        .set_last_will(will);
    mqtt
}

fn status_topic(id: &str) -> String {
    format!("status/{id}")
}

/// The application's part: a number every now and then, and whatever it is told.
async fn application(
    client: &AsyncClient,
    options: &Options,
    mut messages: mpsc::Receiver<Publish>,
    room: &Semaphore,
) -> Result<(), Box<dyn Error>> {
    let mut ticks = interval(options.every);
    let mut number = 0_u64;
    loop {
        tokio::select! {
            _ = ticks.tick(), if room.available_permits() > 0 => {
                // Given back with the PUBACK.
                room.acquire().await?.forget();
                number += 1;
                client.publish(&options.publish, QoS::AtLeastOnce, false, number.to_string()).await?;
            }
            Some(message) = messages.recv() => {
                println!("received {} {}", message.topic, String::from_utf8_lossy(&message.payload));
                // Only now: what was not worked on comes again.
                client.ack(&message).await?;
            }
        }
    }
}

/// SIGTERM or Ctrl-C. "stopped" replaces "online", and the DISCONNECT behind it suppresses the Will. The network ends
/// when that is out, or at once where there is no connection.
async fn stop_when_asked(
    client: &AsyncClient,
    status: &str,
    stop: &watch::Sender<bool>,
) -> Result<(), Box<dyn Error>> {
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        interrupt = tokio::signal::ctrl_c() => interrupt?,
        _ = terminate.recv() => {}
    }
    stop.send_replace(true);
    client.publish(status, QoS::AtLeastOnce, true, "stopped").await?;
    client.disconnect().await?;
    std::future::pending().await
}

/// The connection, and what is done when there is none.
struct Network {
    events: EventLoop,
    reconnect: Reconnect,
    host: HostLimit,
    audit: JsonLines,
    inbox: mpsc::Sender<Publish>,
    stopping: watch::Receiver<bool>,
    subscribe: String,
    status: String,
    clock: Instant,
}

impl Network {
    fn new(
        options: &Options,
        mut events: EventLoop,
        inbox: mpsc::Sender<Publish>,
        stopping: watch::Receiver<bool>,
    ) -> Result<Self, Box<dyn Error>> {
        events.network_options.set_connection_timeout(PATIENCE_SECONDS);
        let schedule = Schedule::new(Policy::FullJitter, options.base, 2.0, options.cap)?;
        Ok(Self {
            events,
            reconnect: Reconnect::new(&options.id, false, Settings::persistent(schedule), from_entropy()),
            host: HostLimit::new(Rate::spaced(SPACING), options.lock.clone(), LONGEST_TURN),
            audit: JsonLines::open(options.audit.as_ref())?,
            inbox,
            stopping,
            subscribe: options.subscribe.clone(),
            status: status_topic(&options.id),
            clock: Instant::now(),
        })
    }

    /// Ends when it was asked to.
    async fn run(mut self, room: &Semaphore) {
        let mut wait = self.reconnect.start(now(self.clock), &mut self.audit);
        while self.pause(wait.delay).await && self.turn().await {
            let next = match self.connect().await {
                Ok(()) => {
                    self.reconnect.connected(now(self.clock), &mut self.audit);
                    let Err(cause) = self.serve(room).await else {
                        return;
                    };
                    self.reconnect.lost(cause, now(self.clock), &mut self.audit)
                }
                Err(None) => return,
                Err(Some(cause)) => self
                    .reconnect
                    .failed(cause, None, now(self.clock), &mut self.audit),
            };
            match next {
                Next::Wait(next) => wait = next,
                // For requests alone; this is a persistent connection.
                Next::GiveUp { .. } => return,
            }
            report(&wait);
        }
    }

    /// Whether to go on.
    async fn pause(&mut self, delay: Duration) -> bool {
        tokio::select! {
            () = sleep(delay) => true,
            _ = self.stopping.wait_for(|stop| *stop) => false,
        }
    }

    /// Waits for this host's turn; whether to go on.
    async fn turn(&mut self) -> bool {
        let delay = self.host.reserve(SystemTime::now()).unwrap_or_else(|error| {
            eprintln!("no limit for this host: {error}");
            Duration::ZERO
        });
        if delay.is_zero() {
            return true;
        }
        self.reconnect
            .rate_limited(delay, now(self.clock), &mut self.audit);
        self.pause(delay).await
    }

    /// One attempt, up to the CONNACK. `Err(None)`: asked to stop meanwhile.
    async fn connect(&mut self) -> Result<(), Option<Cause>> {
        // rumqttc forgets what was not acknowledged when the broker has forgotten the session; QoS 1 does not.
        let kept = self.events.pending.clone();
        let event = tokio::select! {
            event = self.events.poll() => event.map_err(|error| Some(cause(&error)))?,
            _ = self.stopping.wait_for(|stop| *stop) => return Err(None),
        };
        let Event::Incoming(Packet::ConnAck(connack)) = event else {
            return Err(Some(Cause::Transport));
        };
        println!("connected, session present: {}", connack.session_present);
        let mut first = VecDeque::new();
        if !connack.session_present {
            first.push_back(Request::Subscribe(Subscribe::new(
                &self.subscribe,
                QoS::AtLeastOnce,
            )));
            self.events.pending = kept;
        }
        let mut online = Publish::new(&self.status, QoS::AtLeastOnce, "online");
        online.retain = true;
        first.push_back(Request::Publish(online));
        first.append(&mut self.events.pending);
        self.events.pending = first;
        Ok(())
    }

    /// Until the connection is gone, or its DISCONNECT is out.
    async fn serve(&mut self, room: &Semaphore) -> Result<(), Cause> {
        loop {
            match self.events.poll().await.map_err(|error| cause(&error))? {
                // Never full: see `QUEUE`.
                Event::Incoming(Packet::Publish(message)) => {
                    self.inbox.send(message).await.map_err(|_| Cause::Transport)?;
                }
                // The status is acknowledged as well, and has taken no room.
                Event::Incoming(Packet::PubAck(_)) if room.available_permits() < MAX_UNACKNOWLEDGED => {
                    room.add_permits(1);
                }
                Event::Outgoing(Outgoing::Disconnect) => break,
                _ => {}
            }
        }
        // A socket that is closed while there is something to read becomes a reset, which can overtake the DISCONNECT:
        // the broker is to close, and this side reads until it does.
        let closed = async { while self.events.poll().await.is_ok() {} };
        let _ = timeout(LAST_READ, closed).await;
        Ok(())
    }
}

fn now(clock: Instant) -> Moment {
    Moment::ZERO + clock.elapsed()
}

fn cause(error: &ConnectionError) -> Cause {
    match error {
        ConnectionError::NetworkTimeout
        | ConnectionError::FlushTimeout
        | ConnectionError::MqttState(StateError::AwaitPingResp) => Cause::Timeout,
        ConnectionError::ConnectionRefused(code) => Cause::Refused(match code {
            ConnectReturnCode::Success => 0,
            ConnectReturnCode::RefusedProtocolVersion => 1,
            ConnectReturnCode::BadClientId => 2,
            ConnectReturnCode::ServiceUnavailable => 3,
            ConnectReturnCode::BadUserNamePassword => 4,
            ConnectReturnCode::NotAuthorized => 5,
        }),
        _ => Cause::Transport,
    }
}

/// What needs somebody's hand is said aloud.
fn report(wait: &Wait) {
    println!("next attempt in {:.1} s", wait.delay.as_secs_f64());
    match wait.reason {
        Reason::Permanent(cause) => eprintln!("{cause}: somebody has to change something"),
        Reason::AtCap => eprintln!(
            "{} attempts have failed: trying rarely from now on",
            wait.attempts
        ),
        Reason::ColdStart | Reason::Schedule | Reason::RetryAfter => {}
    }
}

/// Audit records as JSON lines. Each is written at once: a device is switched off without warning.
struct JsonLines(Option<File>);

impl JsonLines {
    fn open(path: Option<&PathBuf>) -> std::io::Result<Self> {
        let open = |path| OpenOptions::new().append(true).create(true).open(path);
        Ok(Self(path.map(open).transpose()?))
    }
}

impl Audit for JsonLines {
    fn record(&mut self, record: &Record<'_>) {
        if let Some(file) = &mut self.0
            && let Err(error) = writeln!(file, "{}", record.to_json(SystemTime::now()))
        {
            eprintln!("no audit: {error}");
        }
    }
}

impl Options {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, Box<dyn Error>> {
        let mut options = Self {
            broker: ("127.0.0.1".to_owned(), 1883),
            id: "resilient-client".to_owned(),
            subscribe: String::new(),
            publish: String::new(),
            every: Duration::from_secs(10),
            // 10,000 devices that lose their broker together knock 2,000 times a second at first with this; see
            // docs/devices.md for how to size it.
            base: Duration::from_secs(5),
            cap: Duration::from_mins(10),
            audit: None,
            lock: std::env::temp_dir().join("mqtt-connect-turns"),
        };
        while let Some(flag) = arguments.next() {
            let value = arguments.next().ok_or_else(|| format!("{flag} needs a value"))?;
            let milliseconds = || value.parse().map(Duration::from_millis);
            match flag.as_str() {
                "--broker" => {
                    let (host, port) = value.rsplit_once(':').ok_or("--broker HOST:PORT")?;
                    options.broker = (host.to_owned(), port.parse()?);
                }
                "--id" => options.id = value,
                "--subscribe" => options.subscribe = value,
                "--publish" => options.publish = value,
                "--every-ms" => options.every = milliseconds()?,
                "--base-ms" => options.base = milliseconds()?,
                "--cap-ms" => options.cap = milliseconds()?,
                "--audit" => options.audit = Some(value.into()),
                "--lock" => options.lock = value.into(),
                _ => return Err(format!("unknown flag {flag}").into()),
            }
        }
        if options.subscribe.is_empty() {
            options.subscribe = format!("command/{}", options.id);
        }
        if options.publish.is_empty() {
            options.publish = format!("telemetry/{}", options.id);
        }
        Ok(options)
    }
}
