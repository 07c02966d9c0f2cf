//! CONNECT on its way to the broker: any segmentation, every byte as it came, exactly once.

use crate::rig::device::{hex, read_packet};
use crate::rig::packet;
use crate::rig::{Connect, Daemon, Device, PATIENCE, Scene, Stub, eventually, http, within};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

/// Everything that a CONNECT can have, and a SUBSCRIBE behind it.
fn rich(level: u8) -> Vec<u8> {
    let session_expiry = [0x11, 0, 0, 0, 60];
    let connect = Connect {
        keep_alive: 60,
        will: Some(("last/will", b"gone")),
        username: Some("user"),
        password: Some(&[0, 0xFF, 0xFE, b'p']),
        properties: if level == 5 { &session_expiry } else { &[] },
        ..Connect::level(level, "device-1")
    };
    [connect.bytes(), packet::subscribe(level, "a/b", 1)].concat()
}

#[tokio::test]
async fn split_at_every_byte_offset() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let daemon = Daemon::start(&scene, broker.address(), &[]);
    let mut visits = 0;
    for level in [3, 4, 5] {
        let bytes = rich(level);
        for offset in 1..bytes.len() {
            let mut device = Device::dial(&daemon).await;
            device.send(&bytes[..offset]).await;
            // Long enough for the daemon to have seen the first part alone, most times.
            tokio::time::sleep(Duration::from_micros(300)).await;
            device.send(&bytes[offset..]).await;
            device.expect_packet(&packet::accepted(level)).await;
            let visit = broker.visit(visits).await;
            assert_eq!(
                hex(&visit.received_at_least(bytes.len()).await),
                hex(&bytes),
                "split at {offset}"
            );
            device.close().await;
            visits += 1;
        }
    }
    assert_eq!(broker.visits(), visits);
}

#[tokio::test]
async fn one_tls_record_a_byte() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let daemon = Daemon::start(&scene, broker.address(), &[]);
    for (index, level) in [3, 4, 5].into_iter().enumerate() {
        let bytes = rich(level);
        let mut device = Device::dial(&daemon).await;
        for byte in &bytes {
            device.send(&[*byte]).await;
        }
        device.expect_packet(&packet::accepted(level)).await;
        assert_eq!(
            hex(&broker.visit(index).await.received_at_least(bytes.len()).await),
            hex(&bytes)
        );
    }
}

#[tokio::test]
async fn large_credentials_and_wills_pass() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let daemon = Daemon::start(&scene, broker.address(), &[]);
    let binary: Vec<u8> = (0..65_535_u32).map(|number| (number % 251) as u8).collect();
    let mut expected = Vec::new();
    for level in [3, 4, 5] {
        for (password, will) in [(4096, 0), (16_384, 0), (65_535, 0), (65_535, 65_535)] {
            let connect = Connect {
                username: Some("user"),
                password: Some(&binary[..password]),
                will: (will > 0).then_some(("will", &binary[..will])),
                ..Connect::level(level, "token-bearer")
            };
            let _session = Device::join(&daemon, connect).await;
            expected.push(connect.bytes());
        }
    }
    for (index, bytes) in expected.iter().enumerate() {
        let received = broker.visit(index).await.received_at_least(bytes.len()).await;
        assert!(
            received == *bytes,
            "CONNECT {index}: {} for {}",
            hex(&received),
            hex(bytes)
        );
    }
}

#[tokio::test]
async fn a_declared_length_reserves_no_memory() {
    const CLIENTS: usize = 300;
    let scene = Scene::alone();
    let broker = Stub::content().await;
    let daemon = Daemon::start(&scene, broker.address(), &[]);
    let mut devices = Vec::new();
    for _ in 0..CLIENTS {
        devices.push(Device::dial(&daemon).await);
    }
    let silent = daemon.resident();
    // The first 30 bytes of a CONNECT of 120,000.
    let password = vec![b'p'; 60_000];
    let will = vec![b'w'; 60_000];
    let connect = Connect {
        will: Some(("t", &will)),
        username: Some("u"),
        password: Some(&password),
        ..Connect::v311("large")
    };
    let bytes = connect.bytes();
    for device in &mut devices {
        device.send(&bytes[..30]).await;
    }
    daemon
        .counts(
            "seawall_connections_open",
            &[("phase", "connect")],
            CLIENTS as f64,
        )
        .await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    let each = daemon.resident().saturating_sub(silent) / CLIENTS;
    assert!(
        each < 16 * 1024,
        "{each} bytes for the first 30 of {}",
        bytes.len()
    );
}

#[tokio::test]
async fn odd_but_legal_connects_go_to_the_broker_as_they_are() {
    let long_id = "i".repeat(65_535);
    let odd = [
        Connect {
            level: 0x83,
            name: "MQIsdp",
            ..Connect::v311("bridge")
        },
        Connect {
            level: 0x84,
            ..Connect::v311("bridge")
        },
        Connect {
            level: 0x83,
            ..Connect::v311("bridge")
        },
        Connect {
            level: 0x84,
            name: "MQIsdp",
            ..Connect::v311("bridge")
        },
        Connect {
            level: 3,
            ..Connect::v311("name and level disagree")
        },
        Connect {
            level: 4,
            name: "MQIsdp",
            ..Connect::v311("name and level disagree")
        },
        Connect::v311("🌊/ü/\"'\n\r\t\\"),
        Connect::v311("../../etc/passwd"),
        Connect::v311(&long_id),
        Connect {
            password: Some(b"a password without a name"),
            ..Connect::v5("v5 allows it")
        },
        Connect {
            username: Some(""),
            password: Some(b""),
            ..Connect::v311("empty credentials")
        },
        Connect {
            will: Some(("will", b"")),
            ..Connect::v311("empty will")
        },
        Connect {
            keep_alive: u16::MAX,
            ..Connect::v5("patient")
        },
    ];
    let scene = Scene::new();
    let broker = Stub::content().await;
    let daemon = Daemon::start(&scene, broker.address(), &[]);
    for (index, connect) in odd.iter().enumerate() {
        let _session = Device::join(&daemon, *connect).await;
        let bytes = connect.bytes();
        let received = broker.visit(index).await.received_at_least(bytes.len()).await;
        assert_eq!(hex(&received), hex(&bytes));
    }
    assert!(!daemon.stderr().contains("passwd"), "a client wrote into the log");
}

#[tokio::test]
async fn header_bits_of_a_3_1_connect_are_ignored() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let daemon = Daemon::start(&scene, broker.address(), &[]);
    let mut bytes = Connect::level(3, "old").bytes();
    bytes[0] = 0x1F;
    let _session = Device::join_raw(&daemon, 3, &bytes).await;
    assert_eq!(hex(&broker.visit(0).await.received()), hex(&bytes));
}

#[tokio::test]
async fn bytes_behind_the_connect_arrive_once_and_in_order() {
    let scene = Scene::new();
    // Late enough that all of it has to wait.
    let broker = Stub::start(|mut link| async move {
        link.packet().await;
        tokio::time::sleep(Duration::from_millis(150)).await;
        link.send(&packet::accepted(4)).await;
        link.listen().await;
    })
    .await;
    let daemon = Daemon::start(&scene, broker.address(), &[]);
    for (index, pieces) in [1, 7, 400].into_iter().enumerate() {
        let mut bytes = Connect::v311("eager").bytes();
        for number in 0..200_u16 {
            bytes.extend(packet::publish(
                4,
                "order",
                Some(number + 1),
                &number.to_be_bytes(),
            ));
        }
        let mut device = Device::dial(&daemon).await;
        for piece in bytes.chunks(bytes.len().div_ceil(pieces)) {
            device.send(piece).await;
        }
        device.expect_packet(&packet::accepted(4)).await;
        let received = broker.visit(index).await.received_at_least(bytes.len()).await;
        assert!(
            received == bytes,
            "in {pieces} pieces: {} for {}",
            hex(&received),
            hex(&bytes)
        );
        device.close().await;
        broker.visit(index).await.end().await;
        assert_eq!(broker.visit(index).await.received().len(), bytes.len());
    }
}

#[tokio::test]
async fn bytes_of_a_held_client_arrive_once_and_in_order() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let settings = [
        ("admission.rate", "1"),
        ("admission.burst", "1"),
        ("admission.max_wait", "\"10s\""),
    ];
    let daemon = Daemon::start(&scene, broker.address(), &settings);
    let _first = Device::join(&daemon, Connect::v311("first")).await;
    let mut bytes = Connect::v311("eager").bytes();
    for number in 0..1000_u16 {
        bytes.extend(packet::publish(
            4,
            "order",
            Some(number + 1),
            &[number.to_be_bytes(); 400].concat(),
        ));
    }
    let (mut reading, mut writing) = Device::dial(&daemon).await.split();
    let sent = bytes.clone();
    let sending = async move {
        // Held for a second, in which more is sent than anybody keeps.
        for piece in sent.chunks(3000) {
            writing.write_all(piece).await.unwrap();
            writing.flush().await.unwrap();
        }
        writing
    };
    let (_writing, connack) = within(PATIENCE, "all sent and one CONNACK", async {
        tokio::join!(sending, read_packet(&mut reading))
    })
    .await;
    assert_eq!(hex(&connack.unwrap()), hex(&packet::accepted(4)));
    let received = broker.visit(1).await.received_at_least(bytes.len()).await;
    assert!(received == bytes, "{} for {}", hex(&received), hex(&bytes));
}

#[tokio::test]
async fn every_leg_may_be_ipv6() {
    let scene = Scene::new();
    let broker = Stub::start_at("[::1]:0".parse().unwrap(), |mut link| async move {
        link.accept().await;
        link.echo().await;
    })
    .await;
    let audit = format!("{:?}", scene.text_path("audit.jsonl"));
    let settings = [
        ("listen.addresses", r#"["[::1]:0"]"#),
        ("admin.address", r#""[::1]:0""#),
        ("audit.path", audit.as_str()),
    ];
    let daemon = Daemon::start(&scene, broker.address(), &settings);
    assert!(
        daemon.address().is_ipv6() && daemon.admin().is_ipv6(),
        "{}",
        daemon.stdout()
    );
    // Loopback is no place that others reach.
    assert!(!daemon.stderr().contains("WARN"), "{}", daemon.stderr());
    let tcp = TcpStream::connect(daemon.address()).await.unwrap();
    let own = tcp.local_addr().unwrap();
    let mut device = Device::over(tcp).await.unwrap();
    device.send(&Connect::v5("six").bytes()).await;
    device.expect_packet(&packet::accepted(5)).await;
    device.send(&packet::PINGREQ).await;
    device.expect_packet(&packet::PINGREQ).await;
    device.close().await;

    let server = broker.address().to_string();
    let metrics = daemon.counts("seawall_closed_total", &[], 1.0).await;
    let codes = [("server", server.as_str()), ("code", "0")];
    assert_eq!(
        metrics.sum("seawall_broker_connacks_total", &codes),
        1.0,
        "{metrics}"
    );
    assert_eq!(http::get(daemon.admin(), "/readyz").await.status, 200);
    let status = http::get(daemon.admin(), "/status").await.body;
    assert!(status.contains(&server), "{status}");
    let source = format!(r#""source":"{own}""#);
    eventually("the audit's line", || {
        std::fs::read_to_string(scene.path("audit.jsonl")).is_ok_and(|audit| audit.contains(&source))
    })
    .await;
}
