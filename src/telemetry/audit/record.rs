//! What a line says. A field that is not known is absent. Never a password, a payload or a key: none of them comes here.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use serde::Serialize;
use serde_json::{Map, Value};
use time::OffsetDateTime;
use time::format_description::BorrowedFormatItem;
use time::macros::format_description;

use super::chain::Link;
use super::file::Found;
use crate::telemetry::ending::{
    Attempt, Decision, Ending, Handshake, HandshakeFailure, HandshakeKind, TlsVersion,
};
use crate::telemetry::labels::{DecisionLabel, Label};
use crate::telemetry::metrics::Metrics;

/// RFC 3339 with microseconds, UTC.
const TIMESTAMP: &[BorrowedFormatItem<'_>] =
    format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:6]Z");

/// A change of state: value of `event`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The configuration was read again.
    Reload,
    /// A breaker opened, half opened or closed.
    Breaker,
    /// The adaptive rate took a step.
    Rate,
    /// The drain began or ended.
    Drain,
}

impl Change {
    /// The audit word.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Reload => "reload",
            Self::Breaker => "breaker",
            Self::Rate => "rate",
            Self::Drain => "drain",
        }
    }
}

/// Something that happened, and when.
pub(super) struct Record {
    pub(super) at: SystemTime,
    pub(super) event: Event,
}

/// What can happen.
pub(super) enum Event {
    /// The log was opened by a process that has just started.
    Start(Found),
    Attempt(Box<Attempt>),
    End {
        connection: u64,
        ending: Box<Ending>,
    },
    Change {
        change: Change,
        details: Map<String, Value>,
    },
    /// Sockets that were closed before TLS since the line before of this kind, by reason.
    Shed(BTreeMap<&'static str, u64>),
    /// Records that found no room since the line before of this kind.
    Dropped(u64),
    /// The process ends in good order.
    Stop,
}

impl Record {
    /// What it holds in memory while it waits, about: what a peer can choose the size of.
    pub(super) fn queued_bytes(&self) -> usize {
        match &self.event {
            Event::Attempt(attempt) => attempt.client_id.as_ref().map_or(0, String::len),
            _ => 0,
        }
    }

    /// Appends the line without its line feed. `names` has those of brokers and lanes.
    pub(super) fn write(&self, line: &mut Vec<u8>, prev: Link, names: &Metrics) -> serde_json::Result<()> {
        let ts = timestamp(self.at);
        let (event, body) = match &self.event {
            Event::Start(found) => ("start", Body::Start(StartBody::of(found))),
            Event::Attempt(attempt) => ("attempt", Body::Attempt(AttemptBody::of(attempt, self.at, names))),
            Event::End { connection, ending } => ("end", Body::End(EndBody::of(*connection, ending))),
            Event::Change { change, details } => (change.word(), Body::Details(details)),
            Event::Shed(counts) => ("shed", Body::Shed { counts }),
            Event::Dropped(count) => ("dropped", Body::Dropped { count: *count }),
            Event::Stop => ("stop", Body::Stop {}),
        };
        serde_json::to_writer(
            line,
            &Line {
                ts: &ts,
                event,
                body,
                prev: prev.as_str(),
            },
        )
    }
}

#[derive(Serialize)]
struct Line<'a> {
    ts: &'a str,
    event: &'static str,
    #[serde(flatten)]
    body: Body<'a>,
    prev: &'a str,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Body<'a> {
    Start(StartBody),
    Attempt(AttemptBody<'a>),
    End(EndBody),
    Details(&'a Map<String, Value>),
    Shed { counts: &'a BTreeMap<&'static str, u64> },
    Dropped { count: u64 },
    Stop {},
}

#[derive(Serialize)]
struct StartBody {
    version: &'static str,
    /// Length of a last line that was cut off: the process before was killed while it wrote.
    #[serde(skip_serializing_if = "Option::is_none")]
    torn_bytes: Option<u64>,
    /// The file ends before the point that the head beside it tells of.
    #[serde(skip_serializing_if = "Option::is_none")]
    missing: Option<bool>,
}

impl StartBody {
    fn of(found: &Found) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION"),
            torn_bytes: (found.torn_bytes > 0).then_some(found.torn_bytes),
            missing: found.missing.then_some(true),
        }
    }
}

#[derive(Serialize)]
struct AttemptBody<'a> {
    conn: u64,
    source: SocketAddr,
    #[serde(skip_serializing_if = "Option::is_none")]
    client_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    protocol: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    clean: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lane: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tls: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    decision: Option<&'static str>,
    /// Why it was refused, or why there was no handshake.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    /// In a dry run: why it would have been refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    would_refuse: Option<&'static str>,
    /// From the accepted socket to the outcome, where that is more than [`USUAL`] beside what the other fields tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    took_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    waited_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    connack: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    connack_ms: Option<f64>,
}

impl<'a> AttemptBody<'a> {
    fn of(attempt: &'a Attempt, at: SystemTime, names: &Metrics) -> Self {
        let (reason, would_refuse) = match attempt.decision {
            Some(Decision::Refused(reason) | Decision::Invalid(Some(reason))) => (Some(reason.word()), None),
            Some(Decision::Admitted {
                would_refuse: Some(reason),
            }) => (None, Some(reason.word())),
            _ => (
                attempt
                    .handshake
                    .and_then(Result::err)
                    .map(HandshakeFailure::word),
                None,
            ),
        };
        Self {
            conn: attempt.connection,
            source: attempt.source,
            client_id: attempt.client_id.as_deref(),
            protocol: attempt.decision.map(|_| attempt.protocol.word()),
            clean: attempt.clean,
            lane: attempt.client_id.as_ref().map(|_| names.lane(attempt.lane)),
            tls: attempt.handshake.map(tls),
            decision: attempt
                .decision
                .map(|decision| DecisionLabel::from(decision).word()),
            reason,
            would_refuse: would_refuse.or_else(|| attempt.would_shed.map(Label::word)),
            took_ms: took(attempt, at),
            waited_ms: attempt.held.map(milliseconds),
            server: attempt.server.and_then(|server| names.server(server)),
            connack: attempt.connack.map(|(code, _)| code),
            connack_ms: attempt.connack.map(|(_, latency)| tenths(latency)),
        }
    }
}

/// A handshake that waits for nothing takes less, and its line need not be longer for it: a storm writes millions.
const USUAL: Duration = Duration::from_millis(20);

fn took(attempt: &Attempt, at: SystemTime) -> Option<u64> {
    // A clock that was set back meanwhile says nothing.
    let took = at.duration_since(attempt.accepted?).ok()?;
    let latency = attempt.connack.map(|(_, latency)| latency);
    let told = attempt.held.unwrap_or_default() + latency.unwrap_or_default();
    (took.saturating_sub(told) >= USUAL).then(|| milliseconds(took))
}

#[derive(Serialize)]
struct EndBody {
    conn: u64,
    side: &'static str,
    phase: &'static str,
    cause: &'static str,
    seconds: f64,
    bytes_up: u64,
    bytes_down: u64,
}

impl EndBody {
    fn of(conn: u64, ending: &Ending) -> Self {
        Self {
            conn,
            side: ending.side.word(),
            phase: ending.phase.word(),
            cause: ending.cause,
            seconds: milliseconds(ending.lasted) as f64 / 1000.0,
            bytes_up: ending.bytes_up,
            bytes_down: ending.bytes_down,
        }
    }
}

/// RFC 3339 with microseconds, UTC.
pub(super) fn timestamp(at: SystemTime) -> String {
    OffsetDateTime::from(at).format(TIMESTAMP).unwrap_or_default()
}

const fn tls(handshake: Result<Handshake, HandshakeFailure>) -> &'static str {
    match handshake {
        Ok(Handshake {
            version: TlsVersion::V1_2,
            kind: HandshakeKind::Full,
            ..
        }) => "1.2 full",
        Ok(Handshake {
            version: TlsVersion::V1_2,
            kind: HandshakeKind::Resumed,
            ..
        }) => "1.2 resumed",
        Ok(Handshake {
            version: TlsVersion::V1_3,
            kind: HandshakeKind::Full,
            ..
        }) => "1.3 full",
        Ok(Handshake {
            version: TlsVersion::V1_3,
            kind: HandshakeKind::Resumed,
            ..
        }) => "1.3 resumed",
        Err(_) => "failed",
    }
}

fn milliseconds(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// Milliseconds with one decimal.
fn tenths(span: Duration) -> f64 {
    (span.as_secs_f64() * 10_000.0).round() / 10.0
}
