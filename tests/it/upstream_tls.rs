//! TLS to the broker: real Mosquitto and HAProxy behind it, and a scripted broker for what those never do.

use crate::rig::device::hex;
use crate::rig::haproxy::Haproxy;
use crate::rig::packet::{connack_v3, connack_v5, publish, published, subscribe};
use crate::rig::stub::nobody;
use crate::rig::{
    Connect, Daemon, Device, End, Mosquitto, PATIENCE, Scene, eventually, http, report, within,
};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustix::process::Signal;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

const BARE: (&str, &str) = ("refusal.reason_string", "false");

/// Writes `NAME-ca.pem`, and of what it has signed `NAME.pem` and `NAME.key`, for these names.
fn certificate(scene: &Scene, name: &str, names: &[&str]) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let who_signs = format!("Authority of {name}");
    params.distinguished_name.push(DnType::CommonName, who_signs);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    let mut params = CertificateParams::new(names).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params.use_authority_key_identifier_extension = true;
    let certificate = params.signed_by(&key, &authority).unwrap();
    scene.write(&format!("{name}-ca.pem"), &authority.pem());
    scene.write(&format!("{name}.pem"), &certificate.pem());
    scene.write(&format!("{name}.key"), &key.serialize_pem());
}

fn quoted(scene: &Scene, name: &str) -> String {
    format!("{:?}", scene.text_path(name))
}

/// Mosquitto with the certificate `broker`; it asks for one that `NAME` signed where that is given.
fn mosquitto(scene: &Scene, asks_for: Option<&str>) -> Mosquitto {
    let mut listener = format!(
        "certfile {}\nkeyfile {}\n",
        scene.text_path("broker.pem"),
        scene.text_path("broker.key")
    );
    if let Some(name) = asks_for {
        let ca = scene.text_path(&format!("{name}-ca.pem"));
        write!(listener, "cafile {ca}\nrequire_certificate true\n").unwrap();
    }
    Mosquitto::listening(scene, "allow_anonymous true\n", &listener)
}

/// A message to itself comes back.
async fn is_served(daemon: &Daemon, client_id: &str) {
    let mut device = Device::join(daemon, Connect::v311(client_id)).await;
    device.send(&subscribe(4, client_id, 0)).await;
    device.expect_packet(&[0x90, 3, 0, 1, 0]).await;
    device.send(&publish(4, client_id, None, b"hello")).await;
    let (topic, _, payload) = published(4, &device.packet().await);
    assert_eq!((topic.as_str(), payload.as_slice()), (client_id, &b"hello"[..]));
    device.send(&[0xE0, 0]).await;
    device.close().await;
}

/// Clients of either protocol are told that there is no broker.
async fn is_refused(daemon: &Daemon) {
    for (level, answer) in [(4, connack_v3(3)), (5, connack_v5(0x88))] {
        let mut device = Device::dial(daemon).await;
        device.send(&Connect::level(level, "refused").bytes()).await;
        let told = device.packet().await;
        assert_eq!(hex(&told), hex(&answer));
    }
}

/// Log and `/status` say why the broker is not reached, and the metrics that it is not.
async fn is_in_trouble(daemon: &Daemon, words: &str) {
    daemon.counts("seawall_upstream_up", &[], 0.0).await;
    eventually("a line about the trouble", || {
        daemon
            .stderr()
            .lines()
            .any(|line| line.contains("WARN") && line.contains("can't be reached") && line.contains(words))
    })
    .await;
    let status = http::get(daemon.admin(), "/status").await.body;
    assert!(status.contains(words), "{status}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mosquitto_behind_tls_is_as_in_plain_and_sessions_are_resumed() {
    let scene = Scene::new();
    certificate(&scene, "broker", &["localhost", "127.0.0.1"]);
    let broker = mosquitto(&scene, None);
    let ca = quoted(&scene, "broker-ca.pem");
    let by_name = format!("[\"localhost:{}\"]", broker.address().port());
    for (servers, version) in [(None, "127.0.0.1"), (Some(by_name.as_str()), "a name")] {
        let mut settings = vec![("upstream.tls.enabled", "true"), ("upstream.tls.ca", ca.as_str())];
        settings.extend(servers.map(|servers| ("upstream.servers", servers)));
        let daemon = Daemon::start(&scene, broker.address(), &settings);
        for number in 0..10 {
            is_served(&daemon, &format!("client {number}")).await;
        }
        let metrics = daemon.metrics().await;
        let handshakes = |kind| metrics.sum("seawall_upstream_handshakes_total", &[("kind", kind)]);
        assert_eq!(handshakes("full") + handshakes("resumed"), 10.0, "{version}");
        assert!(handshakes("resumed") >= 8.0, "{version}: {metrics}");
        assert_eq!(metrics.sum("seawall_upstream_up", &[]), 1.0);
    }
}

/// As many as come at once find a ticket of those who came before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_is_resumed() {
    const CROWD: usize = 100;
    let scene = Scene::new();
    certificate(&scene, "broker", &["127.0.0.1"]);
    let broker = mosquitto(&scene, None);
    let ca = quoted(&scene, "broker-ca.pem");
    let daemon = Daemon::start(&scene, broker.address(), &settings(&ca));
    let mut figures = Vec::new();
    for wave in 0..3 {
        let mut devices = Vec::new();
        for _ in 0..CROWD {
            devices.push(Device::dial(&daemon).await);
        }
        let mut crowd = JoinSet::new();
        for (number, mut device) in devices.into_iter().enumerate() {
            crowd.spawn(async move {
                let id = format!("{wave}-{number}");
                device.send(&Connect::v311(&id).bytes()).await;
                device.expect_packet(&connack_v3(0)).await;
                device.close().await;
            });
        }
        while let Some(served) = crowd.join_next().await {
            served.unwrap();
        }
        let resumed = [("kind", "resumed")];
        let metrics = daemon.metrics().await;
        figures.push(metrics.sum("seawall_upstream_handshakes_total", &resumed));
    }
    report(&format!("resumed after each wave of {CROWD}: {figures:?}"));
    let of_two_waves = figures[2] - figures[0];
    assert!(of_two_waves >= 1.8 * CROWD as f64, "{figures:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_wants_a_certificate() {
    let scene = Scene::new();
    certificate(&scene, "broker", &["127.0.0.1"]);
    certificate(&scene, "seawall", &[]);
    certificate(&scene, "foreign", &[]);
    let broker = mosquitto(&scene, Some("seawall"));
    let ca = quoted(&scene, "broker-ca.pem");
    let own = |name: &str| {
        (
            quoted(&scene, &format!("{name}.pem")),
            quoted(&scene, &format!("{name}.key")),
        )
    };
    let base = [
        ("upstream.tls.enabled", "true"),
        ("upstream.tls.ca", ca.as_str()),
        BARE,
    ];
    for (name, words) in [(None, "CertificateRequired"), (Some("foreign"), "UnknownCA")] {
        let (chain, key) = own(name.unwrap_or_default());
        let mut settings = base.to_vec();
        if name.is_some() {
            settings.push(("upstream.tls.certificate", &chain));
            settings.push(("upstream.tls.private_key", &key));
        }
        let daemon = Daemon::start(&scene, broker.address(), &settings);
        // Before the first client.
        is_in_trouble(&daemon, words).await;
        is_refused(&daemon).await;
    }
    let (chain, key) = own("seawall");
    let mut settings = base.to_vec();
    settings.push(("upstream.tls.certificate", &chain));
    settings.push(("upstream.tls.private_key", &key));
    let daemon = Daemon::start(&scene, broker.address(), &settings);
    for number in 0..3 {
        is_served(&daemon, &format!("certified {number}")).await;
    }
    let metrics = daemon.metrics().await;
    assert!(metrics.has("seawall_certificate_expiry_seconds", &[("name", "upstream")]));
    let resumed = metrics.sum("seawall_upstream_handshakes_total", &[("kind", "resumed")]);
    assert!(resumed > 0.0, "{metrics}");
}

/// A wrong authority, a wrong name, no TLS at all; then the right ones by SIGHUP, seen before any client comes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_is_not_trusted_gets_nothing_until_a_reload_trusts_it() {
    let scene = Scene::new();
    certificate(&scene, "broker", &["broker.example"]);
    certificate(&scene, "other", &[]);
    let (ca, other) = (quoted(&scene, "broker-ca.pem"), quoted(&scene, "other-ca.pem"));
    let broker = mosquitto(&scene, None);
    let plain = Mosquitto::start(&scene);
    let to_plain = format!("[\"{}\"]", plain.address());
    let name = ("upstream.tls.server_name", r#""broker.example""#);
    let good = [
        ("upstream.tls.enabled", "true"),
        ("upstream.tls.ca", ca.as_str()),
        ("upstream.breaker.open_for", r#""100ms""#),
        ("upstream.breaker.slow_start", r#""0s""#),
        BARE,
        name,
    ];
    for (wrong, words, kind) in [
        (
            ("upstream.tls.ca", other.as_str()),
            "signed by no authority in upstream.tls.ca",
            "failed",
        ),
        (
            ("upstream.tls.server_name", r#""other.example""#),
            "its certificate is for broker.example, not for other.example",
            "failed",
        ),
        (
            ("upstream.tls.server_name", r#""""#),
            "not for 127.0.0.1",
            "failed",
        ),
        (
            ("upstream.servers", to_plain.as_str()),
            "it closed the connection during the TLS handshake",
            "failed",
        ),
    ] {
        let settings = [&good[..], &[wrong]].concat();
        let daemon = Daemon::start(&scene, broker.address(), &settings);
        is_in_trouble(&daemon, words).await;
        is_refused(&daemon).await;
        daemon
            .metrics_until("a handshake that failed", |metrics| {
                metrics.sum("seawall_upstream_handshakes_total", &[("kind", kind)]) > 0.0
            })
            .await;
        assert_ne!(http::get(daemon.admin(), "/readyz").await.status, 200);
        // Not a byte of MQTT.
        assert!(!broker.stderr().contains("New client connected"), "{words}");

        let text = crate::rig::daemon::configuration(&scene, broker.address(), &good);
        scene.write("seawall.toml", &text);
        daemon.signal(Signal::HUP);
        daemon.counts("seawall_upstream_up", &[], 1.0).await;
        let status = http::get(daemon.admin(), "/status").await.body;
        assert!(!status.contains("trouble"), "{status}");
    }
    let daemon = Daemon::start(&scene, broker.address(), &good);
    is_served(&daemon, "trusted").await;
}

/// The broker's side of a handshake.
fn acceptor(scene: &Scene) -> TlsAcceptor {
    let chain = CertificateDer::from_pem_file(scene.path("broker.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_file(scene.path("broker.key")).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![chain], key)
        .unwrap();
    TlsAcceptor::from(Arc::new(config))
}

/// A broker behind TLS that runs `script` for each connection.
fn stub<S, F>(scene: &Scene, script: S) -> (SocketAddr, JoinHandle<()>)
where
    S: Fn(TlsStream<TcpStream>) -> F + Send + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let acceptor = acceptor(scene);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let listener = TcpListener::from_std(listener).unwrap();
    let accepting = tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            if let Ok(stream) = acceptor.accept(socket).await {
                tokio::spawn(script(stream));
            }
        }
    });
    (address, accepting)
}

/// The CONNECT is read and answered; `None`: it was a look whether we live.
async fn accept(stream: &mut TlsStream<TcpStream>) -> Option<()> {
    crate::rig::device::read_packet(stream).await.ok()?;
    stream.write_all(&connack_v3(0)).await.ok()?;
    stream.flush().await.ok()
}

fn settings(ca: &str) -> [(&str, &str); 2] {
    [("upstream.tls.enabled", "true"), ("upstream.tls.ca", ca)]
}

/// The end of the broker's side is the same whether it says good-bye or not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_closes_with_or_without_close_notify() {
    let scene = Scene::new();
    certificate(&scene, "broker", &["127.0.0.1"]);
    let ca = quoted(&scene, "broker-ca.pem");
    for polite in [true, false] {
        let (address, _accepting) = stub(&scene, move |mut stream| async move {
            if accept(&mut stream).await.is_none() {
                return;
            }
            let _ = stream.read(&mut [0; 64]).await;
            stream.write_all(&[0xD0, 0]).await.unwrap();
            stream.flush().await.unwrap();
            if polite {
                let _ = stream.shutdown().await;
            } else {
                let _ = stream.get_mut().0.shutdown().await;
            }
            // Our side's end, so that the close is no reset.
            let _ = stream.get_mut().0.read(&mut [0; 64]).await;
        });
        let daemon = Daemon::start(&scene, address, &settings(&ca));
        let mut device = Device::join(&daemon, Connect::v311("left alone")).await;
        device.send(&[0xC0, 0]).await;
        device.expect_last(&[0xD0, 0]).await;
        daemon
            .counts(
                "seawall_closed_total",
                &[("side", "broker"), ("phase", "relaying")],
                1.0,
            )
            .await;
        assert!(!daemon.stderr().contains("WARN"), "{}", daemon.stderr());
    }
}

/// A client that leaves before its CONNACK: the broker gets the CONNECT, our good-bye, and no reset.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_before_the_answer_is_seen_out() {
    let scene = Scene::new();
    certificate(&scene, "broker", &["127.0.0.1"]);
    let ca = quoted(&scene, "broker-ca.pem");
    let (told, mut heard) = tokio::sync::mpsc::unbounded_channel();
    let (address, _accepting) = stub(&scene, move |mut stream| {
        let told = told.clone();
        async move {
            let Ok(connect) = crate::rig::device::read_packet(&mut stream).await else {
                return;
            };
            let mut rest = Vec::new();
            let end = stream.read_to_end(&mut rest).await.map_err(|error| error.kind());
            let answered = stream
                .write_all(&connack_v3(0))
                .await
                .map_err(|error| error.kind());
            let _ = told.send((connect, rest, end, answered));
        }
    });
    let daemon = Daemon::start(&scene, address, &settings(&ca));
    let connect = Connect::v311("impatient").bytes();
    let mut device = Device::dial(&daemon).await;
    device.send(&connect).await;
    daemon.counts("seawall_upstream_in_flight", &[], 1.0).await;
    device.close().await;
    let heard = within(PATIENCE, "the broker's view", heard.recv()).await.unwrap();
    assert_eq!(heard, (connect, Vec::new(), Ok(0), Ok(())));
    daemon.counts("seawall_upstream_in_flight", &[], 0.0).await;
}

/// Clients that leave while a broker keeps its handshake waiting: their places are free at once, long before the dial's limit,
/// the broker has heard nothing of them, and the probe of a breaker is given to the next.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_leave_during_a_dial_give_their_places_back() {
    const ENDS: u8 = 0;
    const STALLS: u8 = 1;
    const SERVES: u8 = 2;
    let scene = Scene::new();
    certificate(&scene, "broker", &["127.0.0.1"]);
    let ca = quoted(&scene, "broker-ca.pem");
    let (mood, held) = (Arc::new(AtomicU8::new(STALLS)), Arc::new(AtomicUsize::new(0)));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (acceptor, moody, holds) = (acceptor(&scene), Arc::clone(&mood), Arc::clone(&held));
    let _accepting = tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let (acceptor, holds) = (acceptor.clone(), Arc::clone(&holds));
            match moody.load(Ordering::SeqCst) {
                ENDS => drop(socket),
                STALLS => drop(tokio::spawn(async move {
                    holds.fetch_add(1, Ordering::SeqCst);
                    let _ = socket.read_to_end(&mut Vec::new()).await;
                    holds.fetch_sub(1, Ordering::SeqCst);
                })),
                _ => drop(tokio::spawn(async move {
                    let mut stream = acceptor.accept(socket).await.ok()?;
                    accept(&mut stream).await?;
                    stream.read_to_end(&mut Vec::new()).await.ok()
                })),
            }
        }
    });
    let more = [
        BARE,
        ("upstream.connect_timeout", r#""1m""#),
        ("upstream.breaker.failures", "1"),
        ("upstream.breaker.open_for", r#""100ms""#),
        ("upstream.breaker.slow_start", r#""0s""#),
    ];
    let daemon = Daemon::start(&scene, address, &[&settings(&ca)[..], &more].concat());
    // The daemon's own look whether the broker is there.
    eventually("the daemon looks", || held.load(Ordering::SeqCst) == 1).await;
    let mut devices = Vec::new();
    for number in 0..4 {
        let mut device = Device::dial(&daemon).await;
        device
            .send(&Connect::v311(&format!("impatient-{number}")).bytes())
            .await;
        devices.push(device);
    }
    daemon.counts("seawall_upstream_in_flight", &[], 4.0).await;
    eventually("all are dialled for", || held.load(Ordering::SeqCst) == 5).await;
    let mut last = devices.pop().unwrap();
    for (number, device) in devices.into_iter().enumerate() {
        if number == 0 {
            device.reset();
        } else {
            device.close().await;
        }
    }
    daemon.counts("seawall_upstream_in_flight", &[], 1.0).await;
    // More behind its CONNECT than is read ahead: its end can't be read.
    last.send(&[0xc0, 0].repeat(20_000)).await;
    last.close().await;
    daemon.counts("seawall_upstream_in_flight", &[], 0.0).await;
    eventually("no dial is left", || held.load(Ordering::SeqCst) == 1).await;
    assert_eq!(daemon.metrics().await.sum("seawall_upstream_breaker", &[]), 0.0);

    mood.store(ENDS, Ordering::SeqCst);
    is_refused(&daemon).await;
    daemon.counts("seawall_upstream_breaker", &[], 2.0).await;
    mood.store(STALLS, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_millis(500)).await;
    let mut probe = Device::dial(&daemon).await;
    probe.send(&Connect::v311("probe").bytes()).await;
    eventually("the probe is dialled for", || held.load(Ordering::SeqCst) == 2).await;
    probe.close().await;
    daemon.counts("seawall_upstream_in_flight", &[], 0.0).await;
    mood.store(SERVES, Ordering::SeqCst);
    let _served = Device::join(&daemon, Connect::v311("the next probe")).await;
}

/// Megabytes both ways through both legs, with a broker and a device that are slow to read: nothing is lost, cut or stuck.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_payloads_pass_both_ways_between_slow_readers() {
    const SIZE: usize = 3 << 20;
    let scene = Scene::new();
    certificate(&scene, "broker", &["127.0.0.1"]);
    let ca = quoted(&scene, "broker-ca.pem");
    // Sends back what it reads, a little at a time and with pauses.
    let (address, _accepting) = stub(&scene, |mut stream| async move {
        if accept(&mut stream).await.is_none() {
            return;
        }
        let mut buffer = vec![0; 50_000];
        let mut count = 0_u32;
        while let Ok(length @ 1..) = stream.read(&mut buffer).await {
            if stream.write_all(&buffer[..length]).await.is_err() || stream.flush().await.is_err() {
                return;
            }
            count += 1;
            if count.is_multiple_of(8) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
        let _ = stream.shutdown().await;
    });
    let daemon = Daemon::start(&scene, address, &settings(&ca));
    let device = Device::join(&daemon, Connect::v311("heavy")).await;
    let (mut reader, mut writer) = device.split();
    let payload: Vec<u8> = (0..SIZE).map(|_| fastrand::u8(..)).collect();
    let message = publish(4, "heavy", None, &payload);
    let sending = async {
        writer.write_all(&message).await.unwrap();
        writer.flush().await.unwrap();
    };
    let reading = async {
        let mut received: Vec<u8> = Vec::with_capacity(message.len());
        let mut buffer = vec![0; 30_000];
        while received.len() < message.len() {
            let count = reader.read(&mut buffer).await.unwrap();
            assert!(count > 0, "cut after {} bytes", received.len());
            received.extend(&buffer[..count]);
            if received.len().is_multiple_of(7) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        received
    };
    let (received, ()) = within(4 * PATIENCE, "the echo", async { tokio::join!(reading, sending) }).await;
    assert!(received == message, "not the same bytes");
    // Both are idle now: nothing waits in a buffer to be woken by what comes next.
    writer.shutdown().await.unwrap();
    let mut rest = Vec::new();
    within(PATIENCE, "the end", reader.read_to_end(&mut rest))
        .await
        .unwrap();
    assert!(rest.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_dies_leaves_its_will_and_a_drain_leaves_none() {
    let scene = Scene::new();
    certificate(&scene, "broker", &["127.0.0.1"]);
    let ca = quoted(&scene, "broker-ca.pem");
    let broker = mosquitto(&scene, None);
    let watching = Daemon::start_as("watching", &scene, broker.address(), &settings(&ca));
    let mut watcher = Device::join(&watching, Connect::v311("watcher")).await;
    watcher.send(&subscribe(4, "will/#", 0)).await;
    watcher.expect_packet(&[0x90, 3, 0, 1, 0]).await;
    let spread = [&settings(&ca)[..], &[("drain.spread", r#""0s""#)]].concat();
    let daemon = Daemon::start(&scene, broker.address(), &spread);
    let mortal = |level, name, topic| Connect {
        will: Some((topic, b"gone")),
        ..Connect::level(level, name)
    };
    let dying = Device::join(&daemon, mortal(4, "dying", "will/dying")).await;
    let mut drained = Device::dial(&daemon).await;
    drained.send(&mortal(5, "drained", "will/drained").bytes()).await;
    let connack = drained.packet().await;
    assert_eq!((connack[0], connack[3]), (0x20, 0), "{}", hex(&connack));
    drop(dying);
    let (topic, _, payload) = published(4, &watcher.packet().await);
    assert_eq!((topic.as_str(), payload.as_slice()), ("will/dying", &b"gone"[..]));

    daemon.signal(Signal::TERM);
    let goodbye = drained.packet().await;
    assert_eq!(goodbye.first(), Some(&0xE0), "DISCONNECT, {}", hex(&goodbye));
    let (rest, end) = drained.rest(PATIENCE).await;
    assert_eq!((rest.len(), end), (0, End::Clean));
    assert_eq!(daemon.wait_for_end(PATIENCE).code(), Some(0));
    eventually("Mosquitto heard the DISCONNECT", || {
        broker.stderr().contains("Client drained disconnected")
    })
    .await;
    // What the broker would have published came before this.
    watcher.send(&publish(4, "will/none", None, b"")).await;
    let (topic, _, _) = published(4, &watcher.packet().await);
    assert_eq!(topic, "will/none");
}

/// The header goes before the ClientHello: HAProxy knows the device, and Mosquitto gets the session.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_header_comes_before_tls() {
    let scene = Scene::new();
    certificate(&scene, "broker", &["127.0.0.1"]);
    let ca = quoted(&scene, "broker-ca.pem");
    let pair = [scene.path("broker.pem"), scene.path("broker.key")]
        .map(|path| std::fs::read_to_string(path).unwrap());
    let both = scene.write("broker-both.pem", &pair.concat());
    let mosquitto = Mosquitto::start(&scene);
    let bind = format!("accept-proxy ssl crt {}", both.display());
    for version in [r#""v1""#, r#""v2""#] {
        let broker = Haproxy::start(&scene, &bind, mosquitto.address(), "");
        let settings = [&settings(&ca)[..], &[("upstream.proxy_protocol", version)]].concat();
        let daemon = Daemon::start(&scene, broker.address(), &settings);
        let tcp = TcpStream::connect(daemon.address()).await.unwrap();
        let own = tcp.local_addr().unwrap();
        let mut device = within(PATIENCE, "TLS", Device::over(tcp)).await.unwrap();
        device.send(&Connect::v311("introduced").bytes()).await;
        device.expect_packet(&connack_v3(0)).await;
        eventually("haproxy's line of its client", || {
            broker.stdout().contains(&format!("from {own} "))
        })
        .await;
        is_served(&daemon, "after").await;
        // The dials that look whether it is there have headers of their own.
        assert_eq!(daemon.metrics().await.sum("seawall_upstream_up", &[]), 1.0);
        assert!(!daemon.stderr().contains("WARN"), "{}", daemon.stderr());
    }
}

/// One that is dead, one that is not trusted, and the right one; and a unix socket, which is spoken to in plain.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dial_that_fails_in_tls_goes_to_the_next_server() {
    let scene = Scene::new();
    certificate(&scene, "broker", &["127.0.0.1"]);
    let ca = quoted(&scene, "broker-ca.pem");
    let broker = mosquitto(&scene, None);
    certificate(&scene, "broker", &["127.0.0.1"]);
    let foreign = mosquitto(&scene, None);
    let servers = format!(
        "[\"{}\", \"{}\", \"{}\"]",
        nobody().await,
        foreign.address(),
        broker.address()
    );
    let more = [
        ("upstream.servers", servers.as_str()),
        ("upstream.balance", r#""round-robin""#),
    ];
    let daemon = Daemon::start(&scene, broker.address(), &[&settings(&ca)[..], &more].concat());
    for number in 0..6 {
        is_served(&daemon, &format!("one of six {number}")).await;
    }
    assert_eq!(daemon.metrics().await.sum("seawall_refused_total", &[]), 0.0);
    drop(daemon);

    let path = scene.text_path("broker.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let servers = format!("[\"unix:{path}\", \"{}\"]", nobody().await);
    let daemon = Daemon::start(
        &scene,
        broker.address(),
        &[&settings(&ca)[..], &[("upstream.servers", &servers)]].concat(),
    );
    let connect = Connect::v311("local").bytes();
    let mut device = Device::dial(&daemon).await;
    device.send(&connect).await;
    let served = async {
        loop {
            let (mut plain, _) = listener.accept().await.unwrap();
            let mut bytes = vec![0; connect.len()];
            // The first may be a look whether it is there.
            if plain.read_exact(&mut bytes).await.is_ok() {
                plain.write_all(&connack_v3(0)).await.unwrap();
                return (plain, bytes);
            }
        }
    };
    let (_plain, bytes) = within(PATIENCE, "a dial in plain", served).await;
    assert_eq!(hex(&bytes), hex(&connect));
    device.expect_packet(&connack_v3(0)).await;
}

/// What a relayed connection takes with TLS on both legs beside one with a plain broker. A figure, and a bound on it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_of_a_connection_between_two_tls_legs() {
    const DEVICES: usize = 300;
    let scene = Scene::alone();
    certificate(&scene, "broker", &["127.0.0.1"]);
    let ca = quoted(&scene, "broker-ca.pem");
    let (secured, plain) = (mosquitto(&scene, None), Mosquitto::start(&scene));
    let mut figures = Vec::new();
    for (name, broker, settings) in [
        ("plain", plain.address(), &[][..]),
        ("tls", secured.address(), &settings(&ca)[..]),
    ] {
        let daemon = Daemon::start_as(name, &scene, broker, settings);
        // Whatever is taken once.
        let mut devices = Vec::new();
        for number in 0..50 {
            devices.push(Device::join(&daemon, Connect::v311(&format!("warm {number}"))).await);
        }
        let before = daemon.resident();
        for number in 0..DEVICES {
            devices.push(Device::join(&daemon, Connect::v311(&format!("idle {number}"))).await);
        }
        figures.push((daemon.resident() - before) / DEVICES);
    }
    report(&format!(
        "an idle connection: {:.1} kB with a plain broker, {:.1} kB behind TLS",
        figures[0] as f64 / 1e3,
        figures[1] as f64 / 1e3
    ));
    assert!(figures[1] < figures[0] + 20_000, "{figures:?}");
}
