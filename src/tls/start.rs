//! The ClientHello of a socket of which some bytes were read already.

use std::io;

use rustls::server::Acceptor as HelloReader;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_rustls::{LazyConfigAcceptor, StartHandshake};

/// Reads the ClientHello, which begins with `begun`.
pub(super) async fn start(mut socket: TcpStream, mut begun: &[u8]) -> io::Result<StartHandshake<TcpStream>> {
    let mut reader = HelloReader::default();
    while !begun.is_empty() {
        reader.read_tls(&mut begun)?;
    }
    // The library reads from the socket before it looks: whom we have heard out would be waited for in vain.
    match reader.accept() {
        Ok(Some(accepted)) => Ok(StartHandshake::from_parts(accepted, socket)),
        Ok(None) => LazyConfigAcceptor::new(reader, socket).await,
        Err((error, mut alert)) => {
            let mut bytes = Vec::new();
            alert.write_all(&mut bytes)?;
            // Who is gone does not hear it; what counts is the error.
            let _ = socket.write_all(&bytes).await;
            Err(io::Error::new(io::ErrorKind::InvalidData, error))
        }
    }
}
