//! TLS towards the clients.

mod certificate;
mod failure;
pub mod hello;
pub mod ticket;
mod wire;

use std::path::PathBuf;
use std::sync::Arc;

use rustls::crypto::aws_lc_rs;
use rustls::server::Acceptor as HelloReader;
use rustls::{HandshakeKind as RustlsKind, ProtocolVersion, ServerConfig, SupportedProtocolVersion};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;

pub use certificate::LoadError;

use ticket::{ClientPolicy, NoTickets, Secret, Ticketer, Tickets};

use crate::telemetry::ending::{Handshake, HandshakeFailure, HandshakeKind, TlsVersion};

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

/// Ends TLS for clients.
#[derive(Clone, Debug)]
pub struct Acceptor {
    with_alpn: Arc<ServerConfig>,
    without_alpn: Arc<ServerConfig>,
    tickets: Option<Arc<Tickets>>,
    ticketer: Option<Arc<Ticketer>>,
}

impl Acceptor {
    /// Loads certificate, key and ticket secret. Every file that can't be used is in the error.
    pub fn load(settings: &Settings) -> Result<Self, Vec<LoadError>> {
        match settings.resumption.as_ref().map(Tickets::load).transpose() {
            Ok(tickets) => Self::build(settings, tickets),
            Err(error) => Err(merged(error.into(), Self::build(settings, None))),
        }
    }

    /// Loads all of it again, or changes nothing. The clients of before can still be resumed.
    pub fn reload(&self, settings: &Settings) -> Result<Self, Vec<LoadError>> {
        let file = settings
            .resumption
            .as_ref()
            .and_then(|resumption| resumption.secret_file.as_deref());
        match file.map(Secret::read).transpose() {
            Ok(secret) => {
                let fresh = Self::build(settings, self.tickets.clone())?;
                if let (Some(tickets), Some(secret)) = (&self.tickets, secret) {
                    tickets.adopt(secret);
                }
                Ok(fresh)
            }
            Err(error) => Err(merged(
                NoTickets::from(error).into(),
                Self::build(settings, self.tickets.clone()),
            )),
        }
    }

    /// Whether a ticket that a ClientHello brings is one of ours: see [`Ticketer::opens`].
    pub fn opens(&self, ticket: &[u8]) -> bool {
        self.ticketer
            .as_ref()
            .is_some_and(|ticketer| ticketer.opens(ticket))
    }

    fn build(settings: &Settings, tickets: Option<Arc<Tickets>>) -> Result<Self, Vec<LoadError>> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let certified = certificate::load(&settings.certificate, &settings.private_key, &provider)?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(versions(settings.min_version))
            .map_err(|error| vec![LoadError::Unusable { error }])?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(certified));
        let ticketer = tickets
            .as_ref()
            .map(|tickets| tickets.under(ClientPolicy::none()));
        let number = settings
            .resumption
            .as_ref()
            .map_or(0, |resumption| resumption.tickets);
        ticket::equip(&mut config, ticketer.as_ref(), number);
        let mut with_alpn = config.clone();
        with_alpn.alpn_protocols = settings
            .alpn
            .iter()
            .map(|name| name.clone().into_bytes())
            .collect();
        Ok(Self {
            with_alpn: Arc::new(with_alpn),
            without_alpn: Arc::new(config),
            tickets,
            ticketer,
        })
    }

    /// One handshake, from the first byte of the ClientHello to the client's Finished, all before `deadline`.
    pub async fn accept(
        &self,
        socket: TcpStream,
        deadline: Instant,
        accepted: Instant,
    ) -> Result<(TlsStream<TcpStream>, Handshake), HandshakeFailure> {
        let handshake = async {
            let start = LazyConfigAcceptor::new(HelloReader::default(), socket).await?;
            let config = self.config_for(start.client_hello().alpn());
            start.into_stream(config).await
        };
        let mut stream = timeout_at(deadline, handshake)
            .await
            .map_err(|_| HandshakeFailure::Timeout)?
            .map_err(|error| failure::classify(&error))?;
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
        Ok((
            stream,
            Handshake {
                kind,
                version,
                took: accepted.elapsed(),
            },
        ))
    }

    /// A client that offers none of our protocols is served without agreeing on one: RFC 7301 would have us fail the
    /// handshake, and a device that was flashed with another name would never come back.
    fn config_for<'a>(&self, offered: Option<impl Iterator<Item = &'a [u8]>>) -> Arc<ServerConfig> {
        let ours = &self.with_alpn.alpn_protocols;
        let agreed = offered.is_some_and(|mut names| names.any(|name| ours.iter().any(|our| our == name)));
        Arc::clone(if agreed {
            &self.with_alpn
        } else {
            &self.without_alpn
        })
    }
}

/// The error together with those of another part.
fn merged<T>(error: LoadError, others: Result<T, Vec<LoadError>>) -> Vec<LoadError> {
    let mut errors = others.err().unwrap_or_default();
    errors.push(error);
    errors
}

fn versions(least: MinVersion) -> &'static [&'static SupportedProtocolVersion] {
    match least {
        MinVersion::V1_2 => rustls::ALL_VERSIONS,
        MinVersion::V1_3 => const { &[&rustls::version::TLS13] },
    }
}
