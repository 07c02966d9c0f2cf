//! TLS as clients speak it, and what else comes to a TLS port.

use crate::rig::device::{hex, tls_settings};
use crate::rig::packet::{accepted, connack_v3, publish};
use crate::rig::{Connect, Daemon, Device, PATIENCE, Scene, Stub, within};
use rustls::pki_types::ServerName;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// What `openssl s_client` gets back for a CONNECT, and what it says of the connection.
fn openssl(scene: &Scene, address: SocketAddr, flags: &[&str]) -> (Vec<u8>, String) {
    let mut child = Command::new("openssl")
        .args([
            "s_client",
            "-quiet",
            "-verify_return_error",
            "-connect",
            &address.to_string(),
            "-CAfile",
        ])
        .arg(scene.path("ca.pem"))
        .args(flags)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut stderr = child.stderr.take().unwrap();
    stdin.write_all(&Connect::v311("openssl").bytes()).unwrap();
    stdin.flush().unwrap();
    let (found, finding) = mpsc::channel();
    std::thread::spawn(move || {
        let mut connack = vec![0; 4];
        let read = stdout.read_exact(&mut connack).is_ok();
        let _ = found.send(if read { connack } else { Vec::new() });
    });
    let connack = finding.recv_timeout(PATIENCE);
    drop(stdin);
    let _ = child.kill();
    child.wait().unwrap();
    let mut words = String::new();
    stderr.read_to_string(&mut words).unwrap();
    (
        connack.unwrap_or_else(|_| panic!("openssl hears nothing: {words}")),
        words,
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn openssl_of_each_version_and_kind_of_key() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let names: [&[&str]; 3] = [
        &["-servername", "localhost"],
        &["-servername", "elsewhere.example"],
        &["-noservername"],
    ];
    for key in ["ecdsa", "rsa"] {
        let certificate = format!("{:?}", scene.text_path(&format!("{key}.pem")));
        let private_key = format!("{:?}", scene.text_path(&format!("{key}.key")));
        let settings = [
            ("tls.certificate", certificate.as_str()),
            ("tls.private_key", &private_key),
        ];
        let daemon = Daemon::start(&scene, broker.address(), &settings);
        for version in ["-tls1_2", "-tls1_3"] {
            for name in names {
                for alpn in [&[][..], &["-alpn", "unknown,other"]] {
                    let flags = [&[version], name, alpn].concat();
                    let (connack, words) = openssl(&scene, daemon.address(), &flags);
                    assert_eq!(hex(&connack), hex(&accepted(4)), "{key} {flags:?}: {words}");
                }
            }
        }
        let metrics = daemon
            .counts("seawall_handshakes_total", &[("kind", "full")], 12.0)
            .await;
        for version in ["1.2", "1.3"] {
            assert_eq!(
                metrics.sum("seawall_handshakes_total", &[("version", version)]),
                6.0,
                "{metrics}"
            );
        }
        assert_eq!(
            metrics.sum("seawall_handshake_seconds_count", &[("kind", "full")]),
            12.0
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_minimum_version_is_kept() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let daemon = Daemon::start(&scene, broker.address(), &[("tls.min_version", "\"1.3\"")]);
    let (connack, words) = openssl(&scene, daemon.address(), &["-tls1_2"]);
    assert!(connack.is_empty() && words.contains("alert"), "{words}");
    let (connack, words) = openssl(&scene, daemon.address(), &["-tls1_3"]);
    assert_eq!(hex(&connack), hex(&accepted(4)), "{words}");
    daemon
        .counts("seawall_handshakes_total", &[("kind", "failed")], 1.0)
        .await;
}

#[tokio::test]
async fn alpn_is_lenient_and_answered_where_known() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let daemon = Daemon::start(&scene, broker.address(), &[("tls.alpn", r#"["mqtt"]"#)]);
    let offers: [(&[&str], Option<&str>); 4] = [
        (&["mqtt"], Some("mqtt")),
        (&["x-amzn-mqtt-ca"], None),
        (&["h2", "mqtt"], Some("mqtt")),
        (&[], None),
    ];
    for (offer, chosen) in offers {
        let mut settings = tls_settings().as_ref().clone();
        settings.alpn_protocols = offer.iter().map(|name| name.as_bytes().to_vec()).collect();
        let tcp = TcpStream::connect(daemon.address()).await.unwrap();
        let connector = tokio_rustls::TlsConnector::from(Arc::new(settings));
        let connecting = connector.connect(ServerName::try_from("localhost").unwrap(), tcp);
        let stream = within(PATIENCE, "TLS", connecting)
            .await
            .unwrap_or_else(|error| panic!("{offer:?}: {error}"));
        assert_eq!(
            stream.get_ref().1.alpn_protocol(),
            chosen.map(str::as_bytes),
            "{offer:?}"
        );
    }
}

#[tokio::test]
async fn what_is_no_tls_is_closed_quickly_and_counted() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let daemon = Daemon::start(&scene, broker.address(), &[]);
    let baseline = daemon.descriptors();
    let connect = Connect::v311("plain").bytes();
    let noise: Vec<u8> = (0..1_000_000_u32)
        .map(|number| (number * 7 % 253) as u8 | 0x80)
        .collect();
    let table: [&[u8]; 6] = [
        &connect,
        b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"SSH-2.0-scanner\r\n",
        &[0x16, 3, 1, 0, 4, 1, 0, 0, 0],
        &[0x16, 3, 3, 0xFF, 0xFF, 1, 2, 3],
        &noise,
    ];
    for first in table {
        let mut stream = TcpStream::connect(daemon.address()).await.unwrap();
        let from = Instant::now();
        let ended = async {
            // It may be closed before all is written.
            let _ = stream.write_all(first).await;
            while let Ok(1..) = stream.read(&mut [0; 1024]).await {}
        };
        within(PATIENCE, "the end", ended).await;
        assert!(
            from.elapsed() < Duration::from_secs(2),
            "{:?} after {}",
            from.elapsed(),
            hex(first)
        );
    }
    let metrics = daemon
        .counts("seawall_handshakes_total", &[("kind", "failed")], 6.0)
        .await;
    assert_eq!(metrics.sum("seawall_connects_total", &[]), 0.0);
    assert_eq!(broker.visits(), 0);
    daemon.descriptors_back_to(baseline).await;
    let words = daemon.stderr();
    assert!(
        !words.contains("WARN") && !words.contains("ERROR"),
        "a stranger wrote into the log: {words}"
    );
}

#[tokio::test]
async fn silence_ends_at_the_handshake_deadline() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let daemon = Daemon::start(&scene, broker.address(), &[("handshake.timeout", "\"700ms\"")]);
    for first in [&[][..], &[0x16], &[0x16, 3, 1, 2, 0, 1, 0, 1, 0xFC]] {
        let mut stream = TcpStream::connect(daemon.address()).await.unwrap();
        let from = Instant::now();
        stream.write_all(first).await.unwrap();
        let ended = async { while let Ok(1..) = stream.read(&mut [0; 1024]).await {} };
        within(PATIENCE, "the end", ended).await;
        let waited = from.elapsed();
        assert!(
            waited > Duration::from_millis(600) && waited < Duration::from_millis(1500),
            "{waited:?}"
        );
    }
    daemon
        .counts("seawall_handshakes_total", &[("kind", "timeout")], 3.0)
        .await;
}

#[tokio::test]
async fn probes_that_connect_and_leave_cost_nothing() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let daemon = Daemon::start(
        &scene,
        broker.address(),
        &[("admission.rate", "0.001"), ("admission.burst", "1")],
    );
    let baseline = daemon.descriptors();
    for _ in 0..300 {
        drop(TcpStream::connect(daemon.address()).await.unwrap());
    }
    daemon.counts("seawall_connections_total", &[], 300.0).await;
    daemon.descriptors_back_to(baseline).await;
    let _session = Device::join(&daemon, Connect::v311("first")).await;
    let words = daemon.stderr();
    assert!(
        !words.contains("WARN") && !words.contains("ERROR"),
        "a probe wrote into the log: {words}"
    );
}

#[tokio::test]
async fn a_tls_1_2_client_is_served_and_refused_like_any_other() {
    let scene = Scene::new();
    let broker = Stub::start(|mut link| async move {
        link.accept().await;
        let message = link.packet().await.unwrap();
        link.send(&message).await;
    })
    .await;
    let one_token = [("admission.rate", "0.001"), ("admission.burst", "1")];
    let daemon = Daemon::start(&scene, broker.address(), &one_token);
    let message = publish(4, "echo", None, &vec![b'x'; 300_000]);
    let mut device = Device::dial_1_2(&daemon).await;
    device.send(&Connect::v311("old").bytes()).await;
    device.expect_packet(&accepted(4)).await;
    device.send(&message).await;
    device.expect_last(&message).await;

    let mut late = Device::dial_1_2(&daemon).await;
    late.send(&Connect::v311("late").bytes()).await;
    late.expect_last(&connack_v3(3)).await;
}
