//! One lane: its queue, its reserve, its share of seats and places.

use crate::admission::bucket::{Bucket, Source, Tokens};
use crate::admission::hold::Hold;
use crate::moment::Moment;

/// A place among the held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    pub(super) lane: u32,
    pub(super) number: u64,
}

/// A place among those in flight, with where its tokens came from.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a seat that is not given back is lost to everybody"]
pub struct Seat {
    pub(super) lane: u32,
    /// What goes back when it was not used.
    pub(super) cost: Tokens,
    pub(super) from_reserve: bool,
}

impl Seat {
    /// What it took.
    pub const fn cost(&self) -> Tokens {
        self.cost
    }
}

#[derive(Debug)]
pub(super) struct Queue<W> {
    pub(super) id: u32,
    /// `None`: "default".
    pub(super) name: Option<String>,
    pub(super) priority: i32,
    /// Configured tokens a second, 0: no reserve, no share.
    pub(super) wanted: f64,
    /// What part of the configured rate that is: its share of seats and places as well. It stays when the rate of
    /// the moment changes, so that no share shrinks under those who use it.
    pub(super) portion: f64,
    pub(super) reserve: Option<Bucket>,
    pub(super) seats: u32,
    pub(super) places: usize,
    pub(super) in_flight: u32,
    pub(super) hold: Hold<W>,
}

/// What those ahead lay claim to.
#[derive(Clone, Copy, Default)]
pub(super) struct Claims {
    pub(super) tokens: bool,
    pub(super) seats: bool,
}

impl<W> Queue<W> {
    /// An empty one without reserve or share.
    pub(super) fn new(id: u32, name: Option<String>) -> Self {
        Self {
            id,
            name,
            priority: 0,
            wanted: 0.0,
            portion: 0.0,
            reserve: None,
            seats: 0,
            places: 0,
            in_flight: 0,
            hold: Hold::default(),
        }
    }

    /// What its clients can count on.
    pub(super) fn source(&self) -> Source {
        self.reserve.as_ref().map_or(Source::SHARED, |_| Source(self.id))
    }

    pub(super) fn has_own_seat(&self) -> bool {
        self.in_flight < self.seats
    }

    pub(super) fn has_reserve_for(&self, cost: Tokens, now: Moment) -> bool {
        self.reserve
            .as_ref()
            .is_some_and(|reserve| reserve.available_at(cost, Tokens::NONE, now) <= now)
    }

    /// What the oldest takes. A reload may have made the buckets smaller than what it was to take.
    pub(super) fn next_cost(&self, largest: Tokens) -> Tokens {
        self.hold
            .first()
            .map_or(Tokens::NONE, |(_, held)| held.cost.min(largest))
    }
}

impl Claims {
    /// The head of `queue` could not be served.
    pub(super) fn add<W>(&mut self, queue: &Queue<W>, cost: Tokens, shared_seat: bool, now: Moment) {
        self.tokens |= !queue.has_reserve_for(cost, now);
        self.seats |= !queue.has_own_seat() && !shared_seat;
    }
}

/// A lane's share of `all`, at least one where it has a reserve and there is anything to share.
pub(super) fn share(all: usize, portion: f64) -> usize {
    if portion <= 0.0 {
        return 0;
    }
    ((all as f64 * portion) as usize).max(1).min(all)
}
