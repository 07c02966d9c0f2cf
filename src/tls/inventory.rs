//! What a server is made from: every certificate of the configuration, and what an operator should know about them.

use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::server::ParsedCertificate;
use rustls::sign::CertifiedKey;
use rustls_pki_types::{ServerName, UnixTime};

use super::certificate::{self, Pair, ShownBy};
use super::client_auth::RevocationList;
use super::files::{LoadError, Warning};
use super::resolver::{HostName, Resolver};
use super::{Host, Settings};

/// What an acceptor was made from, for those who look after it.
#[derive(Debug, Default)]
pub(super) struct Inventory {
    /// Name and expiry of each server certificate; of several with one name the earliest expiry.
    pub(super) certificates: Vec<(String, i64)>,
    pub(super) lists: Vec<RevocationList>,
    pub(super) warnings: Vec<Warning>,
}

impl Inventory {
    /// Loads every certificate, all or nothing, and notes what there is to know of them.
    pub(super) fn load(
        &mut self,
        settings: &Settings,
        provider: &CryptoProvider,
        now: UnixTime,
    ) -> Result<Resolver, Vec<LoadError>> {
        let default = Pair {
            table: "tls",
            shown_by: ShownBy::Server,
            certificate: &settings.certificate,
            private_key: &settings.private_key,
        };
        let default = self.load_pair("default", default, settings.max_record, provider, now);
        let (mut hosts, mut errors) = (Vec::new(), Vec::new());
        for (index, host) in settings.hosts.iter().enumerate() {
            let table = format!("tls.hosts[{index}]");
            match self.load_host(host, &table, settings.max_record, provider, now) {
                Ok(key) => hosts.push((host.name.clone(), key)),
                Err(wrong) => errors.extend(wrong),
            }
        }
        match default {
            Ok(default) if errors.is_empty() => Ok(Resolver::new(default, hosts)),
            default => Err(default.err().into_iter().flatten().chain(errors).collect()),
        }
    }

    fn load_host(
        &mut self,
        host: &Host,
        table: &str,
        max_record: usize,
        provider: &CryptoProvider,
        now: UnixTime,
    ) -> Result<Arc<CertifiedKey>, Vec<LoadError>> {
        let pair = Pair {
            table,
            shown_by: ShownBy::Server,
            certificate: &host.certificate,
            private_key: &host.private_key,
        };
        let key = self.load_pair(&host.name.to_string(), pair, max_record, provider, now)?;
        if !is_for(&key, &host.name) {
            let (name, path) = (&host.name, host.certificate.display());
            let text = format!("the certificate in {path} is not for {name}: clients refuse it");
            self.warn(pair, text);
        }
        Ok(key)
    }

    fn load_pair(
        &mut self,
        name: &str,
        pair: Pair<'_>,
        max_record: usize,
        provider: &CryptoProvider,
        now: UnixTime,
    ) -> Result<Arc<CertifiedKey>, Vec<LoadError>> {
        let certified = certificate::load(pair, provider, now, &mut self.warnings)?;
        match self.certificates.iter_mut().find(|(known, _)| known == name) {
            Some((_, earliest)) => *earliest = certified.expires.min(*earliest),
            None => self.certificates.push((name.to_owned(), certified.expires)),
        }
        // The Certificate message of RFC 5246 section 7.4.2: 7 bytes, and a length of 3 for each certificate.
        let chain = &certified.key.cert;
        let size = chain.iter().fold(7, |size, der| size + 3 + der.len());
        if size > max_record {
            let path = pair.certificate.display();
            let text = format!(
                "the chain in {path} takes {size} bytes, more than tls.max_record: it is sent in several records, \
                 which devices with Mbed TLS before 3.6.3 can't put together"
            );
            self.warn(pair, text);
        }
        Ok(certified.key)
    }

    fn warn(&mut self, pair: Pair<'_>, text: String) {
        let key = format!("{}.certificate", pair.table);
        self.warnings.push(Warning { key, text });
    }
}

/// Whether a client that asks for `name` would take the certificate for it.
fn is_for(key: &CertifiedKey, name: &HostName) -> bool {
    let Ok(name) = ServerName::try_from(name.example()) else {
        return false;
    };
    let own = key.end_entity_cert().and_then(ParsedCertificate::try_from);
    own.is_ok_and(|own| rustls::client::verify_server_name(&own, &name).is_ok())
}
