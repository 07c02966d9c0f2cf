//! From the course of a storm to its report.

use std::time::{Duration, SystemTime};

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::cores;
use super::drill::Notes;
use super::effort::Effort;
use super::live::Second;
use super::report::{Back, Generator, Report, Watched};
use crate::fleet::broker;
use crate::fleet::bystander::{Latency, Messages};
use crate::fleet::swarm::{Counts, Return};

/// How a storm went.
#[derive(Debug)]
pub(in crate::fleet) struct Course {
    pub(super) notes: Notes,
    pub(super) hit: usize,
    /// From the blow to the end.
    pub(super) elapsed: Duration,
    pub(super) counts: Counts,
    /// In the order of time.
    pub(super) returns: Vec<Return>,
    pub(super) seconds: Vec<Second>,
    pub(super) processes: usize,
}

/// What a report says of a storm beside its course.
#[derive(Debug)]
pub(in crate::fleet) struct About {
    pub(in crate::fleet) target: String,
    pub(in crate::fleet) pattern: String,
    pub(in crate::fleet) mix: String,
    pub(in crate::fleet) devices: usize,
    pub(in crate::fleet) ideal: Option<Duration>,
    pub(in crate::fleet) threads: usize,
    pub(in crate::fleet) watched: Option<Watched>,
    pub(in crate::fleet) broker: Option<broker::Figures>,
}

impl Course {
    /// Devices that were hit.
    pub(in crate::fleet) fn hit(&self) -> usize {
        self.hit
    }

    /// What so many pairs of bystanders saw; `end` is what their stop gave.
    pub(in crate::fleet) fn watched(&self, pairs: usize, end: (Latency, Messages)) -> Watched {
        Watched {
            pairs,
            calm: self.notes.calm,
            storm: end.0,
            messages: end.1,
        }
    }

    pub(in crate::fleet) fn report(self, about: About) -> Report {
        let Self {
            notes,
            hit,
            elapsed,
            counts,
            returns,
            seconds,
            processes,
        } = self;
        // Before the blow nothing was on trial.
        let (before, storm) = match notes.blow {
            Some(_) => (notes.before.clone(), counts.since(&notes.before)),
            None => (counts, Counts::default()),
        };
        let generator = generator(&seconds, notes.blow_s, elapsed, about.threads, processes);
        Report {
            version: env!("CARGO_PKG_VERSION"),
            target: about.target,
            pattern: about.pattern,
            mix: about.mix,
            devices: about.devices,
            hit,
            blow: notes.blow.map(rfc3339),
            open: notes.open.map(rfc3339),
            blow_s: notes.blow_s,
            interrupted: notes.is_interrupted,
            command_failed: notes.command_failed,
            ideal: about.ideal,
            back: Back::of(&returns, hit),
            before,
            storm,
            broker: about.broker,
            bystanders: about.watched,
            generator,
            seconds,
            returns,
        }
    }
}

fn generator(
    seconds: &[Second],
    blow_s: f64,
    elapsed: Duration,
    threads: usize,
    processes: usize,
) -> Generator {
    let efforts: Vec<Effort> = seconds
        .iter()
        .filter(|second| second.at_s > blow_s)
        .map(|second| second.generator)
        .collect();
    let effort = efforts.iter().copied().fold(Effort::default(), Effort::with);
    let elapsed_s = elapsed.as_secs_f64();
    let cores = cores();
    Generator {
        processes,
        threads,
        cores,
        elapsed_s,
        effort,
        share: effort.cpu_s / (elapsed_s * cores as f64).max(f64::EPSILON),
        bottleneck_seconds: efforts.iter().filter(|effort| effort.is_bottleneck()).count(),
        seconds: efforts.len(),
    }
}

fn rfc3339(at: SystemTime) -> String {
    OffsetDateTime::from(at).format(&Rfc3339).unwrap_or_default()
}
