//! One direction of a relay: from a reader to a writer.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use crate::mqtt::framing::{self, Framing};
use crate::telemetry::ending::Side;

/// Reads before a direction lets the other tasks of its thread go on: 256 KiB, about 0.4 ms of TLS.
const ROUNDS: usize = 16;

/// From a reader to a writer, which the caller brings along at each poll.
///
/// Invariants: bytes are written in the order in which they were read; `waiting` and `unflushed` together are never more
/// than `buffer`, but for what a direction starts with and its last words; the writer is shut down only once both are
/// empty; `framing` has followed exactly the bytes that were passed on.
#[derive(Debug)]
pub(super) struct Direction {
    from: Side,
    to: Side,
    /// Read and not yet taken by the writer.
    waiting: VecDeque<u8>,
    /// Taken by the writer since its last complete flush: a TLS stream says "taken" with ciphertext still unsent.
    unflushed: usize,
    buffer: usize,
    /// Where the packets of what was read stand.
    framing: Framing,
    reading: Reading,
    writing: Writing,
    /// A packet of the proxy's own, for the writer before it is shut down.
    last_words: Box<[u8]>,
    /// Since when the writer has taken nothing of what is owed to it.
    stalled: Option<Instant>,
    /// Bytes that the writer has taken.
    written: u64,
    /// The first end that was met, and whose it is.
    end: Option<(Side, &'static str)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reading {
    /// What is read is passed on.
    Open,
    /// What is read is passed on up to the end of a packet.
    Halting,
    /// Nothing is read: what was passed on ends with a packet.
    Halted,
    /// What is read is dropped, and the writer stays open.
    Silent,
    /// What is read is dropped: reading goes on only so that the close of the socket does not become a reset.
    Dropping,
    /// Nothing more comes.
    Ended,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writing {
    Open,
    /// Shut down in good order, or as far as the peer let us.
    Closed,
    /// The peer takes nothing more.
    Broken,
}

impl Direction {
    /// A direction that begins with `waiting`, at whose end `framing` stands, and holds at most `buffer` bytes.
    pub(super) fn new(from: Side, to: Side, waiting: Vec<u8>, framing: Framing, buffer: usize) -> Self {
        Self {
            from,
            to,
            waiting: VecDeque::from(waiting),
            // Whoever wrote before us may have left ciphertext: TLS tickets, a CONNACK. One flush at the start.
            unflushed: 1,
            buffer: buffer.max(1),
            framing,
            reading: Reading::Open,
            writing: Writing::Open,
            last_words: Box::default(),
            stalled: None,
            written: 0,
            end: None,
        }
    }

    /// Moves what can be moved without waiting, adds what the writer took to `count`, and says whether anything was read.
    pub(super) fn poll<R, W>(
        &mut self,
        cx: &mut Context<'_>,
        mut reader: Pin<&mut R>,
        mut writer: Pin<&mut W>,
        scratch: &mut [u8],
        count: &AtomicU64,
    ) -> bool
    where
        R: AsyncRead,
        W: AsyncWrite,
    {
        let mut heard = false;
        for round in 0..=ROUNDS {
            self.deliver(cx, writer.as_mut(), count);
            let room = self.room(scratch.len());
            if room == 0 {
                break;
            }
            if round == ROUNDS {
                cx.waker().wake_by_ref();
                break;
            }
            let Poll::Ready(read) = self.poll_read(cx, reader.as_mut(), scratch, room) else {
                break;
            };
            heard |= !read.is_empty();
            self.pass_on(cx, writer.as_mut(), read, count);
        }
        if self.owes() {
            self.stalled.get_or_insert_with(Instant::now);
        } else {
            self.stalled = None;
        }
        heard
    }

    /// Takes nothing more from the reader than the rest of the packet that is on its way.
    pub(super) fn halt(&mut self) {
        if self.reading == Reading::Open {
            self.reading = if self.framing.at_boundary() {
                Reading::Halted
            } else {
                Reading::Halting
            };
        }
    }

    /// Whether nothing more is taken after [`Self::halt`]: its packet is whole, or never will be.
    pub(super) fn has_halted(&self) -> bool {
        self.reading != Reading::Halting || self.framing.position() == framing::Position::Lost
    }

    /// Takes nothing more from the reader, and keeps the writer open until the reader's end or [`Self::stop`]. Then come
    /// `last_words`, a packet of the proxy's own, where that is not in the middle of another one and not behind a
    /// DISCONNECT.
    pub(super) fn silence(&mut self, last_words: Vec<u8>) {
        if self.reading == Reading::Halted && self.framing.last_type() != Some(framing::DISCONNECT) {
            self.last_words = last_words.into_boxed_slice();
        }
        if self.reading != Reading::Ended {
            self.reading = Reading::Silent;
        }
    }

    /// Takes nothing more from the reader; what was read is delivered, then the writer is shut down.
    pub(super) fn stop(&mut self) {
        if self.reading != Reading::Ended {
            self.reading = Reading::Dropping;
        }
    }

    /// Whether the writer has still to get something, be it the close.
    pub(super) fn owes(&self) -> bool {
        self.writing == Writing::Open && (!self.waiting.is_empty() || self.unflushed > 0 || self.is_ending())
    }

    /// Whether there is nothing more to read and nothing more to write.
    pub(super) fn is_over(&self) -> bool {
        self.reading == Reading::Ended && self.writing != Writing::Open
    }

    /// Since when the writer has taken nothing of what is owed to it.
    pub(super) fn stalled(&self) -> Option<Instant> {
        self.stalled
    }

    /// Bytes that the writer has taken.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// The first end that this direction met: whose and why.
    pub(super) fn end(&self) -> Option<(Side, &'static str)> {
        self.end
    }

    /// How much may be read now.
    fn room(&self, most: usize) -> usize {
        match self.reading {
            Reading::Open | Reading::Halting => self
                .buffer
                .saturating_sub(self.waiting.len() + self.unflushed)
                .min(most),
            Reading::Silent | Reading::Dropping => most,
            Reading::Halted | Reading::Ended => 0,
        }
    }

    /// What the reader has, at most `room` bytes of it; empty at its end, which is noted.
    fn poll_read<'s, R: AsyncRead>(
        &mut self,
        cx: &mut Context<'_>,
        reader: Pin<&mut R>,
        scratch: &'s mut [u8],
        room: usize,
    ) -> Poll<&'s [u8]> {
        let mut read = ReadBuf::new(scratch.get_mut(..room).unwrap_or_default());
        let cause = match ready!(reader.poll_read(cx, &mut read)) {
            Ok(()) if !read.filled().is_empty() => None,
            Ok(()) => Some("eof"),
            Err(error) => Some(cause(&error)),
        };
        let length = read.filled().len();
        if let Some(cause) = cause {
            self.reading = Reading::Ended;
            self.end.get_or_insert((self.from, cause));
        }
        Poll::Ready(scratch.get(..length).unwrap_or_default())
    }

    /// Writes what was just read, and keeps what the writer does not take.
    fn pass_on<W: AsyncWrite>(
        &mut self,
        cx: &mut Context<'_>,
        writer: Pin<&mut W>,
        read: &[u8],
        count: &AtomicU64,
    ) {
        let read = match self.reading {
            Reading::Silent | Reading::Dropping => return,
            Reading::Halting => self.up_to_a_boundary(read),
            Reading::Open | Reading::Halted | Reading::Ended => {
                self.framing.feed(read);
                read
            }
        };
        let taken = if self.waiting.is_empty() {
            self.write(cx, writer, read, count)
        } else {
            0
        };
        if self.writing == Writing::Open {
            self.waiting.extend(read.get(taken..).unwrap_or_default());
        }
    }

    /// The whole packets at the front of `read`, behind which nothing more is taken; all of it if none ends in it.
    fn up_to_a_boundary<'s>(&mut self, read: &'s [u8]) -> &'s [u8] {
        let mut ahead = self.framing;
        let (mut walked, mut whole) = (0, 0);
        while let Some(rest @ [_, ..]) = read.get(walked..) {
            walked += ahead.feed_to_boundary(rest);
            if ahead.at_boundary() {
                whole = walked;
                self.framing = ahead;
                self.reading = Reading::Halted;
            }
        }
        if whole == 0 {
            self.framing = ahead;
            return read;
        }
        read.get(..whole).unwrap_or_default()
    }

    /// Whether nothing more will be taken, so that the writer is to be shut down behind what was.
    fn is_ending(&self) -> bool {
        matches!(self.reading, Reading::Dropping | Reading::Ended)
    }

    /// Writes what waits, flushes, and shuts down once there is nothing more to come.
    fn deliver<W: AsyncWrite>(&mut self, cx: &mut Context<'_>, mut writer: Pin<&mut W>, count: &AtomicU64) {
        if self.is_ending() && !self.last_words.is_empty() {
            self.waiting.extend(&std::mem::take(&mut self.last_words));
        }
        if self.writing != Writing::Open || !self.flush(cx, writer.as_mut()) {
            return;
        }
        while !self.waiting.is_empty() {
            let waiting = std::mem::take(&mut self.waiting);
            let (front, _) = waiting.as_slices();
            let taken = self.write(cx, writer.as_mut(), front, count);
            if self.writing != Writing::Open {
                return;
            }
            let all = taken == front.len();
            self.waiting = waiting;
            self.waiting.drain(..taken);
            if !all || self.unflushed > 0 {
                return;
            }
        }
        self.waiting = VecDeque::new();
        if self.is_ending() && writer.poll_shutdown(cx).is_ready() {
            // An error here says that the peer is gone: as closed as it gets.
            self.writing = Writing::Closed;
        }
    }

    /// Writes until the writer takes no more; how much it took. Flushes in between, as only a flush tells whether a TLS
    /// stream got rid of what it took.
    fn write<W: AsyncWrite>(
        &mut self,
        cx: &mut Context<'_>,
        mut writer: Pin<&mut W>,
        bytes: &[u8],
        count: &AtomicU64,
    ) -> usize {
        let mut taken = 0;
        while self.unflushed == 0
            && let Some(rest @ [_, ..]) = bytes.get(taken..)
        {
            match writer.as_mut().poll_write(cx, rest) {
                Poll::Pending => break,
                Poll::Ready(Ok(0)) => self.break_off(&io::ErrorKind::WriteZero.into()),
                Poll::Ready(Err(error)) => self.break_off(&error),
                Poll::Ready(Ok(length)) => {
                    taken += length;
                    self.stalled = None;
                    self.written += length as u64;
                    count.fetch_add(length as u64, Ordering::Relaxed);
                    self.unflushed = length;
                    self.flush(cx, writer.as_mut());
                }
            }
            if self.writing != Writing::Open {
                break;
            }
        }
        taken
    }

    /// Whether the writer has got rid of all that it took. A flush that was interrupted got rid of a part.
    fn flush<W: AsyncWrite>(&mut self, cx: &mut Context<'_>, mut writer: Pin<&mut W>) -> bool {
        while self.unflushed > 0 {
            match writer.as_mut().poll_flush(cx) {
                Poll::Pending => return false,
                Poll::Ready(Ok(())) => {
                    self.unflushed = 0;
                    self.stalled = None;
                }
                Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::Interrupted => self.stalled = None,
                Poll::Ready(Err(error)) => self.break_off(&error),
            }
        }
        self.writing == Writing::Open
    }

    /// The writer's peer is gone: nothing can be delivered, and what still comes for it is dropped.
    fn break_off(&mut self, error: &io::Error) {
        self.writing = Writing::Broken;
        self.waiting = VecDeque::new();
        self.last_words = Box::default();
        self.unflushed = 0;
        self.stop();
        self.end.get_or_insert((self.to, cause(error)));
    }
}

/// The word for an end by error.
fn cause(error: &io::Error) -> &'static str {
    match error.kind() {
        // A FIN without close_notify.
        io::ErrorKind::UnexpectedEof => "eof",
        io::ErrorKind::InvalidData => "tls-error",
        io::ErrorKind::TimedOut | io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
            "vanished"
        }
        _ => "reset",
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test]
    async fn memory_is_taken_only_while_bytes_wait() {
        let (mut sender, mut reader) = duplex(10_000);
        let (mut writer, mut receiver) = duplex(1_000);
        let count = AtomicU64::new(0);
        let mut direction = Direction::new(Side::Client, Side::Broker, Vec::new(), Framing::new(), 10_000);
        let mut scratch = [0; 10_000];
        let mut poll = async |direction: &mut Direction| {
            poll_fn(|cx| {
                direction.poll(
                    cx,
                    Pin::new(&mut reader),
                    Pin::new(&mut writer),
                    &mut scratch,
                    &count,
                );
                Poll::Ready(())
            })
            .await;
        };
        for _ in 0..2 {
            sender.write_all(&[1; 4_000]).await.unwrap();
            poll(&mut direction).await;
            assert_eq!(direction.waiting.len(), 3_000);
            assert!(direction.waiting.capacity() <= 10_000 && direction.stalled().is_some());
            let mut received = [0; 1_000];
            while !direction.waiting.is_empty() {
                receiver.read_exact(&mut received).await.unwrap();
                poll(&mut direction).await;
            }
            receiver.read_exact(&mut received).await.unwrap();
            assert_eq!(direction.waiting.capacity(), 0);
            assert_eq!(direction.stalled(), None);
        }
    }
}
