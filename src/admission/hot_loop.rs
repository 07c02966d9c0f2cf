//! Devices that are refused for what they do themselves (wrong credentials, too often) and come again at once, as fast as
//! they are answered. Each attempt costs a handshake, and enough of them crowd out the others before any CONNECT is read:
//! so the answer is kept back for a moment, which is the pause that their firmware lacks.

use std::time::Duration;

use super::memory::{Key, Memory};
use crate::moment::Moment;

/// Who comes again this soon after its answer has no pause.
const AT_ONCE: Duration = Duration::from_secs(1);

/// So many in a row are an accident: a library that tries other versions, a user who tries other passwords.
const ACCIDENTS: u32 = 5;

/// For how long an answer is kept back: one attempt a second is what a device with a pause does, and every client waits
/// longer than that.
const KEPT_BACK: Duration = Duration::from_secs(1);

/// Clients a generation, which lasts for a few seconds: more than can be answered in that time.
const CAPACITY: usize = 50_000;

/// Who was answered within the last seconds.
#[derive(Clone, Debug)]
pub struct HotLoops {
    answered: Memory<Answered>,
}

#[derive(Clone, Copy, Debug)]
struct Answered {
    in_a_row: u32,
    last: Moment,
}

impl Default for HotLoops {
    fn default() -> Self {
        Self {
            answered: Memory::new(CAPACITY, AT_ONCE + KEPT_BACK),
        }
    }
}

impl HotLoops {
    /// `client` is refused for what it does itself: for how long its answer is to be kept back.
    pub fn refused(&mut self, client: Key, now: Moment) -> Duration {
        let known = self.answered.get(client, now).copied();
        let in_a_row = known
            .filter(|answered| now - answered.last < AT_ONCE)
            .map_or(0, |answered| answered.in_a_row)
            .saturating_add(1);
        let wait = if in_a_row > ACCIDENTS {
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
    use super::*;

    fn at(milliseconds: u64) -> Moment {
        Moment::ZERO + Duration::from_millis(milliseconds)
    }

    /// Attempts within ten seconds of one that comes `pause` milliseconds after each answer.
    fn attempts(pause: u64) -> u32 {
        let mut loops = HotLoops::default();
        let (mut now, mut attempts) = (at(0), 0);
        while now < at(10_000) {
            now = now + loops.refused(Key(1), now) + Duration::from_millis(pause);
            attempts += 1;
        }
        attempts
    }

    #[test]
    fn a_hot_loop_comes_to_one_attempt_a_second_and_who_has_a_pause_waits_for_nothing() {
        assert_eq!(attempts(1), 5 + 10);
        assert_eq!(attempts(500), 5 + 5);
        assert_eq!(attempts(1000), 10);
        assert_eq!(attempts(5000), 2);
    }

    #[test]
    fn one_is_not_kept_back_for_another() {
        let mut loops = HotLoops::default();
        for client in 0..1000 {
            assert_eq!(loops.refused(Key(client), at(0)), Duration::ZERO);
        }
        for _ in 0..10 {
            loops.refused(Key(1), at(1));
        }
        assert_eq!(loops.refused(Key(2), at(2)), Duration::ZERO);
        assert_eq!(loops.refused(Key(1), at(2)), KEPT_BACK);
    }
}
