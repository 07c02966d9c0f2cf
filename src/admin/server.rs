//! HTTP/1 on one thread with a runtime of its own. One request a connection: a scrape every few seconds gains nothing
//! from keep-alive, and no idle connection can take a place.

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::{Page, Pages};

/// Two Prometheus servers, an orchestrator's probes and a handful of browsers need ten; with more the next ones wait
/// in the kernel's queue.
const MAX_CONNECTIONS: usize = 64;
/// A request's header comes in one segment from any client that we know; below a prober's usual 10 s.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// Accept to the last byte of the answer, for a reader that does not read; the default of Prometheus' scrape timeout.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(10);
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

async fn serve(listener: tokio::net::TcpListener, pages: Arc<Pages>, mut stopped: oneshot::Receiver<()>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            _ = &mut stopped => return,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept(), if connections.len() < MAX_CONNECTIONS => match accepted {
                Ok((socket, _)) => {
                    connections.spawn(timeout(EXCHANGE_TIMEOUT, exchange(socket, Arc::clone(&pages))));
                }
                Err(error) => {
                    tracing::debug!(%error, "admin accept failed");
                    sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
}

async fn exchange(socket: TcpStream, pages: Arc<Pages>) {
    let service = service_fn(|request| {
        let answer = answer(&request, &pages);
        async move { Ok::<_, Infallible>(answer) }
    });
    let mut http = http1::Builder::new();
    http.keep_alive(false)
        .half_close(true)
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(MAX_HEADER);
    if let Err(error) = http.serve_connection(TokioIo::new(socket), service).await {
        tracing::debug!(%error, "admin connection ended");
    }
}

fn answer(request: &Request<Incoming>, pages: &Pages) -> Response<Full<Bytes>> {
    let path = request.uri().path();
    let page = catch_unwind(AssertUnwindSafe(|| pages.page(path)))
        .unwrap_or_else(|_| Some(Page::text(500, "this page has panicked, see the log\n")));
    let Some(page) = page else {
        return response(Page::text(404, "no such page\n"));
    };
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut refusal = response(Page::text(405, "GET and HEAD only\n"));
        refusal
            .headers_mut()
            .insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refusal;
    }
    response(page)
}

fn response(page: Page) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(page.body)));
    *response.status_mut() = StatusCode::from_u16(page.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(page.content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
