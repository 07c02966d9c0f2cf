//! Certificate chain and private key from PEM files.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustls::crypto::CryptoProvider;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use super::ticket::NoTickets;

/// A TLS file that can't be used. Never carries key material.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file can't be read.
    #[error("{key}: can't read {}: {error}", path.display())]
    Unreadable {
        /// Configuration key that names the file.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        error: io::Error,
    },
    /// The file has not what is looked for.
    #[error("{key}: {} {found}; expected {expected}", path.display())]
    WrongContent {
        /// Configuration key that names the file.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// What it has instead.
        found: String,
        /// What it should have.
        expected: &'static str,
    },
    /// Certificate and key are no pair.
    #[error(
        "tls.private_key: {} does not belong to the certificate in {} ({error}); use the key from which that certificate was requested",
        private_key.display(), certificate.display()
    )]
    Mismatch {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's file.
        private_key: PathBuf,
        /// What the library said.
        error: rustls::Error,
    },
    /// The TLS library refuses the combination.
    #[error("tls: {error}")]
    Unusable {
        /// What the library said.
        error: rustls::Error,
    },
    /// There is no secret for tickets.
    #[error("tls.resumption.secret_file: {0}")]
    Tickets(#[from] NoTickets),
}

/// Reads a chain and its key. Both files' faults are reported together.
pub(super) fn load(
    certificate: &Path,
    private_key: &Path,
    provider: &CryptoProvider,
) -> Result<SingleCertAndKey, Vec<LoadError>> {
    let (chain, key) = match (read_chain(certificate), read_key(private_key)) {
        (Ok(chain), Ok(key)) => (chain, key),
        (chain, key) => return Err(chain.err().into_iter().chain(key.err()).collect()),
    };
    let certified = CertifiedKey::from_der(chain, key, provider).map_err(|error| {
        vec![LoadError::Mismatch {
            certificate: certificate.to_path_buf(),
            private_key: private_key.to_path_buf(),
            error,
        }]
    })?;
    Ok(SingleCertAndKey::from(certified))
}

fn read_chain(path: &Path) -> Result<Vec<CertificateDer<'static>>, LoadError> {
    const KEY: &str = "tls.certificate";
    const EXPECTED: &str = "PEM with one or more CERTIFICATE sections, the server's own first";
    let pem = read(KEY, path)?;
    let chain: Vec<_> = CertificateDer::pem_slice_iter(&pem)
        .collect::<Result<_, _>>()
        .map_err(|error| wrong(KEY, path, format!("is no valid PEM ({error})"), EXPECTED))?;
    if chain.is_empty() {
        return Err(wrong(KEY, path, "has no certificate in it".to_owned(), EXPECTED));
    }
    Ok(chain)
}

fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, LoadError> {
    const KEY: &str = "tls.private_key";
    let pem = read(KEY, path)?;
    PrivateKeyDer::from_pem_slice(&pem).map_err(|error| {
        wrong(
            KEY,
            path,
            format!("has no private key that can be read ({error})"),
            "an unencrypted PEM key: PKCS#8, PKCS#1 (RSA) or SEC1 (EC)",
        )
    })
}

fn read(key: &'static str, path: &Path) -> Result<Vec<u8>, LoadError> {
    fs::read(path).map_err(|error| LoadError::Unreadable {
        key,
        path: path.to_path_buf(),
        error,
    })
}

fn wrong(key: &'static str, path: &Path, found: String, expected: &'static str) -> LoadError {
    LoadError::WrongContent {
        key,
        path: path.to_path_buf(),
        found,
        expected,
    }
}
