//! The connect rate limit: between the clients of a process, and between the processes of a host.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use crate::moment::Moment;

/// How often clients may connect together: one each `spacing`, and up to `burst` at once after a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    spacing: Duration,
    burst: u32,
}

impl Rate {
    /// One connect each `spacing`.
    pub const fn spaced(spacing: Duration) -> Self {
        Self { spacing, burst: 1 }
    }

    /// A token bucket: a token each `spacing`, and room for `burst` of them (0 counts as 1).
    pub const fn bucket(spacing: Duration, burst: u32) -> Self {
        Self {
            spacing,
            burst: if burst == 0 { 1 } else { burst },
        }
    }

    /// Reserves the next turn and gives its time, in nanoseconds of any clock. `due` is when a turn would be due had
    /// none been saved up (the "theoretical arrival time" of GCRA); it moves on by one spacing.
    fn reserve(self, due: &mut u64, now: u64) -> u64 {
        let nanoseconds = |span: Duration| u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        let saved = nanoseconds(self.spacing.saturating_mul(self.burst - 1));
        let turn = due.saturating_sub(saved).max(now);
        *due = (*due).max(now).saturating_add(nanoseconds(self.spacing));
        turn
    }
}

/// The limit of one process; share it behind an `Arc`.
#[derive(Debug)]
pub struct ProcessLimit {
    rate: Rate,
    due: Mutex<u64>,
}

impl ProcessLimit {
    /// With nothing reserved.
    pub const fn new(rate: Rate) -> Self {
        Self {
            rate,
            due: Mutex::new(0),
        }
    }

    /// How long this attempt has to wait for its turn; zero: it may start now. A turn that is not used is gone.
    pub fn reserve(&self, now: Moment) -> Duration {
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        Moment::from_nanos(self.rate.reserve(&mut due, now.as_nanos())).since(now)
    }
}

/// The limit of a host: all processes that name the same file share it. The file holds one number and is locked for
/// the moment in which that is moved on. It belongs on a file system that is empty after a boot, such as `/run`.
#[derive(Debug)]
pub struct HostLimit {
    rate: Rate,
    file: PathBuf,
    longest: Duration,
}

impl HostLimit {
    /// `longest` is the longest wait that can be meant, such as spacing times the clients of the host: what the file
    /// says beyond it comes from a clock that was set back, and is forgotten.
    pub const fn new(rate: Rate, file: PathBuf, longest: Duration) -> Self {
        Self { rate, file, longest }
    }

    /// How long this attempt has to wait for its turn. `wall` is the time of day, which the processes share. Waits
    /// for the lock, which nobody holds for longer than two system calls. Errors are the file's: without permission
    /// or room there is no limit but the process's own, and the caller should say so.
    pub fn reserve(&self, wall: SystemTime) -> io::Result<Duration> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&self.file)?;
        file.lock()?;
        let now = wall
            .duration_since(SystemTime::UNIX_EPOCH)
            .map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX));
        let latest = now.saturating_add(u64::try_from(self.longest.as_nanos()).unwrap_or(u64::MAX));
        let mut due = read_number(&file)?.filter(|due| *due <= latest).unwrap_or(now);
        let turn = self.rate.reserve(&mut due, now);
        write_number(&file, due)?;
        // The lock ends with the file.
        Ok(Duration::from_nanos(turn.saturating_sub(now)))
    }
}

/// `None`: a new file, or one that holds something else.
fn read_number(mut file: &File) -> io::Result<Option<u64>> {
    let mut text = String::new();
    // A u64 has 20 digits; whatever is longer is not ours.
    match file.take(32).read_to_string(&mut text) {
        Ok(_) => Ok(text.trim().parse().ok()),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            file.seek(SeekFrom::Start(0))?;
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn write_number(mut file: &File, number: u64) -> io::Result<()> {
    file.seek(SeekFrom::Start(0))?;
    file.set_len(0)?;
    writeln!(file, "{number}")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;

    const QUARTER: Duration = Duration::from_millis(250);

    fn after(milliseconds: u64) -> Moment {
        Moment::ZERO + Duration::from_millis(milliseconds)
    }

    #[test]
    fn spaced_connects_are_a_spacing_apart() {
        let limit = ProcessLimit::new(Rate::spaced(QUARTER));
        let waits: Vec<u128> = (0..4).map(|_| limit.reserve(after(0)).as_millis()).collect();
        assert_eq!(waits, [0, 250, 500, 750]);
        assert_eq!(limit.reserve(after(900)).as_millis(), 100);
        assert_eq!(limit.reserve(after(5000)), Duration::ZERO);
        assert_eq!(limit.reserve(after(5000)), QUARTER);
    }

    #[test]
    fn a_bucket_saves_up_to_its_burst_and_no_more() {
        let limit = ProcessLimit::new(Rate::bucket(QUARTER, 3));
        for start in [1_000, 100_000] {
            let waits: Vec<u128> = (0..5).map(|_| limit.reserve(after(start)).as_millis()).collect();
            assert_eq!(waits, [0, 0, 0, 250, 500]);
        }
    }

    #[test]
    fn threads_share_one_limit() {
        let limit = Arc::new(ProcessLimit::new(Rate::spaced(QUARTER)));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let limit = Arc::clone(&limit);
                std::thread::spawn(move || (0..25).map(|_| limit.reserve(after(0))).collect::<Vec<_>>())
            })
            .collect();
        let mut waits: Vec<_> = threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap())
            .collect();
        waits.sort();
        let expected: Vec<_> = (0..100).map(|turn| QUARTER * turn).collect();
        assert_eq!(waits, expected);
    }

    fn noon() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_hours(498_876)
    }

    fn host(folder: &tempfile::TempDir) -> HostLimit {
        HostLimit::new(
            Rate::spaced(QUARTER),
            folder.path().join("turns"),
            Duration::from_mins(1),
        )
    }

    #[test]
    fn limits_that_name_the_same_file_share_it() {
        let folder = tempfile::tempdir().unwrap();
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let limit = host(&folder);
                std::thread::spawn(move || {
                    (0..10)
                        .map(|_| limit.reserve(noon()).unwrap())
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        let mut waits: Vec<_> = threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap())
            .collect();
        waits.sort();
        let expected: Vec<_> = (0..40).map(|turn| QUARTER * turn).collect();
        assert_eq!(waits, expected);
    }

    #[test]
    fn a_clock_that_is_set_back_exiles_nobody() {
        let folder = tempfile::tempdir().unwrap();
        let limit = host(&folder);
        limit.reserve(noon() + Duration::from_hours(1)).unwrap();
        assert_eq!(limit.reserve(noon()).unwrap(), Duration::ZERO);
        assert_eq!(limit.reserve(noon()).unwrap(), QUARTER);
    }

    #[test]
    fn a_file_with_something_else_in_it_is_begun_anew() {
        let folder = tempfile::tempdir().unwrap();
        for content in [
            b"".as_slice(),
            b"soon",
            b"\xff\xfe\x00",
            b"99999999999999999999999999999999999999999",
        ] {
            std::fs::write(folder.path().join("turns"), content).unwrap();
            assert_eq!(
                host(&folder).reserve(noon()).unwrap(),
                Duration::ZERO,
                "{content:?}"
            );
            assert_eq!(host(&folder).reserve(noon()).unwrap(), QUARTER, "{content:?}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_is_an_error() {
        let limit = HostLimit::new(Rate::spaced(QUARTER), "/nonexistent/turns".into(), QUARTER);
        assert_eq!(limit.reserve(noon()).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    proptest! {
        /// In no window do more connects start than the burst and what the spacing allows.
        #[test]
        fn no_window_holds_too_many(
            gaps in proptest::collection::vec(0_u64..600, 1..200),
            burst in 1_u32..8,
            window_ms in 1_u64..5000,
        ) {
            let limit = ProcessLimit::new(Rate::bucket(QUARTER, burst));
            let mut now = after(10_000);
            let mut starts = Vec::new();
            for gap in gaps {
                now = now + Duration::from_millis(gap);
                starts.push(now + limit.reserve(now));
            }
            starts.sort();
            let allowed = u64::from(burst) + window_ms / 250;
            for first in &starts {
                let end = *first + Duration::from_millis(window_ms);
                let inside = starts.iter().filter(|start| (*first..end).contains(start)).count() as u64;
                prop_assert!(inside <= allowed, "{inside} in {window_ms} ms, {allowed} allowed");
            }
        }

        #[test]
        fn extremes_do_not_overflow(now in any::<u64>(), due in any::<u64>(), burst in any::<u32>()) {
            let rate = Rate::bucket(Duration::MAX, burst);
            let mut moved = due;
            prop_assert!(rate.reserve(&mut moved, now) >= now);
            prop_assert!(moved >= due);
        }
    }
}
