//! The broker's pulse: how many CONNECTs it may have in flight, and how many a second, found from its answers alone.
//!
//! The law is a gradient on latency (`docs/decisions/0006-adaptive-law.md`): the window grows while answers come about as fast as
//! from a broker with nothing to do, and shrinks as they slow down. What "nothing to do" means is measured, by
//! halving the window for one round every now and then. The rate is a ceiling above the throughput that the window
//! has shown: in flight beats rate.

use std::time::Duration;

use crate::moment::Moment;

/// `[admission.adaptive]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Follow the broker instead of a fixed rate.
    pub enabled: bool,
    /// CONNECT forwarded to CONNACK received: above it the window shrinks whatever the gradient says.
    pub target_latency: Duration,
    /// Tokens a second at least, above 0.
    pub min_rate: f64,
    /// Tokens a second at most.
    pub max_rate: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            enabled: false,
            // A twentieth of the patience of the most impatient client (5 s), handshake and queue come on top.
            target_latency: Duration::from_millis(200),
            // Low enough for a broker on a router, high enough to find out in seconds that it is none.
            min_rate: 5.0,
            // What no single broker node has been seen to authenticate.
            max_rate: 5000.0,
        }
    }
}

impl Settings {
    /// `max_rate`, where it is no less than `min_rate`.
    pub const fn highest_rate(&self) -> f64 {
        self.max_rate.max(self.min_rate)
    }
}

/// Answers in a round at least: the mean of fewer is chance.
const ROUND: u32 = 8;

/// Answers may be this much slower than an idle broker's before the window shrinks: covers the noise of a mean.
const TOLERANCE: f64 = 1.25;

/// CONNECTs that may wait inside of the broker, of the square root of the window and at least one: with one waiting, a
/// single server never waits for us; among many workers chance needs more.
const ALLOWANCE: f64 = 0.75;

/// Weight of a round's result in the window.
const SMOOTHING: f64 = 0.5;

/// Room above the measured throughput: the window is what limits, the bucket must not.
const HEADROOM: f64 = 1.5;

/// Weight of a round in the measured throughput.
const THROUGHPUT_WEIGHT: f64 = 0.25;

/// How much the rate rises in a round in which it was the limit.
const CREEP: f64 = 1.25;

/// What remains of window and rate after a round with a failure.
const BACK_OFF: f64 = 0.5;

/// Weight of a measurement in the idle latency.
const IDLE_WEIGHT: f64 = 0.5;

/// How often the idle latency is measured anew under load: one round at half the window, 1 to 2 % of the time.
const MEASURE_EVERY: Duration = Duration::from_secs(10);

/// What the broker has shown to bear.
#[derive(Clone, Debug)]
pub struct Adaptive {
    settings: Settings,
    max_window: u32,
    window: f64,
    rate: f64,
    /// Answers a second of a full window.
    throughput: Option<f64>,
    /// Seconds that an idle broker takes.
    idle_latency: Option<f64>,
    /// It is doubling until it first meets the knee.
    starting: bool,
    /// The window to go back to after a measurement.
    measuring: Option<f64>,
    measured: Moment,
    round: Round,
}

#[derive(Clone, Copy, Debug, Default)]
struct Round {
    since: Moment,
    /// Answers to CONNECTs of whichever round.
    all: u32,
    /// Answers to CONNECTs of this round.
    answers: u32,
    seconds: f64,
    /// Answers that came while the window was full.
    full: u32,
    failed: bool,
}

impl Adaptive {
    /// Begins with one CONNECT in flight; `rate` is where the rate begins, within the limits.
    pub fn new(settings: Settings, rate: f64, max_in_flight: u32, now: Moment) -> Self {
        Self {
            settings,
            max_window: max_in_flight.max(1),
            window: 1.0,
            rate: rate.clamp(settings.min_rate, settings.highest_rate()),
            throughput: None,
            idle_latency: None,
            starting: true,
            measuring: None,
            measured: now,
            round: Round {
                since: now,
                ..Round::default()
            },
        }
    }

    /// Other limits from now on; what was learned is kept.
    pub fn reconfigure(&mut self, settings: Settings, max_in_flight: u32) {
        self.settings = settings;
        self.max_window = max_in_flight.max(1);
        self.set_window(self.window);
        self.set_rate(self.rate);
    }

    /// Tokens a second.
    pub const fn rate(&self) -> f64 {
        self.rate
    }

    /// CONNECTs in flight, at least 1.
    pub fn window(&self) -> u32 {
        self.window as u32
    }

    /// The broker has answered, `latency` after the CONNECT was forwarded. `full`: with this one as many were in flight
    /// as may be, and nothing but the window kept a further one back.
    pub fn answered(&mut self, code: u8, latency: Duration, full: bool, now: Moment) {
        if is_overload(code) {
            self.failed(now);
            return;
        }
        self.round.all += 1;
        if now - self.round.since < latency {
            // Sent under the window of the round before.
            return;
        }
        self.round.answers += 1;
        self.round.seconds += latency.as_secs_f64();
        self.round.full += u32::from(full);
        if self.round.answers >= ROUND.max(self.window()) {
            self.end_round(now);
        }
    }

    /// The broker could not be reached, broke off, stayed silent, or says that it is busy.
    pub fn failed(&mut self, now: Moment) {
        if self.round.failed {
            return;
        }
        self.round.failed = true;
        self.starting = false;
        self.measuring = None;
        self.set_window(self.window * BACK_OFF);
        self.set_rate(self.rate * BACK_OFF);
        self.throughput = self.throughput.map(|throughput| throughput * BACK_OFF);
        self.round.since = now;
    }

    fn end_round(&mut self, now: Moment) {
        let round = std::mem::replace(
            &mut self.round,
            Round {
                since: now,
                ..Round::default()
            },
        );
        let latency = (round.seconds / f64::from(round.answers)).max(1e-6);
        if let Some(window) = self.measuring.take() {
            self.learn_idle(latency);
            self.set_window(window);
            return;
        }
        if round.failed {
            return;
        }
        let full = round.full * 2 >= round.answers;
        if !full || self.idle_latency.is_none() {
            self.learn_idle(latency);
        }
        let idle = self.idle_latency.unwrap_or(latency);
        self.follow_window(latency, idle, full);
        self.follow_rate(&round, latency, idle, full, now);
        if full && now - self.measured >= MEASURE_EVERY {
            self.measured = now;
            self.measuring = Some(self.window);
            self.set_window(self.window / 2.0);
        }
    }

    /// A mean, not a minimum: where answers are irregular the fastest says nothing.
    fn learn_idle(&mut self, latency: f64) {
        self.idle_latency = Some(
            self.idle_latency
                .map_or(latency, |idle| idle + (latency - idle) * IDLE_WEIGHT),
        );
    }

    fn follow_window(&mut self, latency: f64, idle: f64, full: bool) {
        let gradient = (TOLERANCE * idle / latency).clamp(BACK_OFF, 1.0);
        let target = self.settings.target_latency.as_secs_f64();
        if gradient < 1.0 || latency > target {
            self.starting = false;
        }
        if self.starting && full {
            self.set_window(self.window * 2.0);
            return;
        }
        // Who does not use the window does not learn that it could be larger.
        let allowance = if full {
            (self.window.sqrt() * ALLOWANCE).max(1.0)
        } else {
            0.0
        };
        let mut next = self.window * gradient + allowance;
        if latency > target {
            next = next.min(self.window * (target / latency).max(BACK_OFF));
        }
        self.set_window(self.window + (next - self.window) * SMOOTHING);
    }

    fn follow_rate(&mut self, round: &Round, latency: f64, idle: f64, full: bool, now: Moment) {
        let measured = f64::from(round.all) / (now - round.since).as_secs_f64().max(1e-6);
        if full {
            let throughput = self
                .throughput
                .map_or(measured, |mean| mean + (measured - mean) * THROUGHPUT_WEIGHT);
            self.throughput = Some(throughput);
            self.set_rate(throughput * HEADROOM);
        } else if measured * HEADROOM >= self.rate && latency <= idle * TOLERANCE {
            self.set_rate(self.rate * CREEP);
        }
    }

    fn set_window(&mut self, window: f64) {
        self.window = window.clamp(1.0, f64::from(self.max_window));
    }

    fn set_rate(&mut self, rate: f64) {
        self.rate = rate.clamp(self.settings.min_rate, self.settings.highest_rate());
    }
}

/// Codes with which a broker says that it has too much to do: 3 (3.x server unavailable), 0x88 server unavailable,
/// 0x89 server busy, 0x97 quota exceeded.
pub const fn is_overload(code: u8) -> bool {
    matches!(code, 3 | 0x88 | 0x89 | 0x97)
}

#[cfg(test)]
mod tests;
