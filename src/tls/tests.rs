use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType, IsCa,
    KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SerialNumber, date_time_ymd,
};
use rustls::client::Resumption;
use rustls::crypto::aws_lc_rs;
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsConnector;

use super::*;

const PATIENCE: Duration = Duration::from_secs(10);

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority(name: &str) -> Authority {
    Authority::self_signed(authority_params(name), KeyPair::generate().unwrap()).unwrap()
}

fn below(name: &str, above: &Authority) -> Authority {
    Authority::signed_by(authority_params(name), KeyPair::generate().unwrap(), above).unwrap()
}

fn authority_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

/// A certificate and its key in PEM.
struct Leaf {
    certificate: String,
    key: String,
}

fn leaf(issuer: &Authority, name: &str, serial: u64, change: impl FnOnce(&mut CertificateParams)) -> Leaf {
    let mut params = CertificateParams::new([name.to_owned()]).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.serial_number = Some(SerialNumber::from(serial));
    change(&mut params);
    let key = KeyPair::generate().unwrap();
    Leaf {
        certificate: params.signed_by(&key, issuer).unwrap().pem(),
        key: key.serialize_pem(),
    }
}

/// A revocation list of `issuer` that holds from 2020 until `until`.
fn list(issuer: &Authority, revoked: &[u64], until: i32) -> rcgen::CertificateRevocationList {
    let revoked = revoked.iter().map(|serial| RevokedCertParams {
        serial_number: SerialNumber::from(*serial),
        revocation_time: date_time_ymd(2020, 1, 2),
        reason_code: None,
        invalidity_date: None,
    });
    CertificateRevocationListParams {
        this_update: date_time_ymd(2020, 1, 1),
        next_update: date_time_ymd(until, 1, 1),
        crl_number: SerialNumber::from(1),
        issuing_distribution_point: None,
        revoked_certs: revoked.collect(),
        key_identifier_method: KeyIdMethod::Sha256,
    }
    .signed_by(issuer)
    .unwrap()
}

/// A folder with the files of one server, and who signs for it.
struct Place {
    folder: TempDir,
    authority: Authority,
}

impl Place {
    fn new() -> Self {
        let place = Self {
            folder: tempfile::tempdir().unwrap(),
            authority: authority("servers"),
        };
        let server = leaf(&place.authority, "localhost", 1, |_| {});
        place.write("server.pem", &server.certificate);
        place.write("server.key", &server.key);
        place
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.folder.path().join(name);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        path
    }

    fn settings(&self) -> Settings {
        Settings {
            certificate: self.folder.path().join("server.pem"),
            private_key: self.folder.path().join("server.key"),
            min_version: MinVersion::V1_2,
            alpn: Vec::new(),
            client_auth: ClientAuth::None,
            max_record: 4096,
            hosts: Vec::new(),
            resumption: Some(ticket::Settings {
                secret_file: None,
                rotation: Duration::from_hours(6),
                lifetime: Duration::from_hours(24),
                tickets: 2,
            }),
        }
    }

    /// A client that trusts this authority, and shows `certificate` if it has one.
    fn client(&self, version: &'static SupportedProtocolVersion, certificate: Option<&Leaf>) -> ClientConfig {
        self.client_by(aws_lc_rs::default_provider(), version, certificate)
    }

    fn client_by(
        &self,
        provider: CryptoProvider,
        version: &'static SupportedProtocolVersion,
        certificate: Option<&Leaf>,
    ) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add(self.authority.der().clone()).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match certificate {
            None => builder.with_no_client_auth(),
            Some(leaf) => {
                let key = PrivateKeyDer::from_pem_slice(leaf.key.as_bytes()).unwrap();
                builder.with_client_auth_cert(chain(leaf), key).unwrap()
            }
        };
        config.resumption = Resumption::disabled();
        config
    }
}

fn chain(leaf: &Leaf) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(leaf.certificate.as_bytes())
        .collect::<Result<_, _>>()
        .unwrap()
}

/// What became of one handshake on the server's side; both sides have exchanged a byte where it succeeded.
async fn handshake(acceptor: &Acceptor, client: ClientConfig) -> Result<Established, HandshakeFailure> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let client = async move {
        let tcp = TcpStream::connect(address).await?;
        let name = ServerName::try_from("localhost").unwrap();
        let mut stream = TlsConnector::from(Arc::new(client)).connect(name, tcp).await?;
        let mut byte = [0];
        stream.read_exact(&mut byte).await?;
        Ok::<_, io::Error>(stream)
    };
    let server = async {
        let (tcp, _) = listener.accept().await.unwrap();
        let now = Instant::now();
        let begun = Vec::new();
        let mut established = acceptor.accept(tcp, begun, now + PATIENCE, now, None).await?;
        established.stream.write_all(b"x").await.unwrap();
        Ok(established)
    };
    let (client, server) = tokio::join!(client, server);
    assert_eq!(client.is_ok(), server.is_ok(), "{:?}", client.err());
    server
}

fn loaded(settings: &Settings) -> Acceptor {
    Acceptor::load(settings).unwrap_or_else(|errors| panic!("{errors:?}"))
}

fn errors(settings: &Settings) -> Vec<String> {
    Acceptor::load(settings)
        .unwrap_err()
        .iter()
        .map(ToString::to_string)
        .collect()
}

#[tokio::test]
async fn a_chain_in_any_order_is_sent_in_the_right_one() {
    let place = Place::new();
    let middle = below("middle", &place.authority);
    let lower = below("lower", &middle);
    let server = leaf(&lower, "localhost", 7, |_| {});
    let parts = [
        server.certificate.clone(),
        lower.pem(),
        middle.pem(),
        place.authority.pem(),
    ];
    let settings = place.settings();
    for order in [
        vec![0, 1, 2],
        vec![2, 1, 0],
        vec![1, 0, 2],
        vec![0, 2, 1],
        vec![3, 2, 0, 1],
        vec![0, 1, 2, 3],
    ] {
        let text: String = order.iter().map(|part| parts[*part].as_str()).collect();
        // All in one file, the key between them.
        let text = text.replacen("-----BEGIN", &format!("{}a remark\r\n-----BEGIN", server.key), 1);
        place.write("server.pem", &text);
        place.write("server.key", &text);
        let acceptor = loaded(&settings);
        assert_eq!(
            acceptor.warnings().len(),
            usize::from(!order.is_sorted()),
            "{order:?}: {:?}",
            acceptor.warnings()
        );
        let sent = |version| {
            let client = place.client(version, None);
            let acceptor = &acceptor;
            async move { handshake(acceptor, client).await }
        };
        assert!(sent(&rustls::version::TLS12).await.is_ok(), "{order:?}");
        assert!(sent(&rustls::version::TLS13).await.is_ok(), "{order:?}");
    }
}

#[test]
#[allow(clippy::too_many_lines, reason = "a table")]
fn what_is_wrong_with_certificate_or_key_is_said_with_its_file() {
    let place = Place::new();
    let good = place.settings();
    let other = leaf(&place.authority, "localhost", 2, |_| {});
    place.write("other.key", &other.key);
    place.write("none.pem", "nothing of interest\n");
    place.write(
        "broken.pem",
        "-----BEGIN CERTIFICATE-----\nMII!\n-----END CERTIFICATE-----\n",
    );
    place.write(
        "garbage.pem",
        "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n",
    );
    place.write(
        "encrypted.key",
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIIB\n-----END ENCRYPTED PRIVATE KEY-----\n",
    );
    place.write(
        "garbage.key",
        "-----BEGIN PRIVATE KEY-----\nMIIB\n-----END PRIVATE KEY-----\n",
    );
    let path = |name: &str| place.folder.path().join(name);
    for (certificate, key, found) in [
        (
            "server.pem",
            "other.key",
            "tls.private_key: FOLDER/other.key does not belong to the certificate in FOLDER/server.pem;",
        ),
        (
            "missing.pem",
            "server.key",
            "tls.certificate: can't read FOLDER/missing.pem: No such file",
        ),
        (
            "none.pem",
            "server.key",
            "tls.certificate: FOLDER/none.pem has no certificate in it; expected PEM",
        ),
        (
            "broken.pem",
            "server.key",
            "tls.certificate: FOLDER/broken.pem is no valid PEM (",
        ),
        (
            "garbage.pem",
            "server.key",
            "tls.certificate: FOLDER/garbage.pem has a certificate that can't be read, the 1. in it",
        ),
        (
            "server.key",
            "server.key",
            "tls.certificate: FOLDER/server.key has no certificate in it",
        ),
        (
            "server.pem",
            "server.pem",
            "tls.private_key: FOLDER/server.pem has no private key in it; expected an unencrypted",
        ),
        (
            "server.pem",
            "encrypted.key",
            "tls.private_key: FOLDER/encrypted.key has an encrypted private key (openssl",
        ),
        (
            "server.pem",
            "garbage.key",
            "tls.private_key: FOLDER/garbage.key has a private key that can't be used",
        ),
        (
            "server.pem",
            ".",
            "tls.private_key: can't read FOLDER/.: it is a folder",
        ),
    ] {
        let settings = Settings {
            certificate: path(certificate),
            private_key: path(key),
            ..good.clone()
        };
        let found = found.replace("FOLDER", &place.folder.path().display().to_string());
        let errors = errors(&settings);
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert!(errors[0].starts_with(&found), "{}\n{found}", errors[0]);
    }
    // Everything at once, with the table of each.
    let host = |certificate: &str, key: &str| Host {
        name: HostName::parse("a.example.com").unwrap(),
        certificate: path(certificate),
        private_key: path(key),
    };
    let hosts = vec![host("server.pem", "server.key"), host("none.pem", "missing.key")];
    let errors = errors(&Settings {
        certificate: path("missing.pem"),
        hosts,
        ..good
    });
    let keys: Vec<&str> = errors
        .iter()
        .filter_map(|error| error.split(':').next())
        .collect();
    assert_eq!(
        keys,
        [
            "tls.certificate",
            "tls.hosts[1].certificate",
            "tls.hosts[1].private_key"
        ]
    );
    assert!(
        !errors.concat().contains("MII"),
        "what is in a file is not for the log"
    );
}

#[test]
fn a_private_key_that_others_can_read_is_a_warning() {
    let place = Place::new();
    let settings = place.settings();
    for (mode, words) in [
        (0o600, ""),
        (0o640, ""),
        (0o644, "(mode 644)"),
        (0o660, "(mode 660)"),
    ] {
        fs::set_permissions(&settings.private_key, fs::Permissions::from_mode(mode)).unwrap();
        let acceptor = loaded(&settings);
        let warnings: Vec<String> = acceptor.warnings().iter().map(ToString::to_string).collect();
        assert_eq!(
            warnings.len(),
            usize::from(!words.is_empty()),
            "{mode:o}: {warnings:?}"
        );
        let named = |warning: &String| warning.starts_with("tls.private_key: ") && warning.contains(words);
        assert!(warnings.iter().all(named), "{mode:o}: {warnings:?}");
    }
}

#[test]
fn what_clients_will_not_take_is_a_warning() {
    let place = Place::new();
    let pair = |name: &str, leaf: &Leaf| Host {
        name: HostName::parse(name).unwrap(),
        certificate: place.write(&format!("{name}.pem"), &leaf.certificate),
        private_key: place.write(&format!("{name}.key"), &leaf.key),
    };
    let expired = leaf(&place.authority, "old.example.com", 2, |params| {
        params.not_after = date_time_ymd(2001, 2, 3);
    });
    let early = leaf(&place.authority, "new.example.com", 3, |params| {
        params.not_before = date_time_ymd(2999, 1, 1);
    });
    let wild = leaf(&place.authority, "*.wild.example.com", 4, |_| {});
    let large = leaf(&place.authority, "large.example.com", 5, |params| {
        let names = (0..200).map(|number| format!("name-number-{number}.example.com").try_into().unwrap());
        params
            .subject_alt_names
            .extend(names.map(rcgen::SanType::DnsName));
    });
    let hosts = vec![
        pair("old.example.com", &expired),
        pair("new.example.com", &early),
        pair("*.wild.example.com", &wild),
        pair("elsewhere.example.com", &wild),
        pair("large.example.com", &large),
    ];
    let acceptor = loaded(&Settings {
        hosts,
        ..place.settings()
    });
    let warnings: Vec<String> = acceptor.warnings().iter().map(ToString::to_string).collect();
    for (warning, (key, text)) in warnings.iter().zip([
        ("tls.hosts[0].certificate: ", "expired on Feb  3"),
        ("tls.hosts[1].certificate: ", "is not valid before Jan  1"),
        ("tls.hosts[3].certificate: ", "is not for elsewhere.example.com"),
        ("tls.hosts[4].certificate: ", "more than tls.max_record"),
    ]) {
        assert!(warning.starts_with(key) && warning.contains(text), "{warning}");
    }
    assert_eq!(warnings.len(), 4, "{warnings:#?}");
    let expiries: Vec<&str> = acceptor
        .certificates()
        .iter()
        .map(|(name, _)| name.as_str())
        .collect();
    assert_eq!(
        expiries,
        [
            "default",
            "old.example.com",
            "new.example.com",
            "*.wild.example.com",
            "elsewhere.example.com",
            "large.example.com"
        ]
    );
    assert_eq!(acceptor.certificates()[1].1, 981_158_400);
}

/// Client authorities of a fleet: one with an intermediate, one with a revocation list, one that is unknown.
struct Fleet {
    place: Place,
    root: Authority,
    middle: Authority,
    stranger: Authority,
}

impl Fleet {
    fn new() -> Self {
        let root = authority("fleet");
        Self {
            place: Place::new(),
            middle: below("fleet, region 1", &root),
            root,
            stranger: authority("fleet"),
        }
    }

    fn authorities(&self, crl_expired: CrlExpired, crl: Vec<PathBuf>) -> Authorities {
        Authorities {
            ca: self.place.write("fleet.pem", self.root.pem()),
            crl,
            crl_expired,
        }
    }

    fn policy(&self, client_auth: ClientAuth) -> Acceptor {
        loaded(&Settings {
            client_auth,
            ..self.place.settings()
        })
    }
}

#[tokio::test]
#[allow(clippy::too_many_lines, reason = "a table")]
async fn a_client_certificate_is_accepted_or_refused_with_the_cause() {
    use HandshakeFailure::{
        ClientCertificate, ClientCertificateExpired, ClientCertificateMissing, ClientCertificateRevoked,
        ClientCertificateUnknownIssuer, ClientCrlExpired,
    };
    let fleet = Fleet::new();
    let good = leaf(&fleet.root, "sensor-10", 10, |_| {});
    let revoked = leaf(&fleet.root, "sensor-66", 66, |_| {});
    let expired = leaf(&fleet.root, "sensor-11", 11, |params| {
        params.not_after = date_time_ymd(2001, 1, 1);
    });
    let early = leaf(&fleet.root, "sensor-12", 12, |params| {
        params.not_before = date_time_ymd(2999, 1, 1);
    });
    // Same name of the authority, another key.
    let foreign = leaf(&fleet.stranger, "sensor-10", 10, |_| {});
    let mut regional = leaf(&fleet.middle, "sensor-20", 20, |_| {});
    let headless = Leaf {
        certificate: regional.certificate.clone(),
        key: regional.key.clone(),
    };
    regional.certificate.push_str(&fleet.middle.pem());
    let server_only = leaf(&fleet.root, "sensor-13", 13, |params| {
        params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
    });

    let current = fleet
        .place
        .write("current.crl", list(&fleet.root, &[66], 2999).pem().unwrap());
    let stale = fleet
        .place
        .write("stale.crl", list(&fleet.root, &[66], 2021).der());
    let with = |crl_expired, crl: &[&PathBuf]| {
        fleet.authorities(crl_expired, crl.iter().map(|path| (*path).clone()).collect())
    };
    let plain = with(CrlExpired::Reject, &[]);
    let listed = with(CrlExpired::Reject, &[&current]);
    let rejecting = with(CrlExpired::Reject, &[&stale]);
    let accepting = with(CrlExpired::Accept, &[&stale]);
    // The newest counts, in whatever order they are named.
    let both = with(CrlExpired::Reject, &[&stale, &current]);

    for (name, client_auth, certificate, expected) in [
        ("nobody is asked", ClientAuth::None, Some(&foreign), Ok(None)),
        ("nobody is asked", ClientAuth::None, None, Ok(None)),
        ("none at all", ClientAuth::Optional(plain.clone()), None, Ok(None)),
        (
            "none at all",
            ClientAuth::Required(plain.clone()),
            None,
            Err(ClientCertificateMissing),
        ),
        (
            "good",
            ClientAuth::Optional(plain.clone()),
            Some(&good),
            Ok(Some("sensor-10")),
        ),
        (
            "good",
            ClientAuth::Required(plain.clone()),
            Some(&good),
            Ok(Some("sensor-10")),
        ),
        (
            "good, listed",
            ClientAuth::Required(listed.clone()),
            Some(&good),
            Ok(Some("sensor-10")),
        ),
        (
            "intermediate",
            ClientAuth::Required(listed.clone()),
            Some(&regional),
            Ok(Some("sensor-20")),
        ),
        (
            "no intermediate",
            ClientAuth::Required(plain.clone()),
            Some(&headless),
            Err(ClientCertificateUnknownIssuer),
        ),
        (
            "foreign",
            ClientAuth::Optional(plain.clone()),
            Some(&foreign),
            Err(ClientCertificate),
        ),
        (
            "expired",
            ClientAuth::Optional(plain.clone()),
            Some(&expired),
            Err(ClientCertificateExpired),
        ),
        (
            "not yet valid",
            ClientAuth::Required(plain.clone()),
            Some(&early),
            Err(ClientCertificateExpired),
        ),
        (
            "for servers alone",
            ClientAuth::Required(plain.clone()),
            Some(&server_only),
            Err(ClientCertificate),
        ),
        (
            "revoked, no list",
            ClientAuth::Required(plain.clone()),
            Some(&revoked),
            Ok(Some("sensor-66")),
        ),
        (
            "revoked",
            ClientAuth::Required(listed.clone()),
            Some(&revoked),
            Err(ClientCertificateRevoked),
        ),
        (
            "revoked",
            ClientAuth::Optional(listed.clone()),
            Some(&revoked),
            Err(ClientCertificateRevoked),
        ),
        (
            "good, stale list",
            ClientAuth::Required(rejecting.clone()),
            Some(&good),
            Err(ClientCrlExpired),
        ),
        (
            "good, stale list accepted",
            ClientAuth::Required(accepting.clone()),
            Some(&good),
            Ok(Some("sensor-10")),
        ),
        (
            "revoked, stale list accepted",
            ClientAuth::Required(accepting.clone()),
            Some(&revoked),
            Err(ClientCertificateRevoked),
        ),
        (
            "good, stale and current list",
            ClientAuth::Required(both.clone()),
            Some(&good),
            Ok(Some("sensor-10")),
        ),
    ] {
        let acceptor = fleet.policy(client_auth.clone());
        for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
            let result = handshake(&acceptor, fleet.place.client(version, certificate)).await;
            let found = result.as_ref().map(|established| {
                established
                    .identity
                    .as_deref()
                    .and_then(|identity| identity.common_name.as_deref())
            });
            assert_eq!(
                found,
                expected.as_ref().map(|name| *name),
                "{name}, {client_auth:?}, {version:?}"
            );
            let chain = certificate.map(chain).unwrap_or_default();
            assert_eq!(
                acceptor.policy().recheck(&chain),
                expected.is_ok(),
                "{name}, rechecked"
            );
        }
    }
}

#[test]
fn a_chain_that_was_good_is_rechecked_against_time() {
    let fleet = Fleet::new();
    let sensor = leaf(&fleet.root, "sensor", 10, |params| {
        params.not_after = date_time_ymd(2035, 1, 1);
    });
    let until_2030 = fleet
        .place
        .write("2030.crl", list(&fleet.root, &[66], 2030).der());
    let authorities = fleet.authorities(CrlExpired::Reject, vec![until_2030]);
    let acceptor = fleet.policy(ClientAuth::Required(authorities.clone()));
    let accepting = Authorities {
        crl_expired: CrlExpired::Accept,
        ..authorities
    };
    let lenient = fleet.policy(ClientAuth::Required(accepting));
    let chain = chain(&sensor);
    for (year, strict, relaxed) in [
        (1970, false, false),
        (2027, true, true),
        (2031, false, true),
        (2036, false, false),
    ] {
        let seconds = u64::try_from(date_time_ymd(year, 6, 1).unix_timestamp()).unwrap();
        let now = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        assert_eq!(acceptor.policy().accepts(&chain, now), strict, "{year}");
        assert_eq!(lenient.policy().accepts(&chain, now), relaxed, "{year}");
    }
}

#[test]
fn sessions_of_another_policy_have_another_fingerprint() {
    let fleet = Fleet::new();
    let (one, other) = (fleet.root.pem(), fleet.stranger.pem());
    let print = |required: bool, bundle: String, crl: Vec<PathBuf>| {
        let ca = fleet.place.write("bundle.pem", bundle);
        let authorities = Authorities {
            ca,
            crl,
            crl_expired: CrlExpired::Reject,
        };
        let client_auth = if required {
            ClientAuth::Required(authorities)
        } else {
            ClientAuth::Optional(authorities)
        };
        *fleet.policy(client_auth).policy().fingerprint()
    };
    let list = fleet.place.write("a.crl", list(&fleet.root, &[1], 2999).der());
    let different = [
        *fleet.policy(ClientAuth::None).policy().fingerprint(),
        print(true, one.clone(), Vec::new()),
        print(false, one.clone(), Vec::new()),
        print(true, other.clone(), Vec::new()),
        print(true, format!("{one}{other}"), Vec::new()),
    ];
    for (index, first) in different.iter().enumerate() {
        assert!(!different[index + 1..].contains(first), "{index}");
    }
    assert_eq!(
        print(true, format!("{other}{one}{other}"), Vec::new()),
        different[4]
    );
    assert_eq!(
        print(true, one, vec![list]),
        different[1],
        "lists are rechecked instead"
    );
}

#[test]
fn what_is_wrong_with_authorities_or_lists_is_said_with_its_file() {
    let fleet = Fleet::new();
    let server_key = fs::read(fleet.place.folder.path().join("server.key")).unwrap();
    let good = fleet.place.write("good.crl", list(&fleet.root, &[1], 2999).der());
    let ca = fleet.place.write("fleet.pem", fleet.root.pem());
    for (ca, crl, found) in [
        (
            fleet.place.write("key.pem", &server_key),
            &good,
            "tls.client_ca: FOLDER/key.pem has no certificate in it",
        ),
        (
            ca.clone(),
            &fleet.place.write("key.crl", &server_key),
            "tls.client_crl: FOLDER/key.crl has no revocation list in it",
        ),
        (
            ca.clone(),
            &fleet.place.write("empty.crl", ""),
            "tls.client_crl: FOLDER/empty.crl has something that is no revocation list",
        ),
        (
            ca.clone(),
            &fleet.place.write("der.crl", fleet.root.der()),
            "tls.client_crl: FOLDER/der.crl has something that is no",
        ),
        (
            ca,
            &fleet.place.folder.path().join("no.crl"),
            "tls.client_crl: can't read FOLDER/no.crl",
        ),
    ] {
        let crl = vec![good.clone(), crl.clone()];
        let authorities = Authorities {
            ca,
            crl,
            crl_expired: CrlExpired::Reject,
        };
        let settings = Settings {
            client_auth: ClientAuth::Required(authorities),
            ..fleet.place.settings()
        };
        let found = found.replace("FOLDER", &fleet.place.folder.path().display().to_string());
        let errors = errors(&settings);
        assert!(
            errors.len() == 1 && errors[0].starts_with(&found),
            "{errors:?}\n{found}"
        );
    }
}

#[test]
fn lists_that_will_surprise_are_warned_of() {
    let fleet = Fleet::new();
    let stale = fleet.place.write("stale.crl", list(&fleet.root, &[], 2021).der());
    let foreign = fleet.place.write(
        "foreign.crl",
        list(&authority("others"), &[], 2999).pem().unwrap(),
    );
    for (crl_expired, what) in [
        (CrlExpired::Reject, "is refused"),
        (CrlExpired::Accept, "used all the same"),
    ] {
        let authorities = fleet.authorities(crl_expired, vec![stale.clone(), foreign.clone()]);
        let acceptor = fleet.policy(ClientAuth::Optional(authorities));
        let warnings: Vec<String> = acceptor.warnings().iter().map(ToString::to_string).collect();
        assert_eq!(warnings.len(), 2, "{warnings:?}");
        assert!(
            warnings
                .iter()
                .any(|text| text.contains("\"CN=fleet\"") && text.contains(what)),
            "{warnings:?}"
        );
        assert!(
            warnings
                .iter()
                .any(|text| text.contains("\"CN=others\", which is not in")),
            "{warnings:?}"
        );
        let lists = acceptor.revocation_lists();
        let stale = lists
            .iter()
            .find(|list| list.name == stale.display().to_string())
            .unwrap();
        assert_eq!(stale.expires, date_time_ymd(2021, 1, 1).unix_timestamp());
    }
}

/// A blocking socket that remembers what it has read.
struct Recorder {
    socket: std::net::TcpStream,
    seen: Vec<u8>,
}

impl Read for Recorder {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.socket.read(buffer)?;
        self.seen.extend_from_slice(&buffer[..count]);
        Ok(count)
    }
}

impl Write for Recorder {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

/// Lengths of the records of application data, without their headers.
fn records(mut bytes: &[u8]) -> Vec<usize> {
    let mut lengths = Vec::new();
    while let [kind, _, _, high, low, rest @ ..] = bytes {
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        if *kind == 23 {
            lengths.push(length);
        }
        bytes = &rest[length..];
    }
    lengths
}

#[tokio::test]
async fn records_to_a_client_carry_no_more_than_the_limit() {
    const SENT: usize = 40_000;
    let place = Place::new();
    // What encryption adds: RFC 5288 section 3 a nonce of 8 bytes and a tag of 16, RFC 8446 section 5.2 a byte and a tag.
    for (version, overhead) in [
        (&rustls::version::TLS12, 8 + 16),
        (&rustls::version::TLS13, 1 + 16),
    ] {
        for max_record in [64, 512, 4096, 16_384] {
            let acceptor = loaded(&Settings {
                max_record,
                ..place.settings()
            });
            let client = place.client(version, None);
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let reading = std::thread::spawn(move || {
                let name = ServerName::try_from("localhost").unwrap();
                let mut session = ClientConnection::new(Arc::new(client), name).unwrap();
                let socket = std::net::TcpStream::connect(address).unwrap();
                let mut recorder = Recorder {
                    socket,
                    seen: Vec::new(),
                };
                let mut received = vec![0; SENT];
                rustls::Stream::new(&mut session, &mut recorder)
                    .read_exact(&mut received)
                    .unwrap();
                recorder.seen
            });
            let (tcp, _) = listener.accept().await.unwrap();
            let now = Instant::now();
            let mut established = acceptor
                .accept(tcp, Vec::new(), now + PATIENCE, now, None)
                .await
                .unwrap();
            established.stream.write_all(&vec![7; SENT]).await.unwrap();
            established.stream.flush().await.unwrap();
            let lengths = records(&reading.join().unwrap());
            assert_eq!(
                lengths.iter().max(),
                Some(&(max_record + overhead)),
                "{version:?}"
            );
        }
    }
}

#[tokio::test]
async fn our_order_of_suites_counts_but_where_the_client_has_no_instructions_for_aes() {
    use aws_lc_rs::cipher_suite as suites;
    let place = Place::new();
    let acceptor = loaded(&place.settings());
    let (v1_2, v1_3) = (&rustls::version::TLS12, &rustls::version::TLS13);
    let (aes_128, aes_256, chacha) = (
        suites::TLS13_AES_128_GCM_SHA256,
        suites::TLS13_AES_256_GCM_SHA384,
        suites::TLS13_CHACHA20_POLY1305_SHA256,
    );
    let (old_128, old_256, old_chacha) = (
        suites::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
        suites::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
        suites::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    );
    for (version, offered, agreed) in [
        (v1_3, vec![aes_256, chacha, aes_128], aes_128),
        (v1_3, vec![chacha, aes_256, aes_128], chacha),
        (v1_3, vec![aes_256, chacha], aes_256),
        (v1_3, vec![aes_256], aes_256),
        (v1_2, vec![old_256, old_128, old_chacha], old_128),
        (v1_2, vec![old_chacha, old_128], old_chacha),
        (v1_2, vec![old_256, old_chacha], old_256),
    ] {
        let provider = CryptoProvider {
            cipher_suites: offered.clone(),
            ..aws_lc_rs::default_provider()
        };
        let client = place.client_by(provider, version, None);
        let established = handshake(&acceptor, client).await.unwrap();
        let (_, session) = established.stream.get_ref();
        let got = session.negotiated_cipher_suite().map(|suite| suite.suite());
        assert_eq!(got, Some(agreed.suite()), "{offered:?}");
    }
}

/// For each client, what became of its handshake.
async fn kinds(
    acceptor: &Acceptor,
    clients: &[ClientConfig],
) -> Vec<Result<HandshakeKind, HandshakeFailure>> {
    let mut kinds = Vec::new();
    for client in clients {
        let ended = handshake(acceptor, client.clone()).await;
        kinds.push(ended.map(|established| established.handshake.kind));
    }
    kinds
}

/// Clients of both versions that keep their sessions.
fn returning(place: &Place, certificate: Option<&Leaf>) -> Vec<ClientConfig> {
    [&rustls::version::TLS12, &rustls::version::TLS13]
        .into_iter()
        .map(|version| {
            let mut client = place.client(version, certificate);
            client.resumption = Resumption::in_memory_sessions(8);
            client
        })
        .collect()
}

const FULL: [Result<HandshakeKind, HandshakeFailure>; 2] = [Ok(HandshakeKind::Full); 2];
const RESUMED: [Result<HandshakeKind, HandshakeFailure>; 2] = [Ok(HandshakeKind::Resumed); 2];

#[tokio::test]
async fn a_saved_session_is_no_way_around_a_revocation() {
    let fleet = Fleet::new();
    let lost = leaf(&fleet.root, "sensor-66", 66, |_| {});
    let good = leaf(&fleet.root, "sensor-10", 10, |_| {});
    let revoke = |serials: &[u64]| {
        let list = list(&fleet.root, serials, 2999).pem().unwrap();
        fleet.place.write("current.crl", list)
    };
    let authorities = fleet.authorities(CrlExpired::Reject, vec![revoke(&[])]);
    let settings = Settings {
        client_auth: ClientAuth::Required(authorities),
        ..fleet.place.settings()
    };
    let before = loaded(&settings);
    let (lost, good) = (
        returning(&fleet.place, Some(&lost)),
        returning(&fleet.place, Some(&good)),
    );
    for clients in [&lost, &good] {
        assert_eq!(kinds(&before, clients).await, FULL);
        assert_eq!(kinds(&before, clients).await, RESUMED);
    }
    let resumed = handshake(&before, good[1].clone())
        .await
        .unwrap_or_else(|error| panic!("{error:?}"));
    assert!(
        resumed.identity.is_some(),
        "who it is comes back with the session"
    );

    revoke(&[66]);
    let after = before.reload(&settings).unwrap();
    let turned_away = [Err(HandshakeFailure::ClientCertificateRevoked); 2];
    assert_eq!(kinds(&after, &lost).await, turned_away);
    assert_eq!(kinds(&after, &lost).await, turned_away, "each time");
    assert_eq!(kinds(&after, &good).await, RESUMED);
}

#[tokio::test]
async fn sessions_outlive_a_reload_of_certificate_and_secret_but_not_of_the_authorities() {
    let fleet = Fleet::new();
    let place = &fleet.place;
    let sensor = leaf(&fleet.root, "sensor-10", 10, |_| {});
    let clients = returning(place, Some(&sensor));
    let authorities = fleet.authorities(CrlExpired::Reject, Vec::new());
    let mut settings = Settings {
        client_auth: ClientAuth::Optional(authorities.clone()),
        ..place.settings()
    };
    let secret = |name: &str| {
        let path = place.write(name, ticket::generate().unwrap());
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        path
    };
    let resumption = settings.resumption.as_mut().unwrap();
    resumption.secret_file = Some(secret("secret"));
    let first = loaded(&settings);
    assert_eq!(kinds(&first, &clients).await, FULL);

    let renewed = leaf(&place.authority, "localhost", 2, |_| {});
    place.write("server.pem", &renewed.certificate);
    place.write("server.key", &renewed.key);
    secret("secret");
    let second = first.reload(&settings).unwrap();
    assert_eq!(
        kinds(&second, &clients).await,
        RESUMED,
        "under the secret of before"
    );
    let replica = loaded(&settings);
    assert_eq!(kinds(&replica, &clients).await, RESUMED, "under the new one");

    place.write("secret", "too short");
    place.write("server.key", "no key");
    let errors = second.reload(&settings).unwrap_err();
    let keys: Vec<&str> = errors.iter().map(LoadError::key).collect();
    assert_eq!(keys, ["tls.private_key", "tls.resumption.secret_file"]);
    assert_eq!(
        kinds(&second, &clients).await,
        RESUMED,
        "a failed reload changes nothing"
    );

    secret("secret");
    place.write("server.key", &renewed.key);
    settings.client_auth = ClientAuth::Required(authorities);
    let stricter = second.reload(&settings).unwrap();
    assert_eq!(kinds(&stricter, &clients).await, FULL, "under another policy");
}
