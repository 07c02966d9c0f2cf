//! The laws that were not chosen.

use super::Law;

const TARGET: f64 = 0.2;
const MOST: f64 = 100.0;

/// Additive increase while the target is met, multiplicative decrease when not.
pub(super) struct Aimd {
    pub(super) window: f64,
    pub(super) cut: f64,
}

impl Law for Aimd {
    fn window(&self) -> f64 {
        self.window
    }
    fn rate(&self) -> f64 {
        5000.0
    }
    fn answered(&mut self, latency: f64, in_flight: u32, now: f64) {
        if latency > TARGET {
            // One cut for each window of answers, or the queue that is there is punished over and over.
            if now > self.cut + latency {
                self.window = (self.window * 0.7).max(1.0);
                self.cut = now;
            }
        } else if f64::from(in_flight) >= self.window.floor() {
            self.window = (self.window + 1.0 / self.window).min(MOST);
        }
    }
}

/// Netflix' Vegas: the estimated queue against the fastest answer ever, between 3 and 6 times log10 of the window.
pub(super) struct Vegas {
    pub(super) window: f64,
    pub(super) fastest: f64,
}

impl Law for Vegas {
    fn window(&self) -> f64 {
        self.window
    }
    fn rate(&self) -> f64 {
        5000.0
    }
    fn answered(&mut self, latency: f64, in_flight: u32, _now: f64) {
        self.fastest = self.fastest.min(latency);
        let queue = self.window * (1.0 - self.fastest / latency);
        let unit = self.window.log10().max(1.0);
        if queue > 6.0 * unit {
            self.window = (self.window - unit / self.window).max(1.0);
        } else if queue < 3.0 * unit && f64::from(in_flight) >= self.window.floor() {
            self.window = (self.window + unit / self.window).min(MOST);
        }
    }
}

/// Netflix' Gradient2: short against long mean of the latency, room for the square root of the window.
pub(super) struct Gradient2 {
    pub(super) window: f64,
    pub(super) short: f64,
    pub(super) long: f64,
}

impl Law for Gradient2 {
    fn window(&self) -> f64 {
        self.window
    }
    fn rate(&self) -> f64 {
        5000.0
    }
    fn answered(&mut self, latency: f64, in_flight: u32, _now: f64) {
        if self.long <= 0.0 {
            (self.short, self.long) = (latency, latency);
        }
        self.short += (latency - self.short) / 10.0;
        self.long += (latency - self.long) / 600.0;
        if self.long > 2.0 * self.short {
            self.long *= 0.95;
        }
        if f64::from(in_flight) * 2.0 < self.window {
            return;
        }
        let gradient = (1.5 * self.long / self.short).clamp(0.5, 1.0);
        let next = self.window * gradient + self.window.sqrt();
        self.window = (self.window * 0.8 + next * 0.2).clamp(1.0, MOST);
    }
}

/// A controller of the rate on the distance from the target latency; the window is the configured one.
pub(super) struct Pid {
    pub(super) rate: f64,
    pub(super) last: f64,
}

impl Law for Pid {
    fn window(&self) -> f64 {
        MOST
    }
    fn rate(&self) -> f64 {
        self.rate
    }
    fn answered(&mut self, latency: f64, _in_flight: u32, _now: f64) {
        let distance = ((TARGET - latency) / TARGET).clamp(-1.0, 1.0);
        let change = 0.01 * distance + 0.05 * (distance - self.last);
        self.last = distance;
        self.rate = (self.rate * (1.0 + change)).clamp(5.0, 5000.0);
    }
}
