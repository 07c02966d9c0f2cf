//! TLS towards the clients, and towards the brokers ([`connector`]).

mod authorities;
mod certificate;
mod client_auth;
pub mod connector;
mod failure;
mod files;
pub mod hello;
mod identity;
mod inventory;
pub mod pool;
mod resolver;
mod sessions;
mod start;
mod suites;
pub mod ticket;
pub mod unverified;
mod wire;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use rustls::crypto::CryptoProvider;
use rustls::server::{ClientHello, ServerConnection};
use rustls::{HandshakeKind as RustlsKind, ProtocolVersion, ServerConfig, SupportedProtocolVersion};
use rustls_pki_types::UnixTime;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::server::TlsStream;

pub use client_auth::{Authorities, ClientAuth, CrlExpired, Policy, RevocationList};
pub use files::{Fingerprint, LoadError, Warning};
pub use resolver::{BadHostName, HostName};

use inventory::Inventory;
use pool::Pool;
use resolver::Resolver;
use suites::BothOrders;
use ticket::{ClientPolicy, NoTickets, Secret, Ticketer, Tickets};

use crate::telemetry::ending::{Handshake, HandshakeFailure, HandshakeKind, Identity, TlsVersion};
use crate::telemetry::wall_clock;

/// `[tls]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// PEM chain of the default certificate.
    pub certificate: PathBuf,
    /// PEM private key that goes with it.
    pub private_key: PathBuf,
    /// Least version that is served.
    pub min_version: MinVersion,
    /// Protocols to agree to; empty: whatever the client offers is accepted.
    pub alpn: Vec<String>,
    /// `[tls.resumption]`; `None`: every handshake is a full one.
    pub resumption: Option<ticket::Settings>,
    /// Whether clients show a certificate, and whose.
    pub client_auth: ClientAuth,
    /// Most bytes that one record to a client carries, without its header and what encryption adds; 64 to 16,384.
    pub max_record: usize,
    /// More certificates, by the name that a client asks for. Several of one name are picked by what it can verify.
    pub hosts: Vec<Host>,
}

/// One of `tls.hosts`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// The name.
    pub name: HostName,
    /// PEM chain.
    pub certificate: PathBuf,
    /// PEM private key that goes with it.
    pub private_key: PathBuf,
}

/// `tls.min_version`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MinVersion {
    /// TLS 1.2 and 1.3.
    V1_2,
    /// TLS 1.3 alone.
    V1_3,
}

/// Most plaintext that waits inside a session for a client that does not read: bounds a slow reader's memory. The
/// relay hands on at most its own buffer beside it.
const SESSION_BUFFER: usize = 16 * 1024;

/// What the library counts to a record besides its content: the header of RFC 8446 section 5.1.
const RECORD_HEADER: usize = 5;

impl Settings {
    /// What the files hold now.
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(self.files())
    }

    fn files(&self) -> impl Iterator<Item = &Path> {
        let hosts = self
            .hosts
            .iter()
            .flat_map(|host| [&host.certificate, &host.private_key]);
        let authorities = self.client_auth.authorities().into_iter();
        let clients =
            authorities.flat_map(|authorities| [&authorities.ca].into_iter().chain(&authorities.crl));
        [&self.certificate, &self.private_key]
            .into_iter()
            .chain(hosts)
            .chain(clients)
            .map(PathBuf::as_path)
            .chain(self.secret_file())
    }

    /// What an operator may not have thought of: said at a start, and not each time that the files are loaded.
    pub fn advice(&self) -> Option<&'static str> {
        let resumption = self.resumption.as_ref()?;
        resumption.secret_file.is_none().then_some(
            "tls.resumption.secret_file is not set: after a restart every client makes a full handshake, and replicas \
             can't resume each other's clients; seawall secret prints one",
        )
    }

    fn secret_file(&self) -> Option<&Path> {
        self.resumption.as_ref()?.secret_file.as_deref()
    }
}

/// Ends TLS for clients. Cheap to clone; what is in use is never changed, another one takes its place.
#[derive(Clone, Debug)]
pub struct Acceptor {
    alpn: Arc<[Vec<u8>]>,
    with_alpn: BothOrders,
    without_alpn: BothOrders,
    policy: Arc<Policy>,
    inventory: Arc<Inventory>,
    tickets: Option<Arc<Tickets>>,
    ticketer: Option<Arc<Ticketer>>,
}

/// A connection on which TLS is up.
pub struct Established {
    /// The connection.
    pub stream: TlsStream<TcpStream>,
    /// What kind of handshake it was.
    pub handshake: Handshake,
    /// Who the client is, where it has shown a certificate.
    pub identity: Option<Box<Identity>>,
}

impl Acceptor {
    /// Loads everything that the settings name, all or nothing. Every file that can't be used is in the error.
    pub fn load(settings: &Settings) -> Result<Self, Vec<LoadError>> {
        Self::build(settings, None)
    }

    /// Loads everything again, all or nothing. Tickets of before are still good.
    pub fn reload(&self, settings: &Settings) -> Result<Self, Vec<LoadError>> {
        Self::build(settings, self.tickets.as_ref())
    }

    fn build(settings: &Settings, held: Option<&Arc<Tickets>>) -> Result<Self, Vec<LoadError>> {
        let provider = Arc::new(suites::provider());
        let now = now();
        let mut inventory = Inventory::default();
        let resolver = inventory.load(settings, &provider, now);
        let policy = Policy::load(&settings.client_auth, &provider, now, &mut inventory.warnings);
        let secret = settings.secret_file().map(Secret::read).transpose();
        let (resolver, (policy, lists), secret) = match (resolver, policy, secret) {
            (Ok(resolver), Ok(policy), Ok(secret)) => (resolver, policy, secret),
            (resolver, policy, secret) => {
                let secret = secret.err().map(|error| vec![NoTickets::from(error).into()]);
                let errors = [resolver.err(), policy.err(), secret];
                return Err(errors.into_iter().flatten().flatten().collect());
            }
        };
        inventory.lists = lists;
        let policy = Arc::new(policy);
        let (tickets, renewed) = match (&settings.resumption, held) {
            (Some(_), Some(held)) => (Some(Arc::clone(held)), secret),
            (Some(resumption), None) => {
                let tickets = Tickets::start(resumption, secret).map_err(|error| vec![error.into()])?;
                (Some(tickets), None)
            }
            (None, _) => (None, None),
        };
        let ticketer = tickets
            .as_ref()
            .map(|tickets| tickets.under(client_policy(&policy)));
        let config = server_config(settings, provider, Arc::new(resolver), &policy, ticketer.as_ref())
            .map_err(|error| {
                let key = "tls.certificate";
                vec![LoadError::Unusable { key, error }]
            })?;
        if let (Some(tickets), Some(secret)) = (&tickets, renewed) {
            tickets.adopt(secret);
        }
        let mut with_alpn = config.clone();
        with_alpn.alpn_protocols = settings
            .alpn
            .iter()
            .map(|name| name.clone().into_bytes())
            .collect();
        Ok(Self {
            alpn: with_alpn.alpn_protocols.clone().into(),
            with_alpn: BothOrders::of(with_alpn),
            without_alpn: BothOrders::of(config),
            policy,
            inventory: Arc::new(inventory),
            tickets,
            ticketer,
        })
    }

    /// One handshake, from the first byte of the ClientHello to the client's Finished, all before `deadline`. `begun`
    /// was read from the socket already. Our own flight is computed by `pool`; `None`: here and now.
    pub async fn accept(
        &self,
        socket: TcpStream,
        begun: Vec<u8>,
        deadline: Instant,
        accepted: Instant,
        pool: Option<&Pool>,
    ) -> Result<Established, HandshakeFailure> {
        let handshake = async {
            let start = start::start(socket, &begun)
                .await
                .map_err(|error| failure::classify(&error))?;
            let config = self.config_for(&start.client_hello());
            let flight = match pool {
                None => start.into_stream(config),
                Some(pool) => {
                    let flight = pool.crypto(move || start.into_stream(config)).await;
                    // A full queue or a panic: nothing that a client could mend.
                    flight.ok_or(HandshakeFailure::Protocol)?
                }
            };
            flight.await.map_err(|error| failure::classify(&error))
        };
        let mut stream = timeout_at(deadline, handshake)
            .await
            .map_err(|_| HandshakeFailure::Timeout)??;
        let (_, session) = stream.get_mut();
        session.set_buffer_limit(Some(SESSION_BUFFER));
        let kind = match session.handshake_kind() {
            Some(RustlsKind::Resumed) => HandshakeKind::Resumed,
            _ => HandshakeKind::Full,
        };
        let version = match session.protocol_version() {
            Some(ProtocolVersion::TLSv1_2) => TlsVersion::V1_2,
            _ => TlsVersion::V1_3,
        };
        let identity = identity_of(session);
        Ok(Established {
            stream,
            handshake: Handshake {
                kind,
                version,
                took: accepted.elapsed(),
            },
            identity,
        })
    }

    /// A client that offers none of our protocols is served without agreeing on one: RFC 7301 would have us fail the
    /// handshake, and a device that was flashed with another name would never come back.
    fn config_for(&self, hello: &ClientHello<'_>) -> Arc<ServerConfig> {
        let ours = |name| self.alpn.iter().any(|our| our == name);
        let agreed = hello.alpn().is_some_and(|mut names| names.any(ours));
        let both = if agreed {
            &self.with_alpn
        } else {
            &self.without_alpn
        };
        Arc::clone(both.for_client(hello.cipher_suites()))
    }

    /// Whether a ticket that a ClientHello brings is one of ours: see [`Ticketer::opens`].
    pub fn opens(&self, ticket: &[u8]) -> bool {
        self.ticketer
            .as_ref()
            .is_some_and(|ticketer| ticketer.opens(ticket))
    }

    /// Which client certificates are accepted.
    pub const fn policy(&self) -> &Arc<Policy> {
        &self.policy
    }

    /// The server certificates, each with the time at which it expires in Unix seconds: `default`, and for each name
    /// of `tls.hosts` that which expires first.
    pub fn certificates(&self) -> &[(String, i64)] {
        &self.inventory.certificates
    }

    /// The revocation lists in use.
    pub fn revocation_lists(&self) -> &[RevocationList] {
        &self.inventory.lists
    }

    /// What an operator should know about the files.
    pub fn warnings(&self) -> &[Warning] {
        &self.inventory.warnings
    }
}

/// Who the client of an established session is, where it has shown a certificate: now, or when the session that it
/// resumes was made.
pub fn identity_of(session: &ServerConnection) -> Option<Box<Identity>> {
    identity::read(session.peer_certificates()?.first()?).map(Box::new)
}

/// The one place where a server's configuration is put together.
fn server_config(
    settings: &Settings,
    provider: Arc<CryptoProvider>,
    resolver: Arc<Resolver>,
    policy: &Arc<Policy>,
    ticketer: Option<&Arc<Ticketer>>,
) -> Result<ServerConfig, rustls::Error> {
    let versions = versions(settings.min_version);
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)?
        .with_client_cert_verifier(policy.verifier())
        .with_cert_resolver(resolver);
    config.max_fragment_size = Some(settings.max_record + RECORD_HEADER);
    let number = settings
        .resumption
        .as_ref()
        .map_or(0, |resumption| resumption.tickets);
    ticket::equip(&mut config, ticketer, number);
    Ok(config)
}

/// A client is resumed under the policy that it proved itself by, and by a certificate that is accepted now.
fn client_policy(policy: &Arc<Policy>) -> ClientPolicy {
    let fingerprint = *policy.fingerprint();
    let policy = Arc::clone(policy);
    ClientPolicy::new(fingerprint, move |chain| policy.recheck(chain))
}

fn versions(least: MinVersion) -> &'static [&'static SupportedProtocolVersion] {
    match least {
        MinVersion::V1_2 => rustls::ALL_VERSIONS,
        MinVersion::V1_3 => const { &[&rustls::version::TLS13] },
    }
}

fn now() -> UnixTime {
    let since = wall_clock().duration_since(SystemTime::UNIX_EPOCH);
    UnixTime::since_unix_epoch(since.unwrap_or_default())
}

#[cfg(test)]
mod tests;
