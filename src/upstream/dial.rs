//! Dialling a broker.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use arc_swap::ArcSwap;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::time::{sleep, timeout};

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
    brokers: Vec<Broker>,
}

#[derive(Debug)]
struct Broker {
    endpoint: Endpoint,
    /// What a name was last found to mean.
    found: ArcSwap<Vec<SocketAddr>>,
    health: Health,
}

/// No connection to a broker came about.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// Its name has no address, or was not looked up yet.
    #[error("the name has no address")]
    Unresolved,
    /// It did not answer in time.
    #[error("no answer within upstream.connect_timeout")]
    TimedOut,
    /// The operating system said no.
    #[error(transparent)]
    Failed(#[from] io::Error),
}

/// A socket to a broker.
#[derive(Debug)]
pub enum Upstream {
    /// Over TCP.
    Tcp(TcpStream),
    /// Over a unix socket.
    Unix(UnixStream),
}

impl Brokers {
    /// The brokers of a configuration. Names have no addresses before [`Self::look_up`] has run.
    pub fn new(servers: &[Server]) -> Arc<Self> {
        let brokers = servers
            .iter()
            .map(|server| Broker {
                endpoint: server.endpoint.clone(),
                found: ArcSwap::default(),
                health: Health::default(),
            })
            .collect();
        Arc::new(Self { brokers })
    }

    /// Dials the broker with this index, within `limit`.
    pub async fn dial(&self, server: usize, limit: Duration) -> Result<Upstream, DialError> {
        let broker = self.brokers.get(server).ok_or(DialError::Unresolved)?;
        let dialled = timeout(limit, broker.dial())
            .await
            .unwrap_or(Err(DialError::TimedOut));
        if dialled.is_err() {
            broker.health.failed();
        }
        dialled
    }

    /// What is known of the broker with this index.
    pub fn health(&self, server: usize) -> Option<&Health> {
        self.brokers.get(server).map(|broker| &broker.health)
    }

    /// Whether any broker can be used.
    pub fn any_up(&self) -> bool {
        self.brokers.iter().any(|broker| broker.health.is_up())
    }

    /// Whether each broker can be used, in the order of the configuration.
    pub fn up(&self) -> impl Iterator<Item = bool> + '_ {
        self.brokers.iter().map(|broker| broker.health.is_up())
    }

    /// Dials the brokers that failed until they take a connection again.
    pub async fn keep_probing(self: Arc<Self>, limit: Duration) {
        loop {
            for broker in self.brokers.iter().filter(|broker| broker.health.wants_probe()) {
                if let Ok(Ok(_)) = timeout(limit, broker.dial()).await {
                    broker.health.succeeded();
                }
            }
            sleep(PROBE_INTERVAL).await;
        }
    }

    /// Looks up every name once. A name that is not found keeps the addresses that it had.
    pub async fn look_up(&self) {
        for broker in &self.brokers {
            broker.look_up().await;
        }
    }

    /// Looks names up again and again.
    pub async fn keep_looking_up(self: Arc<Self>) {
        if self
            .brokers
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
    async fn dial(&self) -> Result<Upstream, DialError> {
        match &self.endpoint {
            Endpoint::Unix(path) => Ok(Upstream::Unix(UnixStream::connect(path).await?)),
            Endpoint::Address(address) => dial_tcp(*address).await,
            Endpoint::Name(..) => self.dial_found().await,
        }
    }

    /// Tries the name's addresses in their order: `localhost` is often `::1` first with the broker on 127.0.0.1.
    async fn dial_found(&self) -> Result<Upstream, DialError> {
        let mut last = DialError::Unresolved;
        for address in self.found.load().iter() {
            match dial_tcp(*address).await {
                Ok(upstream) => return Ok(upstream),
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

async fn dial_tcp(address: SocketAddr) -> Result<Upstream, DialError> {
    let stream = TcpStream::connect(address).await?;
    socket::condition(&SockRef::from(&stream))?;
    Ok(Upstream::Tcp(stream))
}

impl AsyncRead for Upstream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, into),
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, into),
        }
    }
}

impl AsyncWrite for Upstream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Self::Unix(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
