//! One client's attempts: when the next one is due, and when the schedule begins anew.

use std::time::Duration;

use super::{Audit, Backoff, Cause, Lasting, Outcome, Record, Schedule};
use crate::moment::Moment;

/// Share of the cap below it within which a client that is held at the cap tries: clients that were turned away
/// together must not knock together for ever.
const SPREAD_AT_CAP: u32 = 10;

/// A broker that keeps saying "at once" must not make a loop without pauses.
const SHORTEST_RETRY_AFTER: Duration = Duration::from_millis(100);

/// How a client behaves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// The delays.
    pub schedule: Schedule,
    /// A connection that lasted this long was a success: the next loss begins the schedule anew. Below that it counts
    /// as one more failure, so that "accepted, then dropped" is no loop without pauses.
    pub settle: Duration,
    /// What happens after many failures.
    pub endurance: Endurance,
    /// The longest `retry-after-ms` that is taken from a broker; one that asks for more gets this.
    pub longest_retry_after: Duration,
}

/// What happens after many failures in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endurance {
    /// For a persistent connection: after so many attempts the client stays at the cap for ever, and says so.
    Persistent {
        /// Attempts by the schedule, at least one.
        attempts: u32,
    },
    /// For a request that somebody waits for: after so many attempts it is over.
    Request {
        /// Attempts in all, at least one.
        attempts: u32,
    },
}

impl Settings {
    /// `schedule`, and for the rest what suits a persistent connection.
    pub const fn persistent(schedule: Schedule) -> Self {
        Self {
            schedule,
            // Longer than a broker takes to accept, look a session up and think better of it.
            settle: Duration::from_secs(30),
            // A doubling schedule is at any sensible cap by then.
            endurance: Endurance::Persistent { attempts: 20 },
            // No storm lasts longer; a number typed wrong must not exile a fleet.
            longest_retry_after: Duration::from_hours(1),
        }
    }
}

/// When to try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The moment of the next attempt.
    pub until: Moment,
    /// The same, from now.
    pub delay: Duration,
    /// Attempts that have failed since the schedule began.
    pub attempts: u32,
    /// Why so long.
    pub reason: Reason,
}

/// Why a wait is as long as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Before the first attempt: devices that get power together must not knock together.
    ColdStart,
    /// The schedule.
    Schedule,
    /// The broker said when there will be room.
    RetryAfter,
    /// The cause is permanent: held at the cap until somebody changes something. To be reported to him.
    Permanent(Cause),
    /// [`Endurance::Persistent`] is used up: at the cap from now on. To be reported as well.
    AtCap,
}

/// What follows on a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Another attempt.
    Wait(Wait),
    /// [`Endurance::Request`] is used up, or the cause is permanent and nobody will mend it while a request waits.
    GiveUp {
        /// Attempts that were made.
        attempts: u32,
        /// What the last one failed of.
        cause: Cause,
    },
}

/// One client. Every method takes `now` and where the records go; none waits.
///
/// ```
/// use std::time::Duration;
/// use seawall::moment::Moment;
/// use seawall::reconnect::{Cause, Next, Policy, Reconnect, Record, Schedule, Settings, from_entropy};
///
/// let schedule = Schedule::new(Policy::FullJitter, Duration::from_secs(5), 2.0, Duration::from_secs(600))?;
/// let mut client = Reconnect::new("pump-7", false, Settings::persistent(schedule), from_entropy());
/// let mut audit = |record: &Record<'_>| println!("{record:?}");
///
/// let now = Moment::ZERO; // nanoseconds of your monotonic clock
/// let first = client.start(now, &mut audit);
/// // … wait until `first.until`, dial, send CONNECT, be told "server busy" …
/// let next = client.failed(Cause::Refused(0x89), Some(Duration::from_millis(1500)), first.until, &mut audit);
/// assert!(matches!(next, Next::Wait(wait) if wait.delay >= Duration::from_millis(1500)));
/// # Ok::<(), seawall::reconnect::ScheduleError>(())
/// ```
#[derive(Debug)]
pub struct Reconnect {
    client_id: String,
    clean: bool,
    settings: Settings,
    random: fastrand::Rng,
    backoff: Backoff,
    attempts: u32,
    waited: Duration,
    connected_since: Option<Moment>,
}

impl Reconnect {
    /// `client_id` and `clean` (session) are for the records; `random` is this client's alone
    /// ([`from_entropy`](super::from_entropy) in the field, [`from_seed`](super::from_seed) in tests).
    pub fn new(client_id: impl Into<String>, clean: bool, settings: Settings, random: fastrand::Rng) -> Self {
        Self {
            client_id: client_id.into(),
            clean,
            settings,
            random,
            backoff: Backoff::new(),
            attempts: 0,
            waited: Duration::ZERO,
            connected_since: None,
        }
    }

    /// The wait before the very first attempt: uniform up to the schedule's base, whatever its policy.
    pub fn start(&mut self, now: Moment, audit: &mut impl Audit) -> Wait {
        let delay = up_to(self.settings.schedule.base(), &mut self.random);
        self.wait(delay, Reason::ColdStart, now, audit)
    }

    /// The attempt that is due has to wait for a turn under the rate limit of its process or host.
    pub fn rate_limited(&mut self, delay: Duration, now: Moment, audit: &mut impl Audit) {
        self.waited = self.waited.saturating_add(delay);
        audit.record(&self.record(delay, Outcome::RateLimited, now));
    }

    /// A CONNACK with code 0. Nothing else counts as success: neither an open socket nor a finished handshake.
    pub fn connected(&mut self, now: Moment, audit: &mut impl Audit) {
        self.attempts = self.attempts.saturating_add(1);
        self.connected_since = Some(now);
        audit.record(&self.record(self.waited, Outcome::Connected, now));
    }

    /// The attempt failed. `retry_after` is the `retry-after-ms` of a 5.0 refusal.
    pub fn failed(
        &mut self,
        cause: Cause,
        retry_after: Option<Duration>,
        now: Moment,
        audit: &mut impl Audit,
    ) -> Next {
        self.attempts = self.attempts.saturating_add(1);
        audit.record(&self.record(self.waited, Outcome::Failed(cause), now));
        self.next(cause, retry_after, now, audit)
    }

    /// The connection is gone, by whatever cause. The schedule begins anew exactly when it had lasted for
    /// [`Settings::settle`].
    pub fn lost(&mut self, cause: Cause, now: Moment, audit: &mut impl Audit) -> Next {
        let since = self.connected_since.take();
        audit.record(&self.record(Duration::ZERO, Outcome::Failed(cause), now));
        if since.is_some_and(|since| now.since(since) >= self.settings.settle) {
            self.backoff.reset();
            self.attempts = 0;
        }
        self.next(cause, None, now, audit)
    }

    /// Attempts since the schedule began.
    pub const fn attempts(&self) -> u32 {
        self.attempts
    }

    fn next(
        &mut self,
        cause: Cause,
        retry_after: Option<Duration>,
        now: Moment,
        audit: &mut impl Audit,
    ) -> Next {
        let permanent = cause.lasting() == Lasting::Permanent;
        let scheduled = self.backoff.next(&self.settings.schedule, &mut self.random);
        let (delay, reason) = match self.settings.endurance {
            Endurance::Request { attempts } if permanent || self.attempts >= attempts.max(1) => {
                return Next::GiveUp {
                    attempts: self.attempts,
                    cause,
                };
            }
            _ if permanent => (self.at_cap(), Reason::Permanent(cause)),
            _ if retry_after.is_some() => (self.after(retry_after.unwrap_or_default()), Reason::RetryAfter),
            Endurance::Persistent { attempts } if self.attempts >= attempts.max(1) => {
                (self.at_cap(), Reason::AtCap)
            }
            _ => (scheduled, Reason::Schedule),
        };
        Next::Wait(self.wait(delay, reason, now, audit))
    }

    /// The upper tenth below the cap.
    fn at_cap(&mut self) -> Duration {
        let cap = self.settings.schedule.cap();
        cap.saturating_sub(up_to(cap / SPREAD_AT_CAP, &mut self.random))
    }

    fn after(&mut self, retry_after: Duration) -> Duration {
        let asked = retry_after.min(self.settings.longest_retry_after);
        promised(asked, &self.settings.schedule, &mut self.random)
    }

    fn wait(&mut self, delay: Duration, reason: Reason, now: Moment, audit: &mut impl Audit) -> Wait {
        self.waited = delay;
        audit.record(&self.record(delay, Outcome::Backoff, now));
        Wait {
            until: now + delay,
            delay,
            attempts: self.attempts,
            reason,
        }
    }

    fn record(&self, delay: Duration, outcome: Outcome, at: Moment) -> Record<'_> {
        Record {
            at,
            client_id: &self.client_id,
            attempt: self.attempts,
            delay,
            outcome,
            clean: self.clean,
        }
    }
}

/// The wait of a client that was told `retry_after`. The broker's own time counts those that it has promised already, so that
/// little is put on top: up to a tenth, and no more than the base, against those who were told the same in the same instant.
pub fn promised(retry_after: Duration, schedule: &Schedule, random: &mut fastrand::Rng) -> Duration {
    let asked = retry_after.max(SHORTEST_RETRY_AFTER);
    let spread = (asked / 10).min(schedule.base());
    asked.saturating_add(up_to(spread, random))
}

fn up_to(most: Duration, random: &mut fastrand::Rng) -> Duration {
    let most = u64::try_from(most.as_nanos()).unwrap_or(u64::MAX);
    Duration::from_nanos(random.u64(0..=most))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::reconnect::{Policy, from_seed};

    const SECOND: Duration = Duration::from_secs(1);
    const CAP: Duration = Duration::from_mins(5);
    const BUSY: Cause = Cause::Refused(0x89);
    const BAD_PASSWORD: Cause = Cause::Refused(0x86);

    fn settings(policy: Policy) -> Settings {
        Settings::persistent(Schedule::new(policy, SECOND, 2.0, CAP).unwrap())
    }

    fn client(settings: Settings) -> Reconnect {
        Reconnect::new("pump-7", false, settings, from_seed(1, "pump-7"))
    }

    fn silent(_: &Record<'_>) {}

    #[track_caller]
    fn wait(next: Next) -> Wait {
        match next {
            Next::Wait(wait) => wait,
            Next::GiveUp { .. } => panic!("{next:?}"),
        }
    }

    fn after(start: Moment, span: Duration) -> Moment {
        start + span
    }

    /// Delays of so many failures in a row.
    fn failures(client: &mut Reconnect, count: usize, now: Moment) -> Vec<Duration> {
        (0..count)
            .map(|_| wait(client.failed(BUSY, None, now, &mut silent)).delay)
            .collect()
    }

    #[test]
    fn only_a_connection_that_lasted_begins_the_schedule_anew() {
        let settle = settings(Policy::Exponential).settle;
        for (lasted, expected) in [
            (Duration::ZERO, 8),
            (settle.saturating_sub(SECOND), 8),
            (settle, 1),
            (settle * 2, 1),
        ] {
            let mut client = client(settings(Policy::Exponential));
            assert_eq!(
                failures(&mut client, 3, Moment::ZERO),
                [SECOND, 2 * SECOND, 4 * SECOND]
            );
            client.connected(Moment::ZERO, &mut silent);
            let next = client.lost(Cause::Transport, after(Moment::ZERO, lasted), &mut silent);
            assert_eq!(wait(next).delay.as_secs(), expected, "after {lasted:?}");
        }
    }

    #[test]
    fn accepted_and_dropped_is_no_loop_without_pauses() {
        let mut client = client(settings(Policy::Exponential));
        let mut delays = Vec::new();
        for _ in 0..6 {
            client.connected(Moment::ZERO, &mut silent);
            delays.push(
                wait(client.lost(Cause::Transport, Moment::ZERO, &mut silent))
                    .delay
                    .as_secs(),
            );
        }
        assert_eq!(delays, [1, 2, 4, 8, 16, 32]);
    }

    #[test]
    fn permanent_causes_are_held_at_the_cap_and_said() {
        let mut client = client(settings(Policy::FullJitter));
        for _ in 0..50 {
            let Wait { delay, reason, .. } =
                wait(client.failed(BAD_PASSWORD, None, Moment::ZERO, &mut silent));
            assert!(delay <= CAP && delay >= CAP * 9 / 10, "{delay:?}");
            assert_eq!(reason, Reason::Permanent(BAD_PASSWORD));
        }
    }

    #[test]
    fn a_persistent_client_never_gives_up_and_says_when_it_is_at_the_cap() {
        let endurance = Endurance::Persistent { attempts: 5 };
        let mut client = client(Settings {
            endurance,
            ..settings(Policy::FullJitter)
        });
        let mut next = |_| wait(client.failed(Cause::Timeout, None, Moment::ZERO, &mut silent));
        let first: Vec<Reason> = (0..4).map(&mut next).map(|wait| wait.reason).collect();
        assert_eq!(first, [Reason::Schedule; 4]);
        for Wait { delay, reason, .. } in (0..10_000).map(next) {
            assert_eq!(reason, Reason::AtCap);
            assert!(delay <= CAP && delay >= CAP * 9 / 10, "{delay:?}");
        }
    }

    #[test]
    fn a_request_ends_after_its_attempts_or_at_once_on_a_permanent_cause() {
        let endurance = Endurance::Request { attempts: 3 };
        let settings = Settings {
            endurance,
            ..settings(Policy::FullJitter)
        };
        let mut patient = client(settings);
        failures(&mut patient, 2, Moment::ZERO);
        let last = patient.failed(BUSY, Some(SECOND), Moment::ZERO, &mut silent);
        assert_eq!(
            last,
            Next::GiveUp {
                attempts: 3,
                cause: BUSY
            }
        );
        let next = client(settings).failed(BAD_PASSWORD, None, Moment::ZERO, &mut silent);
        assert_eq!(
            next,
            Next::GiveUp {
                attempts: 1,
                cause: BAD_PASSWORD
            }
        );
    }

    #[test]
    fn every_attempt_and_every_wait_has_its_record() {
        let mut records = Vec::new();
        let mut audit = |record: &Record<'_>| {
            assert_eq!((record.client_id, record.clean), ("pump-7", false));
            records.push((record.attempt, record.outcome, record.delay.as_millis()));
        };
        let mut client = client(settings(Policy::Exponential));
        let start = client.start(Moment::ZERO, &mut audit);
        client.failed(BUSY, None, start.until, &mut audit);
        client.rate_limited(SECOND / 4, start.until + SECOND, &mut audit);
        client.connected(start.until + 2 * SECOND, &mut audit);
        client.lost(Cause::Transport, start.until + CAP, &mut audit);
        let cold = start.delay.as_millis();
        assert_eq!(
            records,
            [
                (0, Outcome::Backoff, cold),
                (1, Outcome::Failed(BUSY), cold),
                (1, Outcome::Backoff, 1000),
                (1, Outcome::RateLimited, 250),
                (2, Outcome::Connected, 1250),
                (2, Outcome::Failed(Cause::Transport), 0),
                (0, Outcome::Backoff, 1000),
            ]
        );
    }

    proptest! {
        #[test]
        fn retry_after_is_honoured_with_little_on_top(asked_ms in 0_u64..10_000_000, seed in any::<u64>()) {
            let settings = settings(Policy::FullJitter);
            let mut client = Reconnect::new("a", true, settings, from_seed(seed, "a"));
            let asked = Duration::from_millis(asked_ms);
            let Wait { delay, reason, until, .. } = wait(client.failed(BUSY, Some(asked), Moment::ZERO, &mut silent));
            prop_assert_eq!(reason, Reason::RetryAfter);
            prop_assert_eq!(until, Moment::ZERO + delay);
            let taken = asked.min(settings.longest_retry_after).max(SHORTEST_RETRY_AFTER);
            prop_assert!(delay >= taken && delay <= taken + SECOND && delay <= taken + taken / 10, "{delay:?} for {asked:?}");
        }

        /// Whatever happens: no wait above the cap (but for what the broker asked for), and the schedule begins anew
        /// after a settled connection and at no other time.
        #[test]
        fn the_schedule_begins_anew_exactly_when_it_may(
            policy in proptest::sample::select(&Policy::ALL[..]),
            events in proptest::collection::vec((0_u8..4, 0_u64..90), 1..100),
        ) {
            let settings = settings(policy);
            let mut client = client(settings);
            let mut now = Moment::ZERO;
            let mut expected = 0_u32;
            for (event, seconds) in events {
                let before = now;
                now = now + Duration::from_secs(seconds);
                let next = match event {
                    0 => client.failed(Cause::Timeout, None, now, &mut silent),
                    1 => client.failed(BAD_PASSWORD, None, now, &mut silent),
                    2 => client.failed(Cause::Refused(3), None, now, &mut silent),
                    _ => {
                        client.connected(before, &mut silent);
                        client.lost(Cause::Transport, now, &mut silent)
                    }
                };
                let settled = event == 3 && now.since(before) >= settings.settle;
                expected = if settled { 0 } else { expected + 1 };
                let wait = wait(next);
                prop_assert_eq!(wait.attempts, expected);
                prop_assert_eq!(client.attempts(), expected);
                prop_assert!(wait.delay <= CAP);
                if settled && policy == Policy::Exponential {
                    prop_assert_eq!(wait.delay, SECOND);
                }
            }
        }

        #[test]
        fn cold_starts_spread_over_the_base(seed in any::<u64>()) {
            for policy in Policy::ALL {
                let mut client = Reconnect::new("a", true, settings(policy), from_seed(seed, "a"));
                let Wait { delay, reason, .. } = client.start(Moment::ZERO, &mut silent);
                prop_assert_eq!(reason, Reason::ColdStart);
                prop_assert!(delay <= SECOND);
            }
        }
    }
}
