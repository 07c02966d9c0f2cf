//! Clients whose credentials the broker has refused: after a few refusals in a row the proxy repeats the broker's
//! answer from memory, so that a fleet with a wrong password does not drown the authentication service.

use std::time::Duration;

use super::bucket::{Bucket, Tokens};
use super::memory::{Key, Memory};
use crate::moment::Moment;

/// `[admission.bad_credentials]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Refusals in a row by the broker before the proxy answers for it; 0: never.
    pub after: u32,
    /// For how long it does so at first; doubles with each further refusal by the broker.
    pub first: Duration,
    /// For how long at most.
    pub most: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            // A broker that is restarting its authentication refuses once or twice without meaning it.
            after: 3,
            // The shortest pause of a device that knows a pause.
            first: Duration::from_secs(5),
            // Who corrects the account on the broker's side waits this long for the devices at most.
            most: Duration::from_mins(10),
        }
    }
}

/// Entries a generation: 100,000 devices with wrong passwords are remembered at about 6 MB. Past it the oldest are
/// forgotten and ask the broker again.
const CAPACITY: usize = 100_000;

/// Refused credentials whose time is over are tried again at this rate, all clients together, while they keep
/// being refused. A success doubles it, so a repaired authentication service has its fleet back in seconds.
const RETRIES: f64 = 2.0;

/// Where it no longer limits: above the rate of any broker.
const ALL_RETRIES: f64 = 1e6;

/// The memory of refused credentials, by a keyed hash of client id, user name and password: a corrected password is
/// tried at once, and nobody locks out another.
#[derive(Clone, Debug)]
pub struct Credentials {
    settings: Settings,
    known: Memory<Record>,
    retries: Bucket,
}

#[derive(Clone, Copy, Debug)]
struct Record {
    /// In a row; saturates.
    refusals: u32,
    code: u8,
    /// The proxy answers until then.
    until: Moment,
}

impl Credentials {
    /// Nobody is known.
    pub fn new(settings: Settings, now: Moment) -> Self {
        let known = Memory::new(CAPACITY, settings.most);
        Self {
            settings,
            known,
            retries: Bucket::new(RETRIES, Tokens::new(RETRIES), now),
        }
    }

    /// Other settings for refusals that come from now on.
    pub fn reconfigure(&mut self, settings: Settings) {
        if settings.most != self.settings.most {
            self.known = Memory::new(CAPACITY, settings.most);
        }
        self.settings = settings;
    }

    /// The broker's code, while the proxy is to repeat it. `None` lets one go to the broker.
    pub fn recall(&mut self, key: Key, now: Moment) -> Option<u8> {
        if self.settings.after == 0 {
            return None;
        }
        let record = self.known.peek(key)?;
        if record.refusals < self.settings.after {
            return None;
        }
        let may_retry = now >= record.until && self.retries.take(Tokens::new(1.0), now);
        (!may_retry).then_some(record.code)
    }

    /// The broker has answered these credentials with `code`.
    pub fn learn(&mut self, key: Key, code: u8, now: Moment) {
        self.known.age(now);
        if code == 0 {
            let known = self.known.remove(key);
            if known.is_some_and(|record| record.refusals >= self.settings.after) {
                self.set_retries(self.retries.rate() * 2.0, now);
            }
            return;
        }
        if self.settings.after == 0 || !is_about_credentials(code) {
            return;
        }
        let refusals = self
            .known
            .peek(key)
            .map_or(0, |record| record.refusals)
            .saturating_add(1);
        if refusals > self.settings.after {
            self.set_retries(self.retries.rate() / 2.0, now);
        }
        let until = now + self.span(refusals);
        self.known.put(
            key,
            Record {
                refusals,
                code,
                until,
            },
            now,
        );
    }

    /// How many are remembered, whether answered from memory or not yet.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether nobody is remembered.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    fn set_retries(&mut self, rate: f64, now: Moment) {
        let rate = rate.clamp(RETRIES, ALL_RETRIES);
        self.retries.reconfigure(rate, Tokens::new(rate), now);
    }

    fn span(&self, refusals: u32) -> Duration {
        let doublings = refusals.saturating_sub(self.settings.after).min(31);
        self.settings
            .first
            .saturating_mul(1 << doublings)
            .min(self.settings.most)
    }
}

/// 3.x: bad user name or password, not authorized; 5.0: the same two. The sets do not overlap with other meanings.
pub const fn is_about_credentials(code: u8) -> bool {
    matches!(code, 4 | 5 | 0x86 | 0x87)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: Key = Key(1);

    fn at(seconds: u64) -> Moment {
        Moment::ZERO + Duration::from_secs(seconds)
    }

    fn refused(times: u32) -> Credentials {
        let mut credentials = Credentials::new(Settings::default(), at(0));
        for _ in 0..times {
            credentials.learn(DEVICE, 0x87, at(0));
        }
        credentials
    }

    #[test]
    fn the_brokers_answer_is_repeated_after_three_refusals() {
        assert_eq!(refused(2).recall(DEVICE, at(0)), None);
        let mut credentials = refused(3);
        assert_eq!(credentials.recall(DEVICE, at(0)), Some(0x87));
        assert_eq!(
            credentials.recall(Key(2), at(0)),
            None,
            "another password is tried at once"
        );
        assert_eq!(credentials.recall(DEVICE, at(4)), Some(0x87));
        assert_eq!(credentials.recall(DEVICE, at(5)), None);
    }

    #[test]
    fn the_time_doubles_up_to_the_most() {
        let mut credentials = refused(3);
        let mut now = 0;
        for expected in [5, 10, 20, 40, 80, 160, 320, 600, 600, 600] {
            assert_eq!(
                credentials.recall(DEVICE, at(now + expected - 1)),
                Some(0x87),
                "{expected}"
            );
            now += expected;
            assert_eq!(credentials.recall(DEVICE, at(now)), None, "{expected}");
            credentials.learn(DEVICE, 0x87, at(now));
        }
    }

    #[test]
    fn one_success_clears_it() {
        let mut credentials = refused(7);
        credentials.learn(DEVICE, 0, at(1));
        assert_eq!(credentials.recall(DEVICE, at(1)), None);
        assert!(credentials.is_empty());
        credentials.learn(DEVICE, 5, at(2));
        assert_eq!(
            credentials.recall(DEVICE, at(2)),
            None,
            "it counts from the beginning"
        );
    }

    #[test]
    fn a_crowd_of_wrong_ones_is_tried_again_by_and_by_until_one_succeeds() {
        let mut credentials = Credentials::new(Settings::default(), at(0));
        for key in 0..1000 {
            for _ in 0..3 {
                credentials.learn(Key(key), 5, at(0));
            }
        }
        let tried = |credentials: &mut Credentials, now| {
            (0..1000)
                .filter(|key| credentials.recall(Key(*key), at(now)).is_none())
                .map(Key)
                .collect::<Vec<_>>()
        };
        for second in 10..20 {
            let some = tried(&mut credentials, second);
            assert_eq!(some.len(), 2, "{second}");
            for key in some {
                credentials.learn(key, 5, at(second));
            }
        }
        // The service is repaired.
        let mut second = 30;
        while !credentials.is_empty() {
            for key in tried(&mut credentials, second) {
                credentials.learn(key, 0, at(second));
            }
            second += 1;
            assert!(second < 60, "{} left", credentials.len());
        }
    }

    #[test]
    fn only_codes_about_credentials_count() {
        for (code, counts) in [
            (1, false),
            (2, false),
            (3, false),
            (4, true),
            (5, true),
            (0x85, false),
            (0x86, true),
            (0x87, true),
            (0x89, false),
        ] {
            let mut credentials = Credentials::new(Settings::default(), at(0));
            for _ in 0..5 {
                credentials.learn(DEVICE, code, at(0));
            }
            assert_eq!(
                credentials.recall(DEVICE, at(0)),
                counts.then_some(code),
                "{code:#x}"
            );
        }
    }

    #[test]
    fn zero_switches_it_off() {
        let mut credentials = Credentials::new(
            Settings {
                after: 0,
                ..Settings::default()
            },
            at(0),
        );
        for _ in 0..5 {
            credentials.learn(DEVICE, 5, at(0));
        }
        assert_eq!(credentials.recall(DEVICE, at(0)), None);
        let mut credentials = refused(5);
        credentials.reconfigure(Settings {
            after: 0,
            ..Settings::default()
        });
        assert_eq!(credentials.recall(DEVICE, at(0)), None);
    }

    #[test]
    fn a_flood_of_names_is_bounded() {
        let mut credentials = refused(3);
        for number in 2..250_000 {
            credentials.learn(Key(number), 5, at(0));
            assert!(credentials.len() <= 2 * CAPACITY);
        }
    }
}
