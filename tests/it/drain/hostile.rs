//! Peers that do not want to go, and a drain that ends all the same.

use super::SHUTTING_DOWN;
use crate::rig::device::hex;
use crate::rig::packet::{self, DISCONNECT};
use crate::rig::stub::VisitEnd;
use crate::rig::{Connect, Daemon, Device, PATIENCE, Scene, Stub, within};
use rustix::process::Signal;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The most that a drain takes beyond its spread: what `docs/operations.md` says.
const GRACE: Duration = Duration::from_secs(9);

/// Half a packet for ever: its end is awaited for a second, then neither is cut by a DISCONNECT.
#[tokio::test]
async fn half_a_packet_is_awaited_for_a_second() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let daemon = Daemon::start(&scene, broker.address(), &[("drain.spread", "\"0s\"")]);
    let connect = Connect::v5("half");
    let mut device = Device::join(&daemon, connect).await;
    let publish = packet::publish(5, "topic", None, &[0xE0; 5_000]);
    device.send(&publish[..2_000]).await;
    let sent = [&connect.bytes()[..], &publish[..2_000]].concat();
    let visit = broker.visit(0).await;
    visit.received_at_least(sent.len()).await;
    let from = Instant::now();
    daemon.signal(Signal::TERM);
    // The client itself is between two packets of the broker's.
    device.expect_last(&SHUTTING_DOWN).await;
    assert!(
        from.elapsed() > Duration::from_millis(900),
        "{:?}",
        from.elapsed()
    );
    assert_eq!(visit.end().await, VisitEnd::Fin);
    assert_eq!(
        hex(&visit.received()),
        hex(&sent),
        "{} bytes",
        visit.received().len()
    );
    assert_eq!(daemon.wait_for_end(GRACE).code(), Some(0));
}

/// 1 MiB packets in both directions, without a pause: both sides get whole packets, then DISCONNECT.
#[tokio::test]
async fn a_flood_of_large_packets_in_both_directions_is_not_cut() {
    const CLIENTS: usize = 8;
    let scene = Scene::new();
    let payload = vec![0xE0; 1 << 20];
    let flood = packet::publish(5, "flood", None, &payload);
    let downwards = flood.clone();
    let broker = Stub::start(move |mut link| {
        let flood = downwards.clone();
        async move {
            link.accept().await;
            let endless: Vec<u8> = flood.repeat(64);
            link.exchange_until_cut(&endless).await;
        }
    })
    .await;
    let daemon = Daemon::start(&scene, broker.address(), &[("drain.spread", "\"1s\"")]);
    let mut devices = tokio::task::JoinSet::new();
    for number in 0..CLIENTS {
        let name = format!("{number}");
        let level = if number % 4 == 3 { 4 } else { 5 };
        let device = Device::join(&daemon, Connect::level(level, &name)).await;
        let flood = flood.clone();
        devices.spawn(async move {
            let (mut reader, mut writer) = device.split();
            let write = async {
                while writer.write_all(&flood).await.is_ok() {}
                std::future::pending::<()>().await;
            };
            let read = async {
                let mut packets = 0;
                loop {
                    match crate::rig::device::read_packet(&mut reader).await {
                        Ok(packet) if packet == flood => packets += 1,
                        Ok(packet) => {
                            assert_eq!(hex(&packet), hex(&SHUTTING_DOWN));
                            assert_eq!(level, 5);
                            let end = reader.read(&mut [0]).await;
                            assert_eq!(end.unwrap(), 0, "behind a DISCONNECT");
                            return packets;
                        }
                        Err(_) => {
                            assert_eq!(level, 4, "no DISCONNECT");
                            return packets;
                        }
                    }
                }
            };
            tokio::select! {
                packets = within(PATIENCE, "the end", read) => packets,
                () = write => unreachable!(),
            }
        });
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    daemon.signal(Signal::TERM);
    let mut packets = 0;
    while let Some(one) = devices.join_next().await {
        packets += one.unwrap();
    }
    assert!(packets > CLIENTS, "{packets} packets before the end");
    let mut upwards = 0;
    for index in 0..CLIENTS {
        let visit = broker.visit(index).await;
        visit.end().await;
        let received = visit.received();
        let connect = 2 + usize::from(received[1]);
        let behind = &received[connect..];
        let last_words = behind.len() % flood.len();
        assert_eq!(
            last_words,
            DISCONNECT.len(),
            "a packet was cut: {} bytes",
            behind.len()
        );
        assert!(behind.ends_with(&DISCONNECT));
        upwards += behind.len() / flood.len();
    }
    assert!(upwards > CLIENTS, "{upwards} packets upwards");
    assert_eq!(daemon.wait_for_end(GRACE).code(), Some(0));
}

/// One that never reads, one that never closes, a broker that does not either, strangers that say nothing: none of them
/// keeps the process, and none of them makes it an error.
#[tokio::test]
async fn who_does_not_go_is_left() {
    let scene = Scene::new();
    let broker = Stub::start(|mut link| async move {
        link.accept().await;
        link.pour(64 << 20).await;
        link.hold(Duration::from_secs(60)).await;
    })
    .await;
    let daemon = Daemon::start(&scene, broker.address(), &[("drain.spread", "\"1s\"")]);
    let mut held = Vec::new();
    for name in ["one", "two", "three"] {
        held.push(Device::join(&daemon, Connect::v5(name)).await);
    }
    let _silent = TcpStream::connect(daemon.address()).await.unwrap();
    let _shaken = Device::dial(&daemon).await;
    let visit = broker.visit(0).await;
    let from = Instant::now();
    daemon.signal(Signal::TERM);
    // A flood of newcomers meanwhile, which are all answered.
    let address = daemon.address();
    let flood = tokio::spawn(async move {
        let mut answered = 0;
        while let Ok(mut device) = Device::try_dial(address).await {
            if device.try_send(&Connect::v311("new").bytes()).await.is_err() {
                break;
            }
            match device.try_packet().await {
                Ok(packet) => assert_eq!(hex(&packet), "20 02 00 03"),
                Err(_) => break,
            }
            answered += 1;
        }
        answered
    });
    let status = tokio::task::spawn_blocking(move || daemon.wait_for_end(PATIENCE)).await;
    assert_eq!(status.unwrap().code(), Some(0));
    let took = from.elapsed();
    assert!(
        took < Duration::from_secs(1) + GRACE + Duration::from_secs(3),
        "{took:?}"
    );
    assert!(flood.await.unwrap() > 10);
    drop((held, visit));
}

/// A client that left half a packet and a broker that does: the process goes at the second signal whatever is open.
#[tokio::test]
async fn a_second_signal_waits_for_nobody() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let daemon = Daemon::start(&scene, broker.address(), &[("drain.spread", "\"1h\"")]);
    let mut sessions = Vec::new();
    for number in 0..20 {
        sessions.push(Device::join(&daemon, Connect::v5(&format!("{number}"))).await);
    }
    daemon.signal(Signal::INT);
    let labels = [("phase", "relaying")];
    daemon
        .metrics_until("the first has gone", |metrics| {
            metrics.sum("seawall_closed_total", &labels) == 1.0
        })
        .await;
    let from = Instant::now();
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait_for_end(PATIENCE).code(), Some(1));
    assert!(from.elapsed() < Duration::from_secs(3), "{:?}", from.elapsed());
}
