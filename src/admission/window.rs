//! The window of CONNECTs in flight to the brokers, and the pace at which its seats come free.

use std::time::Duration;

use crate::moment::Moment;

/// Weight of the newest interval in the pace: the mean of about the last 16, a moment at any rate worth holding for.
const WEIGHT: f64 = 1.0 / 16.0;

/// How many mean intervals without an answer are taken as chance; past it the silence itself is the pace. At random
/// intervals (exponential) one in 50 is longer than 4 means.
const SILENCE: f64 = 4.0;

/// Seats in flight: how many are taken, and how fast they come free when all are.
#[derive(Clone, Debug)]
pub struct Window {
    limit: u32,
    in_flight: u32,
    /// Since when the brokers work on a full window without an answer; `None`: the window is not full.
    full_since: Option<Moment>,
    /// Mean time between two answers of a full window, in nanoseconds; `None`: it has not been full yet.
    interval: Option<f64>,
}

impl Window {
    /// An empty window of `limit` seats, at least 1.
    pub fn new(limit: u32) -> Self {
        Self {
            limit: limit.max(1),
            in_flight: 0,
            full_since: None,
            interval: None,
        }
    }

    /// Another limit from now on; seats that are taken stay taken.
    pub fn resize(&mut self, limit: u32, now: Moment) {
        self.limit = limit.max(1);
        self.note_fullness(now);
    }

    /// Seats taken.
    pub const fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Whether a seat is free.
    pub const fn has_room(&self) -> bool {
        self.in_flight < self.limit
    }

    /// Takes a seat, above the limit if need be (a dry run refuses nobody).
    pub fn enter(&mut self, now: Moment) {
        self.in_flight = self.in_flight.saturating_add(1);
        self.note_fullness(now);
    }

    /// Gives a seat back; `worked`: the broker had it, so that it tells of the broker's pace.
    pub fn leave(&mut self, worked: bool, now: Moment) {
        if let Some(since) = self.full_since
            && worked
        {
            let interval = (now - since).as_nanos() as f64;
            self.interval = Some(
                self.interval
                    .map_or(interval, |mean| mean + (interval - mean) * WEIGHT),
            );
            self.full_since = Some(now);
        }
        self.in_flight = self.in_flight.saturating_sub(1);
        self.note_fullness(now);
    }

    /// When a seat will be free for one who lets `ahead` others go first: `now` when there are enough, else at the
    /// measured pace; `None`: no pace has been measured.
    pub fn available_at(&self, ahead: usize, now: Moment) -> Option<Moment> {
        let free = usize::try_from(self.limit.saturating_sub(self.in_flight)).unwrap_or(usize::MAX);
        if ahead < free {
            return Some(now);
        }
        let excess = usize::try_from(self.in_flight.saturating_sub(self.limit)).unwrap_or(usize::MAX);
        let answers = (ahead - free).saturating_add(excess).saturating_add(1);
        let silence = self.full_since.map_or(Duration::ZERO, |since| now - since);
        let interval = self.interval?.max(silence.as_nanos() as f64 / SILENCE);
        Some(now + Duration::from_nanos((interval * answers as f64) as u64))
    }

    fn note_fullness(&mut self, now: Moment) {
        if self.has_room() {
            self.full_since = None;
        } else if self.full_since.is_none() {
            self.full_since = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: u64) -> Moment {
        Moment::from_nanos(milliseconds * 1_000_000)
    }

    /// A window of two seats on a broker that answers every `interval` milliseconds, always refilled.
    fn saturated(interval: u64, answers: u64) -> (Window, u64) {
        let mut window = Window::new(2);
        window.enter(at(0));
        window.enter(at(0));
        for answer in 1..=answers {
            window.leave(true, at(answer * interval));
            window.enter(at(answer * interval));
        }
        (window, answers * interval)
    }

    #[test]
    fn without_a_measured_pace_nothing_is_foreseen() {
        let mut window = Window::new(1);
        assert_eq!(window.available_at(0, at(7)), Some(at(7)));
        assert_eq!(window.available_at(1, at(7)), None);
        window.enter(at(7));
        assert_eq!(window.available_at(0, at(8)), None);
    }

    #[test]
    fn a_full_window_frees_its_seats_at_the_measured_pace() {
        let (window, now) = saturated(10, 50);
        assert_eq!(window.available_at(0, at(now)), Some(at(now + 10)));
        assert_eq!(window.available_at(9, at(now)), Some(at(now + 100)));
    }

    #[test]
    fn the_pace_follows_a_broker_that_slows_down() {
        let (mut window, mut now) = saturated(10, 50);
        for _ in 0..60 {
            now += 40;
            window.leave(true, at(now));
            window.enter(at(now));
        }
        let foreseen = window.available_at(0, at(now)).unwrap() - at(now);
        assert!((38..=40).contains(&foreseen.as_millis()), "{foreseen:?}");
    }

    #[test]
    fn silence_beyond_chance_is_a_pace() {
        let (window, now) = saturated(10, 50);
        assert_eq!(window.available_at(0, at(now + 40)), Some(at(now + 50)));
        assert_eq!(window.available_at(1, at(now + 4000)), Some(at(now + 6000)));
    }

    #[test]
    fn an_idle_window_says_nothing_of_the_pace() {
        let (mut window, now) = saturated(10, 50);
        window.leave(true, at(now));
        window.leave(true, at(now));
        window.enter(at(now + 60_000));
        window.leave(true, at(now + 120_000));
        window.enter(at(now + 120_000));
        window.enter(at(now + 120_000));
        let foreseen = window.available_at(0, at(now + 120_000)).unwrap() - at(now + 120_000);
        assert!(foreseen <= Duration::from_millis(10), "{foreseen:?}");
    }

    #[test]
    fn a_smaller_window_waits_until_the_excess_is_gone() {
        let (mut window, now) = saturated(10, 50);
        window.resize(1, at(now));
        assert!(!window.has_room());
        assert_eq!(window.available_at(0, at(now)), Some(at(now + 20)));
        window.leave(true, at(now));
        assert!(!window.has_room());
        window.leave(true, at(now));
        assert!(window.has_room());
    }
}
