//! Which cipher suite a client gets. In a handshake it is the suite's hash that costs, not its cipher: processors have
//! instructions for SHA-256, and none that the library uses for SHA-384, which belongs to AES-256 and which most clients name
//! first. It took a sixth of all the time of a refusal over TLS 1.3.
//!
//! So our order counts, with AES-128 and SHA-256 first (recommended by RFC 9325 section 4.2, and mandatory in TLS 1.3), except
//! for clients that put `ChaCha20` first: those are without instructions for AES, which costs them several times as much.

use std::sync::Arc;

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::{CipherSuite, ServerConfig};

/// The library's own choice of suites in our order: the same safety for all of them, none added, none taken away.
pub(super) fn provider() -> CryptoProvider {
    let mut provider = aws_lc_rs::default_provider();
    // Stable: what the library prefers otherwise stays as it is.
    provider.cipher_suites.sort_by_key(|suite| rank(suite.suite()));
    provider
}

/// One configuration in both orders.
#[derive(Clone, Debug)]
pub(super) struct BothOrders {
    ours: Arc<ServerConfig>,
    clients: Arc<ServerConfig>,
}

impl BothOrders {
    pub(super) fn of(config: ServerConfig) -> Self {
        let mut ours = config.clone();
        ours.ignore_client_order = true;
        let mut clients = config;
        clients.ignore_client_order = false;
        Self {
            ours: Arc::new(ours),
            clients: Arc::new(clients),
        }
    }

    /// The configuration for a client that offers these suites, its favourite first.
    pub(super) fn for_client(&self, offered: &[CipherSuite]) -> &Arc<ServerConfig> {
        // Values that mean nothing may stand before it (RFC 8701).
        let ours = self.ours.crypto_provider().cipher_suites.iter();
        let known = |offered: &&CipherSuite| ours.clone().any(|ours| ours.suite() == **offered);
        match offered.iter().find(known) {
            Some(favourite) if is_chacha(*favourite) => &self.clients,
            _ => &self.ours,
        }
    }
}

const fn rank(suite: CipherSuite) -> u8 {
    match suite {
        CipherSuite::TLS13_AES_128_GCM_SHA256
        | CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
        | CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 => 0,
        suite if is_chacha(suite) => 2,
        _ => 1,
    }
}

const fn is_chacha(suite: CipherSuite) -> bool {
    matches!(
        suite,
        CipherSuite::TLS13_CHACHA20_POLY1305_SHA256
            | CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256
            | CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256
    )
}

#[cfg(test)]
mod tests {
    use rustls::server::ResolvesServerCertUsingSni;

    use super::*;

    #[test]
    fn the_favourite_is_the_first_that_means_something() {
        let config = ServerConfig::builder_with_provider(Arc::new(provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(ResolvesServerCertUsingSni::new()));
        let both = BothOrders::of(config);
        let (grease, ancient) = (
            CipherSuite::Unknown(0x1a1a),
            CipherSuite::TLS_RSA_WITH_AES_128_CBC_SHA,
        );
        let (aes, chacha) = (
            CipherSuite::TLS13_AES_256_GCM_SHA384,
            CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
        );
        for (offered, clients) in [
            (&[chacha, aes][..], true),
            (&[grease, ancient, chacha, aes], true),
            (&[aes, chacha], false),
            (&[grease, aes], false),
            (&[grease, ancient], false),
            (&[], false),
        ] {
            let chosen = both.for_client(offered);
            assert_eq!(Arc::ptr_eq(chosen, &both.clients), clients, "{offered:?}");
            assert_eq!(chosen.ignore_client_order, !clients, "{offered:?}");
        }
    }
}
