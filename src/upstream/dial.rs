//! Dialling a broker.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use arc_swap::ArcSwap;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpSocket, TcpStream, UnixStream, lookup_host};
use tokio::time::{sleep, timeout};

use super::pick::{self, Balance, Candidates};
use super::{Endpoint, Health, Server};
use crate::socket;

/// Names are looked up this often, beside the connections and not on their path: a resolver that hangs must not hold
/// a CONNECT. Short enough to follow a broker that was moved within a client's patience.
const LOOKUP_INTERVAL: Duration = Duration::from_secs(5);

/// A broker that failed is dialled this often to see whether it is back: without that a proxy which a load balancer
/// took out for not being ready would never see a client again.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// The brokers that can be dialled.
#[derive(Debug)]
pub struct Brokers {
    all: Vec<Broker>,
    /// What the names hash to, in the same order.
    names: Vec<u64>,
    picked: AtomicUsize,
    /// Dials so far: turns through `upstream.source_addresses`.
    dialled: AtomicUsize,
}

#[derive(Debug)]
struct Broker {
    endpoint: Endpoint,
    /// What a name was last found to mean.
    found: ArcSwap<Vec<SocketAddr>>,
    health: Health,
    open: Arc<AtomicUsize>,
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
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Brokers {
    /// The brokers of a configuration. Names have no addresses before [`Self::look_up`] has run.
    pub fn new(servers: &[Server]) -> Arc<Self> {
        let names = servers.iter().map(|server| pick::fingerprint(&server.name));
        let all = servers
            .iter()
            .map(|server| Broker {
                endpoint: server.endpoint.clone(),
                found: ArcSwap::default(),
                health: Health::default(),
                open: Arc::default(),
            })
            .collect();
        Arc::new(Self {
            all,
            names: names.collect(),
            picked: AtomicUsize::new(0),
            dialled: AtomicUsize::new(0),
        })
    }

    /// All brokers, in the order in which they are to be tried for this client.
    pub fn order(&self, balance: Balance, client_id: &str) -> Vec<usize> {
        let open = |broker: &Broker| broker.open.load(Ordering::Relaxed);
        let open: Vec<usize> = self.all.iter().map(open).collect();
        let candidates = Candidates {
            names: &self.names,
            open: &open,
            turn: self.picked.fetch_add(1, Ordering::Relaxed),
        };
        pick::order(balance, client_id, candidates)
    }

    /// Dials the broker with this index, within `limit`, from one of `sources`.
    pub async fn dial(
        &self,
        server: usize,
        limit: Duration,
        sources: &[IpAddr],
    ) -> Result<Upstream, DialError> {
        let broker = self.all.get(server).ok_or(DialError::Unresolved)?;
        let sources = Sources {
            all: sources,
            turn: self.dialled.fetch_add(1, Ordering::Relaxed),
        };
        let dialled = timeout(limit, broker.dial(sources))
            .await
            .unwrap_or(Err(DialError::TimedOut));
        match dialled {
            Ok(stream) => Ok(Upstream::counted(stream, &broker.open)),
            // That is our want of ports, and says nothing of the broker.
            Err(DialError::NoPort) => Err(DialError::NoPort),
            Err(error) => {
                broker.health.failed();
                Err(error)
            }
        }
    }

    /// What is known of the broker with this index.
    pub fn health(&self, server: usize) -> Option<&Health> {
        self.all.get(server).map(|broker| &broker.health)
    }

    /// Whether any broker can be used.
    pub fn any_up(&self) -> bool {
        self.all.iter().any(|broker| broker.health.is_up())
    }

    /// Whether each broker can be used, in the order of the configuration.
    pub fn up(&self) -> impl Iterator<Item = bool> + '_ {
        self.all.iter().map(|broker| broker.health.is_up())
    }

    /// Dials the brokers that failed until they take a connection again; those alone that `may_dial` allows.
    pub async fn keep_probing(self: Arc<Self>, limit: Duration, may_dial: impl Fn(usize) -> bool) {
        // From any address: one connection that is closed at once.
        let any = Sources { all: &[], turn: 0 };
        loop {
            let failed =
                |(server, broker): &(usize, &Broker)| broker.health.wants_probe() && may_dial(*server);
            for (_, broker) in self.all.iter().enumerate().filter(failed) {
                if let Ok(Ok(_)) = timeout(limit, broker.dial(any)).await {
                    broker.health.succeeded();
                }
            }
            sleep(PROBE_INTERVAL).await;
        }
    }

    /// Looks up every name once. A name that is not found keeps the addresses that it had.
    pub async fn look_up(&self) {
        for broker in &self.all {
            broker.look_up().await;
        }
    }

    /// Looks names up again and again.
    pub async fn keep_looking_up(self: Arc<Self>) {
        if self
            .all
            .iter()
            .all(|broker| !matches!(broker.endpoint, Endpoint::Name(..)))
        {
            return;
        }
        loop {
            sleep(LOOKUP_INTERVAL).await;
            self.look_up().await;
        }
    }
}

impl Broker {
    async fn dial(&self, sources: Sources<'_>) -> Result<Stream, DialError> {
        match &self.endpoint {
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

    async fn look_up(&self) {
        let Endpoint::Name(name, port) = &self.endpoint else {
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
struct Sources<'a> {
    all: &'a [IpAddr],
    turn: usize,
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
    fn counted(stream: Stream, open: &Arc<AtomicUsize>) -> Self {
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
