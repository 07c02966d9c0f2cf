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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustls::pki_types::ServerName;
    use rustls::{ClientConfig, ClientConnection, RootCertStore};
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;

    use super::*;
    use crate::telemetry::ending::HandshakeFailure;
    use crate::tls::failure;

    fn hello() -> Vec<u8> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        let name = ServerName::try_from("device.example").unwrap();
        let mut client = ClientConnection::new(Arc::new(config), name).unwrap();
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        bytes
    }

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (client, server) = tokio::join!(TcpStream::connect(address), listener.accept());
        (client.unwrap(), server.unwrap().0)
    }

    #[tokio::test]
    async fn a_hello_is_read_wherever_it_was_begun() {
        let hello = hello();
        for split in [0, 1, 4, 5, 6, hello.len() / 2, hello.len() - 1, hello.len()] {
            let (mut client, server) = pair().await;
            let (begun, rest) = hello.split_at(split);
            client.write_all(rest).await.unwrap();
            let start = start(server, begun).await.unwrap();
            let name = start.client_hello().server_name().map(str::to_owned);
            assert_eq!(name.as_deref(), Some("device.example"), "{split} bytes were read");
        }
    }

    #[tokio::test]
    async fn what_is_no_hello_is_told_so_whoever_read_it() {
        for split in [0, 3, 14] {
            let (mut client, server) = pair().await;
            let (begun, rest) = b"GET / HTTP/1.1".split_at(split);
            client.write_all(rest).await.unwrap();
            let error = start(server, begun).await.err().unwrap();
            assert_eq!(failure::classify(&error), HandshakeFailure::NotTls, "{split}");
            let mut answer = Vec::new();
            // What was not read of it makes the close a reset, behind the alert.
            let _ = client.read_to_end(&mut answer).await;
            assert_eq!(answer.first(), Some(&0x15), "an alert after {split}");
        }
    }
}
