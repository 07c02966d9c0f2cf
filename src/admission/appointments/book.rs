//! The slots of one bucket.
//!
//! They become due in their order, at the pace of the bucket, skipping those whose clients got in before; and at the
//! latest at the time that was promised. A slot whose client does not come within `GRACE` keeps no tokens any more,
//! but stays due.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::{CAPACITY, FARTHEST};
use crate::admission::bucket::Tokens;
use crate::moment::Moment;

/// How long tokens are kept for one who is due and away: longer than the pauses of nearly all clients.
const GRACE: Duration = Duration::from_mins(1);

/// Slots are counted in steps of this: a fraction of a token at any rate that a broker bears.
const TICK: Duration = Duration::from_millis(1);

/// Steps with slots that are looked after, as many as there are clients at most. Past it a slot is a promise that keeps
/// no tokens.
pub(super) const TICKS: usize = 2 * CAPACITY;

#[derive(Clone, Debug)]
pub(super) struct Book {
    /// Where the next slot begins.
    end: Moment,
    /// Where the next of the due who are refused is told to come.
    again: Moment,
    /// Tokens of the clients that are away and not due yet, by tick of their slots. The last one first: a new one, which
    /// is behind all others, is found room for at the beginning of each node on the way.
    ahead: BTreeMap<Reverse<u64>, Tokens>,
    /// The tick of `ahead` that is due next: asked for at every step, and it changes with one in many.
    next: Option<(u64, Tokens)>,
    /// Every tick before this one is due.
    due_before: u64,
    /// The ticks that are due and keep tokens, in their order.
    due: VecDeque<Due>,
    /// The sum over `due`.
    kept: Tokens,
    /// What the bucket has given since the last slot became due, of which the next ones become so.
    budget: f64,
}

/// A tick that is due.
#[derive(Clone, Copy, Debug)]
struct Due {
    tick: u64,
    since: Moment,
    /// Of its clients that are still away.
    tokens: Tokens,
}

impl Book {
    pub(super) fn new(now: Moment) -> Self {
        Self {
            end: now,
            again: now,
            ahead: BTreeMap::new(),
            next: None,
            due_before: 0,
            due: VecDeque::new(),
            kept: Tokens::NONE,
            budget: 0.0,
        }
    }

    /// Goes on to `now`; the bucket has given `earned` tokens since.
    pub(super) fn advance(&mut self, earned: f64, now: Moment) {
        self.budget += earned;
        while let Some((tick, tokens)) = self.next {
            if self.budget < tokens.as_f64() && tick > tick_of(now) {
                break;
            }
            self.ahead.pop_last();
            self.find_next();
            self.budget = (self.budget - tokens.as_f64()).max(0.0);
            self.due_before = tick + 1;
            self.due.push_back(Due {
                tick,
                since: now,
                tokens,
            });
            self.kept += tokens;
        }
        if self.next.is_none() {
            // Nobody waits for what the bucket gives now, and it is not saved up.
            self.budget = 0.0;
        }
        while let Some(first) = self.due.front()
            && now - first.since > GRACE
        {
            self.kept -= first.tokens;
            self.due.pop_front();
        }
    }

    /// Whether a slot at `at` has become due before its time.
    pub(super) fn is_due(&self, at: Moment) -> bool {
        tick_of(at) < self.due_before
    }

    pub(super) const fn kept(&self) -> Tokens {
        self.kept
    }

    pub(super) const fn end(&self) -> Moment {
        self.end
    }

    /// A new slot behind all others.
    pub(super) fn lay(&mut self, cost: Tokens, rate: f64, earliest: Moment, now: Moment) -> Moment {
        let at = self.end.max(earliest).min(now + FARTHEST);
        self.end = at + length(cost, rate);
        at
    }

    /// A time for one that has had its slot.
    pub(super) fn tell_again(&mut self, cost: Tokens, rate: f64, earliest: Moment) -> Moment {
        let at = self.again.max(earliest);
        self.again = at + length(cost, rate);
        at
    }

    /// A client is away whose slot is at `at`. Whether its tokens are looked after.
    pub(super) fn expect(&mut self, at: Moment, cost: Tokens) -> bool {
        let tick = tick_of(at);
        let looked_after = tick >= self.due_before
            && (self.looked_after() < TICKS || self.ahead.contains_key(&Reverse(tick)));
        if looked_after {
            *self.ahead.entry(Reverse(tick)).or_insert(Tokens::NONE) += cost;
            self.find_next();
        }
        looked_after
    }

    /// One that was expected has come.
    pub(super) fn has_come(&mut self, at: Moment, cost: Tokens) {
        let tick = tick_of(at);
        if self.is_due(at) {
            let place = self.due.binary_search_by_key(&tick, |due| due.tick);
            if let Some(due) = place.ok().and_then(|place| self.due.get_mut(place)) {
                self.kept -= due.tokens.min(cost);
                due.tokens -= cost;
            }
        } else if let Some(tokens) = self.ahead.get_mut(&Reverse(tick)) {
            *tokens -= cost;
            if *tokens == Tokens::NONE {
                self.ahead.remove(&Reverse(tick));
            }
            self.find_next();
        }
    }

    fn find_next(&mut self) {
        self.next = self
            .ahead
            .last_key_value()
            .map(|(Reverse(tick), tokens)| (*tick, *tokens));
    }

    /// Steps with slots that are looked after.
    pub(super) fn looked_after(&self) -> usize {
        self.ahead.len() + self.due.len()
    }
}

#[cfg(test)]
impl Book {
    /// The tokens that are kept, counted one by one.
    pub(super) fn count_kept(&self) -> Tokens {
        self.due.iter().fold(Tokens::NONE, |sum, due| sum + due.tokens)
    }
}

fn tick_of(moment: Moment) -> u64 {
    moment.as_nanos() / TICK.as_nanos() as u64
}

fn length(cost: Tokens, rate: f64) -> Duration {
    Duration::try_from_secs_f64(cost.as_f64() / rate)
        .unwrap_or(FARTHEST)
        .min(FARTHEST)
}
