//! Dialling one broker.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use rustls_pki_types::ServerName;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpSocket, TcpStream, UnixStream, lookup_host};
use tokio::time::{Instant, timeout};
use tokio_rustls::client::TlsStream;

use super::addresses::{self, Addresses};
use super::{Endpoint, Health, Server};
use crate::proxy_header;
use crate::socket;
use crate::telemetry::ending::HandshakeKind;
use crate::tls::connector::{self, ConnectError, Connector};

/// One broker, and what is known of it.
#[derive(Debug)]
pub(super) struct Broker {
    pub(super) server: Server,
    index: usize,
    /// What its certificate is for, unless `upstream.tls.server_name` says something else.
    host: Option<ServerName<'static>>,
    /// What a name was last found to mean.
    found: Addresses,
    pub(super) health: Health,
    pub(super) open: Arc<AtomicUsize>,
}

/// No connection to a broker came about.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// Its name has no address, or was not looked up yet.
    #[error("the name has no address")]
    Unresolved,
    /// No local address of `upstream.source_addresses` has a port left for it, or can be used at all.
    #[error("no local port is left")]
    NoPort,
    /// It did not answer in time.
    #[error("no answer within upstream.connect_timeout")]
    TimedOut,
    /// It took the connection, and TLS did not come about.
    #[error(transparent)]
    Tls(#[from] ConnectError),
    /// The operating system said no.
    #[error(transparent)]
    Failed(#[from] io::Error),
}

/// How a broker is dialled.
#[derive(Clone, Copy, Debug)]
pub struct Way<'a> {
    /// Local addresses to dial from, in turn; empty: the system picks one.
    pub sources: &'a [IpAddr],
    /// TLS; `None`: in plain. A unix socket is never left by what is said on it, and is spoken to in plain.
    pub tls: Option<(&'a Connector, Introduction<'a>)>,
}

/// What is said in plain before TLS.
#[derive(Clone, Copy, Debug)]
pub enum Introduction<'a> {
    /// These bytes, the PROXY protocol header of a client, or nothing.
    Client(&'a [u8]),
    /// A header for a connection of our own: a broker that expects one waits for it.
    Own(proxy_header::Version),
}

/// A socket to a broker, counted as one of its connections until it is dropped.
#[derive(Debug)]
pub struct Upstream {
    stream: Stream,
    open: Arc<AtomicUsize>,
}

#[derive(Debug)]
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    /// Boxed: its 1.2 kB are no room that plain ones should take as well.
    Tls(Box<TlsStream<TcpStream>>),
}

impl Broker {
    /// Nothing speaks against it. A name has no address before [`Self::look_up`] has run.
    pub(super) fn new(server: &Server, index: usize) -> Self {
        Self {
            server: server.clone(),
            index,
            host: server.endpoint.host(),
            found: Addresses::default(),
            health: Health::default(),
            open: Arc::default(),
        }
    }

    /// Whether it has to be looked up.
    pub(super) fn is_name(&self) -> bool {
        matches!(self.server.endpoint, Endpoint::Name(..))
    }

    /// Dials it, TLS included, all within `limit`; among the sources of `way` this is the `turn`th dial.
    pub(super) async fn dial(
        &self,
        way: &Way<'_>,
        turn: usize,
        limit: Duration,
    ) -> Result<Stream, DialError> {
        match &self.server.endpoint {
            Endpoint::Unix(path) => {
                within(limit, async {
                    Ok(Stream::Unix(UnixStream::connect(path).await?))
                })
                .await
            }
            Endpoint::Address(address) => within(limit, self.dial_tcp(*address, way, turn)).await,
            Endpoint::Name(..) => self.dial_found(way, turn, limit).await,
        }
    }

    /// Whether it can be used: a dial within `limit`, and behind TLS a second look. Closes at once.
    pub(super) async fn probe(&self, way: &Way<'_>, limit: Duration) -> Result<(), DialError> {
        if let Stream::Tls(mut stream) = self.dial(way, 0, limit).await? {
            connector::settled(&mut stream).await?;
            // A few bytes into an empty socket. Who does not take them has closed.
            let _ = timeout(limit, stream.shutdown()).await;
        }
        Ok(())
    }

    /// Tries the name's addresses one after the other, each with its part of `limit`: `localhost` is often `::1` first with
    /// the broker on 127.0.0.1, and one node of several takes connections when it can't serve them any more.
    async fn dial_found(&self, way: &Way<'_>, turn: usize, limit: Duration) -> Result<Stream, DialError> {
        let deadline = Instant::now() + limit;
        let in_turn = self.found.in_turn();
        let mut told = DialError::Unresolved;
        for (tried, address) in in_turn.iter().enumerate() {
            let rest = deadline.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                break;
            }
            let part = addresses::share(limit, rest, in_turn.len() - tried);
            match within(part, self.dial_tcp(*address, way, turn)).await {
                Ok(stream) => {
                    self.found.worked(*address);
                    return Ok(stream);
                }
                Err(error) => {
                    tracing::debug!(%address, %error, "an address of a broker can't be dialled");
                    self.found.failed(*address);
                    // Our own want of ports says less than what another address has answered.
                    if !matches!(error, DialError::NoPort) || matches!(told, DialError::Unresolved) {
                        told = error;
                    }
                }
            }
        }
        Err(told)
    }

    async fn dial_tcp(&self, address: SocketAddr, way: &Way<'_>, turn: usize) -> Result<Stream, DialError> {
        let stream = if way.sources.is_empty() {
            TcpStream::connect(address).await.map_err(of_connect)?
        } else {
            dial_from(address, way.sources, turn).await?
        };
        socket::condition(&SockRef::from(&stream))?;
        match &way.tls {
            None => Ok(Stream::Tcp(stream)),
            // Boxed: few have a handshake on their hands, and all keep room for what they may have.
            Some((connector, introduction)) => Box::pin(self.secure(stream, connector, *introduction)).await,
        }
    }

    async fn secure(
        &self,
        mut socket: TcpStream,
        connector: &Connector,
        introduction: Introduction<'_>,
    ) -> Result<Stream, DialError> {
        match introduction {
            Introduction::Client(header) => socket.write_all(header).await?,
            Introduction::Own(version) => socket.write_all(&own_header(version, &socket)?).await?,
        }
        let stream = connector.connect(socket, self.index, self.host.as_ref()).await?;
        Ok(Stream::Tls(stream))
    }

    /// Asks what its name means now. One that is not found keeps the addresses that it had.
    pub(super) async fn look_up(&self) {
        let Endpoint::Name(name, port) = &self.server.endpoint else {
            return;
        };
        match lookup_host((name.as_str(), *port)).await {
            Ok(found) => self.found.replace(found.collect()),
            Err(error) => tracing::warn!(name, %error, "upstream.servers: the name can't be looked up"),
        }
    }
}

async fn within<F>(limit: Duration, dialling: F) -> Result<Stream, DialError>
where
    F: Future<Output = Result<Stream, DialError>>,
{
    timeout(limit, dialling).await.unwrap_or(Err(DialError::TimedOut))
}

/// The header of a connection that is nobody's but ours, in the form of a client's without a certificate: brokers take no
/// other (Mosquitto 2.1 hangs up on the form for health checks).
fn own_header(version: proxy_header::Version, socket: &TcpStream) -> io::Result<Vec<u8>> {
    let route = proxy_header::Route::new(socket.local_addr()?, socket.peer_addr()?);
    let session = proxy_header::Session {
        version: "TLSv1.3",
        certificate: None,
        server_name: None,
        alpn: None,
    };
    Ok(proxy_header::write(version, route, &session))
}

/// Each address of the broker's family once, until one has a port left.
async fn dial_from(address: SocketAddr, all: &[IpAddr], turn: usize) -> Result<TcpStream, DialError> {
    let begin = turn.checked_rem(all.len()).unwrap_or(0);
    let in_turn = all.iter().cycle().skip(begin).take(all.len());
    for source in in_turn.filter(|source| source.is_ipv4() == address.is_ipv4()) {
        let socket = if address.is_ipv4() {
            TcpSocket::new_v4()?
        } else {
            TcpSocket::new_v6()?
        };
        // Port 0: the system picks one that nobody has. Tokio's sockets can't leave that to the connect
        // (IP_BIND_ADDRESS_NO_PORT), so that a port serves one broker, and address reuse would pick taken ones blindly.
        let dialled = match socket.bind(SocketAddr::new(*source, 0)) {
            Ok(()) => socket.connect(address).await.map_err(of_connect),
            Err(error) => Err(of_bind(error)),
        };
        match dialled {
            Err(DialError::NoPort) => {}
            other => return other,
        }
    }
    Err(DialError::NoPort)
}

fn of_connect(error: io::Error) -> DialError {
    match error.kind() {
        io::ErrorKind::AddrNotAvailable => DialError::NoPort,
        _ => DialError::Failed(error),
    }
}

/// In use: all its ports are. Not available: this host does not have it.
fn of_bind(error: io::Error) -> DialError {
    match error.kind() {
        io::ErrorKind::AddrInUse | io::ErrorKind::AddrNotAvailable => DialError::NoPort,
        _ => DialError::Failed(error),
    }
}

impl Upstream {
    pub(super) fn counted(stream: Stream, open: &Arc<AtomicUsize>) -> Self {
        open.fetch_add(1, Ordering::Relaxed);
        Self {
            stream,
            open: Arc::clone(open),
        }
    }

    /// The kind of TLS handshake that it began with, behind what was said in plain; `None`: it goes on in plain.
    pub fn handshake(&self) -> Option<HandshakeKind> {
        match &self.stream {
            Stream::Tls(stream) => Some(connector::kind(stream)),
            Stream::Tcp(_) | Stream::Unix(_) => None,
        }
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl AsyncRead for Upstream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_read(cx, into),
            Stream::Unix(stream) => Pin::new(stream).poll_read(cx, into),
            Stream::Tls(stream) => Pin::new(stream).poll_read(cx, into),
        }
    }
}

impl AsyncWrite for Upstream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            Stream::Unix(stream) => Pin::new(stream).poll_write(cx, bytes),
            Stream::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Stream::Unix(stream) => Pin::new(stream).poll_flush(cx),
            Stream::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use rustls::ServerConfig;
    use rustls_pki_types::PrivatePkcs8KeyDer;
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;

    use super::*;

    const NAME: &str = "broker.example";

    /// So short that the first address takes half of it in vain, and long enough for a handshake in the other half.
    const LIMIT: Duration = Duration::from_secs(2);

    /// What dials it over TLS, and what it does with a connection.
    fn ends() -> (Connector, TlsAcceptor) {
        let made = rcgen::generate_simple_self_signed([NAME.to_owned()]).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let ca = folder.path().join("ca.pem");
        std::fs::write(&ca, made.cert.pem()).unwrap();
        let settings = connector::Settings {
            ca,
            server_name: None,
            certificate: None,
        };
        let connector = Connector::load(&settings, None).unwrap();
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key.into())
            .unwrap();
        (connector, TlsAcceptor::from(Arc::new(config)))
    }

    /// An address of the broker, which says nothing for as long as it is ill, and how many connections it took.
    async fn node(acceptor: &TlsAcceptor, ill: &Arc<AtomicBool>) -> (SocketAddr, Arc<AtomicUsize>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let taken = Arc::new(AtomicUsize::new(0));
        let (acceptor, ill, count) = (acceptor.clone(), Arc::clone(ill), Arc::clone(&taken));
        let serving = async move {
            let mut kept = Vec::new();
            while let Ok((socket, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::Relaxed);
                if ill.load(Ordering::Relaxed) {
                    kept.push(socket);
                } else {
                    let _ = acceptor.accept(socket).await;
                }
            }
        };
        #[expect(clippy::disallowed_methods, reason = "a test's task ends with its runtime")]
        tokio::spawn(serving);
        (address, taken)
    }

    #[tokio::test]
    async fn an_address_that_stalls_leaves_time_for_the_next_and_is_not_the_first_again() {
        let (connector, acceptor) = ends();
        let (ill, well) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(false)));
        let (one, taken_by_one) = node(&acceptor, &ill).await;
        let (other, taken_by_other) = node(&acceptor, &well).await;
        let server = Server {
            name: NAME.to_owned(),
            endpoint: Endpoint::Name(NAME.to_owned(), one.port()),
        };
        let broker = Broker::new(&server, 0);
        broker.found.replace(vec![one, other]);
        let way = Way {
            sources: &[],
            tls: Some((&connector, Introduction::Client(&[]))),
        };
        let taken = || [&taken_by_one, &taken_by_other].map(|count| count.load(Ordering::Relaxed));

        broker.dial(&way, 0, LIMIT).await.unwrap();
        assert_eq!(taken(), [1, 1]);
        for _ in 0..3 {
            broker.dial(&way, 0, LIMIT).await.unwrap();
        }
        assert_eq!(taken(), [1, 4], "nobody waits for the same address again");

        // The other way round.
        ill.store(false, Ordering::Relaxed);
        well.store(true, Ordering::Relaxed);
        broker.dial(&way, 0, LIMIT).await.unwrap();
        broker.dial(&way, 0, LIMIT).await.unwrap();
        assert_eq!(taken(), [3, 5]);

        ill.store(true, Ordering::Relaxed);
        let began = Instant::now();
        let error = broker.dial(&way, 0, LIMIT).await.unwrap_err();
        assert!(matches!(error, DialError::TimedOut), "{error}");
        assert!(began.elapsed() >= LIMIT * 9 / 10, "each had its part");
        assert_eq!(taken(), [4, 6]);
    }
}
