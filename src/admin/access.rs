//! Who may look: a bearer token, TLS, or whoever reaches the address.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{Digest, SHA256, digest};

use crate::secret_file::{self, SecretFileError};
use crate::tls::{self, Acceptor, ClientAuth, LoadError, MinVersion};

/// Shortest token in characters: 16 of base64 are 96 bits.
const SHORTEST: usize = 16;

/// Largest TLS record of the admin side, the default of the protocol.
const MAX_RECORD: usize = 16 * 1024;

/// `[admin]`, what guards the pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Guard {
    /// A file with a token a line: one of them is to come with every request.
    pub token_file: Option<PathBuf>,
    /// PEM chain and private key.
    pub tls: Option<(PathBuf, PathBuf)>,
}

/// A [`Guard`], loaded.
#[derive(Debug, Default)]
pub struct Access {
    tokens: Option<Tokens>,
    tls: Option<Acceptor>,
}

/// Digests of the tokens: of one length, so that a comparison tells nothing of a token's.
struct Tokens(Vec<Digest>);

/// A file can't be used: the operator's to mend (exit 78).
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// The token file can't be read, or others can.
    #[error("admin.token_file: {0}")]
    File(#[from] SecretFileError),
    /// There is no token in it that is worth the name.
    #[error(
        "admin.token_file: {} {found}, allowed: one token a line, each of {SHORTEST} printable characters or more \
         without blanks",
        path.display()
    )]
    NoToken {
        /// Which.
        path: PathBuf,
        /// What is wrong; never the token.
        found: &'static str,
    },
    /// `admin.tls`.
    #[error("admin.{0}")]
    Tls(LoadError),
}

impl AccessError {
    /// The configuration key that is concerned.
    pub fn key(&self) -> String {
        match self {
            Self::File(_) | Self::NoToken { .. } => "admin.token_file".to_owned(),
            Self::Tls(error) => format!("admin.{}", error.key()),
        }
    }
}

impl Guard {
    /// The files, for a look whether they have changed.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        let pair = self.tls.iter().flat_map(|(chain, key)| [chain, key]);
        self.token_file.iter().chain(pair).map(PathBuf::as_path)
    }

    /// Whether whoever reaches `address` may look, and not only this machine does.
    pub fn is_open_at(&self, address: IpAddr) -> bool {
        !address.to_canonical().is_loopback() && self.token_file.is_none() && self.tls.is_none()
    }
}

impl Access {
    /// Loads what guards the pages. Every file that can't be used is in the error.
    pub fn load(guard: &Guard) -> Result<Self, Vec<AccessError>> {
        let tokens = guard.token_file.as_deref().map(Tokens::read).transpose();
        let tls = guard
            .tls
            .as_ref()
            .map(|(chain, key)| acceptor(chain, key))
            .transpose();
        match (tokens, tls) {
            (Ok(tokens), Ok(tls)) => Ok(Self { tokens, tls }),
            (tokens, tls) => {
                let tls = tls.err().unwrap_or_default().into_iter().map(AccessError::Tls);
                Err(tokens.err().into_iter().chain(tls).collect())
            }
        }
    }

    /// Ends TLS, where that is asked for.
    pub const fn tls(&self) -> Option<&Acceptor> {
        self.tls.as_ref()
    }

    /// What an operator should know of the files of `admin.tls`, each with its key.
    pub fn warnings(&self) -> impl Iterator<Item = String> {
        let warnings = self.tls.iter().flat_map(Acceptor::warnings);
        warnings.map(|warning| format!("admin.{warning}"))
    }

    /// Whether a request with this `Authorization` header may see what the token guards.
    pub fn admits(&self, authorization: Option<&[u8]>) -> bool {
        let Some(tokens) = &self.tokens else {
            return true;
        };
        // RFC 6750 section 2.1; the scheme has no case (RFC 9110 section 11.1).
        let token = authorization.and_then(|value| {
            let (scheme, token) = value.split_at_checked(b"Bearer ".len())?;
            scheme.eq_ignore_ascii_case(b"Bearer ").then_some(token)
        });
        token.is_some_and(|token| tokens.include(token.trim_ascii()))
    }
}

fn acceptor(chain: &Path, key: &Path) -> Result<Acceptor, Vec<LoadError>> {
    Acceptor::load(&tls::Settings {
        certificate: chain.to_path_buf(),
        private_key: key.to_path_buf(),
        min_version: MinVersion::V1_2,
        alpn: Vec::new(),
        // A scrape every few seconds gains nothing.
        resumption: None,
        client_auth: ClientAuth::None,
        max_record: MAX_RECORD,
        hosts: Vec::new(),
    })
}

impl Tokens {
    fn read(path: &Path) -> Result<Self, AccessError> {
        let text = secret_file::read(path)?;
        let wrong = |found| AccessError::NoToken {
            path: path.to_path_buf(),
            found,
        };
        let lines = text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
        let tokens: Vec<&[u8]> = lines.filter(|line| !line.is_empty()).collect();
        if tokens.is_empty() {
            return Err(wrong("is empty"));
        }
        if tokens.iter().any(|token| token.len() < SHORTEST) {
            return Err(wrong("has a token that is too short"));
        }
        if !tokens.iter().all(|token| token.iter().all(u8::is_ascii_graphic)) {
            return Err(wrong("has a token that no header can carry"));
        }
        Ok(Self(
            tokens.into_iter().map(|token| digest(&SHA256, token)).collect(),
        ))
    }

    /// In constant time for each token.
    fn include(&self, token: &[u8]) -> bool {
        let given = digest(&SHA256, token);
        let same = |known: &Digest| verify_slices_are_equal(known.as_ref(), given.as_ref()).is_ok();
        // All of them, whichever it is.
        self.0.iter().filter(|known| same(known)).count() > 0
    }
}

/// Nothing of them.
impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Tokens").field(&self.0.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn load(text: &str, mode: u32) -> Result<Access, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        std::fs::write(&file, text).unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
        let guard = Guard {
            token_file: Some(file),
            tls: None,
        };
        Access::load(&guard).map_err(|errors| errors[0].to_string())
    }

    #[test]
    fn one_of_the_tokens_is_asked_for() {
        let access = load("0123456789abcdef\n\n fedcba9876543210 \n", 0o640).unwrap();
        for (header, admitted) in [
            (Some("Bearer 0123456789abcdef"), true),
            (Some("bearer fedcba9876543210"), true),
            (Some("Bearer  0123456789abcdef "), true),
            (Some("Bearer 0123456789abcdeF"), false),
            (Some("Bearer 0123456789abcde"), false),
            (Some("Bearer 0123456789abcdef0"), false),
            (Some("Bearer "), false),
            (Some("Basic 0123456789abcdef"), false),
            (Some("0123456789abcdef"), false),
            (Some(""), false),
            (None, false),
        ] {
            assert_eq!(access.admits(header.map(str::as_bytes)), admitted, "{header:?}");
        }
        assert!(Access::default().admits(None), "nothing guards it");
        assert_eq!(format!("{access:?}").matches("0123").count(), 0);
    }

    #[test]
    fn files_that_guard_nothing_are_refused() {
        for (text, mode, words) in [
            ("0123456789abcdef", 0o644, "can be read by others (mode 644)"),
            ("", 0o600, "is empty"),
            ("\n \n", 0o600, "is empty"),
            ("0123456789abcde", 0o600, "too short"),
            ("0123456789abcdef\nshort", 0o600, "too short"),
            ("0123456789 abcdef", 0o600, "no header can carry"),
            ("0123456789abcd\u{e4}\u{e4}", 0o600, "no header can carry"),
        ] {
            let error = load(text, mode).unwrap_err();
            assert!(error.contains(words), "{text:?}: {error}");
            assert!(!error.contains("0123"), "{error}");
        }
        let missing = Guard {
            token_file: Some("/nowhere/token".into()),
            tls: Some(("/nowhere/pem".into(), "/nowhere/key".into())),
        };
        let errors = Access::load(&missing).unwrap_err();
        let keys: Vec<String> = errors.iter().map(AccessError::key).collect();
        assert_eq!(
            keys,
            [
                "admin.token_file",
                "admin.tls.certificate",
                "admin.tls.private_key"
            ]
        );
        assert!(
            errors[1].to_string().starts_with("admin.tls.certificate: "),
            "{}",
            errors[1]
        );
    }

    #[test]
    fn what_is_open_to_others_is_known() {
        let open = Guard::default();
        let guarded = Guard {
            token_file: Some("token".into()),
            tls: None,
        };
        for (address, is_open) in [
            ("127.0.0.1", false),
            ("127.9.9.9", false),
            ("::1", false),
            ("::ffff:127.0.0.1", false),
            ("0.0.0.0", true),
            ("::", true),
            ("192.0.2.1", true),
        ] {
            assert_eq!(open.is_open_at(address.parse().unwrap()), is_open, "{address}");
            assert!(!guarded.is_open_at(address.parse().unwrap()), "{address}");
        }
    }
}
