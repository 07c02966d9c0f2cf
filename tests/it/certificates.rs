//! Certificates by name and kind, those of clients, and what becomes of both when their files change.

use crate::rig::device::hex;
use crate::rig::packet::accepted;
use crate::rig::{Connect, Daemon, Device, PATIENCE, Scene, Stub, long, within};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType, IsCa,
    KeyIdMethod, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PKCS_RSA_SHA256, RevokedCertParams,
    SerialNumber, SignatureAlgorithm, date_time_ymd,
};
use rustix::process::Signal;
use rustls::client::Resumption;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Authority {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
        .distinguished_name
        .push(DnType::CommonName, "Another authority");
    Authority::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// Writes `NAME.pem` and `NAME.key`: a certificate for `localhost` whose common name is `name`.
fn leaf(
    scene: &Scene,
    authority: &Authority,
    name: &str,
    serial: u64,
    algorithm: &'static SignatureAlgorithm,
) -> CertificateDer<'static> {
    let key = KeyPair::generate_for(algorithm).unwrap();
    let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params.serial_number = Some(SerialNumber::from(serial));
    params.not_after = date_time_ymd(2999, 1, 1);
    let certificate = params.signed_by(&key, authority).unwrap();
    scene.write(&format!("{name}.pem"), &certificate.pem());
    scene.write(&format!("{name}.key"), &key.serialize_pem());
    certificate.der().clone()
}

/// Writes a revocation list that holds for ever.
fn revoke(scene: &Scene, authority: &Authority, name: &str, revoked: &[u64]) {
    let revoked = revoked.iter().map(|serial| RevokedCertParams {
        serial_number: SerialNumber::from(*serial),
        revocation_time: date_time_ymd(2020, 1, 2),
        reason_code: None,
        invalidity_date: None,
    });
    let list = CertificateRevocationListParams {
        this_update: date_time_ymd(2020, 1, 1),
        next_update: date_time_ymd(2999, 1, 1),
        crl_number: SerialNumber::from(1),
        issuing_distribution_point: None,
        revoked_certs: revoked.collect(),
        key_identifier_method: KeyIdMethod::Sha256,
    };
    scene.write(name, &list.signed_by(authority).unwrap().pem().unwrap());
}

/// A client that trusts `authority`, and shows `NAME.pem` if that is given.
fn client(scene: &Scene, authority: &Authority, name: Option<&str>) -> TlsConnector {
    let mut config = settings(scene, authority, name);
    config.resumption = Resumption::disabled();
    TlsConnector::from(Arc::new(config))
}

/// The same, and resumes what it can.
fn settings(scene: &Scene, authority: &Authority, name: Option<&str>) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(authority.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    match name {
        None => builder.with_no_client_auth(),
        Some(name) => {
            let certificate = CertificateDer::from_pem_file(scene.path(&format!("{name}.pem"))).unwrap();
            let key = PrivateKeyDer::from_pem_file(scene.path(&format!("{name}.key"))).unwrap();
            builder.with_client_auth_cert(vec![certificate], key).unwrap()
        }
    }
}

/// TLS, a CONNECT and its answer; the certificate that the server has shown.
async fn visit(address: SocketAddr, client: &TlsConnector) -> std::io::Result<CertificateDer<'static>> {
    let visit = async {
        let tcp = TcpStream::connect(address).await?;
        let mut stream = client
            .connect(ServerName::try_from("localhost").unwrap(), tcp)
            .await?;
        stream.write_all(&Connect::v311("visitor").bytes()).await?;
        let mut connack = [0; 4];
        stream.read_exact(&mut connack).await?;
        assert_eq!(hex(&connack), hex(&accepted(4)));
        let shown = stream.get_ref().1.peer_certificates().unwrap();
        Ok(shown[0].clone().into_owned())
    };
    within(PATIENCE, "a visit", visit).await
}

/// The common name of the certificate that `openssl s_client` is shown; empty if the handshake fails.
fn shown(address: SocketAddr, flags: &[&str]) -> String {
    let output = Command::new("openssl")
        .args(["s_client", "-connect", &address.to_string()])
        .args(flags)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let words =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    let subject = words.lines().find_map(|line| line.strip_prefix("subject="));
    let name = subject.and_then(|subject| subject.rsplit("CN").next());
    name.unwrap_or_default().trim_matches([' ', '=']).to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_name_and_what_the_client_can_verify_pick_the_certificate() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let authority = authority();
    for (serial, name, algorithm) in [
        (1, "default", &PKCS_ECDSA_P256_SHA256),
        (2, "both-rsa", &PKCS_RSA_SHA256),
        (3, "both-ecdsa", &PKCS_ECDSA_P256_SHA256),
        (4, "wild", &PKCS_ECDSA_P256_SHA256),
    ] {
        leaf(&scene, &authority, name, serial, algorithm);
    }
    let path = |name: &str| format!("{:?}", scene.text_path(name));
    let host = |name: &str, file: &str| {
        let (certificate, key) = (path(&format!("{file}.pem")), path(&format!("{file}.key")));
        format!("{{ name = \"{name}\", certificate = {certificate}, private_key = {key} }}")
    };
    let hosts = [
        host("both.example.com", "both-rsa"),
        host("both.example.com", "both-ecdsa"),
        host("*.example.com", "wild"),
    ];
    let settings = [
        ("tls.certificate", path("default.pem")),
        ("tls.private_key", path("default.key")),
        ("tls.hosts", format!("[{}]", hosts.join(", "))),
    ];
    let settings: Vec<(&str, &str)> = settings
        .iter()
        .map(|(key, value)| (*key, value.as_str()))
        .collect();
    let daemon = Daemon::start(&scene, broker.address(), &settings);
    let rsa = ["-sigalgs", "rsa_pss_rsae_sha256:RSA+SHA256"];
    let ecdsa = ["-sigalgs", "ECDSA+SHA256"];
    // TLS 1.2: firmware that knows the signature but no suite to go with it.
    let rsa_suites = ["-cipher", "ECDHE-RSA-AES128-GCM-SHA256"];
    for (name, more, expected) in [
        ("both.example.com", &[][..], "both-ecdsa"),
        ("both.example.com", &ecdsa, "both-ecdsa"),
        ("both.example.com", &rsa, "both-rsa"),
        ("BOTH.Example.COM", &[], "both-ecdsa"),
        ("both.example.com.", &[], "both-ecdsa"),
        ("a.example.com", &[], "wild"),
        ("a.b.example.com", &[], "default"),
        ("example.com", &[], "default"),
        ("elsewhere", &[], "default"),
        ("127.0.0.1", &[], "default"),
        ("", &[], "default"),
        ("elsewhere", &rsa, ""),
    ] {
        for version in ["-tls1_2", "-tls1_3"] {
            let asked = if name.is_empty() {
                vec!["-noservername"]
            } else {
                vec!["-servername", name]
            };
            let flags = [&asked, &[version][..], more].concat();
            assert_eq!(shown(daemon.address(), &flags), expected, "{flags:?}");
        }
    }
    let flags = [&["-servername", "both.example.com", "-tls1_2"], &rsa_suites[..]].concat();
    assert_eq!(shown(daemon.address(), &flags), "both-rsa");
    let metrics = daemon.metrics().await;
    let failures = metrics.sum(
        "seawall_handshake_failures_total",
        &[("cause", "no-shared-parameters")],
    );
    assert_eq!(failures, 2.0, "{metrics}");
    for name in ["default", "both.example.com", "*.example.com"] {
        assert!(
            metrics.sum("seawall_certificate_expiry_seconds", &[("name", name)]) > 1e9,
            "{name}: {metrics}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_every_form_are_read() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let convert = |from: &str, to: &str, flags: &[&str]| {
        let (input, output) = (scene.text_path(from), scene.text_path(to));
        let status = Command::new("openssl")
            .args(["pkey", "-in", &input, "-out", &output])
            .args(flags)
            .status();
        assert!(status.unwrap().success());
    };
    convert("rsa.key", "pkcs1.key", &["-traditional"]);
    convert("ecdsa.key", "sec1.key", &["-traditional"]);
    convert("ecdsa.key", "locked.key", &["-aes128", "-passout", "pass:secret"]);
    for (certificate, key, header) in [
        ("rsa.pem", "rsa.key", "BEGIN PRIVATE KEY"),
        ("rsa.pem", "pkcs1.key", "BEGIN RSA PRIVATE KEY"),
        ("ecdsa.pem", "ecdsa.key", "BEGIN PRIVATE KEY"),
        ("ecdsa.pem", "sec1.key", "BEGIN EC PRIVATE KEY"),
    ] {
        let text = std::fs::read_to_string(scene.path(key)).unwrap();
        assert!(text.contains(header), "{key}: {text}");
        let chain = std::fs::read_to_string(scene.path(certificate)).unwrap();
        // As openssl ecparam and Windows leave them: parameters before the key, carriage returns, all in one file.
        let parameters = "-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n";
        scene.write(
            "one.pem",
            &format!("{parameters}{text}{chain}").replace('\n', "\r\n"),
        );
        let one = format!("{:?}", scene.text_path("one.pem"));
        let settings = [("tls.certificate", one.as_str()), ("tls.private_key", &one)];
        let daemon = Daemon::start(&scene, broker.address(), &settings);
        let _session = Device::join(&daemon, Connect::v311("sensor")).await;
    }
    let locked = format!("{:?}", scene.text_path("locked.key"));
    let configuration =
        crate::rig::daemon::configuration(&scene, broker.address(), &[("tls.private_key", locked.as_str())]);
    let file = scene.write("locked.toml", &configuration);
    let output = Command::new(crate::rig::daemon::binary())
        .args(["check", "--config"])
        .arg(file)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(78));
    let words = String::from_utf8(output.stderr).unwrap();
    assert!(
        words.contains("has an encrypted private key (openssl pkey"),
        "{words}"
    );
}

/// A daemon whose certificate is `server.pem`, at first a copy of `first.pem`.
fn with_certificate(scene: &Scene, broker: SocketAddr, first: &str, more: &[(&str, &str)]) -> Daemon {
    install(scene, first);
    let (certificate, key) = (scene.text_path("server.pem"), scene.text_path("server.key"));
    let (certificate, key) = (format!("{certificate:?}"), format!("{key:?}"));
    let own = [
        ("tls.certificate", certificate.as_str()),
        ("tls.private_key", &key),
    ];
    Daemon::start(scene, broker, &[&own, more].concat())
}

fn install(scene: &Scene, name: &str) {
    for kind in ["pem", "key"] {
        std::fs::copy(
            scene.path(&format!("{name}.{kind}")),
            scene.path(&format!("server.{kind}")),
        )
        .unwrap();
    }
}

async fn reloads(daemon: &Daemon, result: &str, count: f64) {
    let what = format!("{count} reloads {result}");
    daemon
        .metrics_until(&what, |m| {
            m.sum("seawall_reloads_total", &[("result", result)]) == count
        })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_swap_of_certificates_under_live_connections_drops_none() {
    const LIVE: u16 = 500;
    let scene = Scene::new();
    let broker = Stub::start(|mut link| async move {
        link.accept().await;
        link.echo().await;
    })
    .await;
    let authority = authority();
    let renewed = leaf(&scene, &authority, "renewed", 4711, &PKCS_ECDSA_P256_SHA256);
    let daemon = with_certificate(&scene, broker.address(), "ecdsa", &[]);
    let expiry =
        |m: &crate::rig::http::Metrics| m.sum("seawall_certificate_expiry_seconds", &[("name", "default")]);
    let before = expiry(&daemon.metrics().await);
    let mut devices = Vec::new();
    for number in 0..LIVE {
        devices.push(Device::join(&daemon, Connect::v311(&format!("sensor-{number}"))).await);
    }
    let newcomer = client(&scene, &authority, None);
    assert!(
        visit(daemon.address(), &newcomer).await.is_err(),
        "signed by an authority that it does not know"
    );

    install(&scene, "renewed");
    daemon.signal(Signal::HUP);
    reloads(&daemon, "done", 1.0).await;
    assert_eq!(visit(daemon.address(), &newcomer).await.unwrap(), renewed);
    assert_ne!(expiry(&daemon.metrics().await), before);
    // The visitor's own connection ends a moment after it.
    let relaying = [("phase", "relaying")];
    daemon
        .metrics_until("all devices in session", |m| {
            m.sum("seawall_connections_open", &relaying) == f64::from(LIVE)
        })
        .await;
    for device in &mut devices {
        device.send(&[0xC0, 0]).await;
    }
    for device in &mut devices {
        device.expect_packet(&[0xC0, 0]).await;
    }
    // What does not fit is refused, and what was in effect still is.
    std::fs::copy(scene.path("ecdsa.key"), scene.path("server.key")).unwrap();
    daemon.signal(Signal::HUP);
    reloads(&daemon, "refused", 1.0).await;
    assert_eq!(visit(daemon.address(), &newcomer).await.unwrap(), renewed);
    let words = daemon.stderr();
    assert!(
        words.contains("server.key does not belong to the certificate in"),
        "{words}"
    );
    assert!(!words.contains("PRIVATE KEY"), "{words}");
    std::fs::remove_file(scene.path("server.pem")).unwrap();
    daemon.signal(Signal::HUP);
    reloads(&daemon, "refused", 2.0).await;
    assert_eq!(visit(daemon.address(), &newcomer).await.unwrap(), renewed);
    devices[0].send(&[0xC0, 0]).await;
    devices[0].expect_packet(&[0xC0, 0]).await;
}

/// Half a minute, which the short run has no time for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changed_files_are_noticed_without_a_signal() {
    if !long() {
        return;
    }
    let scene = Scene::new();
    let broker = Stub::content().await;
    let authority = authority();
    let renewed = leaf(&scene, &authority, "renewed", 4711, &PKCS_ECDSA_P256_SHA256);
    let daemon = with_certificate(&scene, broker.address(), "ecdsa", &[]);
    install(&scene, "renewed");
    tokio::time::sleep(Duration::from_secs(25)).await;
    reloads(&daemon, "done", 1.0).await;
    let newcomer = client(&scene, &authority, None);
    assert_eq!(visit(daemon.address(), &newcomer).await.unwrap(), renewed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revoked_client_is_turned_away_and_counted() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let authority = authority();
    leaf(&scene, &authority, "own", 1, &PKCS_ECDSA_P256_SHA256);
    leaf(&scene, &authority, "sensor", 66, &PKCS_ECDSA_P256_SHA256);
    leaf(&scene, &authority, "neighbour", 67, &PKCS_ECDSA_P256_SHA256);
    revoke(&scene, &authority, "fleet.crl", &[]);
    scene.write("fleet.pem", &authority.pem());
    let (ca, crl) = (scene.text_path("fleet.pem"), scene.text_path("fleet.crl"));
    let (ca, crl) = (format!("{ca:?}"), format!("[{crl:?}]"));
    let auth = [
        ("tls.client_auth", "\"required\""),
        ("tls.client_ca", ca.as_str()),
        ("tls.client_crl", &crl),
    ];
    let daemon = with_certificate(&scene, broker.address(), "own", &auth);
    let connector = |name| client(&scene, &authority, name);
    let (sensor, neighbour, nobody) = (
        connector(Some("sensor")),
        connector(Some("neighbour")),
        connector(None),
    );
    visit(daemon.address(), &sensor).await.unwrap();
    // One that has sessions to resume, of both kinds of visit: its first and a later one.
    let saving = TlsConnector::from(Arc::new(settings(&scene, &authority, Some("sensor"))));
    for _ in 0..2 {
        visit(daemon.address(), &saving).await.unwrap();
    }
    assert!(visit(daemon.address(), &nobody).await.is_err());
    let failures = "seawall_handshake_failures_total";
    let counted = |cause| daemon.metrics_until(cause, move |m| m.sum(failures, &[("cause", cause)]) == 1.0);
    counted("client-certificate-missing").await;

    revoke(&scene, &authority, "fleet.crl", &[66]);
    daemon.signal(Signal::HUP);
    reloads(&daemon, "done", 1.0).await;
    assert!(visit(daemon.address(), &sensor).await.is_err());
    visit(daemon.address(), &neighbour).await.unwrap();
    let causes = counted("client-certificate-revoked").await;
    assert_eq!(causes.sum(failures, &[]), 2.0, "{causes}");
    for _ in 0..3 {
        assert!(visit(daemon.address(), &saving).await.is_err(), "resumed");
    }
    assert!(
        causes.sum("seawall_client_crl_expiry_seconds", &[]) > 3e10,
        "{causes}"
    );
    let words = daemon.stderr();
    assert!(
        !words.contains("WARN") && !words.contains("ERROR"),
        "a client wrote into the log: {words}"
    );
    assert_eq!(
        words.matches("secret_file is not set").count(),
        1,
        "at the start alone: {words}"
    );
}
