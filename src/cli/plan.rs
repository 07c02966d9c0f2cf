//! `seawall plan`: flags → scenarios → tables and files.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::Failure;
use crate::config::{self, Mistakes, Sources, duration};
use crate::fleet::mix::{Mix, MixError, Pauses};
use crate::fleet::plan::advice::Advice;
use crate::fleet::plan::page::{self, Run};
use crate::fleet::plan::{
    self, Broker, Costs, Fleet, Outage, Pattern, ProxySettings, Resumption, Scenario, Sweep, Table, charts,
};

#[derive(Args, Clone, Debug)]
pub(super) struct PlanFlags {
    #[command(flatten)]
    fleet: FleetFlags,
    #[command(flatten)]
    outage: OutageFlags,
    #[command(flatten)]
    broker: BrokerFlags,
    #[command(flatten)]
    proxy: ProxyFlags,
    /// End the run this long after the network is back, whoever is still out
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = duration)]
    watch: Duration,
    /// The same seed gives the same run
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Run once for each value of one setting: KEY=FROM..TO, KEY=FROM..TO:STEPS or KEY=VALUE,VALUE
    ///
    /// KEY is devices, mix, cap, base, fixed, patience, outage, capacity or servers; rate; or a key of the configuration, such
    /// as `admission.max_wait`, whose table may be left out for `[admission]`.
    #[arg(long, value_name = "SWEEP")]
    sweep: Option<Sweep>,
    /// Write a page with charts
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write settings and outcomes, second by second; `-` is stdout, in place of the tables
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "The fleet")]
struct FleetFlags {
    /// Devices that lose their connections, up to 10 million
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    devices: u32,
    /// Policy of the devices, or several by share, such as fixed:60,full:40
    ///
    /// fixed, exponential, proportional, full, equal, decorrelated, slot.
    #[arg(long, value_name = "MIX", default_value = "full")]
    mix: Mix,
    /// Pause of devices with a fixed one
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration)]
    fixed: Duration,
    /// First ceiling of the other policies
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration)]
    base: Duration,
    /// From one ceiling to the next
    #[arg(long, value_name = "FACTOR", default_value_t = 2.0)]
    multiplier: f64,
    /// Longest ceiling
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = duration)]
    cap: Duration,
    /// Dial to CONNACK, after which a device gives up
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = duration)]
    patience: Duration,
    /// Share that speaks MQTT 5.0, in per cent
    #[arg(long, value_name = "PERCENT", default_value_t = 50.0, value_parser = percent)]
    v5: f64,
    /// Share of those that waits as long as `retry-after-ms` says, in per cent
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0, value_parser = percent)]
    heeding: f64,
    /// Share that brings a TLS ticket, in per cent
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0, value_parser = percent)]
    resumed: f64,
    /// Sessions that begin and end clean: `admission.cost.clean` instead of `.persistent`
    #[arg(long)]
    clean: bool,
}

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "The outage")]
struct OutageFlags {
    /// tower, cold, broker or rolling
    ///
    /// tower: the network is lost and comes back for all at once. cold: all lose their power and boot within --over.
    /// broker: the broker restarts, the network stays. rolling: as tower, one after the other within --over.
    #[arg(long, value_name = "PATTERN", default_value = "tower")]
    pattern: Pattern,
    /// From the loss of the connections until there is a way back
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = duration)]
    outage: Duration,
    /// Time within which devices boot, or are hit
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = duration)]
    over: Duration,
    /// Round trip between devices and front; each attempt is late by up to as much again, at random
    #[arg(long, value_name = "TIME", default_value = "50ms", value_parser = duration)]
    round_trip: Duration,
}

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "The broker")]
struct BrokerFlags {
    /// Logins a second that it bears
    #[arg(long, value_name = "R", default_value_t = 500.0, value_parser = rate)]
    capacity: f64,
    /// Logins that it works on side by side
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    servers: u32,
    /// CONNECTs that it queues; beyond it one is reset
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    queue: u32,
}

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "The proxy")]
struct ProxyFlags {
    /// What the devices connect to
    #[arg(long, value_name = "FRONT", default_value = "both")]
    front: Front,
    /// CONNECTs a second that reach the broker, with a burst of one second's worth
    ///
    /// Short for `--set admission.rate=R --set admission.burst=R`.
    #[arg(long, value_name = "R", value_parser = rate)]
    rate: Option<f64>,
    /// Configuration file whose `[admission]`, `[handshake]`, `[refusal]` and `[upstream]` count; else the defaults
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Set one key, such as `--set admission.max_wait=4s`; beats environment and file
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Cores of its machine
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1024))]
    cores: u32,
}

/// What the devices connect to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Front {
    /// The broker, then a Seawall in front of it.
    Both,
    /// The broker itself.
    None,
    /// A Seawall in front of it.
    Seawall,
}

/// Runs `seawall plan`.
pub(super) fn plan(flags: &PlanFlags) -> Result<(), Failure> {
    let mut runs = Vec::new();
    for (name, scenario) in flags.scenarios()? {
        let outcome = plan::run(&scenario)?;
        runs.push(Run {
            name,
            scenario,
            outcome,
        });
    }
    let json = flags
        .json
        .as_ref()
        .map(|path| page::json(&runs).map(|text| (path, text)))
        .transpose()
        .map_err(|error| Failure::Output(error.into()))?;
    let mut out = io::stdout().lock();
    let text = match &json {
        Some((path, text)) if path.as_os_str() == "-" => format!("{text}\n"),
        _ => tables(flags, &runs),
    };
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(Failure::Output)?;
    if let Some((path, text)) = json.filter(|(path, _)| path.as_os_str() != "-") {
        write(path, &text)?;
    }
    if let Some(path) = &flags.html {
        write(path, &page::html(&flags.question(), &runs))?;
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text).map_err(|error| Failure::File {
        path: path.to_owned(),
        error,
    })
}

/// Columns of the charts: what a terminal has at least, nearly always.
const WIDTH: usize = 100;

fn tables(flags: &PlanFlags, runs: &[Run]) -> String {
    let mut text = format!("{}\n\n", flags.question());
    if flags.sweep.is_some() {
        text.push_str(&page::comparison(runs));
        return text;
    }
    for Run {
        scenario, outcome, ..
    } in runs
    {
        let table = Table { scenario, outcome };
        // Writing to a string does not fail.
        let _ = writeln!(text, "{table}\n{}", charts::logins(outcome).text(WIDTH, 2));
    }
    if let Some(Run {
        scenario, outcome, ..
    }) = runs.last()
    {
        let _ = write!(text, "{}", Advice::of(scenario, outcome));
    }
    text
}

impl PlanFlags {
    fn scenarios(&self) -> Result<Vec<(String, Scenario)>, Failure> {
        let Some(sweep) = &self.sweep else {
            return Ok(self.fronts()?);
        };
        let mut all = Vec::new();
        for value in &sweep.values {
            let flags = self.with(&sweep.key, value).map_err(Failure::Sweep)?;
            for (front, scenario) in flags.fronts()? {
                all.push((format!("{} = {value}, {front}", sweep.key), scenario));
            }
        }
        Ok(all)
    }

    /// The same with one setting changed.
    fn with(&self, key: &str, value: &str) -> Result<Self, String> {
        let mut flags = self.clone();
        let time = || duration(value).map_err(|error| error.to_string());
        let count = || {
            value
                .parse()
                .map_err(|_| format!("{value:?} is no number of {key}"))
        };
        match key {
            "devices" => flags.fleet.devices = count()?,
            "mix" => flags.fleet.mix = value.parse().map_err(|error: MixError| error.to_string())?,
            "cap" => flags.fleet.cap = time()?,
            "base" => flags.fleet.base = time()?,
            "fixed" => flags.fleet.fixed = time()?,
            "patience" => flags.fleet.patience = time()?,
            "outage" => flags.outage.outage = time()?,
            "servers" => flags.broker.servers = count()?,
            "capacity" => flags.broker.capacity = rate(value)?,
            "rate" => flags.proxy.rate = Some(rate(value)?),
            key if key.contains('.') => flags.proxy.set.push(format!("{key}={value}")),
            key => flags.proxy.set.push(format!("admission.{key}={value}")),
        }
        Ok(flags)
    }

    /// One scenario for each front.
    fn fronts(&self) -> Result<Vec<(String, Scenario)>, Mistakes> {
        let proxy = self.proxy.settings()?;
        let fronts = match self.proxy.front {
            Front::Both => vec![None, Some(proxy)],
            Front::None => vec![None],
            Front::Seawall => vec![Some(proxy)],
        };
        let with = |proxy: Option<ProxySettings>| {
            let name = if proxy.is_some() {
                "through Seawall"
            } else {
                "without a proxy"
            };
            (name.to_owned(), self.scenario(proxy))
        };
        Ok(fronts.into_iter().map(with).collect())
    }

    fn scenario(&self, proxy: Option<ProxySettings>) -> Scenario {
        Scenario {
            fleet: self.fleet.settings(),
            outage: Outage {
                pattern: self.outage.pattern,
                lasts: self.outage.outage,
                over: self.outage.over,
            },
            round_trip: self.outage.round_trip,
            broker: Broker {
                capacity: self.broker.capacity,
                servers: self.broker.servers,
                queue: self.broker.queue,
            },
            proxy,
            watched: self.watch,
            seed: self.seed,
        }
    }

    /// What was asked for, in a sentence.
    fn question(&self) -> String {
        format!(
            "{} devices ({}; patience {} s) after an outage of {} s ({}), in front of a broker of {} logins a second; watched for {} s; seed {}.",
            self.fleet.devices,
            self.fleet.mix,
            self.fleet.patience.as_secs_f64(),
            self.outage.outage.as_secs_f64(),
            self.outage.pattern,
            self.broker.capacity,
            self.watch.as_secs_f64(),
            self.seed
        )
    }
}

impl FleetFlags {
    fn settings(&self) -> Fleet {
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
    fn settings(&self) -> Result<ProxySettings, Mistakes> {
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
            costs: Costs::default(),
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
fn rate(text: &str) -> Result<f64, String> {
    let rate: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if rate > 0.0 && rate <= 1e6 {
        Ok(rate)
    } else {
        Err("not above 0 and up to 1000000".to_owned())
    }
}
