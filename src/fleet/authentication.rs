//! The authentication service behind the simulated broker: a queue that is served at a fixed pace, as a password hash or
//! a database call is. It does not notice that somebody has left the queue, as none does.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

/// Longest queue: beyond it a CONNECT is dropped. Above any fleet that fits into one process.
const MAX_QUEUE: usize = 100_000;

/// How CONNECTs are answered, from the next one on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Behaviour {
    /// How long one server works on one CONNECT.
    pub service_time: Duration,
    /// What comes of it.
    pub answer: Answer,
}

/// What comes of a CONNECT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// CONNACK 0.
    Accept,
    /// CONNACK with this return or reason code, and a close.
    Refuse(u8),
    /// TCP reset instead of a CONNACK.
    Reset,
    /// Nothing: the socket stays open and silent.
    Mute,
}

impl Behaviour {
    /// Accepts `rate` CONNECTs a second with one server; a rate that is not above 0 serves without delay.
    pub fn accepting(rate: f64) -> Self {
        let service_time = Duration::try_from_secs_f64(1.0 / rate).unwrap_or(Duration::ZERO);
        Self {
            service_time,
            answer: Answer::Accept,
        }
    }
}

/// The queue and its servers; they end with it.
#[derive(Debug)]
pub(super) struct Service {
    queue: mpsc::Sender<Job>,
    behaviour: watch::Sender<Behaviour>,
    _servers: JoinSet<()>,
}

#[derive(Debug)]
struct Job {
    arrived: Instant,
    answer: oneshot::Sender<Answer>,
}

impl Service {
    /// Starts `servers` (at least one) that work side by side on one queue.
    pub(super) fn start(servers: usize, behaviour: Behaviour) -> Self {
        let (queue, jobs) = mpsc::channel(MAX_QUEUE);
        let behaviour = watch::Sender::new(behaviour);
        let jobs = Arc::new(Mutex::new(jobs));
        let mut tasks = JoinSet::new();
        for _ in 0..servers.max(1) {
            tasks.spawn(serve(Arc::clone(&jobs), behaviour.subscribe()));
        }
        Self {
            queue,
            behaviour,
            _servers: tasks,
        }
    }

    /// Changes the answers, also those that are being worked on.
    pub(super) fn behave(&self, behaviour: Behaviour) {
        self.behaviour.send_replace(behaviour);
    }

    pub(super) fn behaviour(&self) -> Behaviour {
        *self.behaviour.borrow()
    }

    /// Queues and waits. `None`: the queue is full or the service is going down.
    pub(super) async fn authenticate(&self) -> Option<Answer> {
        let (answer, verdict) = oneshot::channel();
        self.queue
            .try_send(Job {
                arrived: Instant::now(),
                answer,
            })
            .ok()?;
        verdict.await.ok()
    }

    /// CONNECTs in the queue.
    pub(super) fn queued(&self) -> usize {
        MAX_QUEUE - self.queue.capacity()
    }
}

/// One server. The pace is kept from job to job and not from wake-up to wake-up: a timer's millisecond must not lower it.
async fn serve(jobs: Arc<Mutex<mpsc::Receiver<Job>>>, mut behaviour: watch::Receiver<Behaviour>) {
    let mut free = Instant::now();
    loop {
        let next = jobs.lock().await.recv().await;
        let Some(Job { arrived, answer }) = next else {
            return;
        };
        let begun = free.max(arrived);
        let verdict = loop {
            let Behaviour { service_time, answer } = *behaviour.borrow_and_update();
            free = begun + service_time;
            tokio::select! {
                () = sleep_until(free) => break answer,
                changed = behaviour.changed() => if changed.is_err() { return },
            }
        };
        // The client's end is gone when it left while it was queued: the work was done all the same.
        let _ = answer.send(verdict);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn finish_times(service: &Arc<Service>, clients: usize) -> Vec<Duration> {
        let start = Instant::now();
        let mut waiting = JoinSet::new();
        for _ in 0..clients {
            let service = Arc::clone(service);
            waiting.spawn(async move {
                assert_eq!(service.authenticate().await, Some(Answer::Accept));
                start.elapsed()
            });
        }
        let mut times = waiting.join_all().await;
        times.sort();
        times
    }

    #[tokio::test(start_paused = true)]
    async fn the_queue_is_served_at_the_given_rate() {
        let service = Arc::new(Service::start(1, Behaviour::accepting(80.0)));
        let times = finish_times(&service, 800).await;
        let last = times.last().unwrap().as_secs_f64();
        assert!((last - 10.0).abs() < 0.01, "{last}");
        assert!((times[399].as_secs_f64() - 5.0).abs() < 0.01, "{:?}", times[399]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_rate_beyond_the_timers_resolution_is_kept() {
        let service = Arc::new(Service::start(1, Behaviour::accepting(4000.0)));
        let last = finish_times(&service, 8000).await.last().unwrap().as_secs_f64();
        assert!((last - 2.0).abs() < 0.01, "{last}");
    }

    #[tokio::test(start_paused = true)]
    async fn servers_work_side_by_side() {
        let service = Arc::new(Service::start(
            4,
            Behaviour {
                service_time: Duration::from_millis(100),
                answer: Answer::Accept,
            },
        ));
        let times = finish_times(&service, 40).await;
        assert!((times[3].as_secs_f64() - 0.1).abs() < 0.01, "{:?}", times[3]);
        assert!((times[39].as_secs_f64() - 1.0).abs() < 0.01, "{:?}", times[39]);
    }

    #[tokio::test(start_paused = true)]
    async fn those_who_left_are_served_as_well() {
        let service = Arc::new(Service::start(1, Behaviour::accepting(1.0)));
        let start = Instant::now();
        let mut gone = JoinSet::new();
        for _ in 0..9 {
            let service = Arc::clone(&service);
            gone.spawn(async move { service.authenticate().await });
        }
        tokio::task::yield_now().await;
        gone.shutdown().await;
        service.authenticate().await;
        assert!(
            start.elapsed() >= Duration::from_secs(10),
            "{:?}",
            start.elapsed()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_reaches_the_one_being_served() {
        let service = Arc::new(Service::start(1, Behaviour::accepting(0.001)));
        let waiting = {
            let service = Arc::clone(&service);
            async move { service.authenticate().await }
        };
        let change = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            service.behave(Behaviour {
                service_time: Duration::from_secs(3),
                answer: Answer::Refuse(5),
            });
        };
        let start = Instant::now();
        let (answer, ()) = tokio::join!(waiting, change);
        assert_eq!(answer, Some(Answer::Refuse(5)));
        assert_eq!(start.elapsed().as_secs(), 3);
    }
}
