//! `seawall report`: what happened in a storm, from the audit logs of the daemons and of the devices.
//!
//! Reads each log from its oldest line to its newest, holds every line against its hash chain, and merges replicas by
//! time. Everything is read once and in order; what is kept is a little for each client of the storm that is going on,
//! so that the length of the logs does not matter.

mod clients;
mod files;
mod html;
mod line;
mod log;
mod patterns;
mod pauses;
mod storm;
mod storms;
mod summary;
mod text;

use std::io;
use std::path::PathBuf;

use serde::Serialize;

use self::line::{Entry, Event, Micros, SECOND};
use self::log::LogReader;
pub use self::log::{Break, CutOff, Log};
pub use self::patterns::{Pattern, Patterns};
pub use self::pauses::Policy;
use self::storms::{Storms, Totals};
pub use self::summary::{Capacity, Row, Share, Summary, Worst};

/// Why there is no report. All are the caller's: a name, a permission, a file that is no log.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// A file can't be opened, read or decompressed.
    #[error("can't read {}: {source}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// The system's word.
        source: io::Error,
    },
    /// Only heads were named.
    #[error("no audit log among the files that were named")]
    NoFile,
}

/// What came of reading some logs.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The logs, and whether their chains hold.
    pub logs: Vec<Log>,
    /// As the daemons saw it, where there are logs of theirs.
    pub proxy: Option<View>,
    /// As the devices saw it, where there are logs of theirs.
    pub devices: Option<View>,
}

/// Everything that one side saw.
#[derive(Clone, Debug, Serialize)]
pub struct View {
    /// Time of the first line, in Unix seconds.
    pub from: f64,
    /// Time of the last line.
    pub to: f64,
    /// Attempts in all, in and outside of storms, without those closed before TLS.
    pub attempts: u64,
    /// Of these, got CONNACK 0.
    pub connected: u64,
    /// Sessions that ended.
    pub ended: u64,
    /// Times a process began to write.
    pub starts: u64,
    /// Records that found no room in the log.
    pub dropped: u64,
    /// Refused by the proxy, by reason.
    pub refused: std::collections::BTreeMap<String, u64>,
    /// Closed before TLS, by reason.
    pub shed: std::collections::BTreeMap<String, u64>,
    /// Times in which a few were turned away, too few for a storm.
    pub small_storms: u64,
    /// The storms, the oldest first.
    pub storms: Vec<Summary>,
}

/// Reads the logs at `paths`. `capacity`: CONNECTs a second that the brokers can take, where the caller knows better
/// than the logs.
pub fn read(paths: &[PathBuf], capacity: Option<f64>) -> Result<Report, ReportError> {
    let mut logs: Vec<Cursor> = files::group(paths)?
        .into_iter()
        .map(|files| Cursor::new(LogReader::new(files)))
        .collect();
    for log in &mut logs {
        log.advance()?;
    }
    let (mut proxy, mut devices) = (Storms::new(logs.len()), Storms::new(logs.len()));
    while let Some((place, log)) = earliest(&mut logs) {
        match Entry::read(&log.line) {
            Some(entry) if matches!(entry.event, Event::DeviceAttempt(_)) => devices.take(entry, place),
            Some(entry) => proxy.take(entry, place),
            None => log.reader.unreadable(),
        }
        log.advance()?;
    }
    Ok(Report {
        logs: logs.into_iter().map(|log| log.reader.finish()).collect(),
        proxy: View::of(proxy.finish(), capacity),
        devices: View::of(devices.finish(), capacity),
    })
}

impl Report {
    /// Whether no log was cut, edited or put in another order.
    pub fn chains_hold(&self) -> bool {
        self.logs.iter().all(|log| log.breaks == 0)
    }

    /// For a terminal of `width` columns.
    pub fn to_text(&self, width: usize) -> String {
        text::write(self, width)
    }

    /// One HTML file that needs nothing else.
    pub fn to_html(&self) -> String {
        html::write(self)
    }

    /// The views, with what they are called.
    fn views(&self) -> impl Iterator<Item = (&'static str, &View)> {
        let both = self.proxy.is_some() && self.devices.is_some();
        let name = move |name| if both { name } else { "" };
        let proxy = self
            .proxy
            .iter()
            .map(move |view| (name("as the proxy saw it"), view));
        proxy.chain(
            self.devices
                .iter()
                .map(move |view| (name("as the devices saw it"), view)),
        )
    }
}

impl View {
    fn of((totals, storms): (Totals, Vec<storm::Storm>), capacity: Option<f64>) -> Option<Self> {
        let unix = |at: Micros| at as f64 / SECOND as f64;
        Some(Self {
            from: unix(totals.first?),
            to: unix(totals.last?),
            attempts: totals.attempts,
            connected: totals.connected,
            ended: totals.ended,
            starts: totals.starts,
            dropped: totals.dropped,
            refused: totals.refused,
            shed: totals.shed,
            small_storms: totals.small_storms,
            storms: storms
                .into_iter()
                .map(|storm| Summary::of(storm, capacity))
                .collect(),
        })
    }
}

/// A log, and the line that comes next in it.
struct Cursor {
    reader: LogReader,
    line: Vec<u8>,
    /// `None`: there is no more.
    at: Option<Micros>,
}

impl Cursor {
    fn new(reader: LogReader) -> Self {
        Self {
            reader,
            line: Vec::new(),
            at: None,
        }
    }

    /// A line without a time comes where it stands.
    fn advance(&mut self) -> Result<(), ReportError> {
        let before = self.at.take().unwrap_or(Micros::MIN);
        if self.reader.next(&mut self.line)? {
            self.at = Some(Entry::time_of(&self.line).unwrap_or(before));
        }
        Ok(())
    }
}

/// Replicas are few: a look at each is cheaper than a heap.
fn earliest(logs: &mut [Cursor]) -> Option<(usize, &mut Cursor)> {
    logs.iter_mut()
        .enumerate()
        .filter(|(_, log)| log.at.is_some())
        .min_by_key(|(_, log)| log.at)
}

#[cfg(test)]
mod tests;
