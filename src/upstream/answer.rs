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
    /// CONNECT forwarded, or the client's last answer to an AUTH, to CONNACK received.
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
    /// The client did not bring its authentication to an end; this tells nothing of the broker.
    Unauthenticated(Unauthenticated),
}

/// How an exchange of AUTH packets (MQTT 5.0 section 4.12) came to nothing. The broker did its part: it asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unauthenticated {
    /// The client left the broker's question unanswered for too long.
    Silent,
    /// The broker closed while the client had still to answer.
    GivenUp,
    /// More rounds than are relayed: see `AUTH_ROUNDS`.
    Endless,
}

impl Unauthenticated {
    /// The cause of the end, for the debug line.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Silent => "silent in its authentication",
            Self::GivenUp => "given up in its authentication",
            Self::Endless => "endless authentication",
        }
    }

    /// The reason code of the CONNACK that says so (MQTT 5.0 section 3.2.2.2). "Not authorized" would say more than is
    /// known: a device whose modem was slow would take it for final. A method of more rounds than are relayed is one
    /// that is not supported here.
    pub const fn code(self) -> u8 {
        const UNSPECIFIED_ERROR: u8 = 0x80;
        const BAD_AUTHENTICATION_METHOD: u8 = 0x8C;
        match self {
            Self::Silent | Self::GivenUp => UNSPECIFIED_ERROR,
            Self::Endless => BAD_AUTHENTICATION_METHOD,
        }
    }
}

/// How long each side may take.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// The broker, for its next word: anew each time that it is its turn.
    pub broker: Duration,
    /// The client, for all its answers to AUTH together.
    pub client: Duration,
}

/// Whose word is awaited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Broker,
    /// The broker has asked with an AUTH, and no packet has come since.
    Client,
}

/// Forwards `connect` (and what the client sent behind it, at whose end `framing` stands) and waits for the CONNACK.
/// Meanwhile the client's bytes go up and AUTH packets come down, all of them as they are; each side is waited for only
/// while it is its turn.
pub async fn first_answer<D, U>(
    client: &mut D,
    broker: &mut U,
    connect: Vec<u8>,
    mut framing: Framing,
    version: Version,
    patience: Patience,
) -> Result<Answer, NoAnswer>
where
    D: AsyncRead + AsyncWrite + Unpin,
    U: AsyncRead + AsyncWrite + Unpin,
{
    let mut up = connect;
    let mut down = Vec::new();
    let (mut bytes_up, mut bytes_down) = (0, 0);
    let mut rounds = 0;
    let (mut turn, mut since) = (Turn::Broker, Instant::now());
    let mut allowance = patience.client;
    loop {
        let limit = match turn {
            Turn::Broker => patience.broker,
            Turn::Client => allowance,
        };
        let exchanged = exchange(client, broker, &mut up, &mut framing, &mut down, turn);
        let exchanged = timeout_at(since + limit, exchanged).await;
        let (sent, next) = exchanged
            .unwrap_or(Err(NoAnswer::TimedOut))
            .map_err(|no_answer| blame(no_answer, turn))?;
        bytes_up += sent;
        if next == Next::ClientSpoke {
            allowance = allowance.saturating_sub(since.elapsed());
            (turn, since) = (Turn::Broker, Instant::now());
            continue;
        }
        match connack::observe(&down, version).map_err(|_| NoAnswer::BrokerFailed)? {
            FirstAnswer::Need(_) => {}
            FirstAnswer::Connack {
                code,
                server_keep_alive,
                ..
            } => {
                let latency = since.elapsed();
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
                    return Err(NoAnswer::Unauthenticated(Unauthenticated::Endless));
                }
                let auth: Vec<u8> = down.drain(..length.min(down.len())).collect();
                if turn == Turn::Broker {
                    (turn, since) = (Turn::Client, Instant::now());
                }
                timeout_at(since + allowance, pass_on(client, &auth))
                    .await
                    .map_err(|_| NoAnswer::ClientLeft)??;
                bytes_down += auth.len() as u64;
            }
        }
    }
}

/// What is not said while it is the client's turn is not the broker's to say.
fn blame(no_answer: NoAnswer, turn: Turn) -> NoAnswer {
    match (no_answer, turn) {
        (NoAnswer::TimedOut, Turn::Client) => NoAnswer::Unauthenticated(Unauthenticated::Silent),
        (NoAnswer::BrokerFailed, Turn::Client) => NoAnswer::Unauthenticated(Unauthenticated::GivenUp),
        (other, _) => other,
    }
}

/// Why an exchange paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    BrokerSpoke,
    /// The client, whose turn it was, has sent a whole packet.
    ClientSpoke,
}

/// Moves bytes until the broker has said something new, or the client has answered where that is its turn. How many
/// went up.
async fn exchange<D, U>(
    client: &mut D,
    broker: &mut U,
    up: &mut Vec<u8>,
    framing: &mut Framing,
    down: &mut Vec<u8>,
    turn: Turn,
) -> Result<(u64, Next), NoAnswer>
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
                Poll::Ready(Ok(_)) => return Poll::Ready(Ok((sent, Next::BrokerSpoke))),
                Poll::Pending => {}
            }
            if up.len() >= AHEAD {
                return Poll::Pending;
            }
            let known = up.len();
            match ready!(poll_read_buf(Pin::new(&mut *client), cx, up)) {
                Ok(0) | Err(_) => return Poll::Ready(Err(NoAnswer::ClientLeft)),
                Ok(_) => {
                    let ends_a_packet = follow(framing, up.get(known..).unwrap_or_default());
                    if ends_a_packet && turn == Turn::Client {
                        return Poll::Ready(Ok((sent, Next::ClientSpoke)));
                    }
                }
            }
        }
    })
    .await
}

/// Follows all of `bytes`; whether a packet ends within them.
fn follow(framing: &mut Framing, bytes: &[u8]) -> bool {
    let taken = framing.feed_to_boundary(bytes);
    let ends_a_packet = framing.at_boundary();
    framing.feed(bytes.get(taken..).unwrap_or_default());
    ends_a_packet
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
    const OF_BOTH: Patience = Patience {
        broker: PATIENCE,
        client: PATIENCE,
    };

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
            OF_BOTH,
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

    /// An AUTH that goes on, with the method `M`.
    const AUTH: [u8; 8] = [0xf0, 6, 0x18, 4, 0x15, 0, 1, b'M'];

    /// One AUTH after the other: the pieces of the answer, and the time before each.
    type Answers = Vec<(Duration, &'static [usize])>;

    /// What comes of a client that answers one AUTH after the other in pieces of these lengths, each after this time, and
    /// of a broker that asks until it has them all.
    async fn authenticate(answers: &[(Duration, &[usize])], patience: Patience) -> Result<Answer, NoAnswer> {
        let (mut client, mut downstream) = duplex(1024);
        let (mut upstream, mut broker) = duplex(1024);
        let device = async {
            for (after, pieces) in answers {
                let mut asked = [0; 8];
                client.read_exact(&mut asked).await.unwrap();
                assert_eq!(asked, AUTH);
                let mut answer = &AUTH[..];
                for length in *pieces {
                    let (piece, rest) = answer.split_at(*length);
                    tokio::time::sleep(*after).await;
                    client.write_all(piece).await.unwrap();
                    answer = rest;
                }
            }
            std::future::pending::<()>().await;
        };
        let asking = async {
            let mut bytes = [0; 8];
            broker.read_exact(&mut bytes[..7]).await.unwrap();
            for _ in 0..answers.len() {
                broker.write_all(&AUTH).await.unwrap();
                broker.read_exact(&mut bytes).await.unwrap();
                assert_eq!(bytes, AUTH);
            }
            tokio::time::sleep(Duration::from_millis(3)).await;
            broker.write_all(&[0x20, 3, 0, 0, 0]).await.unwrap();
            std::future::pending::<()>().await;
        };
        let connect = b"CONNECT".to_vec();
        let (framing, version) = (Framing::new(), Version::V5);
        let answering = first_answer(
            &mut downstream,
            &mut upstream,
            connect,
            framing,
            version,
            patience,
        );
        tokio::select! {
            answer = answering => answer,
            () = async { tokio::join!(device, asking); } => unreachable!("both wait for ever"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_silent_in_its_turn_is_waited_for_as_a_client() {
        let second = Duration::from_secs(1);
        let patience = Patience {
            broker: second / 2,
            client: 3 * second,
        };
        let silent = Duration::from_secs(9);
        let cases: [(&str, Answers, Option<Unauthenticated>); 5] = [
            ("slower than the broker may be", vec![(2 * second, &[8])], None),
            ("never", vec![(silent, &[8])], Some(Unauthenticated::Silent)),
            (
                "a part alone",
                vec![(second, &[5])],
                Some(Unauthenticated::Silent),
            ),
            (
                "byte by byte, too slowly",
                vec![(second, &[1, 1, 3, 3])],
                Some(Unauthenticated::Silent),
            ),
            (
                "too slow in all",
                vec![(2 * second, &[8]), (2 * second, &[8])],
                Some(Unauthenticated::Silent),
            ),
        ];
        for (case, answers, end) in cases {
            match (authenticate(&answers, patience).await, end) {
                (Ok(answer), None) => {
                    assert!(answer.latency < second / 2, "{case}: the client's time counts");
                }
                (Err(NoAnswer::Unauthenticated(seen)), Some(end)) => assert_eq!(seen, end, "{case}"),
                (other, _) => panic!("{case}: {other:?}"),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn rounds_have_an_end_that_is_not_the_brokers() {
        let round: (Duration, &[usize]) = (Duration::from_millis(1), &[8]);
        let most = AUTH_ROUNDS as usize;
        let answer = authenticate(&vec![round; most], OF_BOTH).await.unwrap();
        assert_eq!((answer.code, answer.bytes_down), (0, 8 * u64::from(AUTH_ROUNDS)));
        let endless = authenticate(&vec![round; most + 1], OF_BOTH).await;
        assert!(matches!(
            endless,
            Err(NoAnswer::Unauthenticated(Unauthenticated::Endless))
        ));
    }

    /// The broker's own end counts against it only where it owes an answer.
    #[tokio::test(start_paused = true)]
    async fn a_broker_that_closes_has_given_up_only_in_the_clients_turn() {
        for (asks, answers) in [(false, false), (true, false), (true, true)] {
            let (mut client, mut downstream) = duplex(1024);
            let (mut upstream, mut broker) = duplex(1024);
            let serving = async {
                let mut bytes = [0; 8];
                broker.read_exact(&mut bytes[..7]).await.unwrap();
                if asks {
                    broker.write_all(&AUTH).await.unwrap();
                    client.read_exact(&mut bytes).await.unwrap();
                }
                if answers {
                    client.write_all(&AUTH).await.unwrap();
                    broker.read_exact(&mut bytes).await.unwrap();
                }
                drop(broker);
                client
            };
            let connect = b"CONNECT".to_vec();
            let (framing, version) = (Framing::new(), Version::V5);
            let answering = first_answer(&mut downstream, &mut upstream, connect, framing, version, OF_BOTH);
            let (answer, _client) = tokio::join!(answering, serving);
            let given_up = matches!(answer, Err(NoAnswer::Unauthenticated(Unauthenticated::GivenUp)));
            let failed = matches!(answer, Err(NoAnswer::BrokerFailed));
            assert_eq!((given_up, failed), (asks && !answers, !asks || answers));
        }
    }
}
