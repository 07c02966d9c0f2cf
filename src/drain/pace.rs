//! How fast a drain goes: pure.

use std::time::Duration;

use crate::moment::Moment;

/// Spreads notices evenly over a time. Those who have left meanwhile make the gaps longer, those who come make them
/// shorter: whoever is left, the last one's turn comes when the time ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pace {
    /// When the next one's turn comes.
    next: Moment,
    end: Moment,
}

impl Pace {
    /// Begins at `now` and ends `spread` later; without a spread everybody's turn is at once.
    pub(super) fn new(spread: Duration, now: Moment) -> Self {
        Self {
            next: now,
            end: now + spread,
        }
    }

    /// How many of `left` have their turn by `now`. Each counts once: the caller gives them notice.
    pub(super) fn due(&mut self, left: usize, now: Moment) -> usize {
        let mut remaining = left;
        while remaining > 0 && self.next <= now {
            let gap = (self.end - self.next).div_f64(remaining as f64);
            self.next = self.next + gap;
            remaining -= 1;
        }
        left - remaining
    }

    /// When the next one's turn comes; not later than the end.
    pub(super) fn next(&self) -> Moment {
        self.next
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn at(milliseconds: u64) -> Moment {
        Moment::from_nanos(milliseconds * 1_000_000)
    }

    #[test]
    fn table() {
        let mut pace = Pace::new(Duration::from_secs(10), at(0));
        // (now, left, whose turn it is, when the next one's is)
        for (now, left, due, next) in [
            (0, 10, 1, 1_000),
            (500, 9, 0, 1_000),
            (1_000, 9, 1, 2_000),
            // Late: it catches up.
            (3_999, 8, 2, 4_000),
            // Half of the six have left by themselves: 6 s for the three others.
            (4_000, 3, 1, 6_000),
            (6_000, 2, 1, 8_000),
            // Two have come.
            (8_000, 4, 1, 8_500),
            (8_500, 0, 0, 8_500),
            // After a while without anybody: no gap is made up for.
            (9_500, 1, 1, 10_000),
            (10_000, 3, 3, 10_000),
            (99_000, 1, 1, 10_000),
        ] {
            assert_eq!(
                (pace.due(left, at(now)), pace.next()),
                (due, at(next)),
                "at {now}"
            );
        }
    }

    #[test]
    fn without_a_spread_all_go_at_once() {
        assert_eq!(Pace::new(Duration::ZERO, at(7)).due(100_000, at(7)), 100_000);
    }

    proptest! {
        /// Whatever the number, the time and the steps in which it is looked: even to within one, and all by the end.
        #[test]
        fn even_and_whole(
            count in 1usize..5_000,
            spread in 1u64..100_000,
            steps in prop::collection::vec(1u64..500, 1..20),
        ) {
            let mut pace = Pace::new(Duration::from_millis(spread), at(0));
            let mut left = count;
            let mut now = 0;
            for step in steps.iter().cycle() {
                left -= pace.due(left, at(now));
                let even = count as f64 * (now as f64 / spread as f64).min(1.0);
                let given = (count - left) as f64;
                prop_assert!((given - even).abs() <= 1.001, "{given} at {now}, not {even}");
                if now >= spread {
                    break;
                }
                now = (now + step).min(spread);
            }
            prop_assert_eq!(left, 0);
        }
    }
}
