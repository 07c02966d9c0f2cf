//! Clients whose CONNECT a broker answered with an end of the connection: whose fault that was nobody says.
//!
//! A broker in trouble breaks off, and so does a sound one before a client id that it does not like, a CONNECT that is too
//! large for it, or a DISCONNECT behind the CONNECT. So each client speaks against the broker once in a row, and one source
//! address never brings together what it takes to be believed: the rest must be said by others.

use std::collections::VecDeque;
use std::time::Duration;

use super::memory::Key;
use crate::moment::Moment;

/// Most that are remembered: with more failures in a row than this to open a breaker, the table would cost memory by
/// configuration and teach no more about who is alone.
const MOST: usize = 64;

/// How long one is remembered after it was last seen: a client that always ends so comes again within this, and a broker
/// that breaks off now and then is heard again.
const REMEMBERED: Duration = Duration::from_mins(2);

/// Who was sent to a broker that broke off. Hashes with a key of the process's own, made by
/// [`super::classify::Classifier::suspect`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Suspect {
    /// Its client id; without one, its source.
    pub client: Key,
    /// Its address: of IPv6 the /64, which is what one customer gets.
    pub source: Key,
}

/// The table of one broker.
#[derive(Clone, Debug, Default)]
pub(super) struct Suspects {
    /// The one seen last at the end; at most as many as it takes to be believed, and [`MOST`].
    known: VecDeque<Known>,
    /// The number of the row that goes on.
    row: u64,
    /// How many have spoken in it and are not forgotten.
    in_row: u32,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    who: Suspect,
    row: u64,
    seen: Moment,
}

impl Suspects {
    pub(super) const fn new() -> Self {
        Self {
            known: VecDeque::new(),
            row: 0,
            in_row: 0,
        }
    }

    /// Another row: who spoke in the last one may speak again.
    pub(super) const fn begin(&mut self) {
        if self.in_row > 0 {
            self.row = self.row.wrapping_add(1);
            self.in_row = 0;
        }
    }

    /// How many clients have spoken in the row, of more than one address if they are as many as are believed.
    pub(super) fn in_row(&mut self, now: Moment) -> u32 {
        self.forget(now);
        self.in_row
    }

    /// `who` has ended so, where `believed` in a row are believed. Whether that is news: of one who was not known to, from
    /// an address of which there are not enough already.
    pub(super) fn note(&mut self, who: Suspect, believed: usize, now: Moment) -> bool {
        let most = believed.clamp(2, MOST);
        self.forget(now);
        while self.known.len() > most {
            self.known.pop_front();
        }
        let (row, place) = (self.row, self.place_of(who.client));
        if let Some(mut known) = place.and_then(|place| self.known.remove(place)) {
            self.in_row += u32::from(known.row != row);
            known.row = row;
            known.seen = now;
            self.known.push_back(known);
            return false;
        }
        let of_its_source = self.known.iter().filter(|known| known.who.source == who.source);
        if of_its_source.count() >= most - 1 {
            return false;
        }
        if self.known.len() >= most {
            self.known.pop_front();
        }
        self.known.push_back(Known { who, row, seen: now });
        self.in_row = self.in_row.saturating_add(1);
        true
    }

    /// The forgotten do not count any more: else one address could bring its number together in the course of hours.
    fn forget(&mut self, now: Moment) {
        let known = self.known.len();
        self.known.retain(|known| now - known.seen < REMEMBERED);
        if self.known.len() < known {
            let row = self.row;
            self.in_row = self
                .known
                .iter()
                .fold(0, |sum, known| sum + u32::from(known.row == row));
        }
    }

    fn place_of(&self, client: Key) -> Option<usize> {
        self.known.iter().position(|known| known.who.client == client)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::ZERO + Duration::from_secs(seconds)
    }

    fn suspect(client: u64, source: u64) -> Suspect {
        Suspect {
            client: Key(client),
            source: Key(1_000_000 + source),
        }
    }

    #[test]
    fn a_client_speaks_once_in_a_row_wherever_it_comes_from() {
        let mut suspects = Suspects::new();
        for (who, is_news, in_row) in [
            (suspect(1, 1), true, 1),
            (suspect(1, 1), false, 1),
            (suspect(1, 2), false, 1),
            (suspect(2, 1), true, 2),
        ] {
            assert_eq!(suspects.note(who, 5, at(0)), is_news);
            assert_eq!(suspects.in_row(at(0)), in_row);
        }
        suspects.begin();
        assert_eq!(suspects.in_row(at(0)), 0);
        assert!(!suspects.note(suspect(1, 1), 5, at(1)), "it is known");
        assert!(!suspects.note(suspect(1, 1), 5, at(1)));
        assert_eq!(suspects.in_row(at(1)), 1, "and is one of another row");
    }

    #[test]
    fn one_source_lacks_one_and_another_adds_it() {
        for (believed, alone) in [(1, 1), (2, 1), (5, 4), (1_000_000, MOST as u64 - 1)] {
            let mut suspects = Suspects::new();
            for client in 0..alone + 200 {
                let is_news = suspects.note(suspect(client, 1), believed, at(0));
                assert_eq!(is_news, client < alone, "{believed}");
            }
            assert_eq!(u64::from(suspects.in_row(at(0))), alone);
            assert!(suspects.note(suspect(999, 2), believed, at(0)), "{believed}");
            assert_eq!(u64::from(suspects.in_row(at(0))), alone + 1);
            assert!(suspects.known.len() <= MOST);
        }
    }

    #[test]
    fn who_is_not_seen_again_is_forgotten_and_counts_no_more() {
        let mut suspects = Suspects::new();
        for client in 0..4 {
            suspects.note(suspect(client, 1), 5, at(0));
        }
        suspects.note(suspect(0, 1), 5, at(100));
        assert_eq!(suspects.in_row(at(119)), 4);
        assert_eq!(suspects.in_row(at(120)), 1);
        assert!(!suspects.note(suspect(0, 1), 5, at(219)));
        assert!(suspects.note(suspect(1, 1), 5, at(219)));
    }
}
