//! Who gets in, who waits, who is refused: pure. Every method takes `now`; nothing here has a socket, an `.await`,
//! a clock or a log line.

pub mod bucket;
pub mod controller;
pub mod hold;
pub mod window;

use std::time::Duration;

use crate::reason::Reason;

/// `[admission]`: legal by construction of the configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// CONNECTs a second that reach the brokers; above 0, may be fractional.
    pub rate: f64,
    /// Size of the bucket in tokens, at least 1 and at least the largest cost.
    pub burst: f64,
    /// CONNECTs sent to a broker and not yet answered; at least 1.
    pub max_in_flight: u32,
    /// How long a CONNECT is held for its turn; zero: refuse at once.
    pub max_wait: Duration,
    /// Most CONNECTs held at a time.
    pub max_held: usize,
    /// Decide and count, but refuse nobody.
    pub dry_run: bool,
    /// Tokens that a CONNECT takes.
    pub cost: Cost,
}

/// `[admission.cost]`: tokens that a CONNECT takes, above 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// For a session that begins and ends clean.
    pub clean: f64,
    /// For a session that the broker keeps.
    pub persistent: f64,
}

/// What a decision needs to know of a CONNECT.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Client identifier, may be empty.
    pub client_id: &'a str,
    /// Whether the broker keeps a session for it.
    pub persistent: bool,
}

/// A refusal and what the client may be told with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Why.
    pub reason: Reason,
    /// When there will be room, from now.
    pub retry_after: Option<Duration>,
}

/// How an admitted CONNECT came out: settles its seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The broker answered with this code after this time.
    Answered {
        /// CONNACK return or reason code.
        code: u8,
        /// CONNECT forwarded to CONNACK received.
        latency: Duration,
    },
    /// The broker could not be reached, or broke off before its CONNACK.
    Failed,
    /// The broker stayed silent for `upstream.connack_timeout`.
    TimedOut,
    /// The client left while the broker worked on it.
    Abandoned,
    /// The client was gone before anything was sent: its token goes back.
    Unused,
}
