//! The proxy ends a session of its own accord.
//!
//! Both directions first come to the end of their packets, for a bounded time. Only then is anything said to either side: a peer that hears of the end closes, and would cut its own packet. The
//! broker is told first, and the client when the broker has closed: one that comes back at once, by another way, would
//! else overtake its own end, and the broker would publish the Will of a session that is taken over.

use std::time::Duration;

use tokio::time::Instant;

use super::{Relay, after};

/// How long the end of a packet that is on its way is awaited before the proxy ends a session without a word: a packet
/// of a slow modem that is not through by then may take minutes.
pub(super) const HALF_PACKET: Duration = Duration::from_secs(1);

/// How long a broker that was told the end of a session may take to close it before the client is told as well. It does so
/// as soon as it has read what came before: a broker that is busy for longer has other troubles than a Will.
pub(super) const BROKER_CLOSES: Duration = Duration::from_secs(2);

/// The proxy's wish to end a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parting {
    /// The word for [`super::End::cause`].
    pub cause: &'static str,
    /// A packet for the client before it is closed, or nothing.
    pub to_client: Vec<u8>,
    /// A packet for the broker before it is closed, or nothing.
    pub to_broker: Vec<u8>,
}

/// The time between the proxy's wish to end it and the end.
pub(super) struct Halting {
    pub(super) parting: Parting,
    /// Whether the broker has been told.
    pub(super) told: bool,
    /// When this step is over: no packet's end is awaited any more, or no broker's close.
    pub(super) limit: Instant,
}

impl Relay {
    /// Begins to end the relay on the proxy's wish: each direction comes to the end of its packet.
    pub(super) fn halt(&mut self, parting: Parting, now: Instant) {
        self.up.halt();
        self.down.halt();
        let limit = after(now, HALF_PACKET);
        self.halting = Some(Box::new(Halting {
            parting,
            told: false,
            limit,
        }));
    }

    /// Whether both directions have come there, and nobody is told yet.
    pub(super) fn has_halted(&self) -> bool {
        let waits = self.halting.as_ref().is_some_and(|halting| !halting.told);
        waits && self.up.has_halted() && self.down.has_halted()
    }

    /// The next step of the end: tells the broker, and then the client, where a word may be said.
    pub(super) fn go_on_to_leave(&mut self, now: Instant) {
        let Some(mut halting) = self.halting.take() else {
            return;
        };
        if halting.told {
            self.stop(halting.parting.cause);
            return;
        }
        self.up.silence(std::mem::take(&mut halting.parting.to_broker));
        self.up.stop();
        self.down.silence(std::mem::take(&mut halting.parting.to_client));
        halting.told = true;
        halting.limit = after(now, BROKER_CLOSES);
        self.halting = Some(halting);
    }
}
