//! A fleet in a drain, with real Mosquitto behind: how even it is, whose Wills are published, what becomes of messages.
//!
//! The default fleet is small; `tests/run --long` drains 2,000 over 10 s.

use super::SHUTTING_DOWN;
use crate::rig::daemon::binary;
use crate::rig::device::{hex, read_packet, tls_settings};
use crate::rig::mosquitto::Mosquitto;
use crate::rig::packet::{publish, published, subscribe};
use crate::rig::{Connect, Daemon, Device, End, PATIENCE, Scene, eventually, long, report};
use rustix::process::Signal;
use rustls::ClientConfig;
use rustls::client::Resumption;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// How many clients, and over how many seconds.
fn size() -> (usize, usize) {
    if long() { (2_000, 10) } else { (300, 3) }
}

/// What is published when there are no more Wills to come.
const LAST: &str = "will/last";

/// Most handshakes at a time: the machine has other work.
const AT_A_TIME: usize = 32;

/// Two replicas with one ticket secret.
pub(super) fn replicas(scene: &Scene, broker: SocketAddr, settings: &[(&str, &str)]) -> [Daemon; 2] {
    let made = Command::new(binary()).arg("secret").output().unwrap();
    let path = scene.write("secret", std::str::from_utf8(&made.stdout).unwrap());
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let secret = format!("{:?}", path.to_str().unwrap());
    let settings = [settings, &[("tls.resumption.secret_file", secret.as_str())]].concat();
    [(); 2].map(|()| Daemon::start(scene, broker, &settings))
}

/// TLS of one device, which keeps its tickets.
pub(super) fn resuming() -> Arc<ClientConfig> {
    let mut settings = tls_settings().as_ref().clone();
    settings.resumption = Resumption::in_memory_sessions(4);
    Arc::new(settings)
}

/// Collects the topics of what is published under `will/`, each with its time.
async fn watch_wills(broker: SocketAddr) -> Arc<Mutex<Vec<(String, Instant)>>> {
    let mut stream = BufReader::new(TcpStream::connect(broker).await.unwrap());
    stream.write_all(&Connect::v311("watcher").bytes()).await.unwrap();
    read_packet(&mut stream).await.unwrap();
    stream.write_all(&subscribe(4, "will/#", 0)).await.unwrap();
    read_packet(&mut stream).await.unwrap();
    let wills = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&wills);
    tokio::spawn(async move {
        while let Ok(packet) = read_packet(&mut stream).await {
            seen.lock()
                .unwrap()
                .push((published(4, &packet).0, Instant::now()));
        }
    });
    wills
}

/// How far the fullest and the emptiest second are from an even share, as a part of it.
fn unevenness(times: &[Duration], seconds: usize) -> f64 {
    let even = times.len() as f64 / seconds as f64;
    let mut counts = vec![0; seconds];
    for time in times {
        // What comes a little late at the very end belongs to the last second.
        counts[(time.as_secs() as usize).min(seconds - 1)] += 1;
    }
    let farthest = counts
        .iter()
        .map(|count| (f64::from(*count) / even - 1.0).abs())
        .fold(0.0, f64::max);
    report(&format!("closes a second: {counts:?}, {even} would be even"));
    farthest
}

/// One device: joins at the first replica, waits for its end there, and goes to the second.
async fn device(
    number: usize,
    at: [SocketAddr; 2],
    joining: Arc<Semaphore>,
) -> (Device, usize, [SocketAddr; 2]) {
    let tls = resuming();
    let _turn = joining.acquire_owned().await.unwrap();
    let name = format!("{number}");
    let mut device = Device::dial_with(at[0], tls).await.unwrap();
    device
        .send(&connect(number, &name, &format!("will/{number}")).bytes())
        .await;
    let connack = device.packet_within(Duration::from_secs(60)).await;
    assert_eq!((connack[0], connack[3]), (0x20, 0), "{}", hex(&connack));
    (device, number, at)
}

fn level(number: usize) -> u8 {
    [5, 5, 4, 3][number % 4]
}

fn connect<'a>(number: usize, name: &'a str, topic: &'a str) -> Connect<'a> {
    Connect {
        will: Some((topic, b"offline")),
        ..Connect::level(level(number), name)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_is_even_and_makes_neither_wills_nor_strangers() {
    let scene = Scene::alone();
    drained(&scene, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wills_that_are_kept_are_published_as_evenly() {
    let scene = Scene::alone();
    drained(&scene, true).await;
}

async fn drained(scene: &Scene, keep_wills: bool) {
    let (clients, seconds) = size();
    let broker = Mosquitto::start(scene);
    let wills = watch_wills(broker.address()).await;
    let settings = [
        ("drain.spread", format!("\"{seconds}s\"")),
        ("drain.keep_wills", keep_wills.to_string()),
        // The gate is not to shed the slowest where the machine is slow.
        ("handshake.max_in_flight", "100000".to_owned()),
    ];
    let settings = settings.each_ref().map(|(key, value)| (*key, value.as_str()));
    let [first, second] = replicas(scene, broker.address(), &settings);
    let at = [first.address(), second.address()];
    let joining = Arc::new(Semaphore::new(AT_A_TIME));
    let mut fleet = JoinSet::new();
    for number in 0..clients {
        fleet.spawn(device(number, at, Arc::clone(&joining)));
    }
    let fleet = fleet.join_all().await;
    first
        .counts(
            "seawall_connections_open",
            &[("phase", "relaying")],
            clients as f64,
        )
        .await;

    let begun = Instant::now();
    first.signal(Signal::TERM);
    let mut leaving = JoinSet::new();
    for (device, number, at) in fleet {
        leaving.spawn(async move {
            let tls = device.settings();
            let (bytes, end) = device.rest(Duration::from_secs(60)).await;
            let closed = begun.elapsed();
            let words: &[u8] = if level(number) == 5 { &SHUTTING_DOWN } else { &[] };
            assert_eq!((hex(&bytes), end), (hex(words), End::Clean));
            let name = format!("{number}");
            let mut device = Device::dial_with(at[1], tls).await.unwrap();
            device.send(&Connect::level(level(number), &name).bytes()).await;
            let connack = device.packet().await;
            assert_eq!((connack[0], connack[3]), (0x20, 0), "{}", hex(&connack));
            (closed, device)
        });
    }
    let left = leaving.join_all().await;
    let status = tokio::task::spawn_blocking(move || first.wait_for_end(PATIENCE)).await;
    assert_eq!(status.unwrap().code(), Some(0));

    let times: Vec<Duration> = left.iter().map(|(closed, _)| *closed).collect();
    let farthest = unevenness(&times, seconds);
    assert!(farthest <= 0.25, "{farthest} from even");
    let second = second.metrics().await;
    let resumed = second.sum("seawall_handshakes_total", &[("kind", "resumed")]);
    assert_eq!(resumed, clients as f64, "resumed at the second replica");
    if keep_wills {
        eventually("the Wills", || wills.lock().unwrap().len() >= clients).await;
    }
    // What the broker publishes comes to the watcher in order.
    let mut last = TcpStream::connect(broker.address()).await.unwrap();
    last.write_all(&Connect::v311("last").bytes()).await.unwrap();
    read_packet(&mut last).await.unwrap();
    last.write_all(&publish(4, LAST, None, b"")).await.unwrap();
    eventually("the last message", || {
        wills.lock().unwrap().iter().any(|(topic, _)| topic == LAST)
    })
    .await;
    wills.lock().unwrap().retain(|(topic, _)| topic != LAST);
    let wills = wills.lock().unwrap();
    let topics: BTreeSet<&String> = wills.iter().map(|(topic, _)| topic).collect();
    let expected = if keep_wills { clients } else { 0 };
    assert_eq!((wills.len(), topics.len()), (expected, expected), "Wills");
    report(&format!(
        "{clients} clients over {seconds} s: {:.1} % from even at most, {} Wills, {resumed} resumed elsewhere",
        farthest * 100.0,
        wills.len()
    ));
    if keep_wills {
        let times: Vec<Duration> = wills.iter().map(|(_, at)| *at - begun).collect();
        let farthest = unevenness(&times, seconds);
        assert!(farthest <= 0.25, "Wills {farthest} from even");
    }
}
