//! `seawall demo`.

use std::io;
use std::path::PathBuf;

use clap::Args;

use super::{TrialFailure, runtime};
use crate::fleet::demo;
use crate::reconnect::Policy;

#[derive(Args, Debug)]
pub(in crate::cli) struct DemoFlags {
    /// Devices in the fleet, fitted to the descriptor limit
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..))]
    devices: u32,
    /// CONNECTs a second that reach the broker [default: fitted to the broker's capacity]
    #[arg(long, value_name = "R")]
    rate: Option<f64>,
    /// How the devices pause between attempts
    ///
    /// One of fixed, exponential, proportional, full, equal, decorrelated, slot.
    #[arg(long, value_name = "P", default_value_t = Policy::Fixed)]
    policy: Policy,
    /// Keep running after the storm, for trials by hand
    #[arg(long)]
    stay: bool,
    /// A real broker in place of the embedded one
    #[arg(long, value_name = "HOST:PORT")]
    upstream: Option<String>,
    /// Folder for the throw-away certificates
    #[arg(long, value_name = "DIR", default_value = "demo-certs")]
    out: PathBuf,
    /// Write the proxy's audit log there, for `seawall report`
    #[arg(long, value_name = "FILE")]
    audit: Option<PathBuf>,
}

pub(super) fn run(flags: DemoFlags) -> Result<(), TrialFailure> {
    let options = demo::Options {
        devices: usize::try_from(flags.devices).unwrap_or(usize::MAX),
        policy: flags.policy,
        rate: flags.rate,
        stay: flags.stay,
        upstream: flags.upstream,
        certificates: flags.out,
        audit: flags.audit,
    };
    let runtime = runtime().map_err(TrialFailure::Runtime)?;
    let ended = runtime.block_on(demo::run(&options, &mut io::stdout()));
    // A name lookup that hangs must not hold the end of the process.
    runtime.shutdown_background();
    if ended?.all_back() {
        Ok(())
    } else {
        Err(TrialFailure::NotBack)
    }
}
