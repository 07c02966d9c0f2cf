//! How old a ticket is, whatever the wall clock does.
//!
//! Tickets carry wall-clock time, because other replicas and the next start of the process have to understand it. A
//! wall clock may be stepped: a machine without a battery starts in 1970 and learns the time later. Within a process the
//! monotonic clock tells that it happened, and the time that was valid before goes on, for the tickets of that time.

use std::collections::VecDeque;
use std::time::Duration;

use crate::moment::Moment;

/// Both clocks, read at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Wall clock: milliseconds since 1970.
    pub wall: u64,
    /// Monotonic clock.
    pub moment: Moment,
}

/// From here on a difference between the clocks is a step. Less than this is not worth a second look at every ticket.
const STEP: i64 = 1_000;

/// Steps that are remembered. A clock that is slewed looks like a step every half an hour, and each of them makes so little a difference
/// that the next one's time serves as well; real steps come one in a start.
const MOST_STEPS: usize = 8;

/// The times that were valid within this process.
#[derive(Debug)]
pub(super) struct Timeline {
    /// How long a ticket lives, in milliseconds.
    lifetime: i64,
    /// Wall clock less monotonic clock, in milliseconds.
    offset: i64,
    /// The same before each step, the latest last.
    past: VecDeque<Past>,
}

#[derive(Debug)]
struct Past {
    offset: i64,
    /// Monotonic time of the step, in milliseconds.
    ended: i64,
}

impl Timeline {
    pub(super) fn new(lifetime: Duration, now: Reading) -> Self {
        Self {
            lifetime: i64::try_from(lifetime.as_millis()).unwrap_or(i64::MAX),
            offset: offset(now),
            past: VecDeque::new(),
        }
    }

    /// Whether the wall clock was stepped since the last [`step`](Self::step).
    pub(super) fn is_stepped(&self, now: Reading) -> bool {
        offset(now).saturating_sub(self.offset).abs() >= STEP
    }

    /// Goes on by the wall clock as it is now.
    pub(super) fn step(&mut self, now: Reading) {
        if !self.is_stepped(now) {
            return;
        }
        let ended = monotonic(now);
        self.past
            .retain(|past| ended.saturating_sub(past.ended) <= self.lifetime);
        if self.past.len() >= MOST_STEPS {
            self.past.pop_front();
        }
        self.past.push_back(Past {
            offset: self.offset,
            ended,
        });
        self.offset = offset(now);
    }

    /// Whether a ticket that was issued at this wall-clock time still lives.
    ///
    /// One from the future was issued by a replica whose clock is ahead, or by this machine before its clock was set back. It is
    /// taken up to a lifetime ahead, so that it lives for two of them at most.
    pub(super) fn is_alive(&self, issued: u64, now: Reading) -> bool {
        let issued = i64::try_from(issued).unwrap_or(i64::MAX);
        let monotonic = monotonic(now);
        let age = monotonic.saturating_add(self.offset).saturating_sub(issued);
        if (-self.lifetime..=self.lifetime).contains(&age) {
            return true;
        }
        self.past.iter().any(|past| {
            let age = monotonic.saturating_add(past.offset).saturating_sub(issued);
            issued <= past.ended.saturating_add(past.offset) && age <= self.lifetime
        })
    }
}

fn offset(now: Reading) -> i64 {
    i64::try_from(now.wall)
        .unwrap_or(i64::MAX)
        .saturating_sub(monotonic(now))
}

fn monotonic(now: Reading) -> i64 {
    i64::try_from(now.moment.as_nanos() / 1_000_000).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HOUR: u64 = 3_600_000;
    const DAY: u64 = 24 * HOUR;
    const START: u64 = 1_800_000_000_000;

    /// A machine: time passes, and its wall clock is set.
    struct Machine {
        now: Reading,
        timeline: Timeline,
    }

    impl Machine {
        fn new() -> Self {
            let now = Reading {
                wall: START,
                moment: Moment::from_nanos(5_000_000_000),
            };
            Self {
                now,
                timeline: Timeline::new(Duration::from_millis(DAY), now),
            }
        }

        fn pass(&mut self, milliseconds: u64) {
            self.now.wall += milliseconds;
            self.now.moment = self.now.moment + Duration::from_millis(milliseconds);
        }

        fn set(&mut self, wall: u64) {
            self.now.wall = wall;
            self.timeline.step(self.now);
        }

        fn takes(&self, issued: u64) -> bool {
            self.timeline.is_alive(issued, self.now)
        }
    }

    #[test]
    fn a_ticket_lives_for_its_lifetime_to_the_millisecond() {
        let mut machine = Machine::new();
        let issued = machine.now.wall;
        machine.pass(DAY);
        assert!(machine.takes(issued));
        machine.pass(1);
        assert!(!machine.takes(issued));
    }

    #[test]
    fn a_step_loses_no_ticket_and_each_dies_in_its_own_time() {
        for set_to in [0, START - 40 * DAY, START - HOUR, START + HOUR, START + 900 * DAY] {
            let mut machine = Machine::new();
            let before = machine.now.wall;
            machine.pass(HOUR);
            machine.set(set_to);
            let after = machine.now.wall;
            machine.pass(22 * HOUR);
            assert!(machine.takes(before) && machine.takes(after), "set to {set_to}");
            if set_to.abs_diff(START) > 2 * DAY {
                machine.pass(HOUR + 1);
                assert!(!machine.takes(before) && machine.takes(after), "set to {set_to}");
                machine.pass(HOUR);
                assert!(!machine.takes(after), "set to {set_to}");
            }
        }
    }

    #[test]
    fn what_was_not_issued_before_the_step_gains_nothing_by_it() {
        let mut machine = Machine::new();
        machine.set(START - 100 * DAY);
        machine.pass(HOUR);
        assert!(machine.takes(START));
        assert!(
            !machine.takes(START + 1),
            "later than the step, by the time before it"
        );
    }

    #[test]
    fn a_clock_that_is_ahead_of_ours_is_borne_for_a_lifetime() {
        let machine = Machine::new();
        assert!(machine.takes(START + DAY));
        assert!(!machine.takes(START + DAY + 1));
        assert!(!machine.takes(u64::MAX));
    }

    #[test]
    fn a_slow_clock_that_is_slewed_loses_nothing() {
        let mut machine = Machine::new();
        let issued = machine.now.wall;
        for _ in 0..40 {
            machine.pass(HOUR / 2);
            machine.set(machine.now.wall + 1_000);
        }
        assert!(machine.takes(issued));
        machine.pass(4 * HOUR);
        assert!(!machine.takes(issued));
    }

    proptest! {
        #[test]
        fn no_step_loses_a_ticket_within_its_lifetime(
            events in prop::collection::vec((0..10 * HOUR, prop::option::of(0..4_000_000_000_000_u64)), 1..60),
        ) {
            let mut machine = Machine::new();
            // When it was issued by either clock, and how many steps ago.
            let mut tickets: Vec<(Reading, usize)> = Vec::new();
            for (passes, set) in events {
                tickets.push((machine.now, 0));
                machine.pass(passes);
                if let Some(wall) = set {
                    machine.set(wall);
                    for (_, steps) in &mut tickets {
                        *steps += 1;
                    }
                }
                prop_assert!(machine.timeline.past.len() <= MOST_STEPS);
                for (issued, steps) in &tickets {
                    // A difference of less than a step is not looked at.
                    let age = machine.now.moment.since(issued.moment) + Duration::from_secs(1);
                    if age <= Duration::from_millis(DAY) && *steps <= MOST_STEPS {
                        prop_assert!(machine.takes(issued.wall));
                    }
                }
            }
        }
    }
}
