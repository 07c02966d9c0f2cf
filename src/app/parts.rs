//! The parts of a running daemon, and how all of them go over to another configuration.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::watch;
use tokio::time::sleep;

use super::aside::aside;
use super::tls::Tls;
use crate::admin::Access;
use crate::admission::lanes::Lane;
use crate::config::Config;
use crate::connection::{House, Rules};
use crate::door::Door;
use crate::drain::Tasks;
use crate::gate::Gate;
use crate::listener::{self, Places};
use crate::telemetry::audit::{self, Audit};
use crate::telemetry::metrics::Metrics;
use crate::upstream::{Brokers, Renewal};

/// What a reload reaches, and what the admin pages look at.
pub(super) struct Parts {
    pub(super) gate: Arc<Gate>,
    pub(super) door: Arc<Door>,
    pub(super) brokers: Arc<Brokers>,
    pub(super) places: Arc<Places>,
    pub(super) house: Arc<House>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) tasks: Tasks,
    /// Who may see the admin pages.
    pub(super) access: Arc<ArcSwap<Access>>,
    /// Whether another process accepts our clients now.
    pub(super) handed_over: watch::Sender<bool>,
    /// The limit of this process.
    pub(super) descriptors: u64,
}

/// Everything of another configuration that could fail, done: nothing of it is in effect yet.
pub(super) struct Prepared {
    /// Its lanes have their labels.
    pub(super) config: Config,
    pub(super) tls: Tls,
    pub(super) access: Access,
    pub(super) brokers: Renewal,
    /// The names of all lanes that ever were, by label.
    pub(super) lanes: Vec<String>,
    pub(super) audit: Auditing,
}

/// What becomes of the audit log.
pub(super) enum Auditing {
    /// The file stays.
    Same,
    /// Another file, or none.
    Other(Option<Audit>),
}

/// How long connections get to let go of an audit log that is not used any more; they hold it for microseconds.
const LET_GO: Duration = Duration::from_secs(1);

impl Parts {
    /// Puts another configuration into effect, for the connections that come from now on. The door learns of new brokers
    /// before anybody is sent to them, and forgets the old ones after nobody is. Returns the audit log of before, where
    /// there is another one now: to be [seen off](see_off).
    pub(super) fn take(&self, prepared: Prepared) -> Option<Arc<Audit>> {
        let Prepared {
            config,
            tls,
            access,
            brokers,
            lanes,
            audit,
        } = prepared;
        self.access.store(Arc::new(access));
        let (servers, retired) = (brokers.names(), brokers.retired());
        self.metrics.renew(&servers, &retired, &lanes);
        self.metrics.configured(config.agreement());
        self.gate.reconfigure(&config.gate, config.sources);
        let mut admission = config.admission.clone();
        admission.servers = servers.len();
        admission.retired = self.door.settings().retired;
        admission.retired.retain(|server| retired.contains(server));
        self.door.reconfigure(admission.clone());
        self.brokers.take(brokers);
        if admission.retired != retired {
            admission.retired = retired;
            self.door.reconfigure(admission);
        }
        self.places
            .set_most(places(config.listen.max_connections, self.descriptors));
        self.house.replace_rules(rules(&config, tls));
        self.replace_audit(audit, &config)
    }

    /// Writes another audit log from here on, or none; the one of before is closed when this returns. Where the other one
    /// can't be opened it is none.
    pub(super) async fn move_audit(&self, settings: Option<audit::Settings>) {
        let telemetry = self.house.telemetry();
        // First, for it may be the same file.
        if let Some(before) = telemetry.replace_audit(None) {
            see_off(before).await;
        }
        let Some(settings) = settings else { return };
        let metrics = Arc::clone(&self.metrics);
        match aside(move || Audit::start(settings, metrics)).await {
            Ok(Ok(audit)) => drop(telemetry.replace_audit(Some(audit))),
            Ok(Err(error)) => tracing::error!(%error, "there is no audit log"),
            Err(error) => tracing::error!(%error, "there is no audit log"),
        }
    }

    fn replace_audit(&self, audit: Auditing, config: &Config) -> Option<Arc<Audit>> {
        let telemetry = self.house.telemetry();
        match audit {
            Auditing::Same => {
                if let (Some(audit), Some(settings)) = (telemetry.audit(), &config.audit) {
                    audit.limit(settings.rotate, settings.keep);
                }
                None
            }
            Auditing::Other(audit) => telemetry.replace_audit(audit),
        }
    }
}

/// Lets the last records into the log, and closes it: only then can it be opened again.
pub(super) async fn see_off(audit: Arc<Audit>) {
    let until = tokio::time::Instant::now() + LET_GO;
    while Arc::strong_count(&audit) > 1 && tokio::time::Instant::now() < until {
        sleep(Duration::from_millis(10)).await;
    }
    // Writing waits for the disk.
    if let Err(error) = aside(move || drop(audit)).await {
        tracing::error!(%error, "the audit log of before is not closed as it should");
    }
}

/// What connections go by under `config`.
pub(super) fn rules(config: &Config, tls: Tls) -> Rules {
    Rules {
        connection: config.connection,
        proxy_header: config.listen.proxy_header.clone(),
        refusal: config.refusal.clone(),
        upstream: config.upstream.clone(),
        relay: config.relay,
        drain: config.drain,
        tls: tls.acceptor,
        connector: tls.connector,
    }
}

/// The configured number, or what the descriptors are enough for.
pub(super) fn places(configured: Option<usize>, descriptors: u64) -> usize {
    let enough_for = listener::connections_for(descriptors);
    match configured {
        None => enough_for,
        Some(wanted) if wanted > enough_for => {
            tracing::warn!(
                wanted,
                enough_for,
                descriptors,
                "listen.max_connections is more than the descriptor limit is good for; raise LimitNOFILE"
            );
            enough_for
        }
        Some(wanted) => wanted,
    }
}

/// Most lanes in the life of a process, those that were taken away included: each keeps its series in the metrics.
/// Eight times what a configuration may list.
const MOST_LANES: usize = 256;

/// A process has seen more lanes than it can keep apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "admission.lanes: this process has seen {MOST_LANES} different lanes and takes no new one: restart it"
)]
pub(super) struct TooManyLanes;

/// Gives each lane the label that its name had before, or a new one. `known` are the names by label; so is what comes back.
pub(super) fn label(lanes: &mut [Lane], known: &[String]) -> Result<Vec<String>, TooManyLanes> {
    let mut names = known.to_vec();
    for lane in lanes {
        let label = names.iter().position(|name| *name == lane.name);
        lane.label = label.unwrap_or(names.len());
        if label.is_none() {
            names.push(lane.name.clone());
        }
    }
    if names.len() > MOST_LANES {
        return Err(TooManyLanes);
    }
    Ok(names)
}
