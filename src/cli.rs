//! The commands and their flags: what was typed → what is done → the exit code.

mod health;
mod report;
#[cfg(feature = "demo")]
mod trial;

use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread::available_parallelism;

use clap::{Args, CommandFactory, Parser, Subcommand};

#[cfg(feature = "demo")]
use self::trial::{TrialCommand, TrialFailure};
use crate::admin::Access;
use crate::admin::probe::{ProbeError, Target};
use crate::app::{self, Ended, Signals, StartError};
use crate::config::{self, Config, DEFAULT_FILES, Mistakes, Sources};
use crate::report::ReportError;
use crate::telemetry::log;
use crate::tls::Acceptor;
use crate::tls::connector::Connector;
use crate::tls::ticket;

/// Admission control between a fleet of MQTT devices and its broker.
///
/// Seawall ends TLS, reads each CONNECT, lets through what the broker can serve and tells the rest "server busy".
#[derive(Debug, Parser)]
#[command(name = "seawall", version, arg_required_else_help = true, after_help = EXIT_CODES)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "\
Exit codes: 0 done, 1 a check or run that ended in failure, 64 usage, 70 a bug of ours,
71 operating system (port taken, no file descriptors), 78 configuration.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the daemon
    ///
    /// Prints `listening ADDRESS` for each address, `admin ADDRESS`, then `ready`; the log goes to stderr. SIGTERM and
    /// SIGINT drain, a second one stops at once. SIGHUP reads the configuration again.
    Run(ConfigurationFlags),
    /// Load everything that `run` would and report all mistakes
    Check {
        #[command(flatten)]
        configuration: ConfigurationFlags,
        /// Print the effective configuration as TOML, each key with where its value comes from
        #[arg(long)]
        print: bool,
    },
    /// Ask a running daemon whether it lives
    ///
    /// For the health check of a container, where nothing else can ask. Exit 0 if the answer is yes, else 1.
    Health(health::HealthFlags),
    /// The after-action report of one or several audit logs
    ///
    /// Holds every line against its hash chain and names the first that was cut, edited or moved (exit code 1), finds the
    /// storms, and says who was lost, when they were back, and whose pauses have no jitter.
    Report(report::ReportFlags),
    /// Print a new ticket secret for `tls.resumption.secret_file`
    ///
    /// One line of 64 hexadecimal digits. The file must not be readable by others: umask 077; seawall secret > FILE
    Secret,
    #[cfg(feature = "demo")]
    #[command(flatten)]
    Trial(TrialCommand),
}

#[derive(Args, Debug)]
struct ConfigurationFlags {
    /// Configuration file [default: config/seawall.toml, then /etc/seawall/seawall.toml]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Set one key, such as `--set admission.rate=500`; beats environment and file
    ///
    /// Lists are separated by commas. As environment variable: `SEAWALL_ADMISSION__RATE=500`.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

/// Why a command ended without having done its work.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Configuration(#[from] Mistakes),
    #[error(transparent)]
    Start(#[from] StartError),
    #[error("a second signal cut the drain short")]
    CutShort,
    #[error("{}: {error}", path.display())]
    File {
        /// That was to be written.
        path: PathBuf,
        /// Why it was not.
        error: io::Error,
    },
    #[error(transparent)]
    Report(#[from] ReportError),
    #[error("not healthy: {target}: {error}")]
    NotHealthy { target: Target, error: ProbeError },
    #[error("the chain is broken at {}, line {line}", file.display())]
    ChainBroken { file: PathBuf, line: u64 },
    #[error(transparent)]
    Randomness(#[from] ticket::NoRandomness),
    #[error("can't write to stdout: {0}")]
    Output(io::Error),
    #[error("the runtime can't be started: {0}")]
    Runtime(io::Error),
    #[error("the log can't be started: {0}")]
    Log(#[from] log::LogError),
    #[cfg(feature = "demo")]
    #[error(transparent)]
    Trial(#[from] TrialFailure),
}

/// A check or run that ended in failure.
const FAILED: u8 = 1;
// Numbers of sysexits(3).
const USAGE: u8 = 64;
const BUG: u8 = 70;
const SYSTEM: u8 = 71;
const CONFIGURATION: u8 = 78;

impl Failure {
    /// The exit code of the contract.
    const fn code(&self) -> u8 {
        match self {
            Self::Configuration(_) => CONFIGURATION,
            Self::Start(error) => start_code(error),
            Self::Report(ReportError::NoFile) => USAGE,
            Self::Output(_)
            | Self::File { .. }
            | Self::Report(ReportError::Read { .. })
            | Self::Randomness(_)
            | Self::Runtime(_) => SYSTEM,
            // A level that the configuration took is one that the log takes.
            Self::Log(_) => BUG,
            Self::CutShort | Self::NotHealthy { .. } | Self::ChainBroken { .. } => FAILED,
            #[cfg(feature = "demo")]
            Self::Trial(failure) => failure.code(),
        }
    }
}

const fn start_code(error: &StartError) -> u8 {
    match error {
        StartError::Tls(_) | StartError::Budget(_) | StartError::Access(_) => CONFIGURATION,
        StartError::Bind(_)
        | StartError::Takeover(_)
        | StartError::Admin(_)
        | StartError::Audit(_)
        | StartError::Descriptors(_)
        | StartError::System(_) => SYSTEM,
        StartError::Metrics(_) => BUG,
    }
}

/// The command line's definition: what the manual and the completions are made from.
pub fn definition() -> clap::Command {
    Arguments::command()
}

/// Runs the command line.
pub fn main() -> ExitCode {
    // The panic's own message is on stderr already; its exit code would be 101.
    catch_unwind(AssertUnwindSafe(run)).unwrap_or(ExitCode::from(BUG))
}

fn run() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help and version go to stdout and are no error. Whoever closed the pipe has seen enough.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { USAGE } else { 0 });
        }
    };
    let done = match arguments.command {
        Command::Run(flags) => serve(flags),
        Command::Check { configuration, print } => check(configuration, print),
        Command::Health(flags) => health::run(flags),
        Command::Report(flags) => report::run(&flags),
        Command::Secret => secret(),
        #[cfg(feature = "demo")]
        Command::Trial(command) => trial::run(command).map_err(Failure::from),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let _ = writeln!(io::stderr().lock(), "{failure}");
            ExitCode::from(failure.code())
        }
    }
}

fn serve(flags: ConfigurationFlags) -> Result<(), Failure> {
    // What needs a process of one thread.
    let activated = app::activated().map_err(StartError::System)?;
    let runtime = runtime().map_err(Failure::Runtime)?;
    let signals = runtime.block_on(async { Signals::install() });
    let signals = signals.map_err(StartError::System)?;
    // Checked first, so that files which can't be loaded are reported with all other mistakes and with their lines.
    let sources = flags.sources();
    let config = config::check(&sources)?;
    let log = log::start(&config.log)?;
    let mut out = io::stdout();
    let running = app::run(config, sources, log, activated, signals, &mut out);
    let ended = runtime.block_on(running);
    // A name lookup that hangs must not hold the end of the process.
    runtime.shutdown_background();
    match ended? {
        Ended::Drained => Ok(()),
        Ended::CutShort => Err(Failure::CutShort),
    }
}

fn check(flags: ConfigurationFlags, print: bool) -> Result<(), Failure> {
    let sources = flags.sources();
    let config = config::check_all(&sources)?;
    warn(&config);
    let text = if print {
        config.to_toml()
    } else {
        format!("{}\n", summary(&sources, &config))
    };
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // Whoever reads has seen enough.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::Output(error)),
        _ => Ok(()),
    }
}

/// What a run would warn of: no mistake, so that it does not change the exit code.
fn warn(config: &Config) {
    if let Some(warning) = config.admin.warning() {
        let _ = writeln!(io::stderr().lock(), "warning: {warning}");
    }
    // What can't be loaded is a mistake, and was reported.
    let acceptor = Acceptor::load(&config.tls).ok();
    let connector = config.upstream.tls.as_ref();
    let connector = connector.and_then(|settings| Connector::load(settings, None).ok());
    let access = Access::load(&config.admin.guard).ok();
    let of_tls = acceptor.iter().flat_map(Acceptor::warnings);
    let of_tls = of_tls
        .chain(connector.iter().flat_map(Connector::warnings))
        .map(ToString::to_string);
    for warning in of_tls.chain(access.iter().flat_map(Access::warnings)) {
        // Whoever closed stderr does not want to know.
        let _ = writeln!(io::stderr().lock(), "warning: {warning}");
    }
}

fn secret() -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    // Not to be taken for done where nobody reads: the file would be empty.
    writeln!(out, "{}", ticket::generate()?)
        .and_then(|()| out.flush())
        .map_err(Failure::Output)
}

/// One worker a core: TLS and the relay never wait on anything but the network. `TOKIO_WORKER_THREADS` is the runtime's
/// own name for another number; one that is none is not taken.
fn runtime() -> io::Result<tokio::runtime::Runtime> {
    let named = std::env::var("TOKIO_WORKER_THREADS").ok();
    let workers = named.and_then(|number| number.parse().ok());
    let workers = workers
        .or_else(|| available_parallelism().ok())
        .map_or(1, std::num::NonZero::get);
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers)
        .enable_all()
        .build()
}

fn summary(sources: &Sources, config: &Config) -> String {
    let set = config.keys().iter().filter(|key| key.place.is_some()).count();
    let file = sources.file.as_ref().map_or_else(
        || format!("no file ({} would be taken)", DEFAULT_FILES.join(" or ")),
        |path| path.display().to_string(),
    );
    format!(
        "no mistakes: {file}; {set} of {} keys set, the rest by default",
        config.keys().len()
    )
}

impl ConfigurationFlags {
    fn sources(self) -> Sources {
        Sources::of_process(self.config, self.set)
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::Arguments;

    #[test]
    fn the_flags_are_consistent() {
        Arguments::command().debug_assert();
    }
}
