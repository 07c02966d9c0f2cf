//! The fleet of a storm: in this process, or in several where the descriptors of one are not enough.

use std::io;

use serde::{Deserialize, Serialize};

use super::effort::Effort;
use super::threads::Threads;
use super::worker::Worker;
use crate::fleet::swarm::{Counts, Fleet, Return};

/// What happens to a group of devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::fleet) enum Event {
    /// [`Fleet::lose`]
    Lose(usize),
    /// [`Fleet::restore`]
    Restore(usize),
    /// [`Fleet::cut`]
    Cut(usize),
    /// [`Fleet::watch`]
    Watch(usize),
}

impl Event {
    pub(super) fn happen_to(self, fleet: &Fleet) {
        match self {
            Self::Lose(group) => fleet.lose(group),
            Self::Restore(group) => fleet.restore(group),
            Self::Cut(group) => fleet.cut(group),
            Self::Watch(group) => fleet.watch(group),
        }
    }
}

/// A fleet, wherever it runs.
#[derive(Debug)]
pub(in crate::fleet) enum Crew {
    /// In this process.
    Here {
        /// The devices; dropped before their threads.
        fleet: Fleet,
        /// Where they live.
        threads: Threads,
    },
    /// In processes of their own, each with a part.
    Apart(Vec<Worker>),
}

impl Crew {
    pub(super) fn tell(&self, event: Event) -> io::Result<()> {
        match self {
            Self::Here { fleet, .. } => {
                event.happen_to(fleet);
                Ok(())
            }
            Self::Apart(workers) => workers.iter().try_for_each(|worker| worker.tell(event)),
        }
    }

    pub(in crate::fleet) fn counts(&self) -> Counts {
        match self {
            Self::Here { fleet, .. } => fleet.counts(),
            Self::Apart(workers) => {
                let mut sum = Counts::default();
                for worker in workers {
                    sum.add(&worker.counts());
                }
                sum
            }
        }
    }

    /// What the generator did since the last call.
    pub(super) fn effort(&self) -> Effort {
        match self {
            Self::Here { threads, .. } => threads.effort(),
            Self::Apart(workers) => workers
                .iter()
                .map(Worker::effort)
                .fold(Effort::default(), Effort::with),
        }
    }

    /// An error: a process of it has ended.
    pub(super) fn check(&self) -> io::Result<()> {
        match self {
            Self::Here { .. } => Ok(()),
            Self::Apart(workers) => workers.iter().try_for_each(Worker::check),
        }
    }

    /// The last counts, and every return in the order of time. Devices in other processes end with it.
    pub(super) async fn finish(&self) -> io::Result<(Counts, Vec<Return>)> {
        let (counts, mut returns) = match self {
            Self::Here { fleet, .. } => (fleet.counts(), fleet.returns()),
            Self::Apart(workers) => {
                let (mut counts, mut returns) = (Counts::default(), Vec::new());
                for worker in workers {
                    worker.end()?;
                }
                for worker in workers {
                    let (own, back) = worker.last_words().await?;
                    counts.add(&own);
                    returns.extend(back);
                }
                (counts, returns)
            }
        };
        returns.sort_by_key(|back| back.after);
        Ok((counts, returns))
    }

    pub(super) fn processes(&self) -> usize {
        match self {
            Self::Here { .. } => 1,
            Self::Apart(workers) => workers.len(),
        }
    }
}
