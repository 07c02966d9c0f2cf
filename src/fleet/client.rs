//! One MQTT connection of the fleet's: dial, TLS, CONNECT, CONNACK, and then packet by packet.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use rustls::{ClientConfig, HandshakeKind};
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;

use super::identity::{Identity, TooLong};
use super::outcome::{Loss, Stage};
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

/// How far an attempt has come, for the case that it is cut short.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Progress {
    pub(super) stage: Stage,
    /// The TLS handshake is done.
    pub(super) handshake: Option<HandshakeKind>,
}

/// Why there is no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// A CONNACK with this code.
    Refused {
        code: u8,
        retry_after: Option<Duration>,
    },
    Lost(Loss),
}

/// The connection is over: closed by the other side, broken, or no MQTT.
#[derive(Debug)]
pub(super) enum Ended {
    Closed,
    /// TLS failed; with 1.3 that is how a client hears that its certificate was not liked.
    Alert,
    Broken,
    NotMqtt,
}

/// An open connection.
pub(super) struct Client {
    stream: Box<dyn Wire>,
    incoming: BytesMut,
    version: Version,
}

trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Wire for S {}

impl Client {
    /// Dials from `source` (`None`: as the system chooses) and waits for the CONNACK, for ever: patience is the caller's.
    pub(super) async fn connect(
        target: &Target,
        source: Option<IpAddr>,
        identity: &Identity,
        progress: &mut Progress,
    ) -> Result<Self, Failure> {
        let stream = open(target, source, progress).await?;
        let mut client = Self {
            stream,
            incoming: BytesMut::new(),
            version: identity.version,
        };
        progress.stage = Stage::Connack;
        client.send(&identity.connect()?).await?;
        match client.next().await? {
            FromBroker::Connack { code: 0, .. } => Ok(client),
            FromBroker::Connack { code, retry_after_ms } => Err(Failure::Refused {
                code,
                retry_after: retry_after_ms.map(Duration::from_millis),
            }),
            _ => Err(Failure::Lost(Loss::NotMqtt)),
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
                return Err(Ended::Closed);
            }
        }
    }
}

async fn open(
    target: &Target,
    source: Option<IpAddr>,
    progress: &mut Progress,
) -> Result<Box<dyn Wire>, Failure> {
    progress.stage = Stage::Dial;
    let tcp = dial(target.address, source)
        .await
        .map_err(|error| Failure::Lost(Loss::of_dial(&error)))?;
    let Some(tls) = &target.tls else {
        return Ok(Box::new(tcp));
    };
    progress.stage = Stage::Tls;
    let connector = TlsConnector::from(Arc::clone(&tls.config));
    let stream = connector
        .connect(tls.server_name.clone(), tcp)
        .await
        .map_err(|error| Failure::Lost(Loss::of_handshake(&error)))?;
    progress.handshake = stream.get_ref().1.handshake_kind();
    Ok(Box::new(stream))
}

async fn dial(address: SocketAddr, source: Option<IpAddr>) -> io::Result<TcpStream> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        TcpSocket::new_v6()?
    };
    socket.set_nodelay(true)?;
    if let Some(source) = source {
        // A port whose last connection is in TIME_WAIT is good again.
        socket.set_reuseaddr(true)?;
        socket.bind(SocketAddr::new(source, 0))?;
    }
    socket.connect(address).await
}

impl From<Ended> for Failure {
    fn from(ended: Ended) -> Self {
        Self::Lost(match ended {
            Ended::Closed => Loss::Closed,
            Ended::Alert => Loss::Tls,
            Ended::Broken => Loss::Reset,
            Ended::NotMqtt => Loss::NotMqtt,
        })
    }
}

impl From<TooLong> for Failure {
    fn from(_: TooLong) -> Self {
        Self::Lost(Loss::Own)
    }
}

impl From<io::Error> for Ended {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            // A FIN without close_notify: unclean, but no reset.
            io::ErrorKind::UnexpectedEof => Self::Closed,
            io::ErrorKind::InvalidData => Self::Alert,
            _ => Self::Broken,
        }
    }
}

impl From<PacketError> for Ended {
    fn from(_: PacketError) -> Self {
        Self::NotMqtt
    }
}
