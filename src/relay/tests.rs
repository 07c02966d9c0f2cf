mod parting;

use std::future::{pending, ready};
use std::sync::Arc;

use proptest::prelude::*;
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::scratch::SCRATCH;
use super::*;
use crate::socket::{self, Downstream};

const SETTINGS: Settings = Settings {
    keepalive_factor: 1.5,
    write_timeout: Duration::from_secs(30),
    buffer: 16 * 1024,
    max_age: None,
};

/// Bytes that a pipe of these tests holds: small, so that everything is cut up and stalls.
const PIPE: usize = 64;

fn end(side: Side, cause: &'static str, bytes_up: u64, bytes_down: u64) -> End {
    End {
        side,
        cause,
        bytes_up,
        bytes_down,
    }
}

/// The proxy's wish, without a word to anybody.
fn silently(cause: &'static str) -> Parting {
    Parting {
        cause,
        to_client: Vec::new(),
        to_broker: Vec::new(),
    }
}

fn silent_after(keep_alive: Duration) -> Start {
    Start {
        keep_alive: Some(keep_alive),
        ..Start::default()
    }
}

/// A relay between two pipes, whose other ends `peers` gets.
async fn over_pipes<T, F: Future<Output = T>>(
    start: Start,
    settings: Settings,
    closing: impl Future<Output = Parting>,
    peers: impl FnOnce(DuplexStream, DuplexStream) -> F,
) -> (End, T) {
    let (client, mut downstream) = duplex(PIPE);
    let (broker, mut upstream) = duplex(PIPE);
    let traffic = Traffic::default();
    let relay = async move {
        let end = run(
            &mut downstream,
            &mut upstream,
            start,
            &settings,
            &traffic,
            Box::pin(closing),
        )
        .await;
        drop((downstream, upstream));
        end
    };
    tokio::join!(relay, peers(client, broker))
}

async fn read_all(stream: &mut (impl AsyncRead + Unpin)) -> std::io::Result<Vec<u8>> {
    let mut all = Vec::new();
    stream.read_to_end(&mut all).await.map(|_| all)
}

async fn read_some(stream: &mut (impl AsyncRead + Unpin), length: usize) -> Vec<u8> {
    let mut some = vec![0; length];
    stream.read_exact(&mut some).await.unwrap();
    some
}

fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    std::iter::repeat_with(|| random.u8(..)).take(length).collect()
}

#[tokio::test(start_paused = true)]
async fn what_was_read_before_goes_first_and_counts() {
    let start = Start {
        up: b"first ".to_vec(),
        down: b"connack ".to_vec(),
        ..Start::default()
    };
    let (end_met, ()) = over_pipes(start, SETTINGS, pending(), async |mut client, mut broker| {
        client.write_all(b"second").await.unwrap();
        broker.write_all(b"answer").await.unwrap();
        assert_eq!(read_some(&mut broker, 12).await, b"first second");
        assert_eq!(read_some(&mut client, 14).await, b"connack answer");
    })
    .await;
    assert_eq!(end_met, end(Side::Client, "eof", 12, 14));
}

#[tokio::test(start_paused = true)]
async fn traffic_can_be_read_while_the_relay_runs() {
    let (mut client, mut downstream) = duplex(PIPE);
    let (mut broker, mut upstream) = duplex(PIPE);
    let traffic = Traffic::default();
    let peers = async {
        client.write_all(&[1; 10]).await.unwrap();
        read_some(&mut broker, 10).await;
        assert_eq!(traffic.take(), (10, 0));
        broker.write_all(&[1; 3]).await.unwrap();
        read_some(&mut client, 3).await;
        assert_eq!(traffic.take(), (0, 3));
        drop((client, broker));
    };
    let relay = run(
        &mut downstream,
        &mut upstream,
        Start::default(),
        &SETTINGS,
        &traffic,
        pending(),
    );
    let (end_met, ()) = tokio::join!(relay, peers);
    assert_eq!((end_met.bytes_up, end_met.bytes_down), (10, 3));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_ends_still_gets_the_answer() {
    let sent = noise(5_000, 1);
    let answer = noise(3_000, 2);
    let (end_met, ()) = over_pipes(
        Start::default(),
        SETTINGS,
        pending(),
        async |mut client, mut broker| {
            let client = async {
                client.write_all(&sent).await.unwrap();
                client.shutdown().await.unwrap();
                assert_eq!(read_all(&mut client).await.unwrap(), answer);
            };
            let broker = async {
                assert_eq!(read_all(&mut broker).await.unwrap(), sent);
                broker.write_all(&answer).await.unwrap();
                drop(broker);
            };
            tokio::join!(client, broker);
        },
    )
    .await;
    assert_eq!(end_met, end(Side::Client, "eof", 5_000, 3_000));
}

#[tokio::test(start_paused = true)]
async fn all_that_a_closing_broker_sent_reaches_the_client() {
    let sent = noise(5_000, 3);
    let (end_met, ()) = over_pipes(
        Start::default(),
        SETTINGS,
        pending(),
        async |mut client, mut broker| {
            let broker = async {
                broker.write_all(&sent).await.unwrap();
                drop(broker);
            };
            let client = async {
                sleep(Duration::from_secs(20)).await;
                assert_eq!(read_all(&mut client).await.unwrap(), sent);
            };
            tokio::join!(client, broker);
        },
    )
    .await;
    assert_eq!(end_met, end(Side::Broker, "eof", 0, 5_000));
}

#[tokio::test(start_paused = true)]
async fn a_broker_that_ignores_the_end_of_its_client_holds_it_for_the_linger_only() {
    let begun = Instant::now();
    let (end_met, ()) = over_pipes(
        Start::default(),
        SETTINGS,
        pending(),
        async |mut client, mut broker| {
            client.shutdown().await.unwrap();
            assert_eq!(read_all(&mut broker).await.unwrap(), b"");
            // Goes on for ever, little by little, as if it had not seen it.
            while broker.write_all(b"tick").await.is_ok() {
                sleep(Duration::from_millis(100)).await;
            }
            assert!(!read_all(&mut client).await.unwrap().is_empty());
        },
    )
    .await;
    assert_eq!((end_met.side, end_met.cause), (Side::Client, "eof"));
    assert!(
        begun.elapsed() < LINGER + Duration::from_secs(1),
        "{:?}",
        begun.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn a_client_that_ignores_the_end_of_its_broker_holds_it_for_the_linger_only() {
    let begun = Instant::now();
    let (end_met, ()) = over_pipes(
        Start::default(),
        SETTINGS,
        pending(),
        async |mut client, broker| {
            drop(broker);
            sleep(Duration::from_millis(1)).await;
            while client.write_all(b"tick").await.is_ok() {
                sleep(Duration::from_millis(100)).await;
            }
        },
    )
    .await;
    assert_eq!((end_met.side, end_met.cause), (Side::Broker, "eof"));
    assert!(
        begun.elapsed() < LINGER + Duration::from_secs(1),
        "{:?}",
        begun.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn a_silent_client_is_closed_after_its_keep_alive() {
    let keep_alive = Duration::from_secs(15);
    let begun = Instant::now();
    let (end_met, ()) = over_pipes(
        silent_after(keep_alive),
        SETTINGS,
        pending(),
        async |mut client, mut broker| {
            // Pings keep it, what the broker sends does not.
            for _ in 0..10 {
                sleep(Duration::from_secs(14)).await;
                client.write_all(b"p").await.unwrap();
                broker.write_all(b"r").await.unwrap();
            }
            let heard = Instant::now();
            for _ in 0..3 {
                sleep(Duration::from_secs(4)).await;
                broker.write_all(b"m").await.unwrap();
            }
            assert_eq!(read_all(&mut broker).await.unwrap(), [b'p'; 10]);
            assert_eq!(heard.elapsed().as_millis() / 10, keep_alive.as_millis() / 10);
            assert_eq!(read_all(&mut client).await.unwrap(), b"rrrrrrrrrrmmm");
        },
    )
    .await;
    assert_eq!(end_met, end(Side::Proxy, "keep-alive", 10, 13));
    assert!(
        begun.elapsed() < Duration::from_secs(156),
        "{:?}",
        begun.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn a_client_without_keep_alive_may_be_silent_for_a_year() {
    let (end_met, ()) = over_pipes(
        Start::default(),
        SETTINGS,
        pending(),
        async |mut client, mut broker| {
            sleep(Duration::from_hours(365 * 24)).await;
            client.write_all(b"p").await.unwrap();
            assert_eq!(read_some(&mut broker, 1).await, b"p");
        },
    )
    .await;
    assert_eq!(end_met.cause, "eof");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_not_listened_to_is_not_silent() {
    let start = silent_after(Duration::from_secs(10));
    let sent = noise(SETTINGS.buffer + 2 * PIPE + 1_000, 4);
    let (end_met, ()) = over_pipes(start, SETTINGS, pending(), async |mut client, mut broker| {
        let client = async {
            client.write_all(&sent).await.unwrap();
            sleep(Duration::from_secs(9)).await;
            drop(client);
        };
        let broker = async {
            sleep(Duration::from_secs(25)).await;
            assert_eq!(read_all(&mut broker).await.unwrap(), sent);
        };
        tokio::join!(client, broker);
    })
    .await;
    assert_eq!((end_met.side, end_met.cause), (Side::Client, "eof"));
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_takes_nothing_is_closed_after_the_write_timeout() {
    for (cause, client_is_stuck) in [("client-write-timeout", true), ("broker-write-timeout", false)] {
        let begun = Instant::now();
        let (end_met, ()) = over_pipes(Start::default(), SETTINGS, pending(), async |client, broker| {
            let (mut stuck, mut sender) = if client_is_stuck {
                (client, broker)
            } else {
                (broker, client)
            };
            stuck.write_all(b"I am well").await.unwrap();
            sender.write_all(&[0; 2 * PIPE]).await.unwrap();
            assert_eq!(read_all(&mut sender).await.unwrap(), b"I am well");
            assert_eq!(begun.elapsed().as_secs(), SETTINGS.write_timeout.as_secs());
            drop(sender);
            sleep(Duration::from_secs(100)).await;
        })
        .await;
        assert_eq!((end_met.side, end_met.cause), (Side::Proxy, cause));
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_but_steady_reader_is_kept() {
    let sent = noise(20 * PIPE, 5);
    let (end_met, ()) = over_pipes(
        Start::default(),
        SETTINGS,
        pending(),
        async |mut client, mut broker| {
            let broker = async {
                broker.write_all(&sent).await.unwrap();
                drop(broker.flush().await);
                broker
            };
            let client = async {
                for byte in &sent[..sent.len() - PIPE] {
                    sleep(SETTINGS.write_timeout.mul_f64(0.97)).await;
                    assert_eq!(client.read_u8().await.unwrap(), *byte);
                }
                client
            };
            tokio::join!(client, broker);
        },
    )
    .await;
    assert_ne!(end_met.side, Side::Proxy);
}

#[tokio::test(start_paused = true)]
async fn on_the_proxys_wish_what_was_read_is_delivered_and_both_are_closed() {
    let sent = noise(3 * PIPE, 6);
    let closing = async {
        sleep(Duration::from_secs(3)).await;
        silently("drain")
    };
    let (end_met, ()) = over_pipes(
        Start::default(),
        SETTINGS,
        closing,
        async |mut client, mut broker| {
            broker.write_all(&sent).await.unwrap();
            assert_eq!(read_all(&mut broker).await.unwrap(), b"");
            client.write_all(b"too late").await.unwrap();
            assert_eq!(read_all(&mut client).await.unwrap(), sent);
        },
    )
    .await;
    assert_eq!(end_met, end(Side::Proxy, "drain", 0, sent.len() as u64));
}

#[tokio::test(start_paused = true)]
async fn a_wish_that_is_there_from_the_start_is_followed() {
    let start = Start {
        up: b"subscribe".to_vec(),
        ..Start::default()
    };
    let (end_met, ()) = over_pipes(
        start,
        SETTINGS,
        ready(silently("max-age")),
        async |mut client, mut broker| {
            assert_eq!(read_all(&mut broker).await.unwrap(), b"subscribe");
            assert_eq!(read_all(&mut client).await.unwrap(), b"");
        },
    )
    .await;
    assert_eq!(end_met, end(Side::Proxy, "max-age", 9, 0));
}

#[tokio::test(start_paused = true)]
async fn a_sender_gets_rid_of_a_bounded_number_of_bytes() {
    for buffer in [1, 100, SCRATCH, 3 * SCRATCH + 1] {
        let settings = Settings { buffer, ..SETTINGS };
        let (_, taken) = over_pipes(Start::default(), settings, pending(), async |client, broker| {
            let mut taken = [0, 0];
            for (sender, taken) in [client, broker].iter_mut().zip(&mut taken) {
                while let Ok(Ok(length)) = timeout(Duration::from_secs(1), sender.write(&[0; 1_000])).await {
                    *taken += length;
                }
            }
            taken
        })
        .await;
        assert_eq!(taken, [buffer + 2 * PIPE; 2], "buffer {buffer}");
    }
}

#[test]
fn a_relay_needs_little_more_than_its_two_directions() {
    let (mut downstream, mut upstream) = (duplex(1).0, duplex(1).0);
    let traffic = Traffic::default();
    let relay = run(
        &mut downstream,
        &mut upstream,
        Start::default(),
        &SETTINGS,
        &traffic,
        pending::<Parting>(),
    );
    let size = size_of_val(&relay);
    assert!(size <= 1_024, "{size}");
}

/// Writes and reads in random pieces with random rests, and ends when the other side is done as well.
async fn play(stream: DuplexStream, payload: &[u8], expected: &[u8], seed: u64, done: &tokio::sync::Barrier) {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let write = async {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut rest = payload;
        while !rest.is_empty() {
            let (piece, left) = rest.split_at(random.usize(1..=rest.len().min(3_000)));
            writer.write_all(piece).await.unwrap();
            rest = left;
            if random.u8(..4) == 0 {
                sleep(Duration::from_millis(random.u64(1..2_000))).await;
            }
        }
    };
    let read = async {
        let mut random = fastrand::Rng::with_seed(!seed);
        let mut all = Vec::<u8>::new();
        while all.len() < expected.len() {
            let mut piece = vec![0; random.usize(1..3_000)];
            let length = reader.read(&mut piece).await.unwrap();
            assert_ne!(length, 0, "cut short at {} of {}", all.len(), expected.len());
            all.extend(&piece[..length]);
            if random.u8(..4) == 0 {
                sleep(Duration::from_millis(random.u64(1..2_000))).await;
            }
        }
        assert!(all == expected, "not what was sent");
    };
    tokio::join!(write, read);
    done.wait().await;
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_in_any_pieces_come_out_the_same(
        up in 0_usize..60_000, down in 0_usize..60_000, before in 0_usize..2_000,
        buffer in 1_usize..40_000, pipe in 1_usize..5_000, seed in any::<u64>(),
    ) {
        let [from_client, from_broker] = [noise(before + up, seed), noise(before + down, !seed)];
        let ((start_up, up), (start_down, down)) = (from_client.split_at(before), from_broker.split_at(before));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        let end_met = runtime.unwrap().block_on(async {
            let (client, mut downstream) = duplex(pipe);
            let (broker, mut upstream) = duplex(pipe);
            let settings = Settings { buffer, ..SETTINGS };
            let traffic = Traffic::default();
            let start = Start { up: start_up.to_vec(), down: start_down.to_vec(), ..Start::default() };
            let relay = run(&mut downstream, &mut upstream, start, &settings, &traffic, pending());
            let done = tokio::sync::Barrier::new(2);
            let client = play(client, up, &from_broker, seed, &done);
            let broker = play(broker, down, &from_client, seed.rotate_left(32), &done);
            tokio::join!(relay, client, broker).0
        });
        prop_assert_eq!(end_met.cause, "eof");
        prop_assert_eq!((end_met.bytes_up, end_met.bytes_down), ((before + up.len()) as u64, (before + down.len()) as u64));
    }
}

/// Two ends of a TCP connection.
async fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (client, server) = tokio::join!(
        TcpStream::connect(listener.local_addr().unwrap()),
        listener.accept()
    );
    (client.unwrap(), server.unwrap().0)
}

struct Tls {
    connector: TlsConnector,
    acceptor: TlsAcceptor,
}

impl Tls {
    fn new() -> Self {
        let rcgen::CertifiedKey { cert, signing_key } =
            rcgen::generate_simple_self_signed(["broker.test".to_string()]).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(cert.der().clone()).unwrap();
        let client = ClientConfig::builder()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let key = PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap();
        let server = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![cert.der().clone()], key)
            .unwrap();
        Self {
            connector: Arc::new(client).into(),
            acceptor: Arc::new(server).into(),
        }
    }

    async fn pair<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        client: S,
        server: S,
    ) -> (
        tokio_rustls::client::TlsStream<S>,
        tokio_rustls::server::TlsStream<S>,
    ) {
        let name = ServerName::try_from("broker.test").unwrap();
        let (client, server) =
            tokio::join!(self.connector.connect(name, client), self.acceptor.accept(server));
        (client.unwrap(), server.unwrap())
    }
}

#[tokio::test]
async fn every_kind_of_end_sends_close_notify() {
    let tls = Tls::new();
    let settings = Settings {
        write_timeout: Duration::from_millis(300),
        ..SETTINGS
    };
    let cases = [
        (Side::Broker, "eof"),
        (Side::Broker, "reset"),
        (Side::Proxy, "keep-alive"),
        (Side::Proxy, "drain"),
        (Side::Proxy, "broker-write-timeout"),
    ];
    for (side, cause) in cases {
        let (client, server) = tcp_pair().await;
        let (mut client, mut downstream) = tls.pair(client, server).await;
        let (mut broker, mut upstream) = tcp_pair().await;
        let keep_alive = (cause == "keep-alive").then_some(Duration::from_millis(100));
        let start = Start {
            keep_alive,
            ..Start::default()
        };
        let traffic = Traffic::default();
        let (told, wish) = tokio::sync::oneshot::channel();
        let relay = run(
            &mut downstream,
            &mut upstream,
            start,
            &settings,
            &traffic,
            Box::pin(async { wish.await.unwrap_or_else(|_| silently("never")) }),
        );
        let peers = async {
            broker.write_all(b"last words").await.unwrap();
            assert_eq!(read_some(&mut client, 10).await, b"last words");
            let mut broker = Some(broker);
            let mut told = Some(told);
            match cause {
                "eof" => drop(broker.take()),
                "reset" => {
                    let broker = broker.take().unwrap();
                    SockRef::from(&broker).set_linger(Some(Duration::ZERO)).unwrap();
                }
                "drain" => told.take().unwrap().send(silently("drain")).unwrap(),
                _ => {}
            }
            let (mut reading, mut writing) = tokio::io::split(&mut client);
            let flood = async {
                // Until nobody takes more, however slow the machine is: only then is the broker too slow.
                let flood = vec![0; 1 << 16];
                while cause == "broker-write-timeout" && writing.write_all(&flood).await.is_ok() {}
                pending::<()>().await;
            };
            let rest = tokio::select! {
                rest = read_all(&mut reading) => rest,
                () = flood => unreachable!(),
            };
            drop((client, broker, told));
            rest
        };
        let (end_met, rest) = tokio::join!(relay, peers);
        assert_eq!((end_met.side, end_met.cause), (side, cause));
        assert_eq!(rest.unwrap_or_else(|error| panic!("{cause}: {error}")), b"");
    }
}

/// Closes with a reset, as a client that is killed with unread input does.
fn reset(stream: TcpStream) {
    SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
    drop(stream);
}

/// The client's last bytes and then a reset, while the broker pushes messages at it: writing to the client fails while
/// there are still bytes of it to be read. What the kernel's window takes at once cannot be lost by the client's kernel.
#[tokio::test]
async fn nothing_that_a_client_sent_before_its_reset_is_lost() {
    let tls = Tls::new();
    let mut random = fastrand::Rng::with_seed(7);
    for round in 0..300 {
        let sent = noise(random.usize(1..30_000), round);
        let pushed = noise(random.usize(0..3_000), round);
        let (client, server) = tcp_pair().await;
        let (mut client, mut downstream) = tls.pair(client, server).await;
        let (mut broker, mut upstream) = tcp_pair().await;
        let traffic = Traffic::default();
        let relay = run(
            &mut downstream,
            &mut upstream,
            Start::default(),
            &SETTINGS,
            &traffic,
            pending(),
        );
        let last_words = async {
            client.write_all(&sent).await.unwrap();
            client.flush().await.unwrap();
            reset(client.into_inner().0);
        };
        let receive = async |mut broker: TcpStream| read_all(&mut broker).await.unwrap();
        let (end_met, received) = match round % 3 {
            // All of it, reset included, lies in the kernel when the relay begins.
            0 => {
                last_words.await;
                broker.write_all(&pushed).await.unwrap();
                tokio::join!(relay, receive(broker))
            }
            // The relay is at it already, and has something for the client.
            1 => {
                let peers = async {
                    broker.write_all(&pushed).await.unwrap();
                    last_words.await;
                    receive(broker).await
                };
                tokio::join!(relay, peers)
            }
            // The broker is slow to read, and pushes on.
            _ => {
                let peers = async {
                    last_words.await;
                    for piece in pushed.chunks(100) {
                        broker.write_all(piece).await.unwrap();
                        tokio::task::yield_now().await;
                    }
                    receive(broker).await
                };
                tokio::join!(relay, peers)
            }
        };
        assert!(
            received == sent,
            "round {round}: {} of {} bytes",
            received.len(),
            sent.len()
        );
        assert_eq!(end_met.side, Side::Client, "round {round}: {}", end_met.cause);
    }
}

/// More than the relay may hold lies in the kernel behind the reset, and the broker takes its time.
#[tokio::test]
async fn a_slow_broker_still_gets_all_that_lies_behind_a_reset() {
    let (mut client, mut downstream) = tcp_pair().await;
    let (mut broker, mut upstream) = duplex(1_000);
    let traffic = Traffic::default();
    let sent = noise(40_000, 8);
    client.write_all(&sent).await.unwrap();
    reset(client);
    let settings = Settings {
        buffer: 2_000,
        ..SETTINGS
    };
    let relay = run(
        &mut downstream,
        &mut upstream,
        Start::default(),
        &settings,
        &traffic,
        pending(),
    );
    let peer = async {
        broker.write_all(b"a message").await.unwrap();
        let mut received = Vec::new();
        while received.len() < sent.len() {
            received.extend(read_some(&mut broker, 1_000).await);
            sleep(Duration::from_millis(2)).await;
        }
        assert_eq!(read_all(&mut broker).await.unwrap(), b"");
        drop(broker);
        received
    };
    let (end_met, received) = tokio::join!(relay, peer);
    assert!(received == sent);
    assert_eq!((end_met.side, end_met.cause), (Side::Client, "reset"));
}

#[tokio::test]
async fn nothing_that_a_broker_sent_before_its_reset_is_lost() {
    let tls = Tls::new();
    for round in 0..30 {
        let sent = noise(1_000 * (round as usize + 1), round);
        let (client, server) = tcp_pair().await;
        let (mut client, mut downstream) = tls.pair(client, server).await;
        let (mut broker, mut upstream) = tcp_pair().await;
        let traffic = Traffic::default();
        broker.write_all(&sent).await.unwrap();
        reset(broker);
        client.write_all(b"a message for nobody").await.unwrap();
        let relay = run(
            &mut downstream,
            &mut upstream,
            Start::default(),
            &SETTINGS,
            &traffic,
            pending(),
        );
        let peer = async {
            let all = read_all(&mut client).await;
            drop(client);
            all
        };
        let (end_met, received) = tokio::join!(relay, peer);
        assert!(
            received.expect("a clean end of the session") == sent,
            "round {round}"
        );
        assert_eq!(end_met.side, Side::Broker);
    }
}

/// A unix socket resets its peer when it is closed with unread input.
#[tokio::test]
async fn a_broker_on_a_unix_socket_is_served_alike() {
    let (mut broker, mut upstream) = tokio::net::UnixStream::pair().unwrap();
    let (mut client, mut downstream) = tcp_pair().await;
    let traffic = Traffic::default();
    let relay = run(
        &mut downstream,
        &mut upstream,
        Start::default(),
        &SETTINGS,
        &traffic,
        pending(),
    );
    let peers = async {
        client.write_all(b"ping").await.unwrap();
        assert_eq!(read_some(&mut broker, 4).await, b"ping");
        client.write_all(b"unread").await.unwrap();
        broker.write_all(b"goodbye").await.unwrap();
        broker.readable().await.unwrap();
        drop(broker);
        assert_eq!(read_all(&mut client).await.unwrap(), b"goodbye");
        drop(client);
    };
    let (end_met, ()) = tokio::join!(relay, peers);
    assert_eq!(end_met.side, Side::Broker);
}

/// TLS says that it took bytes which it still holds: they count as waiting, and are sent when there is room again.
#[tokio::test(start_paused = true)]
async fn what_tls_holds_back_is_bounded_and_not_forgotten() {
    const BUFFER: usize = 5_000;
    let tls = Tls::new();
    let (client, server) = duplex(2_000);
    let (mut client, mut downstream) = tls.pair(client, server).await;
    let (mut broker, mut upstream) = duplex(PIPE);
    let traffic = Traffic::default();
    let settings = Settings {
        buffer: BUFFER,
        ..SETTINGS
    };
    let relay = run(
        &mut downstream,
        &mut upstream,
        Start::default(),
        &settings,
        &traffic,
        pending(),
    );
    let peers = async {
        let sent = noise(100_000, 9);
        let mut taken = 0;
        while let Ok(Ok(length)) = timeout(Duration::from_secs(1), broker.write(&sent[taken..])).await {
            taken += length;
        }
        // In the pipe on either side, and in the relay; a record has its own overhead.
        assert!((BUFFER..=BUFFER + 2_000 + PIPE).contains(&taken), "{taken}");
        // Nothing but the room in the pipe tells the relay to go on: the broker is silent now.
        assert!(read_some(&mut client, taken).await == sent[..taken]);
        drop((client, broker));
    };
    tokio::join!(relay, peers);
}

/// On sockets as the listener sets them: the kernel's own buffer must not hide that a slow reader makes progress.
#[tokio::test]
async fn a_slow_tls_client_is_kept_and_a_stuck_one_is_not() {
    let tls = Tls::new();
    for (rest, kept) in [
        (Duration::from_millis(50), true),
        (Duration::from_hours(1), false),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        socket::bound_unsent(&SockRef::from(&listener)).unwrap();
        let device = tokio::net::TcpSocket::new_v4().unwrap();
        device.set_recv_buffer_size(32 * 1024).unwrap();
        let (client, server) =
            tokio::join!(device.connect(listener.local_addr().unwrap()), listener.accept());
        let (mut client, mut downstream) = tls.pair(client.unwrap(), server.unwrap().0).await;
        let mut downstream = Downstream(&mut downstream);
        let (mut broker, mut upstream) = tcp_pair().await;
        let traffic = Traffic::default();
        let settings = Settings {
            write_timeout: Duration::from_secs(2),
            ..SETTINGS
        };
        let relay = run(
            &mut downstream,
            &mut upstream,
            Start::default(),
            &settings,
            &traffic,
            pending(),
        );
        let peers = async {
            let (mut from_relay, mut to_relay) = broker.split();
            let flood = vec![0; 16 << 20];
            let read = async {
                for _ in 0..100 {
                    sleep(rest).await;
                    read_some(&mut client, 4_000).await;
                }
            };
            tokio::select! {
                () = read => {}
                end = read_all(&mut from_relay) => assert_eq!(end.unwrap(), b""),
                _ = async { (to_relay.write_all(&flood).await, pending::<()>().await) } => {}
            }
            drop((client, broker));
        };
        let (end_met, ()) = tokio::join!(relay, peers);
        assert_eq!(end_met.cause == "client-write-timeout", !kept, "{end_met:?}");
    }
}

/// A record may take longer than the write timeout to be read: what counts is that some of it goes out. As 300 B/s are to
/// the default of 30 s.
#[tokio::test]
async fn a_client_that_takes_a_record_in_many_write_timeouts_is_kept() {
    let tls = Tls::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    socket::bound_unsent(&SockRef::from(&listener)).unwrap();
    let device = tokio::net::TcpSocket::new_v4().unwrap();
    device.set_recv_buffer_size(4 * 1024).unwrap();
    let (client, server) = tokio::join!(device.connect(listener.local_addr().unwrap()), listener.accept());
    let (mut client, mut downstream) = tls.pair(client.unwrap(), server.unwrap().0).await;
    let mut downstream = Downstream(&mut downstream);
    let (mut broker, mut upstream) = tcp_pair().await;
    let traffic = Traffic::default();
    let settings = Settings {
        write_timeout: Duration::from_secs(1),
        ..SETTINGS
    };
    let relay = run(
        &mut downstream,
        &mut upstream,
        Start::default(),
        &settings,
        &traffic,
        pending(),
    );
    let peers = async {
        let (mut from_relay, mut to_relay) = broker.split();
        let flood = vec![0; 16 << 20];
        let read = async {
            let (socket, _) = client.get_mut();
            let mut piece = [0; 900];
            for _ in 0..60 {
                sleep(Duration::from_millis(100)).await;
                let _ = socket.read(&mut piece).await.unwrap();
            }
        };
        tokio::select! {
            () = read => {}
            end = read_all(&mut from_relay) => assert_eq!(end.unwrap(), b"", "cut off"),
            _ = async { (to_relay.write_all(&flood).await, pending::<()>().await) } => {}
        }
        drop((client, broker));
    };
    let (end_met, ()) = tokio::join!(relay, peers);
    assert_ne!(end_met.cause, "client-write-timeout");
}
