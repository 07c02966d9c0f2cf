//! What can be seen of the controller.

use super::{Controller, Supply};
use crate::admission::breaker::Access;
use crate::moment::Moment;

/// So many clients with wrong credentials are no fleet whose authentication is broken, even while nobody else is there.
const A_FEW: usize = 10;

/// The controller's figures at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// Tokens a second now.
    pub rate: f64,
    /// Why it is that many.
    pub cause: RateCause,
    /// Tokens a second below which `admission.adaptive` does not go, with the reserves on top; 0 where it is off.
    pub rate_floor: f64,
    /// Tokens in the bucket now; below zero by what a dry run owes.
    pub tokens: f64,
    /// Seats taken.
    pub in_flight: u32,
    /// Seats there are: `max_in_flight`, or what the broker has shown to bear.
    pub window: u32,
    /// CONNECTs held.
    pub held: usize,
    /// Refused ones that have a slot.
    pub appointments: usize,
    /// Credentials that the broker has refused lately.
    pub bad_credentials: usize,
    /// Whether these are most of the fleet: more than there are sessions.
    pub refuses_most: bool,
    /// Whether a broker may be tried now.
    pub usable: bool,
    /// `admission.dry_run`: nobody is refused.
    pub dry_run: bool,
    /// Tokens that all who passed the limits of their own would have taken since the start, whatever became of them.
    pub wanted: f64,
    /// Tokens a second that the pulse finds the brokers to bear from here; `None`: the rate is a fixed one.
    pub found: Option<f64>,
}

/// Why the rate is what it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RateCause {
    /// `admission.rate`, as configured.
    #[default]
    Fixed,
    /// `admission.adaptive` has found it.
    Found,
    /// `admission.adaptive` would go lower: `min_rate`.
    Floor,
    /// `admission.adaptive` would go higher: `max_rate`.
    Ceiling,
    /// A breaker has closed not long ago: `upstream.breaker.slow_start`.
    SlowStart,
    /// No broker may be tried: the rate is what it will begin with.
    NoBroker,
}

impl RateCause {
    /// As the live page's events say it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Fixed => "fixed",
            Self::Found => "found",
            Self::Floor => "floor",
            Self::Ceiling => "ceiling",
            Self::SlowStart => "slow-start",
            Self::NoBroker => "no-broker",
        }
    }
}

impl<W> Controller<W> {
    /// Figures for metrics and status.
    pub fn snapshot(&self, now: Moment) -> Snapshot {
        let supply = self.supply(now);
        let usable = !matches!(self.brokers.access(now), Access::Shut { .. });
        Snapshot {
            rate: supply.rate,
            cause: self.rate_cause(usable, now),
            rate_floor: Supply::floor(&self.settings, self.share),
            tokens: self.queues.tokens(now),
            in_flight: self.queues.in_flight(),
            window: supply.max_in_flight,
            held: self.queues.held(),
            appointments: self.appointments.len(),
            bad_credentials: self.credentials.len(),
            refuses_most: self.credentials.len() > self.clients.open().max(A_FEW),
            usable,
            dry_run: self.settings.dry_run,
            wanted: self.wanted,
            found: self.settings.adaptive.enabled.then(|| self.adaptive.rate()),
        }
    }

    fn rate_cause(&self, usable: bool, now: Moment) -> RateCause {
        let (adaptive, rate) = (self.settings.adaptive, self.adaptive.rate());
        if !usable {
            RateCause::NoBroker
        } else if self.rises(now) {
            RateCause::SlowStart
        } else if !adaptive.enabled {
            RateCause::Fixed
        } else if rate <= adaptive.min_rate {
            RateCause::Floor
        } else if rate >= adaptive.max_rate {
            RateCause::Ceiling
        } else {
            RateCause::Found
        }
    }
}
