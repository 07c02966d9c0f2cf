//! What can be seen: metrics, audit, log, and the [`ending::Ending`] from which all three are written.

pub mod audit;
pub mod crowd;
pub mod ending;
mod labels;
pub mod log;
pub mod metrics;
mod phase;
pub mod storm;

use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwapOption;

use self::audit::Audit;
use self::ending::{Attempt, Counted, Ending, Phase};
use self::metrics::Metrics;

/// What a connection reports to. One for the process, shared by all connections.
pub struct Telemetry {
    metrics: Arc<Metrics>,
    audit: ArcSwapOption<Audit>,
}

impl Telemetry {
    /// Reports into `metrics`, and into no audit log.
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self {
            metrics,
            audit: ArcSwapOption::empty(),
        }
    }

    /// Reports into `audit` as well.
    #[must_use]
    pub fn with_audit(self, audit: Audit) -> Self {
        self.audit.store(Some(Arc::new(audit)));
        self
    }

    /// The audit log, where there is one: for changes of state, and to reopen it.
    pub fn audit(&self) -> Option<Arc<Audit>> {
        self.audit.load_full()
    }

    /// Reports into another audit log from here on. Returns the one of before: connections may still hold it, and who
    /// drops it as the last waits until it is written.
    pub fn replace_audit(&self, audit: Option<Audit>) -> Option<Arc<Audit>> {
        self.audit.swap(audit.map(Arc::new))
    }

    /// For what is counted while a connection lives: phases, sheds, bytes, brokers.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Takes down what has become known of an attempt. To be called when the handshake is over, and when the outcome
    /// is known: refused, failed, CONNACK passed on. A decision is final with the first call that finds one. Calls
    /// too many do no harm, and [`Self::record`] makes up for those left out.
    pub fn observe(&self, attempt: &mut Attempt) {
        self.metrics.observe(attempt);
        if attempt.decision.is_some() {
            self.audit_attempt(attempt);
        }
    }

    /// Takes down the end of a connection: metrics, audit and one debug line. Called once a connection, on every path.
    pub fn record(&self, attempt: &mut Attempt, ending: &Ending) {
        self.metrics.record(attempt, ending);
        self.audit_attempt(attempt);
        if let Some(audit) = self.audit.load().as_ref()
            && ending.phase == Phase::Relaying
        {
            audit.end(attempt, ending);
        }
        debug_line(attempt, ending);
    }

    /// What came neither to a handshake nor to a decision was shed, which is told once a second, or was a balancer's look
    /// whether we live.
    fn audit_attempt(&self, attempt: &mut Attempt) {
        if let Some(audit) = self.audit.load().as_ref()
            && (attempt.handshake.is_some() || attempt.decision.is_some())
            && Counted::first(&mut attempt.counted.audit)
        {
            audit.attempt(attempt);
        }
    }
}

fn debug_line(attempt: &Attempt, ending: &Ending) {
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

/// The time of day, for log lines, audit lines and file names, and for what other processes must understand (tickets);
/// never for a decision.
#[expect(clippy::disallowed_methods, reason = "the one place that may ask for it")]
pub fn wall_clock() -> SystemTime {
    SystemTime::now()
}
