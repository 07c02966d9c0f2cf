//! The writer's thread: queue → lines → file. When the file can't be written it keeps what it has, leaves the rest in the
//! queue, tries again and says so in `seawall_audit_failing`.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use super::Shared;
use super::chain::Link;
use super::file::{Found, Log};
use super::record::{Event, Record};
use crate::telemetry::metrics::Metrics;
use crate::telemetry::wall_clock;

/// How long records gather before they are written together. Far below the second of records that a killed process
/// may lose, and at 5,000 a second 250 of them share a wake-up and a `write`.
pub(super) const GATHER: Duration = Duration::from_millis(50);
/// Sheds are told once a second, and the head is kept once a second.
const TICK: Duration = Duration::from_secs(1);
/// How soon a writer without work sees that it is to end: what a process without clients takes to stop.
const LOOK: Duration = Duration::from_millis(50);
/// The head is logged as often, so that what somebody did to all files of the folder still shows.
const HEAD_LOGGED: Duration = Duration::from_mins(1);
/// After a failed write. A full disk is not empty again sooner.
const RETRY: Duration = Duration::from_millis(250);
/// After a failed rotation, while the file grows past its size.
const ROTATE_RETRY: Duration = Duration::from_mins(1);
/// Bytes that are written at once: the most that waits beside the queue, and the most that a failing file holds back.
const BATCH: usize = 256 * 1024;

pub(super) struct Writer {
    log: Log,
    queue: Receiver<Record>,
    shared: Arc<Shared>,
    metrics: Arc<Metrics>,
    pending: Pending,
    line: Vec<u8>,
    failing: bool,
    told_sheds: BTreeMap<&'static str, u64>,
    told_dropped: u64,
    kept_head: Link,
    logged_head: Link,
    next_tick: Instant,
    next_head_logged: Instant,
    next_rotation: Instant,
}

impl Writer {
    pub(super) fn new(
        log: Log,
        found: Found,
        queue: Receiver<Record>,
        shared: Arc<Shared>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let now = Instant::now();
        let mut writer = Self {
            kept_head: log.link(),
            logged_head: log.link(),
            log,
            queue,
            shared,
            told_sheds: metrics.sheds(),
            told_dropped: metrics.audit().dropped.get(),
            metrics,
            pending: Pending::default(),
            line: Vec::new(),
            failing: false,
            next_tick: now,
            next_head_logged: now + HEAD_LOGGED,
            next_rotation: now,
        };
        if found != Found::default() {
            tracing::warn!(
                found.torn_bytes,
                found.missing,
                "the audit log did not end as it should"
            );
        }
        writer.push(&Record {
            at: wall_clock(),
            event: Event::Start(found),
        });
        writer
    }

    /// Until the handle is dropped.
    pub(super) fn run(mut self) {
        loop {
            if self.failing && !self.try_again() {
                break;
            }
            match self.queue.recv_timeout(LOOK) {
                Ok(record) => {
                    self.gather();
                    self.take(record);
                }
                Err(RecvTimeoutError::Timeout) if self.stopping() => break,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.tick();
        }
        self.finish();
    }

    /// Lets records come together, so that they don't wake this thread one by one.
    #[expect(
        clippy::disallowed_methods,
        reason = "a thread of its own, which nobody waits for"
    )]
    fn gather(&self) {
        if !self.stopping() {
            std::thread::sleep(GATHER);
        }
    }

    /// Whether to go on: the file can be written again, and until then nothing is taken from the queue.
    #[expect(
        clippy::disallowed_methods,
        reason = "a thread of its own, which nobody waits for"
    )]
    fn try_again(&mut self) -> bool {
        while !self.settle() {
            if self.stopping() {
                return false;
            }
            std::thread::sleep(RETRY);
        }
        true
    }

    /// Writes `record` and all that wait behind it.
    fn take(&mut self, record: Record) {
        let mut next = Some(record);
        while let Some(record) = next {
            self.shared
                .queued_bytes
                .fetch_sub(record.queued_bytes(), Ordering::Relaxed);
            self.push(&record);
            if self.pending.bytes.len() >= BATCH && !self.settle() {
                return;
            }
            next = self.queue.try_recv().ok();
        }
        self.settle();
    }

    /// What is due by time rather than by a record.
    fn tick(&mut self) {
        let now = Instant::now();
        if self.failing || now < self.next_tick {
            return;
        }
        self.next_tick = now + TICK;
        let sheds = self.metrics.sheds();
        let told = std::mem::replace(&mut self.told_sheds, sheds.clone());
        let new = |(reason, count)| (reason, count - told.get(reason).copied().unwrap_or_default());
        let new: BTreeMap<_, _> = sheds
            .into_iter()
            .map(new)
            .filter(|(_, count)| *count > 0)
            .collect();
        if !new.is_empty() {
            self.push(&Record {
                at: wall_clock(),
                event: Event::Shed(new),
            });
        }
        let dropped = self.metrics.audit().dropped.get();
        let new = dropped - std::mem::replace(&mut self.told_dropped, dropped);
        if new > 0 {
            self.push(&Record {
                at: wall_clock(),
                event: Event::Dropped(new),
            });
        }
        if self.settle() && self.kept_head != self.log.link() {
            let kept = self.log.write_head(wall_clock());
            self.outcome(kept);
            self.kept_head = self.log.link();
        }
        if now >= self.next_head_logged && !self.failing {
            self.next_head_logged = now + HEAD_LOGGED;
            self.log_head();
        }
    }

    /// The last records, the last line, the last head.
    fn finish(mut self) {
        if !self.failing {
            while let Ok(record) = self.queue.try_recv() {
                self.take(record);
            }
            self.push(&Record {
                at: wall_clock(),
                event: Event::Stop,
            });
        }
        let written = self
            .try_settle()
            .and_then(|()| self.log.sync())
            .and_then(|()| self.log.write_head(wall_clock()));
        self.outcome(written);
        let lost = self.queue.try_iter().count() as u64 + self.pending.lines;
        self.metrics.audit().dropped.inc_by(lost);
        self.log_head();
    }

    /// Makes a line of `record`, and room for it.
    fn push(&mut self, record: &Record) {
        let mut line = std::mem::take(&mut self.line);
        line.clear();
        let metrics = &self.metrics;
        match record.write(&mut line, self.log.link(), metrics) {
            Ok(()) => {
                self.make_room(line.len());
                self.log.linked(&line);
                self.pending.push(&line);
            }
            Err(error) => {
                self.metrics.audit().dropped.inc();
                tracing::error!(%error, "an audit record can't be written as JSON");
            }
        }
        self.line = line;
    }

    /// Rotates if a line of `length` bytes would make the file too large.
    fn make_room(&mut self, length: usize) {
        let now = Instant::now();
        self.log.limit(
            self.shared.rotate.load(Ordering::Relaxed),
            self.shared.keep.load(Ordering::Relaxed),
        );
        if now < self.next_rotation || !self.log.is_full(self.pending.bytes.len(), length) || !self.settle() {
            return;
        }
        if let Err(error) = self.log.rotate(wall_clock()) {
            self.next_rotation = now + ROTATE_RETRY;
            tracing::error!(%error, "can't rotate the audit log");
        }
    }

    /// Writes what is pending. `false`: it can't be written now.
    fn settle(&mut self) -> bool {
        let settled = self.try_settle();
        self.outcome(settled)
    }

    fn try_settle(&mut self) -> io::Result<()> {
        let asked = self.shared.reopen.swap(false, Ordering::Relaxed);
        let look = asked || self.failing || !self.pending.is_empty();
        if look && self.log.follow_path()? {
            self.pending.back_to_line_start();
        }
        while !self.pending.is_empty() {
            match self.log.append(self.pending.rest()) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(bytes) => self.pending.advance(bytes),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.metrics
            .audit()
            .records
            .inc_by(std::mem::take(&mut self.pending.lines));
        Ok(())
    }

    /// Says once when writing begins to fail, and once when it works again.
    fn outcome(&mut self, outcome: io::Result<()>) -> bool {
        let failed = outcome.is_err();
        match outcome {
            Err(error) if !self.failing => tracing::error!(%error, "the audit log can't be written"),
            Ok(()) if self.failing => tracing::info!("the audit log is written again"),
            _ => {}
        }
        self.failing = failed;
        self.metrics.audit().failing.set(i64::from(failed));
        !failed
    }

    fn log_head(&mut self) {
        if self.logged_head != self.log.link() {
            self.logged_head = self.log.link();
            tracing::info!(head = %self.logged_head, "audit head");
        }
    }

    fn stopping(&self) -> bool {
        self.shared.stop.load(Ordering::Relaxed)
    }
}

/// Lines that are not on disk yet. Never ends within a line, but may be written up to within one.
#[derive(Default)]
struct Pending {
    bytes: Vec<u8>,
    written: usize,
    lines: u64,
}

impl Pending {
    fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Adds `line` and its line feed.
    fn push(&mut self, line: &[u8]) {
        self.bytes.extend_from_slice(line);
        self.bytes.push(b'\n');
        self.lines += 1;
    }

    fn rest(&self) -> &[u8] {
        self.bytes.get(self.written..).unwrap_or_default()
    }

    /// So many bytes of [`Self::rest`] are written.
    fn advance(&mut self, bytes: usize) {
        self.written += bytes;
        if self.written >= self.bytes.len() {
            self.bytes.clear();
            self.written = 0;
        }
    }

    /// Another file is written from here on: a line of which a part is in the old one goes into it as a whole.
    fn back_to_line_start(&mut self) {
        let written = self.bytes.get(..self.written).unwrap_or_default();
        self.written = written
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |feed| feed + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_was_written_in_part_is_finished_or_begun_anew_in_another_file() {
        let mut pending = Pending::default();
        pending.push(b"one");
        pending.push(b"two");
        pending.advance(6);
        assert_eq!(pending.rest(), b"o\n");
        pending.back_to_line_start();
        assert_eq!(pending.rest(), b"two\n");
        pending.advance(1);
        pending.back_to_line_start();
        assert_eq!(pending.rest(), b"two\n");
        pending.advance(4);
        assert!(pending.is_empty() && pending.rest().is_empty());
        pending.push(b"three");
        pending.advance(2);
        pending.back_to_line_start();
        assert_eq!(pending.rest(), b"three\n");
    }
}
