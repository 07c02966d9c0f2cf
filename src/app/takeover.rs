//! The change from one process to the next without a gap: a process that starts asks the one that runs for its listening
//! sockets, over a unix socket (`listen.takeover`). Both then accept from one queue, so that nobody in it is lost when the
//! old one lets go; `SO_REUSEPORT` would give each a queue of its own, and reset whoever waits in the one that is closed.
//!
//! | successor | predecessor |
//! |---|---|
//! | connects | sends the sockets, with their addresses |
//! | `take`: everything that can fail is done | puts its audit log aside, for a file has one writer; `go` |
//! | serves; `ready` | accepts no more, finishes what it has begun; closes |
//! | has the whole budget | drains, ends |
//!
//! While both let clients in, each goes by half of rate, burst and window: a change in the middle of a storm must not be
//! twice the storm for the broker. A successor that goes away before it is ready changes nothing.

mod predecessor;
mod successor;
#[cfg(test)]
mod tests;

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

pub(super) use self::predecessor::{Predecessor, TakeoverError, ask};
pub(super) use self::successor::{Door, hand_over};
use crate::admission::Share;

/// First line of what a predecessor says: a later version may say it in another way.
const GREETING: &str = "seawall takeover 1";

/// Sockets at most: 64 of `listen.addresses`, and the admin page's.
const MOST_SOCKETS: usize = 65;

/// Before something is tried again that another process has to be done with.
const PAUSE: Duration = Duration::from_millis(100);

/// How long who was accepted before the change gets to come in: his handshake, his CONNECT, his turn. He must not be sent
/// away for a change that he knows nothing of; most clients give up after 5 s.
const FINISH: Duration = Duration::from_secs(10);

/// More than that a predecessor is not waited for: it hangs.
const MARGIN: Duration = Duration::from_secs(5);

/// What each of the two goes by while both let clients in.
pub(super) const BOTH: Share = Share {
    fraction: 0.5,
    ceiling: None,
};

async fn say(stream: &mut UnixStream, word: u8) -> io::Result<()> {
    stream.write_all(&[word]).await
}

async fn hear(stream: &mut UnixStream, word: u8) -> io::Result<()> {
    let heard = stream.read_u8().await?;
    if heard == word {
        Ok(())
    } else {
        Err(io::ErrorKind::InvalidData.into())
    }
}
