//! What can be seen: metrics, audit, log, and the [`ending::Ending`] from which all three are written.

pub mod ending;
mod labels;
pub mod log;
pub mod metrics;
mod phase;

use std::time::SystemTime;

use self::ending::{Attempt, Ending};
use self::metrics::Metrics;

/// Writes the end of a connection: metrics and one debug line. Called once a connection, for every path.
pub fn record(metrics: &Metrics, attempt: &mut Attempt, ending: &Ending) {
    metrics.record(attempt, ending);
    tracing::debug!(
        connection = attempt.connection,
        source = %attempt.source,
        client_id = attempt.client_id.as_deref(),
        protocol = attempt.protocol.word(),
        decision = attempt.decision.map(tracing::field::debug),
        handshake = attempt.handshake.map(tracing::field::debug),
        connack = attempt.connack.map(|(code, _)| code),
        side = ending.side.word(),
        phase = ending.phase.word(),
        cause = ending.cause,
        lasted_ms = u64::try_from(ending.lasted.as_millis()).unwrap_or(u64::MAX),
        bytes_up = ending.bytes_up,
        bytes_down = ending.bytes_down,
        "connection ended"
    );
}

/// The time of day, for log lines, audit lines and file names; never for a decision.
#[expect(clippy::disallowed_methods, reason = "the one place that may ask for it")]
pub fn wall_clock() -> SystemTime {
    SystemTime::now()
}
