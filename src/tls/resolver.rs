//! Which certificate a client is shown: by the name that it asks for, and by what it can verify.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{SignatureAlgorithm, SignatureScheme};
use rustls_pki_types::DnsName;

/// A name under which clients ask for this server: `mqtt.example.com`, or `*.example.com` for every name with exactly
/// one label before that (RFC 6125 section 6.4.3). Lower case and without a dot at its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostName {
    name: String,
    wildcard: bool,
}

/// Why a text is no [`HostName`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadHostName {
    /// A server name is never an address (RFC 6066 section 3).
    #[error("clients that connect to an address send no name, and are shown tls.certificate")]
    Address,
    /// Not the form in which names are sent.
    #[error("a name that is not ASCII is written as it is sent: xn--…")]
    NotAscii,
    /// A star that is not the whole first label.
    #[error("the star stands for one whole label: *.example.com")]
    Star,
    /// Neither of the two forms.
    #[error("labels of letters, digits, - and _, with dots between them")]
    Malformed,
}

impl HostName {
    /// Reads a name as it is configured.
    pub fn parse(text: &str) -> Result<Self, BadHostName> {
        if text.parse::<std::net::IpAddr>().is_ok() {
            return Err(BadHostName::Address);
        }
        if !text.is_ascii() {
            return Err(BadHostName::NotAscii);
        }
        let (wildcard, rest) = match text.strip_prefix("*.") {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        if rest.contains('*') {
            return Err(BadHostName::Star);
        }
        let rest = rest.strip_suffix('.').unwrap_or(rest);
        DnsName::try_from(rest).map_err(|_| BadHostName::Malformed)?;
        Ok(Self {
            name: rest.to_ascii_lowercase(),
            wildcard,
        })
    }

    /// A name that it stands for.
    pub(super) fn example(&self) -> String {
        if self.wildcard {
            format!("a.{}", self.name)
        } else {
            self.name.clone()
        }
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.wildcard { "*." } else { "" }, self.name)
    }
}

/// All certificates, by the names that they are for.
#[derive(Debug)]
pub(super) struct Resolver {
    default: Arc<CertifiedKey>,
    exact: HashMap<String, Vec<Arc<CertifiedKey>>>,
    /// By what follows the star's label.
    wildcards: HashMap<String, Vec<Arc<CertifiedKey>>>,
}

impl Resolver {
    pub(super) fn new(
        default: Arc<CertifiedKey>,
        hosts: impl IntoIterator<Item = (HostName, Arc<CertifiedKey>)>,
    ) -> Self {
        let mut resolver = Self {
            default,
            exact: HashMap::new(),
            wildcards: HashMap::new(),
        };
        for (host, key) in hosts {
            let names = if host.wildcard {
                &mut resolver.wildcards
            } else {
                &mut resolver.exact
            };
            names.entry(host.name).or_default().push(key);
        }
        let all = resolver.exact.values_mut().chain(resolver.wildcards.values_mut());
        // RSA costs four times what ECDSA does, and is for those who can't verify that. The sort is stable.
        all.for_each(|keys| keys.sort_by_key(|key| key.key.algorithm() == SignatureAlgorithm::RSA));
        resolver
    }

    /// The certificate for a client that asks for `name` and can verify `schemes`: one for exactly this name, one for
    /// a wildcard that stands for it, or the default, whichever it can verify first. Where it can verify none of them,
    /// the first: the handshake fails with the reason.
    fn choose(&self, name: Option<&str>, schemes: &[SignatureScheme]) -> &Arc<CertifiedKey> {
        let name = name.map(|name| name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase());
        let exact = name.as_ref().and_then(|name| self.exact.get(name));
        let wildcard = name
            .as_ref()
            .and_then(|name| self.wildcards.get(name.split_once('.')?.1));
        let mut candidates = [exact, wildcard]
            .into_iter()
            .flatten()
            .flatten()
            .chain([&self.default]);
        let verifiable = |key: &&Arc<CertifiedKey>| key.key.choose_scheme(schemes).is_some();
        let first = candidates.clone().next().unwrap_or(&self.default);
        candidates.find(verifiable).unwrap_or(first)
    }
}

impl ResolvesServerCert for Resolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(
            self.choose(hello.server_name(), hello.signature_schemes()),
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use rustls::crypto::aws_lc_rs::default_provider;
    use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

    use super::*;

    const ECDSA: &[SignatureScheme] = &[SignatureScheme::ECDSA_NISTP256_SHA256];
    const RSA: &[SignatureScheme] = &[SignatureScheme::RSA_PSS_SHA256, SignatureScheme::RSA_PKCS1_SHA256];
    const BOTH: &[SignatureScheme] = &[
        SignatureScheme::RSA_PSS_SHA256,
        SignatureScheme::ECDSA_NISTP256_SHA256,
    ];
    const NEITHER: &[SignatureScheme] = &[SignatureScheme::ED25519];

    /// One that is told from others by its address alone: to make RSA keys takes seconds.
    fn key(rsa: bool) -> Arc<CertifiedKey> {
        static PAIRS: OnceLock<[Vec<u8>; 2]> = OnceLock::new();
        let make = |algorithm| rcgen::KeyPair::generate_for(algorithm).unwrap().serialize_der();
        let pairs = PAIRS.get_or_init(|| {
            [
                make(&rcgen::PKCS_ECDSA_P256_SHA256),
                make(&rcgen::PKCS_RSA_SHA256),
            ]
        });
        let der = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(pairs[usize::from(rsa)].clone()));
        let key = default_provider().key_provider.load_private_key(der).unwrap();
        // The resolver does not look at the chain.
        Arc::new(CertifiedKey::new(vec![CertificateDer::from(vec![0])], key))
    }

    #[test]
    fn names_are_read_as_they_are_sent() {
        for (text, read) in [
            ("mqtt.example.com", Ok("mqtt.example.com")),
            ("MQTT.Example.COM.", Ok("mqtt.example.com")),
            ("*.Example.com", Ok("*.example.com")),
            ("*.com", Ok("*.com")),
            ("broker", Ok("broker")),
            ("my_broker-0.svc", Ok("my_broker-0.svc")),
            ("xn--brse-5qa.example", Ok("xn--brse-5qa.example")),
            ("börse.example", Err(BadHostName::NotAscii)),
            ("10.0.0.1", Err(BadHostName::Address)),
            ("::1", Err(BadHostName::Address)),
            ("*", Err(BadHostName::Star)),
            ("*.*.example.com", Err(BadHostName::Star)),
            ("a.*.example.com", Err(BadHostName::Star)),
            ("f*.example.com", Err(BadHostName::Star)),
            ("*.", Err(BadHostName::Malformed)),
            ("", Err(BadHostName::Malformed)),
            (".", Err(BadHostName::Malformed)),
            ("a..b", Err(BadHostName::Malformed)),
            (".example.com", Err(BadHostName::Malformed)),
            ("a b.example.com", Err(BadHostName::Malformed)),
            ("mqtt.example.com:8883", Err(BadHostName::Malformed)),
            ("-a.example.com", Err(BadHostName::Malformed)),
            ("a\0.example.com", Err(BadHostName::Malformed)),
        ] {
            let name = HostName::parse(text).map(|name| name.to_string());
            assert_eq!(name.as_deref().map_err(|error| *error), read, "{text:?}");
        }
    }

    /// Whose certificate is chosen for a name.
    #[test]
    fn a_name_is_found_exactly_then_by_its_wildcard_then_not_at_all() {
        let default = key(false);
        let hosts = ["mqtt.example.com", "*.example.com", "*.eu.example.com", "one"];
        let keys: Vec<_> = hosts.iter().map(|_| key(false)).collect();
        let parsed = hosts.iter().map(|name| HostName::parse(name).unwrap());
        let resolver = Resolver::new(Arc::clone(&default), parsed.zip(keys.iter().cloned()));
        for (asked, expected) in [
            (Some("mqtt.example.com"), Some("mqtt.example.com")),
            (Some("mqtt.example.com."), Some("mqtt.example.com")),
            (Some("MQTT.EXAMPLE.com"), Some("mqtt.example.com")),
            (Some("a.example.com"), Some("*.example.com")),
            (Some("A.example.COM."), Some("*.example.com")),
            (Some("eu.example.com"), Some("*.example.com")),
            (Some("a.eu.example.com"), Some("*.eu.example.com")),
            // A star is one label: not none, not two.
            (Some("example.com"), None),
            (Some("a.b.example.com"), None),
            (Some("a.a.eu.example.com"), None),
            // Not the end of a label.
            (Some("notexample.com"), None),
            (Some("a.notexample.com"), None),
            (Some("one"), Some("one")),
            (Some("two"), None),
            (Some("*.example.com"), Some("*.example.com")),
            (Some(""), None),
            (Some("."), None),
            (None, None),
        ] {
            let chosen = resolver.choose(asked, BOTH);
            let index = keys.iter().position(|key| Arc::ptr_eq(key, chosen));
            assert_eq!(index.map(|index| hosts[index]), expected, "{asked:?}");
            assert!(index.is_some() || Arc::ptr_eq(chosen, &default));
        }
    }

    #[test]
    fn of_several_for_a_name_that_which_the_client_can_verify_is_chosen() {
        let (default, wild) = (key(true), key(false));
        let (rsa, ecdsa, lonely) = (key(true), key(false), key(true));
        let host = |name: &str, key: &Arc<CertifiedKey>| (HostName::parse(name).unwrap(), Arc::clone(key));
        let resolver = Resolver::new(
            Arc::clone(&default),
            [
                host("both.example.com", &rsa),
                host("both.example.com", &ecdsa),
                host("lonely.example.com", &lonely),
                host("*.example.com", &wild),
            ],
        );
        for (name, schemes, expected) in [
            // The cheaper one first, whatever the order of the file.
            ("both.example.com", BOTH, &ecdsa),
            ("both.example.com", ECDSA, &ecdsa),
            ("both.example.com", RSA, &rsa),
            ("lonely.example.com", BOTH, &lonely),
            ("lonely.example.com", RSA, &lonely),
            // Better one for a wider name than none.
            ("lonely.example.com", ECDSA, &wild),
            ("other.example.com", RSA, &default),
            ("other.example.com", ECDSA, &wild),
            // No help: the handshake says so.
            ("both.example.com", NEITHER, &ecdsa),
            ("elsewhere", ECDSA, &default),
        ] {
            assert!(
                Arc::ptr_eq(resolver.choose(Some(name), schemes), expected),
                "{name} {schemes:?}"
            );
        }
    }
}
