//! The gate before TLS as the threads of the daemon see it: locks around the pure [`admission::gate`] and
//! [`admission::sources`], their clock, and the channels to those who wait and to those who hold a place.
//!
//! The locks are held for a few microseconds, never both, and never over an `.await`.
//!
//! [`admission::gate`]: crate::admission::gate
//! [`admission::sources`]: crate::admission::sources

use std::collections::HashMap;
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::admission::gate::{self, Class, Outcome, Place, Released, Spot, Turned, Verdict};
use crate::admission::sources::{self, Exceeded, Sources, Visit};
use crate::clock::Clock;
use crate::moment::Moment;

/// The one gate of the process: every connection goes through, whichever thread or listener it came by.
#[derive(Debug)]
pub struct Gate {
    sources: Mutex<Sources>,
    books: Mutex<Books>,
    clock: Clock,
    /// Told whenever the next change may be due before [`Books::alarm`].
    changed: Notify,
}

/// What the lock is around.
#[derive(Debug)]
struct Books {
    gate: gate::Gate<oneshot::Sender<Answer>>,
    /// How to tell the holder of each place that it is taken away, by the place's number.
    holders: HashMap<u64, oneshot::Sender<()>>,
    /// When [`Gate::release_waiting`] will look by itself.
    alarm: Moment,
}

type Answer = Result<PlaceGuard, Turned>;

/// What can be seen of the gate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Handshakes, at work and waiting.
    pub handshakes: gate::Snapshot,
    /// Source addresses.
    pub sources: sources::Snapshot,
}

/// What becomes of a connection whose ClientHello is whole.
#[derive(Debug)]
pub enum Entry {
    /// Its handshake begins now.
    Place(PlaceGuard),
    /// Waits for its turn.
    Waiting(Waiting),
    /// Is closed at once.
    Turned(Turned),
}

impl Gate {
    /// A gate with all places free; its clock starts now.
    pub fn new(handshakes: &gate::Settings, sources: sources::Settings) -> Arc<Self> {
        Arc::new(Self {
            sources: Mutex::new(Sources::new(sources)),
            books: Mutex::new(Books {
                gate: gate::Gate::new(handshakes, Moment::ZERO),
                holders: HashMap::new(),
                alarm: Moment::NEVER,
            }),
            clock: Clock::start(),
            changed: Notify::new(),
        })
    }

    /// Decides over a connection by the address it came from.
    pub fn arrive(self: &Arc<Self>, address: IpAddr) -> Result<Visitor, Exceeded> {
        let visit = {
            let mut sources = lock(&self.sources);
            sources.enter(address, self.clock.now())?
        };
        Ok(Visitor {
            gate: Arc::clone(self),
            visit: Some(visit),
        })
    }

    /// Decides over a connection whose ClientHello is whole. It waits since it was `accepted`.
    pub fn enter(self: &Arc<Self>, class: Class, accepted: Instant) -> Entry {
        let mut receiver = None;
        let waiter = |_| {
            let (sender, waiting) = oneshot::channel();
            receiver = Some(waiting);
            sender
        };
        let mut books = lock(&self.books);
        let now = self.clock.now();
        match books.gate.enter(class, self.clock.moment(accepted), waiter, now) {
            Verdict::Place(place) => Entry::Place(self.hand_over(&mut books, place)),
            Verdict::Turned(reason) => Entry::Turned(reason),
            Verdict::Wait(spot) => {
                drop(books);
                self.stir();
                Entry::Waiting(Waiting {
                    gate: Arc::clone(self),
                    spot,
                    receiver: receiver.unwrap_or_else(|| oneshot::channel().1),
                    over: false,
                })
            }
        }
    }

    /// Sees to what becomes due with time: tokens, and waits that got too long. Runs for ever. One such loop is enough;
    /// what is due with a place that is given back happens at once and without it.
    pub async fn release_waiting(self: Arc<Self>) {
        loop {
            match self.carry_out(|books, next| books.alarm = next) {
                Moment::NEVER => self.changed.notified().await,
                next => {
                    // An early wake-up costs one look; a `timeout` that ran out is the moment itself.
                    let _ = tokio::time::timeout_at(self.clock.wake(next), self.changed.notified()).await;
                }
            }
        }
    }

    /// Takes new settings over for those who come from now on; who has a place keeps it.
    pub fn reconfigure(self: &Arc<Self>, handshakes: &gate::Settings, sources: sources::Settings) {
        {
            let mut table = lock(&self.sources);
            table.reconfigure(sources, self.clock.now());
        }
        {
            let mut books = lock(&self.books);
            let now = self.clock.now();
            books.gate.reconfigure(handshakes, now);
        }
        self.stir();
    }

    /// Figures for metrics and status.
    pub fn snapshot(&self) -> Snapshot {
        let handshakes = lock(&self.books).gate.snapshot();
        let sources = lock(&self.sources).snapshot();
        Snapshot { handshakes, sources }
    }

    /// Does everything that is due after a change, and sees to it that what will be due is not overslept.
    fn stir(self: &Arc<Self>) {
        let mut closer = false;
        self.carry_out(|books, next| {
            closer = next < books.alarm;
            books.alarm = books.alarm.min(next);
        });
        if closer {
            self.changed.notify_one();
        }
    }

    /// Does everything that is due; `note` is told under the lock when something will be next, and so is the caller.
    fn carry_out(self: &Arc<Self>, note: impl FnOnce(&mut Books, Moment)) -> Moment {
        loop {
            let mut books = lock(&self.books);
            let now = self.clock.now();
            let (waiter, answer) = match books.gate.release(now) {
                None => {
                    let next = books.gate.next_release(now).unwrap_or(Moment::NEVER);
                    note(&mut books, next);
                    return next;
                }
                Some(Released::Revoked(number)) => {
                    if let Some(holder) = books.holders.remove(&number) {
                        // One who is ending by itself is ending.
                        let _ = holder.send(());
                    }
                    continue;
                }
                Some(Released::Turned { waiter, reason }) => (waiter, Err(reason)),
                Some(Released::Place { waiter, place }) => (waiter, Ok(self.hand_over(&mut books, place))),
            };
            drop(books);
            // Outside of the lock, and a place that nobody took goes back without looking further: this loop does.
            if let Err(Ok(mut guard)) = waiter.send(answer)
                && let Some(place) = guard.place.take()
            {
                self.give_back(place, Outcome::Unused);
            }
        }
    }

    fn hand_over(self: &Arc<Self>, books: &mut Books, place: Place) -> PlaceGuard {
        let (sender, revoked) = oneshot::channel();
        books.holders.insert(place.number(), sender);
        PlaceGuard {
            gate: Arc::clone(self),
            place: Some(place),
            revoked,
        }
    }

    fn give_back(&self, place: Place, outcome: Outcome) {
        let mut books = lock(&self.books);
        let now = self.clock.now();
        books.holders.remove(&place.number());
        books.gate.finish(place, outcome, now);
    }
}

fn lock<T>(books: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic inside would be a bug of ours; the books are still the best that there are.
    books.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A connection that counts for its address until this is dropped.
#[must_use = "dropping it ends the visit"]
#[derive(Debug)]
pub struct Visitor {
    gate: Arc<Gate>,
    visit: Option<Visit>,
}

impl Drop for Visitor {
    fn drop(&mut self) {
        if let Some(visit) = self.visit.take() {
            let mut sources = lock(&self.gate.sources);
            sources.leave(visit, self.gate.clock.now());
        }
    }
}

/// A place among the handshakes being worked on. Given back exactly once: by [`Self::finish`], or as
/// [`Outcome::Used`] when it is dropped. The next one's turn begins with it.
#[must_use = "dropping it gives the place back"]
#[derive(Debug)]
pub struct PlaceGuard {
    gate: Arc<Gate>,
    place: Option<Place>,
    revoked: oneshot::Receiver<()>,
}

impl PlaceGuard {
    /// Says what came of it.
    pub fn finish(mut self, outcome: Outcome) {
        self.end(outcome);
    }

    /// Ready when the place is taken away: its holder is to end and drop it, for it is the slowest and others wait.
    /// Not to be waited for again after that.
    pub async fn taken_away(&mut self) {
        // The other end is dropped unsent only together with the gate itself.
        let _ = (&mut self.revoked).await;
    }

    fn end(&mut self, outcome: Outcome) {
        if let Some(place) = self.place.take() {
            self.gate.give_back(place, outcome);
            self.gate.stir();
        }
    }
}

impl Drop for PlaceGuard {
    fn drop(&mut self) {
        self.end(Outcome::Used);
    }
}

/// A wait for a place: resolves to it, or to why there is none. Dropping it ends the wait; a place that was granted in
/// the same moment goes back unused, with its token.
#[must_use = "dropping it ends the wait"]
#[derive(Debug)]
pub struct Waiting {
    gate: Arc<Gate>,
    spot: Spot,
    receiver: oneshot::Receiver<Answer>,
    over: bool,
}

impl Future for Waiting {
    type Output = Result<PlaceGuard, Turned>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = std::task::ready!(Pin::new(&mut self.receiver).poll(context));
        self.over = true;
        // The other end is dropped unanswered only together with the gate itself.
        Poll::Ready(answer.unwrap_or(Err(Turned::Full)))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        lock(&self.gate.books).gate.withdraw(self.spot);
        self.receiver.close();
        if let Ok(Ok(guard)) = self.receiver.try_recv() {
            guard.finish(Outcome::Unused);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::admission::gate::{Budget, LEAST_HELD, PATIENCE};

    const ONE_PLACE: gate::Settings = gate::Settings {
        max_in_flight: 1,
        max_waiting: 100,
        full: None,
        resumed: None,
    };

    /// A gate whose release loop runs.
    fn open(settings: &gate::Settings) -> Arc<Gate> {
        let gate = Gate::new(settings, sources::Settings::default());
        #[expect(clippy::disallowed_methods, reason = "a test's task ends with its runtime")]
        tokio::spawn(Arc::clone(&gate).release_waiting());
        gate
    }

    fn place(gate: &Arc<Gate>, class: Class) -> PlaceGuard {
        match gate.enter(class, Instant::now()) {
            Entry::Place(guard) => guard,
            other => panic!("{other:?}"),
        }
    }

    fn wait(gate: &Arc<Gate>, class: Class) -> Waiting {
        match gate.enter(class, Instant::now()) {
            Entry::Waiting(waiting) => waiting,
            other => panic!("{other:?}"),
        }
    }

    fn milliseconds(gate: &Gate) -> u128 {
        (gate.clock.now() - Moment::ZERO).as_millis()
    }

    fn at_rest(gate: &Gate) -> bool {
        gate.snapshot() == Snapshot::default() && lock(&gate.books).holders.is_empty()
    }

    #[tokio::test(start_paused = true)]
    async fn a_place_that_is_dropped_goes_to_the_next() {
        let gate = open(&ONE_PLACE);
        let first = place(&gate, Class::Full);
        let stranger = wait(&gate, Class::Full);
        let resumer = wait(&gate, Class::Resumed);
        drop(first);
        let second = resumer.await.unwrap();
        assert_eq!(gate.snapshot().handshakes.waiting_full, 1);
        second.finish(Outcome::Used);
        drop(stranger.await.unwrap());
        assert_eq!(milliseconds(&gate), 0);
        assert!(at_rest(&gate));
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_that_comes_with_time_lets_the_next_in() {
        let gate = open(&gate::Settings {
            max_in_flight: 10,
            full: Some(Budget {
                rate: 10.0,
                burst: 1.0,
            }),
            ..ONE_PLACE
        });
        drop(place(&gate, Class::Full));
        let older = wait(&gate, Class::Full);
        let newer = wait(&gate, Class::Full);
        drop(newer.await.unwrap());
        assert!((100..=101).contains(&milliseconds(&gate)));
        drop(older.await.unwrap());
        assert!((200..=202).contains(&milliseconds(&gate)));
        assert!(at_rest(&gate));
    }

    #[tokio::test(start_paused = true)]
    async fn the_slowest_is_told_to_end_and_the_rest_is_turned_away_when_it_does_not() {
        let gate = open(&ONE_PLACE);
        let mut slow = place(&gate, Class::Full);
        let waiting = wait(&gate, Class::Full);
        slow.taken_away().await;
        assert!((LEAST_HELD.as_millis()..=LEAST_HELD.as_millis() + 1).contains(&milliseconds(&gate)));
        assert_eq!(waiting.await.unwrap_err(), Turned::TooLate);
        assert!((PATIENCE.as_millis()..=PATIENCE.as_millis() + 1).contains(&milliseconds(&gate)));
        drop(slow);
        assert!(at_rest(&gate));
    }

    #[tokio::test(start_paused = true)]
    async fn who_leaves_while_waiting_leaves_nothing_behind() {
        let gate = open(&ONE_PLACE);
        let first = place(&gate, Class::Full);
        drop(wait(&gate, Class::Full));
        assert_eq!(gate.snapshot().handshakes.waiting_full, 0);
        let granted = wait(&gate, Class::Full);
        drop(first);
        assert_eq!(gate.snapshot().handshakes.in_flight, 1);
        drop(granted);
        assert!(at_rest(&gate));
    }

    #[tokio::test(start_paused = true)]
    async fn a_crowd_whose_ends_are_gone_does_not_stop_the_gate() {
        let gate = open(&gate::Settings {
            max_waiting: 100_000,
            ..ONE_PLACE
        });
        let first = place(&gate, Class::Full);
        let mut crowd: Vec<Waiting> = (0..50_000).map(|_| wait(&gate, Class::Full)).collect();
        for waiting in &mut crowd {
            waiting.receiver.close();
        }
        drop(first);
        assert_eq!(gate.snapshot().handshakes, gate::Snapshot::default());
        drop(crowd);
        assert!(at_rest(&gate));
    }

    #[tokio::test(start_paused = true)]
    async fn a_newcomer_pushes_the_oldest_out() {
        let gate = open(&gate::Settings {
            max_waiting: 1,
            ..ONE_PLACE
        });
        let _first = place(&gate, Class::Full);
        let older = wait(&gate, Class::Full);
        tokio::time::advance(Duration::from_millis(1)).await;
        let _newer = wait(&gate, Class::Full);
        assert_eq!(older.await.unwrap_err(), Turned::Full);
    }

    #[tokio::test(start_paused = true)]
    async fn a_reload_serves_those_who_wait() {
        let gate = open(&ONE_PLACE);
        let _first = place(&gate, Class::Full);
        let waiting = wait(&gate, Class::Full);
        let two_places = gate::Settings {
            max_in_flight: 2,
            ..ONE_PLACE
        };
        gate.reconfigure(&two_places, sources::Settings::default());
        drop(waiting.await.unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn a_visit_ends_with_its_connection() {
        let limits = sources::Settings {
            rate: None,
            max_connections: Some(1),
        };
        let gate = Gate::new(&ONE_PLACE, limits);
        let address = IpAddr::from([192, 0, 2, 1]);
        let visitor = gate.arrive(address).unwrap();
        assert_eq!(gate.arrive(address).unwrap_err(), Exceeded::Connections);
        drop(visitor);
        drop(gate.arrive(address).unwrap());
        assert!(at_rest(&gate));
    }

    /// Four threads on one gate: never more places than there are, and none is lost.
    #[test]
    fn threads_share_the_places() {
        use std::sync::atomic::{AtomicUsize, Ordering};

        const PLACES: usize = 3;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(4)
            .enable_time()
            .build()
            .unwrap();
        let gate = runtime.block_on(async {
            open(&gate::Settings {
                max_in_flight: PLACES as u32,
                max_waiting: 100_000,
                ..ONE_PLACE
            })
        });
        let (at_work, served) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    runtime.block_on(async {
                        for _ in 0..500 {
                            let guard = match gate.enter(Class::Full, Instant::now()) {
                                Entry::Place(guard) => guard,
                                Entry::Waiting(waiting) => waiting.await.unwrap(),
                                Entry::Turned(reason) => panic!("{reason:?}"),
                            };
                            assert!(at_work.fetch_add(1, Ordering::SeqCst) < PLACES);
                            tokio::task::yield_now().await;
                            at_work.fetch_sub(1, Ordering::SeqCst);
                            drop(guard);
                            served.fetch_add(1, Ordering::SeqCst);
                        }
                    });
                });
            }
        });
        assert_eq!(served.load(Ordering::SeqCst), 4000);
        assert!(at_rest(&gate));
    }
}
