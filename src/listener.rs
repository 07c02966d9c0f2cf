//! Bind, accept, errno, shed. Never stops accepting: a full kernel backlog hides an overload and fills with the dead.

use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustix::fs::{Access, access};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

use crate::named_file;
use crate::proxy_header;
use crate::socket;
use crate::telemetry::metrics::{Metrics, Shed};

/// `[listen]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Addresses to listen on, at least one.
    pub addresses: Vec<SocketAddr>,
    /// Length of the kernel's accept queue.
    pub backlog: u32,
    /// Where a process that takes over asks for the sockets; `None`: nowhere.
    pub takeover: Option<PathBuf>,
    /// Most connections at a time; `None`: from the descriptor limit.
    pub max_connections: Option<usize>,
    /// PROXY protocol headers.
    pub proxy_header: proxy_header::Settings,
}

/// Descriptors kept back from connections: standard streams, listeners, timers, log, admin and its connections.
const RESERVED_DESCRIPTORS: u64 = 32;
/// A connection is two sockets: downstream and upstream.
const DESCRIPTORS_PER_CONNECTION: u64 = 2;

/// How long to wait when the kernel has no memory or no descriptors left for anybody.
const EXHAUSTED_BACKOFF: Duration = Duration::from_millis(50);

/// A listening socket could not be had.
#[derive(Debug, thiserror::Error)]
#[error("listen.addresses: can't listen on {address}: {error}{}", hint(.error))]
pub struct BindError {
    /// The address.
    pub address: SocketAddr,
    /// What the operating system said.
    pub error: io::Error,
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            " (another process has this port: `ss -ltnp` names it; stop it or choose another port)"
        }
        io::ErrorKind::PermissionDenied => {
            " (ports below 1024 need CAP_NET_BIND_SERVICE: use 8883, or grant it in the service's unit)"
        }
        io::ErrorKind::AddrNotAvailable => " (no interface of this machine has this address)",
        _ => "",
    }
}

/// Listens on `address`. What is set on this socket is inherited by the sockets that it accepts (Linux), which saves
/// four system calls for each.
pub fn bind(address: SocketAddr, backlog: u32) -> Result<TcpListener, BindError> {
    open(address, backlog).map_err(|error| BindError { address, error })
}

/// Takes a socket over that somebody else has bound, as [`bind`] would have made it.
pub fn adopt(listener: std::net::TcpListener, backlog: u32) -> Result<TcpListener, BindError> {
    let unspecified = SocketAddr::from(([0, 0, 0, 0], 0));
    let address = listener.local_addr().unwrap_or(unspecified);
    let adopting = || {
        listener.set_nonblocking(true)?;
        let socket = SockRef::from(&listener);
        socket::condition(&socket)?;
        socket::bound_unsent(&socket)?;
        // Once more, for the length of the queue.
        socket.listen(i32::try_from(backlog).unwrap_or(i32::MAX))?;
        TcpListener::from_std(listener)
    };
    adopting().map_err(|error| BindError { address, error })
}

fn open(address: SocketAddr, backlog: u32) -> io::Result<TcpListener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM.nonblocking(),
        Some(Protocol::TCP),
    )?;
    if address.is_ipv6() {
        // [::] beside 0.0.0.0 must not be a conflict.
        socket.set_only_v6(true)?;
    }
    socket.set_reuse_address(true)?;
    socket::condition(&SockRef::from(&socket))?;
    socket::bound_unsent(&SockRef::from(&socket))?;
    socket.bind(&address.into())?;
    socket.listen(i32::try_from(backlog).unwrap_or(i32::MAX))?;
    TcpListener::from_std(socket.into())
}

/// Whether a socket for a process that takes over could be made at `path`: what is there is one as well, or nothing. Makes
/// none.
pub fn check_takeover(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
        Ok(metadata) if metadata.file_type().is_socket() => {}
        Ok(metadata) => {
            let kind = named_file::kind(metadata.file_type()).unwrap_or("a file");
            let found = format!("{} is {kind}, and not a socket", path.display());
            return Err(io::Error::other(found));
        }
    }
    let folder = path.parent().unwrap_or(path);
    std::fs::read_dir(folder)
        .map(drop)
        .and_then(|()| Ok(access(folder, Access::WRITE_OK | Access::EXEC_OK)?))
        .map_err(|error| {
            let found = format!("can't make a socket in the folder {}: {error}", folder.display());
            io::Error::new(error.kind(), found)
        })
}

/// Raises the soft descriptor limit to the hard one and returns it. `u64::MAX`: unlimited.
pub fn raise_descriptor_limit() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if limit.current != limit.maximum && setrlimit(Resource::Nofile, raised).is_err() {
        return limit.current.unwrap_or(u64::MAX);
    }
    limit.maximum.unwrap_or(u64::MAX)
}

/// How many connections `descriptors` are enough for; at least one.
pub fn connections_for(descriptors: u64) -> usize {
    let connections = descriptors.saturating_sub(RESERVED_DESCRIPTORS) / DESCRIPTORS_PER_CONNECTION;
    usize::try_from(connections).unwrap_or(usize::MAX).max(1)
}

/// The places for connections, shared by all listeners.
#[derive(Debug)]
pub struct Places {
    taken: AtomicUsize,
    most: AtomicUsize,
}

/// One connection's place; given back when dropped.
#[derive(Debug)]
pub struct PlaceGuard(Arc<Places>);

impl Places {
    /// `most` places, all free.
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            taken: AtomicUsize::new(0),
            most: AtomicUsize::new(most),
        })
    }

    /// How many are taken.
    pub fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    /// How many there are.
    pub fn most(&self) -> usize {
        self.most.load(Ordering::Relaxed)
    }

    /// Another number of places from now on. Who has one keeps it, though there be fewer.
    pub fn set_most(&self, most: usize) {
        self.most.store(most, Ordering::Relaxed);
    }

    fn take(self: &Arc<Self>) -> Option<PlaceGuard> {
        let most = self.most();
        self.taken
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |taken| {
                (taken < most).then_some(taken + 1)
            })
            .ok()
            .map(|_| PlaceGuard(Arc::clone(self)))
    }
}

impl Drop for PlaceGuard {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Accepts until `closing` and hands each socket to `serve`, or sheds it; who was in the kernel's queue by then is still
/// served, before the socket is closed. The spare descriptor is taken now, not when the first
/// client comes: by then there may be none.
pub fn accept<S>(
    listener: TcpListener,
    places: Arc<Places>,
    metrics: Arc<Metrics>,
    serve: S,
    closing: impl Future<Output = ()>,
) -> impl Future<Output = ()>
where
    S: Fn(TcpStream, SocketAddr, PlaceGuard),
{
    let mut spare = Spare::new();
    let counts = Arc::clone(&metrics);
    let take = move |socket, source| {
        counts.accepted();
        if let Some(place) = places.take() {
            serve(socket, source, place);
        } else {
            counts.shed(Shed::MaxConnections);
            socket::reset(&socket);
        }
    };
    async move {
        let mut closing = pin!(closing);
        loop {
            let accepted = tokio::select! {
                biased;
                () = &mut closing => break,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((socket, source)) => take(socket, source),
                Err(error) => recover(&error, &listener, &metrics, &mut spare).await,
            }
        }
        while let Ok(Ok((socket, source))) = timeout(Duration::ZERO, listener.accept()).await {
            take(socket, source);
        }
    }
}

/// What to do when `accept` failed: the errors of one connection (accept(2): "treat like EAGAIN") go on at once,
/// exhaustion frees the spare descriptor or waits; nothing spins and nothing ends the listener.
async fn recover(error: &io::Error, listener: &TcpListener, metrics: &Metrics, spare: &mut Spare) {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::MFILE | Errno::NFILE) => {
            spare.free();
            // With the spare's descriptor the head of the queue can be taken and told at once that it is not served.
            let shed = timeout(Duration::ZERO, listener.accept()).await;
            if let Ok(Ok((socket, _))) = shed {
                metrics.accepted();
                metrics.shed(Shed::Descriptors);
                socket::reset(&socket);
                drop(socket);
                spare.take();
            } else {
                spare.take();
                sleep(EXHAUSTED_BACKOFF).await;
            }
        }
        // ECONNABORTED and the network's own errors are over with the connection that had them.
        Some(
            Errno::CONNABORTED
            | Errno::INTR
            | Errno::PROTO
            | Errno::NETDOWN
            | Errno::NOPROTOOPT
            | Errno::HOSTDOWN
            | Errno::NONET
            | Errno::HOSTUNREACH
            | Errno::OPNOTSUPP
            | Errno::NETUNREACH
            | Errno::PERM,
        ) => tokio::task::yield_now().await,
        // No memory, no buffers, or unknown to us: a loop that can't make progress must not burn a core.
        _ => sleep(EXHAUSTED_BACKOFF).await,
    }
}

/// A descriptor held back so that a full table can still say no.
struct Spare(Option<File>);

impl Spare {
    fn new() -> Self {
        let mut spare = Self(None);
        spare.take();
        spare
    }

    fn take(&mut self) {
        if self.0.is_none() {
            self.0 = File::open("/dev/null").ok();
        }
    }

    fn free(&mut self) {
        self.0 = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_leave_room_for_admin_and_count_both_legs() {
        for (descriptors, connections) in [
            (0, 1),
            (32, 1),
            (128, 48),
            (1024, 496),
            (20_000, 9_984),
            (u64::MAX, usize::MAX / 2 - 16),
        ] {
            assert_eq!(
                connections_for(descriptors),
                connections,
                "{descriptors} descriptors"
            );
        }
    }

    #[test]
    fn a_place_comes_back_when_its_guard_goes() {
        let places = Places::new(2);
        let first = places.take();
        let second = places.take();
        assert!(first.is_some() && second.is_some() && places.take().is_none());
        drop(first);
        assert_eq!(places.taken(), 1);
        let third = places.take();
        assert!(third.is_some());
        places.set_most(1);
        assert!(places.take().is_none());
        drop(third);
        assert!(places.take().is_none(), "one place, and it is taken");
        places.set_most(2);
        assert!(places.take().is_some());
    }
}
