//! Whose turn it would be: everybody who is refused gets a slot in a queue that nobody has to stand in.
//!
//! The slots are laid one behind the other at the pace of the bucket. A client that can be told (`retry-after-ms`) comes
//! on its slot; one that can't, or does not listen, comes when it comes. Whoever comes once its slot is *due* goes before those
//! who are not: some tokens are kept for the due that are still away, and a stranger gets only what is above
//! them. So a client that is refused again and again gains on the others, and nobody starves.
//!
//! Slots become due in their order, at the pace of the bucket, skipping those whose clients got in before; and at the
//! latest at the time that was promised. A slot whose client does not come within `GRACE` keeps no tokens any more,
//! but stays due.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::bucket::Tokens;
use super::memory::{Key, Memory};
use crate::moment::Moment;

/// Clients a generation: a quarter of a million at about 12 MB. Past it the oldest come as strangers again.
const CAPACITY: usize = 250_000;

/// How long an unused slot is remembered at least; what is promised lies within.
const REMEMBERED: Duration = Duration::from_hours(1);

/// The farthest promise: a day later everything is different.
const FARTHEST: Duration = Duration::from_hours(24);

/// How long tokens are kept for one who is due and away: longer than the pauses of nearly all clients.
const GRACE: Duration = Duration::from_mins(1);

/// Slots are counted in steps of this: a fraction of a token at any rate that a broker bears.
const TICK: Duration = Duration::from_millis(1);

/// Steps with slots that are looked after, as many as there are clients at most. Past it a slot is a promise that keeps
/// no tokens.
const TICKS: usize = 2 * CAPACITY;

/// The book of slots.
#[derive(Clone, Debug)]
pub struct Appointments {
    slots: Memory<Slot>,
    /// Where the next slot begins.
    end: Moment,
    /// Tokens of the clients that are still away, by tick of their slots.
    away: BTreeMap<u64, Tokens>,
    /// Every tick before this one is due.
    due_before: u64,
    /// The ticks that are due and keep tokens, with the moment at which they became due.
    kept: VecDeque<(u64, Moment)>,
    kept_tokens: Tokens,
    /// What the bucket has given since the last slot became due, of which the next ones become so.
    budget: f64,
    updated: Moment,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    at: Moment,
    cost: Tokens,
}

impl Appointments {
    /// An empty book.
    pub fn new(now: Moment) -> Self {
        Self {
            slots: Memory::new(CAPACITY, REMEMBERED),
            end: now,
            away: BTreeMap::new(),
            due_before: 0,
            kept: VecDeque::new(),
            kept_tokens: Tokens::NONE,
            budget: 0.0,
            updated: now,
        }
    }

    /// Goes on to `now` with a bucket that gives `rate` tokens a second.
    pub fn advance(&mut self, rate: f64, now: Moment) {
        let earned = rate * (now - self.updated).as_secs_f64();
        self.updated = self.updated.max(now);
        self.budget += earned;
        while let Some((&tick, &tokens)) = self.away.range(self.due_before..).next() {
            if self.budget < tokens.as_f64() && tick > tick_of(now) {
                break;
            }
            self.budget = (self.budget - tokens.as_f64()).max(0.0);
            self.due_before = tick + 1;
            self.kept.push_back((tick, now));
            self.kept_tokens += tokens;
        }
        if self.away.range(self.due_before..).next().is_none() {
            // Nobody waits for what the bucket gives now, and it is not saved up.
            self.budget = 0.0;
        }
        while let Some((tick, since)) = self.kept.front().copied()
            && now - since > GRACE
        {
            self.kept.pop_front();
            self.kept_tokens -= self.away.remove(&tick).unwrap_or(Tokens::NONE);
        }
    }

    /// Whether `client` has a slot that is due.
    pub fn is_due(&self, client: Key, now: Moment) -> bool {
        self.slots
            .peek(client)
            .is_some_and(|slot| slot.at <= now || tick_of(slot.at) < self.due_before)
    }

    /// Tokens that are kept for those who are due and away.
    pub const fn kept(&self) -> Tokens {
        self.kept_tokens
    }

    /// `client` is refused, and its tokens are not there before `earliest`: its slot, the one that it has already or
    /// a new one behind all others. One that is due stays so, and is told `earliest` as it is.
    pub fn book(&mut self, client: Key, cost: Tokens, rate: f64, earliest: Moment, now: Moment) -> Moment {
        if let Some(slot) = self.slots.get(client, now).copied() {
            let due = slot.at <= now || tick_of(slot.at) < self.due_before;
            return if due { earliest } else { slot.at };
        }
        let at = self.end.max(earliest).min(now + FARTHEST);
        self.end = at + length(cost, rate);
        self.slots.put(client, Slot { at, cost }, now);
        let tick = tick_of(at);
        if tick >= self.due_before && (self.away.len() < TICKS || self.away.contains_key(&tick)) {
            let tokens = self.away.entry(tick).or_insert(Tokens::NONE);
            *tokens += cost;
        }
        at
    }

    /// Where one who can't be remembered would stand: behind all others.
    pub fn behind_all(&self, earliest: Moment) -> Moment {
        self.end.max(earliest)
    }

    /// `client` got in: its slot is free.
    pub fn admitted(&mut self, client: Key) {
        let Some(slot) = self.slots.remove(client) else {
            return;
        };
        let tick = tick_of(slot.at);
        if let Some(tokens) = self.away.get_mut(&tick) {
            let before = *tokens;
            *tokens -= slot.cost;
            if tick < self.due_before {
                self.kept_tokens -= before - *tokens;
            } else if *tokens == Tokens::NONE {
                self.away.remove(&tick);
            }
        }
    }

    /// How many have a slot.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether nobody has a slot.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(milliseconds: u64) -> Moment {
        Moment::ZERO + Duration::from_millis(milliseconds)
    }

    fn one() -> Tokens {
        Tokens::new(1.0)
    }

    fn book(book: &mut Appointments, client: u64, now: u64) -> u64 {
        book.book(Key(client), one(), 10.0, at(now + 50), at(now))
            .as_nanos()
            / 1_000_000
    }

    #[test]
    fn slots_lie_one_behind_the_other() {
        let mut appointments = Appointments::new(at(0));
        assert_eq!(book(&mut appointments, 1, 0), 50);
        assert_eq!(book(&mut appointments, 2, 0), 150);
        assert_eq!(book(&mut appointments, 3, 0), 250);
        assert_eq!(
            book(&mut appointments, 2, 100),
            150,
            "asking again changes nothing"
        );
        assert_eq!(appointments.behind_all(at(0)), at(350));
        assert_eq!(
            book(&mut appointments, 4, 5000),
            5050,
            "nobody stands there any more"
        );
    }

    #[test]
    fn who_comes_on_its_slot_is_due_and_who_comes_early_is_not() {
        let mut appointments = Appointments::new(at(0));
        for client in 0..10 {
            book(&mut appointments, client, 0);
        }
        appointments.advance(0.0, at(449));
        assert!(!appointments.is_due(Key(4), at(449)));
        assert!(appointments.is_due(Key(4), at(450)));
        assert!(!appointments.is_due(Key(99), at(450)), "a stranger");
        assert_eq!(
            book(&mut appointments, 4, 460),
            510,
            "due and refused: as soon as there are tokens"
        );
        assert!(appointments.is_due(Key(4), at(460)), "and keeps its age");
        appointments.admitted(Key(4));
        assert!(!appointments.is_due(Key(4), at(460)));
    }

    #[test]
    fn tokens_are_kept_for_the_due_until_they_come_or_have_had_their_grace() {
        let mut appointments = Appointments::new(at(0));
        for client in 0..10 {
            book(&mut appointments, client, 0);
        }
        assert_eq!(appointments.kept(), Tokens::NONE);
        appointments.advance(0.0, at(500));
        assert_eq!(appointments.kept(), Tokens::new(5.0));
        appointments.admitted(Key(0));
        appointments.admitted(Key(9));
        assert_eq!(appointments.kept(), Tokens::new(4.0));
        appointments.advance(0.0, at(2000));
        assert_eq!(appointments.kept(), Tokens::new(8.0));
        appointments.advance(0.0, at(60_501));
        assert_eq!(
            appointments.kept(),
            Tokens::new(4.0),
            "those that were due at 0.5 s are given up"
        );
        assert!(appointments.is_due(Key(1), at(60_501)));
        appointments.admitted(Key(1));
        assert_eq!(appointments.kept(), Tokens::new(4.0));
        appointments.advance(0.0, at(70_000));
        assert_eq!((appointments.kept(), appointments.away.len()), (Tokens::NONE, 0));
    }

    #[test]
    fn those_who_got_in_before_are_skipped() {
        let mut appointments = Appointments::new(at(0));
        for client in 0..100 {
            book(&mut appointments, client, 0);
        }
        for client in 0..50 {
            appointments.admitted(Key(client));
        }
        // Half a second's worth of tokens: the five behind the fifty.
        appointments.advance(10.0, at(500));
        assert!(appointments.is_due(Key(53), at(500)));
        assert!(!appointments.is_due(Key(56), at(500)));
        assert_eq!(appointments.kept(), Tokens::new(5.0));
    }

    #[test]
    fn what_the_bucket_gives_while_nobody_waits_is_not_saved_up() {
        let mut appointments = Appointments::new(at(0));
        appointments.advance(1000.0, at(100_000));
        for client in 0..100 {
            book(&mut appointments, client, 100_000);
        }
        appointments.advance(10.0, at(100_010));
        assert!(!appointments.is_due(Key(5), at(100_010)));
    }

    #[test]
    fn the_book_is_bounded() {
        let mut appointments = Appointments::new(at(0));
        for client in 0..20_000 {
            let slot = appointments.book(Key(client), one(), 0.001, at(0), at(0));
            assert!(slot <= Moment::ZERO + FARTHEST);
        }
        assert!(appointments.away.len() <= TICKS);
    }

    proptest! {
        /// What is kept is exactly what the due that are away would take, whatever happens in between.
        #[test]
        fn the_kept_tokens_add_up(steps in prop::collection::vec((0_u8..4, 0_u64..40, 0_u64..3000), 1..200)) {
            let mut appointments = Appointments::new(at(0));
            let mut now = 0;
            for (action, client, gap) in steps {
                match action {
                    0 | 1 => {
                        let slot = appointments.book(Key(client), one(), 5.0, at(now), at(now));
                        prop_assert!(slot >= at(now));
                    }
                    2 => appointments.admitted(Key(client)),
                    _ => {
                        now += gap;
                        appointments.advance(5.0, at(now));
                    }
                }
                let counted = appointments.away.range(..appointments.due_before).fold(Tokens::NONE, |sum, (_, tokens)| sum + *tokens);
                prop_assert_eq!(appointments.kept(), counted);
                prop_assert!(counted.as_f64() <= appointments.len() as f64);
            }
        }
    }
}
