//! The proxy ends a session: between two packets, and not by cutting one.

use super::*;
use crate::relay::parting::{BROKER_CLOSES, HALF_PACKET};

const TO_CLIENT: [u8; 4] = [0xe0, 2, 0x8b, 0];
const TO_BROKER: [u8; 2] = [0xe0, 0];

fn parting() -> Parting {
    Parting {
        cause: "drain",
        to_client: TO_CLIENT.to_vec(),
        to_broker: TO_BROKER.to_vec(),
    }
}

async fn farewell_after(time: Duration) -> Parting {
    sleep(time).await;
    parting()
}

/// A PUBLISH whose body looks like DISCONNECTs all over.
fn packet(body: usize) -> Vec<u8> {
    let mut packet = vec![0x30];
    if body < 128 {
        packet.push(body as u8);
    } else {
        packet.extend([(body % 128) as u8 | 0x80, (body / 128) as u8]);
    }
    packet.extend([0xe0, 0].iter().cycle().take(body));
    packet
}

/// Writes `pieces` with a rest before each, and then nothing more, until it has read up to the end.
async fn peer(stream: DuplexStream, pieces: Vec<(Duration, Vec<u8>)>) -> Vec<u8> {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let write = async {
        for (rest, piece) in pieces {
            sleep(rest).await;
            // The relay takes no more once it has ended.
            if writer.write_all(&piece).await.is_err() {
                break;
            }
        }
        pending::<Vec<u8>>().await
    };
    let read = async {
        let mut received = Vec::new();
        reader.read_to_end(&mut received).await.unwrap();
        received
    };
    tokio::select! {
        received = read => received,
        never = write => never,
    }
}

const REST: Duration = Duration::from_millis(5);

/// Cuts the packets into pieces of these sizes in turn.
fn cut(packets: &[Vec<u8>], sizes: &[usize]) -> Vec<(Duration, Vec<u8>)> {
    let stream = packets.concat();
    let mut rest = &stream[..];
    let mut pieces = Vec::new();
    for (size, pause) in sizes.iter().cycle().zip([true, false, true].iter().cycle()) {
        if rest.is_empty() {
            break;
        }
        let (piece, after) = rest.split_at(rest.len().min(*size));
        pieces.push((if *pause { REST } else { Duration::ZERO }, piece.to_vec()));
        rest = after;
    }
    pieces
}

/// Whether `received` is a number of whole `packets` with `last_words` behind them.
fn ends_between_packets(received: &[u8], packets: &[Vec<u8>], last_words: &[u8]) -> bool {
    let mut whole = Vec::new();
    let mut stream = packets.iter();
    loop {
        if received == [&whole[..], last_words].concat() {
            return true;
        }
        match stream.next() {
            Some(packet) => whole.extend(packet),
            None => return false,
        }
    }
}

fn packets() -> impl Strategy<Value = Vec<Vec<u8>>> {
    prop::collection::vec((0usize..1_500).prop_map(packet), 0..12)
}

fn sizes() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(prop_oneof![3 => 16usize..200, 1 => 1_000usize..5_000], 1..10)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Any packets in any fragmentation in both directions, ended at any time, by any size of buffer.
    #[test]
    fn a_disconnect_lies_on_a_packet_boundary(
        up in packets(), up_sizes in sizes(),
        down in packets(), down_sizes in sizes(),
        known in 0usize..3, moment in 0u64..500, buffer in 1usize..3_000,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        let (ended, (received_down, received_up)) = runtime.block_on(async {
            // As if all but the last `known` bytes of the first packet had been read with the CONNECT.
            let (early_up, late_up) = split_first(&up, known);
            let mut up_framing = Framing::new();
            up_framing.feed(&early_up);
            let start = Start { up: early_up, up_framing, ..Start::default() };
            let settings = Settings { buffer, ..SETTINGS };
            let closing = farewell_after(Duration::from_millis(moment));
            let (up_pieces, down_pieces) = (cut(&[late_up], &up_sizes), cut(&down, &down_sizes));
            over_pipes(start, settings, closing, async |client, broker| {
                tokio::join!(peer(client, up_pieces), peer(broker, down_pieces))
            }).await
        });
        prop_assert_eq!((ended.side, ended.cause), (Side::Proxy, "drain"));
        prop_assert!(ends_between_packets(&received_up, &up, &TO_BROKER), "to the broker");
        prop_assert!(ends_between_packets(&received_down, &down, &TO_CLIENT), "to the client");
    }
}

fn split_first(packets: &[Vec<u8>], known: usize) -> (Vec<u8>, Vec<u8>) {
    let first = packets.first().map_or(0, Vec::len);
    let stream = packets.concat();
    let (early, late) = stream.split_at(first.saturating_sub(known));
    (early.to_vec(), late.to_vec())
}

/// What both sides have when the relay is told to end after a second, each having said `said` by then.
async fn ended_after(said: [&[u8]; 2]) -> ([Vec<u8>; 2], Duration) {
    let told = Instant::now() + Duration::from_secs(1);
    let (_, (down, up)) = over_pipes(
        Start::default(),
        SETTINGS,
        farewell_after(Duration::from_secs(1)),
        async |client, broker| {
            tokio::join!(
                peer(client, vec![(REST, said[0].to_vec())]),
                peer(broker, vec![(REST, said[1].to_vec())])
            )
        },
    )
    .await;
    ([up, down], told.elapsed())
}

/// What client and broker have said, what the broker and the client hear at the end, and whether that takes a second.
type Case<'a> = ([&'a [u8]; 2], [&'a [u8]; 2], bool);

#[tokio::test(start_paused = true)]
async fn the_end_of_a_packet_is_awaited_for_a_second_and_then_that_side_hears_nothing() {
    let whole = packet(20);
    let half = &whole[..10];
    let cases: [Case<'_>; 6] = [
        ([&whole, &whole], [&TO_BROKER, &TO_CLIENT], false),
        ([b"", b""], [&TO_BROKER, &TO_CLIENT], false),
        ([half, &whole], [b"", &TO_CLIENT], true),
        ([&whole, half], [&TO_BROKER, b""], true),
        ([&[0x30], &[0x30, 0x80]], [b"", b""], true),
        // No MQTT any more: there is nothing to wait for.
        ([&[0x30, 0xff, 0xff, 0xff, 0xff], b""], [b"", &TO_CLIENT], false),
    ];
    for (said, words, waits) in cases {
        let (received, took) = ended_after(said).await;
        let expected = [[said[0], words[0]].concat(), [said[1], words[1]].concat()];
        assert_eq!(received, expected, "{said:02x?}");
        let wait = if waits { HALF_PACKET } else { Duration::ZERO };
        assert!(
            (wait..wait + 2 * REST + LINGER).contains(&took),
            "{took:?} for {said:02x?}"
        );
        assert!(waits || took < HALF_PACKET, "{took:?} for {said:02x?}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_has_said_disconnect_is_not_contradicted() {
    for (said, words) in [
        ([&TO_BROKER[..], &[]], [&[][..], &TO_CLIENT[..]]),
        ([&[], &TO_CLIENT[..]], [&TO_BROKER[..], &[]]),
    ] {
        let (received, _) = ended_after(said).await;
        assert_eq!(
            received,
            [[said[0], words[0]].concat(), [said[1], words[1]].concat()]
        );
    }
}

/// A client that is told of the end closes at once: were it told first, its own packet would be cut.
#[tokio::test(start_paused = true)]
async fn nobody_is_told_before_both_are_between_packets() {
    let whole = packet(1_000);
    let (first, second) = whole.split_at(500);
    let pieces = vec![
        (REST, first.to_vec()),
        (Duration::from_millis(700), second.to_vec()),
    ];
    let (end, ((), received)) = over_pipes(
        Start::default(),
        SETTINGS,
        farewell_after(Duration::from_millis(300)),
        async |client, broker| {
            let (mut reader, mut writer) = tokio::io::split(client);
            let device = async {
                tokio::select! {
                    biased;
                    last = reader.read_u8() => drop(last),
                    () = async {
                        for (rest, piece) in pieces {
                            sleep(rest).await;
                            writer.write_all(&piece).await.unwrap();
                        }
                        pending::<()>().await;
                    } => {}
                }
            };
            tokio::join!(device, peer(broker, Vec::new()))
        },
    )
    .await;
    assert_eq!(received, [&whole[..], &TO_BROKER].concat());
    assert_eq!(end.cause, "drain");
}

#[tokio::test(start_paused = true)]
async fn who_leaves_while_its_packet_is_awaited_has_left() {
    for abrupt in [Side::Client, Side::Broker] {
        let begun = Instant::now();
        let half = packet(100)[..50].to_vec();
        let (end, ()) = over_pipes(
            Start::default(),
            SETTINGS,
            farewell_after(Duration::from_millis(100)),
            async |client, broker| {
                let (mut leaves, stays) = match abrupt {
                    Side::Client => (client, broker),
                    _ => (broker, client),
                };
                leaves.write_all(&half).await.unwrap();
                sleep(Duration::from_millis(500)).await;
                drop(leaves);
                assert_eq!(peer(stays, Vec::new()).await, half, "without a word");
            },
        )
        .await;
        assert_eq!((end.side, end.cause), (abrupt, "eof"));
        assert!(begun.elapsed() < HALF_PACKET, "{:?}", begun.elapsed());
    }
}

/// It hears nothing for as long as it takes nothing, and the other side does not wait for it.
#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_holds_up_nobody() {
    let begun = Instant::now();
    let (end, told) = over_pipes(
        Start::default(),
        SETTINGS,
        farewell_after(Duration::from_secs(1)),
        async |client, broker| {
            let packets = cut(&vec![packet(1_000); 100], &[1_000]);
            let received = peer(broker, packets).await;
            let told = begun.elapsed();
            assert_eq!(received, TO_BROKER);
            sleep(Duration::from_secs(100)).await;
            drop(client);
            told
        },
    )
    .await;
    assert_eq!(end.cause, "drain");
    assert!(told <= Duration::from_secs(1) + HALF_PACKET + REST, "{told:?}");
    assert!(begun.elapsed() >= Duration::from_secs(101));
}

/// One that comes back at once would arrive at the broker before its own end.
#[tokio::test(start_paused = true)]
async fn the_client_is_told_when_the_broker_has_closed_or_after_a_while() {
    for (closes_after, told_after) in [
        (Duration::from_millis(700), Duration::from_millis(700)),
        (Duration::from_secs(60), BROKER_CLOSES),
    ] {
        let begun = Instant::now();
        let (end, ()) = over_pipes(
            Start::default(),
            SETTINGS,
            ready(parting()),
            async |client, broker| {
                let (mut reader, mut writer) = tokio::io::split(broker);
                let broker = async {
                    assert_eq!(read_some(&mut reader, 2).await, TO_BROKER);
                    assert!(begun.elapsed() < REST);
                    // What it says after that is for nobody.
                    writer.write_all(&packet(300)).await.unwrap();
                    sleep(closes_after).await;
                    writer.shutdown().await.unwrap();
                };
                let client = async {
                    assert_eq!(peer(client, Vec::new()).await, TO_CLIENT);
                    begun.elapsed()
                };
                let (told, ()) = tokio::join!(client, broker);
                assert!((told_after..told_after + REST).contains(&told), "{told:?}");
            },
        )
        .await;
        assert_eq!((end.side, end.cause), (Side::Proxy, "drain"));
    }
}
