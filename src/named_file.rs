//! Files that an operator names: how each of them is read.
//!
//! Regular files alone, and no more of them than they should have. A pipe would wait for its other end, which holds up every
//! reload behind it; a device never ends; and what is read again on a reload has to be there a second time.

use std::fs::{File, FileType, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

/// Why a file can't be read: the operator's to mend.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The operating system's word.
    #[error(transparent)]
    System(#[from] io::Error),
    /// It is something else, told by name.
    #[error("it is {0}, and not a regular file")]
    Kind(&'static str),
    /// It is longer than so many bytes.
    #[error("it has more than {}", size(*.0))]
    TooLong(u64),
}

/// The whole of a file of up to `largest` bytes.
pub fn read(path: &Path, largest: u64) -> Result<Vec<u8>, ReadError> {
    content(open(path)?, largest)
}

/// Opens a regular file. Does not wait, whatever the path leads to.
pub fn open(path: &Path) -> Result<File, ReadError> {
    // Neither does a pipe wait for its writer, nor does a terminal become ours.
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(path)?;
    // Of what was opened and not of its path, which may lead elsewhere by now.
    match kind(file.metadata()?.file_type()) {
        None => Ok(file),
        Some(kind) => Err(ReadError::Kind(kind)),
    }
}

/// All of `file`, which has up to `largest` bytes.
pub fn content(file: File, largest: u64) -> Result<Vec<u8>, ReadError> {
    let mut content = Vec::new();
    file.take(largest.saturating_add(1)).read_to_end(&mut content)?;
    if content.len() as u64 > largest {
        return Err(ReadError::TooLong(largest));
    }
    Ok(content)
}

/// What it is instead of a regular file; `None`: it is one.
pub fn kind(of: FileType) -> Option<&'static str> {
    if of.is_file() {
        None
    } else if of.is_dir() {
        Some("a folder")
    } else if of.is_fifo() {
        Some("a pipe")
    } else if of.is_socket() {
        Some("a socket")
    } else {
        Some("a device")
    }
}

fn size(bytes: u64) -> String {
    const MIB: u64 = 1 << 20;
    if bytes.is_multiple_of(MIB) {
        format!("{} MiB", bytes / MIB)
    } else {
        format!("{bytes} bytes")
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use rustix::fs::{CWD, FileType as Kind, Mode, mknodat};

    use super::*;

    #[test]
    fn what_is_no_regular_file_is_told_by_its_name_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        mknodat(CWD, &pipe, Kind::Fifo, Mode::RUSR, 0).unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&pipe, &link).unwrap();
        let socket = folder.path().join("socket");
        let _listener = UnixListener::bind(&socket).unwrap();
        for (path, words) in [
            (pipe.as_path(), "it is a pipe, and not a regular file"),
            (&link, "it is a pipe"),
            (folder.path(), "it is a folder"),
            (Path::new("/dev/zero"), "it is a device"),
            // That of the system: a socket can't be opened at all.
            (&socket, "No such device"),
            (&folder.path().join("missing"), "No such file"),
        ] {
            let said = read(path, 10).unwrap_err().to_string();
            assert!(said.contains(words), "{}: {said}", path.display());
        }
    }

    #[test]
    fn no_more_is_read_than_there_should_be() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "sesame").unwrap();
        assert_eq!(read(file.path(), 6).unwrap(), b"sesame");
        let said = read(file.path(), 5).unwrap_err().to_string();
        assert_eq!(said, "it has more than 5 bytes");
        // One that tells no length.
        let said = read(Path::new("/proc/self/status"), 5).unwrap_err().to_string();
        assert_eq!(said, "it has more than 5 bytes");
        file.as_file().set_len((1 << 20) + 1).unwrap();
        let said = read(file.path(), 1 << 20).unwrap_err().to_string();
        assert_eq!(said, "it has more than 1 MiB");
    }
}
