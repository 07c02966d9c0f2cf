//! The table of shares in Redis or Valkey, reached with one script.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, RedisError, Script, TlsCertificates};

use super::lease::{Ask, Grant};
use super::{Authority, Server};

/// How long a connection may take, handshake and password included: what takes longer within a data centre is not there.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);

/// How long an answer may take. The script runs in 50 µs; three beats late is silence.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(300);

/// How long a replica's share is kept for it while it does not come by. Longer than it takes to reconnect, short enough
/// that a dead replica's part is used again before the crowd is in.
const LEASE: Duration = Duration::from_secs(3);

/// How long after the table was found empty nobody gets more than it brings along: all replicas have reconnected by then
/// ([`LEASE`] would do, this is the longest pause between two attempts and the time of one).
const SETTLING: Duration = Duration::from_secs(2);

/// Part of the whole that is shared out evenly, so that a replica to which nobody comes admits the first who do without
/// asking. A tenth is lost to nobody: what is asked for elsewhere and idle here moves within some beats.
const EVEN: f64 = 0.1;

/// A connection to the table; it is made when it is first needed, and anew after each failure.
pub(super) struct Store {
    client: Client,
    script: Script,
    table: String,
    replica: String,
    connection: Option<MultiplexedConnection>,
}

/// The table can't be asked. Whose fault it is can't be told from here: the network's, the server's, or the address'.
#[derive(Debug, thiserror::Error)]
pub(super) enum StoreError {
    /// Not reached, refused, or no sense in its answer.
    #[error("{0}")]
    Redis(#[from] RedisError),
    /// Not within its time.
    #[error("no answer within {0:?}")]
    Silent(Duration),
    /// Something else answers there.
    #[error("it answers with what is no share: {0:?}")]
    Answer(Vec<String>),
}

impl Store {
    /// For `replica` (any name that no other has). An error is a certificate that can't be used.
    pub(super) fn new(
        server: &Server,
        authority: Option<&Authority>,
        key: &str,
        replica: String,
    ) -> Result<Self, StoreError> {
        let certificates = TlsCertificates {
            client_tls: None,
            root_cert: authority.map(|authority| authority.pem().to_vec()),
        };
        let client = if server.is_tls() {
            Client::build_with_tls(server.info().clone(), certificates)?
        } else {
            Client::open(server.info().clone())?
        };
        Ok(Self {
            client,
            script: Script::new(include_str!("share.lua")),
            table: format!("{key}:shares"),
            replica,
            connection: None,
        })
    }

    /// Says what is wanted, hears what is granted.
    pub(super) async fn ask(&mut self, ask: Ask) -> Result<Grant, StoreError> {
        let answer = self.call(ask).await;
        if answer.is_err() {
            self.connection = None;
        }
        answer
    }

    /// Gives the share back to the others.
    pub(super) async fn leave(&mut self) -> Result<(), StoreError> {
        let Some(mut connection) = self.connection.take() else {
            return Ok(());
        };
        let mut command = redis::cmd("HDEL");
        command.arg(&self.table).arg(&self.replica);
        within(ANSWER_TIMEOUT, command.query_async::<()>(&mut connection)).await
    }

    async fn call(&mut self, ask: Ask) -> Result<Grant, StoreError> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        let connection = self.connection.insert(connection);
        let mut invocation = self.script.key(&self.table);
        invocation
            .arg(&self.replica)
            .arg(ask.demand)
            .arg(ask.claim)
            .arg(ask.found)
            .arg(LEASE.as_millis() as u64)
            .arg(SETTLING.as_millis() as u64)
            .arg(EVEN);
        let answer: Vec<String> = within(ANSWER_TIMEOUT, invocation.invoke_async(connection)).await?;
        grant(&answer).ok_or(StoreError::Answer(answer))
    }

    async fn connect(&self) -> Result<MultiplexedConnection, StoreError> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(Some(ANSWER_TIMEOUT));
        let connection = self.client.get_multiplexed_async_connection_with_config(&config);
        within(CONNECT_TIMEOUT, connection).await
    }
}

async fn within<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, RedisError>>,
) -> Result<T, StoreError> {
    let done = tokio::time::timeout(limit, work).await;
    Ok(done.map_err(|_| StoreError::Silent(limit))??)
}

fn grant(answer: &[String]) -> Option<Grant> {
    let [share, replicas, found] = answer else {
        return None;
    };
    Some(Grant {
        share: share
            .parse()
            .ok()
            .filter(|share: &f64| (0.0..=1.0).contains(share))?,
        replicas: replicas.parse().ok()?,
        found: found.parse().ok().filter(|found: &f64| found.is_finite())?,
    })
}
