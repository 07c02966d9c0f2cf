//! What the scenarios stand on.

pub mod certificates;
pub mod crowd;
pub mod daemon;
pub mod device;
pub mod haproxy;
pub mod http;
pub mod mosquitto;
pub mod packet;
pub mod process;
pub mod redis;
pub mod scene;
pub mod stub;

pub use daemon::Daemon;
pub use device::{Device, End};
pub use mosquitto::Mosquitto;
pub use packet::Connect;
pub use redis::Redis;
pub use scene::Scene;
pub use stub::Stub;

use std::future::Future;
use std::io::Write;
use std::time::{Duration, Instant};

/// The most that any single wait in a scenario takes before it is a failure. Generous: the machine may be busy.
pub const PATIENCE: Duration = Duration::from_secs(15);

/// The value of `future`, or a failure that says what was waited for.
pub async fn within<T>(patience: Duration, what: &str, future: impl Future<Output = T>) -> T {
    let Ok(value) = tokio::time::timeout(patience, future).await else {
        panic!("{what}: not within {patience:?}");
    };
    value
}

/// Looks every few milliseconds until `condition` holds.
pub async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let from = Instant::now();
    while !condition() {
        assert!(from.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Shows what was measured, of a scenario that passes as well: the test runner keeps what goes through `eprintln!`.
pub fn report(figures: &str) {
    let _ = writeln!(std::io::stderr(), "  {figures}");
}

/// Whether `tests/run --long` asked for more.
pub fn long() -> bool {
    std::env::var_os("SEAWALL_LONG").is_some()
}
