//! From a permit to a session: dial, forward, wait for the answer, settle.

use std::time::Duration;

use super::{Client, Life};
use crate::admission::{Outcome, Refusal};
use crate::door::Permit;
use crate::mqtt::connect::Connect;
use crate::reason::Reason;
use crate::relay;
use crate::upstream::{self, Answer, NoAnswer, Upstream};

/// Why there is no session with a broker.
pub(super) enum NotOpened {
    /// The client is answered.
    Refused(Refusal),
    /// The client left.
    Left,
}

impl Life<'_> {
    /// Dials a broker, forwards the CONNECT and waits for its answer; settles the permit by what came of it.
    pub(super) async fn open(
        &mut self,
        client: &mut Client,
        bytes: Vec<u8>,
        connect: &Connect,
        permit: Permit,
    ) -> Result<(Upstream, Answer), NotOpened> {
        let Ok(bytes) = self.introduce(client, bytes) else {
            permit.settle(Outcome::Unused);
            return Err(NotOpened::Left);
        };
        let server = 0;
        self.attempt.server = Some(server);
        let settings = &self.rules.upstream;
        let brokers = &self.house.brokers;
        let Ok(mut broker) = brokers.dial(server, settings.connect_timeout).await else {
            permit.settle(Outcome::Failed);
            return Err(no_broker());
        };
        let patience = settings.connack_timeout;
        let answer = upstream::first_answer(client, &mut broker, bytes, connect.version, patience).await;
        let health = brokers.health(server);
        match answer {
            Ok(answer) => {
                let (code, latency) = (answer.code, answer.latency);
                permit.settle(Outcome::Answered { code, latency });
                self.attempt.connack = Some((code, latency));
                health.inspect(|health| health.succeeded());
                Ok((broker, answer))
            }
            Err(NoAnswer::ClientLeft) => {
                let settle = move || permit.settle(Outcome::Abandoned);
                self.house
                    .tasks
                    .spawn(upstream::see_out(broker, patience, settle));
                Err(NotOpened::Left)
            }
            Err(NoAnswer::BrokerFailed) => {
                permit.settle(Outcome::Failed);
                health.inspect(|health| health.failed());
                Err(no_broker())
            }
            Err(NoAnswer::TimedOut) => {
                permit.settle(Outcome::TimedOut);
                health.inspect(|health| health.stayed_silent());
                Err(no_broker())
            }
        }
    }
}

fn no_broker() -> NotOpened {
    NotOpened::Refused(Refusal::new(Reason::NoBroker))
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
