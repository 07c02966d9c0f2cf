//! Whose turn it would be: everybody who is refused gets a slot in a queue that nobody has to stand in.
//!
//! Each bucket has a book of its own, in which the slots are laid one behind the other at the pace of the bucket. A
//! client that can be told (`retry-after-ms`) comes on its slot; one that can't, or does not listen, comes when it
//! comes. Whoever comes once its slot is *due* goes before those who are not: some tokens are kept for the due that are
//! still away, and a stranger gets only what is above them. So a client that is refused again and again gains on the
//! others, and nobody starves.

mod book;

use std::time::Duration;

use self::book::Book;
use super::bucket::{Source, Tokens};
use super::memory::{Key, Memory};
use crate::moment::Moment;

/// Clients a generation: a quarter of a million at about 14 MB. Past it the oldest come as strangers again.
const CAPACITY: usize = 250_000;

/// How long an unused slot is remembered at least; what is promised lies within.
const REMEMBERED: Duration = Duration::from_hours(1);

/// The farthest promise: a day later everything is different.
const FARTHEST: Duration = Duration::from_hours(24);

/// What a refused client needs: tokens of a bucket.
#[derive(Clone, Copy, Debug)]
pub struct Need {
    /// Which bucket.
    pub source: Source,
    /// How many.
    pub cost: Tokens,
    /// What the bucket gives a second, above 0: the pace at which its slots are laid.
    pub rate: f64,
    /// Not before this moment, as things stand.
    pub earliest: Moment,
}

/// The books of all buckets.
#[derive(Clone, Debug)]
pub struct Appointments {
    slots: Memory<Slot>,
    /// One for each lane with a reserve, and one.
    books: Vec<(Source, Book)>,
    updated: Moment,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    source: Source,
    at: Moment,
    cost: Tokens,
    /// Its client is away, and its tokens are in the book.
    away: bool,
}

impl Appointments {
    /// Nobody has a slot.
    pub fn new(now: Moment) -> Self {
        Self {
            slots: Memory::new(CAPACITY, REMEMBERED),
            books: Vec::new(),
            updated: now,
        }
    }

    /// Goes on to `now` with these buckets and what they give in tokens a second. The book of a bucket that is not
    /// there any more is closed; its clients are due when they were told.
    pub fn advance(&mut self, buckets: impl Iterator<Item = (Source, f64)>, now: Moment) {
        let elapsed = (now - self.updated).as_secs_f64();
        self.updated = self.updated.max(now);
        let mut open = 0;
        for (source, rate) in buckets {
            // In the order of the buckets, which changes on a reload only: else nothing is moved or made here.
            match self
                .books
                .iter()
                .skip(open)
                .position(|(known, _)| *known == source)
            {
                Some(0) => {}
                Some(further) => self.books.swap(open, open + further),
                None => self.books.insert(open, (source, Book::new(now))),
            }
            if let Some((_, book)) = self.books.get_mut(open) {
                book.advance(rate * elapsed, now);
            }
            open += 1;
        }
        self.books.truncate(open);
    }

    /// Whether `client` has a slot that is due.
    pub fn is_due(&self, client: Key, now: Moment) -> bool {
        self.slots.peek(client).is_some_and(|slot| {
            let book = self.book_of(slot.source);
            slot.at <= now || book.is_some_and(|book| book.is_due(slot.at))
        })
    }

    /// Tokens of a bucket that are kept for those who are due and away.
    pub fn kept(&self, source: Source) -> Tokens {
        self.book_of(source).map_or(Tokens::NONE, Book::kept)
    }

    /// `client` is refused: the time of its slot, of the one that it has already or of a new one behind all others.
    /// One that is due stays so, and is told the next time after `earliest` that no other of the due was told.
    pub fn book(&mut self, client: Key, need: Need, now: Moment) -> Moment {
        let known = self.slots.get(client, now).copied();
        let source = known.map_or(need.source, |slot| slot.source);
        let Some((_, book)) = self.books.iter_mut().find(|(known, _)| *known == source) else {
            return need.earliest;
        };
        match known {
            Some(slot) if slot.at <= now || book.is_due(slot.at) => {
                book.tell_again(need.cost, need.rate, need.earliest)
            }
            Some(slot) => slot.at,
            None => {
                let at = book.lay(need.cost, need.rate, need.earliest, now);
                let away = book.expect(at, need.cost);
                let slot = Slot {
                    source,
                    at,
                    cost: need.cost,
                    away,
                };
                self.slots.put(client, slot, now);
                at
            }
        }
    }

    /// Where one who can't be remembered would stand: behind all others.
    pub fn behind_all(&self, source: Source, earliest: Moment) -> Moment {
        self.book_of(source)
            .map_or(earliest, |book| book.end().max(earliest))
    }

    /// `client` has come and waits. Where it is due nothing has to be kept for it any more; its slot stays its own.
    pub fn arrived(&mut self, client: Key, now: Moment) {
        if !self.is_due(client, now) {
            return;
        }
        let Some(slot) = self.slots.get(client, now) else {
            return;
        };
        let absent = std::mem::replace(&mut slot.away, false);
        let slot = *slot;
        if absent {
            self.has_come(slot);
        }
    }

    /// `client` got in: its slot is free.
    pub fn admitted(&mut self, client: Key) {
        if let Some(slot) = self.slots.remove(client)
            && slot.away
        {
            self.has_come(slot);
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

    fn has_come(&mut self, slot: Slot) {
        if let Some((_, book)) = self.books.iter_mut().find(|(source, _)| *source == slot.source) {
            book.has_come(slot.at, slot.cost);
        }
    }

    fn book_of(&self, source: Source) -> Option<&Book> {
        self.books
            .iter()
            .find_map(|(known, book)| (*known == source).then_some(book))
    }
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

    const SHARED: Source = Source(0);

    fn none() -> Appointments {
        let mut appointments = Appointments::new(at(0));
        advance(&mut appointments, 0.0, 0);
        appointments
    }

    fn advance(appointments: &mut Appointments, rate: f64, now: u64) {
        appointments.advance([(SHARED, rate)].into_iter(), at(now));
    }

    fn need(rate: f64, earliest: u64) -> Need {
        Need {
            source: SHARED,
            cost: one(),
            rate,
            earliest: at(earliest),
        }
    }

    fn book(book: &mut Appointments, client: u64, now: u64) -> u64 {
        let slot = book.book(Key(client), need(10.0, now + 50), at(now));
        slot.as_nanos() / 1_000_000
    }

    fn away(appointments: &Appointments) -> &Book {
        appointments.book_of(SHARED).unwrap()
    }

    #[test]
    fn slots_lie_one_behind_the_other() {
        let mut appointments = none();
        assert_eq!(book(&mut appointments, 1, 0), 50);
        assert_eq!(book(&mut appointments, 2, 0), 150);
        assert_eq!(book(&mut appointments, 3, 0), 250);
        assert_eq!(
            book(&mut appointments, 2, 100),
            150,
            "asking again changes nothing"
        );
        assert_eq!(appointments.behind_all(SHARED, at(0)), at(350));
        assert_eq!(
            book(&mut appointments, 4, 5000),
            5050,
            "nobody stands there any more"
        );
    }

    #[test]
    fn who_comes_on_its_slot_is_due_and_who_comes_early_is_not() {
        let mut appointments = none();
        for client in 0..10 {
            book(&mut appointments, client, 0);
        }
        advance(&mut appointments, 0.0, 449);
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
        let mut appointments = none();
        for client in 0..10 {
            book(&mut appointments, client, 0);
        }
        assert_eq!(appointments.kept(SHARED), Tokens::NONE);
        advance(&mut appointments, 0.0, 500);
        assert_eq!(appointments.kept(SHARED), Tokens::new(5.0));
        appointments.admitted(Key(0));
        appointments.admitted(Key(9));
        assert_eq!(appointments.kept(SHARED), Tokens::new(4.0));
        advance(&mut appointments, 0.0, 2000);
        assert_eq!(appointments.kept(SHARED), Tokens::new(8.0));
        advance(&mut appointments, 0.0, 60_501);
        assert_eq!(
            appointments.kept(SHARED),
            Tokens::new(4.0),
            "those that were due at 0.5 s are given up"
        );
        assert!(appointments.is_due(Key(1), at(60_501)));
        appointments.admitted(Key(1));
        assert_eq!(appointments.kept(SHARED), Tokens::new(4.0));
        advance(&mut appointments, 0.0, 70_000);
        assert_eq!(
            (appointments.kept(SHARED), away(&appointments).looked_after()),
            (Tokens::NONE, 0)
        );
    }

    #[test]
    fn those_who_got_in_before_are_skipped() {
        let mut appointments = none();
        for client in 0..100 {
            book(&mut appointments, client, 0);
        }
        for client in 0..50 {
            appointments.admitted(Key(client));
        }
        // Half a second's worth of tokens: the five behind the fifty.
        advance(&mut appointments, 10.0, 500);
        assert!(appointments.is_due(Key(53), at(500)));
        assert!(!appointments.is_due(Key(56), at(500)));
        assert_eq!(appointments.kept(SHARED), Tokens::new(5.0));
    }

    #[test]
    fn what_the_bucket_gives_while_nobody_waits_is_not_saved_up() {
        let mut appointments = none();
        advance(&mut appointments, 1000.0, 100_000);
        for client in 0..100 {
            book(&mut appointments, client, 100_000);
        }
        advance(&mut appointments, 10.0, 100_010);
        assert!(!appointments.is_due(Key(5), at(100_010)));
    }

    #[test]
    fn who_has_come_keeps_nothing_and_stays_due() {
        let mut appointments = none();
        book(&mut appointments, 1, 0);
        book(&mut appointments, 2, 0);
        advance(&mut appointments, 0.0, 100);
        appointments.arrived(Key(1), at(100));
        appointments.arrived(Key(1), at(100));
        appointments.arrived(Key(2), at(100));
        assert_eq!(appointments.kept(SHARED), Tokens::NONE);
        assert!(appointments.is_due(Key(1), at(100)));
        advance(&mut appointments, 0.0, 200);
        assert_eq!(
            appointments.kept(SHARED),
            one(),
            "the second came before its time, and is expected still"
        );
        appointments.admitted(Key(1));
        appointments.admitted(Key(2));
        assert_eq!(appointments.kept(SHARED), Tokens::NONE);
        assert!(appointments.is_empty());
    }

    #[test]
    fn each_bucket_has_a_book_until_it_is_gone() {
        const RESERVE: Source = Source(7);
        let mut appointments = Appointments::new(at(0));
        let both = [(RESERVE, 10.0), (SHARED, 10.0)];
        appointments.advance(both.into_iter(), at(0));
        let reserved = Need {
            source: RESERVE,
            ..need(10.0, 50)
        };
        assert_eq!(book(&mut appointments, 1, 0), 50);
        assert_eq!(book(&mut appointments, 2, 0), 150);
        assert_eq!(appointments.book(Key(3), reserved, at(0)), at(50));
        assert_eq!(appointments.book(Key(4), reserved, at(0)), at(150));
        assert_eq!(appointments.behind_all(RESERVE, at(0)), at(250));
        appointments.advance([(SHARED, 10.0), (RESERVE, 10.0)].into_iter(), at(60));
        assert_eq!(
            (appointments.kept(SHARED), appointments.kept(RESERVE)),
            (one(), one())
        );
        advance(&mut appointments, 10.0, 70);
        assert_eq!(appointments.kept(RESERVE), Tokens::NONE);
        assert!(!appointments.is_due(Key(4), at(149)));
        assert!(appointments.is_due(Key(4), at(150)));
        assert_eq!(
            appointments.book(Key(4), need(10.0, 500), at(200)),
            at(500),
            "as soon as there is room elsewhere"
        );
        appointments.admitted(Key(4));
        assert_eq!(book(&mut appointments, 5, 70), 250);
    }

    #[test]
    fn those_of_the_due_who_are_refused_are_told_times_of_their_own() {
        let mut appointments = none();
        for client in 0..3 {
            book(&mut appointments, client, 0);
        }
        advance(&mut appointments, 10.0, 5000);
        let told: Vec<u64> = (0..3)
            .map(|client| book(&mut appointments, client, 5000))
            .collect();
        assert_eq!(told, [5050, 5150, 5250]);
    }

    #[test]
    fn the_book_is_bounded() {
        let mut appointments = none();
        for client in 0..20_000 {
            let slot = appointments.book(Key(client), need(0.001, 0), at(0));
            assert!(slot <= Moment::ZERO + FARTHEST);
        }
        assert!(away(&appointments).looked_after() <= book::TICKS);
    }

    proptest! {
        /// What is kept is exactly what the due that are away would take, whatever happens in between.
        #[test]
        fn the_kept_tokens_add_up(steps in prop::collection::vec((0_u8..5, 0_u64..40, 0_u64..3000), 1..200)) {
            let mut appointments = none();
            let mut now = 0;
            for (action, client, gap) in steps {
                match action {
                    0 | 1 => {
                        let slot = appointments.book(Key(client), need(5.0, now), at(now));
                        prop_assert!(slot >= at(now));
                    }
                    2 => appointments.admitted(Key(client)),
                    3 => appointments.arrived(Key(client), at(now)),
                    _ => {
                        now += gap;
                        advance(&mut appointments, 5.0, now);
                    }
                }
                let counted = away(&appointments).count_kept();
                prop_assert_eq!(appointments.kept(SHARED), counted);
                prop_assert!(counted.as_f64() <= appointments.len() as f64);
            }
        }
    }
}
