//! A storm over the wire: a fleet, what happens to it, and what came of it.

mod course;
mod crew;
mod drill;
mod effort;
mod live;
mod pattern;
mod plots;
mod report;
mod threads;
mod worker;

use std::io::{self, Write};
use std::num::NonZero;
use std::process::Command;
use std::thread::available_parallelism;
use std::time::Duration;

pub(super) use self::course::About;
pub(super) use self::crew::Crew;
pub(super) use self::drill::Drill;
pub use self::effort::Effort;
pub use self::live::Second;
pub(super) use self::live::{Live, Waited};
pub use self::pattern::Pattern;
pub use self::report::{Back, Generator, Report, Watched};
pub(super) use self::threads::Threads;
use self::worker::Worker;
use super::bystander::{self, BystanderError, Bystanders};
use super::population::Population;
use super::swarm::Fleet;
use crate::listener;
use crate::reconnect::ScheduleError;

/// Descriptors of a process that are not a device's: runtimes, pipes, the bystanders' own.
const RESERVED_DESCRIPTORS: u64 = 128;

/// What a storm is made of.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The fleet, all of it.
    pub population: Population,
    /// What happens to it. Fits the groups and the boot time of `population`.
    pub pattern: Pattern,
    /// The target as the user named it.
    pub target: String,
    /// Clients that are connected throughout; `None`: none.
    pub bystanders: Option<bystander::Settings>,
    /// Threads for the devices, at least one.
    pub threads: usize,
    /// Processes for the devices; `None`: as many as the descriptors ask for.
    pub processes: Option<usize>,
    /// How long the bystanders are watched before the blow.
    pub calm: Duration,
    /// Longest time for the first connections.
    pub fill_limit: Duration,
    /// Longest time for the return.
    pub limit: Duration,
    /// What the target lets in in a second, where it is known: the report compares with it.
    pub rate: Option<f64>,
}

/// Why there was no storm.
#[derive(Debug, thiserror::Error)]
pub enum StormError {
    /// The operating system's: no thread, no process, no output.
    #[error("the operating system refuses: {0}")]
    System(#[from] io::Error),
    /// The target's, mostly.
    #[error("{0}; --pairs 0 goes without them")]
    Bystanders(#[from] BystanderError),
    /// Not all devices could connect even without a storm: the target's, mostly.
    #[error(
        "only {connected} of {devices} devices could connect within {} s, before anything had happened ({why}); \
         --pattern cold needs nobody connected",
        limit.as_secs()
    )]
    NotFilled {
        /// Devices that did.
        connected: usize,
        /// Devices in the fleet.
        devices: usize,
        /// The limit.
        limit: Duration,
        /// What became of their attempts.
        why: String,
    },
    /// The caller's: delays that make no schedule.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
}

/// A part of a fleet, for a process of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Counted from 0.
    pub number: usize,
    /// Parts in all, at least one.
    pub of: usize,
}

/// Runs a storm and tells `out` how it goes, a line a second and a table at the end. `part_of` makes the command of a
/// process that has to call [`run_part`] with the same settings.
pub async fn run(
    settings: &Settings,
    part_of: impl Fn(Part) -> io::Result<Command>,
    out: &mut impl Write,
) -> Result<Report, StormError> {
    let devices = settings.population.numbers.len();
    let processes = settings
        .processes
        .unwrap_or_else(|| processes_for(devices, listener::raise_descriptor_limit()));
    introduce(settings, processes, out)?;
    let bystanders = match &settings.bystanders {
        Some(bystanders) => Some(Bystanders::start(&settings.population.target, bystanders.clone()).await?),
        None => None,
    };
    let crew = if processes > 1 {
        let part = |number| {
            let mut command = part_of(Part {
                number,
                of: processes,
            })?;
            Worker::start(&mut command)
        };
        Crew::Apart((0..processes).map(part).collect::<io::Result<_>>()?)
    } else {
        here(&settings.population, settings.threads)?
    };

    let hit = (0..settings.pattern.hit()).map(|group| settings.population.size_of_group(group));
    let live = Live::new(out, &crew, bystanders.as_ref(), None, devices)?;
    let mut drill = Drill::new(live, &settings.pattern, devices, hit.sum());
    let is_filled = fill(settings, &mut drill).await?;
    if is_filled {
        drill.calm(settings.calm).await?;
        drill.strike(settings.limit).await?;
    }
    let course = drill.finish().await?;
    let hit = course.hit();
    let watched = match (bystanders, &settings.bystanders) {
        (Some(bystanders), Some(bystanders_settings)) => {
            Some(course.watched(bystanders_settings.pairs, bystanders.stop().await))
        }
        _ => None,
    };
    let report = course.report(About {
        target: settings.target.clone(),
        pattern: settings.pattern.to_string(),
        mix: settings.population.mix.to_string(),
        devices,
        ideal: settings
            .rate
            .and_then(|rate| Duration::try_from_secs_f64(hit as f64 / rate).ok()),
        threads: settings.threads.max(processes),
        watched,
        broker: None,
    });
    writeln!(out, "\n{}\n{report}", report.charts())?;
    out.flush()?;
    Ok(report)
}

/// A process of a storm: obeys the one that started it, by stdin and stdout.
pub async fn run_part(settings: &Settings, part: Part) -> Result<(), StormError> {
    listener::raise_descriptor_limit();
    let all = &settings.population;
    let (from, devices) = (all.numbers.start, all.numbers.len());
    let population = Population {
        numbers: from + devices * part.number / part.of..from + devices * (part.number + 1) / part.of,
        ..all.clone()
    };
    let Crew::Here { fleet, threads } = here(&population, settings.threads.div_ceil(part.of))? else {
        return Ok(());
    };
    Ok(worker::serve(fleet, threads).await?)
}

fn here(population: &Population, threads: usize) -> Result<Crew, StormError> {
    let threads = Threads::start(threads, 0, true)?;
    let fleet = Fleet::start(population, threads.handles())?;
    Ok(Crew::Here { fleet, threads })
}

/// As many as it takes to have a descriptor for each device.
fn processes_for(devices: usize, descriptors: u64) -> usize {
    let each = usize::try_from(descriptors.saturating_sub(RESERVED_DESCRIPTORS)).unwrap_or(usize::MAX);
    devices.div_ceil(each.max(1))
}

fn introduce(settings: &Settings, processes: usize, out: &mut impl Write) -> io::Result<()> {
    let Settings {
        population,
        pattern,
        target,
        bystanders,
        threads,
        ..
    } = settings;
    let tls = population
        .target
        .tls
        .as_ref()
        .map_or("without TLS", |_| "over TLS");
    writeln!(
        out,
        "Storm on {target} {tls}: {} devices, policy {}",
        population.numbers.len(),
        population.mix
    )?;
    writeln!(out, "  pattern     {pattern}")?;
    if let Some(bystanders) = bystanders {
        writeln!(
            out,
            "  bystanders  {} pairs, a message each every {} ms",
            bystanders.pairs,
            bystanders.pause.as_millis()
        )?;
    }
    writeln!(
        out,
        "  generator   {} threads in {processes} {}",
        threads.max(&processes),
        if processes == 1 { "process" } else { "processes" }
    )?;
    out.flush()
}

/// Whether there is a fleet to be hit.
async fn fill<W: Write>(settings: &Settings, drill: &mut Drill<'_, W>) -> Result<bool, StormError> {
    if settings.population.boot.is_some() {
        return Ok(true);
    }
    match drill.fill(settings.fill_limit).await? {
        Waited::Came(()) => Ok(true),
        Waited::Interrupted => Ok(false),
        Waited::TooLate => {
            let counts = drill.live.counts();
            Err(StormError::NotFilled {
                connected: counts.connected,
                devices: settings.population.numbers.len(),
                limit: settings.fill_limit,
                why: report::outcomes(&counts),
            })
        }
    }
}

/// Processors that this process may use.
pub fn cores() -> usize {
    available_parallelism().map_or(1, NonZero::get)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_device_has_a_descriptor() {
        for (devices, descriptors, processes) in [
            (1, 20_000, 1),
            (19_872, 20_000, 1),
            (19_873, 20_000, 2),
            (100_000, 20_000, 6),
            (3, 10, 3),
            (1_000_000, u64::MAX, 1),
        ] {
            assert_eq!(
                processes_for(devices, descriptors),
                processes,
                "{devices} of {descriptors}"
            );
        }
    }
}
