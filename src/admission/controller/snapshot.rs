//! What can be seen of the controller.

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
