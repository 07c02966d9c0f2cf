//! Dialling one broker.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use arc_swap::ArcSwap;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpSocket, TcpStream, UnixStream, lookup_host};

use super::{Endpoint, Health, Server};
use crate::socket;

/// One broker, and what is known of it.
#[derive(Debug)]
pub(super) struct Broker {
    pub(super) server: Server,
    /// What a name was last found to mean.
    found: ArcSwap<Vec<SocketAddr>>,
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
    /// The operating system said no.
    #[error(transparent)]
    Failed(#[from] io::Error),
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
}

impl Broker {
    /// Nothing speaks against it. A name has no address before [`Self::look_up`] has run.
    pub(super) fn new(server: &Server) -> Self {
        Self {
            server: server.clone(),
            found: ArcSwap::default(),
            health: Health::default(),
            open: Arc::default(),
        }
    }

    /// Whether it has to be looked up.
    pub(super) fn is_name(&self) -> bool {
        matches!(self.server.endpoint, Endpoint::Name(..))
    }

    pub(super) async fn dial(&self, sources: Sources<'_>) -> Result<Stream, DialError> {
        match &self.server.endpoint {
            Endpoint::Unix(path) => Ok(Stream::Unix(UnixStream::connect(path).await?)),
            Endpoint::Address(address) => dial_tcp(*address, sources).await,
            Endpoint::Name(..) => self.dial_found(sources).await,
        }
    }

    /// Tries the name's addresses in their order: `localhost` is often `::1` first with the broker on 127.0.0.1.
    async fn dial_found(&self, sources: Sources<'_>) -> Result<Stream, DialError> {
        let mut last = DialError::Unresolved;
        for address in self.found.load().iter() {
            match dial_tcp(*address, sources).await {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Asks what its name means now. One that is not found keeps the addresses that it had.
    pub(super) async fn look_up(&self) {
        let Endpoint::Name(name, port) = &self.server.endpoint else {
            return;
        };
        match lookup_host((name.as_str(), *port)).await {
            Ok(found) => self.found.store(Arc::new(found.collect())),
            Err(error) => tracing::warn!(name, %error, "upstream.servers: the name can't be looked up"),
        }
    }
}

/// Where dials come from, and with which address this one begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sources<'a> {
    pub(super) all: &'a [IpAddr],
    pub(super) turn: usize,
}

async fn dial_tcp(address: SocketAddr, sources: Sources<'_>) -> Result<Stream, DialError> {
    let stream = if sources.all.is_empty() {
        TcpStream::connect(address).await.map_err(of_connect)?
    } else {
        dial_from(address, sources).await?
    };
    socket::condition(&SockRef::from(&stream))?;
    Ok(Stream::Tcp(stream))
}

/// Each address of the broker's family once, until one has a port left.
async fn dial_from(address: SocketAddr, sources: Sources<'_>) -> Result<TcpStream, DialError> {
    let Sources { all, turn } = sources;
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
        }
    }
}

impl AsyncWrite for Upstream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            Stream::Unix(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Stream::Unix(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
