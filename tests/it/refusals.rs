//! Who is refused and how: lanes, bad credentials, appointments, delays.

use crate::rig::device::hex;
use crate::rig::packet::{connack_v3, connack_v5};
use crate::rig::{Connect, Daemon, Device, End, Mosquitto, PATIENCE, Scene, Stub, report};
use std::time::{Duration, Instant};

/// One token and no more for a long time, and codes alone.
const ONE_TOKEN: [(&str, &str); 3] = [
    ("admission.rate", "0.01"),
    ("admission.burst", "1"),
    ("refusal.reason_string", "false"),
];

async fn told(daemon: &Daemon, connect: Connect<'_>) -> Vec<u8> {
    let mut device = Device::dial(daemon).await;
    device.send(&connect.bytes()).await;
    device.packet().await
}

#[tokio::test]
async fn a_v5_client_is_told_when_there_will_be_room() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let settings = [
        ("admission.rate", "2"),
        ("admission.burst", "1"),
        ("refusal.reason_string", "false"),
        ("refusal.retry_after", "true"),
    ];
    let daemon = Daemon::start(&scene, broker.address(), &settings);
    let from = Instant::now();
    let _session = Device::join(&daemon, Connect::v5("first")).await;
    let mut promised = Vec::new();
    for client in ["second", "third", "fourth"] {
        let connack = told(&daemon, Connect::v5(client)).await;
        // 20 LEN 00 89 PROPERTIES 26 000E "retry-after-ms" LENGTH DIGITS
        let (head, rest) = connack.split_at(5);
        assert_eq!((head[0], head[2], head[3]), (0x20, 0, 0x89), "{}", hex(&connack));
        assert_eq!(usize::from(head[1]), connack.len() - 2);
        assert_eq!(usize::from(head[4]), rest.len());
        assert_eq!(rest[..17], [&[0x26, 0, 14][..], b"retry-after-ms"].concat());
        let digits = std::str::from_utf8(&rest[19..]).unwrap();
        assert_eq!(
            usize::from(u16::from_be_bytes([rest[17], rest[18]])),
            digits.len()
        );
        promised.push(from.elapsed() + Duration::from_millis(digits.parse().unwrap()));
    }
    // A token every 500 ms, each promised once.
    for (number, pair) in promised.windows(2).enumerate() {
        let apart = pair[1].saturating_sub(pair[0]);
        assert!(
            (Duration::from_millis(350)..Duration::from_millis(650)).contains(&apart),
            "{number}: {promised:?}"
        );
    }
    tokio::time::sleep(promised[0].saturating_sub(from.elapsed()) + Duration::from_millis(5)).await;
    let _kept = Device::join(&daemon, Connect::v5("second")).await;
    // The older versions have no place for it.
    assert_eq!(
        hex(&told(&daemon, Connect::v311("old")).await),
        hex(&connack_v3(3))
    );
}

#[tokio::test]
async fn a_busy_v5_client_is_sent_elsewhere() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let elsewhere = ("refusal.server_reference", "\"b:8883\"");
    let daemon = Daemon::start(&scene, broker.address(), &[&ONE_TOKEN[..], &[elsewhere]].concat());
    let _session = Device::join(&daemon, Connect::v5("first")).await;
    let connack = told(&daemon, Connect::v5("second")).await;
    let expected = [&[0x20, 12, 0, 0x9C, 9, 0x1C, 0, 6][..], b"b:8883"].concat();
    assert_eq!(hex(&connack), hex(&expected));
    // Maximum Packet Size 13: the reference would make 14.
    let small = Connect {
        properties: &[0x27, 0, 0, 0, 13],
        ..Connect::v5("small")
    };
    assert_eq!(hex(&told(&daemon, small).await), hex(&connack_v5(0x89)));
    assert_eq!(
        hex(&told(&daemon, Connect::v311("old")).await),
        hex(&connack_v3(3))
    );
}

#[tokio::test]
async fn bad_credentials_are_answered_from_memory_and_good_ones_are_not() {
    let scene = Scene::new();
    let broker = Stub::start(|mut link| async move {
        let Some(connect) = link.packet().await else {
            return;
        };
        let is_good = connect.ends_with(b"right");
        let code = match (is_good, crate::rig::stub::level(&connect)) {
            (true, _) => 0,
            (false, 5) => 0x86,
            (false, _) => 5,
        };
        if crate::rig::stub::level(&connect) == 5 {
            link.send(&connack_v5(code)).await;
        } else {
            link.send(&connack_v3(code)).await;
        }
        link.listen().await;
    })
    .await;
    let daemon = Daemon::start(&scene, broker.address(), &[]);
    let with = |level: u8, password: &'static [u8]| Connect {
        username: Some("meter"),
        password: Some(password),
        ..Connect::level(level, "meter-1")
    };
    for (level, answer) in [(4, connack_v3(5)), (5, connack_v5(0x86))] {
        let before = broker.visits();
        for _ in 0..10 {
            assert_eq!(hex(&told(&daemon, with(level, b"wrong")).await), hex(&answer));
        }
        assert_eq!(broker.visits() - before, 3, "the broker was asked, level {level}");
    }
    let metrics = daemon.metrics().await;
    assert_eq!(
        metrics.sum("seawall_refused_total", &[("reason", "bad-credentials")]),
        14.0
    );
    assert!(metrics.sum("seawall_bad_credentials", &[]) >= 2.0);
    // A corrected password is tried at once, and another client is nobody's concern.
    let _corrected = Device::join(&daemon, with(4, b"right")).await;
    let other = Connect {
        username: Some("meter"),
        password: Some(b"wrong"),
        ..Connect::v311("meter-2")
    };
    let before = broker.visits();
    assert_eq!(hex(&told(&daemon, other).await), hex(&connack_v3(5)));
    assert_eq!(broker.visits(), before + 1);
}

#[tokio::test]
async fn a_client_that_comes_too_often_is_told_so() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let settings = [
        ("admission.per_client.rate", "0.1"),
        ("admission.per_client.burst", "2"),
        ("refusal.reason_string", "false"),
    ];
    let daemon = Daemon::start(&scene, broker.address(), &settings);
    for _ in 0..2 {
        Device::join(&daemon, Connect::v5("hot")).await.close().await;
    }
    assert_eq!(
        hex(&told(&daemon, Connect::v5("hot")).await),
        hex(&connack_v5(0x9F))
    );
    let _other = Device::join(&daemon, Connect::v5("calm")).await;
}

/// eclipse/paho.mqtt.java #569 and others: a refused 3.1.1 is followed at once by 3.1, and a lucky one keeps the device there.
#[tokio::test]
async fn the_second_dial_as_3_1_is_the_same_device() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let settings = [("admission.rate", "4"), ("admission.burst", "1")];
    let daemon = Daemon::start(&scene, broker.address(), &settings);
    let _session = Device::join(&daemon, Connect::v311("first")).await;
    let refused = Instant::now();
    assert_eq!(told(&daemon, Connect::v311("device")).await, connack_v3(3));
    // The token is there again.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let answer = told(&daemon, Connect::level(3, "device")).await;
    if refused.elapsed() < Duration::from_secs(1) {
        assert_eq!(answer, connack_v3(3));
        assert_eq!(broker.visits(), 1);
    }
    let _other = Device::join(&daemon, Connect::level(3, "speaks 3.1")).await;
}

/// rabbitmq/rabbitmq-mqtt #91 and others: two devices with one client id kick each other out for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twins_are_slowed_down_and_the_others_are_not() {
    const TRIAL: Duration = Duration::from_secs(4);
    let scene = Scene::new();
    let broker = Mosquitto::start(&scene);
    let daemon = Daemon::start(&scene, broker.address(), &[]);
    let (from, address) = (Instant::now(), daemon.address());
    let mut twins = tokio::task::JoinSet::new();
    for _ in 0..2 {
        twins.spawn(async move {
            let mut accepted = 0;
            while from.elapsed() < TRIAL {
                let Ok(mut device) = Device::try_dial(address).await else {
                    continue;
                };
                let _ = device.try_send(&Connect::v311("twin").bytes()).await;
                let answer = device.try_packet().await;
                if answer.is_ok_and(|answer| answer == connack_v3(0)) {
                    accepted += 1;
                    let left = TRIAL.saturating_sub(from.elapsed());
                    // Until the other one takes it over.
                    let _ = tokio::time::timeout(left, device.try_packet()).await;
                }
            }
            accepted
        });
    }
    let mut others = Vec::new();
    for number in 0..10 {
        others.push(Device::join(&daemon, Connect::v311(&format!("other-{number}"))).await);
    }
    let accepted: u32 = twins.join_all().await.into_iter().sum();
    let metrics = daemon.metrics().await;
    let refused = metrics.sum("seawall_refused_total", &[("reason", "client-rate")]);
    report(&format!(
        "twins: {accepted} times in within {TRIAL:?}, {refused} times refused"
    ));
    // Five before they are seen, then after one, two and four seconds.
    assert!((4..=9).contains(&accepted), "{accepted}");
    assert!(refused >= 1.0);
}

#[tokio::test]
async fn a_reserve_is_for_its_lane_alone() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let settings = [
        ("admission.rate", "10"),
        ("admission.burst", "10"),
        ("refusal.reason_string", "false"),
        (
            "admission.lanes",
            "[{ name = \"tablets\", client_id = \"tablet-*\", source = [\"127.0.0.0/8\"], reserve = 5 }]",
        ),
    ];
    let daemon = Daemon::start(&scene, broker.address(), &settings);
    // A crowd takes all that is for everybody.
    let mut sessions = Vec::new();
    let mut refused = 0.0;
    for number in 0..40 {
        let mut device = Device::dial(&daemon).await;
        device
            .send(&Connect::v311(&format!("sensor-{number}")).bytes())
            .await;
        if device.packet().await == connack_v3(0) {
            sessions.push(device);
        } else {
            refused += 1.0;
        }
    }
    assert!(refused > 0.0);
    for number in 0..5 {
        sessions.push(Device::join(&daemon, Connect::v311(&format!("tablet-{number}"))).await);
    }
    let metrics = daemon.metrics().await;
    let connects = |decision, lane| {
        metrics.sum(
            "seawall_connects_total",
            &[("decision", decision), ("lane", lane)],
        )
    };
    assert_eq!(connects("admitted", "tablets"), 5.0);
    assert_eq!(connects("refused", "tablets"), 0.0);
    assert_eq!(connects("refused", "default"), refused);
    assert_eq!(
        metrics.sum("seawall_refused_total", &[("lane", "default")]),
        refused
    );
}

#[tokio::test]
async fn refusals_are_spread_over_the_delay_and_the_excess_is_answered_at_once() {
    const CLIENTS: usize = 30;
    const PLACES: usize = 20;
    let scene = Scene::new();
    let broker = Stub::content().await;
    let delays = [("refusal.delay", "\"2s\""), ("refusal.max_delayed", "20")];
    let daemon = Daemon::start(&scene, broker.address(), &[&ONE_TOKEN[..], &delays].concat());
    let _session = Device::join(&daemon, Connect::v311("first")).await;
    let mut devices = Vec::new();
    for _ in 0..CLIENTS {
        devices.push(Device::dial(&daemon).await);
    }
    let mut waiting = tokio::task::JoinSet::new();
    for (number, mut device) in devices.into_iter().enumerate() {
        waiting.spawn(async move {
            device
                .send(&Connect::v311(&format!("device-{number}")).bytes())
                .await;
            let sent = Instant::now();
            let (bytes, end) = device.rest(PATIENCE).await;
            assert_eq!((hex(&bytes), end), (hex(&connack_v3(3)), End::Clean));
            sent.elapsed()
        });
    }
    let mut times = waiting.join_all().await;
    times.sort();
    assert!(*times.last().unwrap() < Duration::from_millis(2700), "{times:?}");
    let late = times
        .iter()
        .filter(|time| **time > Duration::from_secs(1))
        .count();
    assert!(
        (3..=17).contains(&late),
        "of {PLACES} half wait for over a second: {times:?}"
    );
    let at_once = times
        .iter()
        .filter(|time| **time < Duration::from_millis(400))
        .count();
    assert!(at_once >= CLIENTS - PLACES, "{times:?}");
}

#[tokio::test]
async fn who_leaves_while_delayed_gives_its_place_back() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let delays = [("refusal.delay", "\"60s\""), ("refusal.max_delayed", "1")];
    let daemon = Daemon::start(&scene, broker.address(), &[&ONE_TOKEN[..], &delays].concat());
    let _session = Device::join(&daemon, Connect::v311("first")).await;
    let delayed = |count: f64| {
        daemon.metrics_until("a delayed client", move |metrics| {
            metrics.sum("seawall_connections_open", &[("phase", "delayed")]) == count
        })
    };
    for name in ["second", "third"] {
        let mut device = Device::dial(&daemon).await;
        device.send(&Connect::v311(name).bytes()).await;
        delayed(1.0).await;
        assert_eq!(
            hex(&told(&daemon, Connect::v311("excess")).await),
            hex(&connack_v3(3))
        );
        device.close().await;
        delayed(0.0).await;
    }
}
