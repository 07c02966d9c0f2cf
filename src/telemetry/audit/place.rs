//! Where a log can be written, and what there is ours: a file that is another's is neither cut nor written to.

use std::fs::{File, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{Access, access};

use super::AuditError;
use super::chain::Link;
use super::file::{LastLine, last_line};
use super::names;
use crate::named_file::{self, ReadError};

/// How each record begins; 0 stands for any digit.
const BEGINNING: &[u8] = b"{\"ts\":\"0000-00-00T00:00:00.000000Z\",\"event\":\"";

/// Whether a log could be opened at `path`, as far as that can be told without making or changing anything.
pub fn check(path: &Path) -> Result<(), AuditError> {
    let open = |source| AuditError::Open {
        path: path.to_owned(),
        source,
    };
    match std::fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(open(error)),
        Ok(metadata) => {
            regular(path, &metadata)?;
            let file = named_file::open(path).map_err(|error| match error {
                ReadError::System(error) => open(error),
                other => open(io::Error::other(other)),
            })?;
            ours(path, &file, metadata.len())?;
            access(path, Access::WRITE_OK).map_err(|error| open(error.into()))?;
        }
    }
    let folder = names::folder(path);
    access(folder, Access::WRITE_OK | Access::EXEC_OK)
        .map_err(io::Error::from)
        .and_then(|()| std::fs::read_dir(folder).map(drop))
        .map_err(|source| AuditError::Folder {
            path: folder.to_owned(),
            source,
        })
}

/// A pipe would hold up the writer, a device be renamed at the first rotation.
pub(super) fn regular(path: &Path, metadata: &Metadata) -> Result<(), AuditError> {
    match named_file::kind(metadata.file_type()) {
        None => Ok(()),
        Some(kind) => Err(AuditError::Kind {
            path: path.to_owned(),
            kind,
        }),
    }
}

/// The last whole line among the first `size` bytes of a file at `path` that is ours, or empty: what is behind that line was
/// torn off while it was written.
pub(super) fn ours(path: &Path, file: &File, size: u64) -> Result<LastLine, AuditError> {
    let found = look(file, size).map_err(|source| AuditError::Open {
        path: path.to_owned(),
        source,
    })?;
    found.ok_or_else(|| AuditError::NotAnAudit {
        path: path.to_owned(),
    })
}

fn look(file: &File, size: u64) -> io::Result<Option<LastLine>> {
    let Some(last) = last_line(file, size)? else {
        return Ok(None);
    };
    let is_ours = if let Some(line) = &last.line {
        Link::in_line(line).is_some()
    } else {
        let most = usize::try_from(size).unwrap_or(usize::MAX).min(BEGINNING.len());
        let mut bytes = vec![0; most];
        file.read_exact_at(&mut bytes, 0)?;
        begins_a_record(&bytes)
    };
    Ok(is_ours.then_some(last))
}

/// Whether a record, or the first bytes of one, begin like this.
fn begins_a_record(bytes: &[u8]) -> bool {
    let same = |(byte, expected): (&u8, &u8)| match expected {
        b'0' => byte.is_ascii_digit(),
        expected => byte == expected,
    };
    bytes.iter().zip(BEGINNING).all(same)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;
    use crate::telemetry::audit::record::{Event, Record};
    use crate::telemetry::metrics::Metrics;
    use crate::telemetry::wall_clock;

    /// A line as it is written.
    fn record() -> Vec<u8> {
        let mut line = Vec::new();
        let record = Record {
            at: wall_clock(),
            event: Event::Stop,
        };
        let metrics = Metrics::new(&[], &[]).unwrap();
        record.write(&mut line, Link::FIRST, &metrics).unwrap();
        line
    }

    #[test]
    fn what_is_ours_ends_with_a_record_or_with_a_part_of_the_first() {
        let line = record();
        let followed = |more: &[u8]| [&line, &b"\n"[..], more].concat();
        for (content, expected) in [
            (Vec::new(), Some(0)),
            (followed(b""), Some(line.len() + 1)),
            // Torn, or not written back before the power was lost.
            (followed(b"{\"ts\":"), Some(line.len() + 1)),
            (followed(b"\0\0\0"), Some(line.len() + 1)),
            (line[..1].to_vec(), Some(0)),
            (line[..40].to_vec(), Some(0)),
            (line.clone(), Some(0)),
            // Other people's.
            (b"\n".to_vec(), None),
            (b"secret key material".to_vec(), None),
            (b"line one\nline two\nno line end".to_vec(), None),
            (followed(b"a line of another program\n"), None),
            (b"{\"ts\":\"yesterday\"".to_vec(), None),
            (vec![0; 3000], None),
        ] {
            let file = tempfile::NamedTempFile::new().unwrap();
            fs::write(file.path(), &content).unwrap();
            let found = ours(file.path(), file.as_file(), content.len() as u64);
            let end = found.ok().map(|last| last.end as usize);
            assert_eq!(end, expected, "{:?}", String::from_utf8_lossy(&content));
        }
    }

    #[test]
    fn a_check_says_what_a_start_would_and_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let named = |name: &str| folder.path().join(name);
        fs::write(named("foreign"), "somebody's").unwrap();
        std::os::unix::fs::symlink(named("loop"), named("loop")).unwrap();
        let mut good = record();
        good.push(b'\n');
        fs::write(named("good.jsonl"), &good).unwrap();
        let before = fs::read_dir(folder.path()).unwrap().count();
        for (path, words) in [
            (named("good.jsonl"), None),
            (named("new.jsonl"), None),
            (PathBuf::from("a-new-one.jsonl"), None),
            (
                folder.path().to_owned(),
                Some("is a folder, and not a regular file"),
            ),
            (
                PathBuf::from("/dev/null"),
                Some("is a device, and not a regular file"),
            ),
            (named("loop"), Some("Too many levels of symbolic links")),
            (named("missing/audit.jsonl"), Some("missing: No such file")),
            (named("foreign/audit.jsonl"), Some("Not a directory")),
            (named("a\0b"), Some("NUL")),
            (named("foreign"), Some("is another file")),
        ] {
            let said = check(&path).err().map(|error| error.to_string());
            match (&said, words) {
                (None, None) => {}
                (Some(said), Some(words)) => {
                    assert!(said.starts_with("audit.path: ") && said.contains(words), "{said}");
                }
                _ => panic!("{}: {said:?}, {words:?}", path.display()),
            }
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), before);
        assert_eq!(fs::read(named("foreign")).unwrap(), b"somebody's");
    }
}
