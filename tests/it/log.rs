//! What a storm leaves in the log.

use crate::rig::{Connect, Daemon, Device, PATIENCE, Scene, Stub};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_is_a_line_every_ten_seconds_and_none_for_a_connection() {
    let scene = Scene::new();
    let broker = Stub::content().await;
    let settings = [("admission.rate", "1"), ("admission.burst", "1")];
    let daemon = Daemon::start(&scene, broker.address(), &settings);
    let address = daemon.address();
    let mut fleet = JoinSet::new();
    for number in 0..50 {
        fleet.spawn(async move {
            let id = format!("device-{number}");
            loop {
                if let Ok(mut device) = Device::try_dial(address).await
                    && device.try_send(&Connect::v311(&id).bytes()).await.is_ok()
                    && device
                        .try_packet()
                        .await
                        .is_ok_and(|answer| answer == [0x20, 2, 0, 0])
                {
                    std::future::pending::<()>().await;
                }
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        });
    }
    let from = Instant::now();
    while daemon.stderr().matches("in the last 10 s: ").count() < 2 {
        assert!(from.elapsed() < 3 * PATIENCE, "no summary: {}", daemon.stderr());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let log = daemon.stderr();
    let refused = daemon
        .metrics()
        .await
        .sum("seawall_refused_total", &[("reason", "rate")]);
    drop(fleet);

    assert_eq!(log.matches("a storm has begun: ").count(), 1, "{log}");
    // What an operator reads is what was counted.
    let told: f64 = log
        .lines()
        .filter(|line| line.contains("a storm has begun: ") || line.contains("in the last 10 s: "))
        .map(|line| {
            assert!(line.contains(" INFO ") && line.contains("turned_away="), "{line}");
            let (_, rest) = line.split_once(", refused ").unwrap();
            let (count, rest) = rest.split_once(" for ").unwrap();
            assert!(rest.starts_with("rate"), "{line}");
            count.replace(',', "").parse::<f64>().unwrap()
        })
        .sum();
    assert!(told > 500.0 && told <= refused, "{told} of {refused}\n{log}");
    assert!(log.lines().count() < 15, "more than its changes of state:\n{log}");
    assert!(!log.contains("device-"), "a client by name: {log}");
}
