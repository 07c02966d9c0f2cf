//! Which policies a fleet's firmware has, by share, as `--mix fixed:60,full:40` says it.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::reconnect::{Policy, Schedule, ScheduleError, UnknownPolicy};

/// Largest share: what ten million devices could tell apart.
const MAX_SHARE: u32 = 10_000_000;

/// Policies and their shares of a fleet: at least one, each once, in the order in which they were named.
///
/// Shares are relative: `fixed:60,full:40` and `fixed:3,full:2` are the same fleet. A policy alone needs no share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mix(Vec<(Policy, u32)>);

/// The delays of a fleet, for whichever policy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pauses {
    /// The only delay of [`Policy::Fixed`].
    pub fixed: Duration,
    /// The first ceiling of the others.
    pub base: Duration,
    /// From one ceiling to the next.
    pub multiplier: f64,
    /// The longest ceiling.
    pub cap: Duration,
}

/// The caller's: a text that names no mix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MixError {
    /// Not the word of a policy.
    #[error(transparent)]
    Policy(#[from] UnknownPolicy),
    /// A policy among others without its share.
    #[error("{policy} has no share: write each as POLICY:SHARE, such as fixed:60,full:40")]
    NoShare {
        /// The policy.
        policy: Policy,
    },
    /// A share that is no number, or out of range.
    #[error("the share {share:?} of {policy} is no whole number from 1 to {MAX_SHARE}")]
    Share {
        /// The policy.
        policy: Policy,
        /// As given.
        share: String,
    },
    /// A policy twice.
    #[error("{policy} is there twice: add its shares up")]
    Twice {
        /// The policy.
        policy: Policy,
    },
}

impl Mix {
    /// A fleet whose devices all do the same.
    pub fn all(policy: Policy) -> Self {
        Self(vec![(policy, 1)])
    }

    /// The policies with their shares, in the order in which they were named.
    pub fn shares(&self) -> &[(Policy, u32)] {
        &self.0
    }

    /// Place in [`Self::shares`] of the policy of a device, numbered from 0. The same for every run; any stretch of
    /// neighbouring devices has about the shares of the whole, so that it does not matter who is hit by an outage.
    pub fn place_of(&self, device: u64) -> usize {
        let total: u64 = self.0.iter().map(|(_, share)| u64::from(*share)).sum();
        // Multiples of the golden ratio fill the circle evenly, and no period of the device's number shows in them.
        let turn = device.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let at = (u128::from(turn) * u128::from(total)) >> 64;
        let mut end = 0_u128;
        self.0
            .iter()
            .position(|(_, share)| {
                end += u128::from(*share);
                at < end
            })
            .unwrap_or(0)
    }

    /// The schedule of each policy, in the order of [`Self::shares`].
    pub fn schedules(&self, pauses: &Pauses) -> Result<Vec<Schedule>, ScheduleError> {
        let of_policy = |(policy, _): &(Policy, u32)| pauses.schedule(*policy);
        self.0.iter().map(of_policy).collect()
    }
}

impl Pauses {
    /// The schedule of one policy.
    pub fn schedule(&self, policy: Policy) -> Result<Schedule, ScheduleError> {
        match policy {
            Policy::Fixed => Schedule::new(policy, self.fixed, 1.0, self.fixed),
            _ => Schedule::new(policy, self.base, self.multiplier, self.cap),
        }
    }
}

impl FromStr for Mix {
    type Err = MixError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if !text.contains([',', ':']) {
            return Ok(Self::all(text.trim().parse()?));
        }
        let mut mix: Vec<(Policy, u32)> = Vec::new();
        for part in text.split(',') {
            let (word, share) = match part.split_once(':') {
                Some((word, share)) => (word, Some(share.trim())),
                None => (part, None),
            };
            let policy = word.trim().parse()?;
            let share = share.ok_or(MixError::NoShare { policy })?;
            let share = share
                .parse()
                .ok()
                .filter(|share| (1..=MAX_SHARE).contains(share))
                .ok_or_else(|| MixError::Share {
                    policy,
                    share: share.to_owned(),
                })?;
            if mix.iter().any(|(known, _)| *known == policy) {
                return Err(MixError::Twice { policy });
            }
            mix.push((policy, share));
        }
        Ok(Self(mix))
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [(policy, _)] = self.0.as_slice() {
            return write!(f, "{policy}");
        }
        for (place, (policy, share)) in self.0.iter().enumerate() {
            let comma = if place == 0 { "" } else { "," };
            write!(f, "{comma}{policy}:{share}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mix_is_read_and_written() {
        for (text, expected, written) in [
            ("full", vec![(Policy::FullJitter, 1)], "full"),
            ("full:7", vec![(Policy::FullJitter, 7)], "full"),
            (
                "fixed:60,full:40",
                vec![(Policy::Fixed, 60), (Policy::FullJitter, 40)],
                "fixed:60,full:40",
            ),
            (
                " decorrelated : 1 , slot : 3 ",
                vec![(Policy::Decorrelated, 1), (Policy::Slot, 3)],
                "decorrelated:1,slot:3",
            ),
        ] {
            let mix: Mix = text.parse().unwrap();
            assert_eq!((mix.shares(), mix.to_string().as_str()), (&expected[..], written));
        }
    }

    #[test]
    fn what_is_no_mix_says_why() {
        for (text, expected) in [
            ("", "unknown policy \"\": one of fixed,"),
            ("best", "unknown policy \"best\": one of fixed,"),
            ("fixed:60,best:40", "unknown policy \"best\""),
            ("fixed:60,full", "full has no share"),
            ("fixed,full", "fixed has no share"),
            ("fixed:60,", "unknown policy \"\""),
            (
                "fixed:0",
                "the share \"0\" of fixed is no whole number from 1 to 10000000",
            ),
            ("fixed:-1", "the share \"-1\""),
            ("fixed:1.5", "the share \"1.5\""),
            ("fixed:10000001", "the share \"10000001\""),
            ("fixed:", "the share \"\""),
            ("fixed:1:2", "the share \"1:2\""),
            ("fixed:1,fixed:2", "fixed is there twice"),
        ] {
            let error = text.parse::<Mix>().unwrap_err().to_string();
            assert!(error.starts_with(expected), "{text:?}: {error}");
        }
    }

    #[test]
    fn every_stretch_of_devices_has_the_shares() {
        let mix: Mix = "fixed:60,full:30,slot:10".parse().unwrap();
        for start in [0_u64, 7, 1_000_000, u64::MAX - 2000] {
            // Every device, or every second one: those of one protocol version, say.
            for stride in [1, 2] {
                let mut counts = [0_u32; 3];
                for device in 0..1000 {
                    counts[mix.place_of(start + stride * device)] += 1;
                }
                for (count, expected) in counts.into_iter().zip([600, 300, 100]) {
                    assert!(
                        count.abs_diff(expected) <= 5,
                        "{counts:?} from {start} by {stride}"
                    );
                }
            }
        }
        assert_eq!(Mix::all(Policy::Slot).place_of(12), 0);
    }

    #[test]
    fn pauses_make_the_schedule_of_each_policy() {
        let pauses = Pauses {
            fixed: Duration::from_secs(5),
            base: Duration::from_secs(1),
            multiplier: 2.0,
            cap: Duration::from_secs(60),
        };
        let mix: Mix = "full:1,fixed:1".parse().unwrap();
        let schedules = mix.schedules(&pauses).unwrap();
        let seconds = |place: usize| {
            (
                schedules[place].base().as_secs(),
                schedules[place].cap().as_secs(),
            )
        };
        assert_eq!((seconds(0), seconds(1)), ((1, 60), (5, 5)));
        assert_eq!(
            mix.schedules(&Pauses {
                cap: Duration::ZERO,
                ..pauses
            }),
            Err(ScheduleError::CapBelowBase)
        );
    }
}
