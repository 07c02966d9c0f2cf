//! The only door: decides over every CONNECT, and settles every seat.

use std::time::Duration;

use super::bucket::Tokens;
use super::classify::Arrival;
pub use super::queues::{Place, Seat};
use super::queues::{Queues, Supply};
use super::{Outcome, Refusal, Settings};
use crate::moment::Moment;
use crate::reason::Reason;

/// What becomes of a CONNECT.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Goes to a broker now.
    Admit {
        /// To be settled.
        seat: Seat,
        /// In a dry run: why it would have been refused.
        would_refuse: Option<Reason>,
    },
    /// Waits; [`Controller::release`] will say when.
    Hold {
        /// To [`Controller::withdraw`] with, unless [`Controller::release`] was first.
        place: Place,
    },
    /// Is answered at once.
    Refuse(Refusal),
}

/// A held CONNECT whose waiting is over.
#[derive(Debug)]
pub enum Released<W> {
    /// Its turn has come.
    Admitted {
        /// What was handed in with it.
        waiter: W,
        /// To be settled.
        seat: Seat,
    },
    /// Its time is up.
    Expired {
        /// What was handed in with it.
        waiter: W,
        /// What to answer.
        refusal: Refusal,
    },
}

/// What can be seen of the controller.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// Tokens a second now.
    pub rate: f64,
    /// Tokens in the bucket now; below zero by what a dry run owes.
    pub tokens: f64,
    /// Seats taken.
    pub in_flight: u32,
    /// CONNECTs held.
    pub held: usize,
}

/// Decides over every CONNECT. `W` is what the caller needs to reach a held one: a channel in the daemon, an index
/// in virtual time.
#[derive(Debug)]
pub struct Controller<W> {
    settings: Settings,
    queues: Queues<W>,
}

impl<W> Controller<W> {
    /// A controller with full buckets.
    pub fn new(settings: Settings, now: Moment) -> Self {
        Self {
            queues: Queues::new(&settings, supply(&settings), now),
            settings,
        }
    }

    /// Takes new settings over; what was issued stays issued, and no fresh burst is granted. Who is held keeps its
    /// deadline and its place.
    pub fn reconfigure(&mut self, settings: Settings, now: Moment) {
        self.queues.reconfigure(&settings, supply(&settings), now);
        self.settings = settings;
    }

    /// Decides over one CONNECT. `waiter` is called only for [`Verdict::Hold`].
    pub fn decide(&mut self, arrival: &Arrival, waiter: impl FnOnce(Place) -> W, now: Moment) -> Verdict {
        if self.settings.dry_run {
            return self.decide_dry(arrival, now);
        }
        if let Some(seat) = self.queues.admit(arrival.lane, arrival.cost, Tokens::NONE, now) {
            return Verdict::Admit {
                seat,
                would_refuse: None,
            };
        }
        let deadline = arrival.since.unwrap_or(now) + self.settings.max_wait;
        let full = || (!self.queues.has_place(arrival.lane)).then_some(Reason::HoldFull);
        if let Some(reason) = self.obstacle(arrival, deadline, now).or_else(full) {
            return Verdict::Refuse(Refusal::new(reason));
        }
        match self.queues.push(arrival.lane, arrival.cost, deadline, waiter) {
            Some(place) => Verdict::Hold { place },
            None => Verdict::Refuse(Refusal::new(Reason::HoldFull)),
        }
    }

    /// A held client has left: its place is free, it never took a token. Unknown places (already released) are ignored.
    pub fn withdraw(&mut self, place: Place, _now: Moment) {
        self.queues.remove(place);
    }

    /// The next held CONNECT whose turn has come or whose time is up; call until `None`.
    pub fn release(&mut self, now: Moment) -> Option<Released<W>> {
        if let Some(waiter) = self.queues.pop_due_before(now) {
            return Some(expired(waiter));
        }
        let ready = if self.settings.dry_run {
            self.queues.pop_anyway(now)
        } else {
            self.queues.pop_ready(now)
        };
        if let Some((waiter, seat)) = ready {
            return Some(Released::Admitted { waiter, seat });
        }
        // The moment of the deadline itself still admits; who is left over then has no later one.
        self.queues
            .pop_due_before(now + Duration::from_nanos(1))
            .map(expired)
    }

    /// When [`Self::release`] will next have something, unless a seat is settled before; `None`: nobody is held.
    pub fn next_release(&self, now: Moment) -> Option<Moment> {
        let deadline = self.queues.next_deadline()?.max(now);
        Some(if self.settings.dry_run {
            now
        } else {
            deadline.min(self.queues.next_ready(now))
        })
    }

    /// An admitted CONNECT has come out.
    pub fn settle(&mut self, seat: Seat, outcome: Outcome, now: Moment) {
        self.queues.leave(seat, outcome != Outcome::Unused, now);
    }

    /// Figures for metrics and status.
    pub fn snapshot(&self, now: Moment) -> Snapshot {
        Snapshot {
            rate: self.queues.supply().rate,
            tokens: self.queues.tokens(now),
            in_flight: self.queues.in_flight(),
            held: self.queues.held(),
        }
    }

    /// Admits everybody. Who would have been held takes its tokens in advance, so that the next one's turn is
    /// reckoned as if it were queued behind it; who would have been refused takes none.
    fn decide_dry(&mut self, arrival: &Arrival, now: Moment) -> Verdict {
        let Arrival { lane, cost, .. } = *arrival;
        if let Some(seat) = self.queues.admit(lane, cost, Tokens::NONE, now) {
            return Verdict::Admit {
                seat,
                would_refuse: None,
            };
        }
        let full = || {
            let waiting = self.queues.owed(now) / cost.as_f64();
            (waiting >= self.settings.max_held as f64).then_some(Reason::HoldFull)
        };
        let would_refuse = self
            .obstacle(arrival, now + self.settings.max_wait, now)
            .or_else(full);
        let paid = if would_refuse.is_none() {
            cost
        } else {
            Tokens::NONE
        };
        Verdict::Admit {
            seat: self.queues.admit_anyway(lane, paid, now),
            would_refuse,
        }
    }

    /// What keeps one who comes now from having its turn by `deadline`, as things stand: the later of tokens and seat.
    fn obstacle(&self, arrival: &Arrival, deadline: Moment, now: Moment) -> Option<Reason> {
        let turn = self.queues.turn(arrival.lane, arrival.cost, Tokens::NONE, now);
        let no_tokens = if self.queues.has_reserve(arrival.lane) {
            Reason::Lane
        } else {
            Reason::Rate
        };
        if self.settings.max_wait.is_zero() {
            return Some(if turn.tokens > now {
                no_tokens
            } else {
                Reason::InFlight
            });
        }
        // Without a measured pace the tokens alone decide.
        let seat = turn.seat.unwrap_or(now);
        if turn.tokens.max(seat) <= deadline {
            return None;
        }
        Some(if turn.tokens >= seat {
            no_tokens
        } else {
            Reason::InFlight
        })
    }
}

const fn supply(settings: &Settings) -> Supply {
    Supply {
        rate: settings.rate,
        burst: settings.burst,
        max_in_flight: settings.max_in_flight,
    }
}

fn expired<W>(waiter: W) -> Released<W> {
    Released::Expired {
        waiter,
        refusal: Refusal::new(Reason::HoldExpired),
    }
}

#[cfg(test)]
mod tests;
