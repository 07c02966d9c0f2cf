//! All brokers together: whether anybody may be admitted at all, and how fast.

use super::breaker::{Access, Breaker, Settings, State};
use crate::moment::Moment;

/// How an attempt on one broker came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// It answered with a CONNACK, whatever the code.
    Answered,
    /// The dial failed, or it broke off or stayed silent before its CONNACK.
    Failed,
    /// The client left first: this tells nothing of the broker.
    Abandoned,
}

/// The breakers of all brokers.
#[derive(Clone, Debug)]
pub struct Brokers {
    settings: Settings,
    /// By the broker's index. `None`: a reload took it away.
    breakers: Vec<Option<Breaker>>,
    /// One has been admitted as a probe and has not come out yet.
    probing: bool,
}

impl Brokers {
    /// `servers` brokers against which nothing speaks yet; at least 1.
    pub fn new(settings: Settings, servers: usize) -> Self {
        Self {
            settings,
            breakers: vec![Some(Breaker::new(settings)); servers.max(1)],
            probing: false,
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
                    .get_or_insert_with(|| Breaker::new(settings))
                    .reconfigure(settings);
            }
        }
    }

    /// Whether somebody may be admitted: everybody while one broker is closed, one probe at a time else.
    pub fn access(&self, now: Moment) -> Access {
        let mut until = Moment::NEVER;
        let mut probe = false;
        for breaker in self.breakers.iter().flatten() {
            match breaker.access(now) {
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
        let Some(Some(breaker)) = self.breakers.get_mut(server) else {
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

    /// An attempt on `server` has come out.
    pub fn report(&mut self, server: usize, report: Report, now: Moment) {
        let Some(Some(breaker)) = self.breakers.get_mut(server) else {
            return;
        };
        match report {
            Report::Answered => breaker.succeeded(now),
            Report::Failed => breaker.failed(now),
            Report::Abandoned => breaker.probe_abandoned(now),
        }
    }

    /// The state of one breaker, as metrics show it.
    pub fn state(&self, server: usize, now: Moment) -> State {
        self.breakers
            .get(server)
            .and_then(Option::as_ref)
            .map_or(State::Open, |breaker| breaker.state(now))
    }

    /// What part of the rate the closed ones bear: less than 1 while some of them start slowly. While none is
    /// closed: what the next one will begin with.
    pub fn capacity(&self, now: Moment) -> f64 {
        let closed = self
            .breakers
            .iter()
            .flatten()
            .map(|breaker| breaker.capacity(now))
            .filter(|capacity| *capacity > 0.0);
        let (sum, count) = closed.fold((0.0, 0), |(sum, count), capacity| (sum + capacity, count + 1));
        if count == 0 {
            super::breaker::SLOW_START
        } else {
            sum / f64::from(count)
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
