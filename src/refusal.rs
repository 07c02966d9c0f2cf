//! Writes the answer to a refused client and closes so that the answer arrives.

use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::server::TlsStream;

use crate::admission::Refusal;
use crate::mqtt::Version;
use crate::mqtt::connack::{self, Extras};
use crate::mqtt::connect::{Connect, ConnectError};
use crate::reason::Reason;
use crate::socket::Downstream;

/// `[refusal]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How a refusal is told.
    pub method: Method,
    /// An answer comes after a random time up to this; zero: at once.
    pub delay: Duration,
    /// Most clients whose answer waits at a time: the excess is answered at once.
    pub max_delayed: usize,
    /// Whether a v5 answer says when there will be room (user property `retry-after-ms`).
    pub retry_after: bool,
    /// Whether a v5 answer carries a Reason String.
    pub reason_string: bool,
    /// Where a busy v5 client is sent instead, in the form of its Server Reference (MQTT 5.0 section 4.11).
    pub server_reference: Option<String>,
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

/// Reason code of 5.0 for a want of room.
const SERVER_BUSY: u8 = 0x89;

/// Reason code of 5.0 that comes with a Server Reference.
const USE_ANOTHER_SERVER: u8 = 0x9C;

/// Refused clients whose answer waits for its time.
#[derive(Debug, Default)]
pub struct Delayed(AtomicUsize);

/// A place among [`Delayed`], until it is dropped.
#[derive(Debug)]
pub struct DelayedPlace<'a>(&'a AtomicUsize);

impl Delayed {
    /// A place, unless `most` are taken.
    pub fn enter(&self, most: usize) -> Option<DelayedPlace<'_>> {
        let one_more = |taken: usize| (taken < most).then_some(taken + 1);
        let taken = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        taken.ok().map(|_| DelayedPlace(&self.0))
    }
}

impl Drop for DelayedPlace<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Who is answered, as far as its answer depends on it.
#[derive(Clone, Copy, Debug)]
pub struct Addressee {
    /// Which form of CONNACK it reads.
    pub version: Version,
    /// What it takes at most (5.0).
    pub maximum_packet_size: Option<u32>,
}

impl Addressee {
    /// The sender of `connect`.
    pub fn of(connect: &Connect) -> Self {
        Self {
            version: connect.version,
            maximum_packet_size: connect.maximum_packet_size,
        }
    }
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
    let server_reference = settings
        .server_reference
        .as_deref()
        .filter(|_| refusal.code.is_none() && code == SERVER_BUSY);
    let code = server_reference.map_or(code, |_| USE_ANOTHER_SERVER);
    let retry_after = refusal.retry_after.filter(|_| settings.retry_after);
    // What is answered for the broker is its code alone: nobody should wonder which of the two spoke.
    let text = Some(answer.text).filter(|_| settings.reason_string && refusal.code.is_none());
    let extras = Extras {
        reason_string: text,
        retry_after_ms: retry_after.map(whole_milliseconds),
        server_reference,
    };
    connack::refuse(addressee.version, code, extras, addressee.maximum_packet_size)
}

/// Rounded up: who comes a little late finds its room, who comes a little early does not.
fn whole_milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// The reason and the bytes for a client whose CONNECT can't be accepted as MQTT. No reason: it spoke no MQTT at all.
/// Without Reason String: nothing is known of such a client's limits.
pub fn answer_invalid(error: &ConnectError) -> (Option<Reason>, Option<Vec<u8>>) {
    let (reason, version) = match *error {
        ConnectError::NotConnect => return (None, None),
        // The levels below 3 never had a CONNACK of another form, and those above 5 will have the one of 5.
        ConnectError::UnsupportedLevel { level } if level > 5 => (Reason::Protocol, Some(Version::V5)),
        ConnectError::UnsupportedLevel { .. } => (Reason::Protocol, Some(Version::V3_1_1)),
        ConnectError::EmptyClientId { ref connect } => (Reason::ClientId, Some(connect.version)),
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

/// The bytes that end an authentication of MQTT 5.0 with `code`, in the broker's place ([MQTT-4.12.0-4]).
pub fn answer_unauthenticated(code: u8, addressee: Addressee) -> Option<Vec<u8>> {
    connack::refuse(
        addressee.version,
        code,
        Extras::default(),
        addressee.maximum_packet_size,
    )
}

/// Sends `answer` where there is one, then `close_notify` and FIN in the same breath, and lingers until the client has
/// closed as well, or for a bounded moment.
pub async fn close(mut client: Box<TlsStream<TcpStream>>, answer: Option<&[u8]>) {
    let closing = async {
        if let Some(bytes) = answer {
            // Into the session's buffer: `shutdown` adds the alert and the FIN, and all leave in one segment.
            let (_, session) = client.get_mut();
            session.writer().write_all(bytes)?;
        }
        Downstream(&mut client).shutdown().await?;
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

#[cfg(test)]
mod tests {
    use super::*;

    const V5: Addressee = Addressee {
        version: Version::V5,
        maximum_packet_size: None,
    };

    fn settings() -> Settings {
        Settings {
            method: Method::Connack,
            delay: Duration::ZERO,
            max_delayed: 0,
            retry_after: true,
            reason_string: false,
            server_reference: None,
        }
    }

    fn refusal(reason: Reason, retry_after: Option<Duration>) -> Refusal {
        Refusal {
            retry_after,
            ..Refusal::new(reason)
        }
    }

    #[test]
    fn a_v5_client_is_told_when_to_come_back() {
        let busy = refusal(Reason::Rate, Some(Duration::from_micros(1_500_001)));
        let told = [
            &[0x20, 0x1a, 0, 0x89, 0x17, 0x26, 0, 14][..],
            b"retry-after-ms",
            &[0, 4],
            b"1501",
        ]
        .concat();
        assert_eq!(answer(&busy, V5, &settings()), Some(told));
        let off = Settings {
            retry_after: false,
            ..settings()
        };
        assert_eq!(answer(&busy, V5, &off), Some(vec![0x20, 3, 0, 0x89, 0]));
        let old = Addressee {
            version: Version::V3_1_1,
            ..V5
        };
        assert_eq!(answer(&busy, old, &settings()), Some(vec![0x20, 2, 0, 3]));
        let small = Addressee {
            maximum_packet_size: Some(27),
            ..V5
        };
        assert_eq!(answer(&busy, small, &settings()), Some(vec![0x20, 3, 0, 0x89, 0]));
    }

    #[test]
    fn a_busy_v5_client_is_sent_elsewhere_where_that_is_set_and_fits() {
        let elsewhere = Settings {
            server_reference: Some("b:8883".to_owned()),
            ..settings()
        };
        for reason in [Reason::Rate, Reason::HoldFull, Reason::Draining] {
            let told = [&[0x20, 12, 0, 0x9C, 9, 0x1C, 0, 6][..], b"b:8883"].concat();
            assert_eq!(answer(&refusal(reason, None), V5, &elsewhere), Some(told));
        }
        let small = Addressee {
            maximum_packet_size: Some(13),
            ..V5
        };
        let busy = refusal(Reason::Rate, None);
        assert_eq!(answer(&busy, small, &elsewhere), Some(vec![0x20, 3, 0, 0x89, 0]));
        for (reason, code) in [(Reason::NoBroker, 0x88), (Reason::ClientRate, 0x9F)] {
            let told = answer(&refusal(reason, None), V5, &elsewhere);
            assert_eq!(told, Some(vec![0x20, 3, 0, code, 0]));
        }
    }

    #[test]
    fn no_more_are_delayed_than_there_are_places() {
        let delayed = Delayed::default();
        let first = delayed.enter(2);
        let second = delayed.enter(2);
        assert!(first.is_some() && second.is_some() && delayed.enter(2).is_none());
        drop(first);
        assert!(delayed.enter(2).is_some());
        assert!(delayed.enter(0).is_none());
    }
}
