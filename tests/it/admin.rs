//! What an operator scrapes.

use crate::rig::stub::nobody;
use crate::rig::{Connect, Daemon, Device, Scene, Stub, eventually, http, long, report, within};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// The contract's names, as far as they are built.
const NAMES: [&str; 20] = [
    "seawall_connections_total",
    "seawall_connections_open",
    "seawall_shed_total",
    "seawall_handshakes_total",
    "seawall_handshake_seconds_count",
    "seawall_connects_total",
    "seawall_refused_total",
    "seawall_hold_seconds_count",
    "seawall_admission_rate",
    "seawall_admission_tokens",
    "seawall_upstream_in_flight",
    "seawall_connack_seconds_count",
    "seawall_broker_connacks_total",
    "seawall_upstream_up",
    "seawall_relay_bytes_total",
    "seawall_closed_total",
    "seawall_build_info",
    "process_open_fds",
    "process_resident_memory_bytes",
    "process_cpu_seconds_total",
];

#[tokio::test]
async fn metrics_have_the_names_of_the_contract() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let server = broker.address().to_string();
    let daemon = Daemon::start(&scene, broker.address(), &[]);
    Device::join(&daemon, Connect::v5("one")).await.close().await;
    let metrics = daemon
        .counts("seawall_closed_total", &[("side", "client")], 1.0)
        .await;
    for name in NAMES {
        assert!(
            metrics.has(name, &[]),
            "there is no {name} in {:?}",
            metrics.names()
        );
    }
    for phase in ["handshake", "connect", "held", "dialing", "relaying", "refusing"] {
        assert!(
            metrics.has("seawall_connections_open", &[("phase", phase)]),
            "phase {phase}"
        );
    }
    let life = [
        ("seawall_connections_total", vec![]),
        (
            "seawall_handshakes_total",
            vec![("kind", "full"), ("version", "1.3")],
        ),
        (
            "seawall_connects_total",
            vec![("decision", "admitted"), ("protocol", "5"), ("lane", "default")],
        ),
        (
            "seawall_broker_connacks_total",
            vec![("server", server.as_str()), ("code", "0")],
        ),
        ("seawall_connack_seconds_count", vec![("server", server.as_str())]),
        (
            "seawall_closed_total",
            vec![("side", "client"), ("phase", "relaying")],
        ),
        ("seawall_upstream_up", vec![("server", server.as_str())]),
        ("seawall_build_info", vec![]),
    ];
    for (name, labels) in life {
        assert_eq!(metrics.sum(name, &labels), 1.0, "{name} {labels:?} in\n{metrics}");
    }
}

#[tokio::test]
async fn ids_and_addresses_are_no_labels() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let daemon = Daemon::start(&scene, broker.address(), &[]);
    Device::join(&daemon, Connect::v311("warm-up"))
        .await
        .close()
        .await;
    daemon.counts("seawall_closed_total", &[], 1.0).await;
    let before = daemon.metrics().await.series();
    for number in 0..100 {
        let id = format!("label-{number}");
        Device::join(&daemon, Connect::v311(&id)).await.close().await;
    }
    daemon.counts("seawall_closed_total", &[], 101.0).await;
    assert_eq!(daemon.metrics().await.series(), before);
    assert!(
        !http::get(daemon.admin(), "/metrics")
            .await
            .body
            .contains("label-")
    );
}

#[tokio::test]
async fn health_readiness_and_status() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let daemon = Daemon::start(&scene, broker.address(), &[]);
    let _session = Device::join(&daemon, Connect::v311("one")).await;
    for path in ["/healthz", "/readyz"] {
        assert_eq!(http::get(daemon.admin(), path).await.status, 200, "{path}");
    }
    let status = http::get(daemon.admin(), "/status").await;
    assert_eq!(status.status, 200);
    assert!(
        status
            .head
            .to_ascii_lowercase()
            .contains("content-type: application/json"),
        "{}",
        status.head
    );
    let parsed: serde_json::Value = serde_json::from_str(&status.body).expect("/status is JSON");
    assert!(parsed.is_object());
    let metrics = http::get(daemon.admin(), "/metrics").await;
    assert!(
        metrics
            .head
            .to_ascii_lowercase()
            .contains("content-type: text/plain"),
        "{}",
        metrics.head
    );
    assert_eq!(http::get(daemon.admin(), "/nothing-here").await.status, 404);
    let post = format!(
        "POST /healthz HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n",
        daemon.admin()
    );
    assert_eq!(http::request(daemon.admin(), &post).await.status, 405);
}

#[tokio::test]
async fn not_ready_while_no_broker_is_usable() {
    let scene = Scene::new();
    let daemon = Daemon::start(&scene, nobody().await, &[]);
    let mut device = Device::dial(&daemon).await;
    device.send(&Connect::v311("alone").bytes()).await;
    assert_eq!(device.packet().await[3], 3);
    assert_ne!(http::get(daemon.admin(), "/readyz").await.status, 200);
    assert_eq!(http::get(daemon.admin(), "/healthz").await.status, 200);
    daemon.counts("seawall_upstream_up", &[], 0.0).await;
}

#[tokio::test]
async fn ready_again_once_the_broker_is_back() {
    let scene = Scene::new();
    let address = nobody().await;
    let daemon = Daemon::start(&scene, address, &[]);
    let mut device = Device::dial(&daemon).await;
    device.send(&Connect::v311("alone").bytes()).await;
    assert_eq!(device.packet().await[3], 3);
    let _broker = Stub::start_at(address, |mut link| async move {
        link.accept().await;
        link.listen().await;
    })
    .await;
    let _session = Device::join(&daemon, Connect::v311("back")).await;
    assert_eq!(http::get(daemon.admin(), "/readyz").await.status, 200);
    daemon.counts("seawall_upstream_up", &[], 1.0).await;
}

#[tokio::test]
async fn idle_visitors_do_not_block_the_scrape() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let daemon = Daemon::start(&scene, broker.address(), &[]);
    let mut idle = Vec::new();
    for _ in 0..50 {
        idle.push(TcpStream::connect(daemon.admin()).await.unwrap());
    }
    within(
        Duration::from_secs(2),
        "a scrape beside idle visitors",
        daemon.metrics(),
    )
    .await;
}

/// Every id comes from a source of its own, behind a balancer; most sources only look in. All ids in `--long` alone:
/// a handshake each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_thousand_ids_and_ten_thousand_sources_leave_the_series_alone() {
    const SOURCES: usize = 10_000;
    const AT_A_TIME: usize = 32;
    let ids = if long() { 50_000 } else { 1_000 };
    let scene = Scene::new();
    let broker = Stub::content().await;
    let daemon = Daemon::start(
        &scene,
        broker.address(),
        &[
            ("listen.proxy_protocol", "\"required\""),
            ("listen.trusted_proxies", "[\"127.0.0.0/8\"]"),
            // A source is remembered until its bucket is full again.
            ("admission.per_source.rate", "0.01"),
            ("admission.per_source.burst", "1000"),
            ("admission.per_client.rate", "1000"),
        ],
    );
    let before = series(&daemon).await;
    let address = daemon.address();
    let next = Arc::new(AtomicUsize::new(0));
    let mut clients = JoinSet::new();
    for _ in 0..AT_A_TIME {
        let next = Arc::clone(&next);
        clients.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= ids.max(SOURCES) {
                    return;
                }
                let mut socket = TcpStream::connect(address).await.unwrap();
                // A port that waits for its end is missing to the next.
                socket.set_zero_linger().unwrap();
                let (high, low) = (number % SOURCES / 256, number % 256);
                let header = format!("PROXY TCP4 10.9.{high}.{low} 192.0.2.1 4711 8883\r\n");
                socket.write_all(header.as_bytes()).await.unwrap();
                if number < ids {
                    let mut device = Device::over(socket).await.unwrap();
                    let id = format!("label-{number}");
                    device.send(&Connect::v311(&id).bytes()).await;
                    device.packet().await;
                    device.reset();
                } else {
                    // Long enough to be read.
                    socket.write_all(&[0x16, 3, 1]).await.unwrap();
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        });
    }
    clients.join_all().await;
    daemon
        .metrics_until("all have gone", |metrics| {
            metrics.sum("seawall_connections_open", &[]) == 0.0
        })
        .await;
    let metrics = daemon.metrics().await;
    assert_eq!(
        metrics.sum("seawall_connects_total", &[("decision", "admitted")]),
        ids as f64
    );
    let sources = metrics.sum("seawall_sources", &[]);
    report(&format!(
        "{ids} client ids, {sources} sources, {} series",
        before.len()
    ));
    assert!(
        sources >= 0.9 * SOURCES as f64,
        "only {sources} sources were seen"
    );
    assert_eq!(series(&daemon).await, before);
}

async fn series(daemon: &Daemon) -> BTreeSet<String> {
    let answer = http::get(daemon.admin(), "/metrics").await;
    let lines = answer.body.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| line.rsplit_once(' ').unwrap().0.to_owned())
        .collect()
}

/// Most of them stop before TLS, which is a descriptor each; the collector looks at every one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scrape_takes_less_than_five_milliseconds_with_nine_thousand_connections_open() {
    const OPEN: usize = 9_000;
    const SESSIONS: usize = 500;
    const LIMIT: Duration = Duration::from_millis(5);
    seawall::listener::raise_descriptor_limit();
    let scene = Scene::alone();
    let broker = Stub::content().await;
    let daemon = Daemon::start(
        &scene,
        broker.address(),
        &[
            ("handshake.timeout", "\"10m\""),
            ("handshake.max_waiting", "20000"),
        ],
    );
    let mut sessions = Vec::new();
    for number in 0..SESSIONS {
        let id = format!("session-{number}");
        sessions.push(Device::join(&daemon, Connect::v311(&id)).await);
    }
    let mut idle = Vec::new();
    for _ in SESSIONS..OPEN {
        idle.push(TcpStream::connect(daemon.address()).await.unwrap());
    }
    eventually("all are accepted", || daemon.descriptors() >= OPEN + SESSIONS).await;
    let mut took = Vec::new();
    for _ in 0..21 {
        let from = Instant::now();
        let answer = http::get(daemon.admin(), "/metrics").await;
        took.push(from.elapsed());
        assert!(answer.body.contains("seawall_connections_open"));
    }
    took.sort();
    report(&format!(
        "a scrape with {OPEN} connections: median {:.2?}, slowest {:.2?}",
        took[10], took[20]
    ));
    let open = daemon.metrics().await.sum("seawall_connections_open", &[]);
    assert_eq!(open, OPEN as f64);
    assert!(took[10] < LIMIT, "{took:?}");
}
