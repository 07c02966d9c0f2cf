//! TLS towards the brokers.

mod failure;

use std::collections::BTreeMap;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::CryptoProvider;
use rustls::sign::SingleCertAndKey;
use rustls::{ALL_VERSIONS, ClientConfig, HandshakeKind as RustlsKind, ProtocolVersion};
use rustls_pki_types::{ServerName, UnixTime};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::authorities;
use super::certificate::{self, Certified, Pair, ShownBy};
use super::files::{Fingerprint, LoadError, Warning, wrong};
use super::sessions::Sessions;
use super::{SESSION_BUFFER, now, suites};
use crate::telemetry::ending::HandshakeKind;

pub use failure::{ConnectError, broken_off};

/// `[upstream.tls]`, where it is enabled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The authorities that may have signed the certificate of a broker, a PEM file.
    pub ca: PathBuf,
    /// The name or address that it must be for; `None`: the host as it is dialled.
    pub server_name: Option<ServerName<'static>>,
    /// PEM chain and private key that are shown to a broker which asks for a certificate.
    pub certificate: Option<(PathBuf, PathBuf)>,
}

impl Settings {
    /// The files, for a look whether they have changed.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        let pair = self.certificate.iter().flat_map(|(chain, key)| [chain, key]);
        [&self.ca].into_iter().chain(pair).map(PathBuf::as_path)
    }
}

/// Begins TLS with brokers. Cheap to clone; what is in use is never changed, another one takes its place.
#[derive(Clone)]
pub struct Connector(Arc<Inner>);

struct Inner {
    settings: Settings,
    fingerprint: Fingerprint,
    config: ClientConfig,
    /// By the index of a broker: the same settings with the sessions that it gave, since none of another's would do.
    of_brokers: Mutex<BTreeMap<usize, Arc<ClientConfig>>>,
    /// When our own certificate expires, in Unix seconds.
    expires: Option<i64>,
    warnings: Vec<Warning>,
}

const CA: &str = "upstream.tls.ca";

/// How long is waited whether a broker refuses our certificate: a round trip and two signatures.
const SECOND_THOUGHT: Duration = Duration::from_secs(1);

impl Connector {
    /// Loads everything that the settings name, all or nothing. Every file that can't be used is in the error. Where
    /// neither settings nor files have changed since `held` was loaded it is that, with the sessions that it has.
    pub fn load(settings: &Settings, held: Option<&Self>) -> Result<Self, Vec<LoadError>> {
        let fingerprint = Fingerprint::of(settings.files());
        let provider = Arc::new(suites::provider());
        let now = now();
        let mut warnings = Vec::new();
        let verifier = verifier(&settings.ca, &provider, now, &mut warnings);
        let own = own(settings, &provider, now, &mut warnings).transpose();
        let (verifier, own) = match (verifier, own) {
            (Ok(verifier), Ok(own)) => (verifier, own),
            (verifier, own) => {
                let own = own.err().into_iter().flatten();
                return Err(verifier.err().into_iter().chain(own).collect());
            }
        };
        if let Some(held) = held
            && held.0.fingerprint == fingerprint
            && held.0.settings == *settings
        {
            return Ok(held.clone());
        }
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(ALL_VERSIONS)
            .map_err(|error| vec![LoadError::Unusable { key: CA, error }])?
            .with_webpki_verifier(verifier);
        let expires = own.as_ref().map(|own| own.expires);
        let config = match own {
            Some(own) => builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(own.key))),
            None => builder.with_no_client_auth(),
        };
        Ok(Self(Arc::new(Inner {
            settings: settings.clone(),
            fingerprint,
            config,
            of_brokers: Mutex::default(),
            expires,
            warnings,
        })))
    }

    /// One handshake with the broker of this index, which is dialled by the name `host`. To be given up on by the caller
    /// when it takes too long.
    pub async fn connect(
        &self,
        socket: TcpStream,
        server: usize,
        host: Option<&ServerName<'static>>,
    ) -> Result<Box<TlsStream<TcpStream>>, ConnectError> {
        let name = self.0.settings.server_name.as_ref().or(host);
        let name = name.cloned().ok_or(ConnectError::NoName)?;
        let connector = TlsConnector::from(self.config_of(server));
        let mut stream = Box::new(connector.connect(name, socket).await?);
        stream.get_mut().1.set_buffer_limit(Some(SESSION_BUFFER));
        Ok(stream)
    }

    /// When our own certificate expires, in Unix seconds; `None`: there is none.
    pub fn expires(&self) -> Option<i64> {
        self.0.expires
    }

    /// What an operator should know about the files.
    pub fn warnings(&self) -> &[Warning] {
        &self.0.warnings
    }

    /// Whether both are one: the same settings, the same files, the same sessions.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    fn config_of(&self, server: usize) -> Arc<ClientConfig> {
        let mut of_brokers = self.0.of_brokers.lock().unwrap_or_else(PoisonError::into_inner);
        let config = of_brokers.entry(server).or_insert_with(|| {
            let mut config = self.0.config.clone();
            config.resumption = Resumption::store(Arc::new(Sessions::default()));
            Arc::new(config)
        });
        Arc::clone(config)
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Connector").field(&self.0.settings).finish()
    }
}

/// Whether a handshake was resumed.
pub fn kind(stream: &TlsStream<TcpStream>) -> HandshakeKind {
    match stream.get_ref().1.handshake_kind() {
        Some(RustlsKind::Resumed) => HandshakeKind::Resumed,
        _ => HandshakeKind::Full,
    }
}

/// Waits whether the broker thinks better of it: in TLS 1.3 our handshake is over before the broker has looked at our
/// certificate, or missed it. One that is content sends tickets; one that sends none is believed after a second.
pub async fn settled(stream: &mut TlsStream<TcpStream>) -> Result<(), ConnectError> {
    if stream.get_ref().1.protocol_version() != Some(ProtocolVersion::TLSv1_3) {
        return Ok(());
    }
    let mut byte = [0];
    let answered = poll_fn(|cx| {
        let mut read = ReadBuf::new(&mut byte);
        match Pin::new(&mut *stream).poll_read(cx, &mut read) {
            Poll::Ready(Ok(())) if read.filled().is_empty() => {
                Poll::Ready(Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()))
            }
            Poll::Ready(Ok(())) => Poll::Ready(Ok(())),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error.into())),
            Poll::Pending if stream.get_ref().1.tls13_tickets_received() > 0 => Poll::Ready(Ok(())),
            Poll::Pending => Poll::Pending,
        }
    });
    timeout(SECOND_THOUGHT, answered).await.unwrap_or(Ok(()))
}

fn verifier(
    ca: &Path,
    provider: &Arc<CryptoProvider>,
    now: UnixTime,
    warnings: &mut Vec<Warning>,
) -> Result<Arc<WebPkiServerVerifier>, LoadError> {
    let roots = authorities::read(CA, ca, now, warnings)?;
    WebPkiServerVerifier::builder_with_provider(Arc::new(roots.store), Arc::clone(provider))
        .build()
        .map_err(|error| wrong(CA, ca, format!("can't be used ({error})"), "authorities"))
}

fn own(
    settings: &Settings,
    provider: &CryptoProvider,
    now: UnixTime,
    warnings: &mut Vec<Warning>,
) -> Option<Result<Certified, Vec<LoadError>>> {
    let (chain, key) = settings.certificate.as_ref()?;
    let pair = Pair {
        table: "upstream.tls",
        shown_by: ShownBy::Client,
        certificate: chain,
        private_key: key,
    };
    Some(certificate::load(pair, provider, now, warnings))
}

#[cfg(test)]
mod tests;
