//! `seawall health`.

use std::time::Duration;

use clap::Args;

use super::Failure;
use crate::admin::probe::{Target, probe};
use crate::config::duration;

#[derive(Args, Debug)]
pub(super) struct HealthFlags {
    /// Page of the admin address; `/readyz` asks whether a broker is usable as well
    ///
    /// The certificate of an `https` address is not verified.
    #[arg(value_name = "URL", default_value = "http://127.0.0.1:9883/healthz")]
    url: Target,
    /// How long to wait for the answer
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = duration)]
    timeout: Duration,
}

pub(super) fn run(flags: HealthFlags) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Failure::Runtime)?;
    let asked = runtime.block_on(probe(&flags.url, flags.timeout));
    // A name lookup that hangs must not hold the end of the process.
    runtime.shutdown_background();
    asked.map_err(|error| Failure::NotHealthy {
        target: flags.url,
        error,
    })
}
