//! From a CONNECT to a session: a permit, a broker that can be dialled, its answer.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::admit::{NotAdmitted, leaves};
use super::{Client, Life};
use crate::admission::brokers::Report;
use crate::admission::memory::Key;
use crate::admission::{Outcome, Refusal};
use crate::door::{self, Door, Permit};
use crate::mqtt::connect::Connect;
use crate::mqtt::framing::Framing;
use crate::reason::Reason;
use crate::relay;
use crate::telemetry::ending::Phase;
use crate::upstream::{
    self, Answer, DialError, Health, Introduction, NoAnswer, Patience, Unauthenticated, Upstream, Way,
};

/// A session with a broker.
pub(super) struct Opened {
    pub(super) broker: Upstream,
    pub(super) answer: Answer,
    /// To be kept for as long as the session lasts.
    pub(super) session: door::Session,
}

/// Why there is no session with a broker.
pub(super) enum NoSession {
    /// The client is answered.
    Refused(Refusal),
    /// The client left before it was admitted.
    LeftBefore,
    /// The client left before the broker's answer.
    Left,
    /// The client did not bring its authentication to an end.
    Unauthenticated(Unauthenticated),
}

impl From<NotAdmitted> for NoSession {
    fn from(not_admitted: NotAdmitted) -> Self {
        match not_admitted {
            NotAdmitted::Refused(refusal) => Self::Refused(refusal),
            NotAdmitted::Left => Self::LeftBefore,
        }
    }
}

/// Between two rounds of dials that all failed, for a client that may wait: short beside any client's patience, and long
/// enough for a refused dial to cost nothing.
const DIAL_PAUSE: Duration = Duration::from_millis(100);

/// Why there is no connection to a broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NotDialled {
    /// None was to be dialled: every breaker is open.
    Shut,
    /// Those that were did not take it.
    Failed,
}

impl Life<'_> {
    /// Asks at the door, dials, forwards the CONNECT and waits for the answer. Where no broker can be dialled it knocks
    /// again, as long as it may wait at all: a broker that restarts is waited for.
    pub(super) async fn find_broker(
        &mut self,
        client: &mut Client,
        mut bytes: Vec<u8>,
        connect: &Connect,
    ) -> Result<Opened, NoSession> {
        let door = &self.house.door;
        let mut arrival = self.arrival(client, connect);
        self.attempt.lane = arrival.label;
        let came = door.now();
        loop {
            let permit = self.admit(client, &mut bytes, &arrival).await?;
            self.phase.to(Phase::Dialing);
            let Ok(header) = self.introduction(client) else {
                permit.settle(Outcome::Unused);
                return Err(NoSession::Left);
            };
            let dialled = tokio::select! {
                // First: who leaves when there is a broker has it told so.
                biased;
                dialled = self.dial(&connect.client_id, &header) => dialled,
                () = leaves(client, &mut bytes) => {
                    permit.settle(Outcome::Unused);
                    return Err(NoSession::Left);
                }
            };
            match dialled {
                Ok(dialled) => {
                    let opening = Opening::new(&dialled.broker, header, bytes);
                    return self
                        .open(client, opening, connect, (permit, arrival.client), dialled)
                        .await;
                }
                Err(NotDialled::Shut) => permit.settle(Outcome::Unused),
                Err(NotDialled::Failed) => {
                    permit.settle(Outcome::Failed);
                    if !door.may_wait(came) {
                        return Err(refused(Reason::NoBroker));
                    }
                    sleep(DIAL_PAUSE).await;
                }
            }
            if arrival.since.is_some() && !door.may_wait(came) {
                return Err(refused(Reason::BreakerOpen));
            }
            arrival.since = Some(came);
        }
    }

    /// The first broker of this client's order that may be dialled and can be. A dry run refuses nobody: it dials those
    /// behind an open breaker as well, after the others.
    async fn dial(&mut self, client_id: &str, header: &[u8]) -> Result<Dialled, NotDialled> {
        let (house, settings) = (self.house, &self.rules.upstream);
        let mut shut = Vec::new();
        let mut failed = NotDialled::Shut;
        for server in house.brokers.order(settings.balance, client_id) {
            if !house.door.may_dial(server) {
                shut.push(server);
                continue;
            }
            failed = NotDialled::Failed;
            if let Some(dialled) = self.dial_one(server, header).await {
                return Ok(dialled);
            }
        }
        if house.door.is_dry_run() {
            for server in shut {
                failed = NotDialled::Failed;
                if let Some(dialled) = self.dial_one(server, header).await {
                    return Ok(dialled);
                }
            }
        }
        Err(failed)
    }

    async fn dial_one(&mut self, server: usize, header: &[u8]) -> Option<Dialled> {
        let trial = Trial::new(&self.house.door, server);
        self.attempt.server = Some(server);
        let (settings, metrics) = (&self.rules.upstream, self.house.telemetry.metrics());
        let way = Way {
            sources: &settings.source_addresses,
            tls: self
                .rules
                .connector
                .as_ref()
                .map(|connector| (connector, Introduction::Client(header))),
        };
        let dialled = self.house.brokers.dial(server, settings.connect_timeout, &way);
        match dialled.await {
            Ok(broker) => {
                if let Some(kind) = broker.handshake() {
                    metrics.upstream_handshake(server, Some(kind));
                }
                Some(Dialled { broker, trial })
            }
            Err(DialError::NoPort) => {
                metrics.no_port(server);
                None
            }
            Err(error) => {
                if let DialError::Tls(_) = error {
                    metrics.upstream_handshake(server, None);
                }
                tracing::debug!(server, %error, "a broker can't be dialled");
                trial.tell(Report::Failed);
                None
            }
        }
    }

    /// Forwards the CONNECT and waits for its answer; settles the permit by what came of it.
    async fn open(
        &mut self,
        client: &mut Client,
        opening: Opening,
        connect: &Connect,
        (permit, key): (Permit, Option<Key>),
        dialled: Dialled,
    ) -> Result<Opened, NoSession> {
        let Dialled { mut broker, trial } = dialled;
        let Opening {
            bytes,
            header,
            framing,
        } = opening;
        // What a client may take for its CONNECT, it may take for what it has still to say before it is in.
        let patience = Patience {
            broker: self.rules.upstream.connack_timeout,
            client: self.rules.connection.connect_timeout,
        };
        let answer =
            upstream::first_answer(client, &mut broker, bytes, framing, connect.version, patience).await;
        let brokers = &self.house.brokers;
        let server = trial.server;
        match answer {
            Ok(mut answer) => {
                answer.bytes_up = answer.bytes_up.saturating_sub(header as u64);
                self.attempt.connack = Some((answer.code, answer.latency));
                brokers.note(server, Health::succeeded);
                trial.tell(Report::Answered);
                let session = permit.answered(answer.code, answer.latency);
                Ok(Opened {
                    broker,
                    answer,
                    session,
                })
            }
            Err(NoAnswer::ClientLeft) => {
                self.abandon(broker, permit, trial);
                Err(NoSession::Left)
            }
            Err(NoAnswer::Unauthenticated(how)) => {
                self.abandon(broker, permit, trial);
                Err(NoSession::Unauthenticated(how))
            }
            Err(NoAnswer::BrokerFailed) => {
                // One client that it does not like must not speak for it: neither breaker nor rate nor health.
                let suspect = self.house.door.suspect(key, self.attempt.source.ip());
                if trial.tell(Report::BrokeOff(suspect)) {
                    permit.settle(Outcome::Failed);
                    brokers.note(server, Health::failed);
                } else {
                    permit.settle(Outcome::Abandoned);
                }
                Err(refused(Reason::NoBroker))
            }
            Err(NoAnswer::BrokeTls(error)) => {
                tracing::debug!(server, %error, "a broker has ended TLS");
                trial.tell(Report::Failed);
                permit.settle(Outcome::Failed);
                brokers.note(server, |health| health.unreachable(&error));
                Err(refused(Reason::NoBroker))
            }
            Err(NoAnswer::TimedOut) => {
                trial.tell(Report::Failed);
                permit.settle(Outcome::TimedOut);
                brokers.note(server, Health::stayed_silent);
                Err(refused(Reason::NoBroker))
            }
        }
    }

    /// Lets the broker finish what it began for a client that will not have it.
    fn abandon(&self, broker: Upstream, permit: Permit, trial: Trial) {
        let settle = move || {
            trial.tell(Report::Abandoned);
            permit.settle(Outcome::Abandoned);
        };
        let patience = self.rules.upstream.connack_timeout;
        self.house
            .tasks
            .spawn(upstream::see_out(broker, patience, settle));
    }
}

/// A broker that took a connection.
struct Dialled {
    broker: Upstream,
    trial: Trial,
}

/// What is said first to a broker.
struct Opening {
    bytes: Vec<u8>,
    /// How many of them are the header, which is no part of the session.
    header: usize,
    /// Where the client's packets stand behind them.
    framing: Framing,
}

impl Opening {
    /// The header for a broker behind TLS was said before the handshake; in plain it leaves in one write with the CONNECT.
    fn new(broker: &Upstream, header: Vec<u8>, bytes: Vec<u8>) -> Self {
        let mut framing = Framing::new();
        framing.feed(&bytes);
        if header.is_empty() || broker.handshake().is_some() {
            return Self {
                bytes,
                header: 0,
                framing,
            };
        }
        Self {
            header: header.len(),
            bytes: [header, bytes].concat(),
            framing,
        }
    }
}

/// One attempt on one broker: told how it came out, or abandoned when it is dropped, so that no probe is lost.
struct Trial {
    door: Arc<Door>,
    server: usize,
    told: bool,
}

impl Trial {
    fn new(door: &Arc<Door>, server: usize) -> Self {
        Self {
            door: Arc::clone(door),
            server,
            told: false,
        }
    }

    /// Whether it speaks against the broker.
    fn tell(mut self, report: Report) -> bool {
        self.told = true;
        self.door.report(self.server, report)
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        if !self.told {
            self.door.report(self.server, Report::Abandoned);
        }
    }
}

fn refused(reason: Reason) -> NoSession {
    NoSession::Refused(Refusal::new(reason))
}

/// How long the client may stay silent ([MQTT-3.1.2-22] of 5.0, [MQTT-3.1.2-24] of 3.1.1); a keep-alive of the
/// broker's replaces its own ([MQTT-3.2.2-21]).
pub(super) fn keep_alive(connect: &Connect, answer: &Answer, settings: &relay::Settings) -> Option<Duration> {
    match answer.server_keep_alive.unwrap_or(connect.keep_alive) {
        0 => None,
        seconds => Some(Duration::from_secs_f64(
            f64::from(seconds) * settings.keepalive_factor,
        )),
    }
}
