//! From a socket to TLS: the ClientHello, a place at the gate, the handshake. Nothing is spent on a client before it has
//! its place, and on none that has left.

use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

use super::{Client, End, Life};
use crate::admission::gate::{Class, Outcome};
use crate::gate::{Entry, PlaceGuard};
use crate::socket;
use crate::telemetry::ending::{HandshakeFailure, HandshakeKind, Side};
use crate::telemetry::metrics::Shed;
use crate::tls::hello::{self, Hello, HelloError, Progress};

/// Room for the first step of reading a ClientHello: one with the usual key shares and a ticket fits. Who waits for a
/// place keeps it, and many wait.
const FIRST_STEP: usize = 1024;

/// Why TLS is not up.
pub(super) enum NoHandshake {
    /// Closed before any cryptography.
    Shed(Shed),
    /// It did not come about.
    Failed(HandshakeFailure),
}

impl From<HandshakeFailure> for NoHandshake {
    fn from(failure: HandshakeFailure) -> Self {
        Self::Failed(failure)
    }
}

impl NoHandshake {
    /// How the life ends with it.
    pub(super) const fn end(self) -> End {
        match self {
            Self::Shed(reason) => End::by(Side::Proxy, reason.word()),
            Self::Failed(HandshakeFailure::Timeout) => End::by(Side::Proxy, "handshake timed out"),
            Self::Failed(HandshakeFailure::TooSlow) => {
                End::by(Side::Proxy, "slowest handshake when places ran out")
            }
            Self::Failed(HandshakeFailure::Gone) => End::by(Side::Client, "left during the handshake"),
            Self::Failed(HandshakeFailure::ClientAlert) => End::by(Side::Client, "refused our handshake"),
            Self::Failed(_) => End::by(Side::Proxy, "handshake failed"),
        }
    }
}

impl Life<'_> {
    /// TLS, all of it before one deadline. Counts what comes of it.
    pub(super) async fn shake_hands(
        &mut self,
        socket: TcpStream,
        begun: Vec<u8>,
    ) -> Result<Client, NoHandshake> {
        let result = self.begin(socket, begun).await;
        match &result {
            Ok(_) => {}
            Err(NoHandshake::Failed(HandshakeFailure::Gone)) if self.is_health_check() => return result,
            Err(NoHandshake::Shed(reason)) => self.house.telemetry.metrics().shed(*reason),
            Err(NoHandshake::Failed(failure)) => self.attempt.handshake = Some(Err(*failure)),
        }
        self.house.telemetry.observe(&mut self.attempt);
        result
    }

    async fn begin(&mut self, mut socket: TcpStream, mut bytes: Vec<u8>) -> Result<Client, NoHandshake> {
        let deadline = self.handshake_deadline();
        let hello = read_hello(&mut socket, &mut bytes, deadline).await?;
        let class = self.class(&hello);
        // A resumption of TLS 1.2 takes 11 µs, less than the way to another thread and back.
        let cheap = class == Class::Resumed && !hello.tls13;
        drop(hello);

        let mut place = match self.place(class, deadline).await {
            Ok(place) => place,
            Err(without) => {
                socket::reset(&socket);
                return Err(without);
            }
        };
        if socket::is_gone(&socket) {
            place.finish(Outcome::Unused);
            return Err(HandshakeFailure::Gone.into());
        }

        let (tls, pool) = (&self.rules.tls, Some(self.house.pool.as_ref()).filter(|_| !cheap));
        // Boxed: its 5 kB are needed by those who have a place, not by those who wait, and not by the session.
        let handshake = Box::pin(tls.accept(socket, bytes, deadline, self.accepted, pool));
        let shaken = tokio::select! {
            shaken = handshake => shaken?,
            () = place.taken_away() => return Err(HandshakeFailure::TooSlow.into()),
        };
        let fell_back = class == Class::Resumed && shaken.handshake.kind == HandshakeKind::Full;
        place.finish(if fell_back {
            Outcome::FellBack
        } else {
            Outcome::Used
        });
        self.attempt.handshake = Some(Ok(shaken.handshake));
        self.attempt.identity = shaken.identity;
        Ok(Box::new(shaken.stream))
    }

    /// Who brings a ticket that opens is known, though not yet proven to be its owner.
    fn class(&self, hello: &Hello) -> Class {
        let known = |ticket: &Vec<u8>| self.rules.tls.opens(ticket);
        if hello.ticket.as_ref().is_some_and(known) {
            Class::Resumed
        } else {
            Class::Full
        }
    }

    async fn place(&self, class: Class, deadline: Instant) -> Result<PlaceGuard, NoHandshake> {
        match self.house.gate.enter(class, self.accepted) {
            Entry::Place(place) => Ok(place),
            Entry::Turned(reason) => Err(NoHandshake::Shed(reason.into())),
            Entry::Waiting(waiting) => timeout_at(deadline, waiting)
                .await
                .map_err(|_| HandshakeFailure::Timeout)?
                .map_err(|reason| NoHandshake::Shed(reason.into())),
        }
    }
}

/// Reads the ClientHello behind what has `bytes` already; all that was read is there afterwards.
async fn read_hello(
    socket: &mut TcpStream,
    bytes: &mut Vec<u8>,
    deadline: Instant,
) -> Result<Box<Hello>, HandshakeFailure> {
    let mut wanted = 0;
    loop {
        if bytes.len() >= wanted {
            match hello::read(bytes) {
                Ok(Progress::Complete(hello, _)) => return Ok(hello),
                Ok(Progress::Need(more)) => wanted = more,
                Err(HelloError::NotTls) => return Err(HandshakeFailure::NotTls),
                Err(HelloError::Malformed | HelloError::TooLarge) => {
                    // Who is gone does not hear it.
                    let _ = socket.try_write(&DECODE_ERROR);
                    return Err(HandshakeFailure::Protocol);
                }
            }
        }
        bytes.reserve_exact(wanted.saturating_sub(bytes.len()).max(FIRST_STEP));
        match timeout_at(deadline, socket.read_buf(bytes)).await {
            Err(_) => return Err(HandshakeFailure::Timeout),
            Ok(Ok(0) | Err(_)) => return Err(HandshakeFailure::Gone),
            Ok(Ok(_)) => {}
        }
    }
}

/// A record with the fatal alert `decode_error` (RFC 8446 section 6.2), as it is sent before a version is agreed on.
const DECODE_ERROR: [u8; 7] = [21, 3, 1, 0, 2, 2, 50];
