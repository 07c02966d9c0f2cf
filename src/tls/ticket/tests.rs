//! Real handshakes in memory between rustls and rustls, with a clock that the test sets.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::client::Resumption;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::server::WebPkiClientVerifier;
use rustls::{
    ClientConfig, ClientConnection, HandshakeKind, RootCertStore, ServerConnection, SupportedProtocolVersion,
};
use rustls_pki_types::PrivateKeyDer;

use super::*;

const HOUR: Duration = Duration::from_hours(1);
const DAY: Duration = Duration::from_hours(24);
const START: u64 = 1_800_000_000_000;
const VERSIONS: [&SupportedProtocolVersion; 2] = [&rustls::version::TLS12, &rustls::version::TLS13];

/// The clock of one machine.
#[derive(Clone)]
struct Clock(Arc<Mutex<Reading>>);

impl Clock {
    fn new() -> Self {
        Self(Arc::new(Mutex::new(Reading {
            wall: START,
            moment: Moment::ZERO,
        })))
    }

    fn pass(&self, span: Duration) {
        let mut now = self.0.lock().unwrap();
        now.wall += span.as_millis() as u64;
        now.moment = now.moment + span;
    }

    fn set(&self, wall: u64) {
        self.0.lock().unwrap().wall = wall;
    }

    fn read(&self) -> impl Fn() -> Reading + Send + Sync + use<> {
        let now = Arc::clone(&self.0);
        move || *now.lock().unwrap()
    }
}

fn settings() -> Settings {
    Settings {
        secret_file: None,
        rotation: 6 * HOUR,
        lifetime: DAY,
        tickets: 2,
    }
}

fn secret(seed: u8) -> Secret {
    Secret::new(&[seed; 32])
}

fn tickets(seed: u8, clock: &Clock) -> Arc<Tickets> {
    Tickets::new(&settings(), secret(seed), clock.read())
}

/// An authority, a server's certificate and a client's.
struct Papers {
    authority: CertifiedIssuer<'static, KeyPair>,
    server: (CertificateDer<'static>, PrivateKeyDer<'static>),
    client: (CertificateDer<'static>, PrivateKeyDer<'static>),
}

impl Papers {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let issue = |name: &str| {
            let key = KeyPair::generate().unwrap();
            let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
            let certificate = params.signed_by(&key, &authority).unwrap();
            (
                certificate.der().clone(),
                PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
            )
        };
        Self {
            server: issue("localhost"),
            client: issue("device-1"),
            authority,
        }
    }

    fn roots(&self) -> Arc<RootCertStore> {
        let mut roots = RootCertStore::empty();
        roots.add(self.authority.der().clone()).unwrap();
        Arc::new(roots)
    }

    /// A server that asks for the client's certificate where `mutual`.
    fn server(&self, ticketer: &Arc<Ticketer>, mutual: bool) -> Arc<ServerConfig> {
        let provider = Arc::new(default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .unwrap();
        let builder = if mutual {
            let verifier = WebPkiClientVerifier::builder_with_provider(self.roots(), provider);
            builder.with_client_cert_verifier(verifier.build().unwrap())
        } else {
            builder.with_no_client_auth()
        };
        let (certificate, key) = &self.server;
        let mut config = builder
            .with_single_cert(vec![certificate.clone()], key.clone_key())
            .unwrap();
        equip(&mut config, Some(ticketer), settings().tickets);
        Arc::new(config)
    }

    /// A client that remembers its tickets.
    fn client(&self, version: &'static SupportedProtocolVersion) -> Arc<ClientConfig> {
        let (certificate, key) = &self.client;
        let mut config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(self.roots())
            .with_client_auth_cert(vec![certificate.clone()], key.clone_key())
            .unwrap();
        config.resumption = Resumption::in_memory_sessions(8);
        Arc::new(config)
    }
}

/// One connection; both sides agree on how it came about. A byte of data makes sure that the tickets have arrived.
fn connect(client: &Arc<ClientConfig>, server: &Arc<ServerConfig>) -> Result<HandshakeKind, rustls::Error> {
    let mut client = ClientConnection::new(Arc::clone(client), "localhost".try_into().unwrap())?;
    let mut server = ServerConnection::new(Arc::clone(server))?;
    while client.is_handshaking() || server.is_handshaking() || server.wants_write() {
        let mut wire = Vec::new();
        client.write_tls(&mut wire).unwrap();
        server.read_tls(&mut &wire[..]).unwrap();
        server.process_new_packets()?;
        wire.clear();
        while server.wants_write() {
            server.write_tls(&mut wire).unwrap();
        }
        client.read_tls(&mut &wire[..]).unwrap();
        client.process_new_packets()?;
    }
    assert_eq!(client.handshake_kind(), server.handshake_kind());
    Ok(server.handshake_kind().unwrap())
}

/// For each version: a client that has got its tickets at `first` is back at `second` after `between`.
fn comes_back(
    papers: &Papers,
    first: &Arc<ServerConfig>,
    between: impl Fn(),
    second: &Arc<ServerConfig>,
) -> [HandshakeKind; 2] {
    let clients = VERSIONS.map(|version| papers.client(version));
    for client in &clients {
        assert_eq!(connect(client, first).unwrap(), HandshakeKind::Full);
        assert_eq!(connect(client, first).unwrap(), HandshakeKind::Resumed, "at once");
    }
    between();
    clients.map(|client| connect(&client, second).unwrap())
}

const RESUMED: [HandshakeKind; 2] = [HandshakeKind::Resumed; 2];
const FULL: [HandshakeKind; 2] = [HandshakeKind::Full; 2];

#[test]
fn a_replica_and_the_next_start_resume_and_another_secret_does_not() {
    let (papers, clock) = (Papers::new(), Clock::new());
    let server = |seed| papers.server(&tickets(seed, &clock).under(ClientPolicy::none()), false);
    assert_eq!(comes_back(&papers, &server(1), || {}, &server(1)), RESUMED);
    assert_eq!(comes_back(&papers, &server(1), || {}, &server(2)), FULL);
}

#[test]
fn another_certificate_changes_nothing() {
    let (papers, clock) = (Papers::new(), Clock::new());
    let tickets = tickets(1, &clock);
    let before = papers.server(&tickets.under(ClientPolicy::none()), false);
    let renewed = Papers::new().server(&tickets.under(ClientPolicy::none()), false);
    assert_eq!(comes_back(&papers, &before, || {}, &renewed), RESUMED);
}

#[test]
fn two_rotations_later_it_resumes_and_after_the_lifetime_it_does_not() {
    let papers = Papers::new();
    for (later, expected) in [
        (Duration::ZERO, RESUMED),
        (6 * HOUR, RESUMED),
        (13 * HOUR, RESUMED),
        (DAY, RESUMED),
        (DAY + Duration::from_secs(1), FULL),
        (10 * DAY, FULL),
    ] {
        let clock = Clock::new();
        let server = papers.server(&tickets(1, &clock).under(ClientPolicy::none()), false);
        let ticketer = tickets(1, &clock).under(ClientPolicy::none());
        let replica = papers.server(&ticketer, false);
        // Within the same hour of the client's own clock: it is the server that has to judge.
        assert_eq!(
            comes_back(&papers, &server, || clock.pass(later), &replica),
            expected,
            "{later:?}"
        );
    }
}

#[test]
fn rotation_and_lifetime_may_be_changed_at_a_restart() {
    let (papers, clock) = (Papers::new(), Clock::new());
    let before = papers.server(&tickets(1, &clock).under(ClientPolicy::none()), false);
    let changed = Settings {
        rotation: Duration::from_secs(7),
        lifetime: 2 * HOUR,
        ..settings()
    };
    let after = Tickets::new(&changed, secret(1), clock.read()).under(ClientPolicy::none());
    let after = papers.server(&after, false);
    assert_eq!(comes_back(&papers, &before, || clock.pass(HOUR), &after), RESUMED);
    assert_eq!(
        comes_back(&papers, &before, || clock.pass(3 * HOUR), &after),
        FULL
    );
}

#[test]
fn a_stepped_clock_loses_no_ticket() {
    let papers = Papers::new();
    for set_to in [0, START - 3_600_000, START + 3_600_000, START + 900 * 86_400_000] {
        let clock = Clock::new();
        let server = papers.server(&tickets(1, &clock).under(ClientPolicy::none()), false);
        assert_eq!(
            comes_back(&papers, &server, || clock.set(set_to), &server),
            RESUMED,
            "{set_to}"
        );
    }
}

#[test]
fn a_replaced_secret_is_good_until_its_tickets_have_run_out() {
    let papers = Papers::new();
    for (later, expected) in [(HOUR, RESUMED), (23 * HOUR, RESUMED), (DAY + HOUR, FULL)] {
        let clock = Clock::new();
        let tickets = tickets(1, &clock);
        let server = papers.server(&tickets.under(ClientPolicy::none()), false);
        let reload = || {
            tickets.adopt(secret(2));
            tickets.adopt(secret(2));
            clock.pass(later);
        };
        assert_eq!(
            comes_back(&papers, &server, reload, &server),
            expected,
            "{later:?}"
        );
        let replica = self::tickets(2, &clock);
        let replica = papers.server(&replica.under(ClientPolicy::none()), false);
        assert_eq!(
            comes_back(&papers, &server, || {}, &replica),
            RESUMED,
            "issued under the new one"
        );
    }
}

#[test]
fn secrets_are_held_up_to_a_limit_and_come_back_into_use() {
    let clock = Clock::new();
    let tickets = tickets(1, &clock);
    let ticketer = tickets.under(ClientPolicy::none());
    let plain = plain_session();
    let issued: Vec<Vec<u8>> = (1..=6)
        .map(|seed| {
            tickets.adopt(secret(seed));
            ticketer.encrypt(&plain).unwrap()
        })
        .collect();
    assert_eq!(tickets.secrets.read().unwrap().len(), MOST_SECRETS);
    let opened: Vec<bool> = issued.iter().map(|ticket| ticketer.opens(ticket)).collect();
    assert_eq!(opened, [false, false, true, true, true, true]);
    tickets.adopt(secret(3));
    clock.pass(DAY + HOUR);
    tickets.adopt(secret(3));
    assert_eq!(
        tickets.secrets.read().unwrap().len(),
        1,
        "the others have run out"
    );
    assert!(ticketer.opens(&ticketer.encrypt(&plain).unwrap()));
}

/// A state that a real handshake has written.
fn plain_session() -> Vec<u8> {
    states(&Papers::new(), false).swap_remove(0)
}

/// What the library wants to be sealed, by version.
fn states(papers: &Papers, mutual: bool) -> Vec<Vec<u8>> {
    #[derive(Debug, Default)]
    struct Recorder(Mutex<Vec<Vec<u8>>>);

    impl ProducesTickets for Recorder {
        fn enabled(&self) -> bool {
            true
        }

        fn lifetime(&self) -> u32 {
            60
        }

        fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
            self.0.lock().unwrap().push(plain.to_vec());
            None
        }

        fn decrypt(&self, _: &[u8]) -> Option<Vec<u8>> {
            None
        }
    }

    let recorder = Arc::new(Recorder::default());
    let ticketer = tickets(1, &Clock::new()).under(ClientPolicy::none());
    let mut config = papers.server(&ticketer, mutual).as_ref().clone();
    config.ticketer = Arc::<Recorder>::clone(&recorder);
    config.send_tls13_tickets = 1;
    let config = Arc::new(config);
    for version in VERSIONS {
        connect(&papers.client(version), &config).unwrap();
    }
    let states = recorder.0.lock().unwrap().clone();
    assert_eq!(states.len(), 2);
    states
}

/// The layout is the library's own affair. Where it changes, this fails, and no session is resumed until `session` has learnt it.
#[test]
fn the_layout_of_the_library_s_sessions_is_known() {
    let papers = Papers::new();
    for state in states(&papers, false) {
        assert_eq!(session::client_chain(&state), Some(Vec::new()));
    }
    for state in states(&papers, true) {
        assert_eq!(session::client_chain(&state), Some(vec![papers.client.0.clone()]));
    }
}

#[test]
fn what_is_no_session_is_not_opened() {
    let ticketer = tickets(1, &Clock::new()).under(ClientPolicy::none());
    let ticket = ticketer.encrypt(b"another layout").unwrap();
    assert!(!ticketer.opens(&ticket));
    assert_eq!(ticketer.decrypt(&ticket), None);
}

#[test]
fn a_client_certificate_is_looked_at_again() {
    let (papers, clock) = (Papers::new(), Clock::new());
    let tickets = tickets(1, &clock);
    let welcome = Arc::new(AtomicBool::new(true));
    let expected = papers.client.0.clone();
    let policy = {
        let welcome = Arc::clone(&welcome);
        ClientPolicy::new([1; 32], move |chain| {
            chain == std::slice::from_ref(&expected) && welcome.load(Ordering::SeqCst)
        })
    };
    let ticketer = tickets.under(policy);
    let server = papers.server(&ticketer, true);
    let revoke = || welcome.store(false, Ordering::SeqCst);
    assert_eq!(comes_back(&papers, &server, || {}, &server), RESUMED);
    // The ticket is declined; who is to be turned away is turned away by the full handshake, which knows the same list.
    assert_eq!(comes_back(&papers, &server, revoke, &server), FULL);
}

#[test]
fn a_ticket_of_another_policy_is_declined() {
    let (papers, clock) = (Papers::new(), Clock::new());
    let tickets = tickets(1, &clock);
    let policy = |fingerprint| ClientPolicy::new([fingerprint; 32], |_| true);
    let server = |fingerprint, mutual| papers.server(&tickets.under(policy(fingerprint)), mutual);
    assert_eq!(
        comes_back(&papers, &server(1, true), || {}, &server(1, true)),
        RESUMED
    );
    assert_eq!(
        comes_back(&papers, &server(1, true), || {}, &server(2, true)),
        FULL
    );
    assert_eq!(
        comes_back(&papers, &server(0, false), || {}, &server(1, true)),
        FULL
    );
}

#[test]
fn who_proved_nothing_is_no_proven_client() {
    let ticketer = tickets(1, &Clock::new()).under(ClientPolicy::none());
    let with_chain = states(&Papers::new(), true).swap_remove(0);
    let ticket = ticketer.encrypt(&with_chain).unwrap();
    assert_eq!(
        ticketer.decrypt(&ticket),
        None,
        "no certificates are asked for, so none may come back"
    );
}

#[test]
fn a_tampered_ticket_is_a_full_handshake_and_no_failure() {
    #[derive(Debug)]
    struct Tampering(Arc<Ticketer>);

    impl ProducesTickets for Tampering {
        fn enabled(&self) -> bool {
            true
        }

        fn lifetime(&self) -> u32 {
            self.0.lifetime()
        }

        fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
            let mut ticket = self.0.encrypt(plain)?;
            *ticket.last_mut()? ^= 1;
            Some(ticket)
        }

        fn decrypt(&self, cipher: &[u8]) -> Option<Vec<u8>> {
            self.0.decrypt(cipher)
        }
    }

    let papers = Papers::new();
    let ticketer = tickets(1, &Clock::new()).under(ClientPolicy::none());
    let mut config = papers.server(&ticketer, false).as_ref().clone();
    config.ticketer = Arc::new(Tampering(ticketer));
    let config = Arc::new(config);
    for version in VERSIONS {
        let client = papers.client(version);
        for _ in 0..3 {
            assert_eq!(connect(&client, &config).unwrap(), HandshakeKind::Full);
        }
    }
}

#[test]
fn the_ticket_of_a_hello_opens_for_the_gate() {
    use crate::tls::hello::{self, Progress};

    let (papers, clock) = (Papers::new(), Clock::new());
    let ticketer = tickets(1, &clock).under(ClientPolicy::none());
    let stranger = tickets(2, &clock).under(ClientPolicy::none());
    let server = papers.server(&ticketer, false);
    for version in VERSIONS {
        let config = papers.client(version);
        let hello = || {
            let mut client =
                ClientConnection::new(Arc::clone(&config), "localhost".try_into().unwrap()).unwrap();
            let mut bytes = Vec::new();
            client.write_tls(&mut bytes).unwrap();
            match hello::read(&bytes) {
                Ok(Progress::Complete(hello, _)) => hello,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(hello().ticket, None);
        connect(&config, &server).unwrap();
        let ticket = hello().ticket.expect("a ticket");
        assert!(ticketer.opens(&ticket) && !stranger.opens(&ticket));
        clock.pass(DAY + HOUR);
        assert!(!ticketer.opens(&ticket));
    }
}

#[test]
fn without_a_ticketer_nobody_is_resumed() {
    let papers = Papers::new();
    let ticketer = tickets(1, &Clock::new()).under(ClientPolicy::none());
    let mut config = papers.server(&ticketer, false).as_ref().clone();
    config.ticketer = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![papers.server.0.clone()], papers.server.1.clone_key())
        .unwrap()
        .ticketer;
    equip(&mut config, None, 2);
    let config = Arc::new(config);
    for version in VERSIONS {
        let client = papers.client(version);
        for _ in 0..2 {
            assert_eq!(connect(&client, &config).unwrap(), HandshakeKind::Full);
        }
    }
}

#[test]
fn debug_shows_no_secret() {
    let ticketer = tickets(1, &Clock::new()).under(ClientPolicy::none());
    assert_eq!(
        format!("{ticketer:?}"),
        "Ticketer { tickets: Tickets { rotation: 21600, lifetime: 86400s, .. }, policy: ClientPolicy { .. } }"
    );
}
