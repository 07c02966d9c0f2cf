//! Starting tasks and ending them: the only place that spawns. A task that is not counted here can't be waited for.

use std::future::Future;
use std::time::Duration;

use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};
use tokio_util::task::TaskTracker;

/// The tasks of one running daemon and the two signals that reach them: "draining" (answer newcomers so, close
/// what is open) and "stop" (end now). Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Tasks {
    tracker: TaskTracker,
    draining: CancellationToken,
    stopped: CancellationToken,
}

impl Tasks {
    /// No tasks yet, nothing signalled.
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts `task`, which ends by itself. A panic in it ends this task alone.
    #[allow(clippy::disallowed_methods)] // the one place that may
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tracker.spawn(task);
    }

    /// Starts `task`, which runs for ever, until "stop".
    pub fn spawn_until_stopped(&self, task: impl Future<Output = ()> + Send + 'static) {
        let stopped = self.stopped.clone();
        self.spawn(async move {
            tokio::select! {
                () = stopped.cancelled() => {}
                () = task => {}
            }
        });
    }

    /// Whether the drain has begun.
    pub fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }

    /// Ready when the drain begins.
    pub fn draining(&self) -> WaitForCancellationFuture<'_> {
        self.draining.cancelled()
    }

    /// A token of the caller's own that is cancelled when the drain begins.
    pub fn child_of_draining(&self) -> CancellationToken {
        self.draining.child_token()
    }

    /// Begins the drain.
    pub fn drain(&self) {
        self.draining.cancel();
    }

    /// Ends everything that runs for ever.
    pub fn stop(&self) {
        self.draining.cancel();
        self.stopped.cancel();
        self.tracker.close();
    }

    /// Waits until every task has ended, at most for `limit`. Says whether they all have.
    pub async fn ended(&self, limit: Duration) -> bool {
        self.tracker.close();
        timeout(limit, self.tracker.wait()).await.is_ok()
    }
}
