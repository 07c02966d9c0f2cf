//! One rate over several replicas, held together by a table in Redis or Valkey.
//!
//! What is leased is a part of the rate, not a batch of tokens (`docs/decisions/0010-shared-budget.md`): every replica
//! keeps its own bucket, window and hold, which run at its part of the whole. So nobody waits for the network on a
//! connection's path, turns can be foretold, and when the table is gone all replicas go on with their last parts,
//! which add up to the whole.

mod lease;
mod store;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use self::lease::Lease;
pub use self::lease::Wanted;
use self::store::{Store, StoreError};
use crate::admission::Share;
use crate::moment::Moment;
use crate::named_file::{self, ReadError};
use crate::telemetry::metrics::{Beat, Metrics};

/// How often the table is asked: ten answers within the second in which a crowd arrives.
const BEAT: Duration = Duration::from_millis(100);

/// Longest pause between two attempts to reach a table that does not answer.
const LONGEST_PAUSE: Duration = Duration::from_millis(800);

/// How long a start waits for the first answer: a replica that begins with a guess and a full bucket gives more away than
/// a second is worth.
const FIRST_ANSWER: Duration = Duration::from_secs(1);
/// Largest file of `shared_budget.ca` in bytes: the public authorities of a system have a quarter of it.
const LARGEST_AUTHORITY: u64 = 1 << 20;

/// `[shared_budget]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Where the table is.
    pub server: Server,
    /// Name of the table: replicas that use the same one share a budget.
    pub key: String,
    /// Certificates that the server's must be signed by, PEM; `None`: those that the system trusts.
    pub ca: Option<PathBuf>,
    /// How many replicas to reckon with until the table has answered for the first time, at least 1.
    pub replicas: u32,
}

/// A Redis or Valkey server. Its password is in no `Debug` and in no message.
#[derive(Clone)]
pub struct Server {
    url: String,
    info: ConnectionInfo,
}

/// Not the URL of a Redis server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no URL of a Redis server")]
pub struct BadServer;

impl Server {
    /// From `redis://[[USER]:PASSWORD@]HOST[:PORT][/DATABASE]`, the same with `rediss:` for TLS, or `unix:///PATH`.
    pub fn parse(url: &str) -> Result<Self, BadServer> {
        let info = url.into_connection_info().map_err(|_| BadServer)?;
        Ok(Self {
            url: url.to_owned(),
            info,
        })
    }

    /// The URL, password and all.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The URL with `***` in the place of a password, and of what follows a `?`: there that of a socket's path stands.
    pub fn masked(&self) -> String {
        let Some((scheme, rest)) = self.url.split_once("://") else {
            return "***".to_owned();
        };
        let (rest, query) = match rest.split_once('?') {
            Some((rest, _)) => (rest, "?***"),
            None => (rest, ""),
        };
        match rest.rsplit_once('@') {
            Some((credentials, address)) => {
                let user = credentials.split_once(':').map_or("", |(user, _)| user);
                format!("{scheme}://{user}:***@{address}{query}")
            }
            None => format!("{scheme}://{rest}{query}"),
        }
    }

    const fn info(&self) -> &ConnectionInfo {
        &self.info
    }

    fn is_tls(&self) -> bool {
        matches!(self.info.addr(), ConnectionAddr::TcpTls { .. })
    }
}

impl PartialEq for Server {
    fn eq(&self, other: &Self) -> bool {
        self.url == other.url
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Server").field(&self.masked()).finish()
    }
}

/// Certificates of `shared_budget.ca`.
struct Authority(Vec<u8>);

impl Authority {
    fn pem(&self) -> &[u8] {
        &self.0
    }
}

/// The shared budget can't be set up: the operator's to mend.
#[derive(Debug, thiserror::Error)]
pub enum BudgetError {
    /// The file of `shared_budget.ca` can't be read.
    #[error("{path}: {error}", path = path.display())]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// Why.
        error: ReadError,
    },
    /// The client can't be made, most likely because of its certificates.
    #[error("{0}")]
    Unusable(String),
}

/// Where the budget is spent: this replica's door.
pub trait Spender: Send + Sync + 'static {
    /// What was asked for so far.
    fn wanted(&self) -> Wanted;
    /// What to go by from now on.
    fn share(&self, share: Share);
}

/// This replica's part of the budget, kept up to date.
pub struct Budget {
    store: Store,
    lease: Lease,
    spender: Arc<dyn Spender>,
    metrics: Arc<Metrics>,
    started: Instant,
    silent: bool,
}

/// What the files of `settings` hold can be used: for `seawall check`.
pub fn check(settings: &Settings) -> Result<(), BudgetError> {
    store(settings, String::new()).map(|_| ())
}

fn store(settings: &Settings, replica: String) -> Result<Store, BudgetError> {
    let authority = settings.ca.as_deref().map(read).transpose()?;
    Store::new(&settings.server, authority.as_ref(), &settings.key, replica)
        .map_err(|error| BudgetError::Unusable(error.to_string()))
}

fn read(path: &Path) -> Result<Authority, BudgetError> {
    named_file::read(path, LARGEST_AUTHORITY)
        .map(Authority)
        .map_err(|error| BudgetError::Unreadable {
            path: path.to_owned(),
            error,
        })
}

impl Budget {
    /// A replica that has not asked yet; `spender` goes by one of [`Settings::replicas`] until [`Self::join`].
    pub fn new(
        settings: &Settings,
        spender: Arc<dyn Spender>,
        metrics: Arc<Metrics>,
    ) -> Result<Self, BudgetError> {
        let replica = format!("{:016x}", fastrand::u64(..));
        let lease = Lease::new(settings.replicas, Moment::ZERO);
        spender.share(lease.share());
        Ok(Self {
            store: store(settings, replica)?,
            lease,
            spender,
            metrics,
            started: Instant::now(),
            silent: false,
        })
    }

    /// Asks for the first time, for a second at most: to be done before the first client comes.
    pub async fn join(&mut self) {
        let first = async {
            while !self.beat().await {
                sleep(BEAT).await;
            }
        };
        // Who does not get an answer begins with its guess, and goes on asking.
        let _ = timeout(FIRST_ANSWER, first).await;
    }

    /// Keeps the share up to date until `draining`, then gives it back: a replica that admits nobody needs none.
    pub async fn keep(mut self, draining: impl Future<Output = ()>) {
        let beats = async {
            let mut beat = interval(BEAT);
            beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let mut pause = BEAT;
            loop {
                beat.tick().await;
                if self.beat().await {
                    pause = BEAT;
                    continue;
                }
                // Replicas that lost the table together need not come back together.
                sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        };
        tokio::select! {
            () = beats => {}
            () = draining => {}
        }
        // Who can't be told finds out by the lease.
        let _ = self.store.leave().await;
    }

    /// One question; whether it was answered.
    async fn beat(&mut self) -> bool {
        let ask = self.lease.ask(self.spender.wanted(), self.now());
        let answer = self.store.ask(ask).await;
        let answered = match answer {
            Ok(grant) => {
                self.lease.granted(grant, self.now());
                self.spender.share(self.lease.share());
                self.hear();
                true
            }
            Err(error) => {
                self.miss(&error);
                false
            }
        };
        self.metrics.budget(Beat {
            answered,
            share: self.lease.share().fraction,
            replicas: self.lease.replicas(),
            staleness: self
                .lease
                .staleness(self.now())
                .unwrap_or_else(|| self.started.elapsed()),
        });
        answered
    }

    fn hear(&mut self) {
        if std::mem::take(&mut self.silent) {
            let (share, replicas) = (self.lease.share().fraction, self.lease.replicas());
            tracing::info!(share, replicas, "the shared budget's table answers again");
        }
    }

    fn miss(&mut self, error: &StoreError) {
        if std::mem::replace(&mut self.silent, true) {
            tracing::debug!(%error, "the shared budget's table does not answer");
        } else {
            let share = self.lease.share().fraction;
            tracing::warn!(
                %error,
                share,
                "the shared budget's table does not answer: this replica goes on with its last share"
            );
        }
    }

    fn now(&self) -> Moment {
        Moment::ZERO + self.started.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_shown_nowhere() {
        for (url, masked) in [
            ("redis://127.0.0.1:6379", "redis://127.0.0.1:6379"),
            ("redis://:s3cret@cache/2", "redis://:***@cache/2"),
            (
                "rediss://seawall:s3cret@cache:6380",
                "rediss://seawall:***@cache:6380",
            ),
            ("redis://:p%40ss@cache", "redis://:***@cache"),
            ("redis://:s3cret@cache?protocol=resp3", "redis://:***@cache?***"),
            ("unix:///run/cache.sock", "unix:///run/cache.sock"),
            (
                "unix:///run/cache.sock?db=2&pass=s3cr@t",
                "unix:///run/cache.sock?***",
            ),
        ] {
            let server = Server::parse(url).unwrap();
            assert_eq!(server.masked(), masked);
            assert_eq!(format!("{server:?}"), format!("Server({masked:?})"));
            assert_eq!(server.is_tls(), url.starts_with("rediss"));
        }
    }

    #[test]
    fn what_is_no_server_is_refused() {
        for url in [
            "",
            "127.0.0.1:6379",
            "http://cache",
            "redis://",
            "redis://cache:99999999",
        ] {
            assert_eq!(Server::parse(url).err(), Some(BadServer), "{url}");
        }
    }
}
