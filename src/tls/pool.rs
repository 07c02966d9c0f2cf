//! Threads for the cryptography of handshakes. The server's part of a handshake is one synchronous call of 50 µs to
//! 1.5 ms (P-256 to RSA 4096), which on the runtime's own threads would stand between a connected client and its
//! messages. Here it has a few threads of its own at a lower priority: whatever the storm, a core that the relay wants is
//! the relay's (`docs/decisions/0004-handshake-pool.md`).

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use rustix::process::{getpriority_process, setpriority_process};
use tokio::sync::oneshot;

/// A bounded queue and the threads that work it off. They end when it is dropped.
#[derive(Debug)]
pub struct Pool {
    shared: Arc<Shared>,
}

/// Added to the nice value of the process: a thread gets a third of what a thread of the runtime gets that wants the same
/// core, and all of it when none does. Nicer, it would starve beside other processes that keep all cores busy.
const NICE: i32 = 5;

/// The largest nice value there is (setpriority(2)).
const NICEST: i32 = 19;

/// Jobs that wait. Each belongs to a place at the gate, so that `handshake.max_in_flight` bounds them first; this is
/// what a thread works off in a quarter of a second with the cheapest keys.
const MOST_JOBS: usize = 4096;

type Job = Box<dyn FnOnce() + Send>;

struct Shared {
    queue: Mutex<Queue>,
    ready: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    closed: bool,
}

impl Pool {
    /// Starts as many threads as there are cores, less one that stays for the relay; at least one.
    pub fn start() -> io::Result<Self> {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        Self::with_threads(cores.saturating_sub(1).max(1))
    }

    /// Starts `threads` threads.
    pub fn with_threads(threads: usize) -> io::Result<Self> {
        let pool = Self {
            shared: Arc::new(Shared {
                queue: Mutex::default(),
                ready: Condvar::new(),
            }),
        };
        for number in 0..threads.max(1) {
            let shared = Arc::clone(&pool.shared);
            thread::Builder::new()
                .name(format!("handshake-{number}"))
                .spawn(move || shared.work())?;
        }
        Ok(pool)
    }

    /// Runs `job` on one of the threads. `None`: the queue is full, or the job panicked. Dropping the future of a job
    /// that has not begun is enough for it not to.
    pub async fn crypto<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let (sender, receiver) = oneshot::channel();
        let job = move || {
            if !sender.is_closed() {
                // Whoever has stopped waiting meanwhile does not want it.
                let _ = sender.send(job());
            }
        };
        if !self.shared.push(Box::new(job)) {
            return None;
        }
        receiver.await.ok()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let mut queue = self.shared.lock();
        queue.closed = true;
        queue.jobs.clear();
        drop(queue);
        self.shared.ready.notify_all();
    }
}

impl Shared {
    fn push(&self, job: Job) -> bool {
        let mut queue = self.lock();
        if queue.jobs.len() >= MOST_JOBS {
            return false;
        }
        queue.jobs.push_back(job);
        drop(queue);
        self.ready.notify_one();
        true
    }

    /// The life of a thread.
    fn work(&self) {
        be_nice();
        while let Some(job) = self.next() {
            // A panic is a bug of the job's, and the end of its own connection alone: its sender is dropped.
            let _ = catch_unwind(AssertUnwindSafe(job));
        }
    }

    fn next(&self) -> Option<Job> {
        let queue = self.lock();
        let mut queue = self
            .ready
            .wait_while(queue, |queue| queue.jobs.is_empty() && !queue.closed)
            .unwrap_or_else(PoisonError::into_inner);
        queue.jobs.pop_front()
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        // Nothing that can panic is done under the lock.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

/// Lowers the priority of the calling thread: on Linux that is what `None` stands for, not the process (setpriority(2),
/// "C library/kernel differences").
fn be_nice() {
    let own = getpriority_process(None).unwrap_or(0);
    // Never refused for a higher value; a thread that is not nice is still right.
    let _ = setpriority_process(None, (own + NICE).min(NICEST));
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use super::*;

    fn pool(threads: usize) -> Pool {
        Pool::with_threads(threads).unwrap()
    }

    /// Occupies one thread until the sender is dropped; returns when the thread is occupied.
    fn occupy(pool: &Pool) -> mpsc::SyncSender<()> {
        let (release, released) = mpsc::sync_channel::<()>(0);
        let (begin, begun) = mpsc::sync_channel(0);
        assert!(pool.shared.push(Box::new(move || {
            begin.send(()).unwrap();
            let _ = released.recv();
        })));
        begun.recv().unwrap();
        release
    }

    #[tokio::test]
    async fn a_job_runs_elsewhere_and_hands_its_result_back() {
        let pool = pool(2);
        let here = thread::current().id();
        let there = pool.crypto(|| thread::current().id()).await;
        assert!(there.is_some_and(|there| there != here));
    }

    #[tokio::test]
    async fn the_threads_are_nicer_than_the_process_and_the_process_is_not() {
        let before = getpriority_process(None).unwrap();
        let within = pool(1)
            .crypto(|| getpriority_process(None).unwrap())
            .await
            .unwrap();
        assert_eq!(within, (before + NICE).min(NICEST));
        assert_eq!(getpriority_process(None).unwrap(), before);
    }

    #[tokio::test]
    async fn panics_cost_no_thread() {
        let pool = pool(1);
        for _ in 0..3 {
            let panicked: Option<()> = pool.crypto(|| panic!("on purpose")).await;
            assert!(panicked.is_none());
        }
        assert_eq!(pool.crypto(|| 7).await, Some(7));
    }

    #[tokio::test]
    async fn a_job_that_nobody_waits_for_is_skipped() {
        let pool = pool(1);
        let release = occupy(&pool);
        let ran = Arc::new(AtomicUsize::new(0));
        let count = |ran: &Arc<AtomicUsize>| {
            let ran = Arc::clone(ran);
            move || ran.fetch_add(1, Ordering::SeqCst)
        };
        let abandoned = pool.crypto(count(&ran));
        let mut abandoned = Box::pin(abandoned);
        assert!(
            tokio::time::timeout(std::time::Duration::ZERO, &mut abandoned)
                .await
                .is_err()
        );
        drop(abandoned);
        drop(release);
        assert_eq!(pool.crypto(count(&ran)).await, Some(0), "the first to run");
    }

    #[tokio::test]
    async fn a_full_queue_says_so_at_once() {
        let pool = pool(1);
        let release = occupy(&pool);
        for _ in 0..MOST_JOBS {
            assert!(pool.shared.push(Box::new(|| ())));
        }
        assert!(pool.crypto(|| ()).await.is_none());
        drop(release);
    }

    #[tokio::test]
    async fn the_threads_end_with_the_pool() {
        let pool = pool(2);
        let shared = Arc::downgrade(&pool.shared);
        assert_eq!(pool.crypto(|| 1).await, Some(1));
        drop(pool);
        while shared.strong_count() > 0 {
            tokio::task::yield_now().await;
        }
    }
}
