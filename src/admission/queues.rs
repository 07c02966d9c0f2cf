//! Tokens, seats and places, shared out among the lanes.
//!
//! A lane with a reserve has a bucket of its own, and its share of the seats in flight and of the places in the hold;
//! nobody else takes from those, and what it leaves unused is gone. Above its share it competes for the rest like
//! every other lane: higher priority first, within it the oldest.
//!
//! Invariant: who waits ahead of another, and can't be served for want of something shared, lays claim to it; nobody
//! behind takes it, so a large cost is not starved by small ones.

mod foresight;
mod queue;
mod supply;

use std::cmp::Reverse;
use std::time::Duration;

pub use self::foresight::Turn;
use self::queue::{Claims, Queue};
pub use self::queue::{Place, Seat};
pub use self::supply::{Kept, Supply};
use super::Settings;
use super::bucket::{Bucket, Source, Tokens};
use super::hold::Held;
use super::pace::Pace;
use crate::moment::Moment;

/// The lanes with their queues.
#[derive(Debug)]
pub struct Queues<W> {
    /// In the order of the settings, then "default", then those that a reload took away and that are not empty yet.
    lanes: Vec<Queue<W>>,
    supply: Supply,
    shared: Bucket,
    shared_seats: u32,
    max_held: usize,
    shared_places: usize,
    /// The largest cost of a CONNECT: no bucket is smaller.
    largest: Tokens,
    pace: Pace,
    /// Index of the lane "default".
    default: usize,
    next_number: u64,
    next_lane: u32,
}

impl<W> Queues<W> {
    /// Everything full and nobody there.
    pub fn new(settings: &Settings, supply: Supply, now: Moment) -> Self {
        let mut queues = Self {
            lanes: Vec::new(),
            supply,
            shared: Bucket::new(supply.rate, Tokens::new(supply.burst), now),
            shared_seats: 0,
            max_held: 0,
            shared_places: 0,
            largest: Tokens::NONE,
            pace: Pace::default(),
            default: 0,
            next_number: 0,
            next_lane: 0,
        };
        queues.reconfigure(settings, supply, now);
        for queue in &mut queues.lanes {
            queue.reserve = queue
                .reserve
                .as_ref()
                .map(|reserve| Bucket::new(reserve.rate(), reserve.burst(), now));
        }
        queues
    }

    /// Admits one who comes now to `lane`, if its tokens and a seat are there and nobody ahead has a claim to them.
    /// What is `kept` is not for it.
    pub fn admit(&mut self, lane: usize, cost: Tokens, kept: Kept, now: Moment) -> Option<Seat> {
        let index = self.index(lane);
        let queue = self.lanes.get(index)?;
        if !queue.hold.is_empty() {
            return None;
        }
        let priority = queue.priority;
        let mut claims = Claims::default();
        for (ahead, _) in self
            .heads()
            .into_iter()
            .take_while(|(_, head)| head.0 <= Reverse(priority))
        {
            let Some(queue) = self.lanes.get(ahead) else {
                continue;
            };
            claims.tokens |= !queue.has_reserve_for(queue.next_cost(self.shared.burst()), now);
            claims.seats |= !queue.has_own_seat();
        }
        let from_reserve = self.could_serve(index, cost, kept, claims, now)?;
        self.seat(index, cost, from_reserve, now, now)
    }

    /// Admits one come what may, at the shared bucket's expense.
    pub fn admit_anyway(&mut self, lane: usize, cost: Tokens, now: Moment) -> Seat {
        let index = self.index(lane);
        self.shared.owe(cost, now);
        let id = self.enter(index, now);
        Seat {
            lane: id,
            cost,
            from_reserve: false,
        }
    }

    /// Whether `lane` has a reserve.
    pub fn has_reserve(&self, lane: usize) -> bool {
        self.lanes
            .get(self.index(lane))
            .is_some_and(|queue| queue.reserve.is_some())
    }

    /// The bucket that a client of `lane` can count on: the lane's reserve, or else the shared one.
    pub fn source(&self, lane: usize) -> Source {
        self.lanes
            .get(self.index(lane))
            .map_or(Source::SHARED, Queue::source)
    }

    /// Whether one more can be held in `lane`.
    pub fn has_place(&self, lane: usize) -> bool {
        let taken = self
            .lanes
            .iter()
            .map(|queue| queue.hold.len().saturating_sub(queue.places))
            .sum::<usize>();
        let own = self
            .lanes
            .get(self.index(lane))
            .is_some_and(|queue| queue.hold.len() < queue.places);
        own || taken < self.shared_places
    }

    /// Puts one at the end of its lane's queue.
    pub fn push(
        &mut self,
        lane: usize,
        cost: Tokens,
        deadline: Moment,
        now: Moment,
        waiter: impl FnOnce(Place) -> W,
    ) -> Option<Place> {
        let index = self.index(lane);
        let queue = self.lanes.get_mut(index)?;
        let place = Place {
            lane: queue.id,
            number: self.next_number,
        };
        self.next_number += 1;
        queue.hold.push(
            place.number,
            Held {
                cost,
                since: now,
                deadline,
                waiter: waiter(place),
            },
        );
        Some(place)
    }

    /// Takes one out, wherever it stands; `None`: it is not here any more.
    pub fn remove(&mut self, place: Place) -> Option<W> {
        let queue = self.lanes.iter_mut().find(|queue| queue.id == place.lane)?;
        queue.hold.remove(place.number).map(|held| held.waiter)
    }

    /// Takes out and admits the first of those whose turn has come.
    pub fn pop_ready(&mut self, now: Moment) -> Option<(W, Seat)> {
        let mut claims = Claims::default();
        for (index, _) in self.heads() {
            let queue = self.lanes.get(index)?;
            let cost = queue.next_cost(self.shared.burst());
            if let Some(from_reserve) = self.could_serve(index, cost, Kept::NOTHING, claims, now) {
                let Held { waiter, since, .. } = self.lanes.get_mut(index)?.hold.pop()?;
                return self
                    .seat(index, cost, from_reserve, since, now)
                    .map(|seat| (waiter, seat));
            }
            claims.add(queue, cost, self.has_shared_seat(), now);
        }
        None
    }

    /// Takes out and admits the first of all, whether its turn has come or not.
    pub fn pop_anyway(&mut self, now: Moment) -> Option<(W, Seat)> {
        let (index, _) = self.heads().into_iter().next()?;
        let held = self.lanes.get_mut(index)?.hold.pop()?;
        Some((held.waiter, self.admit_anyway(index, held.cost, now)))
    }

    /// Takes out one whose deadline is before `limit`.
    pub fn pop_due_before(&mut self, limit: Moment) -> Option<W> {
        self.lanes
            .iter_mut()
            .find_map(|queue| queue.hold.pop_due_before(limit))
            .map(|held| held.waiter)
    }

    /// The earliest deadline of all that are held.
    pub fn next_deadline(&self) -> Option<Moment> {
        self.lanes
            .iter()
            .filter_map(|queue| queue.hold.next_deadline())
            .min()
    }

    /// Gives a seat back: `worked` when a broker had it, so that it tells of the pace; else its tokens go back too.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "a seat is given back once, so it is used up"
    )]
    pub fn leave(&mut self, seat: Seat, worked: bool, now: Moment) {
        if worked {
            self.pace.answered(now);
        }
        if let Some(queue) = self.lanes.iter_mut().find(|queue| queue.id == seat.lane) {
            queue.in_flight = queue.in_flight.saturating_sub(1);
            if !worked {
                let reserve = queue.reserve.as_mut().filter(|_| seat.from_reserve);
                reserve.unwrap_or(&mut self.shared).refund(seat.cost, now);
            }
        }
        self.pace.note(!self.has_shared_seat(), now);
        self.drop_empty();
    }

    /// The supply that is being shared out.
    pub const fn supply(&self) -> Supply {
        self.supply
    }

    /// Answers a second of a full window; `None`: no pace has been measured.
    pub fn pace(&self) -> Option<f64> {
        self.pace.rate()
    }

    /// A seat was taken for so long: until an answer came, or none.
    pub fn took(&mut self, latency: Duration) {
        self.pace.took(latency);
    }

    /// Whether one without a reserve finds tokens and no seat. Seats that are kept for the lanes do not count, and where
    /// the tokens are the limit the seats are none.
    pub fn is_limited_by_seats(&self, now: Moment) -> bool {
        !self.has_shared_seat() && self.shared.available_at(self.largest, Tokens::NONE, now) <= now
    }

    /// Tokens in all buckets.
    pub fn tokens(&self, now: Moment) -> f64 {
        let reserves = self.lanes.iter().filter_map(|queue| queue.reserve.as_ref());
        self.shared.tokens(now) + reserves.map(|reserve| reserve.tokens(now)).sum::<f64>()
    }

    /// Seats taken.
    pub fn in_flight(&self) -> u32 {
        self.lanes.iter().map(|queue| queue.in_flight).sum()
    }

    /// How many are held.
    pub fn held(&self) -> usize {
        self.lanes.iter().map(|queue| queue.hold.len()).sum()
    }

    /// Tokens that were taken in advance.
    pub fn owed(&self, now: Moment) -> f64 {
        (-self.shared.tokens(now)).max(0.0)
    }

    /// The lanes where somebody waits, in the order in which they are served.
    fn heads(&self) -> Vec<(usize, (Reverse<i32>, u64))> {
        let mut heads: Vec<_> = (0..)
            .zip(&self.lanes)
            .filter_map(|(index, queue)| Some((index, (Reverse(queue.priority), queue.hold.first()?.0))))
            .collect();
        heads.sort_unstable_by_key(|(_, order)| *order);
        heads
    }

    /// Whether one at the head of a lane can be served from its reserve (`true`) or from what is shared (`false`).
    fn could_serve(
        &self,
        index: usize,
        cost: Tokens,
        kept: Kept,
        claims: Claims,
        now: Moment,
    ) -> Option<bool> {
        let queue = self.lanes.get(index)?;
        if !queue.has_own_seat() && (claims.seats || !self.has_shared_seat()) {
            return None;
        }
        // A bucket that is full serves strangers too, or nobody would ever.
        let has = |bucket: &Bucket, kept: Tokens| {
            bucket.available_at(cost, kept.min(bucket.burst() - cost), now) <= now
        };
        if queue
            .reserve
            .as_ref()
            .is_some_and(|reserve| has(reserve, kept.reserve))
        {
            return Some(true);
        }
        (!claims.tokens && has(&self.shared, kept.shared)).then_some(false)
    }

    fn seat(
        &mut self,
        index: usize,
        cost: Tokens,
        from_reserve: bool,
        since: Moment,
        now: Moment,
    ) -> Option<Seat> {
        let queue = self.lanes.get_mut(index)?;
        let bucket = queue
            .reserve
            .as_mut()
            .filter(|_| from_reserve)
            .unwrap_or(&mut self.shared);
        if !bucket.take_waited(cost, since, now) {
            return None;
        }
        let lane = self.enter(index, now);
        Some(Seat {
            lane,
            cost,
            from_reserve,
        })
    }

    fn enter(&mut self, index: usize, now: Moment) -> u32 {
        let mut id = 0;
        if let Some(queue) = self.lanes.get_mut(index) {
            queue.in_flight = queue.in_flight.saturating_add(1);
            id = queue.id;
        }
        self.pace.note(!self.has_shared_seat(), now);
        id
    }

    fn has_shared_seat(&self) -> bool {
        self.shared_seats_taken() < self.shared_seats
    }

    fn shared_seats_taken(&self) -> u32 {
        self.lanes
            .iter()
            .map(|queue| queue.in_flight.saturating_sub(queue.seats))
            .sum()
    }

    /// What a classifier of older settings names and is not there any more is "default".
    fn index(&self, lane: usize) -> usize {
        lane.min(self.default)
    }

    fn fresh(&mut self, name: Option<String>) -> Queue<W> {
        self.next_lane += 1;
        Queue::new(self.next_lane, name)
    }

    /// Forgets the lanes behind "default" that have come empty.
    fn drop_empty(&mut self) {
        let default = self.default;
        let mut index = 0;
        self.lanes.retain(|queue| {
            index += 1;
            index <= default + 1 || queue.in_flight > 0 || !queue.hold.is_empty()
        });
    }
}

#[cfg(test)]
mod tests;
