//! The file on disk: opened and mended, appended to, rotated, pruned, and its head kept beside it.
//!
//! `PATH` is written. `NAME-20261129T101500Z-0001.jsonl` are full ones: `NAME` is the path without ".jsonl", the time is
//! that of the rotation, the number tells those of one second apart. `PATH.head` tells how far the file reached at most
//! a second ago, so that a tail that somebody cuts off shows.

use std::ffi::OsString;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use super::chain::Link;
use super::names::{self, Stamp};
use super::place;
use super::record::timestamp;
use super::{AuditError, Settings};

/// Client ids are nobody else's business.
const MODE: u32 = 0o640;
/// A line has at most 64 KiB of client id, each byte of which JSON may write as six.
const LONGEST_LINE: u64 = 1024 * 1024;

/// The audit log on disk.
pub(super) struct Log {
    settings: Settings,
    /// The last file that was opened; writing goes on into it until another can be opened.
    file: File,
    /// Bytes of whole lines in it.
    length: u64,
    /// What the next line carries.
    link: Link,
    last_rotation: Option<Stamp>,
}

/// What was found at the end of the log when it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// Length of a torn last line, which was cut off: it never was a record.
    pub(super) torn_bytes: u64,
    /// Lines are missing that the head tells of. The chain goes on from the head, so the gap shows.
    pub(super) missing: bool,
}

/// `PATH.head`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Head {
    ts: String,
    /// Bytes of the file up to the end of the line with this hash; 0: the file was empty, the line is in the one before.
    bytes: u64,
    hash: String,
}

impl Log {
    /// Opens the log and mends its end. The file is locked against a second writer.
    pub(super) fn open(settings: Settings) -> Result<(Self, Found), AuditError> {
        let path = settings.path.clone();
        let open = |source| AuditError::Open {
            path: path.clone(),
            source,
        };
        let file = open_file(&path).map_err(open)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(AuditError::Taken { path }),
            Err(TryLockError::Error(source)) => return Err(open(source)),
        }
        let metadata = file.metadata().map_err(open)?;
        place::regular(&path, &metadata)?;
        let size = metadata.len();
        let last = place::ours(&path, &file, size)?;
        if last.end < size {
            file.set_len(last.end).map_err(open)?;
        }
        let rotated = names::rotated(&path).map_err(open)?;
        let mut log = Self {
            settings,
            file,
            length: last.end,
            link: Link::FIRST,
            last_rotation: rotated.last().copied(),
        };
        let missing = log.take_up(&last, rotated.last().copied()).map_err(open)?;
        Ok((
            log,
            Found {
                torn_bytes: size - last.end,
                missing,
            },
        ))
    }

    /// Other limits from here on.
    pub(super) fn limit(&mut self, rotate: u64, keep: usize) {
        self.settings.rotate = rotate;
        self.settings.keep = keep;
    }

    /// What the next line has to carry.
    pub(super) fn link(&self) -> Link {
        self.link
    }

    /// Whether the file with `pending` bytes more and another line of `line` bytes would be too large, and has anything
    /// to rotate away.
    pub(super) fn is_full(&self, pending: usize, line: usize) -> bool {
        let lines = self.length.saturating_add(pending as u64);
        lines > 0 && lines.saturating_add(line as u64) > self.settings.rotate
    }

    /// `line`, without its line feed, has been made to follow the last one; it is not written yet.
    pub(super) fn linked(&mut self, line: &[u8]) {
        self.link = Link::of(line);
    }

    /// Appends what the system takes of `bytes`, and returns how much that was. Called until all of them are in, before
    /// anything else is asked of the log.
    pub(super) fn append(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.length = self.length.saturating_add(written as u64);
        Ok(written)
    }

    /// Opens the path anew if it no longer leads to the file that is written: it, or its folder, was removed or renamed.
    /// Returns whether it did. The chain goes on; a folder that is gone is not made anew.
    pub(super) fn follow_path(&mut self) -> io::Result<bool> {
        let named = std::fs::metadata(&self.settings.path);
        let open = self.file.metadata()?;
        if named.is_ok_and(|named| (named.dev(), named.ino()) == (open.dev(), open.ino())) {
            return Ok(false);
        }
        self.reopen()?;
        Ok(true)
    }

    /// Gives the file the name of a full one, opens a new one, and removes the oldest of the full ones. Nothing may be
    /// pending. On an error the old file is written on.
    pub(super) fn rotate(&mut self, now: SystemTime) -> io::Result<()> {
        let path = &self.settings.path;
        self.file.sync_data()?;
        self.write_head(now)?;
        let stamp = Stamp::next(self.last_rotation, now);
        std::fs::rename(path, stamp.path(path))?;
        self.last_rotation = Some(stamp);
        self.reopen()?;
        self.write_head(now)?;
        self.prune()
    }

    /// Writes `PATH.head`. Only what is in the file may be linked.
    pub(super) fn write_head(&self, now: SystemTime) -> io::Result<()> {
        let head = Head {
            ts: timestamp(now),
            bytes: self.length,
            hash: self.link.to_string(),
        };
        let text = serde_json::to_string(&head)? + "\n";
        let path = head_path(&self.settings.path);
        let temporary = suffixed(&path, ".new");
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(MODE)
            .open(&temporary)?;
        file.write_all(text.as_bytes())?;
        std::fs::rename(temporary, path)
    }

    /// Brings what was appended to the disk itself.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// Opens what the path leads to now, and goes on at its end.
    fn reopen(&mut self) -> io::Result<()> {
        let file = open_file(&self.settings.path)?;
        file.try_lock()?;
        let path = &self.settings.path;
        let metadata = file.metadata()?;
        place::regular(path, &metadata).map_err(io::Error::other)?;
        let size = metadata.len();
        let end = place::ours(path, &file, size).map_err(io::Error::other)?.end;
        if end < size {
            file.set_len(end)?;
        }
        self.file = file;
        self.length = end;
        Ok(())
    }

    fn prune(&self) -> io::Result<()> {
        let rotated = names::rotated(&self.settings.path)?;
        let surplus = rotated.len().saturating_sub(self.settings.keep);
        for stamp in rotated.into_iter().take(surplus) {
            std::fs::remove_file(stamp.path(&self.settings.path))?;
        }
        Ok(())
    }

    /// Finds the link that the next line has to carry. Returns whether lines are missing.
    fn take_up(&mut self, last: &LastLine, newest: Option<Stamp>) -> io::Result<bool> {
        let before = match newest {
            Some(stamp) => Some(File::open(stamp.path(&self.settings.path))?),
            None => None,
        };
        self.link = match (&last.line, &before) {
            (Some(line), _) => Link::of(line),
            (None, Some(file)) => link_at(file, file.metadata()?.len())?.unwrap_or(Link::FIRST),
            (None, None) => Link::FIRST,
        };
        let Some((head, bytes)) = read_head(&self.settings.path) else {
            return Ok(false);
        };
        let reached = if bytes > 0 {
            let in_old = |file: &File| link_at(file, bytes).map(|link| link == Some(head));
            link_at(&self.file, bytes)? == Some(head)
                || before.as_ref().map(in_old).transpose()? == Some(true)
        } else if self.length > 0 {
            first_line(&self.file)?.and_then(|line| Link::in_line(&line)) == Some(head)
        } else {
            // Also right when no full file is kept: then only the head knows.
            self.link = head;
            true
        };
        if !reached {
            self.link = head;
        }
        Ok(!reached)
    }
}

/// The last whole line of a file.
pub(super) struct LastLine {
    /// Without its line feed; `None`: there is none.
    pub(super) line: Option<Vec<u8>>,
    /// Where it ends, its line feed included.
    pub(super) end: u64,
}

/// The last whole line among the first `size` bytes. `None`: there is none although more than [`LONGEST_LINE`] bytes are
/// there.
pub(super) fn last_line(file: &File, size: u64) -> io::Result<Option<LastLine>> {
    let begin = size.saturating_sub(2 * LONGEST_LINE);
    let mut tail = vec![0; usize::try_from(size - begin).unwrap_or(usize::MAX)];
    file.read_exact_at(&mut tail, begin)?;
    let Some(feed) = tail.iter().rposition(|byte| *byte == b'\n') else {
        return Ok((size <= LONGEST_LINE).then_some(LastLine { line: None, end: 0 }));
    };
    tail.truncate(feed);
    let line = tail.rsplit(|byte| *byte == b'\n').next().map(<[u8]>::to_vec);
    Ok(Some(LastLine {
        line,
        end: begin + feed as u64 + 1,
    }))
}

/// The hash of the line whose line feed is the last of the first `end` bytes.
fn link_at(file: &File, end: u64) -> io::Result<Option<Link>> {
    if file.metadata()?.len() < end {
        return Ok(None);
    }
    let last = last_line(file, end)?;
    Ok(last
        .filter(|last| last.end == end)
        .and_then(|last| last.line)
        .map(|line| Link::of(&line)))
}

fn first_line(file: &File) -> io::Result<Option<Vec<u8>>> {
    let size = file.metadata()?.len().min(LONGEST_LINE);
    let mut bytes = vec![0; usize::try_from(size).unwrap_or(usize::MAX)];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes.split(|byte| *byte == b'\n').next().map(<[u8]>::to_vec))
}

/// Does not wait, whatever the path leads to.
fn open_file(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .append(true)
        .create(true)
        .mode(MODE)
        .custom_flags((OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed())
        .open(path)
}

/// `None` as well when it can't be read or understood: a head that is not there proves nothing.
fn read_head(path: &Path) -> Option<(Link, u64)> {
    let text = std::fs::read_to_string(head_path(path)).ok()?;
    let head: Head = serde_json::from_str(&text).ok()?;
    Some((Link::parse(&head.hash)?, head.bytes))
}

fn head_path(path: &Path) -> PathBuf {
    suffixed(path, ".head")
}

fn suffixed(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    PathBuf::from(name)
}
