//! Messages on their way while a replica is drained, with real Mosquitto behind: at QoS 1 none is lost.

use super::fleet::{replicas, resuming};
use crate::rig::device::{hex, read_packet};
use crate::rig::mosquitto::Mosquitto;
use crate::rig::packet::{puback, publish, published, subscribe};
use crate::rig::{Connect, Device, PATIENCE, Scene, eventually, report, within};
use rustix::process::Signal;
use rustls::ClientConfig;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncWriteExt, BufReader, WriteHalf};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_rustls::client::TlsStream;

/// Devices of each kind.
const DEVICES: usize = 12;

/// Of those that publish, so many send 1 MiB at a time, and have it sent back to them.
const LARGE: usize = 4;

/// Unanswered at a time: fewer than Mosquitto's Receive Maximum of 20.
const WINDOW: usize = 10;

/// Between two messages of a device.
const REST: Duration = Duration::from_millis(5);

/// A session whose packets are read by a task of their own.
struct Session {
    packets: mpsc::Receiver<Vec<u8>>,
    writer: WriteHalf<TlsStream<TcpStream>>,
}

impl Session {
    async fn join(address: SocketAddr, tls: &Arc<ClientConfig>, connect: Connect<'_>) -> Self {
        let mut device = Device::dial_with(address, Arc::clone(tls)).await.unwrap();
        device.send(&connect.bytes()).await;
        let connack = device.packet().await;
        assert_eq!((connack[0], connack[3]), (0x20, 0), "{}", hex(&connack));
        let (mut reader, writer) = device.split();
        let (sender, packets) = mpsc::channel(1);
        tokio::spawn(async move {
            while let Ok(packet) = read_packet(&mut reader).await {
                if sender.send(packet).await.is_err() {
                    break;
                }
            }
        });
        Self { packets, writer }
    }

    /// What the proxy takes no more is sent again elsewhere.
    async fn send(&mut self, packet: &[u8]) {
        let _ = self.writer.write_all(packet).await;
        let _ = self.writer.flush().await;
    }
}

fn level(number: usize) -> u8 {
    if number.is_multiple_of(2) { 5 } else { 4 }
}

/// Publishes at QoS 1 through the first replica and then through the second, until told that it is enough. What was not
/// acknowledged at the one is published again at the other. Returns how many messages that were.
async fn publisher(number: usize, at: [SocketAddr; 2], enough: Arc<AtomicBool>) -> u16 {
    let (tls, level) = (resuming(), level(number));
    let (name, topic) = (format!("publisher {number}"), format!("up/{number}"));
    let connect = Connect {
        will: Some(("will", b"offline")),
        ..Connect::level(level, &name)
    };
    let filling = if number < LARGE { 1 << 20 } else { 0 };
    let mut unanswered: BTreeMap<u16, Vec<u8>> = BTreeMap::new();
    let mut last = 0_u16;
    for (replica, address) in at.into_iter().enumerate() {
        let mut session = Session::join(address, &tls, connect).await;
        if number < LARGE {
            session.send(&subscribe(level, &topic, 0)).await;
        }
        for packet in unanswered.values() {
            session.send(packet).await;
        }
        let mut heard = 0;
        loop {
            if enough.load(Ordering::Relaxed) && unanswered.is_empty() && replica == 1 {
                return last;
            }
            tokio::select! {
                packet = session.packets.recv() => match packet {
                    None => break,
                    Some(packet) => {
                        heard = packet[0];
                        match heard {
                            0x40 => drop(unanswered.remove(&u16::from_be_bytes([packet[2], packet[3]]))),
                            0x30 => assert_eq!(published(level, &packet).2.len(), 4 + filling),
                            0x90 | 0xE0 => {}
                            other => panic!("{other:02x}"),
                        }
                    }
                },
                () = tokio::time::sleep(REST), if unanswered.len() < WINDOW && !enough.load(Ordering::Relaxed) => {
                    last += 1;
                    let mut payload = u32::from(last).to_be_bytes().to_vec();
                    payload.resize(4 + filling, 0xE0);
                    let packet = publish(level, &topic, Some(last), &payload);
                    session.send(&packet).await;
                    unanswered.insert(last, packet);
                }
            }
        }
        assert_eq!(
            heard == 0xE0,
            level == 5,
            "{number}: the last packet was {heard:02x}"
        );
    }
    panic!("the second replica has ended a session");
}

/// Has a persistent session, at the first replica and then at the second, until it has all of `messages`.
async fn subscriber(
    number: usize,
    at: [SocketAddr; 2],
    subscribed: Arc<AtomicUsize>,
    sent: Arc<AtomicU32>,
    enough: Arc<AtomicBool>,
) -> usize {
    let (tls, level) = (resuming(), level(number));
    let (name, topic) = (format!("subscriber {number}"), format!("down/{number}"));
    let connect = Connect {
        clean: false,
        // Session Expiry Interval: an hour.
        properties: if level == 5 {
            &[0x11, 0, 0, 0x0E, 0x10]
        } else {
            &[]
        },
        ..Connect::level(level, &name)
    };
    let mut received = BTreeSet::new();
    let mut again = 0;
    for address in at {
        let mut session = Session::join(address, &tls, connect).await;
        if address == at[0] {
            session.send(&subscribe(level, &topic, 1)).await;
            assert_eq!(session.packets.recv().await.unwrap()[0], 0x90);
            subscribed.fetch_add(1, Ordering::Relaxed);
        }
        loop {
            if enough.load(Ordering::Relaxed) && received.len() as u32 == sent.load(Ordering::Relaxed) {
                assert_eq!(received.last(), Some(&sent.load(Ordering::Relaxed)));
                return again;
            }
            let Ok(packet) = tokio::time::timeout(Duration::from_millis(50), session.packets.recv()).await
            else {
                continue;
            };
            let Some(packet) = packet else { break };
            if packet[0] & 0xF0 == 0x30 {
                let (_, identifier, payload) = published(level, &packet);
                let message = u32::from_be_bytes(payload[..4].try_into().unwrap());
                again += usize::from(!received.insert(message));
                session.send(&puback(identifier.unwrap())).await;
            }
        }
    }
    panic!("the second replica has ended a session");
}

/// A client of the broker's own, past the proxy.
async fn direct(broker: SocketAddr, name: &str) -> TcpStream {
    let mut stream = TcpStream::connect(broker).await.unwrap();
    stream.write_all(&Connect::v311(name).bytes()).await.unwrap();
    assert_eq!(read_packet(&mut stream).await.unwrap(), [0x20, 2, 0, 0]);
    stream
}

/// What came at the broker of each publisher; the Wills are of nobody.
async fn collect(broker: SocketAddr) -> Arc<Mutex<BTreeMap<String, BTreeSet<u32>>>> {
    let mut stream = BufReader::new(direct(broker, "collector").await);
    for topic in ["up/#", "will"] {
        stream.write_all(&subscribe(4, topic, 1)).await.unwrap();
        read_packet(&mut stream).await.unwrap();
    }
    let collected = Arc::new(Mutex::new(BTreeMap::new()));
    let seen: Arc<Mutex<BTreeMap<String, BTreeSet<u32>>>> = Arc::clone(&collected);
    tokio::spawn(async move {
        while let Ok(packet) = read_packet(&mut stream).await {
            let (topic, identifier, payload) = published(4, &packet);
            let message = payload
                .first_chunk()
                .map_or(0, |bytes| u32::from_be_bytes(*bytes));
            seen.lock().unwrap().entry(topic).or_default().insert(message);
            if let Some(identifier) = identifier {
                stream.write_all(&puback(identifier)).await.unwrap();
            }
        }
    });
    collected
}

/// Publishes to all subscribers, until told that it is enough.
async fn pour(broker: SocketAddr, sent: Arc<AtomicU32>, enough: Arc<AtomicBool>) {
    let (mut reader, mut writer) = direct(broker, "pourer").await.into_split();
    let unanswered = Arc::new(AtomicUsize::new(0));
    let waiting = Arc::clone(&unanswered);
    tokio::spawn(async move {
        while read_packet(&mut reader).await.is_ok() {
            waiting.fetch_sub(1, Ordering::Relaxed);
        }
    });
    let mut identifier = 0;
    while !enough.load(Ordering::Relaxed) {
        let message = sent.load(Ordering::Relaxed) + 1;
        for number in 0..DEVICES {
            let mut payload = message.to_be_bytes().to_vec();
            payload.resize(4 + if message.is_multiple_of(20) { 50_000 } else { 0 }, 0xE0);
            let topic = format!("down/{number}");
            identifier = identifier % u16::MAX + 1;
            let packet = publish(4, &topic, Some(identifier), &payload);
            unanswered.fetch_add(1, Ordering::Relaxed);
            writer.write_all(&packet).await.unwrap();
        }
        sent.store(message, Ordering::Relaxed);
        tokio::time::sleep(REST).await;
    }
    eventually("every message is at the broker", || {
        unanswered.load(Ordering::Relaxed) == 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_on_its_way_at_qos_1_arrives() {
    let scene = Scene::new();
    let broker = Mosquitto::start(&scene);
    let [first, second] = replicas(&scene, broker.address(), &[("drain.spread", "\"2s\"")]);
    let at = [first.address(), second.address()];
    let (sent, enough) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
    let subscribed = Arc::new(AtomicUsize::new(0));
    let collected = collect(broker.address()).await;
    let mut publishers = JoinSet::new();
    let mut subscribers = JoinSet::new();
    for number in 0..DEVICES {
        let enough = Arc::clone(&enough);
        publishers.spawn({
            let enough = Arc::clone(&enough);
            async move { (number, publisher(number, at, enough).await) }
        });
        subscribers.spawn(subscriber(
            number,
            at,
            Arc::clone(&subscribed),
            Arc::clone(&sent),
            enough,
        ));
    }
    let relaying = [("phase", "relaying")];
    let all = 2.0 * DEVICES as f64;
    first.counts("seawall_connections_open", &relaying, all).await;
    eventually("all have subscribed", || {
        subscribed.load(Ordering::Relaxed) == DEVICES
    })
    .await;
    let pouring = tokio::spawn(pour(broker.address(), Arc::clone(&sent), Arc::clone(&enough)));
    tokio::time::sleep(Duration::from_millis(500)).await;
    first.signal(Signal::TERM);
    let status = tokio::task::spawn_blocking(move || first.wait_for_end(PATIENCE)).await;
    assert_eq!(status.unwrap().code(), Some(0));
    second.counts("seawall_connections_open", &relaying, all).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    enough.store(true, Ordering::Relaxed);
    pouring.await.unwrap();

    let again: usize = within(PATIENCE, "every subscriber has all", subscribers.join_all())
        .await
        .into_iter()
        .sum();
    let mut messages = 0;
    for (number, last) in within(PATIENCE, "every publisher is answered", publishers.join_all()).await {
        // Acknowledged, and so on its way to the collector.
        eventually("all that was published", || {
            let collected = collected.lock().unwrap();
            collected
                .get(&format!("up/{number}"))
                .is_some_and(|seen| seen.iter().copied().eq(1..=u32::from(last)))
        })
        .await;
        messages += usize::from(last);
    }
    assert_eq!(collected.lock().unwrap().get("will"), None, "Wills");
    let log = broker.stderr().to_lowercase();
    for complaint in ["malformed", "protocol error", "socket error"] {
        assert!(!log.contains(complaint), "{complaint}");
    }
    report(&format!(
        "{messages} messages up and {} to each of {DEVICES} down, {again} of them twice; none lost",
        sent.load(Ordering::Relaxed)
    ));
}
