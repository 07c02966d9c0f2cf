//! The end of a daemon, and of sessions that are too old: who is told what, when, and between which bytes.

mod fleet;
mod hostile;
mod messages;

use crate::rig::device::hex;
use crate::rig::packet::{self, DISCONNECT, PINGREQ, connack_v3, connack_v5};
use crate::rig::stub::VisitEnd;
use crate::rig::{Connect, Daemon, Device, End, PATIENCE, Scene, Stub, eventually, http};
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// DISCONNECT of a 5.0 server that shuts down.
const SHUTTING_DOWN: [u8; 4] = [0xE0, 2, 0x8B, 0];

const SHORT: (&str, &str) = ("drain.spread", "\"0s\"");

/// What both sides of a session hear at its end, for each version.
#[tokio::test]
async fn each_side_is_told_in_its_own_words() {
    let scene = Scene::new();
    let elsewhere = [&[0xE0, 11, 0x9C, 9, 0x1C, 0, 6][..], b"b:8883"].concat();
    // Maximum Packet Size: one byte less than the reference makes; and less than the bare packet.
    let (small, tiny) = ([0x27, 0, 0, 0, 12], [0x27, 0, 0, 0, 3]);
    for (settings, to_v5, to_small, to_broker) in [
        (
            &[SHORT][..],
            &SHUTTING_DOWN[..],
            &SHUTTING_DOWN[..],
            &DISCONNECT[..],
        ),
        (
            &[SHORT, ("refusal.server_reference", "\"b:8883\"")],
            &elsewhere,
            &SHUTTING_DOWN,
            &DISCONNECT,
        ),
        (
            &[SHORT, ("drain.keep_wills", "true")],
            &SHUTTING_DOWN,
            &SHUTTING_DOWN,
            &[],
        ),
    ] {
        let broker = Stub::content().await;
        let daemon = Daemon::start(&scene, broker.address(), settings);
        let v5 = Connect::v5("five");
        let clients = [
            (Connect::level(3, "three"), &[][..]),
            (Connect::v311("four"), &[]),
            (v5, to_v5),
            (
                Connect {
                    properties: &small,
                    ..v5
                },
                to_small,
            ),
            (
                Connect {
                    properties: &tiny,
                    ..v5
                },
                &[],
            ),
        ];
        let mut sessions = Vec::new();
        for (connect, last_words) in clients {
            let mut device = Device::join(&daemon, connect).await;
            device.send(&PINGREQ).await;
            let visit = broker.visit(sessions.len()).await;
            let sent = [&connect.bytes()[..], &PINGREQ].concat();
            visit.received_at_least(sent.len()).await;
            sessions.push((device, last_words, visit, sent));
        }
        daemon.signal(Signal::TERM);
        for (device, last_words, visit, sent) in sessions {
            device.expect_last(last_words).await;
            assert_eq!(visit.end().await, VisitEnd::Fin);
            assert_eq!(
                hex(&visit.received()),
                hex(&[&sent[..], to_broker].concat()),
                "{settings:?}"
            );
        }
        assert_eq!(daemon.wait_for_end(PATIENCE).code(), Some(0));
    }
}

#[tokio::test]
async fn who_comes_is_told_and_the_balancer_is_told_first() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    for (reference, told) in [
        ("\"\"", connack_v5(0x89)),
        (
            "\"b:8883\"",
            [&[0x20, 12, 0, 0x9C, 9, 0x1C, 0, 6][..], b"b:8883"].concat(),
        ),
    ] {
        let settings = [
            ("drain.spread", "\"20s\""),
            ("refusal.reason_string", "false"),
            ("refusal.server_reference", reference),
        ];
        let daemon = Daemon::start(&scene, broker.address(), &settings);
        // Two sessions: the second's turn comes after half of the time.
        let _first = Device::join(&daemon, Connect::v311("first")).await;
        let _second = Device::join(&daemon, Connect::v311("second")).await;
        // In the handshake, and after it, when the drain begins.
        let shaking = tokio::net::TcpStream::connect(daemon.address()).await.unwrap();
        let mut silent = Device::dial(&daemon).await;
        assert_eq!(http::get(daemon.admin(), "/readyz").await.status, 200);
        daemon.signal(Signal::TERM);
        let from = Instant::now();
        while http::get(daemon.admin(), "/readyz").await.status == 200 {
            assert!(from.elapsed() < PATIENCE);
        }
        assert!(from.elapsed() < Duration::from_secs(2), "{:?}", from.elapsed());
        let ready = http::get(daemon.admin(), "/readyz").await;
        assert_eq!((ready.status, ready.body.as_str()), (503, "draining\n"));

        silent.send(&Connect::v5("silent").bytes()).await;
        silent.expect_last(&told).await;
        let mut shaking = Device::over(shaking).await.unwrap();
        shaking.send(&Connect::v311("shaking").bytes()).await;
        shaking.expect_last(&connack_v3(3)).await;
        let mut new = Device::dial(&daemon).await;
        new.send(&Connect::v5("new").bytes()).await;
        new.expect_last(&told).await;
        daemon
            .counts("seawall_refused_total", &[("reason", "draining")], 3.0)
            .await;

        daemon.signal(Signal::TERM);
        let cut = Instant::now();
        assert_eq!(daemon.wait_for_end(PATIENCE).code(), Some(1), "a second signal");
        assert!(cut.elapsed() < Duration::from_secs(3), "{:?}", cut.elapsed());
    }
}

#[tokio::test]
async fn a_listener_that_is_closed_takes_nobody() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let settings = [("drain.listener", "\"close\""), ("drain.spread", "\"2s\"")];
    let daemon = Daemon::start(&scene, broker.address(), &settings);
    let first = Device::join(&daemon, Connect::v311("first")).await;
    let second = Device::join(&daemon, Connect::v311("second")).await;
    daemon.signal(Signal::TERM);
    let address = daemon.address();
    eventually("the port is closed", || {
        std::net::TcpStream::connect(address).is_err()
    })
    .await;
    let (first, second) = tokio::join!(first.rest(PATIENCE), second.rest(PATIENCE));
    assert_eq!((first.1, second.1), (End::Clean, End::Clean));
    assert_eq!(daemon.wait_for_end(PATIENCE).code(), Some(0));
}

/// They are told over the time of the drain, and not all at once, to come all back at once.
#[tokio::test]
async fn the_held_and_the_delayed_are_told_one_after_the_other() {
    const CLIENTS: usize = 40;
    let scene = Scene::new();
    // Only one is in flight, for ever.
    let held = [
        ("admission.max_in_flight", "1"),
        ("admission.max_wait", "\"30s\""),
    ];
    let delayed = [
        ("admission.rate", "0.001"),
        ("admission.burst", "1"),
        ("refusal.delay", "\"60s\""),
    ];
    for (phase, settings) in [("held", &held[..]), ("delayed", &delayed)] {
        let broker = Stub::mute().await;
        let settings = [settings, &[("drain.spread", "\"4s\"")]].concat();
        let daemon = Daemon::start(&scene, broker.address(), &settings);
        let mut first = Device::dial(&daemon).await;
        first.send(&Connect::v311("first").bytes()).await;
        broker.visit(0).await;
        let mut devices = Vec::new();
        for _ in 0..CLIENTS {
            let mut device = Device::dial(&daemon).await;
            device.send(&Connect::v311("waits").bytes()).await;
            devices.push(device);
        }
        let total = "seawall_connections_open";
        daemon
            .metrics_until("all have come so far", |metrics| {
                // A delayed one's time may be over at once.
                metrics.sum(total, &[("phase", phase)]) >= CLIENTS as f64 * 0.9
            })
            .await;
        let begun = Instant::now();
        daemon.signal(Signal::TERM);
        let mut waiting = tokio::task::JoinSet::new();
        for device in devices {
            waiting.spawn(async move {
                let (bytes, end) = device.rest(PATIENCE).await;
                assert_eq!((hex(&bytes), end), (hex(&connack_v3(3)), End::Clean));
                begun.elapsed()
            });
        }
        let mut told: Vec<Duration> = waiting.join_all().await;
        told.sort_unstable();
        let early = told.iter().filter(|at| **at < Duration::from_secs(2)).count();
        assert!(
            (CLIENTS * 3 / 10..=CLIENTS * 7 / 10).contains(&early),
            "{early} of {CLIENTS} {phase} in the first half: {told:?}"
        );
        assert!(told[CLIENTS - 1] < Duration::from_secs(6), "{told:?}");
        first.vanish();
        assert_eq!(daemon.wait_for_end(PATIENCE).code(), Some(0));
    }
}

#[tokio::test]
async fn a_session_that_is_too_old_is_ended_like_in_a_drain() {
    const CLIENTS: usize = 60;
    let scene = Scene::new();
    let broker = Stub::content().await;
    let daemon = Daemon::start(&scene, broker.address(), &[("relay.max_age", "\"2s\"")]);
    let mut sessions = tokio::task::JoinSet::new();
    for number in 0..CLIENTS {
        let address = daemon.address();
        sessions.spawn(async move {
            let name = format!("{number}");
            let level = if number % 2 == 0 { 5 } else { 4 };
            let from = Instant::now();
            let mut device = Device::try_dial(address).await.unwrap();
            device.send(&Connect::level(level, &name).bytes()).await;
            device.expect_packet(&packet::accepted(level)).await;
            let joined = from.elapsed();
            let (bytes, end) = device.rest(PATIENCE).await;
            let words: &[u8] = if level == 5 { &[0xE0, 2, 0xA0, 0] } else { &[] };
            assert_eq!((hex(&bytes), end), (hex(words), End::Clean));
            (from.elapsed(), joined)
        });
    }
    let mut ages = Vec::new();
    while let Some(one) = sessions.join_next().await {
        let (age, joined) = one.unwrap();
        // From accept, which is before the CONNACK.
        assert!(age > Duration::from_millis(1_790), "{age:?}");
        assert!(age < Duration::from_millis(2_700) + joined, "{age:?}, {joined:?}");
        ages.push(age);
    }
    ages.sort_unstable();
    assert!(
        ages[CLIENTS - 1] > ages[0] + Duration::from_millis(200),
        "no jitter: {ages:?}"
    );
    for index in 0..CLIENTS {
        let visit = broker.visit(index).await;
        assert_eq!(visit.end().await, VisitEnd::Fin);
        assert_eq!(visit.received()[visit.received().len() - 2..], DISCONNECT);
    }
    let labels = [("side", "proxy"), ("phase", "relaying")];
    daemon
        .counts("seawall_closed_total", &labels, CLIENTS as f64)
        .await;
}

/// Who was refused by the broker has no session that could be ended with a DISCONNECT.
#[tokio::test]
async fn after_a_refusal_of_the_brokers_nothing_is_said() {
    let scene = Scene::new();
    let broker = Stub::start(|mut link| async move {
        link.packet().await;
        link.send(&connack_v5(0x87)).await;
        link.listen().await;
    })
    .await;
    let daemon = Daemon::start(&scene, broker.address(), &[SHORT]);
    let connect = Connect::v5("refused");
    let mut device = Device::dial(&daemon).await;
    device.send(&connect.bytes()).await;
    device.expect_packet(&connack_v5(0x87)).await;
    daemon.signal(Signal::TERM);
    device.expect_last(&[]).await;
    let visit = broker.visit(0).await;
    visit.end().await;
    assert_eq!(hex(&visit.received()), hex(&connect.bytes()));
}

/// Where the first bytes of a packet came with the CONNECT, and through an outgoing PROXY header, the boundary is still
/// where it is.
#[tokio::test]
async fn packets_that_came_with_the_connect_are_counted() {
    let scene = Scene::new();
    let broker = Stub::start(|mut link| async move {
        // Answers on the first bytes: they are a header and no packet.
        link.piece().await;
        link.send(&packet::accepted(5)).await;
        link.listen().await;
    })
    .await;
    let settings = [("upstream.proxy_protocol", "\"v1\""), SHORT];
    for whole in [true, false] {
        let daemon = Daemon::start(&scene, broker.address(), &settings);
        let publish = packet::publish(5, "topic", None, &[0xE0; 3_000]);
        let connect = Connect::v5("eager").bytes();
        let (early, late) = publish.split_at(if whole { publish.len() } else { 1_000 });
        let mut device = Device::dial(&daemon).await;
        device.send(&[&connect[..], early].concat()).await;
        device.expect_packet(&packet::accepted(5)).await;
        daemon.signal(Signal::TERM);
        if !whole {
            device.send(late).await;
        }
        device.expect_last(&SHUTTING_DOWN).await;
        let visit = broker.visit(usize::from(!whole)).await;
        assert_eq!(visit.end().await, VisitEnd::Fin);
        let sent = [&connect[..], &publish, &DISCONNECT].concat();
        let received = visit.received();
        let header = received.iter().position(|byte| *byte == b'\n').unwrap();
        assert!(received[header + 1..] == sent, "{}", hex(&received));
        assert_eq!(daemon.wait_for_end(PATIENCE).code(), Some(0));
    }
}
