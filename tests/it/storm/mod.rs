//! The minute after an outage: a fleet in lockstep in front of a broker that can authenticate eighty a second.

use crate::rig::certificates::certificates;
use crate::rig::device::{read_packet, tls_settings};
use crate::rig::mosquitto::{PASSWORD, USERNAME};
use crate::rig::packet;
use crate::rig::{Connect, Daemon, Mosquitto, Scene, long, report};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// What the broker's authentication serves in a second: the iterations of its password's hash are chosen for it, so
/// that the storm is the same one on slower and faster machines.
const CAPACITY: f64 = 80.0;
/// Of PBKDF2, the first guess: 12 ms of Mosquitto's only thread a CONNECT.
const ITERATIONS: u32 = 30_000;
/// What the simplest of client libraries do: no back-off, no jitter, and no patience.
const RETRY: Duration = Duration::from_secs(5);
const CLIENT_PATIENCE: Duration = Duration::from_secs(5);
/// What `configuration` widens for the other scenarios.
const DEFAULT_LIMITS: [(&str, &str); 2] = [("admission.burst", "200"), ("admission.max_held", "10000")];
const PAIRS: usize = 20;
const PUBLISH_EVERY: Duration = Duration::from_millis(100);
/// How long after the last PUBLISH a message may still come before it counts as lost.
const STRAGGLERS: Duration = Duration::from_secs(2);
/// In units of devices / capacity.
const TIME_LIMIT: f64 = 1.6;
const LATENCY_LIMIT: Duration = Duration::from_millis(150);

#[test]
fn a_fleet_in_lockstep_comes_in_and_the_connected_do_not_notice() {
    let devices = if long() { 2000 } else { 1500 };
    let scene = Scene::alone();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .on_thread_start(give_way)
        .enable_all()
        .build()
        .unwrap();

    let (broker, iterations, before) = runtime.block_on(broker_of_the_capacity(&scene));
    let rate = format!("{:.1}", 0.8 * before);

    let settings = [
        ("admission.rate", rate.as_str()),
        ("admission.max_in_flight", "2"),
        ("admission.max_wait", "\"4s\""),
    ];
    let daemon = Daemon::start(
        &scene,
        broker.address(),
        &[&settings[..], &DEFAULT_LIMITS].concat(),
    );
    let most = Duration::from_secs_f64(2.0 * TIME_LIMIT * devices as f64 / before);
    let through_seawall = runtime.block_on(storm(daemon.address(), devices, most));
    drop(daemon);
    // On a machine that others use as well it may have been less than before.
    let capacity = before.min(runtime.block_on(capacity(broker.address())));
    let limit = Duration::from_secs_f64(TIME_LIMIT * devices as f64 / capacity);
    report(&format!(
        "capacity of the broker: {capacity:.1} CONNECTs a second; limit for {devices} devices: {limit:.1?}"
    ));
    report(&format!("through Seawall:            {through_seawall}"));
    drop(broker);

    let broker = Mosquitto::slow(&scene, iterations);
    let of_the_proxy = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let proxy = of_the_proxy.block_on(plain_tls_proxy(broker.address()));
    let through_plain_proxy = runtime.block_on(storm(proxy, devices, limit));
    report(&format!("through a plain TLS proxy:  {through_plain_proxy}"));

    assert_eq!(through_seawall.joined, devices, "devices in");
    assert!(through_seawall.took <= limit, "devices in after {limit:.1?}");
    assert_eq!(
        through_seawall.received, through_seawall.sent,
        "messages of the connected"
    );
    assert!(
        through_seawall.percentile(99.0) <= LATENCY_LIMIT,
        "p99 of the connected"
    );
    // How many come in differs from run to run; what it does to the connected does not.
    assert!(
        through_plain_proxy.percentile(50.0) > Duration::from_secs(1),
        "the storm was none: it needs no Seawall"
    );
}

/// A broker that serves about [`CAPACITY`], its iterations, and what it really serves. A machine that is busy while it is
/// measured misleads: what is far off is measured again.
async fn broker_of_the_capacity(scene: &Scene) -> (Mosquitto, u32, f64) {
    let mut iterations = ITERATIONS;
    for _ in 0..5 {
        let broker = Mosquitto::slow(scene, iterations);
        let measured = capacity(broker.address()).await;
        if (0.8..1.25).contains(&(measured / CAPACITY)) {
            return (broker, iterations, measured);
        }
        iterations = (f64::from(iterations) * measured / CAPACITY) as u32;
    }
    panic!("no number of iterations makes a broker of {CAPACITY} a second: the machine is too busy");
}

/// In the field every device has a processor of its own; here the fleet gives way to those whom it storms. (Of the
/// process id 0 Linux takes the calling thread.)
fn give_way() {
    rustix::process::setpriority_process(None, 5).unwrap();
}

/// How a storm went.
struct Report {
    devices: usize,
    joined: usize,
    took: Duration,
    sent: usize,
    received: usize,
    /// In ascending order.
    latencies: Vec<Duration>,
}

impl Report {
    fn percentile(&self, percent: f64) -> Duration {
        let place = (self.latencies.len() as f64 * percent / 100.0) as usize;
        self.latencies
            .get(place.min(self.latencies.len().saturating_sub(1)))
            .copied()
            .unwrap_or(Duration::MAX)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of {} devices in after {:.1?}; pairs: {} of {} messages, p50 {:.1?}, p99 {:.1?}, max {:.1?}",
            self.joined,
            self.devices,
            self.took,
            self.received,
            self.sent,
            self.percentile(50.0),
            self.percentile(99.0),
            self.percentile(100.0)
        )
    }
}

/// All devices at once, until they are in or the time is over, with connected pairs beside them.
async fn storm(target: SocketAddr, devices: usize, limit: Duration) -> Report {
    let pairs = Pairs::connect(target).await;
    let joined = Arc::new(AtomicUsize::new(0));
    let from = Instant::now();
    let mut fleet = tokio::task::JoinSet::new();
    for number in 0..devices {
        let joined = Arc::clone(&joined);
        fleet.spawn(async move {
            let _session = persist(target, number).await;
            joined.fetch_add(1, Ordering::Relaxed);
            std::future::pending::<()>().await;
        });
    }
    while joined.load(Ordering::Relaxed) < devices && from.elapsed() < limit {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let (joined, took) = (joined.load(Ordering::Relaxed), from.elapsed());
    let (sent, received, latencies) = pairs.finish();
    drop(fleet);
    Report {
        devices,
        joined,
        took,
        sent,
        received,
        latencies,
    }
}

type Session = TlsStream<TcpStream>;

/// One device: tries until it is in.
async fn persist(target: SocketAddr, number: usize) -> Session {
    let id = format!("device-{number}");
    loop {
        if let Ok(Ok(session)) = tokio::time::timeout(CLIENT_PATIENCE, join(target, &id)).await {
            return session;
        }
        tokio::time::sleep(RETRY).await;
    }
}

async fn join(target: SocketAddr, id: &str) -> io::Result<Session> {
    let tcp = TcpStream::connect(target).await?;
    tcp.set_nodelay(true)?;
    let connector = TlsConnector::from(Arc::clone(tls_settings()));
    let mut stream = connector
        .connect(ServerName::try_from("localhost").unwrap(), tcp)
        .await?;
    stream.write_all(&credentials(id).bytes()).await?;
    stream.flush().await?;
    match read_packet(&mut stream).await?.as_slice() {
        [0x20, 2, 0, 0] => Ok(stream),
        _ => Err(io::ErrorKind::ConnectionRefused.into()),
    }
}

fn credentials(id: &str) -> Connect<'_> {
    Connect {
        username: Some(USERNAME),
        password: Some(PASSWORD.as_bytes()),
        ..Connect::v311(id)
    }
}

/// CONNECTs a second, by four clients without TLS that come again and again.
async fn capacity(broker: SocketAddr) -> f64 {
    const WINDOW: Duration = Duration::from_secs(2);
    let from = Instant::now();
    let mut clients = tokio::task::JoinSet::new();
    for client in 0..4 {
        clients.spawn(async move {
            let mut count = 0;
            while from.elapsed() < WINDOW {
                let mut stream = TcpStream::connect(broker).await.unwrap();
                stream
                    .write_all(&credentials(&format!("probe-{client}")).bytes())
                    .await
                    .unwrap();
                assert_eq!(read_packet(&mut stream).await.unwrap(), packet::connack_v3(0));
                count += 1;
            }
            count
        });
    }
    let count: u32 = clients.join_all().await.into_iter().sum();
    f64::from(count) / from.elapsed().as_secs_f64()
}

/// Publishers and subscribers in session, on a thread of their own: what they see is not the fleet's own slowness.
struct Pairs {
    over: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<Vec<(usize, Vec<Duration>)>>,
}

impl Pairs {
    async fn connect(target: SocketAddr) -> Self {
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

    /// Sent, received, and the latencies of those received in ascending order.
    fn finish(self) -> (usize, usize, Vec<Duration>) {
        self.over.store(true, Ordering::Relaxed);
        let pairs = self.thread.join().unwrap();
        let sent = pairs.iter().map(|pair| pair.0).sum();
        let mut latencies: Vec<Duration> = pairs.into_iter().flat_map(|pair| pair.1).collect();
        latencies.sort();
        (sent, latencies.len(), latencies)
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

/// What stands in front of most brokers: ends TLS and copies, and knows nothing of MQTT.
async fn plain_tls_proxy(broker: SocketAddr) -> SocketAddr {
    let own = &certificates().ecdsa;
    let chain = vec![CertificateDer::from_pem_slice(own.chain.as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(own.key.as_bytes()).unwrap();
    let settings =
        rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(settings));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                client.set_nodelay(true)?;
                let mut client = acceptor.accept(client).await?;
                let mut server = TcpStream::connect(broker).await?;
                server.set_nodelay(true)?;
                tokio::io::copy_bidirectional(&mut client, &mut server).await
            });
        }
    });
    address
}
