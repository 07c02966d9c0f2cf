//! THE life of one connection, from accepted socket to its end: read [`live`] from top to bottom.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_rustls::server::TlsStream;

use crate::admission::{Outcome, Refusal, Request};
use crate::door::{Door, Knock, Permit, Waiting};
use crate::drain::Tasks;
use crate::mqtt::Protocol;
use crate::mqtt::connect::{self, Connect, ConnectError, Progress};
use crate::reason::Reason;
use crate::refusal::{self, Addressee};
use crate::relay::{self, Start, Traffic};
use crate::socket;
use crate::telemetry::Telemetry;
use crate::telemetry::ending::{Attempt, Decision, Ending, HandshakeFailure, Phase, Side};
use crate::telemetry::metrics::PhaseGuard;
use crate::tls;
use crate::upstream::{self, Answer, Brokers, NoAnswer, Upstream};

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
    /// `[refusal]`.
    pub refusal: refusal::Settings,
    /// `[upstream]`.
    pub upstream: upstream::Settings,
    /// `[relay]`.
    pub relay: relay::Settings,
    /// Certificates and versions.
    pub tls: tls::Acceptor,
}

/// What all connections share.
pub struct House {
    rules: ArcSwap<Rules>,
    door: Arc<Door>,
    brokers: Arc<Brokers>,
    telemetry: Telemetry,
    tasks: Tasks,
    accepted: AtomicU64,
}

/// A CONNECT is read in steps of at most this, so that a packet which declares much and sends little costs little.
const READ_STEP: usize = 4096;

/// Most bytes of a held client that are read ahead, to notice its leaving: what does not fit waits in its own socket.
const AHEAD: usize = 16 * 1024;

/// A held client that has sent more than [`AHEAD`] is looked at this often instead: its EOF is behind unread bytes.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

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

impl House {
    /// The house of one daemon.
    pub fn new(
        rules: Rules,
        door: Arc<Door>,
        brokers: Arc<Brokers>,
        telemetry: Telemetry,
        tasks: Tasks,
    ) -> Arc<Self> {
        let rules = ArcSwap::from_pointee(rules);
        Arc::new(Self {
            rules,
            door,
            brokers,
            telemetry,
            tasks,
            accepted: AtomicU64::new(0),
        })
    }

    /// Serves one accepted socket until its end, and writes down how it ended.
    pub async fn serve(self: Arc<Self>, socket: TcpStream, source: SocketAddr) {
        let number = self.accepted.fetch_add(1, Ordering::Relaxed) + 1;
        let accepted = Instant::now();
        let mut attempt = Attempt::new(number, source);
        let mut phase = self.telemetry.metrics().enter(Phase::Handshake);
        let end = live(&self, socket, accepted, &mut attempt, &mut phase).await;
        let ending = Ending {
            side: end.side,
            phase: phase.phase(),
            cause: end.cause,
            lasted: accepted.elapsed(),
            bytes_up: end.bytes_up,
            bytes_down: end.bytes_down,
        };
        drop(phase);
        self.telemetry.record(&mut attempt, &ending);
    }
}

/// The life of a connection.
async fn live(
    house: &Arc<House>,
    socket: TcpStream,
    accepted: Instant,
    attempt: &mut Attempt,
    phase: &mut PhaseGuard,
) -> End {
    let rules = house.rules.load_full();

    let deadline = accepted + rules.connection.handshake_timeout;
    let mut client = match rules.tls.accept(socket, deadline, accepted).await {
        Ok((client, handshake)) => {
            attempt.handshake = Some(Ok(handshake));
            house.telemetry.observe(attempt);
            client
        }
        Err(failure) => {
            attempt.handshake = Some(Err(failure));
            return after_failed_handshake(failure);
        }
    };

    phase.to(Phase::Connect);
    let (connect, mut bytes) = match read_connect(&mut client, &rules.connection).await {
        Ok(received) => received,
        Err(NoConnect::Invalid(error)) => return refuse_invalid(client, error, attempt, phase).await,
        Err(NoConnect::TimedOut) => return timed_out(client, attempt, phase).await,
        Err(NoConnect::Left) => {
            attempt.decision = Some(Decision::Left);
            return End::by(Side::Client, "left before its CONNECT");
        }
    };
    note(&connect, attempt);
    let addressee = Addressee {
        version: connect.version,
        maximum_packet_size: connect.maximum_packet_size,
    };

    let permit = match admit(house, &mut client, &mut bytes, &connect, attempt, phase).await {
        Ok(permit) => permit,
        Err(NotAdmitted::Refused(refusal)) => {
            return refuse(&rules, client, refusal, addressee, attempt, phase).await;
        }
        Err(NotAdmitted::Left) => {
            attempt.decision = Some(Decision::Left);
            return End::by(Side::Client, "left before its turn");
        }
    };

    phase.to(Phase::Dialing);
    let (mut broker, answer) =
        match open_upstream(house, &rules, &mut client, bytes, &connect, permit, attempt).await {
            Ok(opened) => opened,
            Err(NotOpened::NoBroker) => {
                let refusal = Refusal {
                    reason: Reason::NoBroker,
                    retry_after: None,
                };
                return refuse(&rules, client, refusal, addressee, attempt, phase).await;
            }
            Err(NotOpened::Left) => return End::by(Side::Client, "left before the CONNACK"),
        };
    house.telemetry.observe(attempt);

    phase.to(Phase::Relaying);
    let keep_alive = keep_alive(
        connect.keep_alive,
        answer.server_keep_alive,
        rules.relay.keepalive_factor,
    );
    drop(connect);
    let start = Start {
        up: answer.up,
        down: answer.down,
        keep_alive,
    };
    let traffic = Traffic::default();
    // A token of this connection's own: the relay polls it at every wake, and one that all share is a lock that all share.
    let draining = house.tasks.child_of_draining();
    let closing = async {
        draining.cancelled().await;
        "drain"
    };
    let end = relay::run(&mut client, &mut broker, start, &rules.relay, &traffic, closing).await;
    house.telemetry.metrics().relayed(end.bytes_up, end.bytes_down);
    End {
        side: end.side,
        cause: end.cause,
        bytes_up: end.bytes_up,
        bytes_down: end.bytes_down,
    }
}

fn after_failed_handshake(failure: HandshakeFailure) -> End {
    match failure {
        HandshakeFailure::Timeout => End::by(Side::Proxy, "handshake timed out"),
        HandshakeFailure::Gone => End::by(Side::Client, "left during the handshake"),
        HandshakeFailure::ClientAlert => End::by(Side::Client, "refused our handshake"),
        _ => End::by(Side::Proxy, "handshake failed"),
    }
}

/// Why there is no CONNECT.
enum NoConnect {
    Invalid(ConnectError),
    TimedOut,
    Left,
}

/// Reads up to the end of the CONNECT. What the client sent behind it stays behind it in the bytes.
async fn read_connect(
    client: &mut TlsStream<TcpStream>,
    settings: &Settings,
) -> Result<(Box<Connect>, Vec<u8>), NoConnect> {
    let deadline = Instant::now() + settings.connect_timeout;
    let mut bytes = Vec::new();
    let mut wanted = 0;
    loop {
        bytes.reserve(READ_STEP.min(settings.connect_max_size));
        match timeout_at(deadline, client.read_buf(&mut bytes)).await {
            Err(_) => return Err(NoConnect::TimedOut),
            Ok(Ok(0) | Err(_)) => return Err(NoConnect::Left),
            Ok(Ok(_)) if bytes.len() < wanted => {}
            Ok(Ok(_)) => match connect::read(&bytes, settings.connect_max_size) {
                Ok(Progress::Need(more)) => wanted = more,
                Ok(Progress::Complete(connect, _)) => return Ok((connect, bytes)),
                Err(error) => return Err(NoConnect::Invalid(error)),
            },
        }
    }
}

fn note(connect: &Connect, attempt: &mut Attempt) {
    attempt.protocol = Protocol::Known(connect.version);
    attempt.client_id = Some(connect.client_id.clone());
    attempt.clean = Some(connect.clean);
}

/// Why a CONNECT does not go on.
enum NotAdmitted {
    Refused(Refusal),
    Left,
}

/// Asks at the door, and waits there where it says so.
async fn admit(
    house: &Arc<House>,
    client: &mut TlsStream<TcpStream>,
    bytes: &mut Vec<u8>,
    connect: &Connect,
    attempt: &mut Attempt,
    phase: &mut PhaseGuard,
) -> Result<Permit, NotAdmitted> {
    if house.tasks.is_draining() {
        return Err(NotAdmitted::Refused(Refusal {
            reason: Reason::Draining,
            retry_after: None,
        }));
    }
    if socket::is_gone(client.get_ref().0) {
        return Err(NotAdmitted::Left);
    }
    let request = Request {
        client_id: &connect.client_id,
        persistent: connect.persistent(),
    };
    let (permit, would_refuse) = match house.door.knock(request) {
        Knock::Admitted { permit, would_refuse } => (permit, would_refuse),
        Knock::Refused(refusal) => return Err(NotAdmitted::Refused(refusal)),
        Knock::Held(waiting) => {
            phase.to(Phase::Held);
            let held = Instant::now();
            let turn = wait_for_turn(house, client, bytes, waiting).await;
            attempt.held = Some(held.elapsed());
            (turn?, None)
        }
    };
    attempt.decision = Some(Decision::Admitted { would_refuse });
    Ok(permit)
}

async fn wait_for_turn(
    house: &House,
    client: &mut TlsStream<TcpStream>,
    bytes: &mut Vec<u8>,
    waiting: Waiting,
) -> Result<Permit, NotAdmitted> {
    let permit = tokio::select! {
        turn = waiting => turn.map_err(NotAdmitted::Refused)?,
        () = leaves(client, bytes) => return Err(NotAdmitted::Left),
        () = house.tasks.draining() => {
            return Err(NotAdmitted::Refused(Refusal { reason: Reason::Draining, retry_after: None }));
        }
    };
    if socket::is_gone(client.get_ref().0) {
        permit.settle(Outcome::Unused);
        return Err(NotAdmitted::Left);
    }
    Ok(permit)
}

/// Ready when the client is gone. What it sends meanwhile is kept, up to a bound.
async fn leaves(client: &mut TlsStream<TcpStream>, bytes: &mut Vec<u8>) {
    let most = bytes.len() + AHEAD;
    while bytes.len() < most {
        if let Ok(0) | Err(_) = client.read_buf(bytes).await {
            return;
        }
    }
    while !socket::is_gone(client.get_ref().0) {
        sleep(LOOK_INTERVAL).await;
    }
}

/// Why there is no session with a broker.
enum NotOpened {
    NoBroker,
    Left,
}

/// Dials a broker, forwards the CONNECT and waits for its answer; settles the permit by what came of it.
async fn open_upstream(
    house: &House,
    rules: &Rules,
    client: &mut TlsStream<TcpStream>,
    bytes: Vec<u8>,
    connect: &Connect,
    permit: Permit,
    attempt: &mut Attempt,
) -> Result<(Upstream, Answer), NotOpened> {
    let server = 0;
    attempt.server = Some(server);
    let Ok(mut broker) = house.brokers.dial(server, rules.upstream.connect_timeout).await else {
        permit.settle(Outcome::Failed);
        return Err(NotOpened::NoBroker);
    };
    let patience = rules.upstream.connack_timeout;
    let answer = upstream::first_answer(client, &mut broker, bytes, connect.version, patience).await;
    let health = house.brokers.health(server);
    match answer {
        Ok(answer) => {
            permit.settle(Outcome::Answered {
                code: answer.code,
                latency: answer.latency,
            });
            attempt.connack = Some((answer.code, answer.latency));
            health.inspect(|health| health.succeeded());
            Ok((broker, answer))
        }
        Err(NoAnswer::ClientLeft) => {
            house.tasks.spawn(upstream::see_out(broker, patience, move || {
                permit.settle(Outcome::Abandoned);
            }));
            Err(NotOpened::Left)
        }
        Err(NoAnswer::BrokerFailed) => {
            permit.settle(Outcome::Failed);
            health.inspect(|health| health.failed());
            Err(NotOpened::NoBroker)
        }
        Err(NoAnswer::TimedOut) => {
            permit.settle(Outcome::TimedOut);
            health.inspect(|health| health.stayed_silent());
            Err(NotOpened::NoBroker)
        }
    }
}

/// How long the client may stay silent ([MQTT-3.1.2-22] of 5.0, [MQTT-3.1.2-24] of 3.1.1); a keep-alive of the
/// broker's replaces its own ([MQTT-3.2.2-21]).
fn keep_alive(client: u16, broker: Option<u16>, factor: f64) -> Option<Duration> {
    match broker.unwrap_or(client) {
        0 => None,
        seconds => Some(Duration::from_secs_f64(f64::from(seconds) * factor)),
    }
}

/// Tells a client why it does not get in.
async fn refuse(
    rules: &Rules,
    client: TlsStream<TcpStream>,
    refusal: Refusal,
    addressee: Addressee,
    attempt: &mut Attempt,
    phase: &mut PhaseGuard,
) -> End {
    attempt.decision = Some(Decision::Refused(refusal.reason));
    phase.to(Phase::Refusing);
    let answer = refusal::answer(refusal.reason, addressee, &rules.refusal);
    refusal::close(client, answer.as_deref()).await;
    End::by(Side::Proxy, refusal.reason.word())
}

async fn refuse_invalid(
    client: TlsStream<TcpStream>,
    error: ConnectError,
    attempt: &mut Attempt,
    phase: &mut PhaseGuard,
) -> End {
    let (reason, answer) = refusal::answer_invalid(error);
    attempt.decision = Some(Decision::Invalid(reason));
    phase.to(Phase::Refusing);
    refusal::close(client, answer.as_deref()).await;
    End::by(Side::Proxy, "invalid CONNECT")
}

async fn timed_out(client: TlsStream<TcpStream>, attempt: &mut Attempt, phase: &mut PhaseGuard) -> End {
    attempt.decision = Some(Decision::TimedOut);
    phase.to(Phase::Refusing);
    refusal::close(client, None).await;
    End::by(Side::Proxy, "no CONNECT in time")
}
