//! How long a refusal takes when there is nothing else to do.

use crate::rig::packet::connack_v3;
use crate::rig::{Connect, Daemon, Device, Scene, Stub, report};
use std::time::{Duration, Instant};

#[tokio::test]
async fn a_refusal_on_an_idle_proxy_takes_less_than_half_a_millisecond() {
    const REFUSALS: usize = 300;
    let scene = Scene::alone();
    let broker = Stub::content().await;
    let daemon = Daemon::start(
        &scene,
        broker.address(),
        &[("admission.rate", "0.001"), ("admission.burst", "1")],
    );
    let _first = Device::join(&daemon, Connect::v311("first")).await;
    let connect = Connect::v311("late").bytes();
    let mut times = Vec::new();
    for _ in 0..REFUSALS {
        let mut device = Device::dial(&daemon).await;
        // The handshake's last flight and the tickets are behind both sides.
        tokio::time::sleep(Duration::from_millis(2)).await;
        let from = Instant::now();
        device.send(&connect).await;
        let connack = device.packet().await;
        times.push(from.elapsed());
        assert_eq!(connack, connack_v3(3));
        device.expect_last(&[]).await;
    }
    times.sort();
    let (p50, p99) = (times[REFUSALS / 2], times[REFUSALS * 99 / 100]);
    report(&format!(
        "CONNECT sent to CONNACK received: p50 {p50:.0?}, p99 {p99:.0?}"
    ));
    assert!(p50 < Duration::from_micros(500), "p50 {p50:?}");
}
