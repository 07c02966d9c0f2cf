//! Reading the configuration again: on SIGHUP all of it, and by itself what has changed of the files of `[tls]`, `[upstream.tls]` and
//! `[admin]`, and of the configuration's own where `reload.watch` asks for that. What is whole and good takes the place of what was in
//! effect, for the connections that come from then on; what is not changes nothing.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::{Map, Value};
use tokio::signal::unix::Signal;
use tokio::time::sleep;

use super::aside::aside;
use super::error::join;
use super::parts::{Auditing, Parts, Prepared, TooManyLanes, label, see_off};
use super::service::Service;
use super::tls::Tls;
use crate::admin::{Access, AccessError};
use crate::config::{self, Config, Difference, Mistakes, Reloaded, Sources};
use crate::telemetry::audit::{self, Audit, AuditError, Change};
use crate::telemetry::metrics::Reload;
use crate::telemetry::{log, wall_clock};
use crate::tls::{Fingerprint, LoadError, connector};
use crate::upstream::TooManyBrokers;

/// How often these files are looked at. Certificates are renewed days before they expire and revocation lists
/// hours, so half a minute is soon; to read them all takes a millisecond. By content and not by events of the file
/// system, which a volume that swaps symbolic links does not send.
const LOOK: Duration = Duration::from_secs(30);

/// The same with `reload.watch`: somebody has saved the file and waits for it to take effect.
const WATCH: Duration = Duration::from_secs(2);

/// A changed configuration is taken when it is the same after this time: a file that is being written may be legal
/// TOML at any of its lines.
const SETTLED: Duration = Duration::from_millis(250);

/// Why nothing has changed.
#[derive(Debug, thiserror::Error)]
enum ReloadError {
    /// The operator's to mend: what `seawall check` says as well.
    #[error("{}", .0.in_a_line())]
    Configuration(#[from] Mistakes),
    /// A file of `[tls]` or `[upstream.tls]` has changed since it was checked.
    #[error("{}", join(.0, "; "))]
    Tls(Vec<LoadError>),
    /// The same of `[admin]`.
    #[error("{}", join(.0, "; "))]
    Access(Vec<AccessError>),
    /// The audit log that is asked for can't be written.
    #[error(transparent)]
    Audit(#[from] AuditError),
    #[error(transparent)]
    Brokers(#[from] TooManyBrokers),
    #[error(transparent)]
    Lanes(#[from] TooManyLanes),
    /// The operating system has no thread for it.
    #[error("the files can't be looked at: {0}")]
    System(#[from] std::io::Error),
}

/// Keeps a running daemon as fresh as its files.
pub(super) struct Reloader {
    parts: Arc<Parts>,
    sources: Sources,
    /// What is in effect.
    config: Config,
    tls: Tls,
    /// The names of all lanes that ever were, by label.
    lanes: Vec<String>,
    log: Option<log::Handle>,
    service: Arc<Service>,
    /// What the files held when they were last read, good or not: a bad one is refused once and not every time.
    seen: Seen,
    /// When it was last looked whether something has expired, in Unix seconds.
    looked: i64,
}

/// What the files hold.
#[derive(Clone, PartialEq)]
pub(super) struct Seen {
    tls: Fingerprint,
    upstream: Fingerprint,
    admin: Fingerprint,
    file: Fingerprint,
}

impl Seen {
    /// Waits for disks.
    pub(super) fn of(sources: &Sources, config: &Config) -> Self {
        Self {
            tls: config.tls.fingerprint(),
            upstream: Fingerprint::of(config.upstream.tls.iter().flat_map(connector::Settings::files)),
            admin: Fingerprint::of(config.admin.guard.files()),
            file: Fingerprint::of(sources.file.iter().map(Path::new)),
        }
    }
}

impl Reloader {
    /// For a daemon that runs by `config`, whose files were `seen` before they were loaded: what has changed in between
    /// is read once more.
    pub(super) fn new(parts: Arc<Parts>, config: Config, seen: Seen, tls: Tls) -> Self {
        show(&tls, &parts);
        Self {
            parts,
            sources: Sources::default(),
            lanes: config
                .admission
                .lanes
                .iter()
                .map(|lane| lane.name.clone())
                .collect(),
            config,
            tls,
            log: None,
            service: Arc::default(),
            seen,
            looked: now(),
        }
    }

    /// Where to read the configuration from, the log that goes by it, and who is told of it.
    pub(super) fn from(mut self, sources: Sources, log: Option<log::Handle>, service: &Arc<Service>) -> Self {
        self.service = Arc::clone(service);
        self.seen.file = Seen::of(&sources, &self.config).file;
        self.sources = sources;
        self.log = log;
        self
    }

    /// Runs for ever.
    pub(super) async fn run(mut self, mut hangups: Signal) {
        loop {
            let pause = if self.config.watch { WATCH } else { LOOK };
            let asked = tokio::select! {
                Some(()) = hangups.recv() => true,
                () = sleep(pause) => false,
            };
            self.look(asked).await;
        }
    }

    /// Reads everything if that was `asked` for, or what has changed. Who drains goes by what it drained with.
    async fn look(&mut self, asked: bool) {
        self.tell_what_expired();
        if asked && let Some(audit) = self.parts.house.telemetry().audit() {
            audit.reopen();
        }
        if self.parts.tasks.is_draining() {
            if asked {
                tracing::info!("draining: the configuration is not read again");
            }
            return;
        }
        if asked {
            self.service.reloading();
            self.reload("SIGHUP").await;
            self.service.ready();
            return;
        }
        match self.seen_now().await {
            Err(error) => tracing::error!(%error, "the files can't be looked at"),
            Ok(seen) if self.config.watch && seen.file != self.seen.file => {
                if self.has_settled(&seen).await {
                    self.reload("the file has changed").await;
                }
            }
            // That of the configuration alone is the operator's to say.
            Ok(seen)
                if seen
                    != Seen {
                        file: seen.file.clone(),
                        ..self.seen.clone()
                    } =>
            {
                self.reload_certificates(seen).await;
            }
            Ok(_) => {}
        }
    }

    async fn seen_now(&self) -> std::io::Result<Seen> {
        let (sources, config) = (self.sources.clone(), self.config.clone());
        aside(move || Seen::of(&sources, &config)).await
    }

    async fn has_settled(&self, seen: &Seen) -> bool {
        sleep(SETTLED).await;
        self.seen_now().await.is_ok_and(|now| now.file == seen.file)
    }

    /// All of the configuration, and every file that it names.
    async fn reload(&mut self, why: &str) {
        let (changed, refused) = match self.prepare().await {
            Ok((prepared, changed, refused)) => {
                self.take(prepared).await;
                (changed, refused)
            }
            Err(error) => {
                tracing::error!(why, %error, "the configuration is not reloaded: nothing has changed");
                self.tell(Reload::Refused, "configuration", why, Map::new());
                return;
            }
        };
        for refused in &refused {
            tracing::error!(
                why,
                "{refused}: takes effect on restart alone, and stays as it was"
            );
        }
        let result = match (changed.is_empty(), refused.is_empty()) {
            (_, true) => Reload::Done,
            (false, false) => Reload::Partial,
            (true, false) => Reload::Refused,
        };
        let shown = join(&changed, ", ");
        tracing::info!(
            why,
            result = result.word(),
            changed = shown,
            "the configuration is reloaded"
        );
        let mut details = Map::new();
        for (word, differences) in [("changed", changed), ("refused", refused)] {
            if !differences.is_empty() {
                details.insert(word.to_owned(), differences.into_iter().map(entry).collect());
            }
        }
        self.tell(result, "configuration", why, details);
    }

    /// Everything that can fail, and nothing that is seen outside.
    async fn prepare(&mut self) -> Result<(Prepared, Vec<Difference>, Vec<Difference>), ReloadError> {
        self.seen = self.seen_now().await?;
        let (sources, running, tls) = (self.sources.clone(), self.config.clone(), self.tls.clone());
        let read = aside(move || {
            let reloaded = config::reload(&sources, &running)?;
            let seen = Seen::of(&sources, &reloaded.config);
            let tls = tls.reload(&reloaded.config).map_err(ReloadError::Tls)?;
            let access = Access::load(&reloaded.config.admin.guard).map_err(ReloadError::Access)?;
            Ok::<_, ReloadError>((reloaded, seen, tls, access))
        });
        let (reloaded, seen, tls, access) = read.await??;
        let Reloaded {
            mut config,
            changed,
            refused,
        } = reloaded;
        let brokers = self.parts.brokers.renewed(&config.upstream.servers).await?;
        let lanes = label(&mut config.admission.lanes, &self.lanes)?;
        let audit = self.prepare_audit(config.audit.clone()).await?;
        // Of the files that it names; its own is that of before, for it may have changed since.
        self.seen = Seen {
            file: self.seen.file.clone(),
            ..seen
        };
        let prepared = Prepared {
            config,
            tls,
            access,
            brokers,
            lanes,
            audit,
        };
        Ok((prepared, changed, refused))
    }

    async fn prepare_audit(&self, wanted: Option<audit::Settings>) -> Result<Auditing, ReloadError> {
        let running = self.parts.house.telemetry().audit();
        let running = running.map(|audit| audit.settings().path);
        if running.as_deref() == wanted.as_ref().map(|settings| settings.path.as_path()) {
            return Ok(Auditing::Same);
        }
        let Some(settings) = wanted else {
            return Ok(Auditing::Other(None));
        };
        let metrics = Arc::clone(&self.parts.metrics);
        let audit = aside(move || Audit::start(settings, metrics)).await??;
        Ok(Auditing::Other(Some(audit)))
    }

    async fn take(&mut self, prepared: Prepared) {
        self.lanes.clone_from(&prepared.lanes);
        self.tls = prepared.tls.clone();
        let before = std::mem::replace(&mut self.config, prepared.config.clone());
        let audit = self.parts.take(prepared);
        show(&self.tls, &self.parts);
        if before.log != self.config.log
            && let Some(log) = &self.log
            && let Err(error) = log.reconfigure(&self.config.log)
        {
            tracing::error!(%error, "the log goes on as it was");
        }
        if let Some(audit) = audit {
            see_off(audit).await;
        }
    }

    /// The files of `[tls]`, `[upstream.tls]` and `[admin]` alone, under the configuration that is in effect.
    async fn reload_certificates(&mut self, seen: Seen) {
        const WHY: &str = "the files have changed";
        self.seen = Seen {
            file: self.seen.file.clone(),
            ..seen
        };
        let (config, tls) = (self.config.clone(), self.tls.clone());
        let load = move || {
            let access = Access::load(&config.admin.guard).map_err(ReloadError::Access)?;
            Ok::<_, ReloadError>((tls.reload(&config).map_err(ReloadError::Tls)?, access))
        };
        let loaded = match aside(load).await {
            Ok(loaded) => loaded,
            Err(error) => Err(error.into()),
        };
        match loaded {
            Ok((tls, access)) => {
                self.parts
                    .house
                    .replace_tls(&tls.acceptor, tls.connector.as_ref());
                self.parts.access.store(Arc::new(access));
                tracing::info!(why = WHY, "certificates are reloaded");
                show(&tls, &self.parts);
                self.tls = tls;
                self.tell(Reload::Done, "certificates", WHY, Map::new());
            }
            Err(error) => {
                tracing::error!(why = WHY, %error, "certificates are not reloaded: those in effect stay");
                self.tell(Reload::Refused, "certificates", WHY, Map::new());
            }
        }
    }

    /// Tells metrics and audit what came of it.
    fn tell(&self, result: Reload, what: &str, why: &str, mut details: Map<String, Value>) {
        self.parts.metrics.reloaded(result);
        if let Some(audit) = self.parts.house.telemetry().audit() {
            let words = [("what", what), ("result", result.word()), ("why", why)];
            details.append(&mut audit::details(&words));
            audit.change(Change::Reload, details);
        }
    }

    fn tell_what_expired(&mut self) {
        let before = std::mem::replace(&mut self.looked, now());
        self.tls.tell_what_expired(&(before..self.looked));
    }
}

/// Where the metrics and the log say what is in effect.
fn show(tls: &Tls, parts: &Parts) {
    tls.show(&parts.metrics);
    for warning in parts.access.load().warnings() {
        tracing::warn!("{warning}");
    }
}

/// What an audit line says of a key that is, or should be, another.
fn entry(difference: Difference) -> (String, Value) {
    let Difference { path, from, to } = difference;
    let value = |value| serde_json::to_value(value).unwrap_or_default();
    let entry = [("from".to_owned(), value(from)), ("to".to_owned(), value(to))];
    (path, Value::Object(entry.into_iter().collect()))
}

fn now() -> i64 {
    let since = wall_clock().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests;
