//! Telling the broker who its client is.

use std::io;

use rustls::server::ServerConnection;
use rustls::{HandshakeKind, ProtocolVersion};

use super::{Client, Life};
use crate::proxy_header::{self, Certificate, Header, Route, Session};

impl Life<'_> {
    /// `bytes`, the first for the broker, with a header before them where `upstream.proxy_protocol` has one: so that both
    /// leave in one write. Fails where the client's socket has no address any more.
    pub(super) fn introduce(&self, client: &Client, bytes: Vec<u8>) -> io::Result<Vec<u8>> {
        let Some(version) = self.rules.upstream.proxy_header else {
            return Ok(bytes);
        };
        let (socket, session) = client.get_ref();
        let route = match self.header.as_deref() {
            Some(Header::Proxied(route)) => *route,
            Some(Header::Local) | None => Route::new(self.attempt.source, socket.local_addr()?),
        };
        let session = Session {
            version: match session.protocol_version() {
                Some(ProtocolVersion::TLSv1_2) => "TLSv1.2",
                _ => "TLSv1.3",
            },
            certificate: self.certificate(session),
            server_name: session.server_name(),
            alpn: session.alpn_protocol(),
        };
        let mut introduced = proxy_header::write(version, route, &session);
        introduced.extend(bytes);
        Ok(introduced)
    }

    /// The client's certificate: a session resumes with the one that it was made with.
    fn certificate(&self, session: &ServerConnection) -> Option<Certificate<'_>> {
        session.peer_certificates().filter(|chain| !chain.is_empty())?;
        let identity = self.attempt.identity.as_deref();
        Some(Certificate {
            common_name: identity.and_then(|identity| identity.common_name.as_deref()),
            resumed: session.handshake_kind() == Some(HandshakeKind::Resumed),
        })
    }
}
