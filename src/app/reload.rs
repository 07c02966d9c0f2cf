//! Reading the files of `[tls]` again, on SIGHUP and when they have changed: what is whole and good takes the place of
//! what was in effect, for the connections that come from then on; what is not changes nothing.

use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::signal::unix::Signal;
use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::connection::House;
use crate::telemetry::metrics::{Metrics, Reload};
use crate::telemetry::wall_clock;
use crate::tls::{self, Acceptor, Fingerprint, LoadError};

/// How often the files are looked at. Certificates are renewed days before they expire and revocation lists hours, so
/// half a minute is soon; to read them all takes a millisecond. By content and not by events of the file system, which
/// a volume that swaps symbolic links does not send.
pub(super) const LOOK: Duration = Duration::from_secs(30);

/// Keeps the certificates of a running daemon as fresh as their files.
pub(super) struct Reloader {
    settings: tls::Settings,
    house: Arc<House>,
    metrics: Arc<Metrics>,
    /// What is in effect.
    acceptor: Acceptor,
    /// What the files held when they were last read, good or not: a bad one is refused once and not every time.
    seen: Option<Fingerprint>,
    /// When it was last looked whether something has expired, in Unix seconds.
    looked: i64,
}

impl Reloader {
    /// For `acceptor`, which was loaded from `settings`.
    pub(super) fn new(
        settings: tls::Settings,
        acceptor: Acceptor,
        house: Arc<House>,
        metrics: Arc<Metrics>,
    ) -> Self {
        show(&acceptor, &metrics);
        Self {
            settings,
            house,
            metrics,
            acceptor,
            seen: None,
            looked: now(),
        }
    }

    /// Runs for ever.
    pub(super) async fn run(mut self, mut hangups: Signal, look: Duration) {
        // Whatever has changed between the load and now is found to have changed with the next look.
        let settings = self.settings.clone();
        self.seen = aside(move || settings.fingerprint()).await.ok();
        loop {
            let asked = tokio::select! {
                Some(()) = hangups.recv() => true,
                () = sleep(look) => false,
            };
            self.look(asked).await;
        }
    }

    /// Reads the files if that was `asked` for, or if they have changed.
    async fn look(&mut self, asked: bool) {
        self.tell_what_expired();
        let (settings, known) = (self.settings.clone(), self.seen.clone());
        let acceptor = self.acceptor.clone();
        let read = aside(move || {
            let seen = settings.fingerprint();
            let due = asked || known.is_none_or(|known| known != seen);
            (seen, due.then(|| acceptor.reload(&settings)))
        });
        match read.await {
            Ok((seen, loaded)) => {
                self.seen = Some(seen);
                let why = if asked { "SIGHUP" } else { "the files have changed" };
                if let Some(loaded) = loaded {
                    self.take(loaded, why);
                }
            }
            Err(error) => tracing::error!(%error, "the files of [tls] can't be looked at"),
        }
    }

    fn take(&mut self, loaded: Result<Acceptor, Vec<LoadError>>, why: &str) {
        match loaded {
            Ok(acceptor) => {
                self.house.replace_tls(&acceptor);
                self.metrics.reloaded(Reload::Done);
                tracing::info!(why, "certificates are reloaded");
                show(&acceptor, &self.metrics);
                self.acceptor = acceptor;
            }
            Err(errors) => {
                self.metrics.reloaded(Reload::Refused);
                for error in errors {
                    tracing::error!(why, %error, "certificates are not reloaded: those in effect stay");
                }
            }
        }
    }

    fn tell_what_expired(&mut self) {
        let before = std::mem::replace(&mut self.looked, now());
        let now = self.looked;
        let has = |expires: i64| (before..now).contains(&expires);
        for (name, _) in self
            .acceptor
            .certificates()
            .iter()
            .filter(|(_, expires)| has(*expires))
        {
            tracing::error!(name, "a server certificate has expired: clients refuse it");
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
}

/// Where the metrics and the log say what is in effect.
fn show(acceptor: &Acceptor, metrics: &Metrics) {
    let certificates = acceptor.certificates().iter();
    metrics.certificates(certificates.map(|(name, expires)| (name.as_str(), *expires)));
    let lists = acceptor.revocation_lists().iter();
    metrics.revocation_lists(lists.map(|list| (list.name.as_str(), list.expires)));
    for warning in acceptor.warnings() {
        tracing::warn!("{warning}");
    }
}

/// Does `work` on a thread of its own: it waits for disks, and loading a key computes. One at a time.
async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    let (done, result) = oneshot::channel();
    std::thread::Builder::new()
        .name("seawall-reload".to_owned())
        .spawn(move || done.send(work()))?;
    result.await.map_err(io::Error::other)
}

fn now() -> i64 {
    let since = wall_clock().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(i64::MAX))
}
