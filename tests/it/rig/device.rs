//! A client of raw bytes over TLS: every write is one TLS record, and every kind of end is told from the others.

use super::certificates::certificates;
use super::packet::{Connect, accepted};
use super::{Daemon, PATIENCE, within};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, SupportedProtocolVersion};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// How the other side ended a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// `close_notify`, then FIN.
    Clean,
    /// FIN without `close_notify`: an error to many clients.
    Truncated,
    /// RST.
    Reset,
}

/// A connected client.
pub struct Device {
    stream: TlsStream<TcpStream>,
    settings: Arc<ClientConfig>,
}

impl Device {
    /// TLS is up when it returns.
    pub async fn dial(daemon: &Daemon) -> Self {
        within(PATIENCE, "TLS", Self::try_dial(daemon.address()))
            .await
            .expect("TLS")
    }

    /// The same over TLS 1.2.
    pub async fn dial_1_2(daemon: &Daemon) -> Self {
        let settings = Arc::new(settings_for(&[&rustls::version::TLS12]));
        let tcp = TcpStream::connect(daemon.address()).await.unwrap();
        within(PATIENCE, "TLS 1.2", Self::over_with(tcp, settings))
            .await
            .expect("TLS 1.2")
    }

    pub async fn try_dial(address: SocketAddr) -> io::Result<Self> {
        Self::over(TcpStream::connect(address).await?).await
    }

    /// From another address of the loopback.
    pub async fn dial_from(source: [u8; 4], daemon: &Daemon) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from((source, 0))).unwrap();
        let tcp = socket.connect(daemon.address()).await.unwrap();
        within(PATIENCE, "TLS", Self::over(tcp)).await.expect("TLS")
    }

    /// Over a connection on which something may have been said already.
    pub async fn over(tcp: TcpStream) -> io::Result<Self> {
        Self::over_with(tcp, Arc::clone(tls_settings())).await
    }

    async fn over_with(tcp: TcpStream, settings: Arc<ClientConfig>) -> io::Result<Self> {
        tcp.set_nodelay(true)?;
        let name = ServerName::try_from("localhost").unwrap();
        Ok(Self {
            stream: TlsConnector::from(Arc::clone(&settings))
                .connect(name, tcp)
                .await?,
            settings,
        })
    }

    /// With TLS settings of its own, which keep its tickets.
    pub async fn dial_with(address: SocketAddr, settings: Arc<ClientConfig>) -> io::Result<Self> {
        Self::over_with(TcpStream::connect(address).await?, settings).await
    }

    /// What it was dialled with.
    pub fn settings(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.settings)
    }

    /// In session: the CONNECT was sent, and the broker has answered that it is content.
    pub async fn join(daemon: &Daemon, connect: Connect<'_>) -> Self {
        Self::join_raw(daemon, connect.level, &connect.bytes()).await
    }

    /// The same of one that may be refused.
    pub async fn try_join(address: SocketAddr, connect: Connect<'_>) -> io::Result<Self> {
        let mut device = Self::try_dial(address).await?;
        device.try_send(&connect.bytes()).await?;
        if device.try_packet().await? == accepted(connect.level) {
            Ok(device)
        } else {
            Err(io::ErrorKind::ConnectionRefused.into())
        }
    }

    /// The same with the bytes of a CONNECT of that level.
    #[track_caller]
    pub fn join_raw(daemon: &Daemon, level: u8, connect: &[u8]) -> impl Future<Output = Self> {
        let at = std::panic::Location::caller();
        async move {
            let mut device = Self::dial(daemon).await;
            device.send(connect).await;
            let connack = device.packet().await;
            assert_eq!(hex(&connack), hex(&accepted(level)), "at {at}");
            device
        }
    }

    /// One TLS record (up to 16 KiB).
    pub async fn send(&mut self, bytes: &[u8]) {
        self.try_send(bytes)
            .await
            .expect("the connection takes no more bytes");
    }

    pub async fn try_send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await?;
        self.stream.flush().await
    }

    /// The next packet, whole.
    pub async fn packet(&mut self) -> Vec<u8> {
        self.packet_within(PATIENCE).await
    }

    pub async fn packet_within(&mut self, patience: Duration) -> Vec<u8> {
        within(patience, "a packet", read_packet(&mut self.stream))
            .await
            .expect("a packet")
    }

    pub async fn try_packet(&mut self) -> io::Result<Vec<u8>> {
        read_packet(&mut self.stream).await
    }

    #[track_caller]
    pub fn expect_packet(&mut self, expected: &[u8]) -> impl Future<Output = ()> {
        let at = std::panic::Location::caller();
        async move {
            let packet = self.packet().await;
            assert_eq!(hex(&packet), hex(expected), "at {at}");
        }
    }

    /// Everything up to the end, and how it came; the end must come within `patience`.
    pub async fn rest(self, patience: Duration) -> (Vec<u8>, End) {
        within(patience, "the end of the connection", self.read_to_end()).await
    }

    async fn read_to_end(mut self) -> (Vec<u8>, End) {
        let mut bytes = Vec::new();
        let end = match self.stream.read_to_end(&mut bytes).await {
            Ok(_) => {
                let (mut tcp, _) = self.stream.into_inner();
                // After close_notify there must be a FIN as well.
                if tcp.read(&mut [0]).await.is_ok_and(|count| count == 0) {
                    End::Clean
                } else {
                    End::Reset
                }
            }
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => End::Truncated,
            Err(_) => End::Reset,
        };
        (bytes, end)
    }

    /// The connection ends with exactly these bytes before it, cleanly and within a second.
    #[track_caller]
    pub fn expect_last(self, expected: &[u8]) -> impl Future<Output = ()> {
        let at = std::panic::Location::caller();
        async move {
            let (bytes, end) = self.rest(PATIENCE).await;
            assert_eq!((hex(&bytes), end), (hex(expected), End::Clean), "at {at}");
        }
    }

    /// Says good-bye to TLS and TCP, as `close_notify` and FIN.
    pub async fn close(mut self) {
        let _ = self.stream.shutdown().await;
    }

    /// `close_notify` and FIN, and goes on reading.
    pub async fn finish_sending(&mut self) {
        self.stream.shutdown().await.unwrap();
    }

    /// RST at once.
    pub fn reset(self) {
        let (tcp, _) = self.stream.into_inner();
        tcp.set_zero_linger().unwrap();
    }

    /// FIN without `close_notify`: a process that was killed.
    pub fn vanish(self) {
        drop(self.stream.into_inner());
    }

    /// Both halves, for use by two tasks.
    pub fn split(
        self,
    ) -> (
        tokio::io::ReadHalf<TlsStream<TcpStream>>,
        tokio::io::WriteHalf<TlsStream<TcpStream>>,
    ) {
        tokio::io::split(self.stream)
    }
}

/// Trusts the throw-away authority; never resumes, so that a handshake is a handshake.
pub fn tls_settings() -> &'static Arc<ClientConfig> {
    static ONCE: OnceLock<Arc<ClientConfig>> = OnceLock::new();
    ONCE.get_or_init(|| Arc::new(settings_for(rustls::DEFAULT_VERSIONS)))
}

pub fn settings_for(versions: &[&'static SupportedProtocolVersion]) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(certificates().authority.as_bytes()).unwrap())
        .unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut settings = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    settings.resumption = rustls::client::Resumption::disabled();
    settings
}

/// One MQTT packet.
pub async fn read_packet(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
    let mut packet = vec![stream.read_u8().await?];
    let mut length = 0;
    for place in 0..4 {
        let byte = stream.read_u8().await?;
        packet.push(byte);
        length |= usize::from(byte & 0x7F) << (7 * place);
        if byte & 0x80 == 0 {
            break;
        }
    }
    let start = packet.len();
    packet.resize(start + length, 0);
    stream.read_exact(&mut packet[start..]).await?;
    Ok(packet)
}

/// `20 02 00 03`, as the specifications write it.
pub fn hex(bytes: &[u8]) -> String {
    let shown: Vec<String> = bytes.iter().take(64).map(|byte| format!("{byte:02x}")).collect();
    if bytes.len() > 64 {
        format!("{} … {} bytes", shown.join(" "), bytes.len())
    } else {
        shown.join(" ")
    }
}

/// The ClientHello of a client that was here before.
pub async fn resuming_hello(daemon: &Daemon) -> Vec<u8> {
    let mut settings = tls_settings().as_ref().clone();
    settings.resumption = rustls::client::Resumption::in_memory_sessions(4);
    let settings = Arc::new(settings);
    let name = ServerName::try_from("localhost").unwrap();
    let socket = TcpStream::connect(daemon.address()).await.unwrap();
    let connector = TlsConnector::from(Arc::clone(&settings));
    let mut stream = connector.connect(name.clone(), socket).await.unwrap();
    // The tickets come before the CONNACK.
    stream.write_all(&Connect::v311("before").bytes()).await.unwrap();
    stream.read_exact(&mut [0; 4]).await.unwrap();
    let mut client = ClientConnection::new(settings, name).unwrap();
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes).unwrap();
    bytes
}
