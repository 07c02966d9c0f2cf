//! Telling the broker who its client is.

use std::io;

use rustls::ProtocolVersion;

use super::{Client, Life};
use crate::proxy_header::{self, Header, Route, Session};

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
            certificate: None,
            server_name: session.server_name(),
            alpn: session.alpn_protocol(),
        };
        let mut introduced = proxy_header::write(version, route, &session);
        introduced.extend(bytes);
        Ok(introduced)
    }
}
