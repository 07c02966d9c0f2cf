//! The door as the threads of the daemon see it: a lock around the pure [`Controller`], its clock, and the channels
//! to those who wait.
//!
//! The lock is held for a few microseconds and never over an `.await`. Time is read inside of it, so that the
//! controller sees it go forwards only.

mod waiting;

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

pub use self::waiting::Waiting;
use crate::admission::breaker::State;
use crate::admission::brokers::{Changes, Report};
use crate::admission::classify::{Arrival, Classifier};
use crate::admission::clients;
use crate::admission::controller::{Controller, Place, Released, Seat, Snapshot, Verdict};
use crate::admission::memory::Key;
use crate::admission::suspects::Suspect;
use crate::admission::{Outcome, Refusal, Request, Settings, Share};
use crate::moment::Moment;
use crate::reason::Reason;

/// The one door of the process: every CONNECT knocks here, whichever thread or listener it came through.
#[derive(Debug)]
pub struct Door {
    controller: Mutex<Controller<oneshot::Sender<Answer>>>,
    classifier: ArcSwap<Classifier>,
    origin: Instant,
    /// Told whenever [`Controller::next_release`] may have come closer.
    changed: Notify,
}

type Answer = Result<Permit, Refusal>;

/// What becomes of a CONNECT that knocked.
#[derive(Debug)]
pub enum Knock {
    /// Goes to a broker now.
    Admitted {
        /// The right to do so.
        permit: Permit,
        /// In a dry run: why it would have been refused.
        would_refuse: Option<Reason>,
    },
    /// Waits for its turn.
    Held(Waiting),
    /// Is answered at once.
    Refused(Refusal),
}

impl Door {
    /// A door with a full bucket; its clock starts now.
    pub fn new(settings: Settings) -> Arc<Self> {
        Arc::new(Self {
            classifier: ArcSwap::from_pointee(Classifier::new(&settings)),
            controller: Mutex::new(Controller::new(settings, Moment::ZERO)),
            origin: Instant::now(),
            changed: Notify::new(),
        })
    }

    /// The door's time: nanoseconds since it was made, monotonic.
    pub fn now(&self) -> Moment {
        Moment::ZERO + self.origin.elapsed()
    }

    /// What a CONNECT is to the door: its lane, its cost. To be asked once, before [`Self::knock`].
    pub fn classify(&self, request: &Request<'_>) -> Arrival {
        self.classifier.load().classify(request)
    }

    /// Decides over one CONNECT.
    pub fn knock(self: &Arc<Self>, arrival: &Arrival) -> Knock {
        let mut receiver = None;
        let waiter = |_| {
            let (sender, waiting) = oneshot::channel();
            receiver = Some(waiting);
            sender
        };
        let verdict = {
            let mut controller = self.lock();
            let now = self.now();
            controller.decide(arrival, waiter, now)
        };
        match verdict {
            Verdict::Admit { seat, would_refuse } => Knock::Admitted {
                permit: self.permit(seat),
                would_refuse,
            },
            Verdict::Refuse(refusal) => Knock::Refused(refusal),
            Verdict::Hold { place } => {
                self.changed.notify_one();
                let receiver = receiver.unwrap_or_else(|| oneshot::channel().1);
                Knock::Held(Waiting {
                    door: Arc::clone(self),
                    place,
                    receiver,
                    over: false,
                })
            }
        }
    }

    /// Whether a CONNECT that came at `since` may still wait for its turn. In a dry run nobody waits.
    pub fn may_wait(&self, since: Moment) -> bool {
        !self.patience(Some(since)).is_zero()
    }

    /// How long a CONNECT that came at `since`, or now, may still wait for its turn. In a dry run nobody waits.
    pub fn patience(&self, since: Option<Moment>) -> Duration {
        let controller = self.lock();
        let (settings, now) = (controller.settings(), self.now());
        if settings.dry_run {
            return Duration::ZERO;
        }
        (since.unwrap_or(now) + settings.max_wait) - now
    }

    /// Whether nobody is to be refused.
    pub fn is_dry_run(&self) -> bool {
        self.lock().settings().dry_run
    }

    /// Lets the held in when their turn comes and tells them when their time is up; runs for ever. One such loop is
    /// enough; while none runs, the held wait.
    pub async fn release_held(self: Arc<Self>) {
        loop {
            let next = self.release_due();
            match next {
                None => self.changed.notified().await,
                Some(next) => {
                    // What is too far for the timer's range is far enough to look again then.
                    let wake = self.origin + (next - Moment::ZERO).min(self.origin.elapsed() + FARTHEST);
                    // An early wake-up costs one look; a `timeout` that ran out is the moment itself.
                    let _ = tokio::time::timeout_at(wake, self.changed.notified()).await;
                }
            }
        }
    }

    /// Takes new settings over for those who come from now on; what was issued stays issued.
    pub fn reconfigure(&self, settings: Settings) {
        self.classifier
            .store(Arc::new(self.classifier.load().renewed(&settings)));
        {
            let mut controller = self.lock();
            let now = self.now();
            controller.reconfigure(settings, now);
        }
        self.changed.notify_one();
    }

    /// What it goes by.
    pub fn settings(&self) -> Settings {
        self.lock().settings().clone()
    }

    /// From now on this is its part of a budget in common with other replicas.
    pub fn set_share(&self, share: Share) {
        {
            let mut controller = self.lock();
            let now = self.now();
            controller.set_share(share, now);
        }
        self.changed.notify_one();
    }

    /// Whether an admitted CONNECT may be sent to `server`, the index of a broker. To be asked before each
    /// dial; what came of it is told by [`Self::report`].
    pub fn may_dial(&self, server: usize) -> bool {
        let mut controller = self.lock();
        let now = self.now();
        controller.may_dial(server, now)
    }

    /// How an attempt on `server` came out. Whether that speaks against the broker: else it is no [`Outcome::Failed`].
    pub fn report(&self, server: usize, report: Report) -> bool {
        let blamed = {
            let mut controller = self.lock();
            let now = self.now();
            controller.report(server, report, now)
        };
        self.changed.notify_one();
        blamed
    }

    /// Who `client` of an arrival is before a broker that broke off on it.
    pub fn suspect(&self, client: Option<Key>, source: IpAddr) -> Suspect {
        self.classifier.load().suspect(client, source)
    }

    /// The breaker of `server`, for metrics and status.
    pub fn breaker(&self, server: usize) -> State {
        let controller = self.lock();
        controller.breaker(server, self.now())
    }

    /// How the breakers have changed since the last call, for log and audit.
    pub fn breaker_changes(&self) -> Changes {
        let mut controller = self.lock();
        let now = self.now();
        controller.breaker_changes(now)
    }

    /// Figures for metrics and status.
    pub fn snapshot(&self) -> Snapshot {
        let controller = self.lock();
        controller.snapshot(self.now())
    }

    /// Serves everybody whose turn or end has come; says when the next one's will.
    fn release_due(self: &Arc<Self>) -> Option<Moment> {
        loop {
            let released = {
                let mut controller = self.lock();
                let now = self.now();
                match controller.release(now) {
                    Some(released) => released,
                    None => return controller.next_release(now),
                }
            };
            // Outside of the lock: an answer that nobody takes comes straight back and is settled.
            let (waiter, answer) = match released {
                Released::Admitted { waiter, seat } => (waiter, Ok(self.permit(seat))),
                Released::Expired { waiter, refusal } => (waiter, Err(refusal)),
            };
            if let Err(Ok(permit)) = waiter.send(answer) {
                permit.settle(Outcome::Unused);
            }
        }
    }

    fn withdraw(&self, place: Place) {
        {
            let mut controller = self.lock();
            let now = self.now();
            controller.withdraw(place, now);
        }
        self.changed.notify_one();
    }

    fn settle(&self, seat: Seat, outcome: Outcome) -> Option<clients::Session> {
        let (session, held) = {
            let mut controller = self.lock();
            let now = self.now();
            let session = controller.settle(seat, outcome, now);
            (session, controller.has_held())
        };
        if held {
            self.changed.notify_one();
        }
        session
    }

    fn kicked_out(&self, session: clients::Session) {
        let mut controller = self.lock();
        let now = self.now();
        controller.kicked_out(session, now);
    }

    fn ended(&self, session: clients::Session) {
        self.lock().ended(session);
    }

    fn permit(self: &Arc<Self>, seat: Seat) -> Permit {
        Permit {
            door: Arc::clone(self),
            seat: Some(seat),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Controller<oneshot::Sender<Answer>>> {
        // A panic inside would be a bug of ours; the books are still the best that there are.
        self.controller.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The longest sleep of the release loop: a tokio timer reaches about two years.
const FARTHEST: Duration = Duration::from_hours(24);

/// The right to be in flight to a broker. Settled exactly once: by [`Self::settle`], or as
/// [`Outcome::Abandoned`] when it is dropped.
#[must_use = "dropping it settles it as abandoned"]
pub struct Permit {
    door: Arc<Door>,
    seat: Option<Seat>,
}

impl Permit {
    /// Says how it came out, and gives the seat to the next.
    pub fn settle(mut self, outcome: Outcome) {
        self.give_back(outcome);
    }

    /// The broker has answered: settles with its code and latency. What comes back is to be kept for as long as the
    /// session lasts, so that two devices that take one client id from each other are seen.
    pub fn answered(mut self, code: u8, latency: Duration) -> Session {
        let outcome = Outcome::Answered { code, latency };
        Session {
            session: self.take_back(outcome),
            door: Arc::clone(&self.door),
        }
    }

    fn give_back(&mut self, outcome: Outcome) {
        if let Some(session) = self.take_back(outcome) {
            self.door.ended(session);
        }
    }

    fn take_back(&mut self, outcome: Outcome) -> Option<clients::Session> {
        self.door.settle(self.seat.take()?, outcome)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.give_back(Outcome::Abandoned);
    }
}

impl std::fmt::Debug for Permit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Permit")
            .field("seat", &self.seat)
            .finish_non_exhaustive()
    }
}

/// An accepted client's session; dropping it says that it is over.
pub struct Session {
    door: Arc<Door>,
    session: Option<clients::Session>,
}

impl Session {
    /// The broker has ended it, perhaps because another client has taken it over.
    pub fn kicked_out(mut self) {
        if let Some(session) = self.session.take() {
            self.door.kicked_out(session);
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            self.door.ended(session);
        }
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWERED: Outcome = Outcome::Answered {
        code: 0,
        latency: Duration::ZERO,
    };

    fn settings() -> Settings {
        Settings {
            rate: 10.0,
            burst: 1.0,
            max_in_flight: 100,
            max_wait: Duration::from_secs(1),
            max_held: 1000,
            ..Settings::default()
        }
    }

    /// A door whose release loop runs.
    fn open(settings: Settings) -> Arc<Door> {
        let door = Door::new(settings);
        #[expect(clippy::disallowed_methods, reason = "a test's task ends with its runtime")]
        tokio::spawn(Arc::clone(&door).release_held());
        door
    }

    fn knock(door: &Arc<Door>) -> Knock {
        door.knock(&door.classify(&Request::default()))
    }

    fn enter(door: &Arc<Door>) -> Permit {
        match knock(door) {
            Knock::Admitted {
                permit,
                would_refuse: None,
            } => permit,
            other => panic!("{other:?}"),
        }
    }

    fn wait(door: &Arc<Door>) -> Waiting {
        match knock(door) {
            Knock::Held(waiting) => waiting,
            other => panic!("{other:?}"),
        }
    }

    fn milliseconds(door: &Door) -> u128 {
        (door.now() - Moment::ZERO).as_millis()
    }

    #[tokio::test(start_paused = true)]
    async fn the_held_are_let_in_at_the_rate() {
        let door = open(settings());
        enter(&door).settle(ANSWERED);
        let waiting: Vec<Waiting> = (0..10).map(|_| wait(&door)).collect();
        assert!(matches!(
            knock(&door),
            Knock::Refused(Refusal {
                reason: Reason::Rate,
                ..
            })
        ));
        for (number, waiting) in (1_u128..).zip(waiting) {
            // The tenth's turn is on its very deadline, where the timer's millisecond decides.
            match waiting.await {
                Ok(permit) => permit.settle(ANSWERED),
                Err(refusal) => assert_eq!((number, refusal.reason), (10, Reason::HoldExpired)),
            }
            assert!(
                (number * 100..=number * 100 + 2).contains(&milliseconds(&door)),
                "{number}"
            );
        }
        assert_eq!((door.snapshot().in_flight, door.snapshot().held), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_settled_permit_wakes_the_next() {
        let door = open(Settings {
            max_in_flight: 1,
            burst: 10.0,
            ..settings()
        });
        let permit = enter(&door);
        let waiting = wait(&door);
        tokio::time::sleep(Duration::from_millis(300)).await;
        drop(permit);
        waiting.await.unwrap().settle(ANSWERED);
        assert_eq!(milliseconds(&door), 300);
        assert_eq!(door.snapshot().in_flight, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_too_long_is_told_so() {
        let door = open(Settings {
            max_in_flight: 1,
            burst: 10.0,
            ..settings()
        });
        let _permit = enter(&door);
        let refusal = wait(&door).await.unwrap_err();
        assert_eq!(refusal.reason, Reason::HoldExpired);
        assert!((1000..=1001).contains(&milliseconds(&door)));
        assert_eq!(door.snapshot().held, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn who_leaves_gives_its_place_to_the_next() {
        let door = open(Settings {
            max_held: 1,
            ..settings()
        });
        enter(&door).settle(ANSWERED);
        let first = wait(&door);
        assert!(matches!(
            knock(&door),
            Knock::Refused(Refusal {
                reason: Reason::HoldFull,
                ..
            })
        ));
        drop(first);
        assert_eq!(door.snapshot().held, 0);
        wait(&door).await.unwrap().settle(ANSWERED);
        assert_eq!(milliseconds(&door), 100);
    }

    #[tokio::test(start_paused = true)]
    async fn a_permit_that_nobody_took_goes_back_with_its_token() {
        // Granted, and dropped before it was looked at.
        let door = open(settings());
        enter(&door).settle(ANSWERED);
        let waiting = wait(&door);
        tokio::time::sleep(Duration::from_millis(150)).await;
        assert_eq!(door.snapshot().in_flight, 1);
        drop(waiting);
        assert_eq!(door.snapshot().in_flight, 0);
        assert!(door.snapshot().tokens >= 1.0);

        // The other end gone before it was granted.
        let door = open(settings());
        enter(&door).settle(ANSWERED);
        let mut waiting = wait(&door);
        waiting.receiver.close();
        tokio::time::sleep(Duration::from_millis(150)).await;
        assert_eq!((door.snapshot().in_flight, door.snapshot().held), (0, 0));
        assert!(door.snapshot().tokens >= 1.0);
    }

    #[tokio::test(start_paused = true)]
    async fn the_burst_comes_back_after_a_slow_start_that_nobody_watches() {
        let door = open(Settings {
            rate: 100.0,
            burst: 100.0,
            ..settings()
        });
        for _ in 0..5 {
            door.report(0, Report::Failed);
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(door.may_dial(0));
        door.report(0, Report::Answered);
        assert!((door.snapshot().tokens - 10.0).abs() < 1.0);
        tokio::time::sleep(Duration::from_secs(12)).await;
        assert!((door.snapshot().tokens - 100.0).abs() < 1.0);
    }

    #[tokio::test(start_paused = true)]
    async fn an_unused_token_serves_the_next_at_once() {
        let door = open(settings());
        let permit = enter(&door);
        let waiting = wait(&door);
        permit.settle(Outcome::Unused);
        waiting.await.unwrap().settle(ANSWERED);
        assert_eq!(milliseconds(&door), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn new_settings_reach_those_who_wait() {
        let slow = Settings {
            rate: 0.1,
            max_wait: Duration::from_mins(1),
            ..settings()
        };
        let door = open(slow.clone());
        enter(&door).settle(ANSWERED);
        let waiting = wait(&door);
        tokio::time::sleep(Duration::from_millis(100)).await;
        door.reconfigure(Settings { rate: 100.0, ..slow });
        waiting.await.unwrap().settle(ANSWERED);
        assert!(
            (109..=112).contains(&milliseconds(&door)),
            "{}",
            milliseconds(&door)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_turn_beyond_the_timers_range_does_no_harm() {
        let never = Settings {
            rate: 1e-9,
            max_wait: Duration::MAX,
            ..settings()
        };
        let door = open(never.clone());
        enter(&door).settle(ANSWERED);
        let waiting = wait(&door);
        tokio::time::sleep(Duration::from_hours(72)).await;
        door.reconfigure(Settings { rate: 1.0, ..never });
        waiting.await.unwrap().settle(ANSWERED);
    }

    /// 1 and 4 threads: the same number is admitted, and the books balance.
    #[test]
    fn threads_share_one_bucket() {
        for threads in [1_usize, 4] {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(threads)
                .enable_time()
                .build()
                .unwrap();
            let never = Settings {
                rate: 1e-6,
                burst: 250.0,
                max_wait: Duration::ZERO,
                ..settings()
            };
            let door = runtime.block_on(async { open(never) });
            let admitted: usize = std::thread::scope(|scope| {
                let knockers: Vec<_> = (0..threads)
                    .map(|_| {
                        scope.spawn(|| {
                            (0..4000 / threads)
                                .filter(|_| match knock(&door) {
                                    Knock::Admitted { permit, .. } => {
                                        permit.settle(ANSWERED);
                                        true
                                    }
                                    _ => false,
                                })
                                .count()
                        })
                    })
                    .collect();
                knockers.into_iter().map(|knocker| knocker.join().unwrap()).sum()
            });
            assert_eq!(admitted, 250, "{threads} threads");
            assert_eq!(door.snapshot().in_flight, 0);
        }
    }
}
