//! The only door: decides over every CONNECT, and settles every seat.

use super::{Outcome, Refusal, Request, Settings};
use crate::moment::Moment;
use crate::reason::Reason;

/// A place among those in flight to a broker. Settled exactly once, by [`Controller::settle`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a seat that is not settled is lost to everybody"]
pub struct Seat {
    pub(super) cost_milli: u64,
}

/// A place among the held; given back by [`Controller::withdraw`] or used up by [`Controller::release`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place(pub(super) u64);

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
        /// To withdraw with.
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
    /// Tokens in the bucket now.
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
    waiters: std::marker::PhantomData<W>,
}

impl<W> Controller<W> {
    /// A controller with a full bucket.
    pub fn new(_settings: Settings, _now: Moment) -> Self {
        unimplemented!()
    }

    /// Takes new settings over; what was issued stays issued, and no fresh burst is granted.
    pub fn reconfigure(&mut self, _settings: Settings, _now: Moment) {
        unimplemented!()
    }

    /// Decides over one CONNECT. `waiter` is called only for [`Verdict::Hold`].
    pub fn decide(
        &mut self,
        _request: Request<'_>,
        _waiter: impl FnOnce(Place) -> W,
        _now: Moment,
    ) -> Verdict {
        unimplemented!()
    }

    /// A held client has left: its place is free, it never took a token. Unknown places (already released) are ignored.
    pub fn withdraw(&mut self, _place: Place, _now: Moment) {
        unimplemented!()
    }

    /// The next held CONNECT whose turn has come or whose time is up; call until `None`.
    pub fn release(&mut self, _now: Moment) -> Option<Released<W>> {
        unimplemented!()
    }

    /// When [`Self::release`] will next have something, unless a seat is settled before; `None`: nobody is held.
    pub fn next_release(&self, _now: Moment) -> Option<Moment> {
        unimplemented!()
    }

    /// An admitted CONNECT has come out.
    pub fn settle(&mut self, _seat: Seat, _outcome: Outcome, _now: Moment) {
        unimplemented!()
    }

    /// Figures for metrics and status.
    pub fn snapshot(&self, _now: Moment) -> Snapshot {
        unimplemented!()
    }
}
