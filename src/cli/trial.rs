//! The commands that try a setting: a simulated fleet on the wire or in virtual time, and what it takes with it. Not in a
//! build without the feature `demo`.

mod demo;
mod plan;
mod storm;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Subcommand;

use self::demo::DemoFlags;
use self::plan::PlanFlags;
use self::storm::{StormFailure, StormFlags};
use super::{BUG, CONFIGURATION, FAILED, SYSTEM, USAGE, runtime, start_code};
use crate::config::Mistakes;
use crate::fleet::calibrate::CalibrationError;
use crate::fleet::certificates::{self, CertificatesError};
use crate::fleet::demo::DemoError;
use crate::fleet::plan::ScenarioError;

#[derive(Debug, Subcommand)]
pub(super) enum TrialCommand {
    /// Everything in one process with nothing installed: a fleet loses its tower and comes back
    ///
    /// Throw-away certificates, an embedded broker, Seawall in front of it, then simulated devices over real TLS; a
    /// live line a second, and a table at the end.
    Demo(DemoFlags),
    /// Hit an endpoint with a simulated fleet: real TLS, real MQTT
    ///
    /// Fills the target, breaks the connections, and measures the return: a live line a second, a table at the end.
    /// Ctrl-C ends with the report so far. Exit 0 if all devices were back, 1 if not. See docs/storm.md.
    Storm(Box<StormFlags>),
    /// A fleet and its broker in virtual time: what a storm would do, with and without the proxy
    ///
    /// No socket is opened. The same policies and the same admission as on the wire, up to 10 million devices.
    Plan(Box<PlanFlags>),
    /// Write a throw-away CA, server and client certificate for trials
    Certs {
        /// Folder for the PEM files; made where it is missing
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
        /// DNS name or IP address of the server, besides localhost, 127.0.0.1 and `::1`
        #[arg(long, value_name = "DNS")]
        name: Vec<String>,
        /// Leave those that an earlier call has written, whatever their names
        ///
        /// A client that trusts the CA of yesterday does not find another one today.
        #[arg(long)]
        keep: bool,
    },
}

/// Why a trial did not take place, or did not end well.
#[derive(Debug, thiserror::Error)]
pub(super) enum TrialFailure {
    #[error(transparent)]
    Certificates(#[from] CertificatesError),
    #[error(transparent)]
    Demo(#[from] DemoError),
    #[error(transparent)]
    Storm(#[from] StormFailure),
    #[error(transparent)]
    Configuration(#[from] Mistakes),
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    #[error(transparent)]
    Calibration(#[from] CalibrationError),
    #[error("--sweep: {0}")]
    Sweep(String),
    #[error("{}: {error}", path.display())]
    File {
        /// That was to be written.
        path: PathBuf,
        /// Why it was not.
        error: io::Error,
    },
    #[error("the fleet did not come back")]
    NotBack,
    #[error("can't write to stdout: {0}")]
    Output(io::Error),
    #[error("the runtime can't be started: {0}")]
    Runtime(io::Error),
}

impl TrialFailure {
    /// The exit code of the contract.
    pub(super) const fn code(&self) -> u8 {
        match self {
            Self::Configuration(_) | Self::Demo(DemoError::Configuration(_)) => CONFIGURATION,
            Self::Demo(DemoError::Start(error)) => start_code(error),
            Self::Scenario(_) | Self::Sweep(_) => USAGE,
            Self::Output(_) | Self::File { .. } | Self::Runtime(_) | Self::Demo(DemoError::System(_)) => {
                SYSTEM
            }
            Self::Certificates(error) | Self::Demo(DemoError::Certificates(error)) => match error {
                CertificatesError::Name { .. } => USAGE,
                CertificatesError::Foreign { .. } | CertificatesError::NotWhole { .. } => FAILED,
                CertificatesError::Io { .. } => SYSTEM,
                CertificatesError::Generate(_) => BUG,
            },
            Self::Storm(error) => error.code(),
            Self::Calibration(_) | Self::Demo(DemoError::Tls(_) | DemoError::Schedule(_)) => BUG,
            Self::NotBack | Self::Demo(DemoError::Bystanders(_) | DemoError::NotFilled { .. }) => FAILED,
        }
    }
}

pub(super) fn run(command: TrialCommand) -> Result<(), TrialFailure> {
    match command {
        TrialCommand::Demo(flags) => demo::run(flags),
        TrialCommand::Storm(flags) => storm(*flags),
        TrialCommand::Plan(flags) => plan::plan(&flags),
        TrialCommand::Certs { out, name, keep } => certs(&out, &name, keep),
    }
}

fn storm(flags: StormFlags) -> Result<(), TrialFailure> {
    // The devices have threads of their own.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(TrialFailure::Runtime)?;
    Ok(runtime.block_on(storm::run(flags))?)
}

fn certs(out: &Path, names: &[String], keep: bool) -> Result<(), TrialFailure> {
    let kept = if keep { certificates::find(out)? } else { None };
    let made = kept.map_or_else(|| certificates::write(out, names), Ok)?;
    let mut stdout = io::stdout().lock();
    for path in made.all() {
        // The files are there; whoever closed the pipe knows their names.
        let _ = writeln!(stdout, "{}", path.display());
    }
    Ok(())
}
