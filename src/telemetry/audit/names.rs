//! The names of full files: they sort in the order in which they were written, even if the clock goes back.

use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use time::format_description::BorrowedFormatItem;
use time::macros::format_description;
use time::{Duration, OffsetDateTime, PrimitiveDateTime};

const TIME: &[BorrowedFormatItem<'_>] = format_description!("[year][month][day]T[hour][minute][second]Z");
const EXTENSION: &str = ".jsonl";
/// The largest number that has four digits: one more would sort wrongly.
const MOST_A_SECOND: u16 = 9999;

/// When a file was rotated, to the second, and which of that second it is, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Stamp {
    time: PrimitiveDateTime,
    number: u16,
}

impl Stamp {
    /// A stamp for `now` that sorts behind `last`.
    pub(super) fn next(last: Option<Self>, now: SystemTime) -> Self {
        let now = OffsetDateTime::from(now);
        let now = PrimitiveDateTime::new(now.date(), now.time()).replace_nanosecond(0);
        let now = now.unwrap_or(PrimitiveDateTime::MIN);
        match last {
            Some(last) if last.time >= now && last.number < MOST_A_SECOND => Self {
                number: last.number + 1,
                ..last
            },
            Some(last) if last.time >= now => Self {
                time: last.time.saturating_add(Duration::SECOND),
                number: 1,
            },
            _ => Self { time: now, number: 1 },
        }
    }

    /// The full file beside `path` that has this stamp.
    pub(super) fn path(self, path: &Path) -> PathBuf {
        let time = self.time.format(TIME).unwrap_or_default();
        path.with_file_name(format!("{}-{time}-{:04}{EXTENSION}", stem(path), self.number))
    }

    fn parse(name: &str, stem: &str) -> Option<Self> {
        let rest = name
            .strip_prefix(stem)?
            .strip_prefix('-')?
            .strip_suffix(EXTENSION)?;
        let (time, number) = rest.split_once('-')?;
        let digits = number.len() == 4 && number.bytes().all(|byte| byte.is_ascii_digit());
        Some(Self {
            time: PrimitiveDateTime::parse(time, TIME).ok()?,
            number: number.parse().ok().filter(|_| digits)?,
        })
    }
}

/// The full files beside `path`, the oldest first.
pub(super) fn rotated(path: &Path) -> io::Result<Vec<Stamp>> {
    let stem = stem(path);
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder(path))? {
        found.extend(
            entry?
                .file_name()
                .to_str()
                .and_then(|name| Stamp::parse(name, &stem)),
        );
    }
    found.sort_unstable();
    Ok(found)
}

/// The folder that a path leads into.
pub(super) fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

fn stem(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.strip_suffix(EXTENSION).unwrap_or(&name).to_owned()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// So long after 2026-11-29T10:15:00Z.
    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_947_300 + seconds)
    }

    #[test]
    fn names_tell_the_second_and_the_number_within_it() {
        let path = Path::new("/var/log/audit.jsonl");
        let first = Stamp::next(None, at(0));
        assert_eq!(
            first.path(path),
            Path::new("/var/log/audit-20261129T101500Z-0001.jsonl")
        );
        let second = Stamp::next(Some(first), at(0) + Duration::from_millis(999));
        assert_eq!(
            second.path(path),
            Path::new("/var/log/audit-20261129T101500Z-0002.jsonl")
        );
        let third = Stamp::next(Some(second), at(1));
        assert_eq!(
            third.path(path),
            Path::new("/var/log/audit-20261129T101501Z-0001.jsonl")
        );
        let odd = Path::new("audit.log");
        assert_eq!(
            third.path(odd),
            Path::new("audit.log-20261129T101501Z-0001.jsonl")
        );
    }

    #[test]
    fn names_sort_though_the_clock_goes_back_or_a_second_has_too_many() {
        let first = Stamp::next(None, at(3600));
        let after_the_clock_went_back = Stamp::next(Some(first), at(0));
        assert!(after_the_clock_went_back > first);
        let full = Stamp {
            number: MOST_A_SECOND,
            ..first
        };
        let next = Stamp::next(Some(full), at(3600));
        assert!(next > full);
        let name = |stamp: Stamp| stamp.path(Path::new("a")).to_str().unwrap().to_owned();
        assert!(name(next) > name(full) && name(full) > name(first));
    }

    #[test]
    fn only_names_of_this_log_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        let (second, first) = (Stamp::next(None, at(9)), Stamp::next(None, at(5)));
        for stamp in [second, first] {
            std::fs::write(stamp.path(&path), "").unwrap();
        }
        for other in [
            "audit.jsonl",
            "audit.jsonl.head",
            "audit-20261129T101500Z-0001.jsonl.gz",
            "audit-20261129T101500Z-1.jsonl",
            "audit-20261329T101500Z-0001.jsonl",
            "audit-2-20261129T101500Z-0001.jsonl",
            "other-20261129T101500Z-0001.jsonl",
        ] {
            std::fs::write(folder.path().join(other), "").unwrap();
        }
        assert_eq!(rotated(&path).unwrap(), [first, second]);
    }
}
