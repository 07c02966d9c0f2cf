//! Telling the broker who its client is.

use std::io;

use rustls::server::ServerConnection;
use rustls::{HandshakeKind, ProtocolVersion};

use super::{Client, Life};
use crate::proxy_header::{self, Certificate, Header, Route, Session};

impl Life<'_> {
    /// The header for the broker; empty where `upstream.proxy_protocol` has none. Fails where the client's socket has no
    /// address any more.
    pub(super) fn introduction(&self, client: &Client) -> io::Result<Vec<u8>> {
        let Some(version) = self.rules.upstream.proxy_header else {
            return Ok(Vec::new());
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
        Ok(proxy_header::write(version, route, &session))
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
