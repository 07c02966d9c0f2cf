//! Those of one class: their budget, and those of them who wait, by the time since which they do.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::{Budget, Class, PATIENCE};
use crate::admission::bucket::{Bucket, Tokens};
use crate::moment::Moment;

/// Where somebody waits. Ordered by age, the oldest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Spot {
    pub(super) since: Moment,
    /// Tells those of the same moment apart.
    pub(super) number: u64,
    pub(super) class: Class,
}

/// One class. Its size is bounded by the gate, which knows both. Every operation takes O(log n).
#[derive(Debug)]
pub(super) struct Line<W> {
    /// `None`: no limit.
    bucket: Option<Bucket>,
    /// The newest first: a newcomer's place is found at the beginning of each node on the way.
    waiting: BTreeMap<Reverse<Spot>, W>,
}

impl<W> Line<W> {
    pub(super) fn new(budget: Option<Budget>, now: Moment) -> Self {
        Self {
            bucket: budget.map(|budget| bucket(budget, now)),
            waiting: BTreeMap::new(),
        }
    }

    pub(super) fn reconfigure(&mut self, budget: Option<Budget>, now: Moment) {
        self.bucket = match (self.bucket.take(), budget) {
            (_, None) => None,
            (None, Some(budget)) => Some(bucket(budget, now)),
            (Some(mut bucket), Some(budget)) => {
                bucket.reconfigure(budget.rate, Tokens::new(budget.burst), now);
                Some(bucket)
            }
        };
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Takes a token, if there is one.
    pub(super) fn take(&mut self, now: Moment) -> bool {
        self.bucket
            .as_mut()
            .is_none_or(|bucket| bucket.take(tokens(1), now))
    }

    pub(super) fn refund(&mut self, now: Moment) {
        if let Some(bucket) = &mut self.bucket {
            bucket.refund(tokens(1), now);
        }
    }

    /// Takes a token that may not be there. The debt ends at one burst: it is for work that is done, and must not keep
    /// everybody out for long after an attack that made it.
    pub(super) fn owe(&mut self, now: Moment) {
        if let Some(bucket) = &mut self.bucket
            && bucket.tokens(now) > -bucket.burst().as_f64()
        {
            bucket.owe(tokens(1), now);
        }
    }

    /// When there will be a token for one who lets `promised` others go first.
    pub(super) fn token_at(&self, promised: usize, now: Moment) -> Moment {
        self.bucket.as_ref().map_or(now, |bucket| {
            bucket.available_at(tokens(1), tokens(promised), now)
        })
    }

    /// When, as far as tokens go, one of the waiting could have its turn after `promised` others; `None`: there is none.
    pub(super) fn turn_at(&self, promised: usize, now: Moment) -> Option<Moment> {
        (self.len() > promised).then(|| self.token_at(promised, now))
    }

    /// Whether, as far as tokens go, one of the waiting could have its turn after `promised` others.
    pub(super) fn has_turn(&self, promised: usize, now: Moment) -> bool {
        self.turn_at(promised, now).is_some_and(|turn| turn <= now)
    }

    pub(super) fn push(&mut self, spot: Spot, waiter: W) {
        self.waiting.insert(Reverse(spot), waiter);
    }

    pub(super) fn remove(&mut self, spot: Spot) {
        self.waiting.remove(&Reverse(spot));
    }

    pub(super) fn pop_newest(&mut self) -> Option<W> {
        self.waiting.pop_first().map(|(_, waiter)| waiter)
    }

    pub(super) fn pop_oldest(&mut self) -> Option<W> {
        self.waiting.pop_last().map(|(_, waiter)| waiter)
    }

    /// Whether one who waits since then would be older than all others.
    pub(super) fn is_oldest(&self, since: Moment) -> bool {
        self.oldest().is_none_or(|oldest| since < oldest.since)
    }

    /// When the oldest will be too old.
    pub(super) fn late_at(&self) -> Option<Moment> {
        self.oldest().map(|oldest| oldest.since + PATIENCE)
    }

    /// Takes out one who is too old.
    pub(super) fn pop_late(&mut self, now: Moment) -> Option<W> {
        (self.late_at()? <= now).then(|| self.pop_oldest()).flatten()
    }

    /// Takes out the oldest, who is not late, if, with all others going first, there is no token for it in time.
    pub(super) fn pop_hopeless(&mut self, now: Moment) -> Option<W> {
        self.bucket.as_ref()?;
        let turn = self.turn_at(self.len().saturating_sub(1), now)?;
        (turn > self.late_at()?).then(|| self.pop_oldest()).flatten()
    }

    fn oldest(&self) -> Option<&Spot> {
        self.waiting.last_key_value().map(|(Reverse(oldest), _)| oldest)
    }
}

fn bucket(budget: Budget, now: Moment) -> Bucket {
    Bucket::new(budget.rate, Tokens::new(budget.burst), now)
}

fn tokens(count: usize) -> Tokens {
    match count {
        0 => Tokens::NONE,
        count => Tokens::new(count as f64),
    }
}
