//! The clock of the daemon: turns the runtime's time into the [`Moment`]s that the core is told, and back.

use std::time::Duration;

use tokio::time::Instant;

use crate::moment::Moment;

/// A clock with an origin of its own. Monotonic; under a paused runtime as still as that.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
}

/// The farthest that a sleep is planned ahead: a tokio timer reaches about two years.
const FARTHEST: Duration = Duration::from_hours(24);

impl Clock {
    /// A clock whose origin is now.
    pub fn start() -> Self {
        Self {
            origin: Instant::now(),
        }
    }

    /// Now.
    pub fn now(&self) -> Moment {
        Moment::ZERO + self.origin.elapsed()
    }

    /// The moment of `instant`; the origin for what was before it.
    pub fn moment(&self, instant: Instant) -> Moment {
        Moment::ZERO + instant.saturating_duration_since(self.origin)
    }

    /// When to wake for `moment`, at most a day from now: whoever sleeps looks again then.
    pub fn wake(&self, moment: Moment) -> Instant {
        self.origin + (moment - Moment::ZERO).min(self.origin.elapsed() + FARTHEST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn moments_and_instants_are_the_same_time() {
        let before = Instant::now();
        tokio::time::advance(Duration::from_secs(1)).await;
        let clock = Clock::start();
        tokio::time::advance(Duration::from_millis(1500)).await;
        let now = Moment::from_nanos(1_500_000_000);
        assert_eq!(clock.now(), now);
        assert_eq!(clock.moment(Instant::now()), now);
        assert_eq!(clock.wake(now), Instant::now());
        assert_eq!(clock.moment(before), Moment::ZERO);
        assert_eq!(clock.wake(Moment::NEVER), Instant::now() + FARTHEST);
    }
}
