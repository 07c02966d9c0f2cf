//! The successor's side: who ran before us.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::sockopt::socket_peercred;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use tokio::io::{AsyncReadExt, Interest};
use tokio::net::UnixStream;
use tokio::time::{sleep, timeout};

use super::{FINISH, GREETING, MARGIN, MOST_SOCKETS, PAUSE, hear, say};

/// Bytes of the message beside the sockets: an IPv6 address with its port a line.
const MOST_BYTES: usize = 8 * 1024;

/// How long a successor waits for a word. A predecessor answers at once, and closes its audit log in milliseconds, on a
/// slow disk in 5 s.
const PATIENCE: Duration = Duration::from_secs(30);

/// A predecessor that is just being taken over from by another closes; then that one is to be asked.
const ATTEMPTS: u32 = 50;

/// No takeover came about, though somebody is there to be taken over from: the operating system's (exit 71).
#[derive(Debug, thiserror::Error)]
#[error("listen.takeover: {} does not hand over: {error}", path.display())]
pub struct TakeoverError {
    path: PathBuf,
    error: io::Error,
}

/// The process that is taken over from, waiting for our next word. Dropping it leaves everything as it was.
pub(in crate::app) struct Predecessor {
    path: PathBuf,
    stream: UnixStream,
}

/// The sockets of the predecessor; `None`: nobody is there.
pub(in crate::app) async fn ask(
    path: &Path,
) -> Result<Option<(Predecessor, Vec<TcpListener>)>, TakeoverError> {
    for _ in 0..ATTEMPTS {
        match ask_once(path).await {
            Err(error) if is_end(&error) => sleep(PAUSE).await,
            asked => return asked.map_err(failed(path)),
        }
    }
    Err(failed(path)(io::Error::other("it always closes")))
}

async fn ask_once(path: &Path) -> io::Result<Option<(Predecessor, Vec<TcpListener>)>> {
    let Some(stream) = connect(path).await? else {
        return Ok(None);
    };
    // Whoever hands us sockets could keep copies, and serve our clients beside us.
    let peer = socket_peercred(&stream)?.uid;
    if !peer.is_root() && peer != rustix::process::geteuid() {
        let found = format!("it belongs to the user {}, not to us", peer.as_raw());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, found));
    }
    let received = timeout(PATIENCE, receive(&stream)).await;
    let listeners = received.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
    let path = path.to_path_buf();
    Ok(Some((Predecessor { path, stream }, listeners)))
}

/// To whoever listens at `path`; `None`: nobody does.
async fn connect(path: &Path) -> io::Result<Option<UnixStream>> {
    match UnixStream::connect(path).await {
        Ok(stream) => Ok(Some(stream)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        // Is gone and has left its path, or never was one.
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            if std::fs::symlink_metadata(path)?.file_type().is_socket() {
                return Ok(None);
            }
            Err(io::Error::other(
                "it is there and is no socket: choose another path",
            ))
        }
        Err(error) => Err(error),
    }
}

/// The other side has closed.
fn is_end(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
    )
}

impl Predecessor {
    /// Asks for what only one process can have. Afterwards it is there, from the predecessor if that still lives.
    pub(in crate::app) async fn take(mut self) -> Result<Option<Self>, TakeoverError> {
        let taking = async {
            say(&mut self.stream, b't').await?;
            let heard = timeout(PATIENCE, hear(&mut self.stream, b'g')).await;
            heard.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
        };
        let taken = match taking.await {
            Ok(()) => return Ok(Some(self)),
            Err(error) if is_end(&error) => connect(&self.path).await,
            Err(error) => Err(error),
        };
        match taken {
            // It has died: what it had is nobody's any more.
            Ok(None) => Ok(None),
            Ok(Some(_)) => Err(failed(&self.path)(io::Error::other(
                "another process has taken over meanwhile",
            ))),
            Err(error) => Err(failed(&self.path)(error)),
        }
    }

    /// Lets it go: clients are served from here on. Ready when it lets nobody in any more, whatever became of it.
    pub(in crate::app) async fn release(mut self) {
        if let Err(error) = say(&mut self.stream, b'r').await {
            tracing::info!(%error, "the process before this one is gone");
            return;
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
    if count == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
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
