//! All brokers: which there are, in which order they are tried, which of them can be used.
//!
//! A broker keeps its index for the life of the process, whatever a reload makes of the list: who dials it while the list
//! changes reports on the one that it dialled.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::time::{sleep, timeout};

use super::dial::{Broker, DialError, Introduction, Upstream, Way};
use super::pick::{self, Balance, Candidates};
use super::{Health, Server};
use crate::proxy_header;
use crate::tls::connector::Connector;

/// Names are looked up this often, beside the connections and not on their path: a resolver that hangs must not hold
/// a CONNECT. Short enough to follow a broker that was moved within a client's patience.
const LOOKUP_INTERVAL: Duration = Duration::from_secs(5);

/// A broker that failed is dialled this often to see whether it is back: without that a proxy which a load balancer
/// took out for not being ready would never see a client again.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// How long a start or a reload waits for the addresses of new names; what comes later is found by the next look.
const LOOKUP_PATIENCE: Duration = Duration::from_secs(3);

/// Most brokers in the life of a process, those that were taken away included: each keeps its index and its series in
/// the metrics. Sixteen times what a configuration may list.
const MOST_KNOWN: usize = 1024;

/// The brokers that can be dialled.
#[derive(Debug)]
pub struct Brokers {
    table: ArcSwap<Table>,
    picked: AtomicUsize,
    /// Dials so far: turns through `upstream.source_addresses`.
    dialled: AtomicUsize,
}

/// How brokers that failed are tried.
#[derive(Clone, Debug)]
pub struct Probing {
    /// Deadline of each attempt.
    pub limit: Duration,
    /// TLS, where clients' dials have it.
    pub connector: Option<Connector>,
    /// The header that a broker expects before it.
    pub header: Option<proxy_header::Version>,
}

impl Probing {
    fn way(&self) -> Way<'_> {
        let introduction = self.header.map_or(Introduction::Client(&[]), Introduction::Own);
        Way {
            // From any address: one connection that is closed at once.
            sources: &[],
            tls: self.connector.as_ref().map(|connector| (connector, introduction)),
        }
    }
}

/// Immutable; a reload makes another one.
#[derive(Debug, Default)]
struct Table {
    /// All that ever were, by index.
    known: Vec<Arc<Broker>>,
    /// The indices of those in use, in the order of the configuration.
    in_use: Vec<usize>,
    /// What the names of those in use hash to, in the same order.
    names: Vec<u64>,
}

/// Other brokers, which are not in use before [`Brokers::take`].
#[derive(Debug)]
pub struct Renewal(Table);

/// A process has seen more brokers than it can keep apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "upstream.servers: this process has seen {MOST_KNOWN} different brokers and takes no new one: restart it"
)]
pub struct TooManyBrokers;

impl Brokers {
    /// The brokers of a configuration, up to 64 of them. Names have no addresses before [`Self::look_up`] has run.
    pub fn new(servers: &[Server]) -> Arc<Self> {
        Arc::new(Self {
            table: ArcSwap::from_pointee(Table::default().renewed(servers)),
            picked: AtomicUsize::new(0),
            dialled: AtomicUsize::new(0),
        })
    }

    /// As [`Self::look_up`], for no longer than a start may take; what comes later is found by the next look.
    pub async fn look_up_in_time(&self) {
        if timeout(LOOKUP_PATIENCE, self.look_up()).await.is_err() {
            tracing::warn!("upstream.servers: not all names are looked up yet");
        }
    }

    /// What a reload makes of them, with new names looked up. Those that stay keep their index and what is known of them.
    pub async fn renewed(&self, servers: &[Server]) -> Result<Renewal, TooManyBrokers> {
        let before = self.table.load_full();
        let table = before.renewed(servers);
        if table.known.len() > MOST_KNOWN {
            return Err(TooManyBrokers);
        }
        let new = table
            .in_use
            .iter()
            .filter(|server| !before.in_use.contains(server));
        let looking = async {
            for broker in new.filter_map(|server| table.known.get(*server)) {
                broker.look_up().await;
            }
        };
        if timeout(LOOKUP_PATIENCE, looking).await.is_err() {
            tracing::warn!("upstream.servers: the names of new brokers are not looked up yet");
        }
        Ok(Renewal(table))
    }

    /// Uses other brokers from now on.
    pub fn take(&self, renewal: Renewal) {
        self.table.store(Arc::new(renewal.0));
    }

    /// The indices of all brokers in use, in the order in which they are to be tried for this client.
    pub fn order(&self, balance: Balance, client_id: &str) -> Vec<usize> {
        let table = self.table.load();
        let open = |broker: &Arc<Broker>| broker.open.load(Ordering::Relaxed);
        let open: Vec<usize> = table.brokers().map(|(_, broker)| open(broker)).collect();
        let candidates = Candidates {
            names: &table.names,
            open: &open,
            turn: self.picked.fetch_add(1, Ordering::Relaxed),
        };
        let mut order = pick::order(balance, client_id, candidates);
        for place in &mut order {
            *place = table.in_use.get(*place).copied().unwrap_or(usize::MAX);
        }
        order
    }

    /// Dials the broker with this index, TLS included, all within `limit`.
    pub async fn dial(&self, server: usize, limit: Duration, way: &Way<'_>) -> Result<Upstream, DialError> {
        let broker = self.broker(server).ok_or(DialError::Unresolved)?;
        let turn = self.dialled.fetch_add(1, Ordering::Relaxed);
        match broker.dial(way, turn, limit).await {
            Ok(stream) => Ok(Upstream::counted(stream, &broker.open)),
            // That is our want of ports, and says nothing of the broker.
            Err(DialError::NoPort) => Err(DialError::NoPort),
            Err(error) => {
                broker.health.unreachable(&error);
                Err(error)
            }
        }
    }

    /// Notes how a CONNECT came out on the broker with this index.
    pub fn note(&self, server: usize, note: impl FnOnce(&Health)) {
        if let Some(broker) = self.broker(server) {
            note(&broker.health);
        }
    }

    /// Whether any broker can be used.
    pub fn any_up(&self) -> bool {
        self.table
            .load()
            .brokers()
            .any(|(_, broker)| broker.health.is_up())
    }

    /// The index of each broker in use, and whether it can be used.
    pub fn up(&self) -> Vec<(usize, bool)> {
        let table = self.table.load();
        table
            .brokers()
            .map(|(server, broker)| (server, broker.health.is_up()))
            .collect()
    }

    /// What keeps us from each broker in use, by index; nothing from those that are not in the list.
    pub fn troubles(&self) -> Vec<(usize, String)> {
        let table = self.table.load();
        table
            .brokers()
            .filter_map(|(server, broker)| Some((server, broker.health.trouble()?)))
            .collect()
    }

    /// Dials the brokers that failed until they take a connection again, as `probing` says at the moment; those alone that
    /// `may_dial` allows. Where there is TLS, all of them once under each new setting: nobody should learn from his
    /// clients that a certificate is not trusted.
    pub async fn keep_probing(
        self: Arc<Self>,
        probing: impl Fn() -> Probing,
        may_dial: impl Fn(usize) -> bool,
    ) {
        let mut tried: Option<Connector> = None;
        loop {
            let now = probing();
            let is_new = match (&now.connector, &tried) {
                (Some(connector), Some(tried)) => !connector.is(tried),
                (connector, _) => connector.is_some(),
            };
            let table = self.table.load_full();
            let due = |(server, broker): &(usize, &Arc<Broker>)| {
                (is_new || broker.health.wants_probe()) && may_dial(*server)
            };
            for (_, broker) in table.brokers().filter(due) {
                match broker.probe(&now.way(), now.limit).await {
                    Ok(()) => broker.health.succeeded(),
                    Err(DialError::NoPort) => {}
                    Err(error) => broker.health.unreachable(&error),
                }
            }
            drop(table);
            tried = now.connector;
            sleep(PROBE_INTERVAL).await;
        }
    }

    /// Looks up every name once. A name that is not found keeps the addresses that it had.
    pub async fn look_up(&self) {
        let table = self.table.load_full();
        for (_, broker) in table.brokers().filter(|(_, broker)| broker.is_name()) {
            broker.look_up().await;
        }
    }

    /// Looks names up again and again.
    pub async fn keep_looking_up(self: Arc<Self>) {
        loop {
            sleep(LOOKUP_INTERVAL).await;
            self.look_up().await;
        }
    }

    fn broker(&self, server: usize) -> Option<Arc<Broker>> {
        self.table.load().known.get(server).cloned()
    }
}

impl Renewal {
    /// The names of all brokers that ever were, by index.
    pub fn names(&self) -> Vec<String> {
        let known = self.0.known.iter();
        known.map(|broker| broker.server.name.clone()).collect()
    }

    /// The indices of those that are not in use any more.
    pub fn retired(&self) -> Vec<usize> {
        (0..self.0.known.len())
            .filter(|server| !self.0.in_use.contains(server))
            .collect()
    }
}

impl Table {
    fn renewed(&self, servers: &[Server]) -> Self {
        let mut known = self.known.clone();
        let mut in_use = Vec::with_capacity(servers.len());
        for server in servers {
            let index = known.iter().position(|broker| broker.server == *server);
            in_use.push(index.unwrap_or(known.len()));
            if index.is_none() {
                known.push(Arc::new(Broker::new(server, known.len())));
            }
        }
        Self {
            known,
            in_use,
            names: servers
                .iter()
                .map(|server| pick::fingerprint(&server.name))
                .collect(),
        }
    }

    /// Those in use, with their indices.
    fn brokers(&self) -> impl Iterator<Item = (usize, &Arc<Broker>)> {
        self.in_use
            .iter()
            .filter_map(|server| Some((*server, self.known.get(*server)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::Endpoint;

    fn servers(ports: &[u16]) -> Vec<Server> {
        let server = |port: &u16| Server {
            name: format!("127.0.0.1:{port}"),
            endpoint: Endpoint::Address(([127, 0, 0, 1], *port).into()),
        };
        ports.iter().map(server).collect()
    }

    async fn reload(brokers: &Brokers, ports: &[u16]) -> (Vec<String>, Vec<usize>) {
        let renewal = brokers.renewed(&servers(ports)).await.unwrap();
        let seen = (renewal.names(), renewal.retired());
        brokers.take(renewal);
        seen
    }

    fn in_turn(brokers: &Brokers) -> Vec<usize> {
        let mut order = brokers.order(Balance::RoundRobin, "client");
        order.sort_unstable();
        order
    }

    #[tokio::test]
    async fn a_broker_keeps_its_index_and_what_is_known_of_it() {
        let brokers = Brokers::new(&servers(&[1, 2]));
        brokers.note(1, Health::failed);
        let (names, retired) = reload(&brokers, &[3, 2]).await;
        assert_eq!(names, ["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"]);
        assert_eq!((retired, in_turn(&brokers)), (vec![0], vec![1, 2]));
        assert_eq!(brokers.up(), [(2, true), (1, false)], "in the order of the list");
        let (names, retired) = reload(&brokers, &[1]).await;
        assert_eq!((names.len(), retired), (3, vec![1, 2]));
        assert_eq!(in_turn(&brokers), [0]);
    }

    /// The order of a client must not depend on when a broker came.
    #[tokio::test]
    async fn the_order_by_client_id_is_that_of_a_fresh_start() {
        let brokers = Brokers::new(&servers(&[7, 1]));
        reload(&brokers, &[1, 2, 3]).await;
        let fresh = Brokers::new(&servers(&[1, 2, 3]));
        for number in 0..100 {
            let client = format!("client-{number}");
            let names = |brokers: &Brokers| -> Vec<String> {
                let order = brokers.order(Balance::ClientId, &client);
                let name = |server| brokers.broker(server).unwrap().server.name.clone();
                order.into_iter().map(name).collect()
            };
            assert_eq!(names(&brokers), names(&fresh), "{client}");
        }
    }

    #[tokio::test]
    async fn brokers_without_end_are_refused() {
        let brokers = Brokers::new(&servers(&[1]));
        let ports: Vec<u16> = (1..=1024).collect();
        reload(&brokers, &ports).await;
        assert_eq!(
            brokers.renewed(&servers(&[1025])).await.unwrap_err(),
            TooManyBrokers
        );
        assert!(brokers.renewed(&servers(&[1024])).await.is_ok());
    }
}
