//! The files that TLS is made from: what can be wrong with them, and whether they have changed.

use std::path::{Path, PathBuf};

use aws_lc_rs::digest::{self, Digest};

use super::ticket::NoTickets;
use crate::named_file::{self, ReadError};

/// Largest file in bytes. Lists of revoked certificates of large authorities have tens of megabytes; what is larger is
/// a wrong path.
const LARGEST: u64 = 64 << 20;

/// A TLS file that can't be used. Never carries key material.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file can't be read.
    #[error("{key}: can't read {}: {error}", path.display())]
    Unreadable {
        /// Configuration key that names the file.
        key: String,
        /// The file.
        path: PathBuf,
        /// Why.
        error: ReadError,
    },
    /// The file has not what is looked for.
    #[error("{key}: {} {found}; expected {expected}", path.display())]
    WrongContent {
        /// Configuration key that names the file.
        key: String,
        /// The file.
        path: PathBuf,
        /// What it has instead.
        found: String,
        /// What it should have.
        expected: &'static str,
    },
    /// Certificate and key are no pair.
    #[error(
        "{key}: {} does not belong to {} {}; use the key from which that certificate was requested",
        private_key.display(),
        if *.certificates == 1 { "the certificate in" } else { "any of the certificates in" },
        certificate.display()
    )]
    Mismatch {
        /// Configuration key that names the private key.
        key: String,
        /// The certificate's file.
        certificate: PathBuf,
        /// How many certificates are in it.
        certificates: usize,
        /// The key's file.
        private_key: PathBuf,
    },
    /// The TLS library refuses the combination.
    #[error("{key}: {error}")]
    Unusable {
        /// Configuration key that is concerned.
        key: &'static str,
        /// What the library said.
        error: rustls::Error,
    },
    /// There is no secret for tickets.
    #[error("tls.resumption.secret_file: {0}")]
    Tickets(#[from] NoTickets),
}

impl LoadError {
    /// The configuration key that is concerned.
    pub fn key(&self) -> &str {
        match self {
            Self::Unreadable { key, .. } | Self::WrongContent { key, .. } | Self::Mismatch { key, .. } => key,
            Self::Unusable { key, .. } => key,
            Self::Tickets(_) => "tls.resumption.secret_file",
        }
    }
}

/// Something about the files that an operator should know and that is no reason not to serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// The configuration key that names the file.
    pub key: String,
    /// What is the matter.
    pub text: String,
}

impl std::fmt::Display for Warning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.key, self.text)
    }
}

/// The whole of a file.
pub(super) fn read(key: &str, path: &Path) -> Result<Vec<u8>, LoadError> {
    named_file::read(path, LARGEST).map_err(|error| LoadError::Unreadable {
        key: key.to_owned(),
        path: path.to_path_buf(),
        error,
    })
}

pub(super) fn wrong(key: &str, path: &Path, found: String, expected: &'static str) -> LoadError {
    LoadError::WrongContent {
        key: key.to_owned(),
        path: path.to_path_buf(),
        found,
        expected,
    }
}

/// What the files held at some moment, to be compared with what they hold at another. By content: the time of a file
/// says nothing where a volume swaps a symbolic link.
#[derive(Clone, Debug)]
pub struct Fingerprint(Digest);

impl PartialEq for Fingerprint {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_ref() == other.0.as_ref()
    }
}

impl Fingerprint {
    /// What these hold now.
    pub fn of<'a>(paths: impl Iterator<Item = &'a Path>) -> Self {
        let mut all = digest::Context::new(&digest::SHA256);
        for path in paths {
            match read("", path) {
                Ok(bytes) => {
                    all.update(&[1]);
                    all.update(digest::digest(&digest::SHA256, &bytes).as_ref());
                }
                Err(_) => all.update(&[0]),
            }
        }
        Self(all.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_is_that_of_the_contents_in_their_order() {
        let folder = tempfile::tempdir().unwrap();
        let (one, other) = (folder.path().join("one"), folder.path().join("other"));
        let both = || Fingerprint::of([one.as_path(), other.as_path()].into_iter());
        let missing = both();
        std::fs::write(&one, "ab").unwrap();
        let half = both();
        std::fs::write(&other, "c").unwrap();
        let whole = both();
        std::fs::write(&one, "a").unwrap();
        std::fs::write(&other, "bc").unwrap();
        let shifted = both();
        let all = [missing, half, whole.clone(), shifted];
        for (index, first) in all.iter().enumerate() {
            for second in &all[index + 1..] {
                assert!(first != second);
            }
        }
        std::fs::write(&one, "ab").unwrap();
        std::fs::write(&other, "c").unwrap();
        assert!(both() == whole);
    }

    #[test]
    fn a_file_without_end_is_no_reason_to_run_out_of_memory() {
        let error = read("tls.certificate", Path::new("/dev/zero")).unwrap_err();
        assert!(error.to_string().contains("it is a device"), "{error}");
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(LARGEST + 1).unwrap();
        let error = read("tls.certificate", file.path()).unwrap_err();
        assert!(error.to_string().contains("it has more than 64 MiB"), "{error}");
    }
}
