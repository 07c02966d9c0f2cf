//! Who is let through, who waits, and who is refused: seen from both ends.

use crate::rig::device::hex;
use crate::rig::http::Metrics;
use crate::rig::packet::{self, accepted, connack_v3, connack_v5};
use crate::rig::{
    Connect, Daemon, Device, End, Mosquitto, PATIENCE, Scene, Stub, daemon, eventually, long, report,
};
use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_thousand_connects_at_fifty_a_second() {
    const CONNECTS: u32 = 2000;
    const SECONDS: u32 = 20;
    let scene = Scene::alone();
    let broker = Mosquitto::start(&scene);
    let settings = [
        ("admission.rate", "50"),
        ("admission.burst", "50"),
        ("admission.max_in_flight", "100"),
    ];
    let daemon = Daemon::start(
        &scene,
        broker.address(),
        &[&settings[..], &[("refusal.reason_string", "false")]].concat(),
    );
    let sockets_before = broker.connections();

    let mut attempts = tokio::task::JoinSet::new();
    let from = tokio::time::Instant::now();
    for number in 0..CONNECTS {
        tokio::time::sleep_until(from + Duration::from_secs(SECONDS.into()) * number / CONNECTS).await;
        attempts.spawn(attempt(daemon.address(), [3, 4, 5][number as usize % 3], number));
    }
    let admitted = attempts
        .join_all()
        .await
        .into_iter()
        .filter(|admitted| *admitted)
        .count();

    let expected = 50.0 + 50.0 * f64::from(SECONDS);
    // Its log is read a moment after it is written.
    eventually("Mosquitto's log of the last", || {
        broker.connections() - sockets_before >= admitted
    })
    .await;
    let sockets = broker.connections() - sockets_before;
    report(&format!(
        "{admitted} of {CONNECTS} admitted, {sockets} sockets at Mosquitto, {expected} expected"
    ));
    assert!(
        (admitted as f64 - expected).abs() <= expected * 0.03,
        "{admitted} admitted"
    );
    assert_eq!(sockets, admitted, "Mosquitto saw a client that was refused");
    let refused = CONNECTS as usize - admitted;
    let metrics = daemon
        .counts("seawall_connects_total", &[], CONNECTS.into())
        .await;
    assert_eq!(
        metrics.sum("seawall_refused_total", &[("reason", "rate")]) as usize,
        refused
    );
    assert_eq!(
        metrics.sum("seawall_connects_total", &[("decision", "admitted")]) as usize,
        admitted
    );
    assert_eq!(metrics.sum("seawall_admission_rate", &[]), 50.0);
}

/// Whether it was admitted; the answer is right either way.
async fn attempt(address: std::net::SocketAddr, level: u8, number: u32) -> bool {
    let mut device = Device::try_dial(address).await.unwrap();
    device
        .send(&Connect::level(level, &format!("arrival-{number}")).bytes())
        .await;
    let connack = device.packet().await;
    if connack[3] == 0 {
        device.send(&packet::DISCONNECT).await;
        device.close().await;
        return true;
    }
    let expected = if level == 5 {
        connack_v5(0x89)
    } else {
        connack_v3(3)
    };
    assert_eq!(hex(&connack), hex(&expected), "level {level}");
    device.expect_last(&[]).await;
    false
}

#[tokio::test]
async fn held_clients_come_in_by_age_and_the_rest_is_refused_at_once() {
    const CLIENTS: usize = 60;
    const PLACES: usize = 10 + 20;
    let scene = Scene::alone();
    let broker = Stub::content().await;
    let settings = [
        ("admission.rate", "10"),
        ("admission.burst", "10"),
        ("admission.max_wait", "\"2s\""),
    ];
    let daemon = Daemon::start(&scene, broker.address(), &settings);
    // Ten have a token, twenty can have their turn within two seconds, the other thirty can not.
    let from = Instant::now();
    let mut waiting = tokio::task::JoinSet::new();
    for number in 0..CLIENTS {
        let mut device = Device::dial(&daemon).await;
        device.send(&Connect::v311(&format!("{number:02}")).bytes()).await;
        waiting.spawn(async move {
            let sent = Instant::now();
            (device.packet().await[3], sent.elapsed(), device)
        });
    }
    let thrown = from.elapsed();
    let answers = waiting.join_all().await;
    let admitted = answers.iter().filter(|answer| answer.0 == 0).count();
    // Those who came later found the tokens of the meantime.
    let most = PLACES + (10.0 * thrown.as_secs_f64()).ceil() as usize;
    assert!(
        (PLACES - 2..=most).contains(&admitted),
        "{admitted} admitted, {thrown:?} for all to come"
    );
    let slow = answers
        .iter()
        .filter(|answer| answer.0 != 0 && answer.1 > Duration::from_millis(300))
        .count();
    // One whose turn was reckoned to come in the last moment may have missed it.
    assert!(slow <= 2, "{slow} waited for a refusal");
    let slowest = answers.iter().map(|answer| answer.1).max().unwrap();
    assert!(slowest < Duration::from_millis(2300), "{slowest:?}");

    let mut order = Vec::new();
    for index in 0..admitted {
        let connect = broker.visit(index).await.received_at_least(16).await;
        order.push(String::from_utf8(connect[14..16].to_vec()).unwrap());
    }
    assert!(order.is_sorted(), "not by age: {order:?}");
    daemon
        .metrics_until("eighteen or more that were held, and none that is", |m| {
            m.sum("seawall_hold_seconds_count", &[]) >= 18.0
                && m.sum("seawall_connections_open", &[("phase", "held")]) == 0.0
        })
        .await;
}

#[tokio::test]
async fn the_hold_has_a_limit() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let settings = [
        ("admission.rate", "0.2"),
        ("admission.burst", "1"),
        ("admission.max_wait", "\"60s\""),
        ("admission.max_held", "3"),
    ];
    let daemon = Daemon::start(&scene, broker.address(), &settings);
    let _first = Device::join(&daemon, Connect::v311("first")).await;
    let mut held = Vec::new();
    for _ in 0..3 {
        let mut device = Device::dial(&daemon).await;
        device.send(&Connect::v311("held").bytes()).await;
        held.push(device);
    }
    daemon
        .counts("seawall_connections_open", &[("phase", "held")], 3.0)
        .await;
    let mut device = Device::dial(&daemon).await;
    device.send(&Connect::v311("fourth").bytes()).await;
    device.expect_last(&connack_v3(3)).await;
    daemon
        .counts("seawall_refused_total", &[("reason", "hold-full")], 1.0)
        .await;
}

#[tokio::test]
async fn a_held_client_that_leaves_costs_no_token() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let settings = [
        ("admission.rate", "1"),
        ("admission.burst", "1"),
        ("admission.max_wait", "\"20s\""),
    ];
    let daemon = Daemon::start(&scene, broker.address(), &settings);
    let _first = Device::join(&daemon, Connect::v311("first")).await;
    let from = Instant::now();
    let mut leaving = Vec::new();
    for _ in 0..6 {
        let mut device = Device::dial(&daemon).await;
        device.send(&Connect::v311("leaving").bytes()).await;
        leaving.push(device);
    }
    daemon
        .counts("seawall_connections_open", &[("phase", "held")], 6.0)
        .await;
    let mut patient = Device::dial(&daemon).await;
    patient.send(&Connect::v311("patient").bytes()).await;
    for (number, device) in leaving.into_iter().enumerate() {
        match number % 3 {
            0 => device.reset(),
            1 => device.vanish(),
            _ => device.close().await,
        }
    }
    patient.expect_packet(&accepted(4)).await;
    assert!(
        from.elapsed() < Duration::from_secs(3),
        "waited {:?} behind clients that had left",
        from.elapsed()
    );
    assert_eq!(broker.visits(), 2);
    daemon
        .counts("seawall_connects_total", &[("decision", "left")], 6.0)
        .await;
}

#[tokio::test]
async fn no_more_are_in_flight_than_allowed() {
    let scene = Scene::new();
    let (answer, answers) = tokio::sync::watch::channel(false);
    let broker = Stub::start(move |mut link| {
        let mut answers = answers.clone();
        async move {
            link.packet().await;
            tokio::select! {
                answer = answers.wait_for(|answer| *answer) => drop(answer.unwrap()),
                () = link.listen() => return,
            }
            link.send(&accepted(4)).await;
            link.listen().await;
        }
    })
    .await;
    let daemon = Daemon::start(&scene, broker.address(), &[("admission.max_in_flight", "2")]);
    let mut waiting = Vec::new();
    for _ in 0..2 {
        let mut device = Device::dial(&daemon).await;
        device.send(&Connect::v311("in flight").bytes()).await;
        waiting.push(device);
    }
    daemon.counts("seawall_upstream_in_flight", &[], 2.0).await;
    refused_in_flight(&daemon).await;

    // A client that leaves gives its place back, as soon as the broker has seen it leave.
    waiting.pop().unwrap().reset();
    daemon.counts("seawall_upstream_in_flight", &[], 1.0).await;
    let mut device = Device::dial(&daemon).await;
    device.send(&Connect::v311("next").bytes()).await;
    waiting.push(device);
    daemon.counts("seawall_upstream_in_flight", &[], 2.0).await;
    refused_in_flight(&daemon).await;

    // An answer gives it back.
    answer.send(true).unwrap();
    for device in &mut waiting {
        device.expect_packet(&accepted(4)).await;
    }
    let _session = Device::join(&daemon, Connect::v311("after")).await;
    let metrics = daemon.counts("seawall_upstream_in_flight", &[], 0.0).await;
    assert_eq!(
        metrics.sum("seawall_connack_seconds_count", &[]),
        3.0,
        "{metrics}"
    );
}

async fn refused_in_flight(daemon: &Daemon) {
    let refusals = |m: &Metrics| m.sum("seawall_refused_total", &[("reason", "in-flight")]);
    let before = refusals(&daemon.metrics().await);
    let mut device = Device::dial(daemon).await;
    device.send(&Connect::v311("third").bytes()).await;
    device.expect_last(&connack_v3(3)).await;
    daemon
        .metrics_until("one more refusal", |m| refusals(m) == before + 1.0)
        .await;
}

#[tokio::test]
async fn a_place_in_flight_is_waited_for_as_well() {
    let scene = Scene::new();
    let broker = Stub::start(|mut link| async move {
        link.packet().await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        link.send(&accepted(4)).await;
        link.listen().await;
    })
    .await;
    let settings = [("admission.max_in_flight", "1"), ("admission.max_wait", "\"5s\"")];
    let daemon = Daemon::start(&scene, broker.address(), &settings);
    let from = Instant::now();
    let mut devices = Vec::new();
    for _ in 0..5 {
        let mut device = Device::dial(&daemon).await;
        device.send(&Connect::v311("queued").bytes()).await;
        devices.push(device);
    }
    for device in &mut devices {
        device.expect_packet(&accepted(4)).await;
    }
    let took = from.elapsed();
    assert!(
        took > Duration::from_millis(450) && took < Duration::from_secs(2),
        "{took:?}"
    );
}

#[tokio::test]
async fn a_broker_that_resets_gives_its_place_back() {
    let scene = Scene::new();
    let broker = Stub::start(|mut link| async move {
        link.packet().await;
        link.reset();
    })
    .await;
    // The breaker would answer for it after five.
    let settings = [
        ("admission.max_in_flight", "1"),
        ("upstream.breaker.failures", "1000"),
    ];
    let daemon = Daemon::start(&scene, broker.address(), &settings);
    for _ in 0..10 {
        let mut device = Device::dial(&daemon).await;
        device.send(&Connect::v311("unlucky").bytes()).await;
        device.expect_last(&connack_v3(3)).await;
    }
    daemon.counts("seawall_refused_total", &[], 10.0).await;
    daemon.counts("seawall_upstream_in_flight", &[], 0.0).await;
}

#[tokio::test]
async fn a_dry_run_lets_in_who_is_beyond_the_limits_of_his_address() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let path = scene.path("audit.jsonl");
    let audit = format!("{path:?}");
    for (key, value, reason) in [
        ("admission.per_source.rate", "0.001", "source-rate"),
        ("admission.per_source.max_connections", "1", "source-connections"),
    ] {
        let settings = [
            ("admission.dry_run", "true"),
            ("admission.per_source.burst", "1"),
            ("audit.path", audit.as_str()),
            (key, value),
        ];
        let daemon = Daemon::start(&scene, broker.address(), &settings);
        let mut sessions = Vec::new();
        for number in 0..4 {
            sessions.push(Device::join(&daemon, Connect::v311(&format!("{reason}-{number}"))).await);
        }
        let labels = [("reason", reason)];
        daemon.counts("seawall_dry_run_total", &labels, 3.0).await;
        daemon.counts("seawall_shed_total", &[], 0.0).await;
        let would = format!("\"would_refuse\":\"{reason}\"");
        eventually("the audit log tells of three", || {
            std::fs::read_to_string(&path).is_ok_and(|text| text.matches(&would).count() == 3)
        })
        .await;
    }
}

#[tokio::test]
async fn dry_run_decides_and_refuses_nobody() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let settings = [
        ("admission.rate", "0.001"),
        ("admission.burst", "1"),
        ("admission.dry_run", "true"),
    ];
    let daemon = Daemon::start(&scene, broker.address(), &settings);
    let mut devices = Vec::new();
    for _ in 0..5 {
        devices.push(Device::join(&daemon, Connect::v311("lucky")).await);
    }
    let metrics = daemon
        .counts("seawall_dry_run_total", &[("reason", "rate")], 4.0)
        .await;
    assert_eq!(
        metrics.sum("seawall_connects_total", &[("decision", "admitted")]),
        5.0
    );
    assert_eq!(metrics.sum("seawall_refused_total", &[]), 0.0);
}

#[tokio::test]
async fn a_kept_session_costs_what_the_configuration_says() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let settings = [
        ("admission.rate", "0.001"),
        ("admission.burst", "10"),
        ("admission.cost.clean", "1.0"),
        ("admission.cost.persistent", "4.0"),
    ];
    let daemon = Daemon::start(&scene, broker.address(), &settings);
    let expiry = [0x11, 0, 0, 0, 60];
    let persistent = [
        Connect {
            clean: false,
            ..Connect::v311("kept")
        },
        Connect {
            properties: &expiry,
            ..Connect::v5("kept")
        },
    ];
    let mut sessions = Vec::new();
    for connect in persistent {
        sessions.push(Device::join(&daemon, connect).await);
    }
    // Two tokens are left: no room for a third of that kind, but for two that keep nothing.
    let mut device = Device::dial(&daemon).await;
    device.send(&persistent[0].bytes()).await;
    device.expect_last(&connack_v3(3)).await;
    for _ in 0..2 {
        sessions.push(Device::join(&daemon, Connect::v311("clean")).await);
    }
    let mut device = Device::dial(&daemon).await;
    device.send(&Connect::v311("late").bytes()).await;
    device.expect_last(&connack_v3(3)).await;
}

#[tokio::test]
async fn a_client_that_left_before_its_decision_reaches_no_broker() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let daemon = Daemon::start(&scene, broker.address(), &[]);
    for _ in 0..20 {
        let mut device = Device::dial(&daemon).await;
        device.send(&[0x10]).await;
        device.reset();
    }
    daemon.counts("seawall_connections_open", &[], 0.0).await;
    assert_eq!(broker.visits(), 0);
}

#[tokio::test]
async fn one_bucket_for_all_listeners() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let settings = [
        ("listen.addresses", r#"["127.0.0.1:0", "[::1]:0", "127.0.0.1:0"]"#),
        ("admission.rate", "0.001"),
        ("admission.burst", "4"),
    ];
    let daemon = Daemon::start(&scene, broker.address(), &settings);
    let addresses: Vec<std::net::SocketAddr> = daemon
        .stdout()
        .lines()
        .filter_map(|line| line.strip_prefix("listening ")?.parse().ok())
        .collect();
    assert_eq!(addresses.len(), 3, "{}", daemon.stdout());
    let mut answers = Vec::new();
    for number in 0..12 {
        let mut device = Device::try_dial(addresses[number % 3]).await.unwrap();
        device.send(&Connect::v311("one of many").bytes()).await;
        answers.push(device.packet().await[3]);
        if answers[number] != 0 {
            assert_eq!(device.rest(PATIENCE).await.1, End::Clean);
        }
    }
    assert_eq!(answers, [[0; 4], [3; 4], [3; 4]].concat());
    eventually("four at the broker", || broker.visits() == 4).await;
}

/// There is one bucket, however many threads and addresses there are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn threads_and_listen_addresses_share_one_bucket() {
    const DEVICES: usize = 150;
    const BURST: usize = 60;
    let scene = Scene::alone();
    let broker = Stub::content().await;
    for (threads, addresses) in [(1, 1), (1, 3), (4, 1), (4, 3)] {
        let listen = format!("[{}]", vec!["\"127.0.0.1:0\""; addresses].join(", "));
        let settings = [
            ("listen.addresses", listen.as_str()),
            ("admission.rate", "0.001"),
            ("admission.burst", "60"),
        ];
        let file = scene.write(
            "shared.toml",
            &daemon::configuration(&scene, broker.address(), &settings),
        );
        let daemon = Daemon::launch(
            Command::new("/usr/bin/env")
                .arg(format!("TOKIO_WORKER_THREADS={threads}"))
                .arg(daemon::binary())
                .args(["run", "--config"])
                .arg(file),
        );
        let workers = std::fs::read_dir(format!("/proc/{}/task", daemon.id())).unwrap();
        let workers = workers.filter(|task| {
            let name = task.as_ref().unwrap().path().join("comm");
            std::fs::read_to_string(name).is_ok_and(|name| name.starts_with("tokio-rt-worker"))
        });
        assert_eq!(workers.count(), threads, "worker threads");
        let stdout = daemon.stdout();
        let listening: Vec<SocketAddr> = stdout
            .lines()
            .filter_map(|line| line.strip_prefix("listening ")?.parse().ok())
            .collect();
        assert_eq!(listening.len(), addresses, "{stdout}");
        let mut attempts = tokio::task::JoinSet::new();
        for number in 0..DEVICES {
            let address = listening[number % addresses];
            attempts.spawn(async move {
                let mut device = Device::try_dial(address).await.unwrap();
                device
                    .send(&Connect::v311(&format!("device-{number}")).bytes())
                    .await;
                (device.packet().await[3] == 0, device)
            });
        }
        let answers = attempts.join_all().await;
        let admitted = answers.iter().filter(|(admitted, _)| *admitted).count();
        report(&format!(
            "{threads} threads, {addresses} addresses: {admitted} of {DEVICES} admitted"
        ));
        assert_eq!(admitted, BURST, "{threads} threads, {addresses} addresses");
    }
}

/// Not much more than one that is relayed, with the same allocator and TLS session behind it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_held_client_costs_little_memory() {
    const WARM: usize = 200;
    if !long() {
        return;
    }
    let scene = Scene::alone();
    for (what, broker, clients) in [
        ("held", Stub::mute().await, 3000),
        ("relayed", Stub::content().await, 3000),
    ] {
        // The mute one's only place is taken by the first for as long as the trial lasts.
        let seats = if what == "held" { "1" } else { "100000" };
        let settings = [
            ("admission.max_wait", "\"60s\""),
            ("admission.max_in_flight", seats),
            ("upstream.connack_timeout", "\"60s\""),
        ];
        let daemon = Daemon::start(&scene, broker.address(), &settings);
        let mut there = Vec::new();
        let (mut before, mut after) = (0, 0);
        for number in 0..WARM + clients {
            let mut device = Device::dial(&daemon).await;
            device
                .send(&Connect::v311(&format!("device-{number:06}")).bytes())
                .await;
            there.push(device);
            if number + 1 == WARM || number + 1 == WARM + clients {
                let phase = if what == "held" { "held" } else { "relaying" };
                let count = if what == "held" { number } else { number + 1 };
                daemon
                    .counts("seawall_connections_open", &[("phase", phase)], count as f64)
                    .await;
                before = after;
                after = daemon.resident();
            }
        }
        let each = (after - before) as f64 / 1024.0 / clients as f64;
        report(&format!("{each:.1} kB of resident memory for each {what} client"));
        assert!(each < 16.0, "{each:.1} kB");
    }
}
