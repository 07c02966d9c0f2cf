//! Several replicas, one budget, a real Redis.

use crate::rig::device::{read_packet, settings_for};
use crate::rig::{Connect, Daemon, Device, Redis, Scene, Stub, long, report};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

const WINDOW: Duration = Duration::from_secs(5);
/// How long what is watched goes on past its first whole window.
const MARGIN: Duration = Duration::from_secs(2);
const SAMPLE: Duration = Duration::from_millis(100);

/// Clients that knock `rate` times a second at `daemon`, admitted or not, until it is dropped.
fn crowd(daemon: &Daemon, rate: f64, admitted: &Arc<AtomicUsize>) -> JoinSet<()> {
    // What the machine can't do at a time is no client that waits.
    let under_way = Arc::new(Semaphore::new(256));
    let settings = Arc::new(settings_for(&[&rustls::version::TLS12]));
    let (address, admitted) = (daemon.address(), Arc::clone(admitted));
    let mut crowd = JoinSet::new();
    crowd.spawn(async move {
        let mut clients = JoinSet::new();
        let from = Instant::now();
        let mut knocks = 0_u64;
        loop {
            tokio::time::sleep(Duration::from_millis(5)).await;
            while clients.try_join_next().is_some() {}
            let due = (from.elapsed().as_secs_f64() * rate) as u64;
            while knocks < due {
                knocks += 1;
                let Ok(place) = Arc::clone(&under_way).try_acquire_owned() else {
                    continue;
                };
                let (settings, admitted) = (Arc::clone(&settings), Arc::clone(&admitted));
                clients.spawn(async move {
                    if knock(address, settings, knocks).await == Some(0) {
                        admitted.fetch_add(1, Ordering::Relaxed);
                    }
                    drop(place);
                });
            }
        }
    });
    crowd
}

/// The code of the CONNACK.
async fn knock(address: SocketAddr, settings: Arc<ClientConfig>, number: u64) -> Option<u8> {
    let name = ServerName::try_from("localhost").unwrap();
    let tcp = TcpStream::connect(address).await.ok()?;
    let mut stream = TlsConnector::from(settings).connect(name, tcp).await.ok()?;
    let connect = Connect::v311(&format!("client-{number}")).bytes();
    stream.write_all(&connect).await.ok()?;
    let connack = read_packet(&mut stream).await.ok()?;
    let _ = stream.shutdown().await;
    connack.get(3).copied()
}

/// The broker's view: CONNECTs by time.
struct Ledger(Vec<(Duration, usize)>);

impl Ledger {
    async fn keep(from: Instant, broker: &Stub, until: Duration) -> Self {
        let mut samples = Vec::new();
        while from.elapsed() < until {
            samples.push((from.elapsed(), broker.visits()));
            tokio::time::sleep(SAMPLE).await;
        }
        Self(samples)
    }

    /// The least and the most a second over every [`WINDOW`] that begins at `since` or later.
    fn extremes(&self, since: Duration) -> (f64, f64) {
        let rates = self
            .0
            .iter()
            .filter(|(begin, _)| *begin >= since)
            .filter_map(|(begin, before)| {
                let (end, after) = self.0.iter().find(|(at, _)| *at >= *begin + WINDOW)?;
                Some((after - before) as f64 / end.abs_diff(*begin).as_secs_f64())
            });
        rates.fold((f64::INFINITY, 0.0), |(least, most), rate| {
            (least.min(rate), most.max(rate))
        })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_replicas_hold_one_rate_whoever_the_crowd_comes_to() {
    // A tenth of the crowd fits in. The machine's two cores bear the larger one only when they do nothing else.
    let rate = if long() { 300.0 } else { 60.0 };
    let scene = Scene::alone();
    let broker = Stub::content().await;
    let redis = Redis::start(&scene, &[]);
    let (store, budget) = (redis.address(), format!("\"redis://{}\"", redis.address()));
    let (rate_text, burst) = (rate.to_string(), (rate / 10.0).to_string());
    let settings = [
        ("admission.rate", rate_text.as_str()),
        ("admission.burst", burst.as_str()),
        ("shared_budget.redis", budget.as_str()),
        ("shared_budget.replicas", "3"),
    ];
    let replicas: Vec<Daemon> = (0..3)
        .map(|number| Daemon::start_as(&format!("replica-{number}"), &scene, broker.address(), &settings))
        .collect();
    for daemon in &replicas {
        daemon
            .metrics_until("three replicas", |metrics| {
                metrics.sum("seawall_shared_budget_replicas", &[]) == 3.0
            })
            .await;
    }

    let admitted: Vec<_> = (0..3).map(|_| Arc::new(AtomicUsize::new(0))).collect();
    let from = Instant::now();
    let crowds: Vec<_> = [0.8, 0.1, 0.1]
        .iter()
        .zip(replicas.iter().zip(&admitted))
        .map(|(part, (daemon, admitted))| crowd(daemon, 10.0 * rate * part, admitted))
        .collect();

    // The shares follow the crowd within a second or two.
    let settled = Duration::from_secs(3);
    let ledger = Ledger::keep(from, &broker, settled + WINDOW + MARGIN).await;
    let (least, most) = ledger.extremes(settled);
    let by_replica: Vec<f64> = admitted
        .iter()
        .map(|admitted| admitted.load(Ordering::Relaxed) as f64 / from.elapsed().as_secs_f64() / rate)
        .collect();
    report(&format!(
        "{least:.1} to {most:.1} a second of {rate} in every {WINDOW:?}; by replica {by_replica:.2?} of the rate"
    ));
    assert!(
        least >= 0.95 * rate && most <= 1.05 * rate,
        "{least:.1} to {most:.1}"
    );
    for part in &by_replica[1..] {
        assert!(
            (0.07..=0.2).contains(part),
            "a tenth of the crowd: {by_replica:.2?}"
        );
    }

    let killed = from.elapsed();
    redis.signal(rustix::process::Signal::KILL);
    let silent = Ledger::keep(from, &broker, killed + WINDOW + MARGIN).await;
    drop(redis);
    let redis = Redis::again(&scene, store);
    let back = from.elapsed();
    let after = Ledger::keep(from, &broker, back + WINDOW + MARGIN).await;
    let whole = Ledger([silent.0, after.0].concat());
    let (least, most) = whole.extremes(killed);
    report(&format!(
        "Redis killed and started anew, empty: {least:.1} to {most:.1} a second"
    ));
    assert!(
        least >= 0.7 * rate && most <= 1.2 * rate,
        "{least:.1} to {most:.1}"
    );
    for daemon in &replicas {
        daemon
            .metrics_until("all are back", |metrics| {
                metrics.sum("seawall_shared_budget_replicas", &[]) == 3.0
                    && metrics.sum("seawall_shared_budget_staleness_seconds", &[]) < 1.0
            })
            .await;
        assert!(
            daemon.stderr().contains("goes on with its last share"),
            "{}",
            daemon.stderr()
        );
    }
    drop((crowds, redis));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_alone_has_the_whole_and_one_that_leaves_gives_its_part_back() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let redis = Redis::start(&scene, &["--requirepass", "correct-horse"]);
    let budget = format!("\"redis://:correct-horse@{}\"", redis.address());
    let settings = [("shared_budget.redis", budget.as_str())];
    let first = Daemon::start_as("first", &scene, broker.address(), &settings);
    first.counts("seawall_shared_budget_share", &[], 1.0).await;
    let second = Daemon::start_as("second", &scene, broker.address(), &settings);
    let half = |metrics: &crate::rig::http::Metrics| {
        (metrics.sum("seawall_shared_budget_share", &[]) - 0.5).abs() < 0.01
    };
    first.metrics_until("half for the first", half).await;
    second.metrics_until("half for the second", half).await;

    second.signal(rustix::process::Signal::TERM);
    // Well before the lease of one that says nothing would end.
    let from = Instant::now();
    first.counts("seawall_shared_budget_share", &[], 1.0).await;
    assert!(from.elapsed() < Duration::from_secs(2), "{:?}", from.elapsed());
    for daemon in [&first, &second] {
        assert!(!daemon.stderr().contains("correct-horse"), "{}", daemon.stderr());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_store_is_reached_over_tls() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let (ca, chain, key) = (
        scene.text_path("ca.pem"),
        scene.text_path("ecdsa.pem"),
        scene.text_path("ecdsa.key"),
    );
    let tls = [
        "--tls-port",
        "--tls-cert-file",
        &chain,
        "--tls-key-file",
        &key,
        "--tls-ca-cert-file",
        &ca,
        "--tls-auth-clients",
        "no",
    ];
    let redis = Redis::start(&scene, &tls);
    let budget = format!("\"rediss://localhost:{}\"", redis.address().port());
    let authority = format!("{ca:?}");
    let trusted = [
        ("shared_budget.redis", budget.as_str()),
        ("shared_budget.ca", authority.as_str()),
    ];
    let daemon = Daemon::start_as("trusted", &scene, broker.address(), &trusted);
    daemon
        .metrics_until("an answer", |metrics| {
            metrics.sum("seawall_shared_budget_requests_total", &[("result", "answered")]) > 0.0
        })
        .await;

    let stranger = Daemon::start_as("stranger", &scene, broker.address(), &trusted[..1]);
    let metrics = stranger.metrics().await;
    assert_eq!(
        metrics.sum("seawall_shared_budget_requests_total", &[("result", "answered")]),
        0.0
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_store_a_replica_starts_with_its_guess_and_serves() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let nowhere = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let budget = format!("\"redis://{}\"", nowhere.local_addr().unwrap());
    drop(nowhere);
    let settings = [
        ("admission.rate", "90"),
        ("shared_budget.redis", budget.as_str()),
        ("shared_budget.replicas", "3"),
    ];
    let daemon = Daemon::start_as("alone", &scene, broker.address(), &settings);
    daemon.counts("seawall_admission_rate", &[], 30.0).await;
    let _session = Device::join(&daemon, Connect::v311("served")).await;
}

/// The script, as the daemon runs it: `(replica, demand, share it goes by)` to the share that it gets.
async fn ask(
    connection: &mut redis::aio::MultiplexedConnection,
    replica: usize,
    demand: f64,
    claim: f64,
    lease: Duration,
    settling: Duration,
) -> f64 {
    let script = redis::Script::new(include_str!("../../src/budget/share.lua"));
    let mut invocation = script.key("table");
    invocation
        .arg(format!("replica-{replica}"))
        .arg(demand)
        .arg(claim)
        .arg(0.0);
    invocation
        .arg(lease.as_millis() as u64)
        .arg(settling.as_millis() as u64)
        .arg(0.1);
    let answer: Vec<String> = invocation.invoke_async(connection).await.unwrap();
    answer[0].parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_store_never_gives_out_more_than_the_whole() {
    const REPLICAS: usize = 12;
    let scene = Scene::new();
    let redis = Redis::start(&scene, &[]);
    let client = redis::Client::open(format!("redis://{}", redis.address())).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let (lease, none) = (Duration::from_mins(1), Duration::ZERO);
    let mut random = fastrand::Rng::with_seed(7);
    let mut held = [0.0; REPLICAS];
    for step in 0..3_000 {
        let replica = random.usize(..REPLICAS);
        // Half of them are idle at any time; what they claim is not always what they were given.
        let demand = if random.bool() { 0.0 } else { random.f64() * 1e4 };
        held[replica] = ask(&mut connection, replica, demand, random.f64(), lease, none).await;
        let sum: f64 = held.iter().sum();
        assert!(sum <= 1.0 + 1e-6, "{sum} after {step} questions: {held:?}");
    }
    let demands = [900.0, 300.0, 100.0, 0.0];
    for _round in 0..3 {
        for (replica, share) in held.iter_mut().enumerate() {
            let demand = demands.get(replica).copied().unwrap_or(0.0);
            *share = ask(&mut connection, replica, demand, *share, lease, none).await;
        }
    }
    let even = 0.1 / REPLICAS as f64;
    for (share, demand) in held.iter().zip(demands) {
        let expected = even + 0.9 * demand / 1300.0;
        assert!((share - expected).abs() < 1e-6, "{share} of {expected}: {held:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_wipe_nobody_gets_more_than_it_brings_along() {
    let scene = Scene::new();
    let redis = Redis::start(&scene, &[]);
    let client = redis::Client::open(format!("redis://{}", redis.address())).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let lease = Duration::from_mins(1);
    for (replica, claim) in [0.2, 0.5, 0.3].into_iter().enumerate() {
        let share = ask(&mut connection, replica, 1000.0, claim, lease, lease).await;
        assert!(share <= claim, "{share} of {claim}");
        assert!(
            replica > 0 || (share - claim).abs() < 1e-6,
            "the first keeps its own: {share}"
        );
    }
}
