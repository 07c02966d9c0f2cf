//! What a run counts, by second.

use std::collections::VecDeque;
use std::time::Duration;

use super::outcome::Second;
use crate::moment::Moment;

/// Returns are told apart by so many nanoseconds.
const STEP: u64 = 10_000_000;

/// Attempts of a device that are told apart; whoever needed more is counted with the last.
const ATTEMPTS: usize = 100_000;

/// Everything that is counted.
#[derive(Debug)]
pub(super) struct Tally {
    pub(super) seconds: Vec<Second>,
    /// Devices that came back, by [`STEP`] since the network was back.
    pub(super) returns: Vec<u32>,
    /// Devices that came back, by the attempts that they needed.
    pub(super) attempts: Vec<u32>,
    pub(super) fillable: Fillable,
    back_at: Moment,
}

impl Tally {
    /// `back_at`: when there is a way back.
    pub(super) fn new(back_at: Moment, fillable: Fillable) -> Self {
        Self {
            seconds: Vec::new(),
            returns: Vec::new(),
            attempts: Vec::new(),
            fillable,
            back_at,
        }
    }

    /// The second that `now` is in, counted from the loss of the connections.
    pub(super) fn at(&mut self, now: Moment) -> &mut Second {
        element(&mut self.seconds, (now.as_nanos() / 1_000_000_000) as usize)
    }

    /// A device got its CONNACK at `now`, after so many attempts.
    pub(super) fn returned(&mut self, attempts: u32, now: Moment) {
        let step = now.since(self.back_at).as_nanos() as u64 / STEP;
        *element(&mut self.returns, step as usize) += 1;
        let attempts = (attempts as usize).min(ATTEMPTS);
        *element(&mut self.attempts, attempts) += 1;
    }

    /// When so many devices were back, after the network was; `None`: never.
    pub(super) fn back(&self, devices: u64) -> Option<Duration> {
        let step = rank(&self.returns, devices)?;
        Some(Duration::from_nanos((step as u64 + 1) * STEP))
    }

    /// Attempts of the device at this rank among those that came back.
    pub(super) fn attempts_of(&self, devices: u64) -> Option<u32> {
        rank(&self.attempts, devices).and_then(|attempts| u32::try_from(attempts).ok())
    }
}

/// Grows to the element, which is bounded by the end of the run.
fn element<T: Default + Clone>(list: &mut Vec<T>, index: usize) -> &mut T {
    if index >= list.len() {
        list.resize(index + 1, T::default());
    }
    let last = list.len() - 1;
    #[expect(clippy::indexing_slicing, reason = "the list has just been grown to it")]
    &mut list[index.min(last)]
}

/// Where so many of a histogram's devices are reached.
fn rank(histogram: &[u32], devices: u64) -> Option<usize> {
    let mut sum = 0;
    histogram.iter().position(|count| {
        sum += u64::from(*count);
        sum >= devices.max(1)
    })
}

/// How much of the broker's capacity those who knock could fill: what a server of the same capacity would serve that
/// never works for one who has left, and never idles while anybody's patience lasts. In steps of [`Fillable::STEP`].
#[derive(Debug)]
pub(super) struct Fillable {
    /// Logins in a step.
    capacity: f64,
    /// Steps that one who knocks waits.
    patience: u64,
    /// Knocks that were not served yet, by the step that they came in.
    waiting: VecDeque<(u64, f64)>,
    sum: f64,
    step: u64,
    served: f64,
}

impl Fillable {
    const STEP: Duration = Duration::from_millis(50);

    /// `capacity`: logins a second. `patience`: of one who knocks.
    pub(super) fn new(capacity: f64, patience: Duration) -> Self {
        Self {
            capacity: capacity * Self::STEP.as_secs_f64(),
            patience: (patience.as_nanos() / Self::STEP.as_nanos()) as u64,
            waiting: VecDeque::new(),
            sum: 0.0,
            step: 0,
            served: 0.0,
        }
    }

    /// A device has knocked; `out` are not connected, of which the one is one.
    pub(super) fn knock(&mut self, out: u64, now: Moment) {
        self.advance(now);
        // Who knocks again while its first knock would still be waiting is no second device: its patience begins anew.
        if self.sum + 1.0 > out as f64 {
            self.forget_oldest();
        }
        self.sum += 1.0;
        match self.waiting.back_mut() {
            Some((step, count)) if *step == self.step => *count += 1.0,
            _ => self.waiting.push_back((self.step, 1.0)),
        }
    }

    /// Logins that could have been served until `now`.
    pub(super) fn served(&mut self, now: Moment) -> f64 {
        self.advance(now);
        self.served
    }

    fn advance(&mut self, now: Moment) {
        let until = (now.as_nanos() / Self::STEP.as_nanos() as u64).max(self.step);
        while self.step < until {
            if self.waiting.is_empty() {
                self.step = until;
                return;
            }
            self.serve();
            self.step += 1;
            while let Some((came, count)) = self.waiting.front().copied()
                && came + self.patience < self.step
            {
                self.waiting.pop_front();
                self.sum -= count;
            }
        }
    }

    fn forget_oldest(&mut self) {
        let mut left = 1.0;
        while let Some((_, count)) = self.waiting.front_mut() {
            let taken = count.min(left);
            left -= taken;
            *count -= taken;
            self.sum -= taken;
            if *count > 0.0 {
                return;
            }
            self.waiting.pop_front();
        }
    }

    fn serve(&mut self) {
        let mut left = self.capacity;
        while let Some((_, count)) = self.waiting.front_mut() {
            let taken = count.min(left);
            left -= taken;
            *count -= taken;
            self.sum -= taken;
            self.served += taken;
            if *count > 0.0 {
                return;
            }
            self.waiting.pop_front();
        }
        self.sum = 0.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: u64) -> Moment {
        Moment::from_nanos(milliseconds * 1_000_000)
    }

    fn fillable() -> Fillable {
        Fillable::new(100.0, Duration::from_secs(5))
    }

    #[test]
    fn a_wave_fills_what_its_patience_allows() {
        let mut wave = fillable();
        for _ in 0..10_000 {
            wave.knock(10_000, at(1000));
        }
        let served = wave.served(at(60_000));
        assert!((served - 505.0).abs() < 6.0, "{served}");
    }

    #[test]
    fn a_trickle_fills_no_more_than_it_is() {
        let mut trickle = fillable();
        for knock in 0..100 {
            trickle.knock(10_000, at(knock * 100));
        }
        assert!((trickle.served(at(60_000)) - 100.0).abs() < 1e-6);
    }

    #[test]
    fn one_device_that_knocks_on_and_on_is_one_device() {
        let mut few = Fillable::new(1.0, Duration::from_secs(60));
        for _ in 0..1000 {
            few.knock(3, at(0));
        }
        assert!((few.served(at(600_000)) - 3.0).abs() < 1e-6);
    }

    #[test]
    fn ranks_are_of_all_devices() {
        let mut tally = Tally::new(at(1000), fillable());
        for (attempts, moment) in [(1, 1000), (1, 1500), (7, 11_000)] {
            tally.returned(attempts, at(moment));
        }
        assert_eq!(tally.back(2), Some(Duration::from_millis(510)));
        assert_eq!(tally.back(3), Some(Duration::from_millis(10_010)));
        assert_eq!(tally.back(4), None);
        assert_eq!((tally.attempts_of(2), tally.attempts_of(3)), (Some(1), Some(7)));
    }
}
