//! From the forwarded CONNECT to the broker's CONNACK.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, timeout_at};
use tokio_util::io::poll_read_buf;

use crate::mqtt::Version;
use crate::mqtt::connack::{self, FirstAnswer};
use crate::mqtt::framing::Framing;
use crate::tls::connector::{self, ConnectError};

/// Rounds of AUTH before the CONNACK: SCRAM needs two, Kerberos three; past this it is a loop.
const AUTH_ROUNDS: u32 = 16;

/// Most bytes of a client that are read ahead of its CONNACK and wait for the broker to take them. Clients may send
/// before they are answered (MQTT 5.0 section 3.1.4); what does not fit waits in the client's own socket.
const AHEAD: usize = 16 * 1024;

/// The broker's CONNACK.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    /// Return or reason code.
    pub code: u8,
    /// CONNECT forwarded to CONNACK received.
    pub latency: Duration,
    /// Server Keep Alive in seconds (5.0), which replaces the client's.
    pub server_keep_alive: Option<u16>,
    /// Bytes that went to the broker: the CONNECT, and what the client sent behind it.
    pub bytes_up: u64,
    /// Bytes that went to the client: AUTH packets.
    pub bytes_down: u64,
    /// The client's bytes that the broker has not taken yet.
    pub up: Vec<u8>,
    /// Where the client's packets stand behind all that was read of it.
    pub up_framing: Framing,
    /// The CONNACK and what came behind it, for the client.
    pub down: Vec<u8>,
}

/// No CONNACK came.
#[derive(Debug)]
pub enum NoAnswer {
    /// The broker closed, reset, or sent what is no answer to a CONNECT.
    BrokerFailed,
    /// The broker ended TLS with a word: in TLS 1.3 it says so late that it does not like our certificate.
    BrokeTls(ConnectError),
    /// The broker stayed silent.
    TimedOut,
    /// The client left.
    ClientLeft,
}

/// Forwards `connect` (and what the client sent behind it, at whose end `framing` stands) and waits at most `patience`
/// for the CONNACK, anew with each AUTH round. Meanwhile the client's bytes go up and AUTH packets come down, all of them as they are.
pub async fn first_answer<D, U>(
    client: &mut D,
    broker: &mut U,
    connect: Vec<u8>,
    mut framing: Framing,
    version: Version,
    patience: Duration,
) -> Result<Answer, NoAnswer>
where
    D: AsyncRead + AsyncWrite + Unpin,
    U: AsyncRead + AsyncWrite + Unpin,
{
    let mut forwarded = Instant::now();
    let mut up = connect;
    let mut down = Vec::new();
    let (mut bytes_up, mut bytes_down) = (0, 0);
    let mut rounds = 0;
    loop {
        let deadline = forwarded + patience;
        let exchanged = exchange(client, broker, &mut up, &mut framing, &mut down);
        bytes_up += timeout_at(deadline, exchanged)
            .await
            .map_err(|_| NoAnswer::TimedOut)??;
        match connack::observe(&down, version).map_err(|_| NoAnswer::BrokerFailed)? {
            FirstAnswer::Need(_) => {}
            FirstAnswer::Connack {
                code,
                server_keep_alive,
                ..
            } => {
                let latency = forwarded.elapsed();
                return Ok(Answer {
                    code,
                    latency,
                    server_keep_alive,
                    bytes_up,
                    bytes_down,
                    up,
                    up_framing: framing,
                    down,
                });
            }
            FirstAnswer::Auth { length } => {
                rounds += 1;
                if rounds > AUTH_ROUNDS {
                    return Err(NoAnswer::BrokerFailed);
                }
                let auth: Vec<u8> = down.drain(..length.min(down.len())).collect();
                timeout_at(deadline, pass_on(client, &auth))
                    .await
                    .map_err(|_| NoAnswer::ClientLeft)??;
                bytes_down += auth.len() as u64;
                forwarded = Instant::now();
            }
        }
    }
}

/// Moves bytes until the broker has said something new. How many went up.
async fn exchange<D, U>(
    client: &mut D,
    broker: &mut U,
    up: &mut Vec<u8>,
    framing: &mut Framing,
    down: &mut Vec<u8>,
) -> Result<u64, NoAnswer>
where
    D: AsyncRead + Unpin,
    U: AsyncRead + AsyncWrite + Unpin,
{
    let mut sent = 0;
    // A TLS stream says "taken" with ciphertext still unsent, also when it returned the last time.
    let mut unflushed = true;
    poll_fn(|cx| {
        loop {
            while !up.is_empty() {
                match Pin::new(&mut *broker).poll_write(cx, up) {
                    Poll::Ready(Ok(count)) if count > 0 => {
                        up.drain(..count);
                        sent += count as u64;
                        unflushed = true;
                    }
                    Poll::Ready(Ok(_)) => return Poll::Ready(Err(NoAnswer::BrokerFailed)),
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(of_broker(&error))),
                    Poll::Pending => break,
                }
            }
            if unflushed {
                match Pin::new(&mut *broker).poll_flush(cx) {
                    Poll::Ready(Ok(())) => unflushed = false,
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(of_broker(&error))),
                    Poll::Pending => {}
                }
            }
            match poll_read_buf(Pin::new(&mut *broker), cx, down) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(NoAnswer::BrokerFailed)),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(of_broker(&error))),
                Poll::Ready(Ok(_)) => return Poll::Ready(Ok(sent)),
                Poll::Pending => {}
            }
            if up.len() >= AHEAD {
                return Poll::Pending;
            }
            let known = up.len();
            match ready!(poll_read_buf(Pin::new(&mut *client), cx, up)) {
                Ok(0) | Err(_) => return Poll::Ready(Err(NoAnswer::ClientLeft)),
                Ok(_) => framing.feed(up.get(known..).unwrap_or_default()),
            }
        }
    })
    .await
}

fn of_broker(error: &io::Error) -> NoAnswer {
    connector::broken_off(error).map_or(NoAnswer::BrokerFailed, NoAnswer::BrokeTls)
}

async fn pass_on<D: AsyncWrite + Unpin>(client: &mut D, bytes: &[u8]) -> Result<(), NoAnswer> {
    let written = async {
        client.write_all(bytes).await?;
        client.flush().await
    };
    written.await.map_err(|_| NoAnswer::ClientLeft)
}

/// Most bytes of a broker that are read for a client which has left: its CONNACK and what may follow it at once.
const PARTING_BYTES: usize = 64 * 1024;

/// What is left to do when the client has left before its CONNACK: the broker has the CONNECT and works on it, so the
/// place in flight is taken until it has answered, closed, or `patience` has passed; only then `settle` is called. Our
/// FIN goes out at once and the answer is read, since a close with unread input would reset what the client sent last.
pub async fn see_out<U>(mut broker: U, patience: Duration, settle: impl FnOnce())
where
    U: AsyncRead + AsyncWrite + Unpin,
{
    let deadline = Instant::now() + patience;
    let mut dropped = Vec::new();
    // A broker that does not take our FIN any more has closed: the read says so.
    let _ = timeout_at(deadline, broker.shutdown()).await;
    let answered = timeout_at(deadline, broker.read_buf(&mut dropped)).await;
    settle();
    let mut open = matches!(answered, Ok(Ok(count)) if count > 0);
    while open && dropped.len() < PARTING_BYTES {
        let read = timeout_at(deadline, broker.read_buf(&mut dropped)).await;
        open = matches!(read, Ok(Ok(count)) if count > 0);
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{BufStream, duplex};
    use tokio::time::timeout;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(5);

    /// A TLS stream keeps what the socket did not take until it is flushed; so does this one, of all that it gets.
    #[tokio::test]
    async fn what_a_stream_keeps_to_itself_is_flushed() {
        let (mut client, mut downstream) = duplex(1024);
        let (upstream, mut broker) = duplex(1024);
        let mut upstream = BufStream::new(upstream);
        let serving = async {
            let mut bytes = [0; 7];
            broker.read_exact(&mut bytes).await.unwrap();
            assert_eq!(&bytes, b"CONNECT");
            client.write_all(b"behind").await.unwrap();
            broker.read_exact(&mut bytes[..6]).await.unwrap();
            assert_eq!(&bytes[..6], b"behind");
            broker.write_all(&[0x20, 2, 0, 0]).await.unwrap();
            (client, broker)
        };
        let connect = b"CONNECT".to_vec();
        let answering = first_answer(
            &mut downstream,
            &mut upstream,
            connect,
            Framing::new(),
            Version::V3_1_1,
            PATIENCE,
        );
        let both = async { tokio::join!(answering, serving) };
        let (answer, _peers) = timeout(PATIENCE, both).await.expect("nothing is kept back");
        let answer = answer.unwrap();
        assert_eq!((answer.code, answer.bytes_up, answer.up.len()), (0, 13, 0));
    }

    /// The same of a client that has left: its bytes and our good-bye reach the broker.
    #[tokio::test]
    async fn who_has_left_is_seen_out_with_all_that_it_sent() {
        let (upstream, mut broker) = duplex(1024);
        let mut upstream = BufStream::new(upstream);
        upstream.write_all(b"CONNECT").await.unwrap();
        let (settled, mut is_settled) = tokio::sync::oneshot::channel();
        let seeing = see_out(upstream, PATIENCE, || settled.send(()).unwrap());
        let serving = async {
            let mut bytes = Vec::new();
            broker.read_to_end(&mut bytes).await.unwrap();
            assert_eq!(bytes, b"CONNECT");
            assert!(is_settled.try_recv().is_err(), "the broker works on it");
            broker.write_all(&[0x20, 2, 0, 0]).await.unwrap();
            is_settled.await.unwrap();
            drop(broker);
        };
        let both = async { tokio::join!(seeing, serving) };
        timeout(PATIENCE, both).await.expect("nothing is kept back");
    }
}
