//! One MQTT connection of the fleet's: dial, TLS, CONNECT, CONNACK, and then packet by packet.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::BytesMut;
use mqttbytes::{v4, v5};
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::packet::{FromBroker, PacketError};
use crate::mqtt::Version;

/// Room for one read: most packets of a trial are smaller.
const READ_ROOM: usize = 512;

/// Where to connect, and how.
#[derive(Clone, Debug)]
pub struct Target {
    /// Where to dial.
    pub address: SocketAddr,
    /// `None`: MQTT on bare TCP.
    pub tls: Option<Tls>,
}

/// What a client of TLS needs. A clone shares its session tickets with the original.
#[derive(Clone, Debug)]
pub struct Tls {
    /// Trust, versions, resumption.
    pub config: Arc<ClientConfig>,
    /// The name that the server's certificate must bear.
    pub server_name: ServerName<'static>,
}

impl Target {
    /// The same target with a session store of its own: each device has its own tickets.
    pub(super) fn with_own_sessions(&self) -> Self {
        let tls = self.tls.as_ref().map(|tls| {
            let mut config = ClientConfig::clone(&tls.config);
            config.resumption = rustls::client::Resumption::in_memory_sessions(1);
            Tls {
                config: Arc::new(config),
                server_name: tls.server_name.clone(),
            }
        });
        Self {
            address: self.address,
            tls,
        }
    }
}

/// Who connects: always with a clean session.
#[derive(Clone, Debug)]
pub(super) struct Identity {
    pub(super) client_id: String,
    /// 3.1.1 or 5.0.
    pub(super) version: Version,
    /// Seconds.
    pub(super) keep_alive: u16,
}

/// Why there is no connection.
#[derive(Debug)]
pub(super) enum Failure {
    /// A CONNACK with this code.
    Refused(u8),
    /// Anything else: no route, reset, closed without a CONNACK, not MQTT.
    Broken,
}

/// The connection is over: closed by the other side, broken, or no MQTT.
#[derive(Debug)]
pub(super) struct Ended;

/// An open connection.
pub(super) struct Client {
    stream: Box<dyn Wire>,
    incoming: BytesMut,
    version: Version,
}

trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Wire for S {}

impl Client {
    /// Dials and waits for the CONNACK, for ever: patience is the caller's.
    pub(super) async fn connect(target: &Target, identity: &Identity) -> Result<Self, Failure> {
        let stream = open(target).await?;
        let mut client = Self {
            stream,
            incoming: BytesMut::new(),
            version: identity.version,
        };
        let connect = connect_bytes(identity)?;
        client.send(&connect).await?;
        match client.next().await? {
            FromBroker::Connack { code: 0, .. } => Ok(client),
            FromBroker::Connack { code, .. } => Err(Failure::Refused(code)),
            _ => Err(Failure::Broken),
        }
    }

    pub(super) fn version(&self) -> Version {
        self.version
    }

    pub(super) async fn send(&mut self, bytes: &[u8]) -> Result<(), Ended> {
        self.stream.write_all(bytes).await?;
        Ok(self.stream.flush().await?)
    }

    /// The next packet. Nothing is lost when the future is dropped.
    pub(super) async fn next(&mut self) -> Result<FromBroker, Ended> {
        loop {
            if let Some(packet) = FromBroker::take(&mut self.incoming, self.version)? {
                return Ok(packet);
            }
            self.incoming.reserve(READ_ROOM);
            if self.stream.read_buf(&mut self.incoming).await? == 0 {
                return Err(Ended);
            }
        }
    }
}

async fn open(target: &Target) -> Result<Box<dyn Wire>, Failure> {
    let tcp = TcpStream::connect(target.address).await?;
    tcp.set_nodelay(true)?;
    let Some(tls) = &target.tls else {
        return Ok(Box::new(tcp));
    };
    let connector = TlsConnector::from(Arc::clone(&tls.config));
    Ok(Box::new(connector.connect(tls.server_name.clone(), tcp).await?))
}

fn connect_bytes(identity: &Identity) -> Result<BytesMut, Failure> {
    let mut out = BytesMut::new();
    let written = if identity.version == Version::V5 {
        let mut connect = v5::Connect::new(&identity.client_id);
        connect.keep_alive = identity.keep_alive;
        connect.write(&mut out)
    } else {
        let mut connect = v4::Connect::new(&identity.client_id);
        connect.keep_alive = identity.keep_alive;
        connect.write(&mut out)
    };
    written.map(|_| out).map_err(|_| Failure::Broken)
}

impl From<io::Error> for Failure {
    fn from(_: io::Error) -> Self {
        Self::Broken
    }
}

impl From<Ended> for Failure {
    fn from(_: Ended) -> Self {
        Self::Broken
    }
}

impl From<io::Error> for Ended {
    fn from(_: io::Error) -> Self {
        Self
    }
}

impl From<PacketError> for Ended {
    fn from(_: PacketError) -> Self {
        Self
    }
}
