//! `/metrics`, `/healthz`, `/readyz`, `/status` and the live page, on a thread of its own so that a scrape is answered
//! during a storm.
//!
//! Nothing here changes anything, and nothing here can hold up a connection: the data path is only read from.

mod access;
mod body;
mod live;
mod page;
pub mod probe;
mod server;
mod status;

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwap;

pub use self::access::{Access, AccessError, Guard};
use self::page::LivePage;
pub use self::server::Handle;
use crate::admission::controller::Snapshot;
use crate::telemetry::metrics::Metrics;

/// `[admin]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Address to listen on.
    pub address: SocketAddr,
    /// Who may look.
    pub guard: Guard,
}

impl Settings {
    /// What an operator should know, where others than this machine can look and nobody asks them who they are.
    pub fn warning(&self) -> Option<String> {
        self.guard.is_open_at(self.address.ip()).then(|| {
            format!(
                "admin.address: {} is open to whoever reaches it: set admin.token_file or admin.tls, or listen on \
                 127.0.0.1",
                self.address
            )
        })
    }
}

/// What the admin side asks the running daemon. Called on the admin thread: must not block for longer than a lock
/// that the data path takes as well.
pub trait State: Send + Sync + 'static {
    /// The controller's figures now.
    fn snapshot(&self) -> Snapshot;

    /// Whether new connections should come here.
    fn ready(&self) -> Result<(), NotReady>;

    /// What keeps us from brokers, by their names.
    fn troubles(&self) -> BTreeMap<String, String>;
}

/// Why `/readyz` says no.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotReady {
    /// The process is going down.
    Draining,
    /// No broker is usable.
    NoBroker,
}

impl NotReady {
    /// As `/readyz` and `/status` say it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Draining => "draining",
            Self::NoBroker => "no broker is usable",
        }
    }
}

/// Why there is no admin side. The operating system's or the operator's fault: exit code 71.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// `admin.address` can't be listened on.
    #[error("can't listen on admin.address {address}: {source}")]
    Listen {
        /// As configured.
        address: SocketAddr,
        /// The system's word: port taken, address not of this machine, not permitted.
        source: io::Error,
    },
    /// The thread or its runtime could not be made.
    #[error("can't start the admin thread: {0}")]
    Thread(io::Error),
}

/// Listens on the address; connections wait in the kernel until [`start`].
pub fn listen(settings: &Settings) -> Result<TcpListener, AdminError> {
    let address = settings.address;
    TcpListener::bind(address).map_err(|source| AdminError::Listen { address, source })
}

/// Answers on `listener` until the handle is dropped, to whom `access` admits at that moment. `started` is when the
/// process began, for the uptime.
pub fn start(
    listener: TcpListener,
    metrics: Arc<Metrics>,
    state: Arc<dyn State>,
    access: Arc<ArcSwap<Access>>,
    started: Instant,
) -> Result<Handle, AdminError> {
    Handle::start(
        listener,
        Pages {
            metrics,
            state,
            access,
            started,
            live_page: LivePage::new(),
        },
    )
    .map_err(AdminError::Thread)
}

/// What the pages are made from.
struct Pages {
    metrics: Arc<Metrics>,
    state: Arc<dyn State>,
    access: Arc<ArcSwap<Access>>,
    started: Instant,
    live_page: LivePage,
}

/// A page, before it becomes HTTP.
struct Page {
    status: u16,
    content_type: &'static str,
    body: String,
}

/// Pages that say yes or no and nothing else: the probes of an orchestrator carry no token.
const OPEN: [&str; 2] = ["/healthz", "/readyz"];

impl Pages {
    /// The page at `path`, without query; `None`: there is none.
    fn page(&self, path: &str) -> Option<Page> {
        Some(match path {
            "/metrics" => self.metrics_page(),
            "/healthz" => Page::text(200, "ok\n"),
            "/readyz" => match self.state.ready() {
                Ok(()) => Page::text(200, "ready\n"),
                Err(reason) => Page::text(503, format!("{}\n", reason.word())),
            },
            "/status" => self.status_page(),
            "/" => Page {
                status: 200,
                content_type: "text/html; charset=utf-8",
                body: self.live_page.document.clone(),
            },
            _ => return None,
        })
    }

    fn metrics_page(&self) -> Page {
        match self.metrics.render(self.state.snapshot()) {
            Ok(body) => Page {
                status: 200,
                content_type: "text/plain; version=0.0.4; charset=utf-8",
                body,
            },
            Err(error) => Page::text(500, format!("the metrics can't be written: {error}\n")),
        }
    }

    fn status_page(&self) -> Page {
        match serde_json::to_string_pretty(&status::Status::of(self)) {
            Ok(body) => Page {
                status: 200,
                content_type: "application/json",
                body: body + "\n",
            },
            Err(error) => Page::text(500, format!("the status can't be written: {error}\n")),
        }
    }
}

impl Page {
    fn text(status: u16, body: impl Into<String>) -> Self {
        Self {
            status,
            content_type: "text/plain; charset=utf-8",
            body: body.into(),
        }
    }
}

#[cfg(test)]
mod tests;
