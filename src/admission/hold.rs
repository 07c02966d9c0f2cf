//! CONNECTs that wait for their turn: a queue, oldest first, that one can leave from the middle.
//!
//! Invariants: `cost` is the sum over `waiting`; `deadlines` has one element for each of `waiting`. Every operation
//! takes O(log n).

use std::collections::{BTreeMap, BTreeSet};

use super::bucket::Tokens;
use crate::moment::Moment;

/// One that waits.
#[derive(Debug)]
pub struct Held<W> {
    /// Tokens that it will take.
    pub cost: Tokens,
    /// When it came.
    pub since: Moment,
    /// The last moment at which it may be admitted.
    pub deadline: Moment,
    /// What the caller handed in.
    pub waiter: W,
}

/// The queue. Its size is bounded by the caller (`admission.max_held`), who alone knows whom to refuse.
#[derive(Debug)]
pub struct Hold<W> {
    waiting: BTreeMap<u64, Held<W>>,
    /// A reload may shorten `max_wait`: then a younger one has the earlier deadline.
    deadlines: BTreeSet<(Moment, u64)>,
    cost: Tokens,
}

impl<W> Default for Hold<W> {
    fn default() -> Self {
        Self {
            waiting: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            cost: Tokens::NONE,
        }
    }
}

impl<W> Hold<W> {
    /// How many wait.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Tokens that all of them together will take.
    pub const fn cost(&self) -> Tokens {
        self.cost
    }

    /// Puts one at the end: `number` is higher than every one before.
    pub fn push(&mut self, number: u64, held: Held<W>) {
        self.deadlines.insert((held.deadline, number));
        self.cost += held.cost;
        self.waiting.insert(number, held);
    }

    /// The oldest, with its number.
    pub fn first(&self) -> Option<(u64, &Held<W>)> {
        self.waiting
            .first_key_value()
            .map(|(number, held)| (*number, held))
    }

    /// Takes the oldest out.
    pub fn pop(&mut self) -> Option<Held<W>> {
        let number = *self.waiting.first_key_value()?.0;
        self.remove(number)
    }

    /// Takes one out, wherever it stands; `None`: it is not here any more.
    pub fn remove(&mut self, number: u64) -> Option<Held<W>> {
        let held = self.waiting.remove(&number)?;
        self.deadlines.remove(&(held.deadline, number));
        self.cost -= held.cost;
        Some(held)
    }

    /// The earliest deadline.
    pub fn next_deadline(&self) -> Option<Moment> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// Takes out one whose deadline is before `limit`, earliest deadline first.
    pub fn pop_due_before(&mut self, limit: Moment) -> Option<Held<W>> {
        let (deadline, number) = *self.deadlines.first()?;
        if deadline >= limit {
            return None;
        }
        self.remove(number)
    }
}

#[cfg(test)]
impl<W: Copy> Hold<W> {
    /// Who waits.
    pub fn iter(&self) -> impl Iterator<Item = W> {
        self.waiting.values().map(|held| held.waiter)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against a plain vector: the same order, sums and earliest deadline after any sequence of operations.
        #[test]
        fn behaves_like_a_list(steps in prop::collection::vec((0_u8..5, 0_u64..50), 1..200)) {
            let mut hold = Hold::default();
            let mut model: Vec<(u64, u64)> = Vec::new();
            for (number, (action, value)) in (0_u64..).zip(steps) {
                match action {
                    0 | 1 => {
                        let deadline = Moment::from_nanos(value);
                        hold.push(number, Held { cost: Tokens::new(value as f64), since: Moment::ZERO, deadline, waiter: number });
                        model.push((number, value));
                    }
                    2 => {
                        let expected = (!model.is_empty()).then(|| model.remove(0).0);
                        prop_assert_eq!(hold.pop().map(|held| held.waiter), expected);
                    }
                    3 if !model.is_empty() => {
                        let (number, _) = model.remove(value as usize % model.len());
                        prop_assert_eq!(hold.remove(number).map(|held| held.waiter), Some(number));
                        prop_assert!(hold.remove(number).is_none());
                    }
                    _ => {
                        let limit = Moment::from_nanos(value);
                        let expected = model
                            .iter()
                            .enumerate()
                            .filter(|(_, entry)| entry.1 < value)
                            .min_by_key(|(index, entry)| (entry.1, *index))
                            .map(|(index, _)| index);
                        let expected = expected.map(|index| model.remove(index).0);
                        prop_assert_eq!(hold.pop_due_before(limit).map(|held| held.waiter), expected);
                    }
                }
                prop_assert_eq!(hold.len(), model.len());
                prop_assert_eq!(hold.first().map(|(number, _)| number), model.first().map(|entry| entry.0));
                prop_assert_eq!(
                    hold.next_deadline().map(Moment::as_nanos),
                    model.iter().map(|entry| entry.1).min()
                );
                let cost = model.iter().fold(Tokens::NONE, |sum, entry| sum + Tokens::new(entry.1 as f64));
                prop_assert_eq!(hold.cost(), cost);
            }
        }
    }
}
