//! Telling each connection that its turn to go has come.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

use super::pace::Pace;
use super::roster::{Key, Roster};
use crate::moment::Moment;

/// How often it is looked whether somebody has come whose turn it is.
const LOOK: Duration = Duration::from_millis(20);

/// All who wait for their notice. The lock is taken when a session begins, when it ends, and for a moment of the drain.
#[derive(Debug)]
pub(super) struct Notices(Mutex<Roster<oneshot::Sender<()>>>);

impl Notices {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Roster::new()))
    }

    /// One more who waits.
    pub(super) fn expect(self: &Arc<Self>) -> Notice {
        let (sender, given) = oneshot::channel();
        Notice {
            key: self.roster().enter(sender),
            given,
            notices: Arc::clone(self),
        }
    }

    /// How many wait.
    pub(super) fn waiting(&self) -> usize {
        self.roster().len()
    }

    /// Gives everybody notice, evenly over `spread` and in random order; then each who comes, at once. Runs for ever.
    pub(super) async fn give(&self, spread: Duration) {
        let begun = Instant::now();
        let mut pace = Pace::new(spread, Moment::ZERO);
        loop {
            let now = Moment::ZERO + begun.elapsed();
            for notice in self.draw(|waiting| pace.due(waiting, now)) {
                // Who is leaving by himself at this moment needs none.
                let _ = notice.send(());
            }
            sleep((pace.next() - now).clamp(Duration::from_millis(1), LOOK)).await;
        }
    }

    fn draw(&self, due: impl FnOnce(usize) -> usize) -> Vec<oneshot::Sender<()>> {
        let mut roster = self.roster();
        let due = due(roster.len());
        std::iter::from_fn(|| roster.draw(|waiting| fastrand::usize(..waiting)))
            .take(due)
            .collect()
    }

    fn roster(&self) -> MutexGuard<'_, Roster<oneshot::Sender<()>>> {
        // A panic inside would be a bug of ours; the roster is still the best that there is.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ready when the turn of its holder has come to go: only ever in a drain. Cheap to poll, and shared with nobody. Not
/// to be polled again after that.
#[derive(Debug)]
#[must_use = "who drops it gets no notice"]
pub struct Notice {
    key: Key,
    given: oneshot::Receiver<()>,
    notices: Arc<Notices>,
}

impl Future for Notice {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        // The other end is dropped unsent only together with the roster itself.
        Pin::new(&mut self.given).poll(cx).map(drop)
    }
}

impl Drop for Notice {
    fn drop(&mut self) {
        self.notices.roster().leave(self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When each got its notice, in milliseconds from the start, in the order in which they came.
    async fn given(count: usize, spread: Duration) -> Vec<u128> {
        let notices = Arc::new(Notices::new());
        let begun = Instant::now();
        let expected: Vec<Notice> = (0..count).map(|_| notices.expect()).collect();
        assert_eq!(notices.waiting(), count);
        let all = async {
            let mut given = Vec::new();
            let waits = expected
                .into_iter()
                .enumerate()
                .map(|(number, notice)| async move {
                    notice.await;
                    (number, begun.elapsed().as_millis())
                });
            let mut waits: tokio::task::JoinSet<_> = waits.collect();
            while let Some(one) = waits.join_next().await {
                given.push(one.unwrap());
            }
            given.sort_unstable();
            given.into_iter().map(|(_, at)| at).collect()
        };
        let given = tokio::select! {
            () = notices.give(spread) => unreachable!(),
            given = all => given,
        };
        assert_eq!(notices.waiting(), 0);
        given
    }

    #[tokio::test(start_paused = true)]
    async fn notices_are_even_and_in_random_order() {
        let given = given(1_000, Duration::from_secs(10)).await;
        let mut seconds = [0; 10];
        for at in &given {
            seconds[(at / 1000).min(9) as usize] += 1;
        }
        assert!(
            seconds.iter().all(|count| (97..=103).contains(count)),
            "{seconds:?}"
        );
        // The first half of those who came is spread over all of it like the second.
        let early = given[..500].iter().filter(|at| **at < 5_000).count();
        assert!(
            (200..300).contains(&early),
            "{early} of the first 500 in the first half"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn one_alone_does_not_wait_and_without_a_spread_nobody_does() {
        assert_eq!(given(1, Duration::from_secs(30)).await, [0]);
        assert!(given(1_000, Duration::ZERO).await.iter().all(|at| *at <= 1));
    }

    #[tokio::test(start_paused = true)]
    async fn who_comes_late_gets_notice_and_who_leaves_needs_none() {
        let notices = Arc::new(Notices::new());
        let stays = notices.expect();
        drop(notices.expect());
        assert_eq!(notices.waiting(), 1);
        let late = async {
            stays.await;
            sleep(Duration::from_secs(5)).await;
            let from = Instant::now();
            notices.expect().await;
            from.elapsed()
        };
        let waited = tokio::select! {
            () = notices.give(Duration::from_secs(1)) => unreachable!(),
            waited = late => waited,
        };
        assert!(waited <= LOOK, "{waited:?}");
    }
}
