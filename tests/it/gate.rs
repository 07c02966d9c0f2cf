//! What is decided before TLS: places, budgets and limits by address. A stranger is a ClientHello and nothing after it.

use crate::rig::device::{resuming_hello, tls_settings};
use crate::rig::http::Metrics;
use crate::rig::{Connect, Daemon, Device, PATIENCE, Scene, Stub, within};
use rustls::ClientConnection;
use rustls::pki_types::ServerName;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A ClientHello of TLS 1.3, the same for all.
fn hello() -> &'static [u8] {
    static ONCE: OnceLock<Vec<u8>> = OnceLock::new();
    ONCE.get_or_init(|| {
        let name = ServerName::try_from("localhost").unwrap();
        let mut client = ClientConnection::new(Arc::clone(tls_settings()), name).unwrap();
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        bytes
    })
}

/// One that has sent its ClientHello and nothing more.
async fn stranger(address: SocketAddr) -> TcpStream {
    let mut socket = TcpStream::connect(address).await.unwrap();
    socket.write_all(hello()).await.unwrap();
    socket
}

/// One that holds a place: the server has answered, and waits for it.
async fn holder(address: SocketAddr) -> TcpStream {
    let mut socket = stranger(address).await;
    let flight = within(PATIENCE, "the server's flight", socket.read(&mut [0; 4096])).await;
    assert!(flight.unwrap() > 100);
    socket
}

/// The end of a connection that got no byte of an answer.
async fn reset(mut socket: TcpStream, patience: Duration) {
    let end = within(patience, "the reset", socket.read(&mut [0; 64])).await;
    assert_eq!(
        end.map_err(|error| error.kind()),
        Err(io::ErrorKind::ConnectionReset)
    );
}

fn shed(metrics: &Metrics, reason: &str) -> f64 {
    metrics.sum("seawall_shed_total", &[("reason", reason)])
}

async fn at_rest(daemon: &Daemon) {
    daemon
        .metrics_until("an empty gate", |m| {
            m.sum("seawall_handshakes_in_flight", &[]) + m.sum("seawall_handshakes_waiting", &[]) == 0.0
                && m.sum("seawall_connections_open", &[]) == 0.0
        })
        .await;
}

#[tokio::test]
async fn a_silent_client_loses_its_place_to_one_who_waits() {
    let scene = Scene::alone();
    let broker = Stub::content().await;
    let daemon = Daemon::start(&scene, broker.address(), &[("handshake.max_in_flight", "1")]);
    let mut silent = holder(daemon.address()).await;
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let metrics = daemon.metrics().await;
    assert_eq!(
        metrics.sum("seawall_handshakes_in_flight", &[]),
        1.0,
        "nobody waits: it keeps it"
    );
    let from = Instant::now();
    let device = Device::join(&daemon, Connect::v311("patient")).await;
    assert!(from.elapsed() < Duration::from_secs(1), "{:?}", from.elapsed());
    let end = within(PATIENCE, "its end", silent.read(&mut [0; 4096])).await;
    assert!(matches!(end, Ok(0) | Err(_)), "{end:?}");
    let metrics = daemon.metrics().await;
    assert_eq!(
        metrics.sum("seawall_handshake_failures_total", &[("cause", "too-slow")]),
        1.0,
        "{metrics}"
    );
    drop(device);
    at_rest(&daemon).await;
}

#[tokio::test]
async fn who_waits_too_long_is_reset_and_the_newest_is_served() {
    let scene = Scene::alone();
    let broker = Stub::content().await;
    let daemon = Daemon::start(&scene, broker.address(), &[("handshake.max_in_flight", "1")]);
    let _silent = holder(daemon.address()).await;
    let oldest = stranger(daemon.address()).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    // Each of them holds the place for a second once it has it, so that the oldest never gets it.
    let mut crowd = Vec::new();
    for _ in 0..6 {
        crowd.push(stranger(daemon.address()).await);
    }
    let from = Instant::now();
    let device = Device::join(&daemon, Connect::v311("newest")).await;
    assert!(
        from.elapsed() < Duration::from_millis(1900),
        "{:?}",
        from.elapsed()
    );
    reset(oldest, Duration::from_secs(5)).await;
    daemon
        .metrics_until("one shed", |m| shed(m, "waited-too-long") >= 1.0)
        .await;
    drop((device, crowd));
    at_rest(&daemon).await;
}

#[tokio::test]
async fn past_the_crowd_the_oldest_is_reset() {
    let scene = Scene::alone();
    let broker = Stub::content().await;
    let settings = [("handshake.max_in_flight", "1"), ("handshake.max_waiting", "1")];
    let daemon = Daemon::start(&scene, broker.address(), &settings);
    let silent = holder(daemon.address()).await;
    let older = stranger(daemon.address()).await;
    let newer = stranger(daemon.address()).await;
    reset(older, Duration::from_millis(500)).await;
    daemon
        .metrics_until("one shed", |m| shed(m, "handshake-full") == 1.0)
        .await;
    drop((silent, newer));
    at_rest(&daemon).await;
}

#[tokio::test]
async fn a_budget_serves_its_rate_and_resets_the_rest_at_once() {
    const CLIENTS: usize = 100;
    let scene = Scene::alone();
    let broker = Stub::content().await;
    let settings = [("handshake.full_rate", "10"), ("handshake.full_burst", "5")];
    let daemon = Daemon::start(&scene, broker.address(), &settings);
    let from = Instant::now();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let address = daemon.address();
            tokio::spawn(async move {
                let served = Device::try_dial(address).await.is_ok();
                (served, from.elapsed())
            })
        })
        .collect();
    let (mut served, mut turned) = (Vec::new(), Vec::new());
    for client in clients {
        match client.await.unwrap() {
            (true, when) => served.push(when),
            (false, when) => turned.push(when),
        }
    }
    // 5 at once, and 10 a second for the 4 s that anybody waits.
    assert!((40..=46).contains(&served.len()), "{} served", served.len());
    turned.sort_unstable();
    let at_once = turned
        .iter()
        .filter(|when| **when < Duration::from_millis(1500))
        .count();
    assert!(
        at_once >= CLIENTS - 50,
        "{at_once} of {} turned away at once",
        turned.len()
    );
    // A reset is counted when it is out.
    let metrics = daemon
        .metrics_until("all sheds", |m| {
            m.sum("seawall_shed_total", &[]) == turned.len() as f64
        })
        .await;
    assert!(shed(&metrics, "handshake-rate") >= 50.0, "{metrics}");
    at_rest(&daemon).await;
}

#[tokio::test]
async fn who_leaves_while_waiting_costs_no_token() {
    const STRANGERS: usize = 20;
    let scene = Scene::new();
    let broker = Stub::content().await;
    let settings = [
        ("handshake.max_in_flight", "1"),
        ("handshake.full_rate", "0.0001"),
        ("handshake.full_burst", "21"),
    ];
    let daemon = Daemon::start(&scene, broker.address(), &settings);
    let silent = holder(daemon.address()).await;
    for _ in 0..STRANGERS {
        drop(stranger(daemon.address()).await);
    }
    daemon
        .metrics_until("all are seen to be gone", |m| {
            m.sum("seawall_handshake_failures_total", &[("cause", "gone")]) == STRANGERS as f64
        })
        .await;
    drop(silent);
    for _ in 0..STRANGERS {
        Device::join(&daemon, Connect::v311("device")).await.close().await;
    }
    assert!(
        Device::try_dial(daemon.address()).await.is_err(),
        "the first one's token is gone"
    );
}

#[tokio::test]
async fn one_address_has_so_many_connections() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let settings = [("admission.per_source.max_connections", "2")];
    let daemon = Daemon::start(&scene, broker.address(), &settings);
    let first = Device::join(&daemon, Connect::v311("first")).await;
    let _second = Device::join(&daemon, Connect::v311("second")).await;
    let third = TcpStream::connect(daemon.address()).await;
    if let Ok(third) = third {
        reset(third, PATIENCE).await;
    }
    let metrics = daemon
        .metrics_until("one shed", |m| shed(m, "source-connections") == 1.0)
        .await;
    assert_eq!(metrics.sum("seawall_sources", &[]), 1.0, "{metrics}");
    // From another address of the loopback.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
    let mut other = socket.connect(daemon.address()).await.unwrap();
    other.write_all(hello()).await.unwrap();
    let flight = within(PATIENCE, "the server's flight", other.read(&mut [0; 4096])).await;
    assert!(flight.unwrap() > 100);

    first.close().await;
    daemon
        .metrics_until("room for one", |m| {
            m.sum("seawall_connections_open", &[("phase", "relaying")]) == 1.0
        })
        .await;
    let _late = Device::join(&daemon, Connect::v311("late")).await;
}

#[tokio::test]
async fn one_address_connects_so_often() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let settings = [
        ("admission.per_source.rate", "0.5"),
        ("admission.per_source.burst", "3"),
    ];
    let daemon = Daemon::start(&scene, broker.address(), &settings);
    for _ in 0..3 {
        Device::join(&daemon, Connect::v311("device")).await.close().await;
    }
    assert!(Device::try_dial(daemon.address()).await.is_err());
    daemon
        .metrics_until("one shed", |m| shed(m, "source-rate") == 1.0)
        .await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let _device = Device::join(&daemon, Connect::v311("device")).await;
}

/// A ClientHello byte by byte, and with what comes after it in one segment.
#[tokio::test]
async fn a_hello_arrives_in_any_pieces() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let daemon = Daemon::start(&scene, broker.address(), &[]);
    let mut socket = TcpStream::connect(daemon.address()).await.unwrap();
    socket.set_nodelay(true).unwrap();
    for byte in hello() {
        socket.write_all(&[*byte]).await.unwrap();
        tokio::task::yield_now().await;
    }
    let flight = within(PATIENCE, "the server's flight", socket.read(&mut [0; 4096])).await;
    assert!(flight.unwrap() > 100);
    drop(socket);
    at_rest(&daemon).await;
}

/// As many who bring a ticket of ours as strangers, at a gate that serves a quarter of them in a second: first come, last
/// served where it is crowded, and those with a ticket before all others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resumers_are_served_before_strangers() {
    const DEVICES: usize = 400;
    const PLACES: usize = 4;
    // Each holds its place for so long: with four places 200 are served in a second.
    const WORK: Duration = Duration::from_millis(20);
    let scene = Scene::alone();
    let broker = Stub::content().await;
    let places = PLACES.to_string();
    let daemon = Daemon::start(&scene, broker.address(), &[("handshake.max_in_flight", &places)]);
    let resuming: &'static [u8] = resuming_hello(&daemon).await.leak();
    // All places are taken while they gather.
    let mut gathering = Vec::new();
    for _ in 0..PLACES {
        gathering.push(holder(daemon.address()).await);
    }
    let served = Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut devices = Vec::new();
    for number in 0..2 * DEVICES {
        let resumes = number % 2 == 0;
        let hello = if resumes { resuming } else { hello() };
        let mut socket = TcpStream::connect(daemon.address()).await.unwrap();
        socket.write_all(hello).await.unwrap();
        let served = Arc::clone(&served);
        devices.push(tokio::spawn(async move {
            if socket.read(&mut [0; 4096]).await.is_ok_and(|read| read > 100) {
                served.lock().unwrap().push(resumes);
                tokio::time::sleep(WORK).await;
            }
        }));
    }
    drop(gathering);
    for device in devices {
        within(PATIENCE, "an end for everybody", device).await.unwrap();
    }
    let served = served.lock().unwrap().clone();
    let resumers = served.iter().filter(|resumes| **resumes).count();
    let begin = served
        .iter()
        .enumerate()
        .filter(|(_, resumes)| !**resumes)
        .nth(DEVICES / 10);
    let before = begin.map_or(served.len(), |(position, _)| position);
    let through = served[..before].iter().filter(|resumes| **resumes).count();
    eprintln!(
        "{} served, of them {resumers} resumers, {through} before a tenth of the strangers",
        served.len()
    );
    assert!(through * 100 >= resumers * 95, "{through} of {resumers}");
    assert!(resumers > DEVICES / 4, "{resumers} resumers served");
    at_rest(&daemon).await;
}
