//! The session after the CONNACK: an opaque stream both ways, bounded, and ended well on each kind of end.

use crate::rig::packet;
use crate::rig::stub::VisitEnd;
use crate::rig::{Connect, Daemon, Device, Mosquitto, PATIENCE, Scene, Stub, eventually, within};
use aws_lc_rs::digest::{SHA256, digest};
use std::collections::HashSet;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const MEBIBYTE: usize = 1024 * 1024;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_mebibytes_both_ways_in_random_pieces() {
    let scene = Scene::new();
    let upwards = packet::publish(4, "up", None, &noise(10 * MEBIBYTE));
    let downwards = packet::publish(4, "down", None, &noise(10 * MEBIBYTE));
    let (expected_up, expected_down) = (sha256(&upwards), sha256(&downwards));

    let from_broker = downwards.clone();
    let broker = Stub::start(move |mut link| {
        let from_broker = from_broker.clone();
        async move {
            link.accept().await;
            link.exchange(&from_broker, 100_000).await;
        }
    })
    .await;
    let daemon = Daemon::start(&scene, broker.address(), &[]);
    let connect = Connect::v311("heavy").bytes();
    let device = Device::join(&daemon, Connect::v311("heavy")).await;
    let (mut reading, mut writing) = device.split();
    let length = upwards.len();
    let sending = tokio::spawn(async move {
        for piece in random_pieces(&upwards, 40_000) {
            writing.write_all(piece).await.unwrap();
            writing.flush().await.unwrap();
        }
        writing
    });
    let mut received = vec![0; downwards.len()];
    within(
        Duration::from_mins(1),
        "10 MiB",
        reading.read_exact(&mut received),
    )
    .await
    .unwrap();
    assert_eq!(sha256(&received), expected_down, "downwards");
    let writing = within(Duration::from_mins(1), "10 MiB", sending).await.unwrap();
    let at_broker = broker
        .visit(0)
        .await
        .received_at_least(connect.len() + length)
        .await;
    assert_eq!(sha256(&at_broker[connect.len()..]), expected_up, "upwards");

    drop((reading, writing));
    let metrics = daemon
        .counts("seawall_closed_total", &[("phase", "relaying")], 1.0)
        .await;
    for direction in ["up", "down"] {
        let bytes = metrics.sum("seawall_relay_bytes_total", &[("direction", direction)]);
        assert!(
            (bytes - length as f64).abs() < 1000.0,
            "{direction}: {bytes} for {length}"
        );
    }
}

#[tokio::test]
async fn relayed_bytes_are_counted_while_the_session_lasts() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let daemon = Daemon::start(&scene, broker.address(), &[]);
    let mut device = Device::join(&daemon, Connect::v311("long-lived")).await;
    device
        .send(&packet::publish(4, "up", None, &noise(MEBIBYTE)))
        .await;
    daemon
        .metrics_until("a mebibyte upwards", |m| {
            m.sum("seawall_relay_bytes_total", &[("direction", "up")]) >= MEBIBYTE as f64
        })
        .await;
}

fn noise(length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    fastrand::Rng::new().fill(&mut bytes);
    bytes
}

fn sha256(bytes: &[u8]) -> String {
    format!("{:02x?}", digest(&SHA256, bytes).as_ref())
}

fn random_pieces(mut bytes: &[u8], most: usize) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (piece, rest) = bytes.split_at(fastrand::usize(1..=most).min(bytes.len()));
        bytes = rest;
        (!piece.is_empty()).then_some(piece)
    })
}

/// Metric and audit have one meaning: what the broker got from the CONNECT on, and the client from its first answer on.
#[tokio::test]
async fn metric_and_audit_count_the_same_bytes() {
    let scene = Scene::new();
    let broker = Stub::start(|mut link| async move {
        // A header, where there is one, comes in one piece with the CONNECT.
        link.piece().await;
        link.send(&packet::accepted(4)).await;
        link.echo().await;
    })
    .await;
    for header in ["off", "v1"] {
        let path = scene.text_path(&format!("{header}.jsonl"));
        let (audit, header) = (format!("{path:?}"), format!("{header:?}"));
        let settings = [
            ("audit.path", &audit[..]),
            ("upstream.proxy_protocol", &header[..]),
        ];
        let daemon = Daemon::start(&scene, broker.address(), &settings);
        let connect = Connect::v311("counted");
        let mut device = Device::join(&daemon, connect).await;
        device.send(&packet::PINGREQ).await;
        device.expect_packet(&packet::PINGREQ).await;
        device.close().await;
        let metrics = daemon.counts("seawall_closed_total", &[], 1.0).await;
        let (up, down) = (connect.bytes().len() + 2, packet::accepted(4).len() + 2);
        let counted = |direction| metrics.sum("seawall_relay_bytes_total", &[("direction", direction)]);
        assert_eq!(
            (counted("up"), counted("down")),
            (up as f64, down as f64),
            "{header}"
        );
        let line = format!(r#""bytes_up":{up},"bytes_down":{down},"#);
        eventually("the audit's line", || {
            std::fs::read_to_string(&path).is_ok_and(|audit| audit.contains(&line))
        })
        .await;
    }
}

#[tokio::test]
async fn a_client_that_has_finished_sending_still_receives() {
    let scene = Scene::new();
    let broker = Stub::start(|mut link| async move {
        link.accept().await;
        link.listen().await;
        link.send(&packet::publish(4, "late", None, &vec![b'x'; 100_000]))
            .await;
    })
    .await;
    let daemon = Daemon::start(&scene, broker.address(), &[]);
    let mut device = Device::join(&daemon, Connect::v311("polite")).await;
    device.send(&packet::DISCONNECT).await;
    device.finish_sending().await;
    device
        .expect_last(&packet::publish(4, "late", None, &vec![b'x'; 100_000]))
        .await;
    assert_eq!(broker.visit(0).await.end().await, VisitEnd::Fin);
}

#[tokio::test]
async fn what_the_broker_sent_before_its_end_arrives() {
    let scene = Scene::new();
    let last_words = packet::publish(4, "last", None, &vec![b'x'; 200_000]);
    for reset in [false, true] {
        let words = last_words.clone();
        let broker = Stub::start(move |mut link| {
            let words = words.clone();
            async move {
                link.accept().await;
                link.send(&words).await;
                if reset {
                    // Bytes that the kernel still holds would go with a reset: let the proxy take them first.
                    tokio::time::sleep(Duration::from_millis(500)).await;
                    link.reset();
                }
            }
        })
        .await;
        let daemon = Daemon::start(&scene, broker.address(), &[]);
        let device = Device::join(&daemon, Connect::v311("listener")).await;
        device.expect_last(&last_words).await;
        daemon
            .counts(
                "seawall_closed_total",
                &[("side", "broker"), ("phase", "relaying")],
                1.0,
            )
            .await;
    }
}

#[tokio::test]
async fn a_client_that_leaves_is_closed_to_the_broker_without_words() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let daemon = Daemon::start(&scene, broker.address(), &[]);
    let connect = Connect::v311("gone");
    let goodbyes: [fn(Device); 2] = [Device::reset, Device::vanish];
    for (index, goodbye) in goodbyes.into_iter().enumerate() {
        goodbye(Device::join(&daemon, connect).await);
        let visit = broker.visit(index).await;
        visit.end().await;
        assert_eq!(
            visit.received(),
            connect.bytes(),
            "something was said for the client"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_publish_disconnect_reset_lose_nothing() {
    let scene = Scene::new();
    let broker = Mosquitto::start(&scene);
    let daemon = Daemon::start(&scene, broker.address(), &[]);
    let mut subscriber = Device::join(&daemon, Connect::v311("subscriber")).await;
    subscriber.send(&packet::subscribe(4, "last/#", 0)).await;
    subscriber.packet().await;
    let baseline = daemon.descriptors();

    let publishing = crowd(1000, 50, move |address, number| async move {
        let mut device = Device::try_dial(address).await.unwrap();
        device
            .send(&Connect::v311(&format!("brief-{number}")).bytes())
            .await;
        device.expect_packet(&packet::accepted(4)).await;
        let publish = packet::publish(4, &format!("last/{number}"), Some(1), b"words");
        device.send(&[&publish[..], &packet::DISCONNECT].concat()).await;
        device.reset();
    });
    let received = collect_topics(&mut subscriber, 1000);
    let (received, ()) = tokio::join!(received, publishing(daemon.address()));
    assert_eq!(received.len(), 1000);
    daemon.descriptors_back_to(baseline).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_killed_clients_are_a_thousand_wills() {
    let scene = Scene::new();
    let broker = Mosquitto::start(&scene);
    let daemon = Daemon::start(&scene, broker.address(), &[]);
    let mut subscriber = Device::join(&daemon, Connect::v311("subscriber")).await;
    subscriber.send(&packet::subscribe(4, "will/#", 0)).await;
    subscriber.packet().await;
    let baseline = daemon.descriptors();

    let dying = crowd(1000, 50, move |address, number| async move {
        let level = if number % 2 == 0 { 4 } else { 5 };
        let (id, topic) = (format!("mortal-{number}"), format!("will/{number}"));
        let connect = Connect {
            will: Some((&topic, b"gone")),
            ..Connect::level(level, &id)
        };
        let mut device = Device::try_dial(address).await.unwrap();
        device.send(&connect.bytes()).await;
        let connack = device.packet().await;
        assert_eq!(connack[3], 0, "{connack:?}");
        match number % 4 {
            0 | 1 => device.reset(),
            _ => device.vanish(),
        }
    });
    let received = collect_topics(&mut subscriber, 1000);
    let (received, ()) = tokio::join!(received, dying(daemon.address()));
    assert_eq!(received.len(), 1000);
    daemon.descriptors_back_to(baseline).await;
}

/// `count` clients, at most `at_once` of them at a time.
fn crowd<C, F>(count: usize, at_once: usize, client: C) -> impl AsyncFnOnce(std::net::SocketAddr)
where
    C: Fn(std::net::SocketAddr, usize) -> F,
    F: Future<Output = ()> + Send + 'static,
{
    async move |address| {
        let mut running = tokio::task::JoinSet::new();
        for number in 0..count {
            if running.len() >= at_once {
                running.join_next().await.unwrap().unwrap();
            }
            running.spawn(client(address, number));
        }
        while let Some(done) = running.join_next().await {
            done.unwrap();
        }
    }
}

/// The topics of the next `count` messages.
async fn collect_topics(subscriber: &mut Device, count: usize) -> HashSet<String> {
    let mut topics = HashSet::new();
    let collecting = async {
        while topics.len() < count {
            let (topic, _, _) = packet::published(4, &subscriber.packet_within(Duration::from_mins(1)).await);
            assert!(topics.insert(topic), "a message came twice");
        }
    };
    if tokio::time::timeout(Duration::from_secs(90), collecting)
        .await
        .is_err()
    {
        panic!("{} of {count} messages arrived", topics.len());
    }
    topics
}

#[tokio::test]
async fn a_silent_client_is_closed_after_one_and_a_half_keep_alives() {
    let scene = Scene::new();
    let server_keep_alive = Stub::start(|mut link| async move {
        link.packet().await;
        link.send(&[0x20, 6, 0, 0, 3, 0x13, 0, 1]).await;
        link.listen().await;
    })
    .await;
    let content = Stub::content().await;
    let plain = Daemon::start(&scene, content.address(), &[]);
    let overruled = Daemon::start(&scene, server_keep_alive.address(), &[]);

    let closed_in_time = async |daemon: &Daemon, connect: Connect<'_>| {
        let mut device = Device::dial(daemon).await;
        device.send(&connect.bytes()).await;
        assert_eq!(device.packet().await[3], 0);
        let from = Instant::now();
        device.expect_last(&[]).await;
        let silence = from.elapsed();
        assert!(
            silence > Duration::from_millis(1350) && silence < Duration::from_millis(2500),
            "{silence:?}"
        );
    };
    let stays = async |daemon: &Daemon, connect: Connect<'_>| {
        let mut device = Device::join(daemon, connect).await;
        let silent = tokio::time::timeout(Duration::from_secs(4), device.try_packet()).await;
        assert!(silent.is_err(), "closed: {silent:?}");
    };
    let pings = async |daemon: &Daemon| {
        let mut device = Device::join(
            daemon,
            Connect {
                keep_alive: 1,
                ..Connect::v311("lively")
            },
        )
        .await;
        for _ in 0..8 {
            tokio::time::sleep(Duration::from_millis(500)).await;
            device.send(&packet::PINGREQ).await;
        }
    };
    tokio::join!(
        closed_in_time(
            &plain,
            Connect {
                keep_alive: 1,
                ..Connect::v311("silent")
            }
        ),
        closed_in_time(
            &plain,
            Connect {
                keep_alive: 1,
                ..Connect::v5("silent")
            }
        ),
        closed_in_time(
            &overruled,
            Connect {
                keep_alive: 60,
                ..Connect::v5("overruled")
            }
        ),
        closed_in_time(
            &overruled,
            Connect {
                keep_alive: 0,
                ..Connect::v5("overruled")
            }
        ),
        stays(
            &plain,
            Connect {
                keep_alive: 0,
                ..Connect::v311("no keep-alive")
            }
        ),
        stays(
            &plain,
            Connect {
                keep_alive: 60,
                ..Connect::v5("long keep-alive")
            }
        ),
        pings(&plain),
    );
    plain
        .counts(
            "seawall_closed_total",
            &[("side", "proxy"), ("phase", "relaying")],
            2.0,
        )
        .await;
}

#[tokio::test]
async fn a_server_keep_alive_of_zero_means_none() {
    let scene = Scene::new();
    let broker = Stub::start(|mut link| async move {
        link.packet().await;
        link.send(&[0x20, 6, 0, 0, 3, 0x13, 0, 0]).await;
        link.listen().await;
    })
    .await;
    let daemon = Daemon::start(&scene, broker.address(), &[]);
    let mut device = Device::dial(&daemon).await;
    device
        .send(
            &Connect {
                keep_alive: 1,
                ..Connect::v5("freed")
            }
            .bytes(),
        )
        .await;
    device.packet().await;
    let silent = tokio::time::timeout(Duration::from_secs(3), device.try_packet()).await;
    assert!(silent.is_err(), "closed: {silent:?}");
}

#[tokio::test]
async fn a_broker_that_ignores_the_end_leaks_nothing() {
    let scene = Scene::new();
    let deaf = Stub::start(|mut link| async move {
        link.accept().await;
        link.hold(Duration::from_mins(2)).await;
    })
    .await;
    let daemon = Daemon::start(&scene, deaf.address(), &[("relay.write_timeout", "\"2s\"")]);
    let baseline = daemon.descriptors();
    for number in 0..30 {
        let mut device = Device::join(&daemon, Connect::v311(&format!("leaving-{number}"))).await;
        match number % 3 {
            0 => device.reset(),
            1 => device.vanish(),
            _ => {
                device.send(&packet::DISCONNECT).await;
                device.close().await;
            }
        }
    }
    assert_eq!(deaf.visits(), 30);
    daemon.descriptors_back_to(baseline).await;
    daemon.counts("seawall_connections_open", &[], 0.0).await;
}

#[tokio::test]
async fn a_client_that_takes_nothing_is_bounded_and_cut_off() {
    let scene = Scene::new();
    let broker = Stub::start(|mut link| async move {
        link.accept().await;
        link.pour(64 * MEBIBYTE).await;
    })
    .await;
    let daemon = Daemon::start(&scene, broker.address(), &[("relay.write_timeout", "\"2s\"")]);
    let memory = daemon.resident();
    let stuck = Device::join(&daemon, Connect::v311("stuck")).await;
    tokio::time::sleep(Duration::from_millis(1200)).await;
    let grown = daemon.resident().saturating_sub(memory);
    assert!(
        grown < 2 * MEBIBYTE,
        "{grown} bytes for a client that does not read"
    );
    assert!(broker.visit(0).await.is_open(), "cut off before its time");
    broker.visit(0).await.end().await;
    daemon
        .counts("seawall_closed_total", &[("side", "proxy")], 1.0)
        .await;
    drop(stuck);
}

#[tokio::test]
async fn a_slow_but_steady_reader_is_kept() {
    let scene = Scene::new();
    let broker = Stub::start(|mut link| async move {
        link.accept().await;
        link.pour(64 * MEBIBYTE).await;
    })
    .await;
    let daemon = Daemon::start(&scene, broker.address(), &[("relay.write_timeout", "\"1s\"")]);
    let (mut reading, _writing) = Device::join(&daemon, Connect::v311("slow")).await.split();
    let mut piece = vec![0; 32 * 1024];
    let from = Instant::now();
    while from.elapsed() < Duration::from_secs(5) {
        within(PATIENCE, "a piece", reading.read_exact(&mut piece))
            .await
            .expect("a slow reader was cut off");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

#[tokio::test]
async fn a_session_that_the_broker_gives_to_another_ends() {
    let scene = Scene::new();
    let broker = Mosquitto::start(&scene);
    let daemon = Daemon::start(&scene, broker.address(), &[]);
    let first = Device::join(&daemon, Connect::v311("one id")).await;
    let mut second = Device::join(&daemon, Connect::v311("one id")).await;
    first.expect_last(&[]).await;
    second.send(&packet::PINGREQ).await;
    second.expect_packet(&[0xD0, 0]).await;
}

#[tokio::test]
async fn many_vanish_and_come_again_and_nothing_is_left() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let daemon = Daemon::start(&scene, broker.address(), &[]);
    let baseline = daemon.descriptors();
    for round in 0..5 {
        let mut devices = Vec::new();
        for number in 0..40 {
            let client_id = format!("again-{round}-{number}");
            devices.push(Device::join(&daemon, Connect::v311(&client_id)).await);
        }
        for (number, device) in devices.into_iter().enumerate() {
            match number % 3 {
                0 => device.reset(),
                1 => device.vanish(),
                _ => device.close().await,
            }
        }
    }
    daemon.descriptors_back_to(baseline).await;
    eventually("the broker is rid of all", || broker.visits() == 200).await;
    for index in 0..200 {
        broker.visit(index).await.end().await;
    }
    let metrics = daemon.counts("seawall_connections_open", &[], 0.0).await;
    assert_eq!(
        metrics.sum(
            "seawall_closed_total",
            &[("side", "client"), ("phase", "relaying")]
        ),
        200.0
    );
    assert_eq!(metrics.sum("seawall_connections_total", &[]), 200.0);
}
