//! All brokers together: whether anybody may be admitted at all, and how fast.

use std::collections::VecDeque;

use super::breaker::{Access, Breaker, Settings, State};
use super::suspects::Suspect;
use crate::moment::Moment;

/// How an attempt on one broker came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// It answered with a CONNACK, whatever the code.
    Answered,
    /// The dial failed, or it stayed silent instead of a CONNACK.
    Failed,
    /// It broke off before its CONNACK, on this client.
    BrokeOff(Suspect),
    /// The client left first: this tells nothing of the broker.
    Abandoned,
}

/// Changes that wait to be told of: with several brokers whose breakers open for the shortest time that there is, some seconds'
/// worth; at 16 bytes each.
const MOST_CHANGES: usize = 1024;

/// How breakers have changed, in that order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// A broker's index, and the state into which its breaker came.
    pub states: VecDeque<(usize, State)>,
    /// How many were given up, the oldest first, since nobody asked in time.
    pub dropped: u64,
}

/// The breakers of all brokers.
#[derive(Clone, Debug)]
pub struct Brokers {
    settings: Settings,
    /// By the broker's index. `None`: a reload took it away.
    breakers: Vec<Option<Known>>,
    /// One has been admitted as a probe and has not come out yet.
    probing: bool,
    changes: Changes,
}

/// The breaker of one broker.
#[derive(Clone, Debug)]
struct Known {
    breaker: Breaker,
    /// The last state of it that is among the changes; closed in the beginning.
    noted: State,
}

impl Brokers {
    /// `servers` brokers against which nothing speaks yet; at least 1.
    pub fn new(settings: Settings, servers: usize) -> Self {
        Self {
            settings,
            breakers: vec![Some(Known::new(settings)); servers.max(1)],
            probing: false,
            changes: Changes::default(),
        }
    }

    /// Other settings, and `servers` brokers, of which the `retired` are not to be used any more. What is known of those
    /// that stay is kept; nothing speaks against a new one, nor against one that comes back.
    pub fn reconfigure(&mut self, settings: Settings, servers: usize, retired: &[usize]) {
        self.settings = settings;
        self.breakers.resize(servers.max(1), None);
        for (server, breaker) in self.breakers.iter_mut().enumerate() {
            if retired.contains(&server) {
                *breaker = None;
            } else {
                breaker
                    .get_or_insert_with(|| Known::new(settings))
                    .breaker
                    .reconfigure(settings);
            }
        }
    }

    /// Whether somebody may be admitted: everybody while one broker is closed, one probe at a time else.
    pub fn access(&self, now: Moment) -> Access {
        let mut until = Moment::NEVER;
        let mut probe = false;
        for known in self.breakers.iter().flatten() {
            match known.breaker.access(now) {
                Access::Free => return Access::Free,
                Access::Probe => probe = true,
                Access::Shut { until: one } => until = until.min(one),
            }
        }
        match probe {
            true if self.probing => Access::Shut { until: now },
            true => Access::Probe,
            false => Access::Shut { until },
        }
    }

    /// One has been admitted by [`Access::Probe`].
    pub const fn probe_admitted(&mut self) {
        self.probing = true;
    }

    /// The one admitted as a probe has come out, whichever way.
    pub const fn probe_settled(&mut self) {
        self.probing = false;
    }

    /// Whether an admitted CONNECT may be sent to `server`; if so and its breaker is half open, it is the probe.
    pub fn may_dial(&mut self, server: usize, now: Moment) -> bool {
        let Some(Some(Known { breaker, .. })) = self.breakers.get_mut(server) else {
            return false;
        };
        match breaker.access(now) {
            Access::Free => true,
            Access::Probe => {
                breaker.probe(now);
                true
            }
            Access::Shut { .. } => false,
        }
    }

    /// An attempt on `server` has come out. Whether that speaks against the broker.
    pub fn report(&mut self, server: usize, report: Report, now: Moment) -> bool {
        // What time alone has changed comes first.
        self.note(server, now);
        let Some(Some(Known { breaker, .. })) = self.breakers.get_mut(server) else {
            return false;
        };
        let blamed = match report {
            Report::Answered => {
                breaker.succeeded(now);
                false
            }
            Report::Failed => {
                breaker.failed(now);
                true
            }
            Report::BrokeOff(who) => breaker.broke_off(who, now),
            Report::Abandoned => {
                breaker.probe_abandoned(now);
                false
            }
        };
        self.note(server, now);
        blamed
    }

    /// All changes since the last call.
    pub fn take_changes(&mut self, now: Moment) -> Changes {
        for server in 0..self.breakers.len() {
            self.note(server, now);
        }
        std::mem::take(&mut self.changes)
    }

    /// The state of one breaker, as metrics show it.
    pub fn state(&self, server: usize, now: Moment) -> State {
        self.breakers
            .get(server)
            .and_then(Option::as_ref)
            .map_or(State::Open, |known| known.breaker.state(now))
    }

    /// What part of the rate the closed ones bear: less than 1 while some of them start slowly. While none is
    /// closed: what the next one will begin with.
    pub fn capacity(&self, now: Moment) -> f64 {
        let closed = self
            .breakers
            .iter()
            .flatten()
            .map(|known| known.breaker.capacity(now))
            .filter(|capacity| *capacity > 0.0);
        let (sum, count) = closed.fold((0.0, 0), |(sum, count), capacity| (sum + capacity, count + 1));
        if count == 0 {
            super::breaker::SLOW_START
        } else {
            sum / f64::from(count)
        }
    }

    fn note(&mut self, server: usize, now: Moment) {
        let Some(Some(known)) = self.breakers.get_mut(server) else {
            return;
        };
        let state = known.breaker.state(now);
        if state == known.noted {
            return;
        }
        known.noted = state;
        if self.changes.states.len() >= MOST_CHANGES {
            self.changes.states.pop_front();
            self.changes.dropped += 1;
        }
        self.changes.states.push_back((server, state));
    }
}

impl Known {
    const fn new(settings: Settings) -> Self {
        Self {
            breaker: Breaker::new(settings),
            noted: State::Closed,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(milliseconds: u64) -> Moment {
        Moment::ZERO + Duration::from_millis(milliseconds)
    }

    fn dead(servers: usize) -> Brokers {
        let mut brokers = Brokers::new(Settings::default(), servers);
        for server in 0..servers {
            for _ in 0..5 {
                brokers.report(server, Report::Failed, at(server as u64 * 100));
            }
        }
        brokers
    }

    #[test]
    fn one_closed_broker_is_enough() {
        let mut brokers = Brokers::new(Settings::default(), 2);
        for _ in 0..5 {
            brokers.report(0, Report::Failed, at(0));
        }
        assert_eq!(brokers.access(at(0)), Access::Free);
        assert!(!brokers.may_dial(0, at(0)));
        assert!(brokers.may_dial(1, at(0)));
        assert!(!brokers.may_dial(2, at(0)), "no such server");
        assert!((brokers.capacity(at(0)) - 1.0).abs() < 1e-9);
        // The dead one is probed by one of those who are admitted anyway.
        assert!(brokers.may_dial(0, at(2000)));
        assert!(!brokers.may_dial(0, at(2000)));
        brokers.report(0, Report::Answered, at(2010));
        assert!(brokers.may_dial(0, at(2010)));
        assert!(
            (brokers.capacity(at(2010)) - 0.55).abs() < 1e-9,
            "one slow, one whole"
        );
    }

    #[test]
    fn without_a_closed_one_a_single_probe_is_admitted() {
        let mut brokers = dead(2);
        assert_eq!(brokers.access(at(500)), Access::Shut { until: at(2000) });
        assert_eq!(brokers.access(at(2000)), Access::Probe);
        brokers.probe_admitted();
        assert_eq!(brokers.access(at(2100)), Access::Shut { until: at(2100) });
        assert!(brokers.may_dial(0, at(2100)));
        brokers.report(0, Report::Failed, at(2200));
        brokers.probe_settled();
        assert_eq!(brokers.access(at(2200)), Access::Probe, "the other one");
        brokers.probe_admitted();
        assert!(!brokers.may_dial(0, at(2200)));
        assert!(brokers.may_dial(1, at(2200)));
        brokers.report(1, Report::Answered, at(2300));
        brokers.probe_settled();
        assert_eq!(brokers.access(at(2300)), Access::Free);
        assert!((brokers.capacity(at(2300)) - 0.1).abs() < 1e-9);
    }

    #[test]
    fn each_change_is_there_once_in_order_however_seldom_somebody_asks() {
        let mut brokers = dead(2);
        let mut expected = vec![(0, State::Open), (1, State::Open)];
        let mut now = 2100;
        for _ in 0..3 {
            assert!(brokers.may_dial(0, at(now)));
            brokers.report(0, Report::Failed, at(now));
            expected.extend([(0, State::HalfOpen), (0, State::Open)]);
            now += 16_000;
        }
        let taken = |brokers: &mut Brokers, now| Vec::from(brokers.take_changes(at(now)).states);
        // The other one has only had its time.
        let mut found = taken(&mut brokers, 34_200);
        assert_eq!(found.pop(), Some((1, State::HalfOpen)));
        assert_eq!(found, expected);
        assert_eq!(taken(&mut brokers, 34_200), []);
        assert!(brokers.may_dial(1, at(34_300)));
        brokers.report(1, Report::Answered, at(34_300));
        assert_eq!(taken(&mut brokers, 34_400), [(1, State::Closed)]);
    }

    #[test]
    fn changes_that_nobody_takes_are_bounded_and_counted() {
        let mut brokers = Brokers::new(
            Settings {
                failures: 1,
                open_for: Duration::from_millis(10),
                ..Settings::default()
            },
            1,
        );
        for cycle in 0..1000_u64 {
            let now = at(cycle * 20);
            brokers.report(0, Report::Failed, now);
            let now = now + Duration::from_millis(10);
            assert!(brokers.may_dial(0, now));
            brokers.report(0, Report::Answered, now);
        }
        let changes = brokers.take_changes(at(20_000));
        assert_eq!(
            (changes.states.len(), changes.dropped),
            (MOST_CHANGES, 3000 - MOST_CHANGES as u64)
        );
        assert_eq!(changes.states.back(), Some(&(0, State::Closed)));
        assert_eq!(brokers.take_changes(at(20_000)), Changes::default());
    }

    #[test]
    fn a_reload_keeps_what_is_known_of_those_who_stay() {
        let mut brokers = dead(2);
        let impatient = Settings {
            failures: 9,
            ..Settings::default()
        };
        brokers.reconfigure(impatient, 3, &[]);
        let states = |brokers: &Brokers| [0, 1, 2].map(|server| brokers.state(server, at(500)));
        assert_eq!(states(&brokers), [State::Open, State::Open, State::Closed]);
        assert_eq!(brokers.access(at(500)), Access::Free);

        // The one that was alive goes: of the dead ones nothing was forgotten.
        brokers.reconfigure(impatient, 3, &[2]);
        assert!(!brokers.may_dial(2, at(500)));
        assert_eq!(brokers.access(at(500)), Access::Shut { until: at(2000) });
        brokers.report(2, Report::Answered, at(500));

        // It comes back, and nothing speaks against it; a dead one goes, and no longer counts.
        brokers.reconfigure(impatient, 3, &[0]);
        assert!(brokers.may_dial(2, at(500)) && !brokers.may_dial(0, at(5000)));
        assert!((brokers.capacity(at(500)) - 1.0).abs() < 1e-9);
    }
}
