//! Which client certificates are accepted: by authority, by time, by revocation list.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use aws_lc_rs::digest;
use rustls::crypto::CryptoProvider;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, CertificateRevocationListDer, UnixTime};
use x509_parser::{parse_x509_certificate, parse_x509_crl};

use super::authorities::{self, Roots};
use super::files::{LoadError, Warning, read, wrong};
use super::now;

/// `tls.client_auth`, with what belongs to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ClientAuth {
    /// No client is asked for a certificate.
    #[default]
    None,
    /// A client may show one, and then it must be good.
    Optional(Authorities),
    /// A client must show one.
    Required(Authorities),
}

/// Who may sign client certificates, and who says which of them are revoked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authorities {
    /// `tls.client_ca`: a PEM file.
    pub ca: PathBuf,
    /// `tls.client_crl`: PEM or DER files.
    pub crl: Vec<PathBuf>,
    /// `tls.client_crl_expired`.
    pub crl_expired: CrlExpired,
}

/// What a revocation list past its time does to the certificates of its issuer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrlExpired {
    /// All of them are refused: the list no longer says which are revoked.
    Reject,
    /// It is used all the same.
    Accept,
}

impl ClientAuth {
    pub(super) const fn authorities(&self) -> Option<&Authorities> {
        match self {
            Self::None => None,
            Self::Optional(authorities) | Self::Required(authorities) => Some(authorities),
        }
    }
}

/// A loaded [`ClientAuth`].
#[derive(Debug)]
pub struct Policy {
    verifier: Arc<dyn ClientCertVerifier>,
    fingerprint: [u8; 32],
}

/// A revocation list in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevocationList {
    /// Its file, as configured.
    pub name: String,
    /// When its issuer promised the next one at the latest, in Unix seconds.
    pub expires: i64,
}

impl Policy {
    pub(super) fn load(
        settings: &ClientAuth,
        provider: &Arc<CryptoProvider>,
        now: UnixTime,
        warnings: &mut Vec<Warning>,
    ) -> Result<(Self, Vec<RevocationList>), Vec<LoadError>> {
        let Some(authorities) = settings.authorities() else {
            return Ok((Self::nobody(), Vec::new()));
        };
        let roots = authorities::read(CA, &authorities.ca, now, warnings);
        let (lists, mut errors) = read_lists(&authorities.crl);
        let roots = match roots {
            Ok(roots) if errors.is_empty() => roots,
            roots => {
                errors.extend(roots.err());
                return Err(errors);
            }
        };
        warn_of_lists(&lists, &roots, authorities.crl_expired, now, warnings);
        let required = matches!(settings, ClientAuth::Required(_));
        let fingerprint = fingerprint(required, &roots);
        let store = Arc::new(roots.store);
        let builder =
            || WebPkiClientVerifier::builder_with_provider(Arc::clone(&store), Arc::clone(provider));
        // Certificates of an authority without a list are not checked for revocation: not all of them have one.
        let mut verifier = builder()
            .with_crls(lists.iter().map(|list| list.der.clone()))
            .allow_unknown_revocation_status();
        if authorities.crl_expired == CrlExpired::Reject {
            verifier = verifier.enforce_revocation_expiration();
        }
        if !required {
            verifier = verifier.allow_unauthenticated();
        }
        let verifier = verifier.build().map_err(|error| {
            // It does not say which of them it was.
            let bad = |list: &&List| builder().with_crls([list.der.clone()]).build().is_err();
            vec![unusable(&error, lists.iter().find(bad), &authorities.ca)]
        })?;
        let lists = lists.into_iter().map(|list| RevocationList {
            name: list.path.display().to_string(),
            expires: list.expires,
        });
        Ok((
            Self {
                verifier,
                fingerprint,
            },
            lists.collect(),
        ))
    }

    fn nobody() -> Self {
        Self {
            verifier: WebPkiClientVerifier::no_client_auth(),
            fingerprint: [0; 32],
        }
    }

    /// Whether a client is asked for a certificate.
    pub fn asks(&self) -> bool {
        self.verifier.offer_client_auth()
    }

    /// Whether a client with this chain, its own certificate first, would be accepted now: for a session that is
    /// about to be resumed, where the library itself looks at the certificate no more. An empty chain is a client that
    /// has shown none.
    pub fn recheck(&self, chain: &[CertificateDer<'_>]) -> bool {
        self.accepts(chain, now())
    }

    pub(super) fn accepts(&self, chain: &[CertificateDer<'_>], now: UnixTime) -> bool {
        if !self.asks() {
            return true;
        }
        match chain.split_first() {
            Some((own, above)) => self.verifier.verify_client_cert(own, above, now).is_ok(),
            None => !self.verifier.client_auth_mandatory(),
        }
    }

    /// What a session was authenticated by: whether a certificate was required, and by which authorities it could be
    /// signed. A session is resumed under the same alone. Without the revocation lists, which change every day and are
    /// what [`Self::recheck`] is for.
    pub const fn fingerprint(&self) -> &[u8; 32] {
        &self.fingerprint
    }

    pub(super) fn verifier(&self) -> Arc<dyn ClientCertVerifier> {
        Arc::clone(&self.verifier)
    }
}

const CA: &str = "tls.client_ca";
const CRL: &str = "tls.client_crl";
const LISTS: &str = "revocation lists: PEM with X509 CRL sections, or one in DER";

/// A revocation list with what is needed of it here.
struct List {
    path: PathBuf,
    der: CertificateRevocationListDer<'static>,
    issuer: Vec<u8>,
    issuer_name: String,
    made: i64,
    expires: i64,
}

/// All lists, the newest first: of several by one issuer the first one counts.
fn read_lists(paths: &[PathBuf]) -> (Vec<List>, Vec<LoadError>) {
    let (mut lists, mut errors) = (Vec::new(), Vec::new());
    for path in paths {
        match read_file(path) {
            Ok(read) => lists.extend(read),
            Err(error) => errors.push(error),
        }
    }
    lists.sort_by_key(|list: &List| std::cmp::Reverse((list.made, list.expires)));
    (lists, errors)
}

fn read_file(path: &Path) -> Result<Vec<List>, LoadError> {
    const BEGIN: &[u8] = b"-----BEGIN";
    let bytes = read(CRL, path)?;
    let lists: Vec<CertificateRevocationListDer<'static>> =
        if bytes.windows(BEGIN.len()).any(|window| window == BEGIN) {
            CertificateRevocationListDer::pem_slice_iter(&bytes)
                .collect::<Result<_, _>>()
                .map_err(|error| wrong(CRL, path, format!("is no valid PEM ({error})"), LISTS))?
        } else {
            vec![bytes.into()]
        };
    if lists.is_empty() {
        return Err(wrong(CRL, path, "has no revocation list in it".to_owned(), LISTS));
    }
    lists.iter().map(|der| parse(path, der)).collect()
}

fn parse(path: &Path, der: &CertificateRevocationListDer<'static>) -> Result<List, LoadError> {
    let bad = |found: &str| wrong(CRL, path, found.to_owned(), LISTS);
    let (_, list) = parse_x509_crl(der).map_err(|_| bad("has something that is no revocation list"))?;
    let next = list
        .next_update()
        .ok_or_else(|| bad("has a revocation list that does not say how long it holds"))?;
    Ok(List {
        path: path.to_path_buf(),
        issuer: list.issuer().as_raw().to_vec(),
        issuer_name: list.issuer().to_string(),
        made: list.last_update().timestamp(),
        expires: next.timestamp(),
        der: der.clone(),
    })
}

fn warn_of_lists(
    lists: &[List],
    roots: &Roots,
    expired: CrlExpired,
    now: UnixTime,
    warnings: &mut Vec<Warning>,
) {
    let subjects: Vec<Vec<u8>> = roots
        .certificates
        .iter()
        .filter_map(|der| Some(parse_x509_certificate(der).ok()?.1.subject().as_raw().to_vec()))
        .collect();
    for list in lists {
        let (name, path) = (&list.issuer_name, list.path.display());
        let mut warn = |text: String| {
            warnings.push(Warning {
                key: CRL.to_owned(),
                text,
            });
        };
        if i64::try_from(now.as_secs()).unwrap_or(i64::MAX) >= list.expires {
            let what = match expired {
                CrlExpired::Reject => "every certificate of its issuer is refused",
                CrlExpired::Accept => "it is used all the same, as tls.client_crl_expired says",
            };
            warn(format!(
                "the list of \"{name}\" in {path} is past its time: {what}"
            ));
        }
        if !subjects.contains(&list.issuer) {
            warn(format!(
                "the list in {path} is by \"{name}\", which is not in tls.client_ca: it holds for an authority \
                 below those alone"
            ));
        }
    }
}

fn unusable(error: &VerifierBuilderError, list: Option<&List>, ca: &Path) -> LoadError {
    match (error, list) {
        (VerifierBuilderError::InvalidCrl(error), Some(list)) => wrong(
            CRL,
            &list.path,
            format!("has a list that can't be used ({error:?})"),
            LISTS,
        ),
        (error, _) => wrong(CA, ca, format!("can't be used ({error})"), "authorities"),
    }
}

fn fingerprint(required: bool, roots: &Roots) -> [u8; 32] {
    let sha256 = |bytes: &[u8]| digest::digest(&digest::SHA256, bytes);
    let mut authorities: Vec<Vec<u8>> = roots
        .certificates
        .iter()
        .map(|der| sha256(der).as_ref().to_vec())
        .collect();
    authorities.sort();
    authorities.dedup();
    let all = [vec![if required { 2 } else { 1 }], authorities.concat()].concat();
    // A digest of SHA-256 has 32 bytes.
    sha256(&all).as_ref().try_into().unwrap_or([0; 32])
}
