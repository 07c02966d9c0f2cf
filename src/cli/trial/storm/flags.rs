//! The flags of `seawall storm`, as typed.

use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::config;
use crate::fleet::mix::Mix;
use crate::fleet::storm::Part;

#[derive(Args, Debug)]
// The last one counts, as in scripts that put flags of their own behind a default set.
#[command(args_override_self = true)]
pub(in crate::cli) struct StormFlags {
    /// What is hit
    #[arg(long, value_name = "HOST:PORT")]
    pub(super) target: String,
    /// Needed where the target is not this machine
    ///
    /// A storm takes down what can't stand it, and all that depends on it.
    #[arg(long)]
    pub(super) i_own_this: bool,
    /// Devices in the fleet
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub(super) devices: u32,
    /// Longest time for the return
    #[arg(long, value_name = "TIME", default_value = "30m", value_parser = config::duration)]
    pub(super) limit: Duration,
    /// Devices a second that the target lets in at best: the report compares with it
    #[arg(long, value_name = "R")]
    pub(super) rate: Option<f64>,
    /// Write the report as JSON
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
    /// Write the report as one HTML file with its charts
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<PathBuf>,
    /// This process is part K of N
    #[arg(long, value_name = "K/N", hide = true)]
    pub(super) part: Option<PartWord>,
    #[command(flatten)]
    pub(super) what: PatternFlags,
    #[command(flatten)]
    pub(super) device: DeviceFlags,
    #[command(flatten)]
    pub(super) transport: TlsFlags,
    #[command(flatten)]
    pub(super) bystander: BystanderFlags,
    #[command(flatten)]
    pub(super) generator: GeneratorFlags,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "What happens")]
pub(in crate::cli) struct PatternFlags {
    /// What happens to them
    #[arg(long, value_enum, default_value_t = PatternWord::Tower)]
    pub(super) pattern: PatternWord,
    /// tower: hundredths of the devices that lose it
    #[arg(long, value_name = "PERCENT", default_value_t = 100, value_parser = clap::value_parser!(u8).range(1..=100))]
    pub(super) share: u8,
    /// tower, rolling: how long the network is away
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = config::duration)]
    pub(super) outage: Duration,
    /// cold: how long booting takes at most
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = config::duration)]
    pub(super) spread: Duration,
    /// rolling: parts of the fleet
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(super) parts: u32,
    /// rolling: from the loss of one part to that of the next
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = config::duration)]
    pub(super) every: Duration,
    /// restart: shell command that restarts the broker [default: the devices close their connections]
    #[arg(long, value_name = "COMMAND")]
    pub(super) restart_command: Option<String>,
    /// How long the bystanders are watched before anything happens
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = config::duration)]
    pub(super) calm: Duration,
    /// Longest time for the first connections
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = config::duration)]
    pub(super) fill_limit: Duration,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Devices")]
pub(in crate::cli) struct DeviceFlags {
    /// How devices pause between attempts, by share
    ///
    /// Such as `full` or `fixed:60,full:40`, of fixed, exponential, proportional, full, equal, decorrelated, slot.
    #[arg(long, visible_alias = "policy", value_name = "MIX", default_value = "fixed")]
    pub(super) mix: Mix,
    /// Pause of the policy `fixed`
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = config::duration)]
    pub(super) retry: Duration,
    /// First pause of the other policies
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = config::duration)]
    pub(super) base: Duration,
    /// From one of their pauses to the next
    #[arg(long, value_name = "X", default_value_t = 2.0)]
    pub(super) multiplier: f64,
    /// Their longest pause
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = config::duration)]
    pub(super) cap: Duration,
    /// Devices heed the `retry-after-ms` of a refusal (MQTT 5)
    #[arg(long)]
    pub(super) heed_retry_after: bool,
    /// Dial to CONNACK, after which a device gives up
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = config::duration)]
    pub(super) patience: Duration,
    /// Keep-alive of the devices, in whole seconds
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = config::duration)]
    pub(super) keep_alive: Duration,
    /// Version of MQTT; both: half of the devices each
    #[arg(long, value_enum, default_value_t = ProtocolWord::Both)]
    pub(super) protocol: ProtocolWord,
    /// Hundredths of the devices with a persistent session
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub(super) persistent: u8,
    /// Client ids and bystanders' topics begin with this
    #[arg(long, value_name = "PREFIX", default_value = "storm-")]
    pub(super) client_id: String,
    /// User name; the letter n in braces in it stands for the number of the device
    #[arg(long, value_name = "NAME")]
    pub(super) username: Option<String>,
    /// File with the password in its first line
    #[arg(long, value_name = "FILE", requires = "username")]
    pub(super) password_file: Option<PathBuf>,
    /// The same number gives the same pauses
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) seed: u64,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "TLS")]
pub(in crate::cli) struct TlsFlags {
    /// TLS that the devices offer
    #[arg(long, value_enum, default_value_t = TlsWord::Any)]
    pub(super) tls: TlsWord,
    /// Authorities that the devices trust, PEM
    #[arg(long, value_name = "FILE", conflicts_with = "insecure")]
    pub(super) ca: Option<PathBuf>,
    /// Devices trust whatever the server presents
    #[arg(long)]
    pub(super) insecure: bool,
    /// Name that the server's certificate must bear, and that is asked for [default: the target's host]
    #[arg(long, value_name = "NAME")]
    pub(super) server_name: Option<String>,
    /// Certificate that all devices present, PEM
    #[arg(long, value_name = "FILE", requires = "key")]
    pub(super) cert: Option<PathBuf>,
    /// Its private key, PEM
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub(super) key: Option<PathBuf>,
    /// Devices keep no session tickets: every handshake is a full one
    #[arg(long)]
    pub(super) no_resumption: bool,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Bystanders")]
pub(in crate::cli) struct BystanderFlags {
    /// Bystanders: connected pairs that publish throughout, and measure
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(0..=10_000))]
    pub(super) pairs: u32,
    /// How often each pair publishes
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = config::duration)]
    pub(super) publish_every: Duration,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Generator")]
pub(in crate::cli) struct GeneratorFlags {
    /// Threads for the devices [default: one for each core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(super) threads: Option<u32>,
    /// Processes for the devices [default: as many as the descriptor limit asks for]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(super) processes: Option<u32>,
    /// Addresses of 127/8 that devices dial from [default: one for each device]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), conflicts_with = "source")]
    pub(super) sources: Option<u32>,
    /// Addresses of this machine that devices dial from, in turn
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    pub(super) source: Vec<IpAddr>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum PatternWord {
    /// Nobody is connected; all are switched on
    Cold,
    /// A share of the devices loses its network and gets it back
    Tower,
    /// All connections end at once, and the target is there again at once
    Restart,
    /// The fleet loses its network part by part
    Rolling,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum ProtocolWord {
    #[value(name = "3.1.1")]
    V3_1_1,
    #[value(name = "5")]
    V5,
    Both,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum TlsWord {
    /// 1.3, or 1.2 where the target has no more
    Any,
    #[value(name = "1.2")]
    V1_2,
    #[value(name = "1.3")]
    V1_3,
    /// MQTT on bare TCP
    None,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct PartWord(pub(super) Part);

impl FromStr for PartWord {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.split_once('/')
            .and_then(|(number, of)| Some((number.parse().ok()?, of.parse().ok()?)))
            .filter(|(number, of)| number < of)
            .map(|(number, of)| Self(Part { number, of }))
            .ok_or("no part K/N")
    }
}
