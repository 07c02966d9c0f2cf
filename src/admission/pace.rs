//! The pace at which the brokers answer when all seats are taken: what a place in the queue for a seat is worth.

use std::time::Duration;

use crate::moment::Moment;

/// Weight of the newest interval in the pace: the mean of about the last 16, a moment at any rate worth holding for.
const WEIGHT: f64 = 1.0 / 16.0;

/// Answers until a pace counts as measured. The first few of a storm come from a broker whose caches are cold, beside a
/// crowd of handshakes: to foresee by them refuses a first wave that could have been served, and the broker then idles
/// until the next. To be optimistic costs little: who is held in vain is refused within `max_wait`.
const WARM_UP: u32 = 16;

/// How many mean intervals without an answer are taken as chance; past it the silence itself is the pace. At random
/// intervals (exponential) one in 50 is longer than 4 means.
const SILENCE: f64 = 4.0;

/// Time between two answers while the brokers have all that they may have; nothing is learned from idle brokers.
#[derive(Clone, Debug, Default)]
pub struct Pace {
    /// Since when the brokers work on a full window without an answer; `None`: it is not full.
    full_since: Option<Moment>,
    /// Mean time between two answers, in nanoseconds; `None`: it has not been full yet.
    interval: Option<f64>,
    /// Answers that went into it, up to [`WARM_UP`].
    answers: u32,
}

impl Pace {
    /// Says whether all seats are taken; to be called whenever that may have changed.
    pub fn note(&mut self, full: bool, now: Moment) {
        self.full_since = if full { self.full_since.or(Some(now)) } else { None };
    }

    /// A broker has answered; to be called before the seat is given back.
    pub fn answered(&mut self, now: Moment) {
        let Some(since) = self.full_since else { return };
        let interval = (now - since).as_nanos() as f64;
        self.interval = Some(
            self.interval
                .map_or(interval, |mean| mean + (interval - mean) * WEIGHT),
        );
        self.answers = WARM_UP.min(self.answers + 1);
        self.full_since = Some(now);
    }

    fn measured(&self) -> Option<f64> {
        self.interval.filter(|_| self.answers == WARM_UP)
    }

    /// Answers a second; `None`: no pace has been measured.
    pub fn rate(&self) -> Option<f64> {
        self.measured().map(|interval| 1e9 / interval.max(1.0))
    }

    /// When so many answers more will have come; `None`: no pace has been measured.
    pub fn foresee(&self, answers: usize, now: Moment) -> Option<Moment> {
        let silence = self.full_since.map_or(Duration::ZERO, |since| now - since);
        let interval = self.measured()?.max(silence.as_nanos() as f64 / SILENCE);
        Some(now + Duration::from_nanos((interval * answers as f64) as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: u64) -> Moment {
        Moment::from_nanos(milliseconds * 1_000_000)
    }

    /// A broker that has answered every `interval` milliseconds with its window full all the time.
    fn saturated(interval: u64, answers: u64) -> (Pace, u64) {
        let mut pace = Pace::default();
        pace.note(true, at(0));
        for answer in 1..=answers {
            pace.answered(at(answer * interval));
            pace.note(false, at(answer * interval));
            pace.note(true, at(answer * interval));
        }
        (pace, answers * interval)
    }

    #[test]
    fn without_a_measured_pace_nothing_is_foreseen() {
        let mut pace = Pace::default();
        assert_eq!(pace.foresee(1, at(8)), None);
        pace.answered(at(9));
        assert_eq!(
            pace.foresee(1, at(10)),
            None,
            "an idle broker's answer tells nothing"
        );
        pace.note(true, at(10));
        assert_eq!(pace.foresee(1, at(20)), None);
    }

    #[test]
    fn a_cold_start_is_no_pace() {
        let (pace, now) = saturated(60, 15);
        assert_eq!(pace.foresee(100, at(now)), None);
        let (pace, now) = saturated(60, 16);
        assert_eq!(pace.foresee(100, at(now)), Some(at(now + 6000)));
    }

    #[test]
    fn seats_come_free_at_the_measured_pace() {
        let (pace, now) = saturated(10, 50);
        assert_eq!(pace.foresee(1, at(now)), Some(at(now + 10)));
        assert_eq!(pace.foresee(10, at(now)), Some(at(now + 100)));
    }

    #[test]
    fn the_pace_follows_a_broker_that_slows_down() {
        let (mut pace, mut now) = saturated(10, 50);
        for _ in 0..60 {
            now += 40;
            pace.answered(at(now));
        }
        let foreseen = pace.foresee(1, at(now)).unwrap() - at(now);
        assert!((38..=40).contains(&foreseen.as_millis()), "{foreseen:?}");
    }

    #[test]
    fn silence_beyond_chance_is_a_pace() {
        let (pace, now) = saturated(10, 50);
        assert_eq!(pace.foresee(1, at(now + 40)), Some(at(now + 50)));
        assert_eq!(pace.foresee(2, at(now + 4000)), Some(at(now + 6000)));
    }

    #[test]
    fn time_with_free_seats_does_not_count() {
        let (mut pace, now) = saturated(10, 50);
        pace.note(false, at(now));
        pace.answered(at(now + 60_000));
        pace.note(true, at(now + 120_000));
        let foreseen = pace.foresee(1, at(now + 120_000)).unwrap() - at(now + 120_000);
        assert_eq!(foreseen, Duration::from_millis(10));
    }
}
