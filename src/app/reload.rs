//! Reading the files of `[tls]` again, on SIGHUP and when they have changed: what is whole and good takes the place of
//! what was in effect, for the connections that come from then on; what is not changes nothing.

use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::signal::unix::Signal;
use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::connection::House;
use crate::telemetry::audit::{self, Change};
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
    seen: Fingerprint,
    /// When it was last looked whether something has expired, in Unix seconds.
    looked: i64,
}

impl Reloader {
    /// For `acceptor`, which was loaded from `settings` after their files were `seen`: what has changed in between is
    /// read once more.
    pub(super) fn new(
        settings: tls::Settings,
        seen: Fingerprint,
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
            seen,
            looked: now(),
        }
    }

    /// Runs for ever.
    pub(super) async fn run(mut self, mut hangups: Signal, look: Duration) {
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
        if asked && let Some(audit) = self.house.telemetry().audit() {
            audit.reopen();
        }
        let (settings, known) = (self.settings.clone(), self.seen.clone());
        let acceptor = self.acceptor.clone();
        let read = aside(move || {
            let seen = settings.fingerprint();
            let due = asked || known != seen;
            (seen, due.then(|| acceptor.reload(&settings)))
        });
        match read.await {
            Ok((seen, loaded)) => {
                self.seen = seen;
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
                self.audit("done", why);
                tracing::info!(why, "certificates are reloaded");
                show(&acceptor, &self.metrics);
                self.acceptor = acceptor;
            }
            Err(errors) => {
                self.metrics.reloaded(Reload::Refused);
                self.audit("refused", why);
                for error in errors {
                    tracing::error!(why, %error, "certificates are not reloaded: those in effect stay");
                }
            }
        }
    }

    fn audit(&self, result: &str, why: &str) {
        if let Some(audit) = self.house.telemetry().audit() {
            let details = [("what", "certificates"), ("result", result), ("why", why)];
            audit.change(Change::Reload, audit::details(&details));
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tokio::signal::unix::{SignalKind, signal};
    use tokio::time::timeout;

    use super::*;
    use crate::app::{self, Running};
    use crate::config::{self, Sources};

    /// Writes a certificate that expires in `year`, and its key.
    fn write(folder: &Path, year: i32) {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        std::fs::write(folder.join("server.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        std::fs::write(folder.join("server.key"), key.serialize_pem()).unwrap();
    }

    async fn start(folder: &Path) -> Running {
        let set = [
            format!("tls.certificate={}", folder.join("server.pem").display()),
            format!("tls.private_key={}", folder.join("server.key").display()),
            "listen.addresses=127.0.0.1:0".to_owned(),
            "admin.address=127.0.0.1:0".to_owned(),
            "upstream.servers=127.0.0.1:1".to_owned(),
        ];
        let sources = Sources {
            set: set.to_vec(),
            ..Sources::default()
        };
        app::start(config::load(&sources).unwrap()).await.unwrap()
    }

    /// The year in which the certificate in effect expires, and how many reloads were done and refused.
    fn seen(running: &Running) -> (i64, [f64; 2]) {
        let text = running.metrics.render(running.door.snapshot()).unwrap();
        let value = |series: &str| -> f64 {
            let line = text.lines().find_map(|line| line.strip_prefix(series));
            line.unwrap().trim().parse().unwrap()
        };
        let expiry = value("seawall_certificate_expiry_seconds{name=\"default\"}");
        let reloads =
            ["done", "refused"].map(|word| value(&format!("seawall_reloads_total{{result=\"{word}\"}}")));
        // The first of January.
        (1970 + (expiry / 31_556_952.0).round() as i64, reloads)
    }

    #[tokio::test]
    async fn files_are_read_when_they_have_changed_or_when_that_is_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), 2030);
        let mut running = start(folder.path()).await;
        let mut reloader = running.reloader.take().unwrap();
        assert_eq!(seen(&running), (2030, [0.0, 0.0]));
        reloader.look(false).await;
        assert_eq!(seen(&running), (2030, [0.0, 0.0]), "nothing has changed");
        reloader.look(true).await;
        assert_eq!(seen(&running), (2030, [1.0, 0.0]), "it was asked for");
        write(folder.path(), 2031);
        reloader.look(false).await;
        assert_eq!(seen(&running), (2031, [2.0, 0.0]));

        // A renewal that has written one file of two, then the other.
        let key = std::fs::read(folder.path().join("server.key")).unwrap();
        write(folder.path(), 2032);
        let new = std::fs::read(folder.path().join("server.key")).unwrap();
        std::fs::write(folder.path().join("server.key"), key).unwrap();
        reloader.look(false).await;
        assert_eq!(seen(&running), (2031, [2.0, 1.0]));
        reloader.look(false).await;
        assert_eq!(
            seen(&running),
            (2031, [2.0, 1.0]),
            "what was refused is not tried again"
        );
        std::fs::write(folder.path().join("server.key"), new).unwrap();
        reloader.look(false).await;
        assert_eq!(seen(&running), (2032, [3.0, 1.0]));

        std::fs::remove_file(folder.path().join("server.key")).unwrap();
        reloader.look(false).await;
        assert_eq!(seen(&running), (2032, [3.0, 2.0]));
    }

    #[tokio::test]
    async fn it_looks_by_itself_again_and_again() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), 2030);
        let mut running = start(folder.path()).await;
        let reloader = running.reloader.take().unwrap();
        let hangups = signal(SignalKind::hangup()).unwrap();
        running
            .tasks
            .spawn_until_stopped(reloader.run(hangups, Duration::from_millis(20)));
        let mut done = 0.0;
        for year in [2031, 2032] {
            write(folder.path(), year);
            let change = async {
                while seen(&running).0 != i64::from(year) {
                    sleep(Duration::from_millis(5)).await;
                }
            };
            timeout(Duration::from_secs(20), change).await.unwrap();
            assert!(seen(&running).1[0] > done, "{:?}", seen(&running));
            done = seen(&running).1[0];
        }
        running.tasks.stop();
    }
}
