//! HTTP/1 on one thread with a runtime of its own. One request a connection: a scrape every few seconds gains nothing
//! from keep-alive, and no idle connection can take a place.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use hyper::body::{Bytes, Incoming};
use hyper::header::{
    ALLOW, AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, REFERRER_POLICY,
    RETRY_AFTER, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until};

use super::body::{Answer, Deadline};
use super::live::{self, Live};
use super::{Access, OPEN, Page, Pages};

/// Two Prometheus servers, an orchestrator's probes and a handful of browsers need ten; with more, who has not asked for
/// anything yet makes room, and where all have the next ones wait in the kernel's queue.
const MAX_CONNECTIONS: usize = 64;
/// A request's header comes in one segment from any client that we know; below a prober's usual 10 s.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// Where the live page listens for what is new.
const EVENTS: &str = "/events";
/// Largest request header in bytes. hyper takes no less than 8 KiB.
const MAX_HEADER: usize = 16 * 1024;
/// After an `accept` that failed, most likely for want of descriptors: long enough not to spin, short enough for a probe.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The running admin side; dropping it ends its thread and waits for that.
pub struct Handle {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Handle {
    pub(super) fn start(listener: TcpListener, pages: Pages) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()?;
        let listener = {
            let _entered = runtime.enter();
            tokio::net::TcpListener::from_std(listener)?
        };
        let (stop, stopped) = oneshot::channel();
        let pages = Arc::new(pages);
        let thread = std::thread::Builder::new()
            .name("seawall-admin".to_owned())
            .spawn(move || runtime.block_on(serve(listener, pages, stopped)))?;
        Ok(Self {
            address,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Where it listens, with the real port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the admin thread has panicked");
        }
    }
}

/// A connection that was accepted and has not come to its end.
struct Guest {
    /// Whether a whole request came.
    has_asked: Arc<AtomicBool>,
    task: AbortHandle,
}

/// Those that have not asked for anything yet, the oldest first.
#[derive(Default)]
struct Silent(VecDeque<Guest>);

impl Silent {
    /// Whether one of them could make room.
    fn any(&mut self) -> bool {
        self.0
            .retain(|guest| !guest.has_asked.load(Ordering::Relaxed) && !guest.task.is_finished());
        !self.0.is_empty()
    }

    /// Ends that which has been silent for longest: who asks at once must not wait behind who does not. `false`: all have
    /// asked meanwhile.
    fn make_room(&mut self) -> bool {
        self.any()
            && self.0.pop_front().is_some_and(|guest| {
                guest.task.abort();
                true
            })
    }
}

async fn serve(listener: tokio::net::TcpListener, pages: Arc<Pages>, mut stopped: oneshot::Receiver<()>) {
    let mut connections = JoinSet::new();
    let mut silent = Silent::default();
    let live = Arc::new(Live::default());
    let mut clock = interval(live::EVERY);
    clock.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        let is_full = connections.len() >= MAX_CONNECTIONS;
        tokio::select! {
            _ = &mut stopped => return,
            _ = clock.tick() => {
                // What panics here would panic a scrape as well, which says so.
                let _ = catch_unwind(AssertUnwindSafe(|| live.look(&pages)));
            }
            Some(_) = connections.join_next() => {}
            accepted = listener.accept(), if !is_full || silent.any() => match accepted {
                Ok((socket, _)) => {
                    if is_full {
                        if !silent.make_room() {
                            continue;
                        }
                        connections.join_next().await;
                    }
                    let has_asked = Arc::new(AtomicBool::new(false));
                    let exchange = exchange(socket, Arc::clone(&pages), Arc::clone(&live), Arc::clone(&has_asked));
                    let task = connections.spawn(exchange);
                    silent.any();
                    silent.0.push_back(Guest { has_asked, task });
                }
                Err(error) => {
                    tracing::debug!(%error, "admin accept failed");
                    sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
}

async fn exchange(socket: TcpStream, pages: Arc<Pages>, live: Arc<Live>, has_asked: Arc<AtomicBool>) {
    let access = pages.access.load_full();
    let Some(tls) = access.tls() else {
        return converse(socket, &pages, &access, &live, &has_asked).await;
    };
    let accepted = Instant::now();
    // On this thread, which no client waits for.
    match tls
        .accept(socket, Vec::new(), accepted + HEADER_TIMEOUT, accepted, None)
        .await
    {
        Ok(established) => converse(established.stream, &pages, &access, &live, &has_asked).await,
        Err(failure) => tracing::debug!(cause = failure.word(), "admin handshake failed"),
    }
}

async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    pages: &Pages,
    access: &Access,
    live: &Live,
    has_asked: &AtomicBool,
) {
    let deadline = Deadline::new();
    let service = service_fn(|request| {
        has_asked.store(true, Ordering::Relaxed);
        let answer = answer(&request, pages, access, live, &deadline);
        async move { Ok::<_, Infallible>(answer) }
    });
    let mut http = http1::Builder::new();
    http.keep_alive(false)
        .half_close(true)
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(MAX_HEADER);
    let serving = http.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(serving);
    loop {
        let until = deadline.at();
        tokio::select! {
            ended = &mut serving => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "admin connection ended");
                }
                return;
            }
            () = sleep_until(until) => {
                if deadline.at() <= until {
                    return;
                }
            }
        }
    }
}

fn answer(
    request: &Request<Incoming>,
    pages: &Pages,
    access: &Access,
    live: &Live,
    deadline: &Deadline,
) -> Response<Answer> {
    let path = request.uri().path();
    let authorization = request.headers().get(AUTHORIZATION).map(HeaderValue::as_bytes);
    if !OPEN.contains(&path) && !access.admits(authorization) {
        let mut refusal = response(Page::text(401, "a token of admin.token_file is asked for\n"));
        refusal
            .headers_mut()
            .insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        return refusal;
    }
    let reads = matches!(*request.method(), Method::GET | Method::HEAD);
    if path == EVENTS && reads {
        return events(pages, live, deadline);
    }
    let page = catch_unwind(AssertUnwindSafe(|| pages.page(path)))
        .unwrap_or_else(|_| Some(Page::text(500, "this page has panicked, see the log\n")));
    let Some(page) = page.or_else(|| (path == EVENTS).then(|| Page::text(405, ""))) else {
        return response(Page::text(404, "no such page\n"));
    };
    if !reads {
        let mut refusal = response(Page::text(405, "GET and HEAD only\n"));
        refusal
            .headers_mut()
            .insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refusal;
    }
    let mut response = response(page);
    if path == "/"
        && let Ok(policy) = HeaderValue::from_str(&pages.live_page.policy)
    {
        response.headers_mut().insert(CONTENT_SECURITY_POLICY, policy);
    }
    response
}

fn events(pages: &Pages, live: &Live, deadline: &Deadline) -> Response<Answer> {
    let watching = catch_unwind(AssertUnwindSafe(|| live.watch(pages)))
        .ok()
        .flatten();
    let Some(events) = watching else {
        let mut refusal = response(Page::text(503, "too many watch: close a page elsewhere\n"));
        refusal
            .headers_mut()
            .insert(RETRY_AFTER, HeaderValue::from_static("5"));
        return refusal;
    };
    let mut response = response(Page {
        status: 200,
        content_type: "text/event-stream",
        body: String::new(),
    });
    *response.body_mut() = Answer::Events(events, deadline.clone());
    response
}

fn response(page: Page) -> Response<Answer> {
    let mut response = Response::new(Answer::Whole(Some(Bytes::from(page.body))));
    *response.status_mut() = StatusCode::from_u16(page.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(page.content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    response
}
