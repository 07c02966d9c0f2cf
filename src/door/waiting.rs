//! What a held CONNECT waits on.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::sync::oneshot;

use super::{Answer, Door, Permit};
use crate::admission::controller::Place;
use crate::admission::{Outcome, Refusal};
use crate::reason::Reason;

/// A held CONNECT's wait: resolves to its permit, or to its refusal when its time is up. Dropping it gives the place
/// back; a permit that was granted in the same moment goes back unused, with its token.
#[must_use = "dropping it gives the place back"]
pub struct Waiting {
    pub(super) door: Arc<Door>,
    pub(super) place: Place,
    pub(super) receiver: oneshot::Receiver<Answer>,
    pub(super) over: bool,
}

impl Future for Waiting {
    type Output = Result<Permit, Refusal>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = std::task::ready!(Pin::new(&mut self.receiver).poll(context));
        self.over = true;
        // The other end is dropped unanswered only together with the door itself.
        Poll::Ready(answer.unwrap_or(Err(Refusal::new(Reason::Draining))))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        self.door.withdraw(self.place);
        self.receiver.close();
        if let Ok(Ok(permit)) = self.receiver.try_recv() {
            permit.settle(Outcome::Unused);
        }
    }
}

impl std::fmt::Debug for Waiting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Waiting")
            .field("place", &self.place)
            .finish_non_exhaustive()
    }
}
