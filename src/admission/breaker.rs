//! The circuit breaker of one broker: after several failures in a row nobody is sent to it for a while, then one real
//! CONNECT probes it, and when that one comes out the crowd is let back in slowly.
//!
//! A broker that breaks off before its CONNACK may not have liked that one client: see [`super::suspects`]. To be careful
//! there costs little, since such a client is told the same by an open breaker.
//!
//! ```text
//! Closed --failures in a row--> Open --time is up, asked--> HalfOpen --success--> Closed (slow start)
//!                                 ^---------- failure: twice as long ---'
//! ```

use std::time::Duration;

use super::suspects::{Suspect, Suspects};
use crate::moment::Moment;

/// `[upstream.breaker]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Failures in a row until it opens, at least 1: dials, CONNACK waits, and clients of more than one address on whom it
    /// broke off.
    pub failures: u32,
    /// How long it stays open the first time; doubles with each failed probe, up to [`LONGEST`].
    pub open_for: Duration,
    /// From a tenth of the rate back to all of it, after it has closed.
    pub slow_start: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            // One lost connection is chance, five in a row are not, and five clients are not many to find out with.
            failures: 5,
            // A broker takes a second or two to start: it is found within that time again.
            open_for: Duration::from_secs(2),
            // Caches, sessions and connection pools of an authentication service warm up in seconds.
            slow_start: Duration::from_secs(10),
        }
    }
}

/// The longest that it stays open: what a broker that is back waits for its first client at most.
pub const LONGEST: Duration = Duration::from_secs(30);

/// Where slow start begins, of 1.
pub(super) const SLOW_START: f64 = 0.1;

/// How long a probe may be under way before another one is sent: longer than any dial and CONNACK wait together, for a
/// probe whose end nobody told.
const LOST_PROBE: Duration = Duration::from_mins(2);

/// The state, as metrics show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// Everybody may go.
    Closed = 0,
    /// One probe is under way or may go.
    HalfOpen = 1,
    /// Nobody may go.
    Open = 2,
}

impl State {
    /// Every state, in the order of its number in the metrics.
    pub const ALL: [Self; 3] = [Self::Closed, Self::HalfOpen, Self::Open];

    /// As audit and live page say it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::HalfOpen => "half-open",
            Self::Open => "open",
        }
    }
}

/// Whether somebody may be sent to the broker now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Everybody.
    Free,
    /// One, who must call [`Breaker::probe`] first.
    Probe,
    /// Nobody until then; while a probe is under way that is not foreseeable, and it is `now`.
    Shut {
        /// When to ask again.
        until: Moment,
    },
}

/// The breaker of one broker.
#[derive(Clone, Debug)]
pub struct Breaker {
    settings: Settings,
    inner: Inner,
    suspects: Suspects,
}

#[derive(Clone, Copy, Debug)]
enum Inner {
    /// `failures`: those in a row that are no client's doing.
    Closed {
        failures: u32,
        since: Option<Moment>,
    },
    Open {
        until: Moment,
        lasts: Duration,
    },
    Probing {
        since: Moment,
        lasts: Duration,
    },
}

impl Breaker {
    /// Closed, and not starting slowly: nothing speaks against the broker yet.
    pub const fn new(settings: Settings) -> Self {
        Self {
            settings,
            inner: Inner::Closed {
                failures: 0,
                since: None,
            },
            suspects: Suspects::new(),
        }
    }

    /// Other settings from now on; an open breaker stays open for as long as it would have.
    pub const fn reconfigure(&mut self, settings: Settings) {
        self.settings = settings;
    }

    /// Whether somebody may go now.
    pub fn access(&self, now: Moment) -> Access {
        match self.inner {
            Inner::Closed { .. } => Access::Free,
            Inner::Open { until, .. } if now < until => Access::Shut { until },
            Inner::Probing { since, .. } if now - since < LOST_PROBE => Access::Shut { until: now },
            Inner::Open { .. } | Inner::Probing { .. } => Access::Probe,
        }
    }

    /// One goes as a probe, after [`Access::Probe`].
    pub fn probe(&mut self, now: Moment) {
        if self.access(now) == Access::Probe
            && let Inner::Open { lasts, .. } | Inner::Probing { lasts, .. } = self.inner
        {
            self.inner = Inner::Probing { since: now, lasts };
        }
    }

    /// The probe has come to nothing without telling of the broker (its client left): the next may go.
    pub fn probe_abandoned(&mut self, now: Moment) {
        if let Inner::Probing { lasts, .. } = self.inner {
            self.inner = Inner::Open { until: now, lasts };
        }
    }

    /// The broker has answered a CONNECT, whatever the code.
    pub const fn succeeded(&mut self, now: Moment) {
        self.suspects.begin();
        match &mut self.inner {
            Inner::Closed { failures, .. } => *failures = 0,
            Inner::Probing { .. } => {
                self.inner = Inner::Closed {
                    failures: 0,
                    since: Some(now),
                }
            }
            // One that went before it opened: the failures after it say more.
            Inner::Open { .. } => {}
        }
    }

    /// A dial failed, or the broker stayed silent instead of a CONNACK.
    pub fn failed(&mut self, now: Moment) {
        match &mut self.inner {
            Inner::Closed { failures, .. } => {
                *failures = failures.saturating_add(1);
                self.open_if(1, now);
            }
            Inner::Probing { lasts, .. } => {
                let lasts = lasts.saturating_mul(2);
                self.open(lasts, now);
            }
            Inner::Open { .. } => {}
        }
    }

    /// The broker broke off instead of a CONNACK on `who`. Whether that speaks against the broker: nobody does twice in a
    /// row, and no source address alone. A probe that does not is given back.
    pub fn broke_off(&mut self, who: Suspect, now: Moment) -> bool {
        let is_news = self.suspects.note(who, self.settings.failures as usize, now);
        match self.inner {
            // Even where one failure opens it: one client is one source.
            Inner::Closed { .. } => self.open_if(2, now),
            Inner::Probing { .. } if is_news => self.failed(now),
            Inner::Probing { .. } => self.probe_abandoned(now),
            Inner::Open { .. } => {}
        }
        is_news
    }

    /// The state as metrics show it.
    pub fn state(&self, now: Moment) -> State {
        match self.inner {
            Inner::Closed { .. } => State::Closed,
            Inner::Open { until, .. } if now < until => State::Open,
            Inner::Open { .. } | Inner::Probing { .. } => State::HalfOpen,
        }
    }

    /// What part of the rate it bears now: 0 unless closed, rising from a tenth to 1 during slow start.
    pub fn capacity(&self, now: Moment) -> f64 {
        let Inner::Closed { since, .. } = self.inner else {
            return 0.0;
        };
        let Some(since) = since else { return 1.0 };
        let part = (now - since).as_secs_f64() / self.settings.slow_start.as_secs_f64().max(1e-9);
        (SLOW_START + (1.0 - SLOW_START) * part).min(1.0)
    }

    /// A closed one opens where there were enough failures in a row, and `least` at least.
    fn open_if(&mut self, least: u32, now: Moment) {
        let Inner::Closed { failures, .. } = self.inner else {
            return;
        };
        let all = failures.saturating_add(self.suspects.in_row(now));
        if all >= self.settings.failures.max(least) {
            self.open(self.settings.open_for, now);
        }
    }

    fn open(&mut self, lasts: Duration, now: Moment) {
        let lasts = lasts.min(LONGEST.max(self.settings.open_for));
        self.inner = Inner::Open {
            until: now + lasts,
            lasts,
        };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::admission::memory::Key;

    fn at(milliseconds: u64) -> Moment {
        Moment::ZERO + Duration::from_millis(milliseconds)
    }

    fn suspect(client: u64, source: u64) -> Suspect {
        Suspect {
            client: Key(client),
            source: Key(1 << 32 | source),
        }
    }

    fn opened() -> Breaker {
        let mut breaker = Breaker::new(Settings::default());
        for _ in 0..5 {
            breaker.failed(at(0));
        }
        breaker
    }

    #[test]
    fn only_failures_in_a_row_open_it() {
        let mut breaker = Breaker::new(Settings::default());
        for _ in 0..100 {
            for _ in 0..4 {
                breaker.failed(at(0));
            }
            assert_eq!(breaker.access(at(0)), Access::Free);
            breaker.succeeded(at(0));
        }
        assert_eq!(opened().access(at(0)), Access::Shut { until: at(2000) });
        assert_eq!(opened().state(at(1999)), State::Open);
    }

    #[test]
    fn one_probe_goes_and_its_success_closes() {
        let mut breaker = opened();
        breaker.succeeded(at(1));
        assert_eq!(breaker.state(at(1)), State::Open, "an answer from before");
        breaker.probe(at(1));
        assert_eq!(breaker.state(at(1)), State::Open, "nobody probes an open one");
        assert_eq!(breaker.access(at(2000)), Access::Probe);
        breaker.probe(at(2000));
        assert_eq!(breaker.access(at(2500)), Access::Shut { until: at(2500) });
        assert_eq!(breaker.state(at(2500)), State::HalfOpen);
        breaker.succeeded(at(2600));
        assert_eq!(breaker.access(at(2600)), Access::Free);
    }

    #[test]
    fn a_failed_probe_opens_it_for_twice_as_long_up_to_the_longest() {
        let mut breaker = opened();
        let mut now = 0;
        for expected in [2, 4, 8, 16, 30, 30] {
            assert_eq!(
                breaker.access(at(now)),
                Access::Shut {
                    until: at(now + expected * 1000)
                }
            );
            now += expected * 1000;
            breaker.probe(at(now));
            breaker.failed(at(now));
        }
        now += 30_000;
        breaker.probe(at(now));
        breaker.succeeded(at(now));
        for _ in 0..5 {
            breaker.failed(at(now));
        }
        assert_eq!(
            breaker.access(at(now)),
            Access::Shut {
                until: at(now + 2000)
            },
            "it begins anew"
        );
    }

    #[test]
    fn an_abandoned_probe_makes_way_for_the_next() {
        let mut breaker = opened();
        breaker.probe(at(2000));
        breaker.probe_abandoned(at(2100));
        assert_eq!(breaker.access(at(2100)), Access::Probe);
        breaker.probe(at(2100));
        breaker.failed(at(2200));
        assert_eq!(breaker.access(at(2200)), Access::Shut { until: at(6200) });
    }

    #[test]
    fn broken_off_clients_open_it_when_they_are_several_of_several_addresses() {
        let mut breaker = Breaker::new(Settings::default());
        for client in 0..100 {
            breaker.broke_off(suspect(client, 1), at(client));
            breaker.broke_off(suspect(0, 2), at(client));
        }
        assert_eq!(breaker.state(at(100)), State::Closed);
        breaker.broke_off(suspect(1000, 2), at(100));
        assert_eq!(breaker.state(at(100)), State::Open);
        // They count together with dials that failed.
        let mut breaker = Breaker::new(Settings::default());
        for client in 0..4 {
            assert!(breaker.broke_off(suspect(client, 1), at(0)));
        }
        breaker.failed(at(0));
        assert_eq!(breaker.state(at(0)), State::Open);
        // And only in a row.
        let mut breaker = Breaker::new(Settings::default());
        for client in 0..100 {
            assert_eq!(breaker.state(at(client)), State::Closed);
            breaker.broke_off(suspect(client, client), at(client));
            if client % 4 == 3 {
                breaker.succeeded(at(client));
            }
        }
    }

    #[test]
    fn where_one_failure_opens_it_one_client_does_not() {
        let impatient = Settings {
            failures: 1,
            ..Settings::default()
        };
        let mut breaker = Breaker::new(impatient);
        for client in 0..9 {
            breaker.broke_off(suspect(client, 1), at(0));
        }
        assert_eq!(breaker.state(at(0)), State::Closed);
        let mut other = breaker.clone();
        other.broke_off(suspect(9, 2), at(0));
        breaker.failed(at(0));
        assert_eq!(
            (breaker.state(at(0)), other.state(at(0))),
            (State::Open, State::Open)
        );
    }

    #[test]
    fn a_probe_that_always_ends_so_is_given_back() {
        let mut breaker = Breaker::new(Settings::default());
        breaker.broke_off(suspect(1, 1), at(0));
        for _ in 0..4 {
            breaker.failed(at(0));
        }
        breaker.probe(at(2000));
        assert!(!breaker.broke_off(suspect(1, 1), at(2001)));
        assert_eq!(breaker.access(at(2001)), Access::Probe);
        breaker.probe(at(2001));
        assert!(breaker.broke_off(suspect(2, 2), at(2002)));
        assert_eq!(breaker.access(at(2002)), Access::Shut { until: at(6002) });
    }

    #[test]
    fn a_probe_without_an_end_does_not_shut_it_for_ever() {
        let mut breaker = opened();
        breaker.probe(at(2000));
        assert!(matches!(breaker.access(at(121_999)), Access::Shut { .. }));
        assert_eq!(breaker.access(at(122_000)), Access::Probe);
    }

    #[test]
    fn slow_start_rises_from_a_tenth_to_all() {
        let mut breaker = opened();
        assert!(breaker.capacity(at(0)).abs() < 1e-9);
        breaker.probe(at(2000));
        assert!(breaker.capacity(at(2000)).abs() < 1e-9);
        breaker.succeeded(at(2000));
        for (after, expected) in [(0, 0.1), (5000, 0.55), (10_000, 1.0), (99_000, 1.0)] {
            assert!(
                (breaker.capacity(at(2000 + after)) - expected).abs() < 1e-9,
                "{after}"
            );
        }
        let at_once = Settings {
            slow_start: Duration::ZERO,
            ..Settings::default()
        };
        breaker.reconfigure(at_once);
        assert!((breaker.capacity(at(2001)) - 1.0).abs() < 1e-9);
        assert!((Breaker::new(Settings::default()).capacity(at(0)) - 1.0).abs() < 1e-9);
    }

    proptest! {
        /// Whatever clients of one address do, and whatever the broker says to others meanwhile: it stays closed; and an open
        /// one is kept from being probed by them for fewer times than it takes failures to open it.
        #[test]
        fn one_address_never_opens_it_and_hardly_keeps_it_open(
            failures in 1_u32..80,
            steps in prop::collection::vec((0_u64..9000, 0_u64..100, any::<bool>()), 1..300),
        ) {
            let settings = Settings { failures, ..Settings::default() };
            let (mut closed, mut open) = (Breaker::new(settings), Breaker::new(settings));
            for _ in 0..failures {
                open.failed(at(0));
            }
            let (mut now, mut rejected) = (0, 0);
            for (gap, client, good) in steps {
                now += gap;
                closed.broke_off(suspect(client, 1), at(now));
                prop_assert_eq!(closed.state(at(now)), State::Closed);
                if good {
                    closed.succeeded(at(now));
                }
                // Within what is remembered.
                if now < 120_000 && open.access(at(now)) == Access::Probe {
                    open.probe(at(now));
                    rejected += u32::from(open.broke_off(suspect(client, 1), at(now)));
                    prop_assert!(rejected < failures.max(2));
                }
            }
        }

        /// Legal transitions only, one probe at a time, and never shut for longer than the longest.
        #[test]
        fn only_legal_transitions(steps in prop::collection::vec((0_u64..20_000, 0_u8..6), 1..200)) {
            let mut breaker = Breaker::new(Settings::default());
            let (mut now, mut in_a_row, mut probing) = (0, 0, false);
            for (number, (gap, action)) in (0..).zip(steps) {
                let before = breaker.state(at(now));
                now += gap;
                let waited = breaker.state(at(now));
                prop_assert!(
                    waited == before || (before, waited) == (State::Open, State::HalfOpen),
                    "time alone only lets a probe in"
                );
                let access = breaker.access(at(now));
                match (access, waited) {
                    (Access::Free, State::Closed) | (Access::Probe, State::HalfOpen) => {}
                    (Access::Shut { until }, State::Open) => {
                        prop_assert!(until > at(now) && until - at(now) <= LONGEST);
                    }
                    (Access::Shut { .. }, State::HalfOpen) => prop_assert!(probing),
                    other => prop_assert!(false, "{other:?}"),
                }
                match action {
                    0 => {
                        breaker.probe(at(now));
                        probing |= access == Access::Probe;
                    }
                    1 => {
                        breaker.succeeded(at(now));
                        in_a_row = 0;
                    }
                    2 => {
                        breaker.probe_abandoned(at(now));
                        probing = false;
                    }
                    3 | 4 => {
                        breaker.failed(at(now));
                        in_a_row += 1;
                    }
                    _ => {
                        breaker.broke_off(suspect(number, number), at(now));
                        in_a_row += 1;
                    }
                }
                let after = breaker.state(at(now));
                match (waited, after) {
                    (State::Closed, State::Open) => prop_assert!(action >= 3 && in_a_row >= 5),
                    (State::HalfOpen, State::Closed) => {
                        prop_assert!(action == 1 && probing);
                        prop_assert!(breaker.capacity(at(now)) <= 0.1 + 1e-9);
                    }
                    (State::HalfOpen, State::Open) => prop_assert!(action >= 3 && probing),
                    (one, same) => prop_assert_eq!(one, same),
                }
                if after != State::HalfOpen {
                    probing = false;
                }
                if after != State::Closed {
                    in_a_row = 0;
                }
            }
        }
    }
}
