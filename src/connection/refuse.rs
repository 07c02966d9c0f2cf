//! The ends of those that are not served.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{Client, End, Life, admit};
use crate::admission::Refusal;
use crate::mqtt::Protocol;
use crate::mqtt::connect::{Connect, ConnectError};
use crate::reason::Reason;
use crate::refusal::{self, Addressee};
use crate::telemetry::ending::{Decision, Phase, Side};
use crate::upstream::Unauthenticated;

/// How the wait of an answer ended.
enum Waited {
    /// Its time has come.
    Over,
    /// The client left.
    Left,
    /// The proxy goes down.
    Draining,
}

impl Life<'_> {
    /// Tells a client why it does not get in.
    pub(super) async fn refuse(
        &mut self,
        mut client: Client,
        connect: Box<Connect>,
        mut refusal: Refusal,
    ) -> End {
        self.attempt.decision = Some(Decision::Refused(refusal.reason));
        self.house.telemetry.observe(&mut self.attempt);
        let addressee = Addressee::of(&connect);
        // Who waits for its answer needs no CONNECT any more.
        drop(connect);
        let decided = Instant::now();
        match self.delay(&mut client, refusal).await {
            Waited::Over => {}
            Waited::Left => return End::by(Side::Client, "left before its answer"),
            Waited::Draining => refusal = Refusal::new(Reason::Draining),
        }
        self.phase.to(Phase::Refusing);
        refusal.retry_after = refusal
            .retry_after
            .map(|time| time.saturating_sub(decided.elapsed()));
        let answer = refusal::answer(&refusal, addressee, &self.rules.refusal);
        refusal::close(client, answer.as_deref()).await;
        End::by(Side::Proxy, refusal.reason.word())
    }

    /// Waits a random part of `refusal.delay`: many clients come again a fixed time after the close, so this is the
    /// jitter that they lack. One that comes again at once waits for longer. A drain leaves them their times, as far as it
    /// has as much time.
    async fn delay(&mut self, client: &mut Client, refusal: Refusal) -> Waited {
        let (delay, most) = (self.rules.refusal.delay, self.rules.refusal.max_delayed);
        let wait = random_part(delay).max(refusal.keep_back);
        if wait.is_zero() || refusal.reason == Reason::Draining {
            return Waited::Over;
        }
        let Some(_place) = self.house.delayed.enter(most) else {
            return Waited::Over;
        };
        self.phase.to(Phase::Delayed);
        let mut ignored = Vec::new();
        let tasks = &self.house.tasks;
        let notice = async {
            tasks.draining().await;
            tasks.notice().await;
        };
        tokio::select! {
            () = sleep(wait) => {}
            () = admit::leaves(client, &mut ignored) => return Waited::Left,
            () = notice => {}
        }
        if tasks.is_draining() {
            Waited::Draining
        } else {
            Waited::Over
        }
    }

    /// Answers what can't be accepted as MQTT.
    pub(super) async fn refuse_invalid(&mut self, client: Client, error: ConnectError) -> End {
        if let ConnectError::EmptyClientId { connect } = &error {
            self.note(connect);
            self.attempt.lane = self.arrival(&client, connect).label;
        } else if let Some(version) = error.version() {
            self.attempt.protocol = Protocol::Known(version);
        }
        let (reason, answer) = refusal::answer_invalid(&error);
        self.attempt.decision = Some(Decision::Invalid(reason));
        self.phase.to(Phase::Refusing);
        refusal::close(client, answer.as_deref()).await;
        End::by(Side::Proxy, reason.map_or("no MQTT", Reason::word))
    }

    /// Ends an authentication that came to nothing, in the broker's place.
    pub(super) async fn refuse_unauthenticated(
        &mut self,
        client: Client,
        connect: Box<Connect>,
        how: Unauthenticated,
    ) -> End {
        let addressee = Addressee::of(&connect);
        drop(connect);
        self.phase.to(Phase::Refusing);
        let answer = refusal::answer_unauthenticated(how.code(), addressee);
        refusal::close(client, answer.as_deref()).await;
        End::by(Side::Proxy, how.word())
    }

    /// Closes on a client that has not sent a whole CONNECT in time.
    pub(super) async fn give_up_waiting(&mut self, client: Client) -> End {
        self.attempt.decision = Some(Decision::TimedOut);
        self.phase.to(Phase::Refusing);
        refusal::close(client, None).await;
        End::by(Side::Proxy, "no CONNECT in time")
    }
}

fn random_part(delay: Duration) -> Duration {
    delay.mul_f64(fastrand::f64())
}
