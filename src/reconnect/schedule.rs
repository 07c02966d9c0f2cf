//! How long to wait before the next attempt.

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;
use std::time::Duration;

/// How the delays of one device spread. The *ceiling* of an attempt is `base · multiplierⁿ`, at most the cap; n counts
/// from 0, the first attempt after a lost connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Policy {
    /// Always the base. Devices that lost their connections together come back together, for ever.
    Fixed,
    /// The ceiling itself: rarer from attempt to attempt, still in lockstep.
    Exponential,
    /// The ceiling ± 10 %. At the cap the middle moves down, so that the cap is never exceeded and no two devices meet at it.
    Proportional,
    /// Uniform from 0 to the ceiling: the widest spread, and now and then no wait at all.
    FullJitter,
    /// Half the ceiling, and a uniform share of the other half.
    EqualJitter,
    /// Uniform from the base to three times the delay before, at most the cap. The bound is capped and not the result:
    /// otherwise two devices in three would meet at the cap.
    Decorrelated,
    /// A uniform 50 to 100 % of the slot, which is the ceiling. The distribution is that of [`Policy::EqualJitter`],
    /// under the name by which specifications of firmware ask for it.
    Slot,
}

impl Policy {
    /// Every policy.
    pub const ALL: [Self; 7] = [
        Self::Fixed,
        Self::Exponential,
        Self::Proportional,
        Self::FullJitter,
        Self::EqualJitter,
        Self::Decorrelated,
        Self::Slot,
    ];

    /// The word on the command line and in reports.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Fixed => "fixed",
            Self::Exponential => "exponential",
            Self::Proportional => "proportional",
            Self::FullJitter => "full",
            Self::EqualJitter => "equal",
            Self::Decorrelated => "decorrelated",
            Self::Slot => "slot",
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// The caller's: not the word of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownPolicy(String);

impl fmt::Display for UnknownPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = Policy::ALL.map(Policy::word).join(", ");
        write!(f, "unknown policy {:?}: one of {words}", self.0)
    }
}

impl std::error::Error for UnknownPolicy {}

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|policy| policy.word() == word)
            .ok_or_else(|| UnknownPolicy(word.to_owned()))
    }
}

/// The delays of one kind of device: policy, base, multiplier and cap. Legal by construction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    policy: Policy,
    base: Duration,
    multiplier: f64,
    cap: Duration,
    /// The ceilings of the first attempts: to raise a power for each delay of ten million devices takes seconds.
    first: [Duration; FIRST],
}

/// The caller's: numbers that make no schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScheduleError {
    /// A base of zero would be a loop without a pause.
    BaseIsZero,
    /// Below 1 (or not finite): delays would shrink from attempt to attempt.
    MultiplierBelowOne,
    /// A cap below the base.
    CapBelowBase,
}

impl fmt::Display for ScheduleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BaseIsZero => "the base delay must be above zero",
            Self::MultiplierBelowOne => "the multiplier must be a finite number of at least 1",
            Self::CapBelowBase => "the cap must not be below the base delay",
        })
    }
}

impl std::error::Error for ScheduleError {}

/// Doubled as often, a second is eight minutes.
const FIRST: usize = 10;

impl Schedule {
    /// `base` above zero, `multiplier` finite and at least 1 (a decorrelated schedule has no use for it), `cap` at least `base`.
    pub fn new(
        policy: Policy,
        base: Duration,
        multiplier: f64,
        cap: Duration,
    ) -> Result<Self, ScheduleError> {
        if base.is_zero() {
            return Err(ScheduleError::BaseIsZero);
        }
        if !(multiplier.is_finite() && multiplier >= 1.0) {
            return Err(ScheduleError::MultiplierBelowOne);
        }
        if cap < base {
            return Err(ScheduleError::CapBelowBase);
        }
        let mut schedule = Self {
            policy,
            base,
            multiplier,
            cap,
            first: [cap; FIRST],
        };
        schedule.first = std::array::from_fn(|attempt| schedule.raised(attempt as u32));
        Ok(schedule)
    }

    /// How the delays spread.
    pub const fn policy(&self) -> Policy {
        self.policy
    }

    /// The first ceiling.
    pub const fn base(&self) -> Duration {
        self.base
    }

    /// The longest delay.
    pub const fn cap(&self) -> Duration {
        self.cap
    }

    /// The ceiling of an attempt, counted from 0. Never falls from one attempt to the next; the base for
    /// [`Policy::Fixed`], the cap for [`Policy::Decorrelated`], whose bound depends on the delay before.
    pub fn ceiling(&self, attempt: u32) -> Duration {
        match self.policy {
            Policy::Fixed => self.base,
            Policy::Decorrelated => self.cap,
            _ => match (self.first.get(attempt as usize), self.first.last()) {
                (Some(ceiling), _) => *ceiling,
                // They never fall.
                (None, Some(last)) if *last == self.cap => self.cap,
                _ => self.raised(attempt),
            },
        }
    }

    fn raised(&self, attempt: u32) -> Duration {
        let factor = self.multiplier.powi(i32::try_from(attempt).unwrap_or(i32::MAX));
        Duration::try_from_secs_f64(self.base.as_secs_f64() * factor)
            .map_or(self.cap, |ceiling| ceiling.min(self.cap))
    }

    /// The delay before an attempt, counted from 0; `previous` is the delay before the last one (for
    /// [`Policy::Decorrelated`]; `None` for the first).
    pub fn delay(&self, attempt: u32, previous: Option<Duration>, random: &mut fastrand::Rng) -> Duration {
        let ceiling = self.ceiling(attempt);
        match self.policy {
            Policy::Fixed | Policy::Exponential => ceiling,
            Policy::Proportional => {
                let middle = ceiling.min(self.cap / 11 * 10);
                uniform(
                    middle.saturating_sub(middle / 10),
                    middle.saturating_add(middle / 10),
                    random,
                )
            }
            Policy::FullJitter => uniform(Duration::ZERO, ceiling, random),
            Policy::EqualJitter | Policy::Slot => uniform(ceiling / 2, ceiling, random),
            Policy::Decorrelated => {
                let bound = previous.unwrap_or(self.base).saturating_mul(3).min(self.cap);
                uniform(self.base, bound, random)
            }
        }
    }
}

/// Where one device stands in its schedule. Small: a simulation has millions of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backoff {
    attempt: u32,
    /// The delay before, in nanoseconds: half the size of a `Duration`, and 584 years are enough.
    previous: Option<NonZeroU64>,
}

impl Backoff {
    /// At its beginning.
    pub const fn new() -> Self {
        Self {
            attempt: 0,
            previous: None,
        }
    }

    /// The delay before the next attempt, which is counted.
    pub fn next(&mut self, schedule: &Schedule, random: &mut fastrand::Rng) -> Duration {
        let previous = self
            .previous
            .map(|nanoseconds| Duration::from_nanos(nanoseconds.get()));
        let delay = schedule.delay(self.attempt, previous, random);
        self.attempt = self.attempt.saturating_add(1);
        // A delay of nothing bounds the next one as none does.
        self.previous = NonZeroU64::new(nanoseconds(delay));
        delay
    }

    /// Attempts counted since the last reset.
    pub const fn attempts(&self) -> u32 {
        self.attempt
    }

    /// Back to the beginning.
    pub const fn reset(&mut self) {
        *self = Self::new();
    }
}

/// Uniform from `low` to `high` inclusive; `low` where the range is empty. Nanoseconds, up to 584 years.
fn uniform(low: Duration, high: Duration, random: &mut fastrand::Rng) -> Duration {
    let (low, high) = (nanoseconds(low), nanoseconds(high));
    Duration::from_nanos(if low < high { random.u64(low..=high) } else { low })
}

fn nanoseconds(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::reconnect::from_seed;

    const SECOND: Duration = Duration::from_secs(1);

    fn schedule(policy: Policy) -> Schedule {
        Schedule::new(policy, SECOND, 2.0, 64 * SECOND).unwrap()
    }

    fn sample(schedule: &Schedule, attempt: u32, previous: Option<Duration>) -> Vec<f64> {
        (0..20_000)
            .map(|device| {
                let mut random = from_seed(1, &format!("{device}"));
                schedule.delay(attempt, previous, &mut random).as_secs_f64()
            })
            .collect()
    }

    fn mean(values: &[f64]) -> f64 {
        values.iter().sum::<f64>() / values.len() as f64
    }

    #[test]
    fn ceilings_double_up_to_the_cap() {
        let ceilings: Vec<u64> = (0..9)
            .map(|attempt| schedule(Policy::FullJitter).ceiling(attempt).as_secs())
            .collect();
        assert_eq!(ceilings, [1, 2, 4, 8, 16, 32, 64, 64, 64]);
        assert_eq!(schedule(Policy::Fixed).ceiling(40), SECOND);
    }

    #[test]
    fn means_are_those_of_the_distributions() {
        // Attempt 3: a ceiling of 8 s. Standard error of a mean over 20,000 draws: below 0.02 s.
        for (policy, expected) in [
            (Policy::Fixed, 1.0),
            (Policy::Exponential, 8.0),
            (Policy::Proportional, 8.0),
            (Policy::FullJitter, 4.0),
            (Policy::EqualJitter, 6.0),
            (Policy::Slot, 6.0),
        ] {
            let found = mean(&sample(&schedule(policy), 3, None));
            assert!((found - expected).abs() < 0.08, "{policy}: {found}");
        }
        let found = mean(&sample(&schedule(Policy::Decorrelated), 3, Some(3 * SECOND)));
        assert!((found - 5.0).abs() < 0.08, "{found}");
    }

    #[test]
    fn jittered_devices_do_not_meet_at_the_cap() {
        for policy in [
            Policy::Proportional,
            Policy::FullJitter,
            Policy::EqualJitter,
            Policy::Decorrelated,
            Policy::Slot,
        ] {
            let mut delays = sample(&schedule(policy), 30, Some(64 * SECOND));
            assert!(delays.iter().all(|delay| *delay <= 64.0), "{policy}");
            delays.sort_by(f64::total_cmp);
            let bunched = delays
                .windows(2)
                .filter(|pair| pair[0].to_bits() == pair[1].to_bits())
                .count();
            assert!(bunched < 10, "{policy}: {bunched} pairs of equal delays");
        }
    }

    #[test]
    fn numbers_that_make_no_schedule_are_refused() {
        let new = |base, multiplier, cap| Schedule::new(Policy::FullJitter, base, multiplier, cap);
        assert_eq!(new(Duration::ZERO, 2.0, SECOND), Err(ScheduleError::BaseIsZero));
        for multiplier in [0.99, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(
                new(SECOND, multiplier, SECOND),
                Err(ScheduleError::MultiplierBelowOne)
            );
        }
        assert_eq!(new(SECOND, 2.0, SECOND / 2), Err(ScheduleError::CapBelowBase));
    }

    #[test]
    fn words_name_policies_and_nothing_else_does() {
        for policy in Policy::ALL {
            assert_eq!(policy.word().parse(), Ok(policy));
        }
        let error = "ful".parse::<Policy>().unwrap_err().to_string();
        assert_eq!(
            error,
            "unknown policy \"ful\": one of fixed, exponential, proportional, full, equal, decorrelated, slot"
        );
    }

    proptest! {
        #[test]
        fn delays_keep_to_their_range_at_any_attempt(
            policy in proptest::sample::select(&Policy::ALL[..]),
            base_ms in 1_u64..100_000,
            multiplier in 1.0_f64..10.0,
            stretch in 1_u32..1_000_000,
            attempt in prop_oneof![0_u32..100, Just(u32::MAX), any::<u32>()],
            previous_ms in proptest::option::of(0_u64..u64::MAX / 1_000_000),
            seed in any::<u64>(),
        ) {
            let base = Duration::from_millis(base_ms);
            let cap = base.saturating_mul(stretch);
            let schedule = Schedule::new(policy, base, multiplier, cap).unwrap();
            let mut random = from_seed(seed, "device");
            let previous = previous_ms.map(Duration::from_millis);
            let delay = schedule.delay(attempt, previous, &mut random);
            let ceiling = schedule.ceiling(attempt);
            prop_assert!(delay <= cap, "{delay:?} above the cap {cap:?}");
            prop_assert!(ceiling <= cap && ceiling >= base);
            let (low, high) = match policy {
                Policy::Fixed | Policy::Exponential => (ceiling, ceiling),
                Policy::Proportional => (ceiling.mul_f64(0.8), ceiling.mul_f64(1.1)),
                Policy::FullJitter => (Duration::ZERO, ceiling),
                Policy::EqualJitter | Policy::Slot => (ceiling / 2, ceiling),
                Policy::Decorrelated => (base, cap),
            };
            // A nanosecond of rounding either way.
            let tolerance = Duration::from_nanos(2);
            prop_assert!(delay + tolerance >= low && delay <= high + tolerance, "{delay:?} not in {low:?}..{high:?}");
        }

        #[test]
        fn ceilings_never_fall(
            policy in proptest::sample::select(&Policy::ALL[..]),
            multiplier in 1.0_f64..100.0,
            attempt in 0_u32..u32::MAX,
        ) {
            let schedule = Schedule::new(policy, SECOND, multiplier, 3600 * SECOND).unwrap();
            prop_assert!(schedule.ceiling(attempt) <= schedule.ceiling(attempt + 1));
        }

        #[test]
        fn extremes_do_not_overflow(attempt in any::<u32>(), seed in any::<u64>()) {
            for policy in Policy::ALL {
                let schedule = Schedule::new(policy, Duration::MAX, f64::MAX, Duration::MAX).unwrap();
                let mut backoff = Backoff { attempt, previous: Some(NonZeroU64::MAX) };
                let delay = backoff.next(&schedule, &mut from_seed(seed, "device"));
                prop_assert!(delay <= Duration::MAX);
                prop_assert_eq!(backoff.attempts(), attempt.saturating_add(1));
            }
        }
    }
}
