//! Certificate chain and private key from PEM files.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::{self, PemObject};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use x509_parser::certificate::{Validity, X509Certificate};
use x509_parser::parse_x509_certificate;

use super::files::{LoadError, Warning, read, wrong};
use crate::secret_file::{self, Exposure};

/// Where a chain and its key are written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pair<'a> {
    /// The table of the configuration that names them: `tls`, `tls.hosts[3]` or `upstream.tls`.
    pub(super) table: &'a str,
    pub(super) shown_by: ShownBy,
    pub(super) certificate: &'a Path,
    pub(super) private_key: &'a Path,
}

/// Who shows a chain: for the words of a message.
#[derive(Clone, Copy, Debug)]
pub(super) enum ShownBy {
    /// The server, to clients.
    Server,
    /// Seawall as the client of brokers.
    Client,
}

impl ShownBy {
    const fn own(self) -> &'static str {
        match self {
            Self::Server => "the server's own",
            Self::Client => "Seawall's own",
        }
    }

    const fn to(self) -> &'static str {
        match self {
            Self::Server => "clients",
            Self::Client => "brokers",
        }
    }

    const fn chain(self) -> &'static str {
        match self {
            Self::Server => "PEM with one or more CERTIFICATE sections, the server's own and those above it",
            Self::Client => "PEM with one or more CERTIFICATE sections, Seawall's own and those above it",
        }
    }
}

/// A chain with the key that belongs to it.
#[derive(Debug)]
pub(super) struct Certified {
    pub(super) key: Arc<CertifiedKey>,
    /// When the certificate of its owner expires, in Unix seconds.
    pub(super) expires: i64,
}

/// Reads a chain and its key. Both files' faults are reported together. Sections may stand in any order, also all in
/// one file: which certificate is the server's own is told by the key, and what stands in the wrong order is sent in
/// the right one.
pub(super) fn load(
    pair: Pair<'_>,
    provider: &CryptoProvider,
    now: UnixTime,
    warnings: &mut Vec<Warning>,
) -> Result<Certified, Vec<LoadError>> {
    let (chain, key) = match (read_chain(pair), read_key(pair)) {
        (Ok(chain), Ok(key)) => (chain, key),
        (chain, key) => return Err(chain.err().into_iter().chain(key.err()).collect()),
    };
    let key_name = format!("{}.private_key", pair.table);
    let key = provider.key_provider.load_private_key(key).map_err(|error| {
        let found = format!("has a private key that can't be used ({error})");
        vec![wrong(
            &key_name,
            pair.private_key,
            found,
            "a key for RSA, ECDSA (P-256, P-384, P-521) or Ed25519",
        )]
    })?;
    let certificate_name = format!("{}.certificate", pair.table);
    let parsed: Vec<X509Certificate<'_>> = parse_all(&chain).map_err(|number| {
        let found = format!("has a certificate that can't be read, the {number}. in it");
        vec![wrong(
            &certificate_name,
            pair.certificate,
            found,
            pair.shown_by.chain(),
        )]
    })?;
    let public_key = key.public_key();
    let own = |certificate: &X509Certificate<'_>| {
        public_key
            .as_ref()
            .is_none_or(|key| key.as_ref() == certificate.public_key().raw)
    };
    let Some(leaf) = parsed.iter().position(own) else {
        return Err(vec![LoadError::Mismatch {
            key: key_name,
            certificate: pair.certificate.to_path_buf(),
            certificates: chain.len(),
            private_key: pair.private_key.to_path_buf(),
        }]);
    };
    warnings.extend(exposed(pair.private_key).map(|exposure| Warning {
        key: key_name,
        text: format!("{} {exposure}", pair.private_key.display()),
    }));
    let order = order(&parsed, leaf);
    let mut warn = |text: String| {
        warnings.push(Warning {
            key: certificate_name.clone(),
            text,
        });
    };
    if !order.is_sorted() {
        warn(format!(
            "the certificates in {} are not in the order of the chain, {} first: they are sent in it",
            pair.certificate.display(),
            pair.shown_by.own(),
        ));
    }
    for (index, certificate) in order
        .iter()
        .filter_map(|index| Some((index, parsed.get(*index)?)))
    {
        if let Some(fault) = outside(certificate.validity(), now) {
            let whose = if *index == leaf {
                "the certificate".to_owned()
            } else {
                format!("a certificate above {}", pair.shown_by.own())
            };
            warn(format!(
                "{whose} in {} {fault}: {} refuse it",
                pair.certificate.display(),
                pair.shown_by.to(),
            ));
        }
    }
    let expires = parsed
        .get(leaf)
        .map_or(0, |leaf| leaf.validity().not_after.timestamp());
    let ordered = order
        .iter()
        .filter_map(|index| chain.get(*index).cloned())
        .collect();
    Ok(Certified {
        key: Arc::new(CertifiedKey::new(ordered, key)),
        expires,
    })
}

/// A warning and no mistake: it has served for years in many a place, and to refuse it would end the service.
fn exposed(private_key: &Path) -> Option<Exposure> {
    let metadata = fs::metadata(private_key).ok()?;
    secret_file::exposure(metadata.mode())
}

fn read_chain(pair: Pair<'_>) -> Result<Vec<CertificateDer<'static>>, LoadError> {
    let name = format!("{}.certificate", pair.table);
    certificates(&name, pair.certificate, pair.shown_by.chain())
}

/// Every certificate of a PEM file, at least one.
pub(super) fn certificates(
    key: &str,
    path: &Path,
    expected: &'static str,
) -> Result<Vec<CertificateDer<'static>>, LoadError> {
    let pem = read(key, path)?;
    let chain: Vec<_> = CertificateDer::pem_slice_iter(&pem)
        .collect::<Result<_, _>>()
        .map_err(|error| wrong(key, path, format!("is no valid PEM ({error})"), expected))?;
    if chain.is_empty() {
        return Err(wrong(key, path, "has no certificate in it".to_owned(), expected));
    }
    Ok(chain)
}

fn read_key(pair: Pair<'_>) -> Result<PrivateKeyDer<'static>, LoadError> {
    const ENCRYPTED: &[u8] = b"ENCRYPTED";
    let name = format!("{}.private_key", pair.table);
    let text = read(&name, pair.private_key)?;
    PrivateKeyDer::from_pem_slice(&text).map_err(|error| {
        let encrypted = text.windows(ENCRYPTED.len()).any(|window| window == ENCRYPTED);
        let found = match error {
            _ if encrypted => {
                "has an encrypted private key (openssl pkey -in KEY -out PLAIN takes its password off)"
                    .to_owned()
            }
            pem::Error::NoItemsFound => "has no private key in it".to_owned(),
            error => format!("has no private key that can be read ({error})"),
        };
        let expected = "an unencrypted PEM key: PKCS#8, PKCS#1 (RSA) or SEC1 (EC)";
        wrong(&name, pair.private_key, found, expected)
    })
}

/// All of them parsed, or the number of the first that can't be, from 1.
fn parse_all<'a>(chain: &'a [CertificateDer<'_>]) -> Result<Vec<X509Certificate<'a>>, usize> {
    let parse = |(index, der): (usize, &'a CertificateDer<'_>)| match parse_x509_certificate(der) {
        Ok((_, certificate)) => Ok(certificate),
        Err(_) => Err(index + 1),
    };
    chain.iter().enumerate().map(parse).collect()
}

/// The indices in the order in which they are sent: the server's own, the one that issued it, and so on (RFC 5246
/// section 7.4.2). What is not of that line, such as another signature of the same issuer, follows as it came.
fn order(chain: &[X509Certificate<'_>], leaf: usize) -> Vec<usize> {
    let mut ordered = vec![leaf];
    let mut rest: Vec<usize> = (0..chain.len()).filter(|index| *index != leaf).collect();
    while let Some(last) = ordered.last().and_then(|last| chain.get(*last)) {
        let issued = |index: &usize| {
            chain
                .get(*index)
                .is_some_and(|above| above.subject().as_raw() == last.issuer().as_raw())
        };
        let Some(next) = rest.iter().position(issued) else {
            break;
        };
        ordered.push(rest.remove(next));
    }
    ordered.extend(rest);
    ordered
}

/// What is wrong with the time of a certificate.
pub(super) fn outside(validity: &Validity, now: UnixTime) -> Option<String> {
    let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    if validity.not_after.timestamp() < now {
        Some(format!("expired on {}", validity.not_after))
    } else if validity.not_before.timestamp() > now {
        Some(format!("is not valid before {}", validity.not_before))
    } else {
        None
    }
}
