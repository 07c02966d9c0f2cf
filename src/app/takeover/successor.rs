//! The predecessor's side: who comes after us.

use std::fmt::Write;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::sockopt::socket_peercred;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use tokio::io::Interest;
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::{BOTH, FINISH, GREETING, MOST_SOCKETS, PAUSE, hear, say};
use crate::admin;
use crate::app::parts::Parts;
use crate::telemetry::audit;

/// Successors that are heard at a time: who deploys starts one, and another by mistake. The next ones wait in the kernel's queue.
const MOST_ASKING: usize = 4;

/// Where a successor asks.
pub(in crate::app) struct Door {
    listener: UnixListener,
    sockets: Arc<[(SocketAddr, OwnedFd)]>,
}

/// Ready when another process serves in our place and who was on his way is in. Without a door: never. `admin` answers
/// until then.
pub(in crate::app) async fn hand_over(
    door: Option<io::Result<Door>>,
    parts: Arc<Parts>,
    admin: Option<admin::Handle>,
    alone: bool,
) {
    let successor = match door {
        Some(Ok(door)) => door.change(&parts).await,
        Some(Err(error)) => {
            tracing::error!(%error, "listen.takeover: no process can take over from this one");
            std::future::pending().await
        }
        None => std::future::pending().await,
    };
    tracing::info!("another process has taken over");
    // Nobody is listening any more but the other one, here and at the admin page.
    let _ = parts.handed_over.send(true);
    drop(admin);
    if alone {
        parts.door.set_share(BOTH);
    }
    finish(&parts, successor).await;
}

/// Waits until nobody is on his way in any more, and tells the successor so.
async fn finish(parts: &Parts, successor: Successor) {
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
pub(in crate::app) struct Successor(UnixStream);

impl Door {
    /// Takes the place of whoever had `path`. `sockets` are ours, with where they listen.
    pub(in crate::app) fn open(path: &Path, sockets: Vec<(SocketAddr, OwnedFd)>) -> io::Result<Self> {
        // A path of its own first: the other one leads to our predecessor until it leads to us.
        let mut own = path.as_os_str().to_owned();
        own.push(format!(".{}", std::process::id()));
        let _ = std::fs::remove_file(&own);
        if let Ok(found) = std::fs::symlink_metadata(path)
            && !found.file_type().is_socket()
        {
            let found = format!("{} is there and is no socket", path.display());
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, found));
        }
        let listener = UnixListener::bind(&own)?;
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&own, private)?;
        std::fs::rename(&own, path)?;
        Ok(Self {
            listener,
            sockets: sockets.into(),
        })
    }

    /// The process that serves clients in our place from now on. A log has one writer: ours goes on aside.
    async fn change(self, parts: &Parts) -> Successor {
        let mut asking = JoinSet::new();
        loop {
            let successor = self.successor(&mut asking).await;
            let audit = parts.house.telemetry().audit().map(|audit| audit.settings());
            parts.move_audit(audit.as_ref().map(aside)).await;
            if let Some(successor) = successor.serves().await {
                return successor;
            }
            parts.move_audit(audit).await;
        }
    }

    /// The next successor that has got its sockets and asks to take over. What goes wrong is its own affair. None is given up
    /// on while it is there: it would take us for dead.
    pub(super) async fn successor(&self, asking: &mut JoinSet<io::Result<Successor>>) -> Successor {
        loop {
            tokio::select! {
                Some(asked) = asking.join_next() => match asked {
                    Ok(Ok(successor)) => return successor,
                    Ok(Err(error)) => tracing::warn!(%error, "a process that would take over has gone"),
                    Err(error) => tracing::error!(%error, "a takeover has panicked"),
                },
                accepted = self.listener.accept(), if asking.len() < MOST_ASKING => match accepted {
                    Ok((stream, _)) => {
                        asking.spawn(hand_out(stream, Arc::clone(&self.sockets)));
                    }
                    // No descriptor, most likely: not now.
                    Err(_) => sleep(PAUSE).await,
                },
            }
        }
    }
}

async fn hand_out(mut stream: UnixStream, sockets: Arc<[(SocketAddr, OwnedFd)]>) -> io::Result<Successor> {
    let peer = socket_peercred(&stream)?;
    if !peer.uid.is_root() && peer.uid != rustix::process::geteuid() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let mut text = format!("{GREETING}\n");
    for (address, _) in sockets.iter() {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{address}");
    }
    let descriptors: Vec<BorrowedFd<'_>> = sockets.iter().map(|(_, socket)| socket.as_fd()).collect();
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

impl Successor {
    /// It has what only one process can have, and serves clients now; `None`: it is gone.
    pub(super) async fn serves(mut self) -> Option<Self> {
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
