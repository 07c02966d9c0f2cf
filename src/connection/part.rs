//! A session, and the end that the proxy gives it: in a drain, or for its age.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Sleep, sleep_until};

use super::open::Opened;
use super::{Client, End, House, Life};
use crate::drain::Notice;
use crate::mqtt::Version;
use crate::mqtt::disconnect::{self, Reason};
use crate::refusal::Addressee;
use crate::relay::{self, Parting, Start};
use crate::socket::Downstream;
use crate::telemetry::ending::Side;

/// How far the age at which a connection is closed is from `relay.max_age`, as a part of it: connections that came together
/// do not leave together.
const AGE_JITTER: f64 = 0.1;

impl Life<'_> {
    /// Bytes both ways until an end.
    pub(super) async fn relay(
        &mut self,
        mut client: Client,
        opened: Opened,
        keep_alive: Option<Duration>,
        addressee: Addressee,
    ) -> End {
        let Opened {
            mut broker,
            answer,
            session,
        } = opened;
        let start = Start {
            up: answer.up,
            up_framing: answer.up_framing,
            down: answer.down,
            keep_alive,
        };
        let (house, rules, traffic) = (self.house, &self.rules.relay, &self.house.traffic);
        traffic.add(answer.bytes_up, answer.bytes_down);
        // Who was refused by the broker has no session to end.
        let in_session = answer.code == 0;
        let closing = Closing {
            notice: house.tasks.notice(),
            age: self.age(),
            house,
            addressee,
            in_session,
        };
        let end = relay::run(
            &mut Downstream(&mut client),
            &mut broker,
            start,
            rules,
            traffic,
            closing,
        )
        .await;
        if end.side == Side::Broker {
            session.kicked_out();
        }
        End {
            side: end.side,
            cause: end.cause,
            bytes_up: answer.bytes_up + end.bytes_up,
            bytes_down: answer.bytes_down + end.bytes_down,
        }
    }

    /// Ready when the connection is too old. On the heap, since few have such a limit and all are many.
    fn age(&self) -> Option<Pin<Box<Sleep>>> {
        let most = self.rules.relay.max_age?;
        let jitter = 1.0 - AGE_JITTER + 2.0 * AGE_JITTER * fastrand::f64();
        Some(Box::pin(sleep_until(self.accepted + most.mul_f64(jitter))))
    }
}

/// Why the proxy ends a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    Drain,
    Age,
}

/// Waits for the notice of a drain, or for the end of the connection's time. By hand, since every session has one: an
/// `async` block keeps room twice for what it is given.
struct Closing<'a> {
    notice: Notice,
    age: Option<Pin<Box<Sleep>>>,
    house: &'a House,
    addressee: Addressee,
    /// Whether the broker has accepted the client.
    in_session: bool,
}

impl Future for Closing<'_> {
    type Output = Parting;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Parting> {
        let why = if Pin::new(&mut self.notice).poll(cx).is_ready() {
            Why::Drain
        } else {
            match &mut self.age {
                Some(age) => ready!(age.as_mut().poll(cx).map(|()| Why::Age)),
                None => return Poll::Pending,
            }
        };
        Poll::Ready(self.house.parting(why, self.addressee, self.in_session))
    }
}

impl House {
    /// What is said to both sides, by what is configured now. A 3.x client knows no DISCONNECT from a server.
    fn parting(&self, why: Why, addressee: Addressee, in_session: bool) -> Parting {
        let rules = self.rules.load();
        let (cause, reason) = match why {
            Why::Drain => ("drain", Reason::ServerShuttingDown),
            Why::Age => ("max-age", Reason::MaximumConnectTime),
        };
        let to_client = (in_session && addressee.version == Version::V5)
            .then(|| {
                let reference = rules.refusal.server_reference.as_deref();
                disconnect::of_server(reason, reference, addressee.maximum_packet_size)
            })
            .flatten();
        let to_broker = (in_session && !rules.drain.keep_wills).then_some(disconnect::OF_CLIENT);
        Parting {
            cause,
            to_client: to_client.unwrap_or_default(),
            to_broker: to_broker.map(Vec::from).unwrap_or_default(),
        }
    }
}
