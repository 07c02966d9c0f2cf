//! A throw-away certificate authority with a server and a client certificate, for trials.

use std::fs;
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, SanType,
};
use rustls_pki_types::pem::{self, PemObject};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

/// Common name of the authority. A folder whose `ca.pem` bears it was made here and may be replaced.
const AUTHORITY: &str = "Seawall throw-away CA";

/// What the server certificate is always good for.
const OWN_NAMES: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

/// From yesterday, for machines whose clock lags behind.
const BEFORE: time::Duration = time::Duration::DAY;

/// The longest that common platforms accept for a server certificate of a private authority: a trial that was left
/// running does not end by itself, and nothing made here lives for ever.
const LIFETIME: time::Duration = time::Duration::days(825);

/// Where the PEM files were written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificates {
    /// The authority's certificate: what a client trusts. Its key is thrown away.
    pub ca: PathBuf,
    /// The server's certificate.
    pub server: PathBuf,
    /// The server's private key, PKCS #8, P-256.
    pub server_key: PathBuf,
    /// A client's certificate.
    pub client: PathBuf,
    /// The client's private key, PKCS #8, P-256.
    pub client_key: PathBuf,
}

/// Why no certificates were written.
#[derive(Debug, thiserror::Error)]
pub enum CertificatesError {
    /// The caller's: a name that no certificate can carry.
    #[error("{name:?} is neither a DNS name nor an IP address that a certificate can carry")]
    Name {
        /// As given.
        name: String,
    },
    /// The caller's: the folder holds somebody's certificates.
    #[error("{} exists and was not made by `seawall certs`: choose another folder", path.display())]
    Foreign {
        /// The file in the way.
        path: PathBuf,
    },
    /// The caller's: some of an earlier call's files are there, and some are not.
    #[error(
        "{} has certificates of `seawall certs` that are not whole: {}. Put the files back, or leave out --keep: then all \
         are made anew, and who trusts the old authority has to be given the new one",
        folder.display(),
        faults.join(", ")
    )]
    NotWhole {
        /// Where they are.
        folder: PathBuf,
        /// The names of the files that can't be used, each with the reason.
        faults: Vec<String>,
    },
    /// The operating system's.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// Ours, or the cryptographic library's.
    #[error("cannot make a certificate: {0}")]
    Generate(#[from] rcgen::Error),
}

/// Makes an authority, a server certificate for `localhost`, `127.0.0.1`, `::1` and `names` (DNS names or IP
/// addresses), and a client certificate, and writes them to `folder` as `ca.pem`, `server.pem`, `server.key`,
/// `client.pem` and `client.key`. The folder is made where it is missing; what an earlier call wrote is replaced,
/// files of any other origin are not. Keys are readable by their owner alone.
pub fn write(folder: &Path, names: &[String]) -> Result<Certificates, CertificatesError> {
    let names = subject_names(names)?;
    fs::create_dir_all(folder).map_err(|source| at(folder, source))?;
    let paths = Certificates::of(folder);
    refuse_foreign(&paths)?;

    let authority = authority()?;
    let server = leaf(
        "Seawall trial server",
        ExtendedKeyUsagePurpose::ServerAuth,
        names,
        &authority,
    )?;
    let client = leaf(
        "seawall-client",
        ExtendedKeyUsagePurpose::ClientAuth,
        Vec::new(),
        &authority,
    )?;

    put(&paths.ca, &authority.pem(), PUBLIC)?;
    put(&paths.server, &server.certificate, PUBLIC)?;
    put(&paths.server_key, &server.key, PRIVATE)?;
    put(&paths.client, &client.certificate, PUBLIC)?;
    put(&paths.client_key, &client.key, PRIVATE)?;
    Ok(paths)
}

/// What an earlier call of [`write()`] left in `folder`; `None`: nothing is there that it has made. An error when only a part
/// of it can be used: to make it anew would replace an authority that somebody trusts.
pub fn find(folder: &Path) -> Result<Option<Certificates>, CertificatesError> {
    let paths = Certificates::of(folder);
    if !paths.are_ours() {
        return Ok(None);
    }
    let faults = paths.faults();
    if faults.is_empty() {
        return Ok(Some(paths));
    }
    Err(CertificatesError::NotWhole {
        folder: folder.to_owned(),
        faults,
    })
}

impl Certificates {
    fn of(folder: &Path) -> Self {
        Self {
            ca: folder.join("ca.pem"),
            server: folder.join("server.pem"),
            server_key: folder.join("server.key"),
            client: folder.join("client.pem"),
            client_key: folder.join("client.key"),
        }
    }

    /// All paths.
    pub const fn all(&self) -> [&PathBuf; 5] {
        [
            &self.ca,
            &self.server,
            &self.server_key,
            &self.client,
            &self.client_key,
        ]
    }

    /// Made here, by what is left of them: where there is no authority, a certificate names it as its issuer.
    fn are_ours(&self) -> bool {
        let pem = |path: &PathBuf| fs::read_to_string(path).unwrap_or_default();
        let authority = pem(&self.ca);
        if !authority.trim().is_empty() {
            return bears_our_name(&authority);
        }
        [&self.server, &self.client]
            .into_iter()
            .any(|path| bears_our_name(&pem(path)))
    }

    /// Which files are of no use, and why.
    fn faults(&self) -> Vec<String> {
        let certificates = [&self.ca, &self.server, &self.client].map(|path| {
            let fault = CertificateDer::from_pem_file(path).err()?;
            Some(described(path, "certificate", &fault))
        });
        let keys = [&self.server_key, &self.client_key].map(|path| {
            let fault = PrivateKeyDer::from_pem_file(path).err()?;
            Some(described(path, "private key", &fault))
        });
        certificates.into_iter().chain(keys).flatten().collect()
    }
}

fn described(path: &Path, content: &str, fault: &pem::Error) -> String {
    let name = path.file_name().unwrap_or_default().display();
    match fault {
        pem::Error::Io(error) if error.kind() == io::ErrorKind::NotFound => format!("{name} is missing"),
        pem::Error::Io(error) => format!("{name} can't be read ({error})"),
        _ => format!("{name} holds no {content}"),
    }
}

const PUBLIC: u32 = 0o644;
const PRIVATE: u32 = 0o600;

struct Leaf {
    certificate: String,
    key: String,
}

fn subject_names(names: &[String]) -> Result<Vec<SanType>, CertificatesError> {
    let mut subject = Vec::new();
    for name in OWN_NAMES.into_iter().chain(names.iter().map(String::as_str)) {
        let entry = match name.parse::<IpAddr>() {
            Ok(address) => SanType::IpAddress(address),
            Err(_) if looks_like_dns(name) => SanType::DnsName(name.try_into()?),
            Err(_) => {
                return Err(CertificatesError::Name {
                    name: name.to_owned(),
                });
            }
        };
        if !subject.contains(&entry) {
            subject.push(entry);
        }
    }
    Ok(subject)
}

/// Labels of letters, digits, `-` and `_`, and a `*` as the first one: what TLS clients compare (RFC 6125).
fn looks_like_dns(name: &str) -> bool {
    let labels = name.strip_prefix("*.").unwrap_or(name);
    name.len() <= 253
        && labels.split('.').all(|label| {
            (1..=63).contains(&label.len())
                && label
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
        })
}

fn refuse_foreign(paths: &Certificates) -> Result<(), CertificatesError> {
    match paths.all().into_iter().find(|path| path.exists()) {
        Some(path) if !paths.are_ours() => Err(CertificatesError::Foreign { path: path.clone() }),
        _ => Ok(()),
    }
}

fn bears_our_name(pem: &str) -> bool {
    CertificateDer::from_pem_slice(pem.as_bytes()).is_ok_and(|der| {
        der.windows(AUTHORITY.len())
            .any(|window| window == AUTHORITY.as_bytes())
    })
}

fn authority() -> Result<CertifiedIssuer<'static, KeyPair>, rcgen::Error> {
    let mut parameters = parameters(AUTHORITY);
    parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    CertifiedIssuer::self_signed(parameters, KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?)
}

fn leaf(
    common_name: &str,
    usage: ExtendedKeyUsagePurpose,
    names: Vec<SanType>,
    authority: &CertifiedIssuer<'static, KeyPair>,
) -> Result<Leaf, rcgen::Error> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let mut parameters = parameters(common_name);
    parameters.subject_alt_names = names;
    parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    parameters.extended_key_usages = vec![usage];
    parameters.use_authority_key_identifier_extension = true;
    let certificate = parameters.signed_by(&key, authority)?;
    Ok(Leaf {
        certificate: certificate.pem(),
        key: key.serialize_pem(),
    })
}

fn parameters(common_name: &str) -> CertificateParams {
    let mut parameters = CertificateParams::default();
    let now = time::OffsetDateTime::now_utc();
    parameters.not_before = now - BEFORE;
    parameters.not_after = now + LIFETIME;
    parameters.distinguished_name = rcgen::DistinguishedName::new();
    parameters
        .distinguished_name
        .push(DnType::CommonName, common_name);
    parameters
}

/// Writes beside and renames: a key is never readable by others, not even for a moment, and a reader never sees half a file.
fn put(path: &Path, text: &str, mode: u32) -> Result<(), CertificatesError> {
    let beside = path.with_extension("new");
    let written = fs::remove_file(&beside)
        .or_else(|error| {
            if error.kind() == io::ErrorKind::NotFound {
                Ok(())
            } else {
                Err(error)
            }
        })
        .and_then(|()| {
            fs::OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(mode)
                .open(&beside)
        })
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .and_then(|()| fs::rename(&beside, path));
    written.map_err(|source| at(path, source))
}

fn at(path: &Path, source: io::Error) -> CertificatesError {
    CertificatesError::Io {
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::sync::Arc;

    use rustls_pki_types::{ServerName, UnixTime};

    use super::*;

    fn certificate(path: &Path) -> CertificateDer<'static> {
        CertificateDer::from_pem_file(path).unwrap()
    }

    fn roots(certificates: &Certificates) -> Arc<rustls::RootCertStore> {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(certificate(&certificates.ca)).unwrap();
        Arc::new(roots)
    }

    fn provider() -> Arc<rustls::crypto::CryptoProvider> {
        Arc::new(rustls::crypto::aws_lc_rs::default_provider())
    }

    #[test]
    fn a_rustls_client_trusts_the_server_under_every_name() {
        let folder = tempfile::tempdir().unwrap();
        let names = [
            "seawall".to_owned(),
            "*.fleet.example".to_owned(),
            "10.1.2.3".to_owned(),
        ];
        let written = write(folder.path(), &names).unwrap();
        let verifier =
            rustls::client::WebPkiServerVerifier::builder_with_provider(roots(&written), provider())
                .build()
                .unwrap();
        let verify = |name: &'static str| {
            use rustls::client::danger::ServerCertVerifier;
            let name = ServerName::try_from(name).unwrap();
            verifier.verify_server_cert(&certificate(&written.server), &[], &name, &[], UnixTime::now())
        };
        for name in [
            "localhost",
            "127.0.0.1",
            "::1",
            "seawall",
            "a.fleet.example",
            "10.1.2.3",
        ] {
            verify(name).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        assert!(verify("other.example").is_err());
    }

    #[test]
    fn the_client_certificate_is_good_for_clients_and_not_for_servers() {
        use rustls::client::danger::ServerCertVerifier;
        let folder = tempfile::tempdir().unwrap();
        let written = write(folder.path(), &[]).unwrap();
        let verifier =
            rustls::server::WebPkiClientVerifier::builder_with_provider(roots(&written), provider())
                .build()
                .unwrap();
        let verify = |path: &Path| verifier.verify_client_cert(&certificate(path), &[], UnixTime::now());
        verify(&written.client).unwrap();
        assert!(verify(&written.server).is_err());
        let server_verifier =
            rustls::client::WebPkiServerVerifier::builder_with_provider(roots(&written), provider())
                .build()
                .unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        assert!(
            server_verifier
                .verify_server_cert(&certificate(&written.client), &[], &name, &[], UnixTime::now())
                .is_err()
        );
    }

    #[test]
    fn keys_fit_their_certificates_and_are_private() {
        let folder = tempfile::tempdir().unwrap();
        let written = write(folder.path(), &[]).unwrap();
        for (chain, key) in [
            (&written.server, &written.server_key),
            (&written.client, &written.client_key),
        ] {
            let mode = fs::metadata(key).unwrap().permissions().mode() & 0o777;
            assert_eq!(mode, 0o600, "{}", key.display());
            let private = PrivateKeyDer::from_pem_file(key).unwrap();
            rustls::sign::CertifiedKey::from_der(vec![certificate(chain)], private, &provider()).unwrap();
        }
        let mut files: Vec<_> = fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        files.sort();
        assert_eq!(
            files,
            ["ca.pem", "client.key", "client.pem", "server.key", "server.pem"]
        );
    }

    #[test]
    fn a_second_call_replaces_what_the_first_wrote() {
        let folder = tempfile::tempdir().unwrap();
        let first = write(folder.path(), &[]).unwrap();
        let before = fs::read_to_string(&first.ca).unwrap();
        let second = write(folder.path(), &[]).unwrap();
        assert_ne!(before, fs::read_to_string(&second.ca).unwrap());
    }

    #[test]
    fn what_an_earlier_call_left_is_found_while_it_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(find(folder.path()).unwrap(), None);
        let written = write(folder.path(), &[]).unwrap();
        assert_eq!(find(folder.path()).unwrap(), Some(written.clone()));
        fs::write(&written.ca, "somebody's").unwrap();
        assert_eq!(find(folder.path()).unwrap(), None, "of another origin");
    }

    #[test]
    fn half_of_what_an_earlier_call_left_is_told_of_and_can_be_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let none: fn(&Path) = |path| fs::remove_file(path).unwrap();
        let empty: fn(&Path) = |path| fs::write(path, "").unwrap();
        let half: fn(&Path) = |path| {
            let text = fs::read_to_string(path).unwrap();
            fs::write(path, &text[..text.len() / 2]).unwrap();
        };
        let another: fn(&Path) = |path| {
            fs::remove_file(path).unwrap();
            fs::create_dir(path).unwrap();
        };
        for (spoil, words, first) in [
            (none, "is missing", 0),
            (empty, "holds no ", 0),
            // Whose half an authority is can't be seen, and nothing of somebody else's is replaced.
            (half, "holds no ", 1),
            (another, "can't be read", 0),
        ] {
            for number in first..5 {
                let written = write(folder.path(), &[]).unwrap();
                let path = written.all()[number];
                spoil(path);
                let name = path.file_name().unwrap().display();
                let Err(CertificatesError::NotWhole { faults, .. }) = find(folder.path()) else {
                    panic!("{name} {words}");
                };
                assert_eq!(faults.len(), 1, "{faults:?}");
                assert!(faults[0].starts_with(&format!("{name} {words}")), "{faults:?}");
                if path.is_dir() {
                    fs::remove_dir(path).unwrap();
                }
                write(folder.path(), &[]).expect("all can be made anew");
            }
        }
    }

    #[test]
    fn files_of_another_origin_are_left_alone() {
        for name in ["ca.pem", "server.key"] {
            let folder = tempfile::tempdir().unwrap();
            let foreign = folder.path().join(name);
            fs::write(&foreign, "somebody's").unwrap();
            let error = write(folder.path(), &[]).unwrap_err();
            assert!(
                matches!(&error, CertificatesError::Foreign { path } if *path == foreign),
                "{error}"
            );
            assert_eq!(fs::read_to_string(&foreign).unwrap(), "somebody's");
        }
    }

    #[test]
    fn names_that_no_certificate_can_carry_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["", "a b", "a..b", "ünicode.example", "a*.example", "*"] {
            let error = write(folder.path(), &[name.to_owned()]).unwrap_err();
            assert!(
                matches!(error, CertificatesError::Name { .. }),
                "{name:?}: {error}"
            );
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
