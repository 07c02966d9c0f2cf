//! Fleets that come back as one. The scenarios take up to half a minute: `tests/run --long`.

use crate::rig::packet::{connack_v3, connack_v5};
use crate::rig::{Connect, Daemon, Device, Scene, Stub, long, report};
use std::f64::consts::TAU;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const PERIOD: Duration = Duration::from_secs(5);

/// How much arrivals agree on a time within the period: 1 all at once, 0 spread evenly.
fn concentration(arrivals: &[Duration]) -> f64 {
    let (sine, cosine) = arrivals.iter().fold((0.0, 0.0), |(sine, cosine), at| {
        let (one, other) = (at.as_secs_f64() / PERIOD.as_secs_f64() * TAU).sin_cos();
        (sine + one, cosine + other)
    });
    f64::hypot(sine, cosine) / arrivals.len() as f64
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delayed_refusal_breaks_an_exact_retry_of_five_seconds() {
    const DEVICES: usize = 1000;
    if !long() {
        return;
    }
    let scene = Scene::alone();
    let broker = Stub::content().await;
    let settings = [
        ("admission.rate", "0.001"),
        ("admission.burst", "1"),
        ("refusal.delay", "\"3s\""),
    ];
    let daemon = Daemon::start(&scene, broker.address(), &settings);
    let _session = Device::join(&daemon, Connect::v311("the only token")).await;
    let rounds = Arc::new(Mutex::new(vec![Vec::new(); 4]));
    let (from, address) = (Instant::now(), daemon.address());
    let mut fleet = tokio::task::JoinSet::new();
    for number in 0..DEVICES {
        let rounds = Arc::clone(&rounds);
        fleet.spawn(async move {
            for round in 0..4 {
                // When it comes is when it dials: what the machine takes for the handshakes is no pause of the device.
                let arrived = from.elapsed();
                let mut device = Device::try_dial(address).await.unwrap();
                rounds.lock().unwrap()[round].push(arrived);
                device
                    .send(&Connect::v311(&format!("device-{number}")).bytes())
                    .await;
                assert_eq!(device.packet().await, connack_v3(3));
                device.close().await;
                tokio::time::sleep(PERIOD).await;
            }
        });
    }
    fleet.join_all().await;
    let found: Vec<f64> = rounds
        .lock()
        .unwrap()
        .iter()
        .map(|arrivals| concentration(arrivals))
        .collect();
    report(&format!(
        "{DEVICES} devices on an exact 5 s, delay 3 s: concentration by round {found:.2?}"
    ));
    assert!(found[0] > 0.9 && found[3] < 0.3, "{found:.2?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_with_wrong_passwords_leaves_the_broker_and_the_others_alone() {
    const DEVICES: usize = 300;
    const GOOD: usize = 100;
    if !long() {
        return;
    }
    let scene = Scene::alone();
    let broker = Stub::start(|mut link| async move {
        let Some(connect) = link.packet().await else {
            return;
        };
        let is_bad = connect.ends_with(b"wrong");
        link.send(&connack_v5(if is_bad { 0x86 } else { 0 })).await;
        link.listen().await;
    })
    .await;
    // The defaults: what the wrong ones take of it is what the others lack.
    let settings = [
        ("admission.rate", "200"),
        ("admission.burst", "200"),
        ("admission.max_in_flight", "100"),
    ];
    let daemon = Daemon::start(&scene, broker.address(), &settings);
    let address = daemon.address();
    let mut fleet = tokio::task::JoinSet::new();
    for number in 0..DEVICES {
        fleet.spawn(async move {
            let client_id = format!("wrong-{number}");
            let connect = Connect {
                username: Some("meter"),
                password: Some(b"wrong"),
                ..Connect::v5(&client_id)
            };
            loop {
                if let Ok(mut device) = Device::try_dial(address).await {
                    let _ = device.try_send(&connect.bytes()).await;
                    let _ = device.try_packet().await;
                }
            }
        });
    }
    tokio::time::sleep(Duration::from_secs(10)).await;
    let (before, from) = (broker.visits(), Instant::now());
    let mut good = Vec::new();
    let mut slowest = Duration::ZERO;
    for number in 0..GOOD {
        let mut device = Device::dial(&daemon).await;
        let sent = Instant::now();
        device.send(&Connect::v5(&format!("good-{number}")).bytes()).await;
        device.expect_packet(&connack_v5(0)).await;
        slowest = slowest.max(sent.elapsed());
        good.push(device);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let asked = (broker.visits() - before - GOOD) as f64 / from.elapsed().as_secs_f64();
    let metrics = daemon.metrics().await;
    let refused = |reason| metrics.sum("seawall_refused_total", &[("reason", reason)]);
    report(&format!(
        "{asked:.1} CONNECTs/s of theirs at the broker after 10 s, {} answered from memory; {GOOD} others in at their first \
         attempt, {} ms from CONNECT to CONNACK at most",
        refused("bad-credentials"),
        slowest.as_millis()
    ));
    assert!(asked < 5.0, "{asked:.1} a second");
    assert!(refused("bad-credentials") > 1000.0);
    assert_eq!(
        metrics.sum("seawall_bad_credentials_alarm", &[]),
        1.0,
        "most of the fleet is refused"
    );
    fleet.shutdown().await;
}

/// The digits of `retry-after-ms` in a refusal that has no other property.
fn retry_after(connack: &[u8]) -> Duration {
    assert_eq!(
        (connack[0], connack[3], connack[5]),
        (0x20, 0x89, 0x26),
        "{connack:02x?}"
    );
    let digits = std::str::from_utf8(&connack[24..]).unwrap();
    Duration::from_millis(digits.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_that_keeps_its_appointments_is_in_at_the_rate() {
    if !long() {
        return;
    }
    for burst in [40.0, 1.0] {
        appointments(600, 40.0, burst).await;
    }
}

async fn appointments(devices: usize, rate: f64, burst: f64) {
    let scene = Scene::alone();
    let broker = Stub::content().await;
    let (rate_setting, burst_setting) = (rate.to_string(), burst.to_string());
    let settings = [
        ("admission.rate", rate_setting.as_str()),
        ("admission.burst", burst_setting.as_str()),
        ("refusal.reason_string", "false"),
        ("refusal.retry_after", "true"),
        ("connect.timeout", "\"60s\""),
    ];
    let daemon = Daemon::start(&scene, broker.address(), &settings);
    let address = daemon.address();
    // The first wave comes at once: what a debug build takes for its handshakes is not on trial.
    let mut dialled = Vec::new();
    for _ in 0..devices {
        dialled.push(Device::dial(&daemon).await);
    }
    let from = Instant::now();
    let mut fleet = tokio::task::JoinSet::new();
    for (number, mut device) in dialled.into_iter().enumerate() {
        fleet.spawn(async move {
            let connect = Connect::v5(&format!("device-{number}")).bytes();
            for attempts in 1_usize.. {
                device.send(&connect).await;
                let connack = device.packet().await;
                if connack[3] == 0 {
                    return (attempts, from.elapsed(), device);
                }
                let pause = retry_after(&connack);
                drop(device);
                tokio::time::sleep(pause).await;
                device = Device::try_dial(address).await.unwrap();
            }
            unreachable!()
        });
    }
    let entered = fleet.join_all().await;
    let attempts = entered.iter().map(|device| device.0).sum::<usize>() as f64 / devices as f64;
    let took = entered.iter().map(|device| device.1).max().unwrap().as_secs_f64();
    let ideal = devices as f64 / rate;
    report(&format!(
        "{devices} at {rate}/s, burst {burst}: in after {took:.2} s, {:.3} of {ideal} s, {attempts:.2} attempts each",
        took / ideal
    ));
    // The bucket was full.
    let most = 1.05 * (devices as f64 - burst) / rate;
    assert!(took <= most && attempts <= 2.1, "{took:.2} s, {attempts:.2}");
}
