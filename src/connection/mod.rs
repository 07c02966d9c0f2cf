//! THE life of one connection, from accepted socket to its end: read `Life::live` from top to bottom.

mod admit;
mod handshake;
mod introduce;
mod open;
mod origin;
mod part;
mod receive;
mod refuse;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::server::TlsStream;

use self::handshake::NoHandshake;
use self::open::NoSession;
use self::origin::NoOrigin;
use self::receive::NoConnect;
use crate::door::Door;
use crate::drain::{self, Tasks};
use crate::gate::{Gate, Visitor};
use crate::mqtt::Protocol;
use crate::mqtt::connect::Connect;
use crate::proxy_header::{self, Header};
use crate::refusal::{self, Addressee, Delayed};
use crate::relay::{self, Traffic};
use crate::socket;
use crate::telemetry::ending::{Attempt, Decision, Ending, HandshakeFailure, Phase, Side};
use crate::telemetry::metrics::{PhaseGuard, Shed};
use crate::telemetry::{Telemetry, wall_clock};
use crate::tls::connector::Connector;
use crate::tls::{self, pool::Pool};
use crate::upstream::{self, Brokers, Probing};

/// `[handshake]` and `[connect]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Accept to the end of the handshake.
    pub handshake_timeout: Duration,
    /// End of the handshake to a whole CONNECT.
    pub connect_timeout: Duration,
    /// Largest CONNECT in bytes, the whole packet.
    pub connect_max_size: usize,
}

/// What a connection goes by; taken once at its start, so that a reload never changes the rules under its feet.
#[derive(Clone, Debug)]
pub struct Rules {
    /// `[handshake]` and `[connect]`.
    pub connection: Settings,
    /// `listen.proxy_protocol` and `listen.trusted_proxies`.
    pub proxy_header: proxy_header::Settings,
    /// `[refusal]`.
    pub refusal: refusal::Settings,
    /// `[upstream]`.
    pub upstream: upstream::Settings,
    /// `[relay]`.
    pub relay: relay::Settings,
    /// `[drain]`; what is in effect when it begins counts, for all connections.
    pub drain: drain::Settings,
    /// Certificates and versions.
    pub tls: tls::Acceptor,
    /// `[upstream.tls]`, loaded; `None`: brokers are spoken to in plain.
    pub connector: Option<Connector>,
}

/// What all connections share.
pub struct House {
    rules: ArcSwap<Rules>,
    gate: Arc<Gate>,
    pool: Arc<Pool>,
    door: Arc<Door>,
    brokers: Arc<Brokers>,
    telemetry: Telemetry,
    tasks: Tasks,
    traffic: Traffic,
    delayed: Delayed,
    accepted: AtomicU64,
}

impl House {
    /// The house of one daemon.
    pub fn new(
        rules: Rules,
        gate: Arc<Gate>,
        pool: Arc<Pool>,
        door: Arc<Door>,
        brokers: Arc<Brokers>,
        telemetry: Telemetry,
        tasks: Tasks,
    ) -> Arc<Self> {
        let rules = ArcSwap::from_pointee(rules);
        let accepted = AtomicU64::new(0);
        Arc::new(Self {
            rules,
            gate,
            pool,
            door,
            brokers,
            telemetry,
            tasks,
            traffic: Traffic::default(),
            delayed: Delayed::default(),
            accepted,
        })
    }

    /// What connections report to.
    pub fn telemetry(&self) -> &Telemetry {
        &self.telemetry
    }

    /// Bytes relayed by all connections.
    pub fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// `[drain]` as it is now.
    pub fn drain(&self) -> drain::Settings {
        self.rules.load().drain
    }

    /// The threads for handshakes.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// What connections that come now go by.
    pub fn rules(&self) -> Arc<Rules> {
        self.rules.load_full()
    }

    /// How brokers that failed are to be tried now.
    pub fn probing(&self) -> Probing {
        let rules = self.rules.load();
        Probing {
            limit: rules.upstream.connect_timeout,
            connector: rules.connector.clone(),
            header: rules.upstream.proxy_header,
        }
    }

    /// Other rules for the connections that come from now on.
    pub fn replace_rules(&self, rules: Rules) {
        self.rules.store(Arc::new(rules));
    }

    /// Other certificates for the connections that come from now on.
    pub fn replace_tls(&self, tls: &tls::Acceptor, connector: Option<&Connector>) {
        self.rules.rcu(|rules| Rules {
            tls: tls.clone(),
            connector: connector.cloned(),
            ..Rules::clone(rules)
        });
    }

    /// Serves one socket until its end, and writes down how it ended. It was accepted at `accepted`, which is not when its
    /// task first runs: in a crowd that is in another order, and the gate wants the newest first.
    pub async fn serve(self: Arc<Self>, socket: TcpStream, source: SocketAddr, accepted: Instant) {
        let number = self.accepted.fetch_add(1, Ordering::Relaxed) + 1;
        let mut attempt = Attempt::new(number, source);
        attempt.accepted = wall_clock().checked_sub(accepted.elapsed());
        let mut life = Life {
            rules: self.rules.load_full(),
            accepted,
            attempt,
            header: None,
            phase: self.telemetry.metrics().enter(Phase::Handshake),
            house: &self,
        };
        let end = life.live(socket).await;
        let ending = Ending {
            side: end.side,
            phase: life.phase.phase(),
            cause: end.cause,
            lasted: life.accepted.elapsed(),
            bytes_up: end.bytes_up,
            bytes_down: end.bytes_down,
        };
        self.telemetry.record(&mut life.attempt, &ending);
    }
}

/// The client's socket once TLS is up. Boxed: it is handed from step to step, and each would keep room for its own
/// 1.2 kB of it in the connection's task, which lives as long as the session.
type Client = Box<TlsStream<TcpStream>>;

/// How a life ended; phase and duration are known to whoever asks.
struct End {
    side: Side,
    cause: &'static str,
    bytes_up: u64,
    bytes_down: u64,
}

impl End {
    const fn by(side: Side, cause: &'static str) -> Self {
        Self {
            side,
            cause,
            bytes_up: 0,
            bytes_down: 0,
        }
    }
}

/// One connection, as far as it has come.
struct Life<'house> {
    house: &'house Arc<House>,
    rules: Arc<Rules>,
    accepted: Instant,
    attempt: Attempt,
    /// What a balancer said of it; boxed, since most connections have none and are many.
    header: Option<Box<Header>>,
    phase: PhaseGuard,
}

impl Life<'_> {
    /// The life of a connection.
    async fn live(&mut self, socket: TcpStream) -> End {
        // Counts for its address until the end of this life.
        let (socket, begun, _visitor) = match self.arrive(socket).await {
            Ok(arrived) => arrived,
            Err(end) => return end,
        };

        let mut client = match self.shake_hands(socket, begun).await {
            Ok(client) => client,
            Err(without) => return without.end(),
        };

        self.phase.to(Phase::Connect);
        let (connect, bytes) = match receive::connect(&mut client, &self.rules.connection).await {
            Ok(received) => received,
            Err(NoConnect::Invalid(error)) => return self.refuse_invalid(client, error).await,
            Err(NoConnect::TimedOut) => return self.give_up_waiting(client).await,
            Err(NoConnect::Left) if self.is_health_check() => return End::by(Side::Client, "health check"),
            Err(NoConnect::Left) => return self.left("left before its CONNECT"),
        };
        self.note(&connect);

        let opened = match self.find_broker(&mut client, bytes, &connect).await {
            Ok(opened) => opened,
            Err(NoSession::Refused(refusal)) => return self.refuse(client, connect, refusal).await,
            Err(NoSession::LeftBefore) => return self.left("left before its turn"),
            Err(NoSession::Left) => return End::by(Side::Client, "left before the CONNACK"),
            Err(NoSession::Unauthenticated(how)) => {
                return self.refuse_unauthenticated(client, connect, how).await;
            }
        };
        self.house.telemetry.observe(&mut self.attempt);

        self.phase.to(Phase::Relaying);
        let keep_alive = open::keep_alive(&connect, &opened.answer, &self.rules.relay);
        let addressee = Addressee::of(&connect);
        drop(connect);
        self.relay(client, opened, keep_alive, addressee).await
    }

    /// Finds out whose connection it is, and whether there is room for one more of that address.
    async fn arrive(&mut self, socket: TcpStream) -> Result<(TcpStream, Vec<u8>, Option<Visitor>), End> {
        // Who can't speak for another is counted before his first byte is waited for.
        if !self.rules.proxy_header.may_name_another(self.attempt.source.ip()) {
            let visitor = self.count(&socket)?;
            let (socket, begun) = self.identify(socket).await?;
            return Ok((socket, begun, visitor));
        }
        let (socket, begun) = self.identify(socket).await?;
        // A balancer that is turned away when it looks if we live takes all its clients elsewhere.
        let visitor = if self.is_health_check() {
            None
        } else {
            self.count(&socket)?
        };
        Ok((socket, begun, visitor))
    }

    /// Counts it for its address. `None`: it is one too many, and a dry run turns nobody away.
    fn count(&mut self, socket: &TcpStream) -> Result<Option<Visitor>, End> {
        match self.house.gate.arrive(self.attempt.source.ip()) {
            Ok(visitor) => Ok(Some(visitor)),
            Err(limit) if self.house.door.is_dry_run() => {
                self.house.telemetry.metrics().would_shed(limit);
                self.attempt.would_shed = Some(limit);
                Ok(None)
            }
            Err(limit) => Err(self.shed(socket, limit.into())),
        }
    }

    /// Whom the connection speaks for: from here on the real source is what counts. Returns what was read of the client.
    async fn identify(&mut self, mut socket: TcpStream) -> Result<(TcpStream, Vec<u8>), End> {
        let peer = self.attempt.source;
        let deadline = self.handshake_deadline();
        let failure = match origin::read(&mut socket, peer, &self.rules.proxy_header, deadline).await {
            Ok((header, begun)) => {
                if let Some(Header::Proxied(route)) = header {
                    self.attempt.source = route.source();
                }
                self.header = header.map(Box::new);
                return Ok((socket, begun));
            }
            Err(NoOrigin::Refused(refused)) => {
                self.house.telemetry.metrics().shed(Shed::ProxyHeader);
                refusal::close_before_tls(socket).await;
                return Err(End::by(Side::Proxy, refused.cause()));
            }
            Err(NoOrigin::TimedOut) => HandshakeFailure::Timeout,
            Err(NoOrigin::Left) => HandshakeFailure::Gone,
        };
        self.attempt.handshake = Some(Err(failure));
        Err(NoHandshake::Failed(failure).end())
    }

    fn handshake_deadline(&self) -> Instant {
        self.accepted + self.rules.connection.handshake_timeout
    }

    /// Whether a balancer has come to see if we live: its leaving is no failure of anybody.
    fn is_health_check(&self) -> bool {
        self.header.as_deref() == Some(&Header::Local)
    }

    fn shed(&self, socket: &TcpStream, reason: Shed) -> End {
        self.house.telemetry.metrics().shed(reason);
        socket::reset(socket);
        End::by(Side::Proxy, reason.word())
    }

    fn note(&mut self, connect: &Connect) {
        self.attempt.protocol = Protocol::Known(connect.version);
        self.attempt.client_id = Some(connect.client_id.clone());
        self.attempt.clean = Some(connect.clean);
    }

    fn left(&mut self, cause: &'static str) -> End {
        self.attempt.decision = Some(Decision::Left);
        End::by(Side::Client, cause)
    }
}
