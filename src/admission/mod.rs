//! Who gets in, who waits, who is refused: pure. Every method takes `now`; nothing here has a socket, an `.await`,
//! a clock or a log line.
//!
//! [`controller`] is the only door. It composes parts that know nothing of each other: [`classify`] tells what a CONNECT
//! is ([`lanes`]); [`credentials`], [`clients`] and [`second_dial`] remember those who are refused whatever there is room
//! for ([`hot_loop`]: and come again at once); [`brokers`] ([`breaker`], [`suspects`]) say whether anybody may go, [`adaptive`] how fast; [`queues`] have the tokens ([`bucket`]),
//! the seats ([`pace`]) and the places ([`hold`]); [`appointments`] tell the others when to come back.

pub mod adaptive;
pub mod appointments;
pub mod breaker;
pub mod brokers;
pub mod bucket;
pub mod classify;
pub mod clients;
pub mod controller;
pub mod credentials;
pub mod gate;
pub mod hold;
pub mod hot_loop;
pub mod lanes;
pub mod memory;
pub mod pace;
pub mod queues;
pub mod second_dial;
pub mod sources;
pub mod suspects;

use std::net::IpAddr;
use std::time::Duration;

use crate::mqtt::Version;
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
    /// Classes of clients, first match first; who matches none is in the lane "default".
    pub lanes: Vec<lanes::Lane>,
    /// Follow the broker instead of a fixed rate.
    pub adaptive: adaptive::Settings,
    /// Limits by client id.
    pub per_client: clients::Settings,
    /// Answer for the broker where it refuses the same credentials again and again.
    pub bad_credentials: credentials::Settings,
    /// `[upstream.breaker]`.
    pub breaker: breaker::Settings,
    /// `upstream.connack_timeout`: a seat is hardly taken for longer.
    pub connack_timeout: Duration,
    /// Number of brokers, at least 1: each has its own breaker.
    pub servers: usize,
    /// Those of them that a reload took away, by index; not all.
    pub retired: Vec<usize>,
}

/// The defaults of the contract.
impl Default for Settings {
    fn default() -> Self {
        Self {
            // What a broker of one core with a cheap authentication serves without being noticed.
            rate: 200.0,
            // One second's worth.
            burst: 200.0,
            // Half a second's worth at the default rate: a broker that is slower than that is in trouble.
            max_in_flight: 100,
            // Holding is for fleets in lockstep; it must not exceed the patience of the clients, which we can't know.
            max_wait: Duration::ZERO,
            // What 50 descriptors a MiB and a few hundred bytes each cost nobody.
            max_held: 10_000,
            dry_run: false,
            cost: Cost::default(),
            lanes: Vec::new(),
            adaptive: adaptive::Settings::default(),
            per_client: clients::Settings::default(),
            bad_credentials: credentials::Settings::default(),
            breaker: breaker::Settings::default(),
            // See `upstream`.
            connack_timeout: Duration::from_secs(30),
            servers: 1,
            retired: Vec::new(),
        }
    }
}

/// This process's part of a budget that it has in common with other replicas.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// Part of rate, burst, window and reserves, 0 to 1.
    pub fraction: f64,
    /// What all replicas together find the brokers to bear, tokens a second, where the rate follows them; `None`:
    /// nobody has found anything yet.
    pub ceiling: Option<f64>,
}

impl Share {
    /// Of a process that shares with nobody.
    pub const WHOLE: Self = Self {
        fraction: 1.0,
        ceiling: None,
    };
}

/// `[admission.cost]`: tokens that a CONNECT takes, above 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// For a session that begins and ends clean.
    pub clean: f64,
    /// For a session that the broker keeps.
    pub persistent: f64,
}

/// One token each: what a session costs differs from broker to broker.
impl Default for Cost {
    fn default() -> Self {
        Self {
            clean: 1.0,
            persistent: 1.0,
        }
    }
}

/// What is known of a CONNECT. `Debug` shows neither user name nor password.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// Client identifier, may be empty.
    pub client_id: &'a str,
    /// User name, where there is one.
    pub username: Option<&'a str>,
    /// Password, where there is one.
    pub password: Option<&'a [u8]>,
    /// Common name of the client's certificate, where it was verified.
    pub common_name: Option<&'a str>,
    /// Server name that the client asked for (SNI).
    pub server_name: Option<&'a str>,
    /// The client's address; `None` in virtual time.
    pub source: Option<IpAddr>,
    /// Version of the CONNECT.
    pub version: Version,
    /// Whether the broker keeps a session for it.
    pub persistent: bool,
}

impl Default for Request<'_> {
    fn default() -> Self {
        Self {
            client_id: "",
            username: None,
            password: None,
            common_name: None,
            server_name: None,
            source: None,
            version: Version::V3_1_1,
            persistent: false,
        }
    }
}

impl std::fmt::Debug for Request<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Request")
            .field("client_id", &self.client_id)
            .field("source", &self.source)
            .field("version", &self.version)
            .field("persistent", &self.persistent)
            .finish_non_exhaustive()
    }
}

/// A refusal and what the client may be told with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Why.
    pub reason: Reason,
    /// When there will be room, from now.
    pub retry_after: Option<Duration>,
    /// The broker's own code, for [`Reason::BadCredentials`].
    pub code: Option<u8>,
    /// For how long the answer is to be kept back.
    pub keep_back: Duration,
}

impl Refusal {
    /// A refusal that tells no more than its reason.
    pub const fn new(reason: Reason) -> Self {
        Self {
            reason,
            retry_after: None,
            code: None,
            keep_back: Duration::ZERO,
        }
    }
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
