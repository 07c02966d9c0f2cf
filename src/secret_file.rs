//! Files that hold a secret: who may get at them, and no more read than a secret has.
//!
//! One rule for all of them: the owner, and a group that may read. That is what `install -m 640 -g seawall` makes, what
//! Kubernetes makes with an `fsGroup`, and what systemd hands over as a credential (mode 400, or 440 with an access list).
//! Who is in the group is the operator's to say.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::named_file::{self, ReadError};

/// Largest file in bytes: what is longer was not meant to be a secret.
const LARGEST: u64 = 4096;

/// Who can get at a file and should not, with the file's permission bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Exposure {
    /// Whoever is on the machine.
    #[error("can be read by others (mode {0:03o}); chmod 640 it, and make a new one where others had access")]
    ToOthers(u32),
    /// The group may put another in its place.
    #[error("can be written by its group (mode {0:03o}); chmod 640 it")]
    ToWriters(u32),
}

/// A file of which no secret can be read: the operator's to mend. Never carries its content.
#[derive(Debug, thiserror::Error)]
pub enum SecretFileError {
    /// It can't be read.
    #[error("can't read {}: {error}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        error: ReadError,
    },
    /// It is no secret any more.
    #[error("{} {exposure}", path.display())]
    Exposed {
        /// The file.
        path: PathBuf,
        /// To whom.
        exposure: Exposure,
    },
    /// It is longer than any secret.
    #[error("{} is longer than {LARGEST} bytes: no secret is", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
    },
}

/// The whole of a file of up to 4 KiB that nobody else can get at.
pub fn read(path: &Path) -> Result<Vec<u8>, SecretFileError> {
    let unreadable = |error| SecretFileError::Unreadable {
        path: path.to_path_buf(),
        error,
    };
    let file = named_file::open(path).map_err(unreadable)?;
    let metadata = file.metadata().map_err(|error| unreadable(error.into()))?;
    if let Some(exposure) = exposure(metadata.mode()) {
        return Err(SecretFileError::Exposed {
            path: path.to_path_buf(),
            exposure,
        });
    }
    named_file::content(file, LARGEST).map_err(|error| match error {
        ReadError::TooLong(_) => SecretFileError::TooLong {
            path: path.to_path_buf(),
        },
        error => unreadable(error),
    })
}

/// To whom a file with these permissions is open that should hold a secret. `None`: to its owner, and to a group that
/// reads.
pub const fn exposure(mode: u32) -> Option<Exposure> {
    const OTHERS: u32 = 0o007;
    const GROUP_WRITES: u32 = 0o020;
    let bits = mode & 0o777;
    if bits & OTHERS != 0 {
        Some(Exposure::ToOthers(bits))
    } else if bits & GROUP_WRITES != 0 {
        Some(Exposure::ToWriters(bits))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_owner_and_a_group_that_reads() {
        use Exposure::{ToOthers, ToWriters};
        for (mode, expected) in [
            (0o100_600, None),
            // A credential of systemd: as its owner has it, and behind an access list.
            (0o100_400, None),
            (0o100_440, None),
            // install -m 640 -g seawall.
            (0o100_640, None),
            (0o100_750, None),
            (0o100_644, Some(ToOthers(0o644))),
            (0o100_444, Some(ToOthers(0o444))),
            (0o100_602, Some(ToOthers(0o602))),
            (0o100_601, Some(ToOthers(0o601))),
            (0o100_660, Some(ToWriters(0o660))),
            (0o100_620, Some(ToWriters(0o620))),
        ] {
            assert_eq!(exposure(mode), expected, "{mode:o}");
        }
    }

    #[test]
    fn files_that_are_refused_say_why() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        let said = |path: &Path| read(path).unwrap_err().to_string();
        assert!(said(&path).contains("can't read"), "{}", said(&path));
        assert!(said(folder.path()).contains("it is a folder"));
        assert!(said(Path::new("/dev/urandom")).contains("it is a device"));

        fs::write(&path, "sesame").unwrap();
        for (mode, words) in [
            (0o644, "by others (mode 644)"),
            (0o660, "by its group (mode 660)"),
        ] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let said = said(&path);
            assert!(said.contains(words) && !said.contains("sesame"), "{said}");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert_eq!(read(&path).unwrap(), b"sesame");

        for (length, fits) in [(4096, true), (4097, false)] {
            fs::write(&path, vec![7; length]).unwrap();
            assert_eq!(read(&path).is_ok(), fits, "{length}");
        }
        assert!(said(&path).contains("longer than 4096 bytes"), "{}", said(&path));
    }
}
