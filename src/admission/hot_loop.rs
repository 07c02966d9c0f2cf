//! Devices that are refused for what they do themselves (wrong credentials, too often) and come again at once, as fast as
//! they are answered. Each attempt costs a handshake, and enough of them crowd out the others before any CONNECT is read:
//! so where they are many the answer is kept back for a moment, which is the pause that their firmware lacks.

use std::time::Duration;

use super::bucket::{Bucket, Tokens};
use super::memory::{Key, Memory};
use crate::moment::Moment;

/// Who comes again this soon after its answer has no pause.
const AT_ONCE: Duration = Duration::from_secs(1);

/// So many in a row are an accident: a library that tries other versions, a user who tries other passwords.
const ACCIDENTS: u32 = 5;

/// Answers to hot loops that go out at once, a second, all clients together: their handshakes are no burden to anybody.
const AT_ONCE_A_SECOND: f64 = 50.0;

/// For how long an answer is kept back: a pause that many devices have, and every client waits longer than that.
const KEPT_BACK: Duration = Duration::from_secs(2);

/// Clients a generation, which lasts for a few seconds: more than can be answered in that time.
const CAPACITY: usize = 50_000;

/// Who was answered within the last seconds.
#[derive(Clone, Debug)]
pub struct HotLoops {
    answered: Memory<Answered>,
    at_once: Bucket,
}

#[derive(Clone, Copy, Debug)]
struct Answered {
    in_a_row: u32,
    last: Moment,
}

impl HotLoops {
    /// Nobody is known.
    pub fn new(now: Moment) -> Self {
        Self {
            answered: Memory::new(CAPACITY, AT_ONCE + KEPT_BACK),
            at_once: Bucket::new(AT_ONCE_A_SECOND, Tokens::new(AT_ONCE_A_SECOND), now),
        }
    }

    /// `client` is refused for what it does itself: for how long its answer is to be kept back.
    pub fn refused(&mut self, client: Key, now: Moment) -> Duration {
        let known = self.answered.get(client, now).copied();
        let in_a_row = known
            .filter(|answered| now - answered.last < AT_ONCE)
            .map_or(0, |answered| answered.in_a_row)
            .saturating_add(1);
        let wait = if in_a_row > ACCIDENTS && !self.at_once.take(Tokens::new(1.0), now) {
            KEPT_BACK
        } else {
            Duration::ZERO
        };
        let last = now + wait;
        self.answered.put(client, Answered { in_a_row, last }, now);
        wait
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn at(milliseconds: u64) -> Moment {
        Moment::ZERO + Duration::from_millis(milliseconds)
    }

    /// Attempts within ten seconds of so many that come `pause` milliseconds after each answer.
    fn attempts(clients: u64, pause: u64) -> usize {
        let mut loops = HotLoops::new(at(0));
        let mut next: BTreeSet<(Moment, u64)> = (0..clients).map(|client| (at(0), client)).collect();
        let mut attempts = 0;
        while let Some((now, client)) = next.pop_first()
            && now < at(10_000)
        {
            let answered = now + loops.refused(Key(client), now);
            next.insert((answered + Duration::from_millis(pause), client));
            attempts += 1;
        }
        attempts
    }

    #[test]
    fn many_hot_loops_come_to_an_attempt_each_two_seconds() {
        // Five for each before they are seen, five for each two seconds apart, and 50 a second at once.
        let most = 300 * (5 + 5) + 50 + 10 * 50;
        let found = attempts(300, 3);
        assert!((most - 400..=most).contains(&found), "{found} of {most}");
    }

    #[test]
    fn few_and_those_with_a_pause_wait_for_nothing() {
        assert_eq!(attempts(1, 20), 500);
        assert_eq!(attempts(5000, 1000), 50_000);
        assert_eq!(attempts(5000, 5000), 10_000);
    }

    #[test]
    fn one_is_not_kept_back_for_another() {
        let mut loops = HotLoops::new(at(0));
        let mut kept_back = 0;
        for _ in 0..300 {
            kept_back += u32::from(loops.refused(Key(1), at(1)) > Duration::ZERO);
        }
        assert_eq!(kept_back, 300 - 5 - 50);
        for client in 2..1000 {
            assert_eq!(loops.refused(Key(client), at(2)), Duration::ZERO);
        }
    }
}
