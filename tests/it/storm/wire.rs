//! A device's way in: TLS, CONNECT with the right password, CONNACK.

use crate::rig::Connect;
use crate::rig::device::{read_packet, tls_settings};
use crate::rig::mosquitto::{PASSWORD, USERNAME};
use rustls::pki_types::ServerName;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

pub type Session = TlsStream<TcpStream>;

/// In session, or not.
pub async fn join(target: SocketAddr, id: &str) -> io::Result<Session> {
    let tcp = TcpStream::connect(target).await?;
    tcp.set_nodelay(true)?;
    let connector = TlsConnector::from(Arc::clone(tls_settings()));
    let mut stream = connector
        .connect(ServerName::try_from("localhost").unwrap(), tcp)
        .await?;
    stream.write_all(&credentials(id).bytes()).await?;
    stream.flush().await?;
    match read_packet(&mut stream).await?.as_slice() {
        [0x20, 2, 0, 0] => Ok(stream),
        _ => Err(io::ErrorKind::ConnectionRefused.into()),
    }
}

pub fn credentials(id: &str) -> Connect<'_> {
    Connect {
        username: Some(USERNAME),
        password: Some(PASSWORD.as_bytes()),
        ..Connect::v311(id)
    }
}
