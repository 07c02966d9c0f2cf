//! When somebody's turn comes, as things stand.

use std::time::Duration;

use super::queue::{Claims, Queue};
use super::{Kept, Queues, Tokens};
use crate::moment::Moment;

/// When one who comes now would have its turn, as things stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// When its tokens are there: exact while no reserve serves those ahead, else at the latest.
    pub tokens: Moment,
    /// When its seat is there, at the measured pace; `None`: no pace has been measured.
    pub seat: Option<Moment>,
}

impl<W> Queues<W> {
    /// When one who comes to `lane` now would have its turn behind those ahead of it; what is `kept` is not for it.
    pub fn turn(&self, lane: usize, cost: Tokens, kept: Kept, now: Moment) -> Turn {
        let Some(queue) = self.lanes.get(self.index(lane)) else {
            return Turn {
                tokens: Moment::NEVER,
                seat: None,
            };
        };
        let shared = self.shared_tokens_at(queue, cost, kept.shared, now);
        let tokens = match &queue.reserve {
            Some(reserve) => shared.min(reserve.available_at(cost, queue.hold.cost() + kept.reserve, now)),
            None => shared,
        };
        Turn {
            tokens,
            seat: self.seat_at(queue, now),
        }
    }

    /// When one who is sent away from `lane` can expect a seat; `None`: there is one now. None is taken for longer than
    /// `longest`.
    pub fn expected_seat(&self, lane: usize, longest: Duration, now: Moment) -> Option<Moment> {
        let answers = self.answers_ahead(self.lanes.get(self.index(lane))?);
        let seats = self.supply.max_in_flight as usize;
        (answers > 0).then(|| self.pace.expect(answers, seats, longest, now))
    }

    /// When [`Self::pop_ready`] will next have something, unless a seat is given back before; at the latest
    /// [`Moment::NEVER`].
    pub fn next_ready(&self, now: Moment) -> Moment {
        let mut claims = Claims::default();
        let mut next = Moment::NEVER;
        for (index, _) in self.heads() {
            let Some(queue) = self.lanes.get(index) else {
                continue;
            };
            let cost = queue.next_cost(self.shared.burst());
            if queue.has_own_seat() || (!claims.seats && self.has_shared_seat()) {
                let own = queue
                    .reserve
                    .as_ref()
                    .map(|reserve| reserve.available_at(cost, Tokens::NONE, now));
                let shared = (!claims.tokens).then(|| self.shared.available_at(cost, Tokens::NONE, now));
                next = own.into_iter().chain(shared).fold(next, Moment::min);
            }
            claims.add(queue, cost, self.has_shared_seat(), now);
        }
        next
    }

    /// When the shared bucket has `cost` for one at the end of `queue`, if those of its own or a higher priority take
    /// all they need from it. What their reserves spare it depends on who comes first; it is not promised twice.
    fn shared_tokens_at(&self, queue: &Queue<W>, cost: Tokens, kept: Tokens, now: Moment) -> Moment {
        let ahead = self.lanes.iter().filter(|other| other.priority >= queue.priority);
        let promised = ahead.fold(kept, |sum, other| sum + other.hold.cost());
        self.shared.available_at(cost, promised, now)
    }

    fn seat_at(&self, queue: &Queue<W>, now: Moment) -> Option<Moment> {
        match self.answers_ahead(queue) {
            0 => Some(now),
            answers => self.pace.foresee(answers, now),
        }
    }

    /// How many answers it takes until there is a seat for one more in `queue`.
    fn answers_ahead(&self, queue: &Queue<W>) -> usize {
        if queue.in_flight as usize + queue.hold.len() < queue.seats as usize {
            return 0;
        }
        let ahead = self.lanes.iter().filter(|other| other.priority >= queue.priority);
        let ahead: usize = ahead.map(|other| other.hold.len()).sum();
        let (taken, seats) = (self.shared_seats_taken() as usize, self.shared_seats as usize);
        (ahead + taken + 1).saturating_sub(seats)
    }
}
