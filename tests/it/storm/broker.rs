//! A real Mosquitto whose authentication serves eighty a second, and what can happen to it.

use super::wire::credentials;
use crate::rig::device::read_packet;
use crate::rig::{Mosquitto, Scene, packet};
use rustix::process::Signal;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

/// What the broker's authentication serves in a second: the iterations of its password's hash are chosen for it, so
/// that the storm is the same one on slower and faster machines.
pub const CAPACITY: f64 = 80.0;
/// Of PBKDF2, the first guess: 12 ms of Mosquitto's only thread a CONNECT.
const ITERATIONS: u32 = 30_000;

/// A broker that serves about [`CAPACITY`], and its iterations. A machine that is busy while it is
/// measured misleads: what is far off is measured again.
pub async fn broker_of_the_capacity(scene: &Scene) -> (Mosquitto, u32) {
    let mut iterations = ITERATIONS;
    for _ in 0..5 {
        let broker = Mosquitto::slow(scene, iterations);
        let measured = capacity(broker.address()).await;
        if (0.9..1.1).contains(&(measured / CAPACITY)) {
            return (broker, iterations);
        }
        iterations = (f64::from(iterations) * measured / CAPACITY) as u32;
    }
    panic!("no number of iterations makes a broker of {CAPACITY} a second: the machine is too busy");
}

/// CONNECTs a second, in the best of three seconds: whatever else the machine does makes it less.
async fn capacity(broker: SocketAddr) -> f64 {
    let mut best = 0.0_f64;
    for _ in 0..3 {
        best = best.max(connects_a_second(broker).await);
    }
    best
}

/// By four clients without TLS that come again and again.
async fn connects_a_second(broker: SocketAddr) -> f64 {
    const WINDOW: Duration = Duration::from_secs(1);
    let from = Instant::now();
    let mut clients = tokio::task::JoinSet::new();
    for client in 0..4 {
        clients.spawn(async move {
            let mut count = 0;
            while from.elapsed() < WINDOW {
                let mut stream = TcpStream::connect(broker).await.unwrap();
                stream
                    .write_all(&credentials(&format!("probe-{client}")).bytes())
                    .await
                    .unwrap();
                assert_eq!(read_packet(&mut stream).await.unwrap(), packet::connack_v3(0));
                count += 1;
            }
            count
        });
    }
    let count: u32 = clients.join_all().await.into_iter().sum();
    f64::from(count) / from.elapsed().as_secs_f64()
}

/// How many it has let in, by its own log.
pub fn answered(broker: &Mosquitto) -> usize {
    broker.stderr().matches("New client connected from").count()
}

/// Half of its time is taken from the broker, in slices shorter than a CONNECT.
pub fn halve(broker: &Mosquitto, lasting: Duration) {
    const SLICE: Duration = Duration::from_millis(5);
    let from = Instant::now();
    let mut next = from;
    while from.elapsed() < lasting {
        broker.signal(Signal::STOP);
        next += SLICE;
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
        broker.signal(Signal::CONT);
        next += SLICE;
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}
