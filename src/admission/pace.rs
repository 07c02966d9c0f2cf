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

/// The least that one is sent away for a seat while nothing at all is known of the brokers: a login that takes longer is
/// rare, and who comes again costs a handshake.
const LEAST: Duration = Duration::from_millis(250);

/// Time between two answers while the brokers have all that they may have; nothing is learned from idle brokers.
#[derive(Clone, Debug, Default)]
pub struct Pace {
    /// Since when the brokers work on a full window without an answer; `None`: it is not full.
    full_since: Option<Moment>,
    /// Mean time between two answers, in nanoseconds; `None`: it has not been full yet.
    interval: Option<f64>,
    /// Answers that went into it, up to [`WARM_UP`].
    answers: u32,
    /// Mean time for which a seat was taken lately, in nanoseconds, full or not.
    latency: Option<f64>,
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

    /// A seat was taken for so long.
    pub fn took(&mut self, latency: Duration) {
        let latency = latency.as_nanos() as f64;
        self.latency = Some(
            self.latency
                .map_or(latency, |mean| mean + (latency - mean) * WEIGHT),
        );
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
        let interval = self.measured()?.max(self.silence(now) / SILENCE);
        Some(now + Duration::from_nanos((interval * answers as f64) as u64))
    }

    /// The same for one who is sent away, where `seats` are taken, none of them for longer than `longest`. There is always
    /// something to tell: by what answers took where no pace has been measured; and behind a silence beyond chance as
    /// long as that has lasted, so that who heeds it comes ever more seldom.
    pub fn expect(&self, answers: usize, seats: usize, longest: Duration, now: Moment) -> Moment {
        let silence = self.silence(now);
        let longest = longest.as_nanos() as f64;
        let known = self
            .measured()
            .or_else(|| self.latency.map(|latency| latency / seats.max(1) as f64));
        let Some(interval) = known else {
            let least = LEAST.as_nanos() as f64;
            return now + Duration::from_nanos(silence.max(least).min(longest) as u64);
        };
        let foreseen = interval.max(silence / SILENCE) * answers as f64;
        let least = if silence > interval * SILENCE {
            silence.min(longest)
        } else {
            0.0
        };
        now + Duration::from_nanos(foreseen.max(least) as u64)
    }

    /// For how long the brokers have had all that they may have and not answered, in nanoseconds.
    fn silence(&self, now: Moment) -> f64 {
        let silence = self.full_since.map_or(Duration::ZERO, |since| now - since);
        silence.as_nanos() as f64
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

    /// Who comes again each time when it was told to, while nobody is answered.
    fn visits(pace: &Pace, from: u64, until: u64) -> usize {
        let mut now = at(from);
        let mut visits = 0;
        while now < at(until) {
            let told = pace.expect(1, 1, Duration::from_secs(10), now);
            assert!(told > now && told - now <= Duration::from_secs(10));
            now = told;
            visits += 1;
        }
        visits
    }

    #[test]
    fn one_who_heeds_it_comes_seldom_to_brokers_that_do_not_answer() {
        let mut unknown = Pace::default();
        unknown.note(true, at(0));
        assert_eq!(visits(&unknown, 300, 3000), 4);
        assert_eq!(visits(&unknown, 300, 60_000), 11);
        let mut quick = Pace::default();
        quick.took(Duration::from_millis(5));
        quick.note(true, at(0));
        assert!(visits(&quick, 1, 30_000) < 20);
        let (measured, now) = saturated(1, 50);
        assert!(visits(&measured, now, now + 30_000) < 25);
    }

    #[test]
    fn what_answers_took_stands_in_for_a_pace() {
        let mut pace = Pace::default();
        for _ in 0..100 {
            pace.took(Duration::from_millis(40));
        }
        pace.note(true, at(0));
        let told = |answers| pace.expect(answers, 4, Duration::from_secs(10), at(1)) - at(1);
        assert_eq!(told(1), Duration::from_millis(10));
        assert_eq!(told(10), Duration::from_millis(100));
        // A measured pace is better.
        let (mut pace, now) = saturated(7, 50);
        pace.took(Duration::from_millis(40));
        let told = pace.expect(2, 4, Duration::from_secs(10), at(now));
        assert_eq!(told, at(now + 14));
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
