//! The global token bucket.
//!
//! A generic cell rate algorithm in whole numbers: rates and costs are billionths of a token, time is nanoseconds,
//! so the level is kept in their product, 10⁻¹⁸ token, and no operation ever rounds. Between two calls nothing
//! happens; the level is brought up to date by whoever asks (`docs/decisions/0001-token-bucket.md`).

use std::ops::{Add, AddAssign, Sub, SubAssign};
use std::time::Duration;

use crate::moment::Moment;

/// An amount of tokens in billionths, 0 to 18 · 10⁹ tokens. Arithmetic saturates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tokens(u64);

impl Tokens {
    /// None.
    pub const NONE: Self = Self(0);

    /// The nearest billionth; a positive amount never becomes none. Negative and NaN count as the least amount.
    pub fn new(tokens: f64) -> Self {
        Self(((tokens * 1e9).round() as u64).max(1))
    }

    /// For people and metrics.
    pub fn as_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    const fn level(self) -> i128 {
        self.0 as i128 * LEVELS_A_BILLIONTH
    }
}

impl Add for Tokens {
    type Output = Self;

    fn add(self, more: Self) -> Self {
        Self(self.0.saturating_add(more.0))
    }
}

impl AddAssign for Tokens {
    fn add_assign(&mut self, more: Self) {
        *self = *self + more;
    }
}

impl Sub for Tokens {
    type Output = Self;

    fn sub(self, less: Self) -> Self {
        Self(self.0.saturating_sub(less.0))
    }
}

impl SubAssign for Tokens {
    fn sub_assign(&mut self, less: Self) {
        *self = *self - less;
    }
}

/// Which bucket: 0 is the shared one, the others are reserves of lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source(pub u32);

impl Source {
    /// The bucket that all lanes compete for.
    pub const SHARED: Self = Self(0);
}

/// The level is counted in billionths of a billionth of a token.
const LEVELS_A_BILLIONTH: i128 = 1_000_000_000;

/// How late one who waits may be woken at no cost to the bucket: what timers of a millisecond on a busy machine make of it.
pub const LAG: Duration = Duration::from_millis(5);

/// A token bucket: in any window it issues no more than `burst` + ∫rate + what was refunded in that window; those who
/// [waited](Self::take_waited) for their tokens count as of when these came.
#[derive(Clone, Debug)]
pub struct Bucket {
    /// Billionths of a token a second, at least 1. The same number is the gain in level a nanosecond.
    rate: u64,
    burst: Tokens,
    /// At `updated`; at most `burst`; below zero only after [`Self::owe`].
    level: i128,
    updated: Moment,
}

impl Bucket {
    /// A full bucket: `rate` in tokens a second, above 0; `burst` in tokens.
    pub fn new(rate: f64, burst: Tokens, now: Moment) -> Self {
        Self {
            rate: Tokens::new(rate).0,
            burst,
            level: burst.level(),
            updated: now,
        }
    }

    /// An empty one.
    pub fn empty(rate: f64, burst: Tokens, now: Moment) -> Self {
        Self {
            level: 0,
            ..Self::new(rate, burst, now)
        }
    }

    /// Tokens a second.
    pub fn rate(&self) -> f64 {
        Tokens(self.rate).as_f64()
    }

    /// The most it holds.
    pub const fn burst(&self) -> Tokens {
        self.burst
    }

    /// Changes rate and burst from `now` on. What is in the bucket stays there, cut to the new burst: no fresh burst.
    pub fn reconfigure(&mut self, rate: f64, burst: Tokens, now: Moment) {
        self.update(now);
        self.rate = Tokens::new(rate).0;
        self.burst = burst;
        self.level = self.level.min(burst.level());
    }

    /// Takes `cost` tokens, all or none.
    pub fn take(&mut self, cost: Tokens, now: Moment) -> bool {
        self.update(now);
        if self.level < cost.level() {
            return false;
        }
        self.level -= cost.level();
        true
    }

    /// Takes `cost` tokens for one who has waited for them since `since`, all or none. It takes them as of the moment at
    /// which they came, up to [`LAG`] ago: who serves the waiting is woken a little late each time, and a bucket that
    /// holds no more than one token would lose that each time.
    pub fn take_waited(&mut self, cost: Tokens, since: Moment, now: Moment) -> bool {
        let came = self.available_at(cost, Tokens::NONE, since);
        let as_of = if came + LAG >= now { came.min(now) } else { now };
        self.take(cost, as_of)
    }

    /// Takes `cost` tokens whether they are there or not: what follows waits until the debt is paid.
    pub fn owe(&mut self, cost: Tokens, now: Moment) {
        self.update(now);
        self.level -= cost.level();
    }

    /// Puts back what was taken and not used; what the bucket can't hold is lost.
    pub fn refund(&mut self, cost: Tokens, now: Moment) {
        self.update(now);
        self.level = self.level.saturating_add(cost.level()).min(self.burst.level());
    }

    /// When `cost` tokens can be had, given `promised` tokens that go to others first, each as soon as it is there.
    /// Exact: a nanosecond earlier they can't (each promised cost as large as the whole burst may make it one later,
    /// because what comes in the rest of its last nanosecond does not fit). Not before `now`; [`Moment::NEVER`] past
    /// the range of time.
    pub fn available_at(&self, cost: Tokens, promised: Tokens, now: Moment) -> Moment {
        let now = now.max(self.updated);
        let missing = cost.level().saturating_add(promised.level()) - self.level_at(now);
        if missing <= 0 {
            return now;
        }
        let rate = i128::from(self.rate);
        let wait = (missing - 1) / rate + 1;
        Moment::from_nanos(
            u64::try_from(wait)
                .unwrap_or(u64::MAX)
                .saturating_add(now.as_nanos()),
        )
    }

    /// Tokens in the bucket, for people and metrics; below zero by what is owed.
    pub fn tokens(&self, now: Moment) -> f64 {
        self.level_at(now) as f64 / 1e18
    }

    fn update(&mut self, now: Moment) {
        self.level = self.level_at(now);
        self.updated = self.updated.max(now);
    }

    fn level_at(&self, now: Moment) -> i128 {
        let elapsed = now.as_nanos().saturating_sub(self.updated.as_nanos());
        // At most 2⁶⁴ · 2⁶⁴, hence saturating.
        let gain = i128::from(elapsed).saturating_mul(i128::from(self.rate));
        self.level.saturating_add(gain).min(self.burst.level())
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use governor::clock::FakeRelativeClock;
    use governor::{Quota, RateLimiter};
    use proptest::prelude::*;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn tokens(amount: f64) -> Tokens {
        Tokens::new(amount)
    }

    fn at(seconds: f64) -> Moment {
        Moment::from_nanos((seconds * 1e9) as u64)
    }

    fn taken(bucket: &mut Bucket, now: Moment) -> usize {
        (0..10_000).take_while(|_| bucket.take(tokens(1.0), now)).count()
    }

    #[test]
    fn a_full_bucket_gives_its_burst_and_no_more() {
        let mut bucket = Bucket::new(50.0, tokens(50.0), at(3.0));
        assert_eq!(taken(&mut bucket, at(3.0)), 50);
        assert_eq!(taken(&mut bucket, at(23.0)), 50, "a long gap is worth one burst");
    }

    #[test]
    fn a_token_comes_on_its_nanosecond() {
        for (rate, wait) in [
            (0.2, 5 * SECOND),
            (1.0, SECOND),
            (3.0, SECOND / 3 + 1),
            (200.0, 5_000_000),
            (1e9, 1),
        ] {
            let mut bucket = Bucket::new(rate, tokens(1.0), Moment::ZERO);
            assert!(bucket.take(tokens(1.0), Moment::ZERO), "{rate}");
            assert_eq!(
                bucket.available_at(tokens(1.0), Tokens::NONE, Moment::ZERO),
                Moment::from_nanos(wait),
                "{rate}"
            );
            assert!(!bucket.take(tokens(1.0), Moment::from_nanos(wait - 1)), "{rate}");
            assert!(bucket.take(tokens(1.0), Moment::from_nanos(wait)), "{rate}");
        }
    }

    #[test]
    fn polls_without_number_do_not_drift() {
        // A third of a thousandth of a token a poll: an implementation that rounds per poll loses or gains here.
        let mut bucket = Bucket::new(3.0, tokens(2.0), Moment::ZERO);
        assert!(bucket.take(tokens(2.0), Moment::ZERO));
        let mut issued = 0;
        for step in 1..=900_000_u64 {
            issued += u64::from(bucket.take(tokens(1.0), Moment::from_nanos(step * SECOND / 9_000)));
        }
        assert_eq!(issued, 300);
    }

    #[test]
    fn time_may_stand_still_or_step_back() {
        let mut bucket = Bucket::new(10.0, tokens(2.0), at(5.0));
        assert_eq!(taken(&mut bucket, at(4.0)), 2);
        assert_eq!(taken(&mut bucket, at(0.0)), 0);
        assert_eq!(taken(&mut bucket, at(5.0)), 0);
        assert_eq!(bucket.available_at(tokens(1.0), Tokens::NONE, at(1.0)), at(5.1));
        assert_eq!(taken(&mut bucket, at(5.1)), 1);
    }

    #[test]
    fn the_ends_of_time_and_size_do_not_overflow() {
        let mut bucket = Bucket::new(1e18, tokens(1e18), Moment::ZERO);
        assert!(bucket.take(tokens(1e18), Moment::ZERO));
        assert!(bucket.take(tokens(1e18), Moment::NEVER));
        let mut slow = Bucket::new(1e-9, tokens(1.0), Moment::ZERO);
        assert!(slow.take(tokens(1.0), Moment::ZERO));
        assert_eq!(
            slow.available_at(tokens(1e9), tokens(1e9), Moment::ZERO),
            Moment::NEVER
        );
        assert!(!slow.take(tokens(1.0), at(1e8)));
    }

    #[test]
    fn a_changed_rate_grants_no_fresh_burst() {
        let mut bucket = Bucket::new(100.0, tokens(100.0), Moment::ZERO);
        assert_eq!(taken(&mut bucket, Moment::ZERO), 100);
        bucket.reconfigure(1000.0, tokens(500.0), Moment::ZERO);
        assert_eq!(taken(&mut bucket, Moment::ZERO), 0);
        assert_eq!(taken(&mut bucket, at(0.1)), 100);
        bucket.reconfigure(1000.0, tokens(20.0), at(0.2));
        assert_eq!(
            taken(&mut bucket, at(0.2)),
            20,
            "a smaller burst cuts what is there"
        );
        bucket.reconfigure(1.0, tokens(20.0), at(0.2));
        assert_eq!(bucket.available_at(tokens(1.0), Tokens::NONE, at(0.2)), at(1.2));
    }

    #[test]
    fn a_refund_is_there_at_once_but_not_above_the_burst() {
        let mut bucket = Bucket::new(1.0, tokens(2.0), Moment::ZERO);
        bucket.refund(tokens(1.0), Moment::ZERO);
        assert_eq!(taken(&mut bucket, Moment::ZERO), 2);
        bucket.refund(tokens(1.0), Moment::ZERO);
        assert_eq!(taken(&mut bucket, Moment::ZERO), 1);
    }

    #[test]
    fn who_waited_and_is_woken_late_costs_the_bucket_nothing() {
        let since = at(0.001);
        let mut bucket = Bucket::new(100.0, tokens(1.0), Moment::ZERO);
        assert!(bucket.take(tokens(1.0), Moment::ZERO));
        assert!(!bucket.take_waited(tokens(1.0), since, at(0.009)));
        // Two milliseconds late each time, and a hundred a second all the same.
        for number in 1..100 {
            let turn = f64::from(number) * 0.01;
            assert!(
                bucket.take_waited(tokens(1.0), since, at(turn + 0.002)),
                "{number}"
            );
        }
        // Later than that is no lag of a timer: the tokens were not what it waited for.
        assert!(bucket.take_waited(tokens(1.0), since, at(1.006)));
        assert!(!bucket.take(tokens(1.0), at(1.015)));
        assert!(bucket.take(tokens(1.0), at(1.016)));
        // Nor was it there before it came.
        assert!(bucket.take_waited(tokens(1.0), at(1.5), at(1.5)));
        assert!(!bucket.take(tokens(1.0), at(1.509)));
    }

    #[test]
    fn a_debt_is_paid_before_the_next_token() {
        let mut bucket = Bucket::new(1.0, tokens(1.0), Moment::ZERO);
        for _ in 0..3 {
            bucket.owe(tokens(1.0), Moment::ZERO);
        }
        assert!((bucket.tokens(Moment::ZERO) + 2.0).abs() < 1e-9);
        assert_eq!(
            bucket.available_at(tokens(1.0), Tokens::NONE, Moment::ZERO),
            at(3.0)
        );
    }

    #[test]
    fn promised_tokens_come_first() {
        let mut bucket = Bucket::new(10.0, tokens(5.0), Moment::ZERO);
        assert_eq!(
            bucket.available_at(tokens(2.0), tokens(3.0), Moment::ZERO),
            Moment::ZERO
        );
        assert_eq!(
            bucket.available_at(tokens(2.0), tokens(4.0), Moment::ZERO),
            at(0.1)
        );
        assert_eq!(
            bucket.available_at(tokens(5.0), tokens(1000.0), Moment::ZERO),
            at(100.0)
        );
        assert!(bucket.take(tokens(5.0), Moment::ZERO));
    }

    /// Periods that are whole nanoseconds and whose rate is a whole number of billionths.
    fn period() -> impl Strategy<Value = u64> {
        (0_u32..=9, 0_u32..=9).prop_map(|(twos, fives)| 2_u64.pow(twos) * 5_u64.pow(fives))
    }

    fn shift(windows: &mut [i128], level: i128) {
        for room in windows {
            *room += level;
        }
    }

    proptest! {
        /// The oracle: the same rate, burst, times and costs give the same admissions as governor's limiter.
        #[test]
        fn admits_exactly_what_governor_admits(
            period in period(),
            burst in 1_u32..60,
            steps in prop::collection::vec((0.0_f64..4.0, 1_u32..60), 1..200),
        ) {
            let clock = FakeRelativeClock::default();
            let quota = Quota::with_period(Duration::from_nanos(period))
                .unwrap()
                .allow_burst(NonZeroU32::new(burst).unwrap());
            let oracle = RateLimiter::direct_with_clock(quota, clock.clone());
            let mut bucket = Bucket::new(1e9 / period as f64, tokens(f64::from(burst)), Moment::ZERO);
            let mut now = 0;
            for (gap, cost) in steps {
                let cost = cost.min(burst);
                let gap = (gap * gap * period as f64) as u64;
                clock.advance(Duration::from_nanos(gap));
                now += gap;
                let allowed = oracle.check_n(NonZeroU32::new(cost).unwrap()).unwrap().is_ok();
                prop_assert_eq!(bucket.take(tokens(f64::from(cost)), Moment::from_nanos(now)), allowed);
            }
        }

        /// In every window: issued ≤ burst + ∫rate + refunded in it, whatever the rate does meanwhile.
        #[test]
        fn no_window_is_over_issued(
            burst in 1.0_f64..20.0,
            steps in prop::collection::vec((0_u64..2 * SECOND, 0_u8..8, 0.01_f64..30.0), 1..80),
        ) {
            let mut bucket = Bucket::new(5.0, tokens(burst), Moment::ZERO);
            let (mut now, mut accrued) = (0_u64, 0_i128);
            // What a window that begins at this step may still issue, in level.
            let mut windows: Vec<i128> = Vec::new();
            for (gap, action, amount) in steps {
                accrued += i128::from(gap) * i128::from(bucket.rate);
                now += gap;
                let moment = Moment::from_nanos(now);
                let cost = tokens(amount).min(bucket.burst());
                windows.push(bucket.burst().level() - accrued);
                match action {
                    0 => bucket.reconfigure(amount, bucket.burst(), moment),
                    1 => {
                        bucket.refund(cost, moment);
                        shift(&mut windows, cost.level());
                    }
                    _ => {
                        if bucket.take(cost, moment) {
                            shift(&mut windows, -cost.level());
                        }
                    }
                }
                prop_assert!(windows.iter().all(|room| room + accrued >= 0));
            }
        }

        /// The peek is exact: at that moment it can be had, a nanosecond before it can't.
        #[test]
        fn available_at_is_exact(
            rate in 0.001_f64..5000.0,
            burst in 1.0_f64..50.0,
            drained in 0.0_f64..1.0,
            costs in prop::collection::vec(0.001_f64..50.0, 1..30),
        ) {
            let mut bucket = Bucket::new(rate, tokens(burst), Moment::ZERO);
            bucket.take(tokens(burst * drained).min(bucket.burst()), Moment::ZERO);
            let costs: Vec<Tokens> = costs
                .into_iter()
                .map(|cost| tokens(cost).min(tokens(burst * 0.9)))
                .collect();
            let (last, ahead) = costs.split_last().unwrap();
            let promised = ahead.iter().fold(Tokens::NONE, |sum, cost| sum + *cost);
            let foreseen = bucket.available_at(*last, promised, Moment::ZERO);
            let mut now = Moment::ZERO;
            for cost in ahead {
                now = bucket.available_at(*cost, Tokens::NONE, now);
                prop_assert!(bucket.take(*cost, now));
            }
            if foreseen > now {
                let before = Moment::from_nanos(foreseen.as_nanos() - 1);
                prop_assert!(!bucket.clone().take(*last, before));
            }
            prop_assert!(bucket.take(*last, foreseen.max(now)));
        }
    }
}
