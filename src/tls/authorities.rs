//! Authorities from a PEM file.

use std::path::Path;

use rustls::RootCertStore;
use rustls_pki_types::{CertificateDer, UnixTime};
use x509_parser::parse_x509_certificate;

use super::certificate::{certificates, outside};
use super::files::{LoadError, Warning, wrong};

/// The authorities of a bundle.
pub(super) struct Roots {
    pub(super) store: RootCertStore,
    pub(super) certificates: Vec<CertificateDer<'static>>,
}

/// Reads a bundle, which `key` of the configuration names.
pub(super) fn read(
    key: &str,
    path: &Path,
    now: UnixTime,
    warnings: &mut Vec<Warning>,
) -> Result<Roots, LoadError> {
    const EXPECTED: &str = "PEM with the CERTIFICATE sections of the authorities";
    let certificates = certificates(key, path, EXPECTED)?;
    let mut store = RootCertStore::empty();
    for (index, certificate) in certificates.iter().enumerate() {
        let bad = |why: String| {
            let found = format!(
                "has a certificate that can't be used, the {}. in it ({why})",
                index + 1
            );
            wrong(key, path, found, EXPECTED)
        };
        store
            .add(certificate.clone())
            .map_err(|error| bad(error.to_string()))?;
        let (_, parsed) = parse_x509_certificate(certificate).map_err(|error| bad(error.to_string()))?;
        if let Some(fault) = outside(parsed.validity(), now) {
            let (subject, path) = (parsed.subject(), path.display());
            let text = format!(
                "\"{subject}\" in {path} {fault}; what it has signed is accepted until you take it out"
            );
            warnings.push(Warning {
                key: key.to_owned(),
                text,
            });
        }
    }
    Ok(Roots { store, certificates })
}
