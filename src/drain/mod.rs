//! Starting tasks and ending them: the only place that spawns. A task that is not counted here can't be waited for.

mod notice;
mod pace;
mod roster;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};
use tokio_util::task::TaskTracker;

pub use notice::Notice;
use notice::Notices;

/// `[drain]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The time over which connections are closed.
    pub spread: Duration,
    /// Whether the broker publishes the Wills of those who are closed.
    pub keep_wills: bool,
    /// What becomes of the listener.
    pub listener: Listener,
}

/// `drain.listener`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listener {
    /// It stays open, and newcomers are answered "draining".
    Answer,
    /// It is closed at once, and newcomers are refused by the kernel.
    Close,
}

/// The tasks of one running daemon and the two signals that reach them: "draining" (answer newcomers so, close
/// what is open) and "stop" (end now); and the notices that tell one connection after the other to go. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Tasks {
    tracker: TaskTracker,
    draining: CancellationToken,
    stopped: CancellationToken,
    notices: Arc<Notices>,
}

impl Tasks {
    /// No tasks yet, nothing signalled.
    pub fn new() -> Self {
        Self {
            tracker: TaskTracker::new(),
            draining: CancellationToken::new(),
            stopped: CancellationToken::new(),
            notices: Arc::new(Notices::new()),
        }
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

    /// The notice that comes when it is the caller's turn to go, some time after the drain has begun.
    pub fn notice(&self) -> Notice {
        self.notices.expect()
    }

    /// How many have not had their notice yet.
    pub fn without_notice(&self) -> usize {
        self.notices.waiting()
    }

    /// Gives everybody notice, evenly over `spread` and in random order. Runs for ever: who comes later gets it at once.
    pub async fn give_notices(&self, spread: Duration) {
        self.notices.give(spread).await;
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

impl Default for Tasks {
    fn default() -> Self {
        Self::new()
    }
}
