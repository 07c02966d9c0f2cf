//! What a replica asks the store for, and what it goes by: no socket, no clock.

use std::time::Duration;

use crate::admission::Share;
use crate::moment::Moment;

/// Time constant of the demand: long enough that one second's crowd is no trend, short enough that a replica to which a
/// balancer sends a tower's devices has its share before their patience is over.
const MEMORY: Duration = Duration::from_millis(500);

/// What a replica was asked for so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Wanted {
    /// Tokens that all CONNECTs would have taken since the start, whatever became of them.
    pub tokens: f64,
    /// CONNECTs that wait for their turn.
    pub held: usize,
    /// Tokens a second that this replica's own pulse finds the brokers to bear from it; `None`: it follows none.
    pub found: Option<f64>,
}

/// What is said to the store.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ask {
    /// Tokens a second that are wanted here.
    pub(super) demand: f64,
    /// The share that is gone by now, 0 to 1.
    pub(super) claim: f64,
    /// Tokens a second that the brokers bear from all replicas, as found here; 0: nothing found.
    pub(super) found: f64,
}

/// What the store says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Grant {
    /// This replica's part of the whole, 0 to 1.
    pub(super) share: f64,
    /// Replicas that are there, with this one.
    pub(super) replicas: u32,
    /// Tokens a second that the brokers bear from all replicas, on average of what they find; 0: nobody finds anything.
    pub(super) found: f64,
}

/// This replica's part, from the first guess on.
#[derive(Clone, Debug)]
pub(super) struct Lease {
    share: Share,
    replicas: u32,
    demand: f64,
    seen: Wanted,
    asked: Moment,
    answered: Option<Moment>,
}

/// Below this share nothing can be said of the whole from what comes through here.
const TELLING: f64 = 0.01;

impl Lease {
    /// Before the store has ever answered: one of `replicas`, all alike.
    pub(super) fn new(replicas: u32, now: Moment) -> Self {
        let replicas = replicas.max(1);
        Self {
            share: Share {
                fraction: 1.0 / f64::from(replicas),
                ceiling: None,
            },
            replicas,
            demand: 0.0,
            seen: Wanted::default(),
            asked: now,
            answered: None,
        }
    }

    /// What to say to the store now.
    pub(super) fn ask(&mut self, wanted: Wanted, now: Moment) -> Ask {
        let elapsed = (now - self.asked).as_secs_f64();
        if elapsed > 0.0 {
            let arrived = (wanted.tokens - self.seen.tokens).max(0.0) / elapsed;
            let weight = 1.0 - (-elapsed / MEMORY.as_secs_f64()).exp();
            self.demand += (arrived - self.demand) * weight;
            self.seen = wanted;
            self.asked = now;
        }
        let fraction = self.share.fraction;
        Ask {
            // Who waits wants to be in within a second: a lull in the arrivals is none for them.
            demand: self.demand + wanted.held as f64,
            claim: fraction,
            found: wanted
                .found
                .filter(|_| fraction >= TELLING)
                .map_or(0.0, |found| found / fraction),
        }
    }

    /// The store has answered.
    pub(super) fn granted(&mut self, grant: Grant, now: Moment) {
        self.share = Share {
            fraction: grant.share.clamp(0.0, 1.0),
            ceiling: (grant.found > 0.0).then_some(grant.found),
        };
        self.replicas = grant.replicas.max(1);
        self.answered = Some(now);
    }

    /// What to go by. While the store is silent it stays: all replicas keep theirs, and together they are what they were.
    pub(super) const fn share(&self) -> Share {
        self.share
    }

    /// Replicas that share the budget, as last heard.
    pub(super) const fn replicas(&self) -> u32 {
        self.replicas
    }

    /// Since when the store is silent; `None`: it has never answered.
    pub(super) fn staleness(&self, now: Moment) -> Option<Duration> {
        self.answered.map(|answered| now - answered)
    }
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "what is handed through is exact")]
mod tests {
    use super::*;

    fn at(milliseconds: u64) -> Moment {
        Moment::from_nanos(milliseconds * 1_000_000)
    }

    fn wanted(tokens: f64) -> Wanted {
        Wanted {
            tokens,
            ..Wanted::default()
        }
    }

    #[test]
    fn before_the_first_answer_it_is_one_of_as_many_as_were_named() {
        for (replicas, fraction) in [(0, 1.0), (1, 1.0), (4, 0.25)] {
            let lease = Lease::new(replicas, at(0));
            assert_eq!(
                lease.share(),
                Share {
                    fraction,
                    ceiling: None
                }
            );
            assert_eq!(lease.staleness(at(7)), None);
        }
    }

    #[test]
    fn the_demand_follows_within_seconds() {
        let mut lease = Lease::new(1, at(0));
        let mut ask = None;
        for step in 1..=20 {
            ask = Some(lease.ask(
                wanted(300.0 * f64::from(step) / 10.0),
                at(u64::from(step as u32) * 100),
            ));
        }
        let demand = ask.unwrap().demand;
        assert!((290.0..=300.0).contains(&demand), "{demand}");
        let quiet = lease.ask(wanted(600.0), at(6_000)).demand;
        assert!(quiet < 1.0, "{quiet}");
    }

    #[test]
    fn who_waits_is_a_demand() {
        let mut lease = Lease::new(1, at(0));
        let waiting = Wanted {
            held: 40,
            ..Wanted::default()
        };
        assert!((lease.ask(waiting, at(100)).demand - 40.0).abs() < 1e-9);
    }

    #[test]
    fn what_is_found_here_is_told_of_the_whole() {
        let mut lease = Lease::new(4, at(0));
        let found = Wanted {
            found: Some(50.0),
            ..Wanted::default()
        };
        assert_eq!(lease.ask(found, at(100)).found, 200.0);
        lease.granted(
            Grant {
                share: 0.001,
                replicas: 4,
                found: 180.0,
            },
            at(110),
        );
        assert_eq!(lease.share().ceiling, Some(180.0));
        assert_eq!(lease.ask(found, at(200)).found, 0.0, "too little to tell");
    }

    #[test]
    fn a_silent_store_changes_nothing() {
        let mut lease = Lease::new(1, at(0));
        let grant = Grant {
            share: 0.3,
            replicas: 3,
            found: 0.0,
        };
        lease.granted(grant, at(100));
        for now in [200, 1_000, 100_000] {
            let ask = lease.ask(wanted(1e6), at(now));
            assert_eq!((ask.claim, lease.share().fraction), (0.3, 0.3));
            assert_eq!(lease.staleness(at(now)), Some(Duration::from_millis(now - 100)));
        }
    }
}
