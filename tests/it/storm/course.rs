//! A storm as it was seen from both ends.

use super::fleet::{STRETCH, Timeline};
use super::watch::Look;
use std::time::{Duration, Instant};

pub struct Course {
    pub from: Instant,
    pub took: Duration,
    pub timeline: Timeline,
    pub looks: Vec<Look>,
    /// CONNECTs that the broker has answered.
    pub answered: usize,
}

impl Course {
    /// What the broker served in a second in which it had work. It is not the same in each storm: whatever else the
    /// machine does makes it less, be it on the other half of the same core.
    pub fn capacity(&self) -> f64 {
        let end = self.took.as_secs_f64();
        self.answered as f64 / (self.busy_at(end) - self.busy_at(0.0))
    }

    /// Seconds that the broker needed to let everybody in.
    pub fn ideal(&self) -> f64 {
        self.timeline.joins.len() as f64 / self.capacity()
    }

    /// What part of its time the broker had work between these seconds.
    pub fn used(&self, from: f64, to: f64) -> f64 {
        (self.busy_at(to) - self.busy_at(from)) / (to - from)
    }

    /// The least part of its time for which the broker had work in the stretches that had some for all of it, and how many
    /// those were.
    pub fn least_used(&self) -> (f64, usize) {
        let busy = self.timeline.busy(self.capacity());
        let used = busy.iter().map(|from| self.used(*from, from + STRETCH));
        (used.fold(f64::INFINITY, f64::min), busy.len())
    }

    /// Of those whom the broker let in, the part that was still there.
    pub fn fruitful(&self) -> f64 {
        self.timeline.joins.len() as f64 / self.answered as f64
    }

    pub fn second(&self, moment: Instant) -> f64 {
        moment.saturating_duration_since(self.from).as_secs_f64()
    }

    /// The last look until then.
    pub fn look_at(&self, second: f64) -> Look {
        let past = self.looks.iter().rfind(|look| self.second(look.at) <= second);
        *past.unwrap_or(&self.looks[0])
    }

    pub fn most_in_flight(&self) -> f64 {
        self.looks.iter().map(|look| look.in_flight).fold(0.0, f64::max)
    }

    /// Between two looks it is taken to have been busy evenly.
    fn busy_at(&self, second: f64) -> f64 {
        let after = self.looks.partition_point(|look| self.second(look.at) <= second);
        let before = self.look_at(second);
        let Some(after) = self.looks.get(after) else {
            return before.busy;
        };
        let (from, to) = (self.second(before.at), self.second(after.at));
        let part = if to > from {
            ((second - from) / (to - from)).clamp(0.0, 1.0)
        } else {
            0.0
        };
        before.busy + (after.busy - before.busy) * part
    }
}
