//! What the service manager is told (`sd_notify(3)`): ready, reloading, stopping, how it goes, and that the daemon lives.
//!
//! A few lines over a datagram socket instead of a crate: they also reach an abstract address, which containers use.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::time::{Instant, sleep, timeout};

use super::parts::Parts;

/// How often the figures are told: for people who look at `systemctl status`.
const STATUS: Duration = Duration::from_secs(5);

/// The service manager, if there is one.
#[derive(Default)]
pub(super) struct Service {
    manager: Option<(UnixDatagram, SocketAddr)>,
    /// It restarts a process that says nothing for this long.
    watchdog: Option<Duration>,
}

impl Service {
    /// That of this process.
    pub(super) fn of_process() -> Self {
        let variable = |name| std::env::var_os(name);
        Self::new(
            variable("NOTIFY_SOCKET").as_deref(),
            variable("WATCHDOG_USEC").as_deref(),
            variable("WATCHDOG_PID").as_deref(),
        )
    }

    fn new(socket: Option<&OsStr>, watchdog: Option<&OsStr>, pid: Option<&OsStr>) -> Self {
        let manager = socket.and_then(|path| {
            reach(path)
                .inspect_err(|error| tracing::warn!(?path, %error, "the service manager can't be reached"))
                .ok()
        });
        let number = |text: &OsStr| text.to_str()?.parse::<u64>().ok();
        let ours = pid.is_none_or(|pid| number(pid) == Some(u64::from(std::process::id())));
        let watchdog = watchdog.filter(|_| ours).and_then(number);
        Self {
            manager,
            watchdog: watchdog.filter(|time| *time > 0).map(Duration::from_micros),
        }
    }

    /// Clients are served.
    pub(super) fn ready(&self) {
        self.tell("READY=1");
    }

    /// The configuration is being read again; to be followed by [`Self::ready`].
    pub(super) fn reloading(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        let now = Duration::new(
            u64::try_from(now.tv_sec).unwrap_or(0),
            u32::try_from(now.tv_nsec).unwrap_or(0),
        );
        self.tell(&format!("RELOADING=1\nMONOTONIC_USEC={}", now.as_micros()));
    }

    /// The drain has begun, and takes up to `limit`.
    pub(super) fn stopping(&self, limit: Duration) {
        self.tell(&format!("STOPPING=1\nEXTEND_TIMEOUT_USEC={}", limit.as_micros()));
    }

    /// Tells figures, and that the daemon lives. Runs for ever.
    ///
    /// It lives when the runtime of the connections runs this task, the locks of door and gate can be had, and the threads
    /// for handshakes do a piece of work. Where one of them hangs, nothing is told.
    pub(super) async fn keep_telling(self: Arc<Self>, parts: Arc<Parts>) {
        if self.manager.is_none() {
            return;
        }
        // Three times within the time that the manager waits.
        let pause = self
            .watchdog
            .map_or(STATUS, |watchdog| (watchdog / 3).min(STATUS));
        let mut told = Instant::now();
        loop {
            let status = format!("STATUS={}", status(&parts));
            let lives = timeout(pause, parts.house.pool().crypto(|| ())).await;
            if self.watchdog.is_some() && matches!(lives, Ok(Some(()))) {
                self.tell(&format!("WATCHDOG=1\n{status}"));
                told = Instant::now();
            } else {
                self.tell(&status);
            }
            if self
                .watchdog
                .is_some_and(|watchdog| told.elapsed() > watchdog / 2)
            {
                tracing::error!(
                    "the threads for handshakes do not answer: the service manager will restart this process"
                );
            }
            sleep(pause).await;
        }
    }

    fn tell(&self, message: &str) {
        if let Some((socket, manager)) = &self.manager
            && let Err(error) = socket.send_to_addr(message.as_bytes(), manager)
        {
            tracing::debug!(%error, "the service manager does not listen");
        }
    }
}

/// A path, or `@` and an abstract name.
fn reach(path: &OsStr) -> io::Result<(UnixDatagram, SocketAddr)> {
    let manager = match path.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(path)?,
    };
    let socket = UnixDatagram::unbound()?;
    // A manager that does not read must not hold up a connection.
    socket.set_nonblocking(true)?;
    Ok((socket, manager))
}

/// One line for people.
fn status(parts: &Parts) -> String {
    let snapshot = parts.door.snapshot();
    let handshakes = parts.gate.snapshot().handshakes;
    let phases = parts.metrics.phases();
    let phase = |name| phases.get(name).copied().unwrap_or_default();
    let state = if parts.tasks.is_draining() {
        "draining: "
    } else {
        ""
    };
    format!(
        "{state}{} relayed, {} held, {} in handshake ({} waiting); {} of {} in flight, {:.1} CONNECTs a second",
        phase("relaying"),
        snapshot.held,
        phase("handshake"),
        handshakes.waiting_resumed + handshakes.waiting_full,
        snapshot.in_flight,
        snapshot.window,
        snapshot.rate,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(socket: &UnixDatagram) -> String {
        let mut bytes = [0; 512];
        let count = socket.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..count].to_vec()).unwrap()
    }

    #[test]
    fn a_path_and_an_abstract_name_are_reached() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let by_path = UnixDatagram::bind(&path).unwrap();
        let name = format!("seawall-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let by_name = UnixDatagram::bind_addr(&address).unwrap();
        for (socket, written) in [
            (by_path, path.into_os_string()),
            (by_name, format!("@{name}").into()),
        ] {
            let service = Service::new(Some(OsStr::new(&written)), None, None);
            service.ready();
            assert_eq!(told(&socket), "READY=1");
            service.reloading();
            let message = told(&socket);
            let since_boot = message.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap();
            assert!(since_boot.parse::<u64>().unwrap() > 0);
            service.stopping(Duration::from_secs(37));
            assert_eq!(told(&socket), "STOPPING=1\nEXTEND_TIMEOUT_USEC=37000000");
        }
    }

    #[test]
    fn a_watchdog_is_ours_or_nobodys() {
        let own = std::process::id().to_string();
        for (time, pid, expected) in [
            (Some("30000000"), None, Some(Duration::from_secs(30))),
            (
                Some("30000000"),
                Some(own.as_str()),
                Some(Duration::from_secs(30)),
            ),
            (Some("30000000"), Some("1"), None),
            (Some("0"), None, None),
            (Some("soon"), None, None),
            (None, Some(own.as_str()), None),
        ] {
            let service = Service::new(None, time.map(OsStr::new), pid.map(OsStr::new));
            assert_eq!(service.watchdog, expected, "{time:?} {pid:?}");
        }
    }

    #[test]
    fn nobody_is_told_where_there_is_no_manager() {
        let service = Service::new(None, None, None);
        service.ready();
        let nowhere = Service::new(Some(OsStr::new("/nowhere/notify")), None, None);
        nowhere.ready();
    }
}
