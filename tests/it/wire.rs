//! What a refused client reads, byte for byte, and how its connection ends.

use crate::rig::device::hex;
use crate::rig::packet::{self, connack_v3, connack_v5};
use crate::rig::stub::nobody;
use crate::rig::{Connect, Daemon, Device, End, PATIENCE, Scene, Stub, eventually};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// One token for the first client, and none for the rest of the test.
const ONE_TOKEN: [(&str, &str); 2] = [("admission.rate", "0.001"), ("admission.burst", "1")];
const PLAIN_CODES: (&str, &str) = ("refusal.reason_string", "false");

/// A daemon without room, because a client in session took the only token.
async fn crowded(scene: &Scene, broker: &Stub, settings: &[(&str, &str)]) -> (Daemon, Device) {
    let daemon = Daemon::start(scene, broker.address(), &[&ONE_TOKEN, settings].concat());
    let first = Device::join(&daemon, Connect::v311("first")).await;
    (daemon, first)
}

/// What comes back when `bytes` are the first that a client sends, up to the clean end.
async fn answer(daemon: &Daemon, bytes: &[u8]) -> Vec<u8> {
    let mut device = Device::dial(daemon).await;
    device.send(bytes).await;
    let (answer, end) = device.rest(PATIENCE).await;
    assert_eq!(
        end,
        End::Clean,
        "after {} in reply to {}",
        hex(&answer),
        hex(bytes)
    );
    answer
}

#[tokio::test]
async fn want_of_room_is_told_in_the_bytes_of_each_version() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let (daemon, _first) = crowded(&scene, &broker, &[PLAIN_CODES]).await;
    let table = [
        ("MQIsdp", 3, connack_v3(3)),
        ("MQTT", 4, connack_v3(3)),
        ("MQIsdp", 0x83, connack_v3(3)),
        ("MQTT", 0x84, connack_v3(3)),
        ("MQTT", 5, connack_v5(0x89)),
    ];
    for (name, level, expected) in &table {
        let connect = Connect {
            name,
            level: *level,
            ..Connect::v311("late")
        };
        let mut device = Device::dial(&daemon).await;
        device.send(&connect.bytes()).await;
        device.expect_packet(expected).await;
        let told = Instant::now();
        device.expect_last(&[]).await;
        assert!(
            told.elapsed() < Duration::from_secs(1),
            "{:?} from CONNACK to FIN",
            told.elapsed()
        );
    }
    assert_eq!(broker.visits(), 1, "a refused client reached the broker");
    let refused = daemon.counts("seawall_refused_total", &[], 5.0).await;
    assert_eq!(refused.sum("seawall_refused_total", &[("reason", "rate")]), 5.0);
    for (protocol, count) in [("3.1", 2.0), ("3.1.1", 2.0), ("5", 1.0)] {
        let labels = [("decision", "refused"), ("protocol", protocol)];
        assert_eq!(
            refused.sum("seawall_connects_total", &labels),
            count,
            "{protocol}"
        );
    }
}

#[tokio::test]
async fn a_v5_client_is_told_the_reason_in_words() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let (daemon, _first) = crowded(&scene, &broker, &[]).await;
    let connack = answer(&daemon, &Connect::v5("late").bytes()).await;
    assert!(!reason_string(&connack, 0x89).expect("a reason string").is_empty());
}

#[tokio::test]
async fn a_v5_answer_is_never_larger_than_the_client_allows() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let (daemon, _first) = crowded(&scene, &broker, &[]).await;
    let whole = answer(&daemon, &Connect::v5("late").bytes()).await.len() as u32;
    for limit in [
        1,
        2,
        4,
        5,
        6,
        8,
        9,
        20,
        whole - 1,
        whole,
        whole + 1,
        65_536,
        u32::MAX,
    ] {
        let property = [&[0x27][..], &limit.to_be_bytes()].concat();
        let connack = answer(
            &daemon,
            &Connect {
                properties: &property,
                ..Connect::v5("small")
            }
            .bytes(),
        )
        .await;
        if limit < 5 {
            assert_eq!(hex(&connack), "", "no CONNACK fits into {limit} bytes");
            continue;
        }
        assert!(
            connack.len() as u32 <= limit,
            "{} for a client that takes {limit} bytes",
            hex(&connack)
        );
        let words = reason_string(&connack, 0x89);
        assert!(
            words.is_some() || limit < whole,
            "the reason string would have fitted into {limit}"
        );
        if limit < 9 {
            assert_eq!(hex(&connack), hex(&connack_v5(0x89)));
        }
    }
}

/// The Reason String of a well-formed v5 CONNACK with that code.
fn reason_string(connack: &[u8], code: u8) -> Option<String> {
    assert_eq!(
        (connack[0], connack[2], connack[3]),
        (0x20, 0, code),
        "{}",
        hex(connack)
    );
    assert_eq!(
        usize::from(connack[1]),
        connack.len() - 2,
        "Remaining Length of {}",
        hex(connack)
    );
    assert_eq!(
        usize::from(connack[4]),
        connack.len() - 5,
        "property length of {}",
        hex(connack)
    );
    let mut properties = &connack[5..];
    let mut words = None;
    let text = |bytes: &mut &[u8]| {
        let length = usize::from(u16::from_be_bytes([bytes[0], bytes[1]]));
        let text = String::from_utf8(bytes[2..2 + length].to_vec()).unwrap();
        *bytes = &bytes[2 + length..];
        text
    };
    while let Some((identifier, rest)) = properties.split_first() {
        properties = rest;
        match identifier {
            0x1F => assert!(
                words.replace(text(&mut properties)).is_none(),
                "two reason strings"
            ),
            0x26 => {
                text(&mut properties);
                text(&mut properties);
            }
            other => panic!("property {other:#x} in a refusal"),
        }
    }
    words
}

#[tokio::test]
async fn method_close_closes_without_an_answer_but_protocol_errors_keep_theirs() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let (daemon, _first) = crowded(&scene, &broker, &[("refusal.method", "\"close\""), PLAIN_CODES]).await;
    for level in [3, 4, 5] {
        assert_eq!(
            hex(&answer(&daemon, &Connect::level(level, "late").bytes()).await),
            "",
            "level {level}"
        );
    }
    let unknown = Connect {
        level: 9,
        ..Connect::v311("odd")
    }
    .bytes();
    assert_eq!(hex(&answer(&daemon, &unknown).await), hex(&connack_v5(0x84)));
    let empty = Connect {
        clean: false,
        ..Connect::v311("")
    }
    .bytes();
    assert_eq!(hex(&answer(&daemon, &empty).await), hex(&connack_v3(2)));
}

#[tokio::test]
async fn method_close_also_covers_a_broker_that_is_away() {
    let scene = Scene::new();
    let daemon = Daemon::start(&scene, nobody().await, &[("refusal.method", "\"close\"")]);
    for level in [3, 4, 5] {
        assert_eq!(
            hex(&answer(&daemon, &Connect::level(level, "alone").bytes()).await),
            "",
            "level {level}"
        );
    }
}

#[tokio::test]
async fn levels_and_ids_that_no_broker_takes() {
    let unknown_level = |level| {
        Connect {
            level,
            ..Connect::v311("odd")
        }
        .bytes()
    };
    let empty_id = |level| {
        Connect {
            clean: false,
            ..Connect::level(level, "")
        }
        .bytes()
    };
    let table = [
        (unknown_level(0), connack_v3(1)),
        (unknown_level(1), connack_v3(1)),
        (unknown_level(2), connack_v3(1)),
        (unknown_level(6), connack_v5(0x84)),
        (unknown_level(127), connack_v5(0x84)),
        (empty_id(3), connack_v3(2)),
        (empty_id(4), connack_v3(2)),
    ];
    let scene = Scene::new();
    let broker = Stub::content().await;
    let daemon = Daemon::start(&scene, broker.address(), &[PLAIN_CODES]);
    for (connect, expected) in table {
        assert_eq!(
            hex(&answer(&daemon, &connect).await),
            hex(&expected),
            "in reply to {}",
            hex(&connect)
        );
    }
    assert_eq!(broker.visits(), 0);
}

/// Of a CONNECT with the name `MQTT` and less than 128 bytes: where the flags are.
const FLAGS: usize = 9;

fn with_byte(connect: Connect<'_>, place: usize, byte: u8) -> Vec<u8> {
    let mut bytes = connect.bytes();
    bytes[place] = byte;
    bytes
}

#[tokio::test]
async fn a_malformed_3_1_1_connect_is_closed_without_an_answer() {
    let plain = Connect::v311("a");
    let with_id = |client_id| Connect { client_id, ..plain }.bytes();
    let table = [
        ("reserved flag", with_byte(plain, FLAGS, 0x03)),
        ("Will QoS without a Will", with_byte(plain, FLAGS, 0x0A)),
        ("Will Retain without a Will", with_byte(plain, FLAGS, 0x22)),
        (
            "Will QoS 3",
            with_byte(
                Connect {
                    will: Some(("t", b"x")),
                    ..plain
                },
                FLAGS,
                0x1E,
            ),
        ),
        (
            "password without a user name",
            Connect {
                password: Some(b"x"),
                ..plain
            }
            .bytes(),
        ),
        ("bits in the fixed header", with_byte(plain, 0, 0x12)),
        ("U+0000 in the id", with_id(b"a\0b")),
        ("broken UTF-8 in the id", with_id(b"\xFF\xFE")),
        ("a surrogate in the id", with_id(b"\xED\xA0\x80")),
        (
            "bytes left over",
            packet::packet(0x10, &[&plain.bytes()[2..], b"x"].concat()),
        ),
        ("an id longer than the packet", with_byte(plain, 13, 9)),
        (
            "a Remaining Length of five bytes",
            vec![0x10, 0x80, 0x80, 0x80, 0x80, 0x01],
        ),
    ];
    let scene = Scene::new();
    let broker = Stub::content().await;
    let daemon = Daemon::start(&scene, broker.address(), &[]);
    let log = daemon.stderr();
    for (what, bytes) in table {
        assert_eq!(hex(&answer(&daemon, &bytes).await), "", "{what}");
    }
    assert_eq!(broker.visits(), 0, "a malformed CONNECT reached the broker");
    assert_eq!(daemon.stderr(), log, "a client wrote into the log");
}

#[tokio::test]
async fn a_malformed_v5_connect_is_told_so_or_closed() {
    let plain = Connect::v5("a");
    let with_properties = |properties| Connect { properties, ..plain }.bytes();
    let table = [
        ("reserved flag", with_byte(plain, FLAGS, 0x03)),
        (
            "Will QoS 3",
            with_byte(
                Connect {
                    will: Some(("t", b"x")),
                    ..plain
                },
                FLAGS,
                0x1E,
            ),
        ),
        (
            "U+0000 in the id",
            Connect {
                client_id: b"a\0b",
                ..plain
            }
            .bytes(),
        ),
        ("Maximum Packet Size 0", with_properties(&[0x27, 0, 0, 0, 0])),
        (
            "Maximum Packet Size twice",
            with_properties(&[0x27, 0, 0, 1, 0, 0x27, 0, 0, 1, 0]),
        ),
        ("Receive Maximum 0", with_properties(&[0x21, 0, 0])),
        (
            "Authentication Data without a Method",
            with_properties(&[0x16, 0, 1, b'x']),
        ),
        (
            "a property that CONNECT has not",
            with_properties(&[0x12, 0, 1, b'x']),
        ),
        ("properties longer than the packet", with_byte(plain, 12, 100)),
        ("Request Problem Information 2", with_properties(&[0x17, 2])),
    ];
    let scene = Scene::new();
    let broker = Stub::content().await;
    let daemon = Daemon::start(&scene, broker.address(), &[PLAIN_CODES]);
    let log = daemon.stderr();
    for (what, bytes) in table {
        let answer = answer(&daemon, &bytes).await;
        let allowed = [connack_v5(0x81), connack_v5(0x82), vec![]];
        assert!(
            allowed.contains(&answer),
            "{what}: {} → {}",
            hex(&bytes),
            hex(&answer)
        );
    }
    assert_eq!(broker.visits(), 0, "a malformed CONNECT reached the broker");
    assert_eq!(daemon.stderr(), log, "a client wrote into the log");
}

#[tokio::test]
async fn an_empty_id_is_legal_in_v5_with_a_kept_session() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let daemon = Daemon::start(&scene, broker.address(), &[]);
    let mut devices = Vec::new();
    for clean in [true, false] {
        devices.push(
            Device::join(
                &daemon,
                Connect {
                    clean,
                    ..Connect::v5("")
                },
            )
            .await,
        );
    }
    devices.push(Device::join(&daemon, Connect::v311("")).await);
    assert_eq!(broker.visits(), 3);
}

#[tokio::test]
async fn too_large_is_known_from_the_declared_length() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let daemon = Daemon::start(
        &scene,
        broker.address(),
        &[("connect.max_size", "\"1KiB\""), PLAIN_CODES],
    );
    for (level, expected) in [(3, vec![]), (4, vec![]), (5, connack_v5(0x95))] {
        let exact = sized(level, 1024);
        let _fits = Device::join_raw(&daemon, level, &exact).await;

        // Only the beginning of a packet that is one byte too large: enough to know its length and version.
        let mut device = Device::dial(&daemon).await;
        device.send(&sized(level, 1025)[..16]).await;
        device.expect_last(&expected).await;
    }
    assert_eq!(broker.visits(), 3);
    let metrics = daemon.counts("seawall_refused_total", &[], 3.0).await;
    assert_eq!(
        metrics.sum("seawall_refused_total", &[("reason", "too-large")]),
        3.0
    );
}

/// A CONNECT of `size` bytes in all, by the length of its password.
fn sized(level: u8, size: usize) -> Vec<u8> {
    let with = |length: usize| {
        let password = vec![b'p'; length];
        Connect {
            username: Some("u"),
            password: Some(&password),
            ..Connect::level(level, "sized")
        }
        .bytes()
    };
    let bytes = with(size - (with(256).len() - 256));
    assert_eq!(bytes.len(), size);
    bytes
}

/// Nothing that it can still send will be taken: only how it is told is open, and for a moment.
#[tokio::test]
async fn who_declares_too_much_and_says_no_more_is_not_waited_for() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let daemon = Daemon::start(&scene, broker.address(), &[]);
    let whole = b"\x10\xff\xff\xff\x7f\x00\x04MQTT\x05";
    for sent in [5, 9] {
        let from = Instant::now();
        assert_eq!(hex(&answer(&daemon, &whole[..sent]).await), "", "{sent}");
        let waited = from.elapsed();
        assert!(waited < Duration::from_secs(5), "{sent} bytes: {waited:?}");
    }
    let mut late = Device::dial(&daemon).await;
    late.send(&whole[..5]).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    late.send(&whole[5..]).await;
    late.expect_last(&connack_v5(0x95)).await;
    let too_large = [("reason", "too-large")];
    daemon.counts("seawall_refused_total", &too_large, 3.0).await;
}

/// What was read of an invalid CONNECT is what it is counted and written down by.
#[tokio::test]
async fn an_invalid_connect_is_known_by_what_was_read_of_it() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let config = scene.text_path("audit.jsonl");
    let lane = ("admission.lanes", r#"[{ name = "metered", username = "meter" }]"#);
    let settings = [("audit.path", &format!("{config:?}")[..]), lane];
    let daemon = Daemon::start(&scene, broker.address(), &settings);
    let without_id = Connect {
        username: Some("meter"),
        clean: false,
        ..Connect::v311("")
    };
    let mut reserved = Connect::v311("x").bytes();
    reserved[9] |= 1;
    let large = b"\x10\xff\xff\xff\x7f\x00\x04MQTT\x05";
    let mut answers = Vec::new();
    for bytes in [&without_id.bytes()[..], &reserved, large, b"\xe0\x00"] {
        answers.push(hex(&answer(&daemon, bytes).await));
    }
    let expected = [
        hex(&connack_v3(2)),
        String::new(),
        hex(&connack_v5(0x95)),
        String::new(),
    ];
    assert_eq!(answers, expected);
    let invalid = ("decision", "invalid");
    let metrics = daemon.counts("seawall_connects_total", &[invalid], 4.0).await;
    for (protocol, lane) in [
        ("3.1.1", "metered"),
        ("3.1.1", "default"),
        ("5", "default"),
        ("other", "default"),
    ] {
        let labels = [invalid, ("protocol", protocol), ("lane", lane)];
        assert_eq!(metrics.sum("seawall_connects_total", &labels), 1.0, "{labels:?}");
    }
    let line = r#""client_id":"","protocol":"3.1.1","clean":false,"lane":"metered""#;
    eventually("the audit's line", || {
        std::fs::read_to_string(&config).is_ok_and(|audit| audit.contains(line))
    })
    .await;
}

#[tokio::test]
async fn a_first_packet_that_is_no_connect_is_closed_without_an_answer() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let daemon = Daemon::start(&scene, broker.address(), &[]);
    let publish = packet::publish(4, "topic", None, b"payload");
    let table: [&[u8]; 6] = [
        &packet::PINGREQ,
        &publish,
        &packet::subscribe(5, "#", 0),
        &packet::connack_v3(0),
        b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n",
        &[0, 0],
    ];
    for first in table {
        assert_eq!(
            hex(&answer(&daemon, first).await),
            "",
            "in reply to {}",
            hex(first)
        );
    }
    assert_eq!(broker.visits(), 0);
    daemon
        .counts("seawall_connects_total", &[("decision", "invalid")], 6.0)
        .await;
}

#[tokio::test]
async fn a_client_that_never_sends_a_whole_connect_is_closed_at_the_deadline() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let daemon = Daemon::start(&scene, broker.address(), &[("connect.timeout", "\"700ms\"")]);
    let half = &Connect::v311("slow").bytes()[..10];
    for first in [&[][..], &[0x10], &[0x10, 0xFF, 0xFF, 0xFF, 0x7F], half] {
        let mut device = Device::dial(&daemon).await;
        let from = Instant::now();
        if !first.is_empty() {
            device.send(first).await;
        }
        device.expect_last(&[]).await;
        assert!(
            from.elapsed() < Duration::from_millis(1500),
            "{:?} after {}",
            from.elapsed(),
            hex(first)
        );
    }
    assert_eq!(broker.visits(), 0);
    // The one that declared 256 MB may have been closed before its time.
    daemon
        .metrics_until("timeouts", |m| {
            m.sum("seawall_connects_total", &[("decision", "timeout")]) >= 3.0
        })
        .await;
}

#[tokio::test]
async fn a_broker_that_is_away_is_told_as_unavailable() {
    let scene = Scene::new();
    let daemon = Daemon::start(&scene, nobody().await, &[PLAIN_CODES]);
    expect_unavailable(&daemon, Duration::from_secs(1)).await;
    let metrics = daemon.counts("seawall_refused_total", &[], 3.0).await;
    assert_eq!(
        metrics.sum("seawall_refused_total", &[("reason", "no-broker")]),
        3.0
    );
}

#[tokio::test]
async fn a_broker_that_is_mute_is_told_as_unavailable_within_the_timeout() {
    let scene = Scene::new();
    let broker = Stub::mute().await;
    let daemon = Daemon::start(
        &scene,
        broker.address(),
        &[PLAIN_CODES, ("upstream.connack_timeout", "\"600ms\"")],
    );
    expect_unavailable(&daemon, Duration::from_millis(1200)).await;
    for index in 0..3 {
        broker.visit(index).await.end().await;
    }
    daemon.counts("seawall_upstream_in_flight", &[], 0.0).await;
}

#[tokio::test]
async fn a_broker_that_goes_before_its_connack_is_told_as_unavailable() {
    let scene = Scene::new();
    for reset in [true, false] {
        let broker = Stub::start(move |mut link| async move {
            link.packet().await;
            if reset {
                link.reset();
            }
        })
        .await;
        let daemon = Daemon::start(&scene, broker.address(), &[PLAIN_CODES]);
        expect_unavailable(&daemon, Duration::from_secs(1)).await;
    }
}

#[tokio::test]
async fn a_broker_that_takes_no_connection_is_told_as_unavailable_within_the_timeout() {
    let scene = Scene::new();
    // A backlog that is full: the kernel leaves further dials without an answer.
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket
        .bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into())
        .unwrap();
    socket.listen(0).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    let mut waiting = Vec::new();
    while let Ok(stream) = std::net::TcpStream::connect_timeout(&address, Duration::from_millis(300)) {
        waiting.push(stream);
    }
    let settings = [PLAIN_CODES, ("upstream.connect_timeout", "\"500ms\"")];
    let daemon = Daemon::start(&scene, address, &settings);
    expect_unavailable(&daemon, Duration::from_millis(1000)).await;
    daemon.counts("seawall_upstream_in_flight", &[], 0.0).await;
}

async fn expect_unavailable(daemon: &Daemon, limit: Duration) {
    for (level, expected) in [(3, connack_v3(3)), (4, connack_v3(3)), (5, connack_v5(0x88))] {
        let mut device = Device::dial(daemon).await;
        let from = Instant::now();
        device.send(&Connect::level(level, "alone").bytes()).await;
        device.expect_last(&expected).await;
        assert!(from.elapsed() < limit, "level {level}: {:?}", from.elapsed());
    }
}

#[tokio::test]
async fn what_the_broker_refuses_arrives_as_the_broker_said_it() {
    let v5_with_words = [&[0x20, 10, 0, 0x97, 7, 0x1F, 0, 4][..], b"full"].concat();
    let table: Vec<(u8, Vec<u8>)> = vec![
        (3, connack_v3(2)),
        (4, connack_v3(3)),
        (4, connack_v3(4)),
        (4, connack_v3(5)),
        (5, connack_v5(0x87)),
        (5, v5_with_words),
    ];
    let scene = Scene::new();
    let script = table.clone();
    let broker = Stub::start(move |mut link| {
        let script = script.clone();
        async move {
            let connect = link.packet().await.unwrap();
            // The client id is the line of the table.
            let line = usize::from(connect[connect.len() - 1] - b'0');
            link.send(&script[line].1).await;
        }
    })
    .await;
    let daemon = Daemon::start(&scene, broker.address(), &[]);
    for (line, (level, connack)) in table.iter().enumerate() {
        let mut device = Device::dial(&daemon).await;
        device
            .send(&Connect::level(*level, &line.to_string()).bytes())
            .await;
        device.expect_last(connack).await;
    }
    let metrics = daemon.counts("seawall_broker_connacks_total", &[], 6.0).await;
    assert_eq!(
        metrics.sum("seawall_refused_total", &[]),
        0.0,
        "the broker's refusals are not Seawall's"
    );
}

#[tokio::test]
async fn a_client_that_pipelines_still_reads_its_connack() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let (daemon, _first) = crowded(&scene, &broker, &[PLAIN_CODES]).await;
    for level in [4, 5] {
        let mut device = Device::dial(&daemon).await;
        let publish = packet::publish(level, "t", None, &vec![b'x'; 64 * 1024]);
        device
            .send(&[Connect::level(level, "eager").bytes(), publish].concat())
            .await;
        // A close with unread input would be a reset by now, which such a client sees first.
        for _ in 0..2 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            device
                .try_send(&packet::PINGREQ)
                .await
                .expect("the answer was lost to a reset");
        }
        device
            .expect_last(&if level == 5 {
                connack_v5(0x89)
            } else {
                connack_v3(3)
            })
            .await;
    }
}

#[tokio::test]
async fn a_refused_client_that_stays_is_let_go() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let (daemon, _first) = crowded(&scene, &broker, &[PLAIN_CODES]).await;
    let baseline = daemon.descriptors();
    let mut stubborn = Vec::new();
    for _ in 0..20 {
        let mut device = Device::dial(&daemon).await;
        device.send(&Connect::v311("late").bytes()).await;
        device.expect_packet(&connack_v3(3)).await;
        // Neither reads on nor closes.
        stubborn.push(device);
    }
    daemon.descriptors_back_to(baseline).await;
    daemon.counts("seawall_connections_open", &[], 1.0).await;
}
