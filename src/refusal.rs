//! Writes the answer to a refused client and closes so that the answer arrives.

use std::io::Write;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::server::TlsStream;

use crate::admission::Refusal;
use crate::mqtt::Version;
use crate::mqtt::connack::{self, Extras};
use crate::mqtt::connect::ConnectError;
use crate::reason::Reason;

/// `[refusal]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How a refusal is told.
    pub method: Method,
    /// Whether a v5 answer carries a Reason String.
    pub reason_string: bool,
}

/// `refusal.method`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// With a CONNACK.
    Connack,
    /// With a clean close after the CONNECT, for clients to which any refusing CONNACK is final.
    Close,
}

/// How long what the client still sends is read and dropped after our FIN: a close with unread input becomes a reset
/// that destroys the answer on its way. A client that has read the answer closes within a round trip; 1 s covers the
/// slow modems, and some libraries count on our FIN alone.
const LINGER: Duration = Duration::from_secs(1);

/// Most bytes that are read and dropped in that time: a client that pipelines more than a full receive window did not
/// wait for its answer.
const LINGER_BYTES: usize = 1024 * 1024;

/// Who is answered, as far as its answer depends on it.
#[derive(Clone, Copy, Debug)]
pub struct Addressee {
    /// Which form of CONNACK it reads.
    pub version: Version,
    /// What it takes at most (5.0).
    pub maximum_packet_size: Option<u32>,
}

/// The bytes that tell `addressee` why; `None`: closed without a CONNACK.
pub fn answer(refusal: &Refusal, addressee: Addressee, settings: &Settings) -> Option<Vec<u8>> {
    let answer = refusal.reason.answer();
    if answer.closable && settings.method == Method::Close {
        return None;
    }
    let code = match (refusal.code, addressee.version) {
        (Some(of_the_broker), _) => of_the_broker,
        (None, Version::V5) => answer.v5?,
        (None, Version::V3_1 | Version::V3_1_1) => answer.v3?,
    };
    let extras = Extras {
        reason_string: settings.reason_string.then_some(answer.text),
        ..Extras::default()
    };
    connack::refuse(addressee.version, code, extras, addressee.maximum_packet_size)
}

/// The reason and the bytes for a client whose CONNECT can't be accepted as MQTT. No reason: it spoke no MQTT at all.
/// Without Reason String: nothing is known of such a client's limits.
pub fn answer_invalid(error: ConnectError) -> (Option<Reason>, Option<Vec<u8>>) {
    let (reason, version) = match error {
        ConnectError::NotConnect => return (None, None),
        // The levels below 3 never had a CONNACK of another form, and those above 5 will have the one of 5.
        ConnectError::UnsupportedLevel { level } if level > 5 => (Reason::Protocol, Some(Version::V5)),
        ConnectError::UnsupportedLevel { .. } => (Reason::Protocol, Some(Version::V3_1_1)),
        ConnectError::EmptyClientId { version } => (Reason::ClientId, Some(version)),
        ConnectError::Malformed { version } => (Reason::Malformed, version),
        ConnectError::TooLarge { version } => (Reason::TooLarge, version),
        ConnectError::ProtocolError => {
            return (
                Some(Reason::Malformed),
                connack::refuse(Version::V5, 0x82, Extras::default(), None),
            );
        }
    };
    let bytes = version.and_then(|version| {
        let code = match version {
            Version::V5 => reason.answer().v5?,
            Version::V3_1 | Version::V3_1_1 => reason.answer().v3?,
        };
        connack::refuse(version, code, Extras::default(), None)
    });
    (Some(reason), bytes)
}

/// Sends `answer` where there is one, then `close_notify` and FIN in the same breath, and lingers until the client has
/// closed as well, or for a bounded moment.
pub async fn close(mut client: Box<TlsStream<TcpStream>>, answer: Option<&[u8]>) {
    let closing = async {
        if let Some(bytes) = answer {
            // Into the session's buffer: `shutdown` adds the alert, and both leave in one write.
            let (_, session) = client.get_mut();
            session.writer().write_all(bytes)?;
        }
        client.shutdown().await?;
        // Nobody looks at what still comes: it is not worth decrypting.
        let (socket, _) = client.get_mut();
        drop_input(socket).await
    };
    // A client that is gone, or does not close in time, is what this bound is for.
    let _ = timeout(LINGER, closing).await;
}

/// The same without TLS, for who is not served at all: FIN, then a bounded moment of lingering, since a close with
/// unread input would be a reset.
pub async fn close_before_tls(mut socket: TcpStream) {
    let closing = async {
        socket.shutdown().await?;
        drop_input(&mut socket).await
    };
    let _ = timeout(LINGER, closing).await;
}

async fn drop_input(socket: &mut TcpStream) -> std::io::Result<()> {
    let mut dropped = 0;
    let mut scratch = Vec::with_capacity(4096);
    while dropped < LINGER_BYTES {
        scratch.clear();
        match socket.read_buf(&mut scratch).await? {
            0 => break,
            count => dropped += count,
        }
    }
    Ok(())
}
