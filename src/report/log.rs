//! One log, line by line, each held against the line before it.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{BufRead, Read};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::ReportError;
use super::files::{self, Files};
use crate::telemetry::audit::chain::{Broken, Link, follow};

/// The daemon writes none that is longer; nor is more of one kept in memory.
const LONGEST_LINE: u64 = 1024 * 1024;

/// What is known of a log when it has been read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Log {
    /// The path that its process writes.
    pub path: PathBuf,
    /// Files that were read.
    pub files: usize,
    /// Whole lines in them.
    pub lines: u64,
    /// Bytes of these lines.
    pub bytes: u64,
    /// Whether its first line is the very first of its chain. If not, older files are not here, or no longer.
    pub from_the_beginning: bool,
    /// Whether it carries no hashes at all, as that of a device.
    pub unchained: bool,
    /// Whether its end was held against the head beside it. If not, a tail that was cut off would not show.
    pub end_checked: bool,
    /// A last line without its line feed: the process was killed while it wrote, and has not been started again.
    pub cut_off: Option<CutOff>,
    /// Places at which the chain is broken.
    pub breaks: u64,
    /// The first of them.
    pub first_break: Option<Break>,
    /// Lines that are no record of ours, or none that can be understood.
    pub unreadable: u64,
}

/// A torn last line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CutOff {
    /// Its file.
    pub file: PathBuf,
    /// Its number, from 1.
    pub line: u64,
    /// What is there of it.
    pub bytes: u64,
}

/// Where a chain is broken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Break {
    /// The file.
    pub file: PathBuf,
    /// Number of the line that does not follow the one before it, from 1.
    pub line: u64,
    /// What is wrong with it.
    pub what: String,
}

/// Reads a log from its oldest line to its newest.
pub(super) struct LogReader {
    log: Log,
    waiting: VecDeque<PathBuf>,
    open: Option<Open>,
    /// What the next line has to carry; `None`: nothing is known before the first line.
    link: Option<Link>,
    head: Option<Head>,
    head_reached: bool,
    previous: PathBuf,
    /// Number of the last line of `previous`.
    previous_lines: u64,
}

struct Open {
    path: PathBuf,
    reader: Box<dyn BufRead + Send>,
    line: u64,
}

/// `PATH.head`, as far as it is needed here.
#[derive(Deserialize)]
struct Head {
    hash: String,
}

impl LogReader {
    pub(super) fn new(files: Files) -> Self {
        // Read before the log, which may grow meanwhile.
        let written = files.files.last() == Some(&files.path);
        // A file that is not named may have the rest; one that is not there has not.
        let head = read_head(&files.path).filter(|_| written || !files.path.exists());
        Self {
            log: Log {
                path: files.path,
                files: files.files.len(),
                end_checked: head.is_some(),
                ..Log::default()
            },
            waiting: files.files.into(),
            open: None,
            link: None,
            head,
            head_reached: false,
            previous: PathBuf::new(),
            previous_lines: 0,
        }
    }

    /// Reads the next whole line into `line`, without its line feed. `false`: there is none.
    pub(super) fn next(&mut self, line: &mut Vec<u8>) -> Result<bool, ReportError> {
        loop {
            if self.open.is_none() && !self.open_next()? {
                self.check_end();
                return Ok(false);
            }
            let Some(open) = &mut self.open else {
                return Ok(false);
            };
            line.clear();
            let read = Read::take(&mut open.reader, LONGEST_LINE).read_until(b'\n', line);
            let read = read.map_err(|source| ReportError::Read {
                path: open.path.clone(),
                source,
            })?;
            if read == 0 {
                self.close();
                continue;
            }
            open.line += 1;
            if line.pop_if(|last| *last == b'\n').is_none() && (read as u64) < LONGEST_LINE {
                self.cut_off(read as u64);
                continue;
            }
            self.log.lines += 1;
            self.log.bytes += read as u64;
            self.check(line);
            return Ok(true);
        }
    }

    /// The last line that was read is no record that can be understood.
    pub(super) fn unreadable(&mut self) {
        self.log.unreadable += 1;
    }

    /// What is known; all of it, once [`Self::next`] has said that there is nothing more.
    pub(super) fn finish(self) -> Log {
        self.log
    }

    fn open_next(&mut self) -> Result<bool, ReportError> {
        let Some(path) = self.waiting.pop_front() else {
            return Ok(false);
        };
        let reader = files::open(&path).map_err(|source| ReportError::Read {
            path: path.clone(),
            source,
        })?;
        self.open = Some(Open {
            path,
            reader,
            line: 0,
        });
        Ok(true)
    }

    fn close(&mut self) {
        if let Some(open) = self.open.take() {
            self.previous = open.path;
            self.previous_lines = open.line;
        }
    }

    /// The file ends within a line. At the very end a kill explains it, elsewhere nothing does.
    fn cut_off(&mut self, bytes: u64) {
        self.close();
        if self.waiting.is_empty() {
            self.log.cut_off = Some(CutOff {
                file: self.previous.clone(),
                line: self.previous_lines,
                bytes,
            });
        } else {
            self.broken(format!(
                "it is cut off after {bytes} bytes, though another file follows"
            ));
        }
    }

    fn check(&mut self, line: &[u8]) {
        let what = match self.link {
            None => self.check_first(line),
            Some(_) if self.log.unchained => (!is_of_a_device(line)).then(|| Broken::NoLink.to_string()),
            Some(before) => follow(before, line)
                .err()
                .map(|broken| self.explain(broken, before)),
        };
        if let Some(what) = what {
            self.broken(what);
        }
        self.linked(Link::of(line));
    }

    /// Nothing is known of what came before: older files may be gone.
    fn check_first(&mut self, line: &[u8]) -> Option<String> {
        match Link::in_line(line) {
            Some(link) => {
                self.log.from_the_beginning = link == Link::FIRST;
                self.linked(link);
            }
            None if is_of_a_device(line) => self.log.unchained = true,
            None => return Some(Broken::NoLink.to_string()),
        }
        None
    }

    fn linked(&mut self, link: Link) {
        self.head_reached |= self.head.as_ref().is_some_and(|head| head.hash == link.as_str());
        self.link = Some(link);
    }

    /// The head tells how far the log reached at most a second before its process ended. An empty log of a process that
    /// has just rotated, and kept nothing, has nothing to hold against it.
    fn check_end(&mut self) {
        if let Some(head) = self.head.take()
            && !self.head_reached
            && self.log.lines > 0
        {
            let (hash, name) = (head.hash, head_path(&self.log.path));
            let what = format!(
                "the log ends here, but {} tells of a line with the hash {hash}: lines were cut off, or the last was changed",
                name.display()
            );
            self.broken(what);
        }
    }

    fn explain(&self, broken: Broken, before: Link) -> String {
        match (broken, &self.open) {
            (Broken::OtherLine { link }, Some(Open { line, .. })) if *line > 1 => format!(
                "it was written after a line with the hash {link}, but line {} has {before}: that line was changed, or lines were removed, added or moved here",
                line - 1
            ),
            (Broken::OtherLine { link }, _) => format!(
                "it was written after a line with the hash {link}, but the last of {} has {before}: a file between them is missing, or lines are, or that line was changed",
                self.previous.display()
            ),
            (Broken::NoLink, _) => broken.to_string(),
        }
    }

    /// The line that was read last is where the chain is broken.
    fn broken(&mut self, what: String) {
        self.log.breaks += 1;
        let (file, line) = match &self.open {
            Some(open) => (&open.path, open.line),
            None => (&self.previous, self.previous_lines),
        };
        self.log.first_break.get_or_insert_with(|| Break {
            file: file.clone(),
            line,
            what,
        });
    }
}

/// Lines of `seawall::reconnect::audit` carry no hash: there the disk is flash, and nobody to rotate it.
fn is_of_a_device(line: &[u8]) -> bool {
    const EVENT: &[u8] = b"\"event\":\"reconnect\"";
    line.windows(EVENT.len()).take(80).any(|window| window == EVENT)
}

/// `None` as well when it can't be understood: a head that is not there proves nothing.
fn read_head(path: &Path) -> Option<Head> {
    let text = std::fs::read_to_string(head_path(path)).ok()?;
    serde_json::from_str(&text).ok()
}

fn head_path(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".head");
    PathBuf::from(name)
}
