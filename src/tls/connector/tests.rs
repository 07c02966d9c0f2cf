use std::os::unix::fs::PermissionsExt;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd};
use rustls::crypto::aws_lc_rs;
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, SupportedProtocolVersion, version};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::*;
use HandshakeKind::{Full, Resumed};

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority(name: &str) -> Authority {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, name);
    Authority::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// A folder with `ca.pem` of the brokers, `other.pem` of somebody else, `own.pem` and `own.key` of ours.
struct Files {
    folder: TempDir,
    brokers: Authority,
}

impl Files {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let files = Self {
            folder,
            brokers: authority("Brokers"),
        };
        files.write("ca.pem", &files.brokers.pem());
        files.write("other.pem", &authority("Other").pem());
        let (chain, key) = files.leaf(&[], 2999);
        files.write("own.pem", &chain.pem());
        files.write("own.key", &key.serialize_pem());
        files
    }

    fn leaf(&self, names: &[&str], until: i32) -> (rcgen::Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.not_after = date_time_ymd(until, 1, 1);
        (params.signed_by(&key, &self.brokers).unwrap(), key)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, content: &str) {
        std::fs::write(self.path(name), content).unwrap();
        std::fs::set_permissions(self.path(name), PermissionsExt::from_mode(0o640)).unwrap();
    }

    fn settings(&self, ca: &str) -> Settings {
        Settings {
            ca: self.path(ca),
            server_name: None,
            certificate: None,
        }
    }

    fn connector(&self, ca: &str) -> Connector {
        Connector::load(&self.settings(ca), None).unwrap()
    }

    fn connector_with_certificate(&self) -> Connector {
        let settings = Settings {
            certificate: Some((self.path("own.pem"), self.path("own.key"))),
            ..self.settings("ca.pem")
        };
        Connector::load(&settings, None).unwrap()
    }

    /// A broker's side, with a certificate for `names` until that year, which asks for one where `asks` says so.
    fn broker(
        &self,
        names: &[&str],
        until: i32,
        versions: &[&'static SupportedProtocolVersion],
        asks: bool,
    ) -> ServerConfig {
        let (chain, key) = self.leaf(names, until);
        let provider = Arc::new(aws_lc_rs::default_provider());
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_file(self.path("ca.pem")).unwrap())
            .unwrap();
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
        let verifier = if asks {
            verifier.build().unwrap()
        } else {
            WebPkiClientVerifier::no_client_auth()
        };
        ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .unwrap()
            .with_client_cert_verifier(verifier)
            .with_single_cert(
                vec![chain.der().clone()],
                PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap(),
            )
            .unwrap()
    }
}

/// What comes of one connection to a broker, and of waiting whether it stays.
async fn visit(
    connector: &Connector,
    index: usize,
    broker: ServerConfig,
    host: &'static str,
) -> Result<TlsStream<TcpStream>, ConnectError> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = async {
        let (socket, _) = listener.accept().await.unwrap();
        if let Ok(mut stream) = TlsAcceptor::from(Arc::new(broker)).accept(socket).await {
            stream.flush().await.unwrap();
            // Stays until the visitor has gone.
            let _ = stream.read(&mut [0]).await;
        }
    };
    let visiting = async {
        let socket = TcpStream::connect(address).await.unwrap();
        let host = ServerName::try_from(host).unwrap();
        let mut stream = connector.connect(socket, index, Some(&host)).await?;
        settled(&mut stream).await?;
        stream.shutdown().await.unwrap();
        Ok(*stream)
    };
    tokio::join!(serving, visiting).1
}

#[tokio::test]
async fn a_broker_that_is_not_good_is_refused_in_words() {
    let files = Files::new();
    let (ours, foreign) = (files.connector("ca.pem"), files.connector("other.pem"));
    let good = || files.broker(&["broker.example", "127.0.0.1"], 2999, ALL_VERSIONS, false);
    visit(&ours, 0, good(), "broker.example").await.unwrap();
    visit(&ours, 0, good(), "127.0.0.1").await.unwrap();
    let expired = files.broker(&["broker.example"], 2020, ALL_VERSIONS, false);
    let nameless = files.broker(&[], 2999, ALL_VERSIONS, false);
    for (connector, broker, host, words) in [
        (
            &foreign,
            good(),
            "broker.example",
            "its certificate is signed by no authority in upstream.tls.ca",
        ),
        (
            &ours,
            good(),
            "other.example",
            "its certificate is for broker.example, ",
        ),
        (&ours, good(), "other.example", "not for other.example"),
        (&ours, good(), "127.0.0.2", "not for 127.0.0.2"),
        (
            &ours,
            nameless,
            "broker.example",
            "is for nobody (it has no subjectAltName), not for broker.example",
        ),
        (&ours, expired, "broker.example", "outside its time"),
    ] {
        let error = visit(connector, 0, broker, host).await.unwrap_err().to_string();
        assert!(error.contains(words), "{host}: {error}");
    }
}

#[tokio::test]
async fn what_is_no_tls_is_told_from_what_closes() {
    let files = Files::new();
    let connector = files.connector("ca.pem");
    for (answer, words) in [
        (&b"\x20\x02\x00\x05"[..], "it does not speak TLS there"),
        (b"", "it closed the connection during the TLS handshake"),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let plain = async {
            let (mut socket, _) = listener.accept().await.unwrap();
            // All of the ClientHello, so that the close is no reset.
            let _ = socket.read(&mut [0; 4096]).await.unwrap();
            socket.write_all(answer).await.unwrap();
            socket.shutdown().await.unwrap();
            let _ = socket.read(&mut [0]).await;
        };
        let host = ServerName::try_from("broker.example").unwrap();
        let visiting = async {
            // Dropped when it has failed, so that the other side ends as well.
            connector.connect(socket, 0, Some(&host)).await.err().unwrap()
        };
        let (error, ()) = tokio::join!(visiting, plain);
        assert_eq!(error.to_string(), words);
    }
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let socket = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let error = connector.connect(socket, 0, None).await.err().unwrap();
    assert!(matches!(error, ConnectError::NoName));
}

#[tokio::test]
async fn a_broker_that_wants_a_certificate_gets_ours_and_says_so_if_there_is_none() {
    let files = Files::new();
    for versions in [&[&version::TLS12], &[&version::TLS13]] {
        let asking = || files.broker(&["broker.example"], 2999, versions, true);
        let with = files.connector_with_certificate();
        visit(&with, 0, asking(), "broker.example").await.unwrap();
        let without = files.connector("ca.pem");
        let error = visit(&without, 0, asking(), "broker.example").await.unwrap_err();
        // TLS 1.2 knows no alert for it.
        let words = error.to_string();
        assert!(words.contains("it refuses us by the alert "), "{words}");
        if *versions == [&version::TLS13] {
            assert!(
                words.ends_with("CertificateRequired: it wants a certificate, set upstream.tls.certificate"),
                "{words}"
            );
        }
    }
}

#[tokio::test]
async fn sessions_are_resumed_with_the_broker_that_gave_them_and_no_more_than_some_are_kept() {
    let files = Files::new();
    for versions in [&[&version::TLS12], &[&version::TLS13]] {
        let connector = files.connector("ca.pem");
        let one = files.broker(&["broker.example"], 2999, versions, false);
        let mut kinds = Vec::new();
        for index in [0, 0, 0, 1, 1] {
            let stream = visit(&connector, index, one.clone(), "broker.example")
                .await
                .unwrap();
            kinds.push(kind(&stream));
        }
        assert_eq!(kinds, [Full, Resumed, Resumed, Full, Resumed]);
    }
    let connector = files.connector("ca.pem");
    let mut generous = files.broker(&["broker.example"], 2999, &[&version::TLS13], false);
    generous.send_tls13_tickets = 200;
    let stream = visit(&connector, 0, generous, "broker.example").await.unwrap();
    assert!(stream.get_ref().1.tls13_tickets_received() > 128);
    let kept = format!("{:?}", connector.config_of(0).resumption);
    assert!(kept.contains("tickets: 128"), "{kept}");
}

#[tokio::test]
async fn what_has_not_changed_keeps_its_sessions_and_what_has_does_not() {
    let files = Files::new();
    let broker = files.broker(&["broker.example"], 2999, ALL_VERSIONS, false);
    let before = files.connector("ca.pem");
    visit(&before, 0, broker.clone(), "broker.example").await.unwrap();
    let same = Connector::load(&files.settings("ca.pem"), Some(&before)).unwrap();
    assert!(same.is(&before));
    let stream = visit(&same, 0, broker.clone(), "broker.example").await.unwrap();
    assert_eq!(kind(&stream), Resumed);

    let both = files.brokers.pem() + &authority("New").pem();
    files.write("ca.pem", &both);
    let changed = Connector::load(&files.settings("ca.pem"), Some(&same)).unwrap();
    assert!(!changed.is(&same));
    let stream = visit(&changed, 0, broker.clone(), "broker.example")
        .await
        .unwrap();
    assert_eq!(kind(&stream), Full);

    let named = Settings {
        server_name: Some(ServerName::try_from("broker.example").unwrap()),
        ..files.settings("ca.pem")
    };
    let named = Connector::load(&named, Some(&changed)).unwrap();
    assert!(!named.is(&changed), "other settings");
    visit(&named, 0, broker, "10.0.0.1").await.unwrap();
}

#[test]
fn every_file_that_cannot_be_used_is_reported() {
    let files = Files::new();
    files.write("empty.pem", "");
    let (chain, key) = files.leaf(&["old.example"], 2020);
    files.write("old.pem", &chain.pem());
    files.write("old.key", &key.serialize_pem());
    let load = |ca: &str, pair: Option<(&str, &str)>| {
        let settings = Settings {
            certificate: pair.map(|(chain, key)| (files.path(chain), files.path(key))),
            ..files.settings(ca)
        };
        Connector::load(&settings, None)
    };
    for (ca, pair, expected) in [
        ("none.pem", None, &[("upstream.tls.ca", "can't read")][..]),
        (
            "empty.pem",
            None,
            &[("upstream.tls.ca", "has no certificate in it")],
        ),
        (
            "own.key",
            Some(("own.key", "own.pem")),
            &[
                ("upstream.tls.ca", "has no certificate in it"),
                ("upstream.tls.certificate", "has no certificate in it"),
                ("upstream.tls.private_key", "has no private key in it"),
            ],
        ),
        (
            "ca.pem",
            Some(("own.pem", "old.key")),
            &[(
                "upstream.tls.private_key",
                "does not belong to the certificate in",
            )],
        ),
    ] {
        let errors = load(ca, pair).err().unwrap();
        assert_eq!(errors.len(), expected.len(), "{ca}: {errors:?}");
        for (error, (key, words)) in errors.iter().zip(expected) {
            assert_eq!(error.key(), *key);
            assert!(error.to_string().contains(words), "{error}");
        }
    }
    let old = load("ca.pem", Some(("old.pem", "old.key"))).unwrap();
    let warnings: Vec<String> = old.warnings().iter().map(ToString::to_string).collect();
    assert_eq!(warnings.len(), 1);
    assert!(
        warnings[0].starts_with("upstream.tls.certificate: ") && warnings[0].ends_with("brokers refuse it")
    );
    assert!(old.expires().is_some());
}

/// As `openssl req -x509` makes one with `basicConstraints=critical,CA:FALSE`.
#[tokio::test]
async fn a_certificate_that_is_its_own_authority_goes_into_the_bundle() {
    let files = Files::new();
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(["broker.example".to_owned()]).unwrap();
    let own = params.self_signed(&key).unwrap();
    files.write("self-signed.pem", &own.pem());
    let connector = files.connector("self-signed.pem");
    let broker = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![own.der().clone()],
            PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap(),
        )
        .unwrap();
    visit(&connector, 0, broker, "broker.example").await.unwrap();
}

/// Debian's bundle, where there is one: all of it must be readable, since documentation points there.
#[test]
fn the_bundle_of_the_system_can_be_used() {
    let path = Path::new("/etc/ssl/certs/ca-certificates.crt");
    if path.exists() {
        let files = Files::new();
        let settings = Settings {
            ca: path.to_owned(),
            ..files.settings("ca.pem")
        };
        Connector::load(&settings, None).unwrap();
    }
}
