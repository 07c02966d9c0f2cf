//! What is to be found out: a fleet, its outage, the way to the broker, and the broker.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::admission::{self, gate};
use crate::fleet::mix::{Mix, Pauses};
use crate::reconnect::{Policy, ScheduleError};

/// One run in virtual time.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The devices.
    pub fleet: Fleet,
    /// What happened to them.
    pub outage: Outage,
    /// How long a message takes to the front and its answer back. Each attempt is late by a random time up to this,
    /// besides.
    pub round_trip: Duration,
    /// The broker.
    pub broker: Broker,
    /// What stands in front of it; `None`: the devices connect to the broker itself.
    pub proxy: Option<Proxy>,
    /// The run ends this long after the network is back, whoever is still out.
    pub watched: Duration,
    /// The same seed gives the same run.
    pub seed: u64,
}

/// The devices.
#[derive(Clone, Debug)]
pub struct Fleet {
    /// How many lose their connections; at least 1.
    pub devices: u32,
    /// When they try again.
    pub mix: Mix,
    /// The delays of the policies.
    pub pauses: Pauses,
    /// Dial to CONNACK, after which a device gives up.
    pub patience: Duration,
    /// Share that speaks MQTT 5.0, 0 to 1.
    pub v5: f64,
    /// Share of those that waits as long as `retry-after-ms` says.
    pub heeding: f64,
    /// Who brings a ticket.
    pub resumption: Resumption,
    /// Whether the broker keeps their sessions.
    pub persistent: bool,
}

/// Who brings a ticket.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Resumption {
    /// Share of the devices, 0 to 1.
    pub share: f64,
}

/// Something between the most and the least patient libraries, and every figure a round one.
impl Default for Fleet {
    fn default() -> Self {
        Self {
            devices: 10_000,
            mix: Mix::all(Policy::FullJitter),
            pauses: Pauses {
                // What most firmware with a fixed pause has.
                fixed: Duration::from_secs(5),
                base: Duration::from_secs(5),
                multiplier: 2.0,
                cap: Duration::from_mins(10),
            },
            // The advice of docs/devices.md, and the patience of PubSubClient.
            patience: Duration::from_secs(15),
            v5: 0.5,
            // No library does by itself.
            heeding: 0.0,
            // After a long outage of a fleet that has never resumed: nobody.
            resumption: Resumption { share: 0.0 },
            persistent: true,
        }
    }
}

/// What happened to the connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outage {
    /// Of which kind.
    pub pattern: Pattern,
    /// From the loss of the connections until there is a way back.
    pub lasts: Duration,
    /// Over which time the devices boot ([`Pattern::Cold`]), or are hit one after the other ([`Pattern::Rolling`]).
    pub over: Duration,
}

/// Kinds of outages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// All lose the network at once and find it again at once. Attempts in between fail at once and reach nobody.
    Tower,
    /// All lose their power and boot, each at a random moment within [`Outage::over`], with their schedules at the beginning.
    Cold,
    /// The broker restarts, the network stays: attempts during the outage reach whatever is in front of it.
    Broker,
    /// As [`Pattern::Tower`], one part of the fleet after the other.
    Rolling,
}

impl Pattern {
    /// Every pattern.
    pub const ALL: [Self; 4] = [Self::Tower, Self::Cold, Self::Broker, Self::Rolling];

    /// The word on the command line and in reports.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Tower => "tower",
            Self::Cold => "cold",
            Self::Broker => "broker",
            Self::Rolling => "rolling",
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|pattern| pattern.word() == word)
            .ok_or_else(|| {
                let words = Self::ALL.map(Self::word).join(", ");
                format!("unknown pattern {word:?}: one of {words}")
            })
    }
}

/// The broker with its authentication service.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Broker {
    /// Logins a second, all servers together; above 0.
    pub capacity: f64,
    /// That work side by side; at least 1.
    pub servers: u32,
    /// CONNECTs that wait for a server at most; beyond it one is reset.
    pub queue: u32,
}

impl Broker {
    /// How long one server works on one login.
    pub fn service(&self) -> Duration {
        Duration::try_from_secs_f64(f64::from(self.servers) / self.capacity).unwrap_or(Duration::MAX)
    }
}

impl Default for Broker {
    fn default() -> Self {
        Self {
            capacity: 500.0,
            servers: 1,
            // What a process has descriptors for. Any queue longer than capacity × patience does the same harm.
            queue: 100_000,
        }
    }
}

/// A Seawall.
#[derive(Clone, Debug)]
pub struct Proxy {
    /// `[admission]`
    pub admission: admission::Settings,
    /// `[handshake]`
    pub gate: gate::Settings,
    /// `refusal.delay`
    pub refusal_delay: Duration,
    /// `refusal.max_delayed`
    pub max_delayed: usize,
    /// `refusal.retry_after`
    pub tells_retry_after: bool,
    /// `upstream.connack_timeout`
    pub connack_timeout: Duration,
    /// Of the machine that it runs on; at least 1.
    pub cores: u32,
    /// What its work costs.
    pub costs: Costs,
}

impl Proxy {
    /// Threads that compute handshakes: one less than there are cores, as in the daemon.
    pub fn handshake_threads(&self) -> u32 {
        self.cores.saturating_sub(1).max(1)
    }
}

/// Processor time of the proxy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// The cryptography of a full handshake (TLS 1.3, P-256), on the threads for handshakes.
    pub full: Duration,
    /// The same of a resumption.
    pub resumed: Duration,
    /// All else of an attempt that ends in a refusal: system calls, records, the CONNECT, the answer.
    pub refused: Duration,
    /// All else of an attempt that is admitted, up to its end.
    pub admitted: Duration,
    /// A connection that is closed before TLS.
    pub shed: Duration,
}

impl Costs {
    /// Those of a machine that takes so long for the cryptography of a handshake, full and resumed; all else in proportion.
    #[must_use]
    pub fn scaled(full: Duration, resumed: Duration) -> Self {
        let reference = Self::default();
        let factor = full.as_secs_f64() / reference.full.as_secs_f64();
        Self {
            full,
            resumed,
            refused: reference.refused.mul_f64(factor),
            admitted: reference.admitted.mul_f64(factor),
            shed: reference.shed.mul_f64(factor),
        }
    }
}

/// Measured on the machine of the README's table: 235 µs for a refusal after a full handshake, 303 µs for an admission, 14 µs for a
/// shed connection, and 66 and 63 µs of cryptography in them.
impl Default for Costs {
    fn default() -> Self {
        Self {
            full: Duration::from_micros(66),
            resumed: Duration::from_micros(63),
            refused: Duration::from_micros(169),
            admitted: Duration::from_micros(237),
            shed: Duration::from_micros(14),
        }
    }
}

/// Why a scenario can't be run: the caller's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScenarioError {
    /// Pauses that are none.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// Nobody can be that impatient.
    #[error(
        "a patience of {patience:?} ends before the {needed:?} that the network alone takes: two round trips and more"
    )]
    Impatient {
        /// As given.
        patience: Duration,
        /// What it must exceed.
        needed: Duration,
    },
}

impl Scenario {
    /// What can't be run. The fields' own ranges are the caller's to keep.
    pub(super) fn check(&self) -> Result<(), ScenarioError> {
        let needed = self.round_trip * 3;
        if self.fleet.patience <= needed {
            return Err(ScenarioError::Impatient {
                patience: self.fleet.patience,
                needed,
            });
        }
        Ok(())
    }
}
