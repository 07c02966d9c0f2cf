//! TLS on the devices' side: whom they trust, which versions they speak, whether they keep tickets.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, VerifierBuilderError, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme, SupportedProtocolVersion};

use crate::tls::unverified::Unverified;

/// Chains that are remembered as verified: a target has one, or one a kind of key, and a few while it renews them.
const MOST_REMEMBERED: usize = 8;

/// How devices speak TLS.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Versions that they offer.
    pub versions: Versions,
    /// Whom they trust.
    pub trust: Trust,
    /// Chain and key (PEM) that all of them present where they are asked.
    pub client: Option<(PathBuf, PathBuf)>,
    /// Whether tickets are kept, if only by those who share the configuration.
    pub resumes: bool,
}

/// Versions of TLS that a device offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Versions {
    /// Both.
    Any,
    /// 1.2 alone.
    V1_2,
    /// 1.3 alone.
    V1_3,
}

/// Whom devices trust.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Authorities of this PEM file.
    Authorities(PathBuf),
    /// Anybody: what the server presents is not looked at.
    Anybody,
}

/// Why there is no TLS.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// The caller's: a file that can't be read, or without what is looked for in it.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: rustls::pki_types::pem::Error,
    },
    /// The caller's: an authority that is none.
    #[error("{}: no certificate of an authority: {source}", path.display())]
    Authority {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: rustls::Error,
    },
    /// The caller's: no certificates in it.
    #[error("{}: {source}", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: VerifierBuilderError,
    },
    /// The caller's: certificate and key do not fit each other.
    #[error("{}: {source}", path.display())]
    Client {
        /// The key.
        path: PathBuf,
        /// What is wrong with it.
        source: rustls::Error,
    },
    /// A bug of ours, or of the TLS library's.
    #[error("the devices' TLS can't be set up: {0}")]
    Library(rustls::Error),
}

/// The configuration that devices share, or begin with.
pub fn client_config(settings: &Settings) -> Result<ClientConfig, TrustError> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(settings.versions.supported())
        .map_err(TrustError::Library)?
        .dangerous()
        .with_custom_certificate_verifier(verifier(&settings.trust, provider)?);
    let mut config = match &settings.client {
        None => builder.with_no_client_auth(),
        Some((chain, key)) => builder
            .with_client_auth_cert(certificates(chain)?, private_key(key)?)
            .map_err(|source| TrustError::Client {
                path: key.clone(),
                source,
            })?,
    };
    if !settings.resumes {
        config.resumption = Resumption::disabled();
    }
    Ok(config)
}

impl Versions {
    fn supported(self) -> &'static [&'static SupportedProtocolVersion] {
        static V1_2: &[&SupportedProtocolVersion] = &[&rustls::version::TLS12];
        static V1_3: &[&SupportedProtocolVersion] = &[&rustls::version::TLS13];
        match self {
            Self::Any => rustls::ALL_VERSIONS,
            Self::V1_2 => V1_2,
            Self::V1_3 => V1_3,
        }
    }
}

fn verifier(trust: &Trust, provider: Arc<CryptoProvider>) -> Result<Arc<dyn ServerCertVerifier>, TrustError> {
    let Trust::Authorities(path) = trust else {
        return Ok(Arc::new(Unverified(provider)));
    };
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|source| TrustError::Authority {
            path: path.clone(),
            source,
        })?;
    }
    let inner = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .map_err(|source| TrustError::Empty {
            path: path.clone(),
            source,
        })?;
    Ok(Arc::new(Remembering {
        inner,
        known: RwLock::default(),
    }))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TrustError> {
    CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|source| TrustError::File {
            path: path.to_owned(),
            source,
        })
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TrustError> {
    PrivateKeyDer::from_pem_file(path).map_err(|source| TrustError::File {
        path: path.to_owned(),
        source,
    })
}

/// Verifies a chain once: in the field every device has a processor of its own for it, here they share one. The
/// signature of each handshake is verified each time.
struct Remembering {
    inner: Arc<WebPkiServerVerifier>,
    known: RwLock<Vec<Known>>,
}

struct Known {
    chain: Vec<CertificateDer<'static>>,
    name: ServerName<'static>,
}

impl Known {
    fn is(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
    ) -> bool {
        self.name == *name
            && self
                .chain
                .split_first()
                .is_some_and(|(first, rest)| first == end_entity && rest == intermediates)
    }
}

impl fmt::Debug for Remembering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remembering").finish_non_exhaustive()
    }
}

impl ServerCertVerifier for Remembering {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        if known
            .iter()
            .any(|known| known.is(end_entity, intermediates, server_name))
        {
            return Ok(ServerCertVerified::assertion());
        }
        drop(known);
        let verified =
            self.inner
                .verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)?;
        let chain = std::iter::once(end_entity).chain(intermediates);
        let chain = chain
            .map(|certificate| certificate.clone().into_owned())
            .collect();
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MOST_REMEMBERED {
            known.remove(0);
        }
        known.push(Known {
            chain,
            name: server_name.to_owned(),
        });
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::super::certificates::{self, Certificates};
    use super::*;

    fn settings(trust: Trust) -> Settings {
        Settings {
            versions: Versions::Any,
            trust,
            client: None,
            resumes: false,
        }
    }

    #[test]
    fn a_chain_is_verified_once_for_each_name() {
        let folder = tempfile::tempdir().unwrap();
        let Certificates { ca, server, .. } = certificates::write(folder.path(), &[]).unwrap();
        let provider = Arc::new(aws_lc_rs::default_provider());
        let verifier = verifier(&Trust::Authorities(ca), provider).unwrap();
        let server = certificates_of(&server);
        let now = UnixTime::now();
        let verify = |name: &str, now| {
            let name = ServerName::try_from(name).unwrap();
            verifier.verify_server_cert(&server[0], &server[1..], &name, &[], now)
        };
        verify("localhost", now).unwrap();
        // From memory: at this time the certificate would not be valid yet.
        let long_ago = UnixTime::since_unix_epoch(std::time::Duration::from_secs(1));
        verify("localhost", long_ago).unwrap();
        verify("127.0.0.1", long_ago).unwrap_err();
        verify("elsewhere.example", now).unwrap_err();
    }

    fn certificates_of(path: &Path) -> Vec<CertificateDer<'static>> {
        super::certificates(path).unwrap()
    }

    #[test]
    fn files_that_are_none_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("missing.pem");
        let error = client_config(&settings(Trust::Authorities(missing))).unwrap_err();
        assert!(error.to_string().contains("missing.pem"), "{error}");

        let made = certificates::write(folder.path(), &[]).unwrap();
        let with_client = |chain: PathBuf, key: PathBuf| {
            client_config(&Settings {
                client: Some((chain, key)),
                ..settings(Trust::Anybody)
            })
        };
        with_client(made.client.clone(), made.client_key).unwrap();
        let error = with_client(made.client, made.server_key).unwrap_err();
        assert!(error.to_string().contains("server.key"), "{error}");
    }
}
