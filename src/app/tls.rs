//! TLS of both legs, as it was loaded from the files of a configuration.

use std::ops::Range;

use crate::config::Config;
use crate::telemetry::metrics::Metrics;
use crate::tls::connector::Connector;
use crate::tls::{Acceptor, LoadError};

/// What is in use of `[tls]` and `[upstream.tls]`. Cheap to clone.
#[derive(Clone)]
pub(super) struct Tls {
    /// Towards the clients.
    pub(super) acceptor: Acceptor,
    /// Towards the brokers; `None`: they are spoken to in plain.
    pub(super) connector: Option<Connector>,
}

impl Tls {
    /// All of it or nothing. Every file that can't be used is in the error.
    pub(super) fn load(config: &Config) -> Result<Self, Vec<LoadError>> {
        Self::of(Acceptor::load(&config.tls), connector(config, None))
    }

    /// Loads it again, all of it or nothing. Tickets of before are still good, and sessions with brokers where nothing has
    /// changed that they were made under.
    pub(super) fn reload(&self, config: &Config) -> Result<Self, Vec<LoadError>> {
        Self::of(
            self.acceptor.reload(&config.tls),
            connector(config, self.connector.as_ref()),
        )
    }

    fn of(
        acceptor: Result<Acceptor, Vec<LoadError>>,
        connector: Result<Option<Connector>, Vec<LoadError>>,
    ) -> Result<Self, Vec<LoadError>> {
        match (acceptor, connector) {
            (Ok(acceptor), Ok(connector)) => Ok(Self { acceptor, connector }),
            (acceptor, connector) => {
                let errors = [acceptor.err(), connector.err()];
                Err(errors.into_iter().flatten().flatten().collect())
            }
        }
    }

    /// Says in the metrics and in the log what is in effect.
    pub(super) fn show(&self, metrics: &Metrics) {
        let certificates = self.acceptor.certificates().iter();
        let certificates = certificates.map(|(name, expires)| (name.as_str(), *expires));
        let own = self.expiry_of_own().map(|expires| ("upstream", expires));
        metrics.certificates(certificates.chain(own));
        let lists = self.acceptor.revocation_lists().iter();
        metrics.revocation_lists(lists.map(|list| (list.name.as_str(), list.expires)));
        let towards_brokers = self.connector.iter().flat_map(Connector::warnings);
        for warning in self.acceptor.warnings().iter().chain(towards_brokers) {
            tracing::warn!("{warning}");
        }
    }

    /// Tells the log what has expired within `time`, in Unix seconds.
    pub(super) fn tell_what_expired(&self, time: &Range<i64>) {
        let has = |expires: i64| time.contains(&expires);
        for (name, _) in self
            .acceptor
            .certificates()
            .iter()
            .filter(|(_, expires)| has(*expires))
        {
            tracing::error!(name, "a server certificate has expired: clients refuse it");
        }
        if self.expiry_of_own().is_some_and(has) {
            tracing::error!("the certificate of upstream.tls has expired: brokers refuse it");
        }
        for list in self
            .acceptor
            .revocation_lists()
            .iter()
            .filter(|list| has(list.expires))
        {
            tracing::error!(
                file = list.name,
                "a revocation list is past its time: tls.client_crl_expired decides"
            );
        }
    }

    fn expiry_of_own(&self) -> Option<i64> {
        self.connector.as_ref().and_then(Connector::expires)
    }
}

fn connector(config: &Config, held: Option<&Connector>) -> Result<Option<Connector>, Vec<LoadError>> {
    let settings = config.upstream.tls.as_ref();
    settings
        .map(|settings| Connector::load(settings, held))
        .transpose()
}
