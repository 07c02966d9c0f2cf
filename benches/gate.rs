//! What the gate before TLS holds to: the latency of connected clients while it is full, the price of a shed, memory and
//! the admin page under a burst of connects.
//!
//! `cargo bench --bench gate` (needs mosquitto). `SEAWALL_BENCH_SECONDS` is how long the gate is kept full, 20 by default.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::float_cmp,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    unreachable_pub,
    missing_docs,
    dead_code,
    unused_imports,
    reason = "a bench ends by panicking, shows its figures, and uses a part of the tests' rig"
)]

#[path = "../tests/it/rig/mod.rs"]
mod rig;

use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rig::daemon::{Daemon, binary, configuration};
use rig::device::{resuming_hello, tls_settings};
use rig::{Connect, Device, Mosquitto, Scene, http, packet};
use rustls::ClientConnection;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

/// Strangers at a time: four times the places, so that somebody always waits.
const STRANGERS: usize = 256;
/// Between two messages of the pair whose latency is measured.
const PAUSE: Duration = Duration::from_millis(2);
/// Sheds that their price is measured with.
const SHEDS: usize = 20_480;
/// Who are shed come in a crowd: one at a time would measure what it costs to wake up.
const CROWD: usize = 64;
/// Connects of the burst.
const BURST: usize = 20_000;
/// Of which so many are kept open: what the descriptor limit of this process is good for.
const KEPT: usize = 19_000;
/// Devices with a ticket, and as many without, that arrive together.
const DEVICES: usize = 4_000;

fn main() {
    // `cargo test --benches` runs this as well; only `cargo bench` asks for figures.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(measure());
}

async fn measure() {
    let scene = Scene::alone();
    let broker = Mosquitto::start(&scene);
    let address = broker.address();
    latency(&scene, address).await;
    for (name, settings) in [
        (
            "shed for want of a token, ClientHello read [µs]",
            &[("handshake.full_rate", "0.001"), ("handshake.full_burst", "1")][..],
        ),
        (
            "shed for its address [µs]",
            &[("admission.per_source.max_connections", "1")][..],
        ),
    ] {
        println!("{name:<56} {:>8.1}", shed(&scene, address, settings).await);
    }
    burst(&scene, address).await;
    together(&scene, address).await;
}

/// A message through the proxy and back to a subscriber, alone and while the gate is full of strangers.
async fn latency(scene: &Scene, broker: SocketAddr) {
    let seconds = std::env::var("SEAWALL_BENCH_SECONDS").map_or(20, |text| text.parse().unwrap());
    let span = Duration::from_secs(seconds);
    let daemon = Daemon::start(scene, broker, &[]);
    let mut pair = Pair::join(&daemon).await;
    show("message in and out, alone [ms]", pair.exchange(span / 4).await);
    let storm = Storm::start(daemon.address(), STRANGERS);
    sleep(Duration::from_secs(1)).await;
    let (before, from, flights) = (daemon.processor_time(), Instant::now(), storm.flights());
    let under = pair.exchange(span).await;
    let (used, took) = (daemon.processor_time().saturating_sub(before), from.elapsed());
    let flights = storm.flights() - flights;
    let metrics = daemon.metrics().await;
    show("message in and out, gate full [ms]", under);
    println!(
        "  {:.0} handshakes a second, {:.1} µs of processor each, {:.0} % of a core; in flight {}, waiting {}",
        flights as f64 / took.as_secs_f64(),
        used.as_secs_f64() * 1e6 / flights as f64,
        100.0 * used.as_secs_f64() / took.as_secs_f64(),
        metrics.sum("seawall_handshakes_in_flight", &[]),
        metrics.sum("seawall_handshakes_waiting", &[]),
    );
    storm.stop();
}

fn show(name: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e3;
    println!(
        "{name:<56} p50 {:>7.2}  p99 {:>7.2}  max {:>7.2}  of {}",
        at(0.5),
        at(0.99),
        at(1.0),
        times.len()
    );
}

/// A publisher and its subscriber.
struct Pair {
    publisher: Device,
    subscriber: Device,
}

impl Pair {
    async fn join(daemon: &Daemon) -> Self {
        let mut subscriber = Device::join(daemon, Connect::v311("subscriber")).await;
        subscriber.send(&packet::subscribe(4, "gate", 0)).await;
        subscriber.packet().await;
        let publisher = Device::join(daemon, Connect::v311("publisher")).await;
        Self {
            publisher,
            subscriber,
        }
    }

    async fn exchange(&mut self, span: Duration) -> Vec<Duration> {
        let message = packet::publish(4, "gate", None, &[7; 64]);
        let mut times = Vec::new();
        let from = Instant::now();
        while from.elapsed() < span {
            let sent = Instant::now();
            self.publisher.send(&message).await;
            self.subscriber.packet_within(Duration::from_secs(60)).await;
            times.push(sent.elapsed());
            sleep(PAUSE).await;
        }
        times
    }
}

/// Strangers on a thread of their own, who cost themselves nothing: each sends the same ClientHello, waits for the
/// server's flight, leaves, and comes again.
struct Storm {
    stop: Arc<AtomicBool>,
    flights: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

impl Storm {
    fn start(address: SocketAddr, strangers: usize) -> Self {
        let (stop, flights) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&flights));
        let thread = std::thread::spawn(move || {
            // What is measured goes before what makes the noise.
            rustix::process::setpriority_process(None, 5).unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            let hello = hello();
            runtime.block_on(async {
                let strangers = (0..strangers).map(|_| {
                    let (stopped, counted, hello) =
                        (Arc::clone(&stopped), Arc::clone(&counted), hello.clone());
                    tokio::spawn(async move {
                        while !stopped.load(Ordering::Relaxed) {
                            if flight(address, &hello).await {
                                counted.fetch_add(1, Ordering::Relaxed);
                            }
                        }
                    })
                });
                for stranger in strangers.collect::<Vec<_>>() {
                    stranger.await.unwrap();
                }
            });
        });
        Self {
            stop,
            flights,
            thread,
        }
    }

    fn flights(&self) -> u64 {
        self.flights.load(Ordering::Relaxed)
    }

    fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
    }
}

/// Whether the server's flight came.
async fn flight(address: SocketAddr, hello: &[u8]) -> bool {
    let Ok(mut socket) = TcpStream::connect(address).await else {
        return false;
    };
    let mut answer = [0; 4096];
    let answered = async {
        socket.write_all(hello).await.ok()?;
        socket.read(&mut answer).await.ok().filter(|read| *read > 100)
    };
    timeout(Duration::from_secs(5), answered)
        .await
        .ok()
        .flatten()
        .is_some()
}

fn hello() -> Vec<u8> {
    let name = ServerName::try_from("localhost").unwrap();
    let mut client = ClientConnection::new(Arc::clone(tls_settings()), name).unwrap();
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes).unwrap();
    bytes
}

/// Microseconds of processor for each connection that is closed before TLS.
async fn shed(scene: &Scene, broker: SocketAddr, settings: &[(&str, &str)]) -> f64 {
    let daemon = Daemon::start(scene, broker, settings);
    let _first = Device::join(&daemon, Connect::v311("first")).await;
    let hello = hello();
    for _ in 0..100 {
        assert!(!flight(daemon.address(), &hello).await, "not shed");
    }
    let before = daemon.processor_time();
    let crowd = (0..CROWD).map(|_| {
        let (address, hello) = (daemon.address(), hello.clone());
        tokio::spawn(async move {
            for _ in 0..SHEDS / CROWD {
                flight(address, &hello).await;
            }
        })
    });
    for client in crowd.collect::<Vec<_>>() {
        client.await.unwrap();
    }
    let used = daemon.processor_time().saturating_sub(before);
    let metrics = daemon.metrics().await;
    assert!(
        metrics.sum("seawall_shed_total", &[]) >= SHEDS as f64,
        "{metrics}"
    );
    used.as_secs_f64() * 1e6 / SHEDS as f64
}

/// Connects as fast as they can be made, each with a ClientHello and no more, against 16 places.
async fn burst(scene: &Scene, broker: SocketAddr) {
    let settings = [
        ("handshake.max_in_flight", "16"),
        ("listen.max_connections", "100000"),
    ];
    let daemon = Daemon::start(scene, broker, &settings);
    drop(Device::join(&daemon, Connect::v311("first")).await);
    let baseline = daemon.resident();
    let (address, admin) = (daemon.address(), daemon.admin());
    let hello = hello();
    let crowd = std::thread::spawn(move || {
        // Blocking sockets: a connect is two system calls, and nothing is read.
        let mut crowd = std::collections::VecDeque::with_capacity(BURST);
        for _ in 0..BURST {
            if let Ok(mut socket) = std::net::TcpStream::connect(address) {
                let _ = std::io::Write::write_all(&mut socket, &hello);
                crowd.push_back(socket);
            }
            if crowd.len() > KEPT {
                crowd.pop_front();
            }
        }
        crowd
    });
    let (mut most, mut slowest) = (0, Duration::ZERO);
    let mut look = async || {
        let from = Instant::now();
        http::get(admin, "/metrics").await;
        slowest = slowest.max(from.elapsed());
        most = most.max(daemon.resident());
        sleep(Duration::from_millis(5)).await;
    };
    while !crowd.is_finished() {
        look().await;
    }
    let from = Instant::now();
    while from.elapsed() < Duration::from_secs(6) {
        look().await;
    }
    let metrics = daemon.metrics().await;
    println!(
        "{BURST} connects against 16 places: {:.1} MiB above the baseline, slowest /metrics {:.1} ms; shed: full {}, rate {}, \
         too long {}, connections {}",
        most.saturating_sub(baseline) as f64 / 1024.0 / 1024.0,
        slowest.as_secs_f64() * 1e3,
        metrics.sum("seawall_shed_total", &[("reason", "handshake-full")]),
        metrics.sum("seawall_shed_total", &[("reason", "handshake-rate")]),
        metrics.sum("seawall_shed_total", &[("reason", "waited-too-long")]),
        metrics.sum("seawall_shed_total", &[("reason", "max-connections")]),
    );
    drop(crowd.join().unwrap());
}

/// Resumers and strangers at once, at a gate that serves a quarter of them in a second: 16 places, each held for 8 ms.
async fn together(scene: &Scene, broker: SocketAddr) {
    let daemon = Daemon::start(scene, broker, &[("handshake.max_in_flight", "16")]);
    let resuming: &'static [u8] = resuming_hello(&daemon).await.leak();
    let strange: &'static [u8] = hello().leak();
    let mut gathering = Vec::new();
    for _ in 0..16 {
        let mut socket = TcpStream::connect(daemon.address()).await.unwrap();
        socket.write_all(strange).await.unwrap();
        assert!(socket.read(&mut [0; 4096]).await.unwrap() > 100);
        gathering.push(socket);
    }
    let order = Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut devices = Vec::new();
    for number in 0..2 * DEVICES {
        let resumes = number % 2 == 0;
        let Ok(mut socket) = TcpStream::connect(daemon.address()).await else {
            continue;
        };
        let hello = if resumes { resuming } else { strange };
        let _ = socket.write_all(hello).await;
        let order = Arc::clone(&order);
        devices.push(tokio::spawn(async move {
            if socket.read(&mut [0; 4096]).await.is_ok_and(|read| read > 100) {
                order.lock().unwrap().push(resumes);
                sleep(Duration::from_millis(8)).await;
            }
        }));
    }
    drop(gathering);
    for device in devices {
        device.await.unwrap();
    }
    let order = order.lock().unwrap();
    let resumers = order.iter().filter(|resumes| **resumes).count();
    let (mut through, mut strangers) = (0, 0);
    for resumes in order.iter() {
        through += usize::from(*resumes);
        strangers += usize::from(!*resumes);
        if strangers > DEVICES / 10 {
            break;
        }
    }
    println!(
        "{DEVICES} resumers and {DEVICES} strangers: {resumers} resumers served, {through} of them before a tenth of the \
         strangers; {} strangers in all",
        order.len() - resumers
    );
}
