//! What `seawall plan` takes on its command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::config::{self, Mistakes, Sources, duration};
use crate::fleet::calibrate::{self, CalibrationError};
use crate::fleet::mix::{Mix, Pauses};
use crate::fleet::plan::{Costs, Fleet, Pattern, ProxySettings, Resumption, Sweep};

#[derive(Args, Clone, Debug)]
pub(in crate::cli) struct PlanFlags {
    #[command(flatten)]
    pub(super) fleet: FleetFlags,
    #[command(flatten)]
    pub(super) outage: OutageFlags,
    #[command(flatten)]
    pub(super) broker: BrokerFlags,
    #[command(flatten)]
    pub(super) proxy: ProxyFlags,
    /// End the run this long after the network is back, whoever is still out
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = duration)]
    pub(super) watch: Duration,
    /// The same seed gives the same run
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) seed: u64,
    /// Run once for each value of one setting: KEY=FROM..TO, KEY=FROM..TO:STEPS or KEY=VALUE,VALUE
    ///
    /// KEY is devices, mix, cap, base, fixed, patience, outage, capacity or servers; rate; or a key of the configuration, such
    /// as `admission.max_wait`, whose table may be left out for `[admission]`.
    #[arg(long, value_name = "SWEEP")]
    pub(super) sweep: Option<Sweep>,
    /// Write a page with charts
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<PathBuf>,
    /// Write settings and outcomes, second by second; `-` is stdout, in place of the tables
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
}

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "The fleet")]
pub(super) struct FleetFlags {
    /// Devices that lose their connections, up to 10 million
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub(super) devices: u32,
    /// Policy of the devices, or several by share, such as fixed:60,full:40
    ///
    /// fixed, exponential, proportional, full, equal, decorrelated, slot.
    #[arg(long, value_name = "MIX", default_value = "full")]
    pub(super) mix: Mix,
    /// Pause of devices with a fixed one
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration)]
    pub(super) fixed: Duration,
    /// First ceiling of the other policies
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration)]
    pub(super) base: Duration,
    /// From one ceiling to the next
    #[arg(long, value_name = "FACTOR", default_value_t = 2.0)]
    pub(super) multiplier: f64,
    /// Longest ceiling
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = duration)]
    pub(super) cap: Duration,
    /// Dial to CONNACK, after which a device gives up
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = duration)]
    pub(super) patience: Duration,
    /// Share that speaks MQTT 5.0, in per cent
    #[arg(long, value_name = "PERCENT", default_value_t = 50.0, value_parser = percent)]
    pub(super) v5: f64,
    /// Share of those that waits as long as `retry-after-ms` says, in per cent
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0, value_parser = percent)]
    pub(super) heeding: f64,
    /// Share that brings a TLS ticket, in per cent
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0, value_parser = percent)]
    pub(super) resumed: f64,
    /// Sessions that begin and end clean: `admission.cost.clean` instead of `.persistent`
    #[arg(long)]
    pub(super) clean: bool,
}

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "The outage")]
pub(super) struct OutageFlags {
    /// tower, cold, broker or rolling
    ///
    /// tower: the network is lost and comes back for all at once. cold: all lose their power and boot within --over.
    /// broker: the broker restarts, the network stays. rolling: as tower, one after the other within --over.
    #[arg(long, value_name = "PATTERN", default_value = "tower")]
    pub(super) pattern: Pattern,
    /// From the loss of the connections until there is a way back
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = duration)]
    pub(super) outage: Duration,
    /// Time within which devices boot, or are hit
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = duration)]
    pub(super) over: Duration,
    /// Round trip between devices and front; each attempt is late by up to as much again, at random
    #[arg(long, value_name = "TIME", default_value = "50ms", value_parser = duration)]
    pub(super) round_trip: Duration,
}

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "The broker")]
pub(super) struct BrokerFlags {
    /// Logins a second that it bears
    #[arg(long, value_name = "R", default_value_t = 500.0, value_parser = rate)]
    pub(super) capacity: f64,
    /// Logins that it works on side by side
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(super) servers: u32,
    /// CONNECTs that it queues; beyond it one is reset
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub(super) queue: u32,
}

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "The proxy")]
pub(super) struct ProxyFlags {
    /// What the devices connect to
    #[arg(long, value_name = "FRONT", default_value = "both")]
    pub(super) front: Front,
    /// CONNECTs a second that reach the broker, with a burst of one second's worth
    ///
    /// Short for `--set admission.rate=R --set admission.burst=R`.
    #[arg(long, value_name = "R", value_parser = rate)]
    pub(super) rate: Option<f64>,
    /// Configuration file whose `[admission]`, `[handshake]`, `[refusal]` and `[upstream]` count; else the defaults
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// Set one key, such as `--set admission.max_wait=4s`; beats environment and file
    #[arg(long, value_name = "KEY=VALUE")]
    pub(super) set: Vec<String>,
    /// Cryptography of a full handshake on its machine; all that it does costs in proportion
    #[arg(long, value_name = "TIME", default_value = "66us", value_parser = duration, conflicts_with = "calibrate")]
    pub(super) handshake_cost: Duration,
    /// Measure that on this machine, for half a second
    #[arg(long)]
    pub(super) calibrate: bool,
    /// Cores of its machine
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(super) cores: u32,
}

/// What the devices connect to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Front {
    /// The broker, then a Seawall in front of it.
    Both,
    /// The broker itself.
    None,
    /// A Seawall in front of it.
    Seawall,
}

impl FleetFlags {
    pub(super) fn settings(&self) -> Fleet {
        Fleet {
            devices: self.devices,
            mix: self.mix.clone(),
            pauses: Pauses {
                fixed: self.fixed,
                base: self.base,
                multiplier: self.multiplier,
                cap: self.cap,
            },
            patience: self.patience,
            v5: self.v5,
            heeding: self.heeding,
            resumption: Resumption { share: self.resumed },
            persistent: !self.clean,
        }
    }
}

/// Keys that have no default and no meaning without sockets.
const NO_SOCKETS: [&str; 3] = [
    "tls.certificate=none",
    "tls.private_key=none",
    "upstream.servers=127.0.0.1:1883",
];

impl ProxyFlags {
    pub(super) fn costs(&self) -> Result<Costs, CalibrationError> {
        if self.calibrate {
            return calibrate::costs();
        }
        let Costs { full, resumed, .. } = Costs::default();
        let factor = self.handshake_cost.as_secs_f64() / full.as_secs_f64();
        Ok(Costs::scaled(self.handshake_cost, resumed.mul_f64(factor)))
    }

    pub(super) fn settings(&self, costs: Costs) -> Result<ProxySettings, Mistakes> {
        let mut set: Vec<String> = Vec::new();
        if self.config.is_none() {
            set.extend(NO_SOCKETS.map(str::to_owned));
        }
        if let Some(rate) = self.rate {
            set.push(format!("admission.rate={rate}"));
            set.push(format!("admission.burst={}", rate.max(1.0)));
        }
        set.extend(self.set.iter().cloned());
        let sources = Sources {
            file: self.config.clone(),
            searched: Vec::new(),
            environment: std::env::vars_os().collect(),
            set,
        };
        let config = config::load(&sources)?;
        Ok(ProxySettings {
            admission: config.admission,
            gate: config.gate,
            refusal_delay: config.refusal.delay,
            max_delayed: config.refusal.max_delayed,
            tells_retry_after: config.refusal.retry_after,
            connack_timeout: config.upstream.connack_timeout,
            cores: self.cores,
            costs,
        })
    }
}

/// A share of 1 from per cent.
fn percent(text: &str) -> Result<f64, String> {
    let percent: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (0.0..=100.0).contains(&percent) {
        Ok(percent / 100.0)
    } else {
        Err("not from 0 to 100".to_owned())
    }
}

/// Above 0, and no more than any broker or proxy bears.
pub(super) fn rate(text: &str) -> Result<f64, String> {
    let rate: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if rate > 0.0 && rate <= 1e6 {
        Ok(rate)
    } else {
        Err("not above 0 and up to 1000000".to_owned())
    }
}
