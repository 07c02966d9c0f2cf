//! The other end of `/healthz` and `/readyz`: one question, as the health check of a container asks it.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::{Body, Incoming};
use hyper::client::conn::http1;
use hyper::header::HOST;
use hyper::{Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::tls::unverified::Unverified;

/// Most bytes of an answer that are shown: `/readyz` says in a line why not.
const MOST_SHOWN: usize = 200;

/// What to ask, as a URL: `http://HOST:PORT/PATH`, or `https`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    uri: Uri,
    /// `HOST:PORT`.
    authority: String,
    /// Over TLS, to the server of this name.
    tls: Option<ServerName<'static>>,
}

/// The caller's: not the URL of an admin page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a URL with scheme, host and port is needed, such as http://127.0.0.1:9883/healthz or https://[::1]:9883/readyz"
)]
pub struct NoTarget;

/// Why there was no yes.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// Nobody listens there, or TLS failed.
    #[error(transparent)]
    Unreachable(#[from] io::Error),
    /// The connection came about and the answer did not.
    #[error("no answer within {} s", .0.as_secs_f64())]
    TimedOut(Duration),
    /// What answers does not speak HTTP.
    #[error("no HTTP: {0}")]
    NoHttp(#[from] hyper::Error),
    /// It says no.
    #[error("{status}: {text}")]
    No {
        /// The status.
        status: StatusCode,
        /// The beginning of what it says about it.
        text: String,
    },
}

impl FromStr for Target {
    type Err = NoTarget;

    fn from_str(text: &str) -> Result<Self, NoTarget> {
        let uri: Uri = text.parse().map_err(|_| NoTarget)?;
        let (Some(host), Some(port)) = (uri.host(), uri.port()) else {
            return Err(NoTarget);
        };
        let name = host.trim_start_matches('[').trim_end_matches(']');
        let tls = match uri.scheme_str() {
            Some("http") => None,
            Some("https") => Some(ServerName::try_from(name.to_owned()).map_err(|_| NoTarget)?),
            _ => return Err(NoTarget),
        };
        // Not the authority as written: there may be a user's name in it.
        let authority = format!("{host}:{port}");
        Ok(Self { uri, authority, tls })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority, self.path())
    }
}

impl Target {
    fn path(&self) -> &str {
        self.uri.path_and_query().map_or("/", |path| path.as_str())
    }
}

/// Asks, and is content with any status of success. A certificate is not verified, as orchestrators do not either when
/// they probe: nothing secret is sent, and whoever can answer in the daemon's place can also keep it from answering.
pub async fn probe(target: &Target, patience: Duration) -> Result<(), ProbeError> {
    timeout(patience, connect_and_ask(target))
        .await
        .unwrap_or(Err(ProbeError::TimedOut(patience)))
}

async fn connect_and_ask(target: &Target) -> Result<(), ProbeError> {
    let stream = TcpStream::connect(&target.authority).await?;
    match &target.tls {
        None => ask(stream, target).await,
        Some(name) => ask(connector()?.connect(name.clone(), stream).await?, target).await,
    }
}

fn connector() -> io::Result<TlsConnector> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Unverified(provider)))
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

async fn ask(stream: impl AsyncRead + AsyncWrite + Unpin, target: &Target) -> Result<(), ProbeError> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let mut request = Request::new(String::new());
    *request.uri_mut() = target.path().parse().unwrap_or_default();
    if let Ok(host) = target.authority.parse() {
        request.headers_mut().insert(HOST, host);
    }
    let answered = async {
        let response = sender.send_request(request).await?;
        let status = response.status();
        if status.is_success() {
            return Ok(());
        }
        let text = beginning(response.into_body()).await;
        Err(ProbeError::No { status, text })
    };
    tokio::select! {
        biased;
        answer = answered => answer,
        // Moves the bytes; ends before the answer only where there is none.
        Err(error) = connection => Err(error.into()),
    }
}

/// The first line of an answer, as far as it can be shown.
async fn beginning(mut body: Incoming) -> String {
    let mut text = Vec::new();
    while text.len() < MOST_SHOWN
        && let Some(Ok(frame)) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await
    {
        text.extend(frame.into_data().unwrap_or_default());
    }
    text.truncate(MOST_SHOWN);
    let text = String::from_utf8_lossy(&text);
    let line = text.lines().next().unwrap_or_default();
    line.chars().filter(|letter| !letter.is_control()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_urls_with_scheme_host_and_port() {
        for (text, authority, tls, path) in [
            (
                "http://127.0.0.1:9883/healthz",
                "127.0.0.1:9883",
                false,
                "/healthz",
            ),
            ("http://localhost:9883", "localhost:9883", false, "/"),
            ("https://[::1]:9883/readyz", "[::1]:9883", true, "/readyz"),
            ("http://user:secret@host:1/x?y", "host:1", false, "/x"),
        ] {
            let target: Target = text.parse().unwrap();
            assert_eq!(target.authority, authority, "{text}");
            assert_eq!(target.tls.is_some(), tls, "{text}");
            assert_eq!(target.uri.path(), path, "{text}");
            assert!(!target.to_string().contains("secret"), "{target}");
        }
        for text in [
            "",
            "127.0.0.1:9883",
            "/healthz",
            "http://",
            "http://127.0.0.1/healthz",
            "http://127.0.0.1:99999/",
            "ftp://127.0.0.1:9883/",
            "https://-:9883/",
            "http://a b:9883/",
        ] {
            assert_eq!(text.parse::<Target>(), Err(NoTarget), "{text}");
        }
    }
}
