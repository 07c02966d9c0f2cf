//! Both directions of an admitted connection, bounded: an opaque stream, from the first byte after the CONNECT and
//! CONNACK to the end of the connection. Only the lengths of its packets are followed, so that the proxy can end a session
//! between two of them.
//!
//! An idle connection holds no buffer: a direction reads into a scratch of its thread and writes on at once, and only
//! what the peer does not take goes to the heap, until it is taken. What was read is delivered before an end is, also when
//! the peer that sent it is gone already.
//!
//! How a connection ends: the first thing that goes wrong or comes to its end on either leg is noted as the end
//! ([`End`]). The rest is a bounded farewell: what was read is delivered, then each leg gets its proper close
//! (`close_notify` and FIN to the client; FIN to the broker, with no DISCONNECT that the client did not send, so that a
//! Will is published), and each leg is read until its own end, because closing a socket with unread input resets it and
//! destroys what is still on its way to the peer.
//!
//! When the proxy wishes to end it: [`Parting`].

mod direction;
mod parting;
mod scratch;
#[cfg(test)]
mod tests;

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, Sleep, sleep_until};

use self::direction::Direction;
use self::parting::Halting;
use crate::mqtt::framing::Framing;
use crate::telemetry::ending::Side;

pub use parting::Parting;

/// How long the other leg is still read and served once all is delivered that the side which ended had sent. A broker
/// answers a FIN, and a client a `close_notify`, within a round trip; slow modems have round trips of 2 s. A peer that
/// does not close by then is closed on.
const LINGER: Duration = Duration::from_secs(5);

/// `[relay]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// A client silent for this many of its keep-alives is closed; at least 1.
    pub keepalive_factor: f64,
    /// A peer that is not seen to take anything for this long is closed.
    pub write_timeout: Duration,
    /// Most bytes that wait in one direction of one connection.
    pub buffer: usize,
    /// About how old a connection gets; `None`: as old as its peers wish.
    pub max_age: Option<Duration>,
}

/// What a relay begins with.
#[derive(Debug, Default)]
pub struct Start {
    /// Bytes that were read from the client and not yet written to the broker.
    pub up: Vec<u8>,
    /// Where the client's packets stand behind all that was read from it.
    pub up_framing: Framing,
    /// Bytes that were read from the broker and not yet written to the client; they begin with a packet.
    pub down: Vec<u8>,
    /// A client that is silent for this long is closed: its keep-alive, already multiplied by
    /// [`Settings::keepalive_factor`]. `None`: it may be silent for ever.
    pub keep_alive: Option<Duration>,
}

/// Bytes of sessions that have been written, counted as they go: one for all connections of the process.
#[derive(Debug, Default)]
pub struct Traffic {
    up: AtomicU64,
    down: AtomicU64,
}

impl Traffic {
    /// Counts what was written of a session before its relay.
    pub fn add(&self, up: u64, down: u64) {
        self.up.fetch_add(up, Ordering::Relaxed);
        self.down.fetch_add(down, Ordering::Relaxed);
    }

    /// Bytes to brokers and to clients since the last call.
    pub fn take(&self) -> (u64, u64) {
        (
            self.up.swap(0, Ordering::Relaxed),
            self.down.swap(0, Ordering::Relaxed),
        )
    }
}

/// How a relay ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// Which side ended it first.
    pub side: Side,
    /// Why: of a peer `eof`, `reset`, `vanished` (no answer to what was sent), `tls-error`; of the proxy `keep-alive`,
    /// `client-write-timeout`, `broker-write-timeout`, or [`Parting::cause`].
    pub cause: &'static str,
    /// Bytes written to the broker.
    pub bytes_up: u64,
    /// Bytes written to the client.
    pub bytes_down: u64,
}

/// Relays between client and broker until an end, and closes the writing half of both legs; the caller drops the sockets.
///
/// `closing` is ready when the proxy wishes to end this connection. It is polled at every wake of a relay, so it must be
/// cheap and must not contend with other connections: a oneshot of this connection is, a token shared by all is not.
pub async fn run<D, U, C>(
    downstream: &mut D,
    upstream: &mut U,
    start: Start,
    settings: &Settings,
    traffic: &Traffic,
    mut closing: C,
) -> End
where
    D: AsyncRead + AsyncWrite + Unpin,
    U: AsyncRead + AsyncWrite + Unpin,
    C: Future<Output = Parting> + Unpin,
{
    let now = Instant::now();
    let mut relay = Relay::new(start, settings, now);
    let mut timer = pin!(sleep_until(now));
    let (side, cause) = poll_fn(|cx| {
        loop {
            relay.pass(cx, downstream, upstream, traffic);
            if let Some(end) = relay.over() {
                return Poll::Ready(end);
            }
            if relay.halting.is_none()
                && relay.farewell.is_none()
                && let Poll::Ready(parting) = Pin::new(&mut closing).poll(cx)
            {
                relay.halt(parting, Instant::now());
                continue;
            }
            if relay.has_halted() {
                relay.go_on_to_leave(Instant::now());
                continue;
            }
            ready!(relay.poll_timer(cx, timer.as_mut()));
            relay.check(Instant::now());
        }
    })
    .await;
    End {
        side,
        cause,
        bytes_up: relay.up.written(),
        bytes_down: relay.down.written(),
    }
}

struct Relay {
    up: Direction,
    down: Direction,
    keep_alive: Option<Duration>,
    write_timeout: Duration,
    /// When the client was last heard.
    heard: Instant,
    /// When the timer fires next. It is never moved to a later time, only looked at when it fires: one re-arming a
    /// keep-alive, not one a message.
    armed: Option<Instant>,
    halting: Option<Box<Halting>>,
    farewell: Option<Farewell>,
}

/// The time between the first end and the last.
struct Farewell {
    end: (Side, &'static str),
    /// When it is over, whatever waits.
    limit: Instant,
    /// Since when all that the side which ended had sent is delivered.
    idle: Option<Instant>,
    /// No more than one last try to close is due.
    last: bool,
}

impl Relay {
    fn new(start: Start, settings: &Settings, now: Instant) -> Self {
        let (up_framing, mut down_framing) = (start.up_framing, Framing::new());
        down_framing.feed(&start.down);
        let (up, down, buffer) = (start.up, start.down, settings.buffer);
        Self {
            up: Direction::new(Side::Client, Side::Broker, up, up_framing, buffer),
            down: Direction::new(Side::Broker, Side::Client, down, down_framing, buffer),
            keep_alive: start.keep_alive,
            write_timeout: settings.write_timeout,
            heard: now,
            armed: None,
            halting: None,
            farewell: None,
        }
    }

    /// Moves what can be moved, and notes an end.
    fn pass<D, U>(&mut self, cx: &mut Context<'_>, downstream: &mut D, upstream: &mut U, traffic: &Traffic)
    where
        D: AsyncRead + AsyncWrite + Unpin,
        U: AsyncRead + AsyncWrite + Unpin,
    {
        let mut downstream = Pin::new(downstream);
        let mut upstream = Pin::new(upstream);
        let mut scratch = scratch::lend();
        let deaf = self.up.stalled().is_some();
        let heard = self.up.poll(
            cx,
            downstream.as_mut(),
            upstream.as_mut(),
            &mut scratch,
            &traffic.up,
        );
        self.down
            .poll(cx, upstream, downstream, &mut scratch, &traffic.down);
        scratch::give_back(scratch);

        if self.keep_alive.is_some() && (heard || deaf) {
            self.heard = Instant::now();
        }
        if self.farewell.is_none()
            && let Some(end) = self.up.end().or(self.down.end())
        {
            match self.halting.take() {
                None => self.part(end, self.write_timeout.max(LINGER)),
                Some(halting) if halting.told => self.stop(halting.parting.cause),
                Some(_) => {
                    self.up.stop();
                    self.down.stop();
                    self.part(end, self.write_timeout.max(LINGER));
                }
            }
        }
        if let Some(farewell) = &mut self.farewell {
            let owes = match farewell.end.0 {
                Side::Client => self.up.owes(),
                Side::Broker => self.down.owes(),
                Side::Proxy => self.up.owes() || self.down.owes(),
            };
            if owes {
                farewell.idle = None;
            } else {
                farewell.idle.get_or_insert_with(Instant::now);
            }
        }
    }

    /// The end, once nothing is left to do.
    fn over(&self) -> Option<(Side, &'static str)> {
        let farewell = self.farewell.as_ref()?;
        (farewell.last || (self.up.is_over() && self.down.is_over())).then_some(farewell.end)
    }

    /// Ends the relay on the proxy's side: what was read is delivered, nothing more is taken.
    fn stop(&mut self, cause: &'static str) {
        self.up.stop();
        self.down.stop();
        self.part((Side::Proxy, cause), self.write_timeout.max(LINGER));
    }

    /// Notes the first end; from now on at most `limit` is left.
    fn part(&mut self, end: (Side, &'static str), limit: Duration) {
        self.farewell = Some(Farewell {
            end,
            limit: after(Instant::now(), limit),
            idle: None,
            last: false,
        });
    }

    /// Ends what is due to end.
    fn check(&mut self, now: Instant) {
        if let Some(farewell) = &mut self.farewell {
            if now >= farewell.until() {
                farewell.last = true;
                self.up.stop();
                self.down.stop();
            }
        } else if let Some(halting) = &self.halting {
            if now >= halting.limit {
                self.go_on_to_leave(now);
            }
        } else if self.silence().is_some_and(|limit| now >= limit) {
            self.stop("keep-alive");
        } else if let Some((_, cause)) = self.stall().filter(|(limit, _)| now >= *limit) {
            self.up.stop();
            self.down.stop();
            // It had its time: only the other leg still has something to get.
            self.part((Side::Proxy, cause), LINGER);
        }
    }

    /// Ready when the time has come to [`check`](Self::check).
    fn poll_timer(&mut self, cx: &mut Context<'_>, mut timer: Pin<&mut Sleep>) -> Poll<()> {
        let Some(due) = self.due() else {
            return Poll::Pending;
        };
        if self.armed.is_none_or(|armed| due < armed) {
            timer.as_mut().reset(due);
            self.armed = Some(due);
        }
        ready!(timer.poll(cx));
        self.armed = None;
        Poll::Ready(())
    }

    /// When something ends by time, as things stand.
    fn due(&self) -> Option<Instant> {
        if let Some(farewell) = &self.farewell {
            return Some(farewell.until());
        }
        if let Some(halting) = &self.halting {
            return Some(halting.limit);
        }
        let stall = self.stall().map(|(limit, _)| limit);
        self.silence().into_iter().chain(stall).min()
    }

    /// When the client will have been silent for too long. While the broker does not take what the client sent, nobody
    /// listens to the client: then the write timeout counts.
    fn silence(&self) -> Option<Instant> {
        let keep_alive = self.keep_alive.filter(|_| self.up.stalled().is_none())?;
        Some(after(self.heard, keep_alive))
    }

    /// When a peer will have taken nothing for too long, and how that is called.
    fn stall(&self) -> Option<(Instant, &'static str)> {
        let of = |direction: &Direction, cause| {
            direction
                .stalled()
                .map(|since| (after(since, self.write_timeout), cause))
        };
        let up = of(&self.up, "broker-write-timeout");
        let down = of(&self.down, "client-write-timeout");
        up.into_iter().chain(down).min_by_key(|(limit, _)| *limit)
    }
}

impl Farewell {
    fn until(&self) -> Instant {
        self.idle
            .map_or(self.limit, |idle| self.limit.min(after(idle, LINGER)))
    }
}

/// `span` after `start`; a span past the end of the clock is cut to a century.
fn after(start: Instant, span: Duration) -> Instant {
    const CENTURY: Duration = Duration::from_hours(100 * 365 * 24);
    start.checked_add(span).unwrap_or(start + CENTURY)
}
