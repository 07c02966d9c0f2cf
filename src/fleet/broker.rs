//! The broker of demo and tests, in this process: MQTT 3.1, 3.1.1 and 5.0 at QoS 0 and 1, without retained messages,
//! Wills or sessions that outlive a connection. Unlike a real one it has an authentication service of a known pace, and
//! can be told to slow down, refuse, reset or go mute.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::authentication::Service;
pub use super::authentication::{Answer, Behaviour};
use super::packet;
use super::session::{Session, SessionError};
use super::topics::Topics;
use crate::mqtt::Version;
use crate::mqtt::connect::{self, Connect, ConnectError, Progress};

/// Most connections at a time: the descriptors of a process end first.
const MAX_CONNECTIONS: usize = 100_000;
/// Largest CONNECT in bytes: that of the proxy's default `connect.max_size`.
const MAX_CONNECT: usize = 256 * 1024;
/// Accept to CONNECT. Generous: it is not what is on trial.
const CONNECT_DEADLINE: Duration = Duration::from_secs(30);
/// Room for one read: most packets of a trial are smaller.
pub(super) const READ_ROOM: usize = 2048;
/// Out of descriptors: there is no event that says when one is free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How the broker starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Where to listen; port 0 takes a free one.
    pub address: SocketAddr,
    /// Servers of the authentication service that work side by side, at least one.
    pub servers: usize,
    /// How CONNECTs are answered at first.
    pub behaviour: Behaviour,
}

/// What the broker has seen since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Figures {
    /// CONNECTs read.
    pub connects: u64,
    /// CONNECTs that the authentication service has served.
    pub served: u64,
    /// Those of them whose client had left by then: work for nobody.
    pub wasted: u64,
    /// CONNECTs that wait for the service now.
    pub queued: usize,
    /// Clients connected now.
    pub connected: usize,
    /// Messages published by clients.
    pub published: u64,
    /// Copies that a slow subscriber had no room for.
    pub dropped: u64,
}

impl Figures {
    /// What happened since `earlier`; queue and connections are those of now.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            connects: self.connects.saturating_sub(earlier.connects),
            served: self.served.saturating_sub(earlier.served),
            wasted: self.wasted.saturating_sub(earlier.wasted),
            queued: self.queued,
            connected: self.connected,
            published: self.published.saturating_sub(earlier.published),
            dropped: self.dropped.saturating_sub(earlier.dropped),
        }
    }
}

/// A running broker; dropping it closes everything.
#[derive(Debug)]
pub struct Broker {
    address: SocketAddr,
    shared: Arc<Shared>,
    _accepting: JoinSet<()>,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) service: Service,
    pub(super) topics: Topics,
    pub(super) connections: AtomicU64,
    pub(super) connects: AtomicU64,
    pub(super) served: AtomicU64,
    pub(super) wasted: AtomicU64,
    pub(super) published: AtomicU64,
    pub(super) dropped: AtomicU64,
}

impl Broker {
    /// Binds and starts to accept. Errors are the operating system's: the address is taken, or not this machine's.
    pub async fn start(settings: Settings) -> io::Result<Self> {
        let listener = TcpListener::bind(settings.address).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            service: Service::start(settings.servers, settings.behaviour),
            topics: Topics::default(),
            connections: AtomicU64::default(),
            connects: AtomicU64::default(),
            served: AtomicU64::default(),
            wasted: AtomicU64::default(),
            published: AtomicU64::default(),
            dropped: AtomicU64::default(),
        });
        let mut accepting = JoinSet::new();
        accepting.spawn(accept(listener, Arc::clone(&shared)));
        Ok(Self {
            address,
            shared,
            _accepting: accepting,
        })
    }

    /// The bound address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes how CONNECTs are answered, also those that are queued.
    pub fn behave(&self, behaviour: Behaviour) {
        self.shared.service.behave(behaviour);
    }

    /// How CONNECTs are answered now.
    pub fn behaviour(&self) -> Behaviour {
        self.shared.service.behaviour()
    }

    /// What it has seen.
    pub fn figures(&self) -> Figures {
        let shared = &self.shared;
        Figures {
            connects: shared.connects.load(Ordering::Relaxed),
            served: shared.served.load(Ordering::Relaxed),
            wasted: shared.wasted.load(Ordering::Relaxed),
            queued: shared.service.queued(),
            connected: shared.topics.connected(),
            published: shared.published.load(Ordering::Relaxed),
            dropped: shared.dropped.load(Ordering::Relaxed),
        }
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) if connections.len() < MAX_CONNECTIONS => {
                    connections.spawn(serve(stream, Arc::clone(&shared)));
                }
                Ok(_) => {}
                Err(_) => sleep(ACCEPT_PAUSE).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// One connection, from accept to close.
async fn serve(mut stream: TcpStream, shared: Arc<Shared>) {
    // Without it a small answer waits for the peer's delayed acknowledgement; a socket that refuses is already dead.
    if stream.set_nodelay(true).is_err() {
        return;
    }
    let mut incoming = BytesMut::new();
    let read = timeout(CONNECT_DEADLINE, read_connect(&mut stream, &mut incoming)).await;
    let Ok(Ok(Some(connect))) = read else { return };
    shared.connects.fetch_add(1, Ordering::Relaxed);
    let Some(answer) = shared.service.authenticate().await else {
        return;
    };
    shared.served.fetch_add(1, Ordering::Relaxed);
    if has_left(&stream).await {
        shared.wasted.fetch_add(1, Ordering::Relaxed);
        return;
    }
    // The client's end is all that can go wrong from here on, and it ends the connection in any case.
    let _ = follow(answer, stream, incoming, *connect, &shared).await;
}

async fn follow(
    answer: Answer,
    stream: TcpStream,
    incoming: BytesMut,
    connect: Connect,
    shared: &Shared,
) -> Result<(), SessionError> {
    match answer {
        Answer::Accept => Session::run(stream, incoming, connect, shared).await?,
        Answer::Refuse(code) => refuse(stream, code, connect.version).await?,
        Answer::Reset => stream.set_zero_linger()?,
        Answer::Mute => stay_silent(stream, incoming).await?,
    }
    Ok(())
}

/// `None`: refused, or gone.
async fn read_connect(stream: &mut TcpStream, incoming: &mut BytesMut) -> io::Result<Option<Box<Connect>>> {
    loop {
        match connect::read(incoming, MAX_CONNECT) {
            Ok(Progress::Complete(connect, length)) => {
                incoming.advance(length);
                return Ok(Some(connect));
            }
            Ok(Progress::Need(_)) => {}
            Err(error) => {
                if let Some(answer) = answer_to(&error) {
                    stream.write_all(answer).await?;
                }
                return Ok(None);
            }
        }
        incoming.reserve(READ_ROOM);
        if stream.read_buf(incoming).await? == 0 {
            return Ok(None);
        }
    }
}

/// As Mosquitto has it.
fn answer_to(error: &ConnectError) -> Option<&'static [u8]> {
    match error {
        ConnectError::UnsupportedLevel { .. } => Some(&[0x20, 2, 0, 1]),
        ConnectError::EmptyClientId { .. } => Some(&[0x20, 2, 0, 2]),
        _ => None,
    }
}

/// Whether the end of the stream is all that there is to read.
async fn has_left(stream: &TcpStream) -> bool {
    let mut first = [0];
    tokio::select! {
        biased;
        peeked = stream.peek(&mut first) => !matches!(peeked, Ok(1..)),
        () = std::future::ready(()) => false,
    }
}

async fn refuse(mut stream: TcpStream, code: u8, version: Version) -> io::Result<()> {
    let mut out = BytesMut::new();
    packet::write_connack(code, version, &mut out);
    stream.write_all(&out).await?;
    stream.shutdown().await
}

async fn stay_silent(mut stream: TcpStream, mut incoming: BytesMut) -> io::Result<()> {
    loop {
        incoming.clear();
        incoming.reserve(READ_ROOM);
        if stream.read_buf(&mut incoming).await? == 0 {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVED_AT_ONCE: Behaviour = Behaviour {
        service_time: Duration::ZERO,
        answer: Answer::Accept,
    };

    async fn broker(behaviour: Behaviour) -> Broker {
        let address = "127.0.0.1:0".parse().unwrap();
        Broker::start(Settings {
            address,
            servers: 1,
            behaviour,
        })
        .await
        .unwrap()
    }

    async fn dial(broker: &Broker) -> TcpStream {
        TcpStream::connect(broker.address()).await.unwrap()
    }

    async fn exchange(stream: &mut TcpStream, sent: &[u8], expected: &[u8]) {
        stream.write_all(sent).await.unwrap();
        let mut received = vec![0; expected.len()];
        timeout(Duration::from_secs(5), stream.read_exact(&mut received))
            .await
            .expect("no answer")
            .unwrap();
        assert_eq!(received, expected, "{received:02x?}");
    }

    async fn expect_end(stream: &mut TcpStream) {
        let mut rest = Vec::new();
        timeout(Duration::from_secs(5), stream.read_to_end(&mut rest))
            .await
            .expect("still open")
            .unwrap();
        assert_eq!(rest, b"", "{rest:02x?}");
    }

    const CONNECT_3_1: &[u8] = b"\x10\x0f\x00\x06MQIsdp\x03\x02\x00\x3c\x00\x01a";
    const CONNECT_3_1_1: &[u8] = b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x3c\x00\x01b";
    const CONNECT_5: &[u8] = b"\x10\x0e\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x01c";
    const CONNACK_3: &[u8] = b"\x20\x02\x00\x00";
    const CONNACK_5: &[u8] = b"\x20\x0b\x00\x00\x08\x24\x01\x25\x00\x29\x00\x2a\x00";

    #[tokio::test]
    async fn every_version_is_let_in_pinged_and_let_go() {
        let broker = broker(SERVED_AT_ONCE).await;
        for (connect, connack) in [
            (CONNECT_3_1, CONNACK_3),
            (CONNECT_3_1_1, CONNACK_3),
            (CONNECT_5, CONNACK_5),
        ] {
            let mut client = dial(&broker).await;
            exchange(&mut client, connect, connack).await;
            exchange(&mut client, b"\xc0\x00", b"\xd0\x00").await;
            assert_eq!(broker.figures().connected, 1);
            exchange(&mut client, b"\xe0\x00", b"").await;
            expect_end(&mut client).await;
        }
        assert_eq!((broker.figures().connects, broker.figures().wasted), (3, 0));
    }

    #[tokio::test]
    async fn messages_pass_from_version_to_version_at_the_lower_qos() {
        let broker = broker(SERVED_AT_ONCE).await;
        let (mut old, mut new) = (dial(&broker).await, dial(&broker).await);
        exchange(&mut old, CONNECT_3_1_1, CONNACK_3).await;
        exchange(&mut new, CONNECT_5, CONNACK_5).await;
        exchange(
            &mut old,
            b"\x82\x08\x00\x01\x00\x03a/+\x01",
            b"\x90\x03\x00\x01\x01",
        )
        .await;
        exchange(
            &mut new,
            b"\x82\x07\x00\x02\x00\x00\x01#\x00",
            b"\x90\x04\x00\x02\x00\x00",
        )
        .await;

        exchange(
            &mut new,
            b"\x32\x0a\x00\x03a/b\x00\x07\x00xy",
            b"\x40\x02\x00\x07",
        )
        .await;
        exchange(&mut old, b"", b"\x32\x09\x00\x03a/b\x00\x01xy").await;
        exchange(&mut new, b"", b"\x30\x08\x00\x03a/b\x00xy").await;

        exchange(&mut old, b"\xa2\x07\x00\x03\x00\x03a/+", b"\xb0\x02\x00\x03").await;
        exchange(
            &mut new,
            b"\xa2\x09\x00\x04\x00\x00\x01#\x00\x01x",
            b"\xb0\x05\x00\x04\x00\x00\x11",
        )
        .await;
        exchange(&mut new, b"\x30\x07\x00\x03a/b\x00x\xc0\x00", b"\xd0\x00").await;
        exchange(&mut old, b"\xc0\x00", b"\xd0\x00").await;
        assert_eq!(broker.figures().published, 2);
    }

    #[tokio::test]
    async fn what_was_sent_before_the_connack_is_answered_in_order() {
        let broker = broker(SERVED_AT_ONCE).await;
        let mut client = dial(&broker).await;
        let sent = [CONNECT_3_1_1, b"\x82\x06\x00\x01\x00\x01a\x00\xc0\x00"].concat();
        let expected = [CONNACK_3, b"\x90\x03\x00\x01\x00\xd0\x00"].concat();
        exchange(&mut client, &sent, &expected).await;
    }

    #[tokio::test]
    async fn a_connect_byte_by_byte_is_read() {
        let broker = broker(SERVED_AT_ONCE).await;
        let mut client = dial(&broker).await;
        for byte in CONNECT_5 {
            client.write_all(&[*byte]).await.unwrap();
        }
        exchange(&mut client, b"", CONNACK_5).await;
    }

    #[tokio::test]
    async fn a_client_without_an_identifier_is_given_one() {
        let broker = broker(SERVED_AT_ONCE).await;
        let mut client = dial(&broker).await;
        let expected = [
            b"\x20\x18\x00\x00\x15\x24\x01\x25\x00\x12\x00\x0a" as &[u8],
            b"assigned-0",
        ]
        .concat();
        exchange(
            &mut client,
            b"\x10\x0d\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x00",
            &expected,
        )
        .await;
    }

    #[tokio::test]
    async fn it_refuses_resets_and_goes_mute_when_told() {
        let broker = broker(SERVED_AT_ONCE).await;
        let told = |answer| {
            broker.behave(Behaviour {
                service_time: Duration::ZERO,
                answer,
            });
        };

        told(Answer::Refuse(0x89));
        let mut client = dial(&broker).await;
        exchange(&mut client, CONNECT_5, b"\x20\x03\x00\x89\x00").await;
        expect_end(&mut client).await;

        told(Answer::Refuse(3));
        let mut client = dial(&broker).await;
        exchange(&mut client, CONNECT_3_1, b"\x20\x02\x00\x03").await;
        expect_end(&mut client).await;

        told(Answer::Reset);
        let mut client = dial(&broker).await;
        client.write_all(CONNECT_5).await.unwrap();
        let error = client.read(&mut [0; 8]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);

        told(Answer::Mute);
        let mut client = dial(&broker).await;
        client.write_all(CONNECT_5).await.unwrap();
        timeout(Duration::from_millis(100), client.read(&mut [0; 8]))
            .await
            .unwrap_err();

        told(Answer::Accept);
        let mut client = dial(&broker).await;
        exchange(&mut client, CONNECT_5, CONNACK_5).await;
    }

    #[tokio::test]
    async fn a_client_that_left_the_queue_is_served_for_nothing() {
        let broker = broker(Behaviour {
            service_time: Duration::from_millis(200),
            answer: Answer::Accept,
        })
        .await;
        let mut client = dial(&broker).await;
        client.write_all(CONNECT_3_1_1).await.unwrap();
        while broker.figures().connects == 0 {
            tokio::task::yield_now().await;
        }
        drop(client);
        let mut next = dial(&broker).await;
        exchange(&mut next, CONNECT_5, CONNACK_5).await;
        let Figures {
            connects,
            served,
            wasted,
            ..
        } = broker.figures();
        assert_eq!((connects, served, wasted), (2, 2, 1));
    }

    #[tokio::test]
    async fn the_same_client_identifier_ends_the_older_connection() {
        let broker = broker(SERVED_AT_ONCE).await;
        let (mut older, mut newer) = (dial(&broker).await, dial(&broker).await);
        exchange(&mut older, CONNECT_5, CONNACK_5).await;
        exchange(&mut newer, CONNECT_5, CONNACK_5).await;
        expect_end(&mut older).await;
        exchange(&mut newer, b"\xc0\x00", b"\xd0\x00").await;
    }

    #[tokio::test]
    async fn what_is_no_mqtt_is_closed_and_old_levels_are_told() {
        let broker = broker(SERVED_AT_ONCE).await;
        for (sent, expected) in [
            (b"GET / HTTP/1.1\r\n\r\n" as &[u8], b"" as &[u8]),
            (
                b"\x10\x0d\x00\x04MQTT\x02\x02\x00\x00\x00\x01a",
                b"\x20\x02\x00\x01",
            ),
            (
                b"\x10\x0c\x00\x04MQTT\x04\x00\x00\x00\x00\x00",
                b"\x20\x02\x00\x02",
            ),
        ] {
            let mut client = dial(&broker).await;
            exchange(&mut client, sent, expected).await;
            expect_end(&mut client).await;
        }
        let mut client = dial(&broker).await;
        exchange(&mut client, CONNECT_3_1_1, CONNACK_3).await;
        exchange(&mut client, b"\x34\x05\x00\x01a\x00\x01", b"").await;
        expect_end(&mut client).await;
    }
}
