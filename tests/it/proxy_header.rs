//! PROXY protocol headers: a balancer in front, a broker behind that is told who its client is, and HAProxy on both sides.

use crate::rig::certificates::certificates;
use crate::rig::device::hex;
use crate::rig::haproxy::Haproxy;
use crate::rig::packet::{connack_v3, publish, published, subscribe};
use crate::rig::stub::Link;
use crate::rig::{Connect, Daemon, Device, Mosquitto, PATIENCE, Scene, Stub, eventually, within};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair,
    KeyUsagePurpose,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, HandshakeKind, RootCertStore, SupportedProtocolVersion};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixListener};
use tokio_rustls::TlsConnector;

const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// What stands in a header: 192.0.2.7:4711 connected to 198.51.100.1:8883.
const LINE: &str = "PROXY TCP4 192.0.2.7 198.51.100.1 4711 8883\r\n";
const ADDRESSES: [u8; 12] = [192, 0, 2, 7, 198, 51, 100, 1, 0x12, 0x67, 0x22, 0xB3];

/// A header of version 2 with these pieces behind its first 16 bytes.
fn binary(command: u8, family: u8, pieces: &[&[u8]]) -> Vec<u8> {
    let variable = pieces.concat();
    let length = u16::try_from(variable.len()).unwrap().to_be_bytes();
    [SIGNATURE, &[command, family], &length, &variable].concat()
}

/// A health check of a balancer.
fn local() -> Vec<u8> {
    binary(0x20, 0x00, &[])
}

/// Settings in which the scenario's own address is a balancer's.
const REQUIRED: [(&str, &str); 2] = [
    ("listen.proxy_protocol", r#""required""#),
    ("listen.trusted_proxies", r#"["127.0.0.0/8"]"#),
];

/// Takes what comes in one piece, answers as a content broker, and listens.
async fn content(mut link: Link) {
    if link.piece().await.is_some() {
        link.send(&connack_v3(0)).await;
        link.listen().await;
    }
}

/// A device whose first bytes are `header`, in the same segment as its ClientHello or in pieces before it.
async fn behind(header: &[u8], daemon: &Daemon, pieces: usize) -> Device {
    let mut tcp = TcpStream::connect(daemon.address()).await.unwrap();
    let socket = socket2::SockRef::from(&tcp);
    socket.set_tcp_nodelay(true).unwrap();
    // The kernel holds back what does not fill a segment, up to 200 ms.
    socket.set_tcp_cork(pieces == 1).unwrap();
    for piece in header.chunks(header.len().div_ceil(pieces)) {
        tcp.write_all(piece).await.unwrap();
        if pieces > 1 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
    within(PATIENCE, "TLS behind a header", Device::over(tcp))
        .await
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_source_that_a_balancer_names_is_the_source() {
    let scene = Scene::new();
    let broker = Stub::start(content).await;
    let settings = [
        &REQUIRED[..],
        &[
            ("upstream.proxy_protocol", r#""v1""#),
            ("log.level", r#""debug""#),
            ("log.format", r#""json""#),
        ],
    ]
    .concat();
    let daemon = Daemon::start(&scene, broker.address(), &settings);
    let padding = [&[0x04, 0x0F, 0xE0][..], &[0; 0x0FE0]].concat();
    let mapped = "PROXY TCP6 ::ffff:192.0.2.7 ::ffff:198.51.100.1 4711 8883\r\n";
    let headers = [
        LINE.as_bytes().to_vec(),
        mapped.as_bytes().to_vec(),
        binary(0x21, 0x11, &[&ADDRESSES]),
        binary(0x21, 0x11, &[&ADDRESSES, &padding]),
    ];
    let connect = Connect::v311("behind").bytes();
    let expected = [LINE.as_bytes(), &connect].concat();
    let mut visits = 0;
    for header in &headers {
        for pieces in [1, 2, 7] {
            let mut device = behind(header, &daemon, pieces).await;
            device.send(&connect).await;
            device.expect_packet(&connack_v3(0)).await;
            let visit = broker.visit(visits).await;
            assert_eq!(hex(&visit.received()), hex(&expected));
            device.close().await;
            visits += 1;
        }
    }
    eventually("debug lines", || {
        daemon.stderr().matches(r#""source":"192.0.2.7:4711""#).count() == visits
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_not_served_gets_a_clean_end_and_is_counted() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let hello = [&[0x16, 3, 1, 2, 0][..], &[1; 512]].concat();
    let line = [LINE.as_bytes(), &hello].concat();
    let header = [binary(0x21, 0x11, &[&ADDRESSES]), hello.clone()].concat();
    let broken = [&b"PROXY TCP4 192.0.2.7 198.51.100.1 04711 8883\r\n"[..], &hello].concat();
    let damaged = binary(0x21, 0x11, &[&ADDRESSES, &[3, 0, 4, 1, 2, 3, 4]]);
    let huge = binary(0x21, 0x11, &[&ADDRESSES, &[4; 5000]]);
    let plain = Connect::v311("plain").bytes();
    let own = r#"["127.0.0.1/32"]"#;
    let others = r#"["10.0.0.0/8", "::1/128"]"#;
    for (mode, trusted, shed) in [
        ("required", own, vec![&hello, &plain, &broken, &damaged, &huge]),
        ("required", others, vec![&line, &header, &hello, &plain]),
        ("optional", own, vec![&broken, &damaged, &huge]),
        ("optional", others, vec![&line, &header, &damaged]),
    ] {
        let mode = format!("{mode:?}");
        let settings = [
            ("listen.proxy_protocol", mode.as_str()),
            ("listen.trusted_proxies", trusted),
        ];
        let daemon = Daemon::start(&scene, broker.address(), &settings);
        for (index, bytes) in shed.into_iter().enumerate() {
            let what = format!("{mode}, {trusted}: {}", hex(bytes));
            let mut tcp = TcpStream::connect(daemon.address()).await.unwrap();
            tcp.write_all(bytes).await.unwrap();
            let mut answer = Vec::new();
            let read = within(PATIENCE, &what, tcp.read_to_end(&mut answer)).await;
            assert_eq!((read.ok(), hex(&answer)), (Some(0), String::new()), "{what}");
            let count = (index + 1) as f64;
            let metrics = daemon
                .metrics_until(&what, |metrics| {
                    metrics.sum("seawall_shed_total", &[("reason", "proxy-header")]) == count
                })
                .await;
            assert_eq!(metrics.sum("seawall_handshakes_total", &[]), 0.0, "{what}");
        }
        assert_eq!(daemon.stderr().matches("WARN").count(), 0, "{}", daemon.stderr());
    }
    assert_eq!(broker.visits(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_header_on_an_ordinary_listener_is_no_tls() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let daemon = Daemon::start(&scene, broker.address(), &[]);
    for (count, bytes) in [
        (1.0, LINE.as_bytes().to_vec()),
        (2.0, binary(0x21, 0x11, &[&ADDRESSES])),
        (3.0, local()),
    ] {
        let mut tcp = TcpStream::connect(daemon.address()).await.unwrap();
        tcp.write_all(&bytes).await.unwrap();
        let mut answer = Vec::new();
        // At most an alert, and no reset.
        let read = within(PATIENCE, "the end", tcp.read_to_end(&mut answer)).await;
        assert!(read.is_ok_and(|count| count <= 7), "{}", hex(&answer));
        daemon
            .metrics_until("a failure counted", |metrics| {
                metrics.sum("seawall_handshake_failures_total", &[("cause", "not-tls")]) == count
            })
            .await;
    }
    Device::join(&daemon, Connect::v311("direct")).await.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_an_optional_listener_direct_clients_are_served_too() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    for trusted in [r#"["127.0.0.1/32"]"#, r#"["10.0.0.0/8"]"#] {
        let settings = [
            ("listen.proxy_protocol", r#""optional""#),
            ("listen.trusted_proxies", trusted),
        ];
        let daemon = Daemon::start(&scene, broker.address(), &settings);
        Device::join(&daemon, Connect::v311("direct")).await.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_balancers_health_check_is_answered_and_leaves_no_trace() {
    let scene = Scene::new();
    let broker = Stub::start(content).await;
    let settings = [&REQUIRED[..], &[("upstream.proxy_protocol", r#""v1""#)]].concat();
    let daemon = Daemon::start(&scene, broker.address(), &settings);
    for check in [local(), b"PROXY UNKNOWN\r\n".to_vec()] {
        for abrupt in [false, true] {
            let mut tcp = TcpStream::connect(daemon.address()).await.unwrap();
            tcp.write_all(&check).await.unwrap();
            if abrupt {
                tcp.set_zero_linger().unwrap();
            }
        }
        behind(&check, &daemon, 1).await.close().await;
    }
    let metrics = daemon
        .metrics_until("six ends", |metrics| {
            metrics.sum("seawall_closed_total", &[("side", "client")]) == 6.0
        })
        .await;
    assert_eq!(
        metrics.sum("seawall_handshake_failures_total", &[]),
        0.0,
        "{metrics}"
    );
    assert_eq!(metrics.sum("seawall_shed_total", &[]), 0.0);
    assert_eq!(metrics.sum("seawall_connects_total", &[]), 0.0);
    assert_eq!(metrics.sum("seawall_handshakes_total", &[]), 2.0);
    // One that goes as far as a CONNECT speaks for itself.
    let mut device = behind(&local(), &daemon, 1).await;
    device.send(&Connect::v311("check").bytes()).await;
    device.expect_packet(&connack_v3(0)).await;
    let received = broker.visit(0).await.received();
    assert!(
        received.starts_with(b"PROXY TCP4 127.0.0.1 127.0.0.1 "),
        "{}",
        hex(&received)
    );
    assert_eq!(daemon.stderr().matches("WARN").count(), 0, "{}", daemon.stderr());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_header_that_does_not_come_in_time_ends_with_the_handshake() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let settings = [&REQUIRED[..], &[("handshake.timeout", r#""500ms""#)]].concat();
    let daemon = Daemon::start(&scene, broker.address(), &settings);
    for (count, begun) in [
        (1.0, &b""[..]),
        (2.0, b"P"),
        (3.0, &SIGNATURE[..11]),
        (4.0, &binary(0x21, 0x11, &[&ADDRESSES])[..27]),
    ] {
        let mut tcp = TcpStream::connect(daemon.address()).await.unwrap();
        tcp.write_all(begun).await.unwrap();
        let from = Instant::now();
        let end = within(PATIENCE, "the end", tcp.read(&mut [0])).await;
        assert_eq!(end.ok(), Some(0), "{}", hex(begun));
        assert!(from.elapsed() > Duration::from_millis(400), "{}", hex(begun));
        daemon
            .metrics_until("a timeout counted", |metrics| {
                metrics.sum("seawall_handshakes_total", &[("kind", "timeout")]) == count
            })
            .await;
    }
}

/// Counts the sheds for this reason.
async fn shed(daemon: &Daemon, reason: &str, count: f64) {
    daemon
        .metrics_until("a shed counted", |metrics| {
            metrics.sum("seawall_shed_total", &[("reason", reason)]) == count
        })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_by_source_are_for_whom_the_balancer_names_and_not_for_the_balancer() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let settings = [&REQUIRED[..], &[("admission.per_source.max_connections", "2")]].concat();
    let daemon = Daemon::start(&scene, broker.address(), &settings);
    let first = behind(LINE.as_bytes(), &daemon, 1).await;
    let _second = behind(&binary(0x21, 0x11, &[&ADDRESSES]), &daemon, 1).await;
    let mut third = TcpStream::connect(daemon.address()).await.unwrap();
    third.write_all(LINE.as_bytes()).await.unwrap();
    assert!(within(PATIENCE, "a reset", third.read(&mut [0])).await.is_err());
    shed(&daemon, "source-connections", 1.0).await;
    // There is room for others, and for as many checks as a balancer likes.
    let _other = behind(&LINE.replace("192.0.2.7", "192.0.2.8").into_bytes(), &daemon, 1).await;
    let mut checks = Vec::new();
    for _ in 0..5 {
        checks.push(behind(&local(), &daemon, 1).await);
    }
    first.close().await;
    daemon
        .metrics_until("the first is gone", |metrics| {
            metrics.sum("seawall_closed_total", &[("side", "client")]) == 1.0
        })
        .await;
    let _again = behind(LINE.as_bytes(), &daemon, 1).await;
    shed(&daemon, "source-connections", 1.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_64_of_ipv6_is_one_source() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let settings = [
        ("listen.addresses", r#"["[::1]:0"]"#),
        ("listen.proxy_protocol", r#""required""#),
        ("listen.trusted_proxies", r#"["::1/128"]"#),
        ("admission.per_source.max_connections", "2"),
    ];
    let daemon = Daemon::start(&scene, broker.address(), &settings);
    let line = |source: &str| format!("PROXY TCP6 {source} 2001:db8:f::1 4711 8883\r\n").into_bytes();
    // 2001:db8:0:1::b to 2001:db8:f::1.
    let mut addresses = [0; 36];
    addresses[..8].copy_from_slice(&[0x20, 0x01, 0x0D, 0xB8, 0, 0, 0, 1]);
    addresses[15] = 0x0B;
    addresses[16..22].copy_from_slice(&[0x20, 0x01, 0x0D, 0xB8, 0, 0x0F]);
    addresses[31..].copy_from_slice(&[1, 0x12, 0x67, 0x22, 0xB3]);
    let _first = behind(&line("2001:db8:0:1::a"), &daemon, 1).await;
    let _second = behind(&binary(0x21, 0x21, &[&addresses]), &daemon, 1).await;
    let mut third = TcpStream::connect(daemon.address()).await.unwrap();
    third.write_all(&line("2001:db8:0:1:ffff::c")).await.unwrap();
    assert!(within(PATIENCE, "a reset", third.read(&mut [0])).await.is_err());
    shed(&daemon, "source-connections", 1.0).await;
    let mut neighbour = behind(&line("2001:db8:0:2::a"), &daemon, 1).await;
    neighbour.send(&Connect::v311("neighbour").bytes()).await;
    neighbour.expect_packet(&connack_v3(0)).await;
    shed(&daemon, "source-connections", 1.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_stranger_on_an_optional_listener_counts_before_his_first_byte() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let settings = [
        ("listen.proxy_protocol", r#""optional""#),
        ("listen.trusted_proxies", r#"["10.0.0.0/8"]"#),
        ("admission.per_source.max_connections", "2"),
    ];
    let daemon = Daemon::start(&scene, broker.address(), &settings);
    let mut silent = Vec::new();
    for _ in 0..2 {
        silent.push(TcpStream::connect(daemon.address()).await.unwrap());
    }
    daemon
        .metrics_until("two wait", |metrics| {
            metrics.sum("seawall_connections_open", &[("phase", "handshake")]) == 2.0
        })
        .await;
    // The reset may come before the kernel has told of the connection.
    if let Ok(mut third) = TcpStream::connect(daemon.address()).await {
        assert!(within(PATIENCE, "a reset", third.read(&mut [0])).await.is_err());
    }
    shed(&daemon, "source-connections", 1.0).await;
}

/// What a broker makes of a binary header (section 2.2 of the specification).
#[derive(Debug, PartialEq, Eq)]
struct Told {
    source: SocketAddr,
    destination: SocketAddr,
    fields: Vec<(u8, Vec<u8>)>,
    /// What comes behind the header.
    rest: Vec<u8>,
}

fn read_binary(bytes: &[u8]) -> Told {
    assert_eq!(&bytes[..13], [SIGNATURE, &[0x21]].concat());
    let length = usize::from(u16::from_be_bytes([bytes[14], bytes[15]]));
    let (header, rest) = bytes[16..].split_at(length);
    let port = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    let (source, destination, fields): (IpAddr, IpAddr, usize) = match bytes[13] {
        0x11 => {
            let ip = |at: usize| Ipv4Addr::from(<[u8; 4]>::try_from(&header[at..at + 4]).unwrap());
            (ip(0).into(), ip(4).into(), 12)
        }
        0x21 => {
            let ip = |at: usize| Ipv6Addr::from(<[u8; 16]>::try_from(&header[at..at + 16]).unwrap());
            (ip(0).into(), ip(16).into(), 36)
        }
        family => panic!("family {family:#x}"),
    };
    Told {
        source: (source, port(fields - 4)).into(),
        destination: (destination, port(fields - 2)).into(),
        fields: read_fields(&header[fields..]),
        rest: rest.to_vec(),
    }
}

/// Type, length, value, to the end.
fn read_fields(mut bytes: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let length = usize::from(u16::from_be_bytes([bytes[1], bytes[2]]));
        fields.push((bytes[0], bytes[3..3 + length].to_vec()));
        bytes = &bytes[3 + length..];
    }
    fields
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_broker_is_told_in_one_piece_who_its_client_is() {
    let scene = Scene::new();
    let broker = Stub::start(|mut link| async move {
        let piece = link.piece().await.unwrap_or_default();
        // Header and CONNECT together, or the broker is mute.
        if piece.ends_with(b"told") && piece.len() < 500 {
            content_after(link).await;
        }
    })
    .await;
    for listen in ["127.0.0.1:0", "[::1]:0"] {
        let listen = format!("[{listen:?}]");
        let settings = [
            ("upstream.proxy_protocol", r#""v2""#),
            ("listen.addresses", listen.as_str()),
            ("tls.alpn", r#"["mqtt"]"#),
        ];
        let daemon = Daemon::start(&scene, broker.address(), &settings);
        let tcp = TcpStream::connect(daemon.address()).await.unwrap();
        let own = tcp.local_addr().unwrap();
        let mut device = Device::over(tcp).await.unwrap();
        let connect = Connect::v311("told").bytes();
        device.send(&connect).await;
        device.expect_packet(&connack_v3(0)).await;
        let told = read_binary(&broker.visit(broker.visits() - 1).await.received());
        // PP2_CLIENT_SSL alone and not verified: there was no certificate.
        let ssl = [&[0x01, 0, 0, 0, 1][..], &[0x21, 0, 7], b"TLSv1.3"].concat();
        let fields = vec![(0x20, ssl), (0x02, b"localhost".to_vec())];
        assert_eq!(
            told,
            Told {
                source: own,
                destination: daemon.address(),
                fields,
                rest: connect,
            }
        );
    }
}

/// A device's certificate by an authority of its own, written into the scene; and what connects with it.
fn device_with_certificate(
    scene: &Scene,
    common_name: &str,
    versions: &[&'static SupportedProtocolVersion],
) -> TlsConnector {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    scene.write("devices.pem", &authority.pem());
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    let certificate = params.signed_by(&key, &authority).unwrap();
    let mut roots = RootCertStore::empty();
    let server = certificates().authority.as_bytes();
    roots
        .add(CertificateDer::from_pem_slice(server).unwrap())
        .unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let settings = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(
            vec![certificate.der().clone()],
            PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap(),
        )
        .unwrap();
    TlsConnector::from(Arc::new(settings))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_broker_is_told_of_the_certificate() {
    let scene = Scene::new();
    let broker = Stub::start(content).await;
    for (version, name) in [(&TLS12, "TLSv1.2"), (&TLS13, "TLSv1.3")] {
        let connector = device_with_certificate(&scene, "Straße 7", &[version]);
        let authority = format!("{:?}", scene.text_path("devices.pem"));
        let settings = [
            ("upstream.proxy_protocol", r#""v2""#),
            ("tls.client_auth", r#""required""#),
            ("tls.client_ca", authority.as_str()),
        ];
        let daemon = Daemon::start(&scene, broker.address(), &settings);
        for _ in 0..2 {
            let tcp = TcpStream::connect(daemon.address()).await.unwrap();
            let host = ServerName::try_from("localhost").unwrap();
            let mut device = within(PATIENCE, "TLS", connector.connect(host, tcp))
                .await
                .unwrap();
            device.write_all(&Connect::v311("told").bytes()).await.unwrap();
            let mut connack = [0; 4];
            within(PATIENCE, "a CONNACK", device.read_exact(&mut connack))
                .await
                .unwrap();
            // PP2_CLIENT_SSL, PP2_CLIENT_CERT_CONN and PP2_CLIENT_CERT_SESS; in a resumed session without the second.
            let resumed = device.get_ref().1.handshake_kind() == Some(HandshakeKind::Resumed);
            let flags = if resumed { 0x05 } else { 0x07 };
            let told = read_binary(&broker.visit(broker.visits() - 1).await.received());
            let (kind, ssl) = &told.fields[0];
            assert_eq!((*kind, ssl[0], &ssl[1..5]), (0x20, flags, &[0; 4][..]), "{name}");
            let fields = vec![
                (0x21, name.as_bytes().to_vec()),
                (0x22, "Straße 7".as_bytes().to_vec()),
            ];
            assert_eq!(read_fields(&ssl[5..]), fields);
        }
    }
}

async fn content_after(mut link: Link) {
    link.send(&connack_v3(0)).await;
    link.listen().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_header_goes_to_a_broker_on_a_unix_socket_too() {
    let scene = Scene::new();
    let path = scene.text_path("broker.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let nobody = crate::rig::stub::nobody().await;
    let servers = format!("[\"unix:{path}\"]");
    let settings = [
        ("upstream.servers", servers.as_str()),
        ("upstream.proxy_protocol", r#""v2""#),
    ];
    let daemon = Daemon::start(&scene, nobody, &settings);
    let connect = Connect::v311("unix").bytes();
    let tcp = TcpStream::connect(daemon.address()).await.unwrap();
    let own = tcp.local_addr().unwrap();
    let mut device = Device::over(tcp).await.unwrap();
    device.send(&connect).await;
    let (mut broker, _) = within(PATIENCE, "a dial", listener.accept()).await.unwrap();
    let mut bytes = vec![0; 1024];
    let count = within(PATIENCE, "a header", broker.read(&mut bytes))
        .await
        .unwrap();
    let told = read_binary(&bytes[..count]);
    assert_eq!((told.source, told.rest), (own, connect));
    broker.write_all(&connack_v3(0)).await.unwrap();
    device.expect_packet(&connack_v3(0)).await;
}

/// A device, HAProxy, Seawall, HAProxy, Mosquitto: messages pass, and the last in the row knows the first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn haproxy_on_both_sides() {
    let scene = Scene::new();
    let mosquitto = Mosquitto::start(&scene);
    let broker = Haproxy::start(&scene, "accept-proxy", mosquitto.address(), "");
    for (inbound, outbound) in [
        ("send-proxy", "v1"),
        ("send-proxy", "v2"),
        ("send-proxy-v2", "v1"),
        ("send-proxy-v2", "v2"),
        (
            "send-proxy-v2-ssl-cn proxy-v2-options crc32c,ssl,cert-cn,ssl-cipher,authority",
            "v2",
        ),
        // With a health check every 100 ms beside the client.
        ("send-proxy-v2 check inter 100ms check-send-proxy", "v2"),
        (
            "send-proxy check inter 100ms check-ssl verify none check-send-proxy",
            "v2",
        ),
    ] {
        let outbound = format!("{outbound:?}");
        let settings = [&REQUIRED[..], &[("upstream.proxy_protocol", outbound.as_str())]].concat();
        let daemon = Daemon::start(&scene, broker.address(), &settings);
        let balancer = Haproxy::start(&scene, "", daemon.address(), inbound);
        let tcp = TcpStream::connect(balancer.address()).await.unwrap();
        let own = tcp.local_addr().unwrap();
        let mut device = within(PATIENCE, "TLS through haproxy", Device::over(tcp))
            .await
            .unwrap();
        device.send(&Connect::v311("through").bytes()).await;
        device.expect_packet(&connack_v3(0)).await;
        device.send(&subscribe(4, "through/haproxy", 0)).await;
        device.expect_packet(&[0x90, 3, 0, 1, 0]).await;
        device.send(&publish(4, "through/haproxy", None, b"hello")).await;
        let (topic, _, payload) = published(4, &device.packet().await);
        assert_eq!(
            (topic.as_str(), payload.as_slice()),
            ("through/haproxy", &b"hello"[..])
        );
        eventually("haproxy's line of its client", || {
            broker.stdout().contains(&format!("from {own} "))
        })
        .await;
        if inbound.contains("check ") {
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        let metrics = daemon.metrics().await;
        assert_eq!(
            metrics.sum("seawall_shed_total", &[]),
            0.0,
            "{inbound}: {metrics}"
        );
        assert_eq!(
            metrics.sum("seawall_connects_total", &[("decision", "left")]),
            0.0,
            "{inbound}"
        );
        device.close().await;
    }
}
