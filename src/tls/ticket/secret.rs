//! The secret that all ticket keys come from, and its file.

use std::fmt;
use std::path::{Path, PathBuf};

use aws_lc_rs::hkdf::{HKDF_SHA256, Prk, Salt};
use aws_lc_rs::rand;

use super::key::{self, Id};
use crate::secret_file::{self, SecretFileError};

/// Fewest random bytes: as many as the keys have that are derived from them.
const LEAST: usize = 32;

/// Fewest different bytes. 64 random hexadecimal digits have fewer than this once in 10^18 files; a file of zeros has one.
const LEAST_VARIETY: usize = 8;

/// A ticket secret. Only what is derived from it is kept.
pub struct Secret {
    pub(super) id: Id,
    pub(super) key: Prk,
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secret").finish_non_exhaustive()
    }
}

/// A secret file that can't be used: the operator's to mend. Never carries its content.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// It can't be read, or others can.
    #[error(transparent)]
    File(#[from] SecretFileError),
    /// It holds fewer than 32 bytes.
    #[error("{} holds {found} bytes, and 32 random ones are the least; seawall secret prints them", path.display())]
    TooShort {
        /// The file.
        path: PathBuf,
        /// How many bytes it stands for.
        found: usize,
    },
    /// It is a passphrase, or one character many times.
    #[error("{} does not look random: expected are raw bytes, hexadecimal or base64; seawall secret prints one", path.display())]
    NotRandom {
        /// The file.
        path: PathBuf,
    },
}

/// Why a content is no secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unfit {
    TooShort(usize),
    NotRandom,
}

impl Secret {
    /// The secret in a file: 32 random bytes or more, raw, in hexadecimal or in base64. Blanks and line ends around text don't
    /// count, so that an editor changes nothing.
    pub fn read(path: &Path) -> Result<Self, SecretError> {
        let content = secret_file::read(path)?;
        match material(content) {
            Ok(material) => Ok(Self::new(&material)),
            Err(Unfit::TooShort(found)) => Err(SecretError::TooShort {
                path: path.to_path_buf(),
                found,
            }),
            Err(Unfit::NotRandom) => Err(SecretError::NotRandom {
                path: path.to_path_buf(),
            }),
        }
    }

    /// A secret of this process's own.
    pub fn random() -> Result<Self, NoRandomness> {
        Ok(Self::new(&random()?))
    }

    pub(super) fn new(material: &[u8]) -> Self {
        let key = Salt::new(HKDF_SHA256, key::SALT).extract(material);
        Self {
            id: key::id(&key),
            key,
        }
    }
}

/// The operating system gives no random numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the operating system gives no random numbers")]
pub struct NoRandomness;

/// A new secret as one line of text for a secret file: 64 hexadecimal digits.
pub fn generate() -> Result<String, NoRandomness> {
    use fmt::Write;

    let mut text = String::with_capacity(2 * LEAST);
    for byte in random()? {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    Ok(text)
}

fn random() -> Result<[u8; LEAST], NoRandomness> {
    let mut bytes = [0; LEAST];
    rand::fill(&mut bytes).map_err(|_| NoRandomness)?;
    Ok(bytes)
}

/// What of a file's content the keys are derived from.
fn material(mut content: Vec<u8>) -> Result<Vec<u8>, Unfit> {
    let is_text = content
        .iter()
        .all(|byte| byte.is_ascii_graphic() || byte.is_ascii_whitespace());
    let length = if is_text {
        content = content.trim_ascii().to_vec();
        // Base64 is often wrapped. Blanks within are a passphrase's.
        content.retain(|byte| !b"\r\n".contains(byte));
        encoded_length(&content).ok_or(Unfit::NotRandom)?
    } else {
        content.len()
    };
    if length < LEAST {
        return Err(Unfit::TooShort(length));
    }
    let mut different = content.clone();
    different.sort_unstable();
    different.dedup();
    if different.len() < LEAST_VARIETY {
        return Err(Unfit::NotRandom);
    }
    Ok(content)
}

/// How many bytes a text stands for, in hexadecimal or base64 (both alphabets); `None`: it is neither.
fn encoded_length(text: &[u8]) -> Option<usize> {
    const PADDING: u8 = b'=';
    if text.iter().all(u8::is_ascii_hexdigit) {
        return Some(text.len() / 2);
    }
    let unpadded = text.iter().rposition(|byte| *byte != PADDING)? + 1;
    let digits = text.get(..unpadded)?;
    let is_base64 = digits
        .iter()
        .all(|byte| byte.is_ascii_alphanumeric() || b"+/-_".contains(byte));
    is_base64.then_some(digits.len() * 3 / 4)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn raw() -> Vec<u8> {
        (0..32).map(|number: u8| number.wrapping_mul(37) ^ 0xA5).collect()
    }

    #[test]
    fn what_is_a_secret_and_what_is_not() {
        let hexadecimal = generate().unwrap();
        let base64 = "q2Zy0m5m9K3o1T8xv7L4cQ+Rz/Wn6HjUe5bYpXdGaIs=";
        let padded = format!("  {hexadecimal}\r\n");
        let wrapped = format!("{}\n{}\n", &base64[..20], &base64[20..]);
        let table: [(&[u8], Result<usize, Unfit>); 16] = [
            (&raw(), Ok(32)),
            (&raw()[..31], Err(Unfit::TooShort(31))),
            (&[&raw()[..], b"\n"].concat(), Ok(33)),
            (hexadecimal.as_bytes(), Ok(64)),
            (padded.as_bytes(), Ok(64)),
            (&hexadecimal.as_bytes()[..62], Err(Unfit::TooShort(31))),
            (base64.as_bytes(), Ok(44)),
            (wrapped.as_bytes(), Ok(44)),
            (base64.trim_end_matches('=').as_bytes(), Ok(43)),
            (&base64.as_bytes()[..40], Err(Unfit::TooShort(30))),
            (
                b"correct horse battery staple, and then some more words",
                Err(Unfit::NotRandom),
            ),
            (
                b"correct horse battery staple and some more words\n",
                Err(Unfit::NotRandom),
            ),
            (&[0; 64], Err(Unfit::NotRandom)),
            (&[b'0'; 64], Err(Unfit::NotRandom)),
            (b"", Err(Unfit::TooShort(0))),
            (b"\n", Err(Unfit::TooShort(0))),
        ];
        for (content, expected) in table {
            let found = material(content.to_vec()).map(|material| material.len());
            assert_eq!(found, expected, "{:?}", String::from_utf8_lossy(content));
        }
    }

    #[test]
    fn files_that_are_refused_say_why() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        let said = |path: &Path| Secret::read(path).unwrap_err().to_string();
        assert!(said(&path).contains("can't read"), "{}", said(&path));

        fs::write(&path, generate().unwrap()).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(said(&path).contains("mode 644"), "{}", said(&path));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(Secret::read(&path).is_ok());

        fs::write(&path, "0123456789abcdef").unwrap();
        assert!(said(&path).contains("holds 8 bytes"), "{}", said(&path));
        fs::write(&path, [0; 64]).unwrap();
        assert!(said(&path).contains("does not look random"), "{}", said(&path));
    }

    #[test]
    fn the_same_text_is_the_same_secret_and_no_two_are_generated() {
        let (one, other) = (generate().unwrap(), generate().unwrap());
        assert_ne!(one, other);
        let id = |text: &str| Secret::new(&material(text.as_bytes().to_vec()).unwrap()).id;
        assert_eq!(id(&one), id(&format!("{one}\n")));
        assert_ne!(id(&one), id(&other));
    }

    #[test]
    fn debug_shows_nothing() {
        assert_eq!(format!("{:?}", Secret::new(&raw())), "Secret { .. }");
    }
}
