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

use std::fmt::Write;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{Instant, sleep, timeout};

use super::parts::Parts;
use crate::admission::Share;
use crate::telemetry::audit;

/// First line of what a predecessor says: a later version may say it in another way.
const GREETING: &str = "seawall takeover 1";

/// Sockets at most: 64 of `listen.addresses`, and the admin page's.
const MOST_SOCKETS: usize = 65;

/// Bytes of the message beside them: an IPv6 address with its port a line.
const MOST_BYTES: usize = 8 * 1024;

/// How long either waits for the other's next word. A predecessor closes its audit log in milliseconds, on a slow disk
/// in 5 s; a successor looks up its brokers' names before it takes over.
const PATIENCE: Duration = Duration::from_secs(30);

/// No takeover came about, though somebody is there to be taken over from: the operating system's (exit 71).
#[derive(Debug, thiserror::Error)]
#[error("listen.takeover: the process at {} does not hand over: {error}", path.display())]
pub struct TakeoverError {
    path: PathBuf,
    error: io::Error,
}

/// The process that is taken over from, waiting for our next word. Dropping it leaves everything as it was.
pub(super) struct Predecessor {
    path: PathBuf,
    stream: UnixStream,
}

/// The sockets of the predecessor; `None`: nobody is there.
pub(super) async fn ask(path: &Path) -> Result<Option<(Predecessor, Vec<TcpListener>)>, TakeoverError> {
    let stream = match UnixStream::connect(path).await {
        Ok(stream) => stream,
        // Never was, or is gone and has left its path.
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
            ) =>
        {
            return Ok(None);
        }
        Err(error) => return Err(failed(path)(error)),
    };
    let received = timeout(PATIENCE, receive(&stream)).await;
    let listeners = received
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
        .map_err(failed(path))?;
    let predecessor = Predecessor {
        path: path.to_path_buf(),
        stream,
    };
    Ok(Some((predecessor, listeners)))
}

impl Predecessor {
    /// Asks for what only one process can have. Afterwards it is there.
    pub(super) async fn take(&mut self) -> Result<(), TakeoverError> {
        let taking = async {
            say(&mut self.stream, b't').await?;
            hear(&mut self.stream, b'g').await
        };
        taking.await.map_err(failed(&self.path))
    }

    /// Lets it go: clients are served from here on. Ready when it lets nobody in any more, whatever became of it.
    pub(super) async fn release(mut self) {
        if let Err(error) = say(&mut self.stream, b'r').await {
            tracing::warn!(%error, "the process before this one did not hear that it may go");
        }
        // It says nothing more: what is waited for is the end of the stream.
        let _ = timeout(FINISH + MARGIN, self.stream.read_u8()).await;
    }
}

fn failed(path: &Path) -> impl Fn(io::Error) -> TakeoverError {
    let path = path.to_path_buf();
    move |error| TakeoverError {
        path: path.clone(),
        error,
    }
}

/// Where a successor asks.
pub(super) struct Door {
    listener: UnixListener,
    sockets: Vec<(SocketAddr, OwnedFd)>,
}

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

/// Waits until nobody is on his way in any more, and tells the successor so.
pub(super) async fn finish(parts: &Parts, successor: Successor) {
    const ON_THE_WAY: [&str; 4] = ["handshake", "connect", "held", "dialing"];
    let limit = Instant::now() + FINISH;
    let on_the_way = || {
        let phases = parts.metrics.phases();
        ON_THE_WAY
            .iter()
            .any(|phase| phases.get(phase).is_some_and(|open| *open > 0))
    };
    while on_the_way() && Instant::now() < limit {
        sleep(Duration::from_millis(20)).await;
    }
    drop(successor);
}

/// Where a process that was taken over from writes the rest of its audit: a chain of its own beside the other one.
fn aside(settings: &audit::Settings) -> audit::Settings {
    let name = settings.path.file_name().unwrap_or_default().to_string_lossy();
    let stem = name.strip_suffix(".jsonl").unwrap_or(&name);
    audit::Settings {
        path: settings
            .path
            .with_file_name(format!("{stem}-drain-{}.jsonl", std::process::id())),
        ..settings.clone()
    }
}

/// A successor that has everything and is about to serve. Dropping it tells it that we let nobody in any more.
pub(super) struct Successor(UnixStream);

impl Door {
    /// Takes the place of whoever had `path`. `sockets` are ours, with where they listen.
    pub(super) fn open(path: &Path, sockets: Vec<(SocketAddr, OwnedFd)>) -> io::Result<Self> {
        // A path of its own first: the other one leads to our predecessor until it leads to us.
        let mut own = path.as_os_str().to_owned();
        own.push(format!(".{}", std::process::id()));
        let _ = std::fs::remove_file(&own);
        let listener = UnixListener::bind(&own)?;
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&own, private)?;
        std::fs::rename(&own, path)?;
        Ok(Self { listener, sockets })
    }

    /// The process that serves clients in our place from now on. A log has one writer: ours goes on aside.
    pub(super) async fn change(self, parts: &Parts) -> Successor {
        loop {
            let successor = self.successor().await;
            let audit = parts.house.telemetry().audit().map(|audit| audit.settings());
            parts.move_audit(audit.as_ref().map(aside)).await;
            if let Some(successor) = successor.serves().await {
                return successor;
            }
            parts.move_audit(audit).await;
        }
    }

    /// The next successor that has got its sockets and asks to take over. What goes wrong is its own affair.
    async fn successor(&self) -> Successor {
        loop {
            let Ok((stream, _)) = self.listener.accept().await else {
                // No descriptor, most likely: not now.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            match timeout(PATIENCE, self.hand_over(stream)).await {
                Ok(Ok(successor)) => return successor,
                Ok(Err(error)) => tracing::warn!(%error, "a process that would take over has gone"),
                Err(_) => tracing::warn!("a process that would take over does not go on"),
            }
        }
    }

    async fn hand_over(&self, mut stream: UnixStream) -> io::Result<Successor> {
        let peer = socket_peercred(&stream)?;
        if !peer.uid.is_root() && peer.uid != rustix::process::geteuid() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let mut text = format!("{GREETING}\n");
        for (address, _) in &self.sockets {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{address}");
        }
        let descriptors: Vec<BorrowedFd<'_>> =
            self.sockets.iter().map(|(_, socket)| socket.as_fd()).collect();
        let send = || {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_SOCKETS))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            control.push(SendAncillaryMessage::ScmRights(&descriptors));
            let bytes = [IoSlice::new(text.as_bytes())];
            Ok(sendmsg(&stream, &bytes, &mut control, SendFlags::NOSIGNAL)?)
        };
        // A fresh socket has room for some kilobytes.
        let sent = stream.async_io(Interest::WRITABLE, send).await?;
        if sent < text.len() {
            return Err(io::ErrorKind::WriteZero.into());
        }
        hear(&mut stream, b't').await?;
        Ok(Successor(stream))
    }
}

impl Successor {
    /// It has what only one process can have, and serves clients now; `None`: it is gone.
    async fn serves(mut self) -> Option<Self> {
        let serving = async {
            say(&mut self.0, b'g').await?;
            hear(&mut self.0, b'r').await
        };
        serving
            .await
            .inspect_err(|error| tracing::warn!(%error, "the process that took over has gone"))
            .ok()?;
        Some(self)
    }
}

async fn receive(stream: &UnixStream) -> io::Result<Vec<TcpListener>> {
    let mut bytes = vec![0; MOST_BYTES];
    let (count, sockets) = stream
        .async_io(Interest::READABLE, || {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_SOCKETS))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut into = [IoSliceMut::new(&mut bytes)];
            let received = recvmsg(stream, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC)?;
            let sockets: Vec<OwnedFd> = control
                .drain()
                .filter_map(|message| match message {
                    RecvAncillaryMessage::ScmRights(sockets) => Some(sockets),
                    _ => None,
                })
                .flatten()
                .collect();
            Ok((received.bytes, sockets))
        })
        .await?;
    let text = String::from_utf8_lossy(bytes.get(..count).unwrap_or_default()).into_owned();
    let mut lines = text.lines();
    if lines.next() != Some(GREETING) {
        return Err(io::Error::other("it speaks another language"));
    }
    let mut listeners = Vec::new();
    for (line, socket) in lines.zip(sockets) {
        let listener = TcpListener::from(socket);
        // What was sent is what it is said to be, or nothing that can be accepted from.
        if listener.local_addr()?.to_string() == line {
            listeners.push(listener);
        }
    }
    Ok(listeners)
}

async fn say(stream: &mut UnixStream, word: u8) -> io::Result<()> {
    stream.write_all(&[word]).await
}

async fn hear(stream: &mut UnixStream, word: u8) -> io::Result<()> {
    let heard = timeout(PATIENCE, stream.read_u8())
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
    if heard == word {
        Ok(())
    } else {
        Err(io::ErrorKind::InvalidData.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn door(path: &Path) -> (Door, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        (
            Door::open(path, vec![(address, listener.into())]).unwrap(),
            address,
        )
    }

    #[tokio::test]
    async fn a_successor_gets_the_sockets_and_the_predecessor_knows_when_it_may_go() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("takeover");
        assert!(ask(&path).await.unwrap().is_none(), "nobody is there");
        let (door, address) = door(&path);
        let finishing = std::cell::Cell::new(true);
        let before = async {
            let successor = door.successor().await.serves().await.unwrap();
            sleep(Duration::from_millis(50)).await;
            finishing.set(false);
            drop(successor);
        };
        let after = async {
            let (mut predecessor, listeners) = ask(&path).await.unwrap().unwrap();
            let addresses: Vec<SocketAddr> = listeners.iter().map(|one| one.local_addr().unwrap()).collect();
            assert_eq!(addresses, [address]);
            predecessor.take().await.unwrap();
            predecessor.release().await;
            assert!(!finishing.get(), "it lets nobody in any more");
            listeners
        };
        let ((), listeners) = tokio::join!(before, after);
        drop(door);
        // The socket lives on, and the path that nobody listens at is nobody.
        let client = std::net::TcpStream::connect(address).unwrap();
        assert_eq!(listeners[0].accept().unwrap().1, client.local_addr().unwrap());
        assert!(ask(&path).await.unwrap().is_none());
    }

    #[tokio::test]
    async fn a_successor_that_goes_away_leaves_everything_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("takeover");
        let (door, _) = door(&path);
        let before = async {
            let successor = door.successor().await;
            assert!(successor.serves().await.is_none());
            assert!(door.successor().await.serves().await.is_some());
        };
        let after = async {
            // One that has not asked, one that never serves, and one that does.
            drop(ask(&path).await.unwrap());
            let (mut predecessor, _) = ask(&path).await.unwrap().unwrap();
            predecessor.take().await.unwrap();
            drop(predecessor);
            let (mut predecessor, _) = ask(&path).await.unwrap().unwrap();
            predecessor.take().await.unwrap();
            predecessor.release().await;
        };
        tokio::join!(before, after);
    }

    #[tokio::test]
    async fn who_speaks_another_language_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("takeover");
        let other = UnixListener::bind(&path).unwrap();
        let speaking = async {
            let (mut stream, _) = other.accept().await.unwrap();
            stream.write_all(b"HTTP/1.1 400\n").await.unwrap();
        };
        let (asked, ()) = tokio::join!(ask(&path), speaking);
        let error = asked.map(|_| ()).unwrap_err().to_string();
        assert!(
            error.contains("listen.takeover") && error.contains("another language"),
            "{error}"
        );
    }
}
