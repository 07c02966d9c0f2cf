//! One broker or several that fail and come back, seen from both ends.

use crate::rig::device::hex;
use crate::rig::packet::{connack_v3, connack_v5};
use crate::rig::stub::{Link, nobody};
use crate::rig::{Connect, Daemon, Device, Mosquitto, Scene, Stub, eventually, http};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const BARE: (&str, &str) = ("refusal.reason_string", "false");

fn listed(stubs: &[&Stub]) -> String {
    let addresses: Vec<String> = stubs
        .iter()
        .map(|stub| format!("\"{}\"", stub.address()))
        .collect();
    format!("[{}]", addresses.join(", "))
}

async fn content(mut link: Link) {
    link.accept().await;
    link.listen().await;
}

/// What a client is told, to the byte.
async fn answer(daemon: &Daemon, level: u8, client_id: &str) -> Vec<u8> {
    answer_at([127, 0, 0, 1], daemon, level, client_id).await
}

/// The same at another address of the loopback.
async fn answer_at(source: [u8; 4], daemon: &Daemon, level: u8, client_id: &str) -> Vec<u8> {
    let mut device = Device::dial_from(source, daemon).await;
    device.send(&Connect::level(level, client_id).bytes()).await;
    device.packet().await
}

#[tokio::test]
async fn a_breaker_opens_answers_for_the_broker_and_lets_a_probe_through() {
    let scene = Scene::new();
    let well = Arc::new(AtomicBool::new(false));
    let is_well = Arc::clone(&well);
    let broker = Stub::start(move |mut link| {
        let is_well = Arc::clone(&is_well);
        async move {
            if is_well.load(Ordering::SeqCst) {
                content(link).await;
            } else {
                link.packet().await;
            }
        }
    })
    .await;
    let audit = scene.text_path("audit.jsonl");
    let settings = [
        BARE,
        ("audit.path", &format!("{audit:?}")),
        ("upstream.breaker.open_for", "\"1s\""),
        ("upstream.breaker.slow_start", "\"0s\""),
    ];
    let daemon = Daemon::start(&scene, broker.address(), &settings);
    for number in 0..5 {
        // Clients of one address alone would not be believed.
        let source = [127, 0, 0, 1 + number / 4];
        let told = answer_at(source, &daemon, 5, &format!("unlucky-{number}")).await;
        assert_eq!(hex(&told), hex(&connack_v5(0x88)));
    }
    let opened = Instant::now();
    let dialled = broker.visits();
    assert_eq!(dialled, 5);
    assert_eq!(hex(&answer(&daemon, 5, "sixth").await), hex(&connack_v5(0x88)));
    assert_eq!(hex(&answer(&daemon, 4, "seventh").await), hex(&connack_v3(3)));
    let metrics = daemon.metrics().await;
    assert_eq!(metrics.sum("seawall_upstream_breaker", &[]), 2.0);
    let refused = |reason| metrics.sum("seawall_refused_total", &[("reason", reason)]);
    assert_eq!((refused("no-broker"), refused("breaker-open")), (5.0, 2.0));
    assert_ne!(http::get(daemon.admin(), "/readyz").await.status, 200);
    assert_eq!(broker.visits(), dialled, "dialled while it was open");
    assert!(
        opened.elapsed() < Duration::from_secs(1),
        "too slow a machine to tell"
    );

    well.store(true, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_millis(1050).saturating_sub(opened.elapsed())).await;
    let _probe = Device::join(&daemon, Connect::v5("probe")).await;
    let _next = Device::join(&daemon, Connect::v5("next")).await;
    let metrics = daemon.metrics().await;
    assert_eq!(metrics.sum("seawall_upstream_breaker", &[]), 0.0);
    assert_eq!(http::get(daemon.admin(), "/readyz").await.status, 200);
    eventually("the audit log tells of it", || {
        let text = std::fs::read_to_string(&audit).unwrap();
        let states: Vec<&str> = text
            .lines()
            .filter(|line| line.contains(r#""event":"breaker""#))
            .filter_map(|line| line.split(r#""state":""#).nth(1)?.split('"').next())
            .collect();
        states == ["open", "half-open", "closed"]
    })
    .await;
}

/// A client that the broker does not like ends as one does whose broker is dying.
#[tokio::test]
async fn clients_of_one_address_do_not_speak_for_the_broker() {
    let scene = Scene::new();
    let broker = Mosquitto::start(&scene);
    let daemon = Daemon::start(&scene, broker.address(), &[BARE]);
    for number in 0..20 {
        let mut hostile = Device::dial(&daemon).await;
        let connect = match number % 3 {
            // Legal to us, and not to Mosquitto.
            0 => Connect::v311("\u{1}").bytes(),
            1 => Connect::v311(&format!("{number}\u{1}")).bytes(),
            // Says goodbye before it is answered, as this broker may see first.
            _ => [Connect::v311("\u{2}").bytes(), vec![0xe0, 0]].concat(),
        };
        hostile.send(&connect).await;
        hostile.expect_last(&connack_v3(3)).await;
        if number % 7 == 0 {
            Device::join(&daemon, Connect::v311("good")).await.close().await;
        }
    }
    let good = Device::join(&daemon, Connect::v311("good-too")).await;
    let no_broker = [("reason", "no-broker")];
    let metrics = daemon.counts("seawall_refused_total", &no_broker, 20.0).await;
    assert_eq!(metrics.sum("seawall_upstream_breaker", &[]), 0.0);
    good.close().await;
}

/// Each probe that fails opens a breaker again before anybody has looked.
#[tokio::test]
async fn every_change_of_a_breaker_has_its_line() {
    const PROBES: usize = 4;
    let scene = Scene::new();
    let audit = scene.text_path("audit.jsonl");
    let settings = [
        BARE,
        ("audit.path", &format!("{audit:?}")),
        ("upstream.breaker.failures", "1"),
        ("upstream.breaker.open_for", "\"10ms\""),
    ];
    let daemon = Daemon::start(&scene, nobody().await, &settings);
    let mut refused = 0.0;
    for _ in 0..=PROBES {
        refused += 1.0;
        assert_eq!(hex(&answer(&daemon, 5, "probe").await), hex(&connack_v5(0x88)));
        daemon
            .metrics_until("it may be probed", |metrics| {
                metrics.sum("seawall_upstream_breaker", &[]) == 1.0
            })
            .await;
    }
    let no_broker = [("reason", "no-broker")];
    daemon.counts("seawall_refused_total", &no_broker, refused).await;
    let expected = [["open", "half-open"]; PROBES + 1].concat();
    eventually("each change has its line", || {
        let text = std::fs::read_to_string(&audit).unwrap();
        let states: Vec<&str> = text
            .lines()
            .filter(|line| line.contains(r#""event":"breaker""#))
            .filter_map(|line| line.split(r#""state":""#).nth(1)?.split('"').next())
            .collect();
        states == expected
    })
    .await;
}

#[tokio::test]
async fn a_client_returns_to_its_broker_and_of_a_dead_one_only_its_own_clients_move() {
    const CLIENTS: usize = 40;
    let scene = Scene::new();
    let (one, other) = (Stub::start(content).await, Stub::start(content).await);
    let servers = listed(&[&one, &other]);
    let settings = [
        ("upstream.servers", servers.as_str()),
        ("upstream.breaker.slow_start", "\"0s\""),
    ];
    let daemon = Daemon::start(&scene, one.address(), &settings);
    let mut at_one = Vec::new();
    for number in 0..CLIENTS {
        let client_id = format!("client-{number}");
        let mut homes = Vec::new();
        for _ in 0..3 {
            let before = one.visits();
            Device::join(&daemon, Connect::v311(&client_id))
                .await
                .close()
                .await;
            homes.push(one.visits() > before);
        }
        assert!(
            homes.iter().all(|home| *home == homes[0]),
            "{client_id}: {homes:?}"
        );
        at_one.push(homes[0]);
    }
    let share = at_one.iter().filter(|home| **home).count();
    assert!((CLIENTS / 5..=CLIENTS * 4 / 5).contains(&share), "{share} at one");

    drop(one);
    for (number, was_at_one) in at_one.iter().enumerate() {
        let before = other.visits();
        let client_id = format!("client-{number}");
        Device::join(&daemon, Connect::v311(&client_id))
            .await
            .close()
            .await;
        assert_eq!(
            other.visits(),
            before + 1,
            "{client_id}, at one before: {was_at_one}"
        );
    }
    let metrics = daemon.metrics().await;
    assert_eq!(metrics.sum("seawall_refused_total", &[]), 0.0);
    assert_eq!(
        metrics.sum("seawall_upstream_breaker", &[]),
        2.0,
        "one of two is open"
    );
}

#[tokio::test]
async fn the_fewest_connections_and_each_in_turn() {
    let scene = Scene::new();
    for balance in ["\"least-connections\"", "\"round-robin\""] {
        let (one, other) = (Stub::start(content).await, Stub::start(content).await);
        let servers = listed(&[&one, &other]);
        let settings = [
            ("upstream.servers", servers.as_str()),
            ("upstream.balance", balance),
        ];
        let daemon = Daemon::start(&scene, one.address(), &settings);
        let mut devices = Vec::new();
        for number in 0..10 {
            devices.push(Device::join(&daemon, Connect::v311(&format!("{number}"))).await);
        }
        assert_eq!((one.visits(), other.visits()), (5, 5), "{balance}");
    }
}

#[tokio::test]
async fn a_dial_that_fails_goes_to_the_next_within_the_attempt() {
    let scene = Scene::new();
    let broker = Stub::start(content).await;
    let servers = format!("[\"{}\", \"{}\"]", nobody().await, broker.address());
    let settings = [
        ("upstream.servers", servers.as_str()),
        ("upstream.balance", "\"round-robin\""),
    ];
    let daemon = Daemon::start(&scene, broker.address(), &settings);
    let mut devices = Vec::new();
    for number in 0..12 {
        devices.push(Device::join(&daemon, Connect::v311(&format!("{number}"))).await);
    }
    assert_eq!(broker.visits(), 12);
    assert_eq!(http::get(daemon.admin(), "/readyz").await.status, 200);
}

#[tokio::test]
async fn while_a_broker_restarts_clients_are_held() {
    let scene = Scene::new();
    let address = nobody().await;
    let settings = [
        ("admission.max_wait", "\"10s\""),
        ("upstream.breaker.open_for", "\"300ms\""),
        ("upstream.breaker.slow_start", "\"0s\""),
    ];
    let daemon = Daemon::start(&scene, address, &settings);
    let mut devices = Vec::new();
    for number in 0..10 {
        let mut device = Device::dial(&daemon).await;
        device
            .send(&Connect::v311(&format!("patient-{number}")).bytes())
            .await;
        devices.push(device);
    }
    daemon
        .metrics_until("an open breaker", |metrics| {
            metrics.sum("seawall_upstream_breaker", &[]) > 0.0
        })
        .await;
    let _broker = Stub::start_at(address, content).await;
    for device in &mut devices {
        device.expect_packet(&connack_v3(0)).await;
    }
    let metrics = daemon.metrics().await;
    assert_eq!(metrics.sum("seawall_refused_total", &[]), 0.0);
}

#[tokio::test]
async fn dials_are_spread_over_the_source_addresses_and_one_that_is_none_is_passed_over() {
    let scene = Scene::new();
    let sources = Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = Arc::clone(&sources);
    let broker = Stub::start(move |link| {
        seen.lock().unwrap().push(link.peer().ip().to_string());
        content(link)
    })
    .await;
    // 192.0.2.1 is for documentation, and no address of any host.
    let settings = [(
        "upstream.source_addresses",
        "[\"127.0.0.2\", \"192.0.2.1\", \"::1\", \"127.0.0.3\"]",
    )];
    let daemon = Daemon::start(&scene, broker.address(), &settings);
    let mut devices = Vec::new();
    for number in 0..12 {
        devices.push(Device::join(&daemon, Connect::v311(&format!("{number}"))).await);
    }
    let mut found = sources.lock().unwrap().clone();
    found.sort();
    assert_eq!(found.len(), 12);
    let from = |address: &str| found.iter().filter(|source| *source == address).count();
    assert_eq!(from("127.0.0.2") + from("127.0.0.3"), 12, "{found:?}");
    assert!(from("127.0.0.2") >= 3 && from("127.0.0.3") >= 3, "{found:?}");

    let settings = [("upstream.source_addresses", "[\"192.0.2.1\"]")];
    let daemon = Daemon::start(&scene, broker.address(), &settings);
    assert_eq!(hex(&answer(&daemon, 4, "stranded").await), hex(&connack_v3(3)));
    let metrics = daemon.metrics().await;
    assert_eq!(metrics.sum("seawall_upstream_no_port_total", &[]), 1.0);
    assert_eq!(
        metrics.sum("seawall_refused_total", &[("reason", "no-broker")]),
        1.0
    );
    assert_eq!(
        metrics.sum("seawall_upstream_up", &[]),
        1.0,
        "the broker's health"
    );
}
