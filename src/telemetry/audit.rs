//! The audit log: one JSON object a line for what became of every attempt, for the end of every session and for every
//! change of state, each with the hash of the line before.
//!
//! A connection never waits for it: records go through a bounded channel to a thread of its own, and what finds no room
//! is counted and lost. That thread sleeps while there is nothing to write and gathers for a moment when there is, so
//! that a storm costs one wake-up and one `write` per 50 ms instead of one per record.

pub mod chain;
mod file;
mod names;
mod place;
mod record;
mod writer;

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use self::file::Log;
pub use self::place::check;
pub use self::record::Change;
use self::record::{Event, Record};
use self::writer::Writer;
use super::ending::{Attempt, Ending};
use super::metrics::Metrics;
use super::wall_clock;

/// Records that wait for the writer: four seconds of 2,000 attempts a second, should the disk stall for that long.
/// Half a MiB.
const MAX_QUEUED: usize = 8192;
/// Bytes of the client ids that wait with them. One may have 64 KiB, so a count alone would not bound the memory.
const MAX_QUEUED_BYTES: usize = 16 * 1024 * 1024;
/// How long the end of the process waits for the last records. A healthy disk needs milliseconds.
const STOP_WAIT: Duration = Duration::from_secs(5);

/// `[audit]`, when it has a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The file that is written; the rotated ones and the head lie beside it.
    pub path: PathBuf,
    /// Size in bytes above which no file grows by another line.
    pub rotate: u64,
    /// How many rotated files are kept.
    pub keep: usize,
}

/// Why there is no audit log. Each is the operator's to mend: exit code 71.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// The file, or one beside it, can't be opened, read or mended.
    #[error("audit.path: can't open {}: {source}", path.display())]
    Open {
        /// Which.
        path: PathBuf,
        /// The system's word.
        source: io::Error,
    },
    /// Nothing can be made in its folder.
    #[error("audit.path: can't write in the folder {}: {source}", path.display())]
    Folder {
        /// Which.
        path: PathBuf,
        /// The system's word.
        source: io::Error,
    },
    /// It is something else, told by name.
    #[error("audit.path: {} is {kind}, and not a regular file", path.display())]
    Kind {
        /// Which.
        path: PathBuf,
        /// What it is.
        kind: &'static str,
    },
    /// Another process writes it; two writers would break the chain.
    #[error("audit.path: {} is written by another process", path.display())]
    Taken {
        /// Which.
        path: PathBuf,
    },
    /// The file is somebody else's: its last line is no record.
    #[error(
        "audit.path: {} is another file: its last line is no record of an audit log. It was left as it is; name a file that \
         is not there yet, or move this one away",
        path.display()
    )]
    NotAnAudit {
        /// Which.
        path: PathBuf,
    },
    /// The writer's thread could not be started.
    #[error("can't start the audit thread: {0}")]
    Thread(io::Error),
}

/// Details of a change of state, as words.
pub fn details(words: &[(&str, &str)]) -> serde_json::Map<String, serde_json::Value> {
    words
        .iter()
        .map(|(key, word)| ((*key).to_owned(), (*word).into()))
        .collect()
}

/// A number that was measured: six digits of it, however small it is.
pub fn figure(value: f64) -> serde_json::Value {
    let digits = format!("{value:.5e}").parse();
    digits.map_or(serde_json::Value::Null, |value: f64| value.into())
}

/// The running audit log. Dropping it writes what is queued and ends the thread.
pub struct Audit {
    path: PathBuf,
    records: Option<SyncSender<Record>>,
    finished: Mutex<Receiver<()>>,
    shared: Arc<Shared>,
    metrics: Arc<Metrics>,
}

/// What the handle and the writer's thread share beside the channel.
struct Shared {
    queued_bytes: AtomicUsize,
    reopen: AtomicBool,
    stop: AtomicBool,
    rotate: AtomicU64,
    keep: AtomicUsize,
}

impl Audit {
    /// Opens the log, mends its end (a torn last line is cut off, of a file that is an audit log) and takes up its chain.
    pub fn start(settings: Settings, metrics: Arc<Metrics>) -> Result<Self, AuditError> {
        let shared = Arc::new(Shared {
            queued_bytes: AtomicUsize::new(0),
            reopen: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            rotate: AtomicU64::new(settings.rotate),
            keep: AtomicUsize::new(settings.keep),
        });
        let path = settings.path.clone();
        let (log, found) = Log::open(settings)?;
        let (records, queue) = sync_channel(MAX_QUEUED);
        let (running, finished) = sync_channel(0);
        let writer = Writer::new(log, found, queue, Arc::clone(&shared), Arc::clone(&metrics));
        std::thread::Builder::new()
            .name("seawall-audit".to_owned())
            .spawn(move || {
                writer.run();
                drop(running);
            })
            .map_err(AuditError::Thread)?;
        Ok(Self {
            path,
            records: Some(records),
            finished: Mutex::new(finished),
            shared,
            metrics,
        })
    }

    /// What became of an attempt.
    pub(super) fn attempt(&self, attempt: &Attempt) {
        self.send(Event::Attempt(Box::new(attempt.clone())));
    }

    /// The end of a session.
    pub(super) fn end(&self, attempt: &Attempt, ending: &Ending) {
        self.send(Event::End {
            connection: attempt.connection,
            ending: Box::new(ending.clone()),
        });
    }

    /// A change of state, with what is worth knowing of it. `ts`, `event` and `prev` are added.
    pub fn change(&self, change: Change, details: serde_json::Map<String, serde_json::Value>) {
        self.send(Event::Change { change, details });
    }

    /// What it goes by.
    pub fn settings(&self) -> Settings {
        Settings {
            path: self.path.clone(),
            rotate: self.shared.rotate.load(Ordering::Relaxed),
            keep: self.shared.keep.load(Ordering::Relaxed),
        }
    }

    /// Rotates at another size and keeps another number of files from here on.
    pub fn limit(&self, rotate: u64, keep: usize) {
        self.shared.rotate.store(rotate, Ordering::Relaxed);
        self.shared.keep.store(keep, Ordering::Relaxed);
    }

    /// Opens the path anew, within the next moment: for a log rotation from outside, on SIGHUP.
    pub fn reopen(&self) {
        self.shared.reopen.store(true, Ordering::Relaxed);
    }

    /// Writes what is queued and ends the thread; what is recorded later is lost. For the end of the process, where
    /// connections that are cut off still hold the log.
    pub fn close(&self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        let finished = self.finished.lock().unwrap_or_else(PoisonError::into_inner);
        if finished.recv_timeout(STOP_WAIT) == Err(RecvTimeoutError::Timeout) {
            tracing::error!("the audit log did not take its last records within {STOP_WAIT:?}");
        }
    }

    fn send(&self, event: Event) {
        let record = Record {
            at: wall_clock(),
            event,
        };
        let size = record.queued_bytes();
        let queued = self.shared.queued_bytes.fetch_add(size, Ordering::Relaxed);
        let fits = queued.saturating_add(size) <= MAX_QUEUED_BYTES;
        let sent = fits
            && self
                .records
                .as_ref()
                .is_some_and(|records| records.try_send(record).is_ok());
        if !sent {
            self.shared.queued_bytes.fetch_sub(size, Ordering::Relaxed);
            self.metrics.audit().dropped.inc();
        }
    }
}

impl Drop for Audit {
    fn drop(&mut self) {
        drop(self.records.take());
        self.close();
    }
}

#[cfg(test)]
mod tests;
