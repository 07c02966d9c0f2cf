//! What an answer consists of: a page that is whole, or events for as long as somebody reads them.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::body::{Body, Bytes, Frame, SizeHint};
use tokio::sync::mpsc;
use tokio::time::Instant;

/// From one piece of an answer that was taken to the next, the first counted from accept: for a reader that does not
/// read. The default of Prometheus' scrape timeout.
const PATIENCE: Duration = Duration::from_secs(10);

/// An answer's body.
pub(super) enum Answer {
    /// All of it.
    Whole(Option<Bytes>),
    /// Piece by piece.
    Events(mpsc::Receiver<Bytes>, Deadline),
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let piece = match self.get_mut() {
            Self::Whole(page) => page.take(),
            Self::Events(events, deadline) => {
                let event = ready!(events.poll_recv(context));
                // hyper asks for the next piece when there is room for it: the one before was taken.
                deadline.put_off();
                event
            }
        };
        Poll::Ready(piece.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(page) => SizeHint::with_exact(page.as_ref().map_or(0, Bytes::len) as u64),
            Self::Events(..) => SizeHint::default(),
        }
    }
}

/// When an exchange is given up.
#[derive(Clone)]
pub(super) struct Deadline(Arc<Mutex<Instant>>);

impl Deadline {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(Instant::now() + PATIENCE)))
    }

    /// When, as things stand.
    pub(super) fn at(&self) -> Instant {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put_off(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now() + PATIENCE;
    }
}
