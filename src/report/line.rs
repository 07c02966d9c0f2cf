//! What a line says, as far as a report needs it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use serde::Deserialize;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Microseconds since 1970.
pub(super) type Micros = i64;

pub(super) const SECOND: Micros = 1_000_000;

/// A line of the log of a daemon, or of a device's.
#[derive(Debug, PartialEq)]
pub(super) struct Entry<'a> {
    pub(super) at: Micros,
    pub(super) event: Event<'a>,
}

/// Events that a report makes something of.
#[derive(Debug, PartialEq)]
pub(super) enum Event<'a> {
    /// By a daemon.
    Attempt(Attempt<'a>),
    /// The same, by the device itself.
    DeviceAttempt(Attempt<'a>),
    /// A session ended.
    End,
    /// Sockets that were closed before TLS, by reason.
    Shed(Vec<(Text<'a>, u64)>),
    /// The admission rate from here on.
    Rate(f64),
    /// A breaker opened.
    BreakerOpen,
    /// Records that found no room.
    Dropped(u64),
    /// A process began to write.
    Start,
    /// Another event.
    Other,
}

/// What became of an attempt.
#[derive(Debug, PartialEq)]
pub(super) struct Attempt<'a> {
    /// When its connection was accepted, where the line tells; else when its outcome was known.
    pub(super) arrived: Micros,
    pub(super) client_id: Option<Cow<'a, str>>,
    pub(super) source: Option<IpAddr>,
    pub(super) protocol: Option<Cow<'a, str>>,
    pub(super) lane: Option<Cow<'a, str>>,
    pub(super) outcome: Outcome<'a>,
    /// In the hold, in seconds.
    pub(super) held: Option<f64>,
    /// Of the broker, in seconds.
    pub(super) connack_latency: Option<f64>,
    /// In a dry run: it would have been refused.
    pub(super) would_refuse: bool,
    /// The pause before it, in seconds, where the device itself tells.
    pub(super) pause: Option<f64>,
}

/// How an attempt ended.
#[derive(Debug, PartialEq)]
pub(super) enum Outcome<'a> {
    /// CONNACK 0.
    Connected,
    /// The broker refused with this code.
    RefusedByBroker(u8),
    /// The proxy refused.
    Refused(Cow<'a, str>),
    /// Anything else: no handshake, no CONNECT, left before its turn or its CONNACK.
    Failed(Cow<'a, str>),
}

/// A string that is copied only where it has escapes. serde borrows no `Cow` inside of an `Option`.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub(super) struct Text<'a>(#[serde(borrow)] pub(super) Cow<'a, str>);

impl<'a> Entry<'a> {
    /// Reads a line. `None`: it is no JSON, or has no time or no event.
    pub(super) fn read(line: &'a [u8]) -> Option<Self> {
        let Ok(fields) = serde_json::from_slice::<Fields<'a>>(line) else {
            // Changes of state have details of their own, under any name.
            let Stamped { ts, event } = serde_json::from_slice(line).ok()?;
            let at = micros(&ts.0)?;
            return Some(Self {
                at,
                event: event_of_state(&event.0, line),
            });
        };
        let at = micros(&fields.ts.0)?;
        let event = match &*fields.event.0 {
            "attempt" => Event::Attempt(fields.attempt(at)),
            "reconnect" => fields.reconnect(at),
            "end" => Event::End,
            "shed" => Event::Shed(fields.counts.unwrap_or_default().into_iter().collect()),
            "dropped" => Event::Dropped(fields.count.unwrap_or_default()),
            other => event_of_state(other, line),
        };
        Some(Self { at, event })
    }

    /// When a line was written, without reading the rest of it.
    pub(super) fn time_of(line: &[u8]) -> Option<Micros> {
        let text = line
            .strip_prefix(b"{\"ts\":\"")?
            .split(|byte| *byte == b'"')
            .next()?;
        micros(std::str::from_utf8(text).ok()?)
    }
}

#[derive(Deserialize)]
struct Stamped<'a> {
    #[serde(borrow)]
    ts: Text<'a>,
    #[serde(borrow)]
    event: Text<'a>,
}

#[derive(Deserialize)]
struct RateStep {
    to: serde_json::Value,
}

impl RateStep {
    /// Tokens a second: a number, or as text, which is how the first versions wrote it.
    fn rate(&self) -> Option<f64> {
        let rate = self
            .to
            .as_f64()
            .or_else(|| self.to.as_str().and_then(|text| text.parse().ok()))?;
        (rate.is_finite() && rate >= 0.0).then_some(rate)
    }
}

#[derive(Deserialize)]
struct BreakerStep<'a> {
    #[serde(borrow)]
    state: Text<'a>,
}

#[derive(Deserialize)]
struct Fields<'a> {
    #[serde(borrow)]
    ts: Text<'a>,
    #[serde(borrow)]
    event: Text<'a>,
    #[serde(borrow)]
    client_id: Option<Text<'a>>,
    #[serde(borrow)]
    source: Option<Text<'a>>,
    #[serde(borrow)]
    protocol: Option<Text<'a>>,
    #[serde(borrow)]
    lane: Option<Text<'a>>,
    #[serde(borrow)]
    tls: Option<Text<'a>>,
    #[serde(borrow)]
    decision: Option<Text<'a>>,
    #[serde(borrow)]
    reason: Option<Text<'a>>,
    #[serde(borrow)]
    would_refuse: Option<Text<'a>>,
    waited_ms: Option<f64>,
    took_ms: Option<u32>,
    connack: Option<u8>,
    connack_ms: Option<f64>,
    #[serde(borrow)]
    counts: Option<BTreeMap<Text<'a>, u64>>,
    count: Option<u64>,
    #[serde(borrow)]
    outcome: Option<Text<'a>>,
    #[serde(borrow)]
    cause: Option<Text<'a>>,
    delay_ms: Option<f64>,
}

impl<'a> Fields<'a> {
    fn attempt(self, at: Micros) -> Attempt<'a> {
        let decision = self.decision.map(|text| text.0);
        let reason = self.reason.map(|text| text.0);
        let outcome = match (decision.as_deref(), self.connack) {
            (Some("admitted"), Some(0)) => Outcome::Connected,
            (Some("admitted"), Some(code)) => Outcome::RefusedByBroker(code),
            (Some("admitted"), None) => Outcome::Failed("left before the CONNACK".into()),
            (Some("refused" | "invalid"), _) => Outcome::Refused(reason.unwrap_or("no MQTT".into())),
            (Some("timeout"), _) => Outcome::Failed("no CONNECT in time".into()),
            (Some("left"), _) => Outcome::Failed("left before its turn".into()),
            (Some(_), _) => Outcome::Failed(decision.unwrap_or_default()),
            (None, _) if self.tls.is_some_and(|tls| tls.0 != "failed") => {
                Outcome::Failed("left before its CONNECT".into())
            }
            (None, _) => {
                Outcome::Failed(format!("no handshake: {}", reason.as_deref().unwrap_or("unknown")).into())
            }
        };
        // Where it is not told, it is what the others tell, and a quick handshake.
        let told = self.waited_ms.unwrap_or_default() + self.connack_ms.unwrap_or_default();
        let took = self.took_ms.map_or(told, f64::from);
        Attempt {
            arrived: at - (took * 1e3) as Micros,
            client_id: self.client_id.map(|text| text.0),
            source: self.source.and_then(|text| address(&text.0)),
            protocol: self.protocol.map(|text| text.0),
            lane: self.lane.map(|text| text.0),
            outcome,
            held: self.waited_ms.map(|ms| ms / 1e3),
            connack_latency: self.connack_ms.map(|ms| ms / 1e3),
            would_refuse: self.would_refuse.is_some(),
            pause: None,
        }
    }

    /// A device tells of pauses as well; they come again with the attempt that ends them.
    fn reconnect(self, at: Micros) -> Event<'a> {
        let outcome = match (self.outcome.as_ref().map(|text| &*text.0), self.connack) {
            (Some("connected"), _) => Outcome::Connected,
            (Some("failed"), Some(code)) => Outcome::RefusedByBroker(code),
            (Some("failed"), None) => Outcome::Failed(self.cause.map_or("unknown".into(), |text| text.0)),
            _ => return Event::Other,
        };
        Event::DeviceAttempt(Attempt {
            arrived: at,
            client_id: self.client_id.map(|text| text.0),
            source: None,
            protocol: None,
            lane: None,
            outcome,
            held: None,
            connack_latency: None,
            would_refuse: false,
            pause: self.delay_ms.map(|ms| ms / 1e3).filter(|pause| *pause > 0.0),
        })
    }
}

fn event_of_state<'a>(event: &str, line: &[u8]) -> Event<'a> {
    match event {
        "rate" => serde_json::from_slice::<RateStep>(line)
            .ok()
            .and_then(|step| step.rate())
            .map_or(Event::Other, Event::Rate),
        "breaker" => match serde_json::from_slice::<BreakerStep<'_>>(line) {
            Ok(step) if step.state.0 == "open" => Event::BreakerOpen,
            _ => Event::Other,
        },
        "start" => Event::Start,
        _ => Event::Other,
    }
}

/// With or without a port.
fn address(text: &str) -> Option<IpAddr> {
    let socket = text.parse().map(|socket: SocketAddr| socket.ip());
    socket.or_else(|_| text.parse()).ok()
}

/// From RFC 3339. Ten million of them are read in a report, nearly all in the one shape that we write.
fn micros(text: &str) -> Option<Micros> {
    ours(text.as_bytes()).or_else(|| {
        let time = OffsetDateTime::parse(text, &Rfc3339).ok()?;
        i64::try_from(time.unix_timestamp_nanos() / 1000).ok()
    })
}

/// `2026-11-29T10:15:00.000042Z`.
fn ours(text: &[u8]) -> Option<Micros> {
    let text: &[u8; 27] = text.try_into().ok()?;
    let [
        y1,
        y2,
        y3,
        y4,
        b'-',
        o1,
        o2,
        b'-',
        d1,
        d2,
        b'T',
        h1,
        h2,
        b':',
        m1,
        m2,
        b':',
        s1,
        s2,
        b'.',
        fraction @ ..,
    ] = text
    else {
        return None;
    };
    let [u1, u2, u3, u4, u5, u6, b'Z'] = fraction else {
        return None;
    };
    let number = |digits: &[&u8]| {
        digits.iter().try_fold(0_i64, |sum, digit| {
            digit
                .is_ascii_digit()
                .then(|| sum * 10 + i64::from(**digit - b'0'))
        })
    };
    let month = time::Month::try_from(u8::try_from(number(&[o1, o2])?).ok()?).ok()?;
    let day = u8::try_from(number(&[d1, d2])?).ok()?;
    let year = i32::try_from(number(&[y1, y2, y3, y4])?).ok()?;
    let date = time::Date::from_calendar_date(year, month, day).ok()?;
    let days = i64::from(date.to_julian_day()) - i64::from(UNIX_EPOCH_JULIAN);
    let of_day = (number(&[h1, h2])? * 60 + number(&[m1, m2])?) * 60 + number(&[s1, s2])?;
    Some((days * 86_400 + of_day) * SECOND + number(&[u1, u2, u3, u4, u5, u6])?)
}

const UNIX_EPOCH_JULIAN: i32 = time::OffsetDateTime::UNIX_EPOCH.to_julian_day();

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Micros = 1_795_947_300_000_042;

    fn read(body: &str) -> Event<'_> {
        let entry = Entry::read(body.as_bytes()).unwrap();
        assert_eq!(entry.at, AT);
        assert_eq!(Entry::time_of(body.as_bytes()), Some(AT));
        entry.event
    }

    #[test]
    fn attempts_are_read_with_what_became_of_them() {
        let line = r#"{"ts":"2026-11-29T10:15:00.000042Z","event":"attempt","conn":7,"source":"10.1.2.3:54321","client_id":"a\"b","protocol":"3.1.1","clean":true,"lane":"default","tls":"1.3 full","decision":"admitted","waited_ms":1500,"took_ms":2000,"server":"s","connack":0,"connack_ms":12.3,"prev":""}"#;
        let Event::Attempt(attempt) = read(line) else {
            panic!()
        };
        assert_eq!(
            attempt,
            Attempt {
                arrived: AT - 2 * SECOND,
                client_id: Some("a\"b".into()),
                source: Some("10.1.2.3".parse().unwrap()),
                protocol: Some("3.1.1".into()),
                lane: Some("default".into()),
                outcome: Outcome::Connected,
                held: Some(1.5),
                connack_latency: Some(0.0123),
                would_refuse: false,
                pause: None,
            }
        );
        for (fields, expected) in [
            (
                r#""decision":"admitted","connack":5"#,
                Outcome::RefusedByBroker(5),
            ),
            (
                r#""decision":"admitted""#,
                Outcome::Failed("left before the CONNACK".into()),
            ),
            (
                r#""decision":"refused","reason":"rate""#,
                Outcome::Refused("rate".into()),
            ),
            (r#""decision":"invalid""#, Outcome::Refused("no MQTT".into())),
            (
                r#""decision":"left""#,
                Outcome::Failed("left before its turn".into()),
            ),
            (
                r#""decision":"timeout""#,
                Outcome::Failed("no CONNECT in time".into()),
            ),
            (
                r#""tls":"failed","reason":"gone""#,
                Outcome::Failed("no handshake: gone".into()),
            ),
            (
                r#""tls":"1.3 full""#,
                Outcome::Failed("left before its CONNECT".into()),
            ),
        ] {
            let line = format!(r#"{{"ts":"2026-11-29T10:15:00.000042Z","event":"attempt",{fields}}}"#);
            let Event::Attempt(attempt) = read(&line) else {
                panic!()
            };
            assert_eq!(attempt.outcome, expected, "{fields}");
            let held = if fields.contains("waited_ms") {
                4 * SECOND
            } else {
                0
            };
            assert_eq!(attempt.arrived, AT - held, "{fields}");
        }
    }

    #[test]
    fn events_are_read_as_daemon_and_device_write_them() {
        let line = |rest: &str| format!(r#"{{"ts":"2026-11-29T10:15:00.000042Z","event":{rest}}}"#);
        for (rest, expected) in [
            (r#""end","conn":7,"side":"client""#, Event::End),
            (
                r#""shed","counts":{"handshake-full":3}"#,
                Event::Shed(vec![(Text("handshake-full".into()), 3)]),
            ),
            (r#""rate","from":"80.0","to":"95.5""#, Event::Rate(95.5)),
            (r#""rate","from":"80.0","to":"NaN""#, Event::Other),
            (r#""rate","from":80.0,"to":0.001"#, Event::Rate(0.001)),
            (r#""rate","to":200"#, Event::Rate(200.0)),
            (r#""rate","to":-1"#, Event::Other),
            (r#""rate","to":null"#, Event::Other),
            (r#""breaker","server":"s","state":"open""#, Event::BreakerOpen),
            (r#""breaker","server":"s","state":"closed""#, Event::Other),
            (r#""dropped","count":9"#, Event::Dropped(9)),
            (r#""start","version":"1""#, Event::Start),
            (r#""reload","source":{"any":["thing"]},"count":"x""#, Event::Other),
            (
                r#""reconnect","client_id":"p","attempt":1,"delay_ms":5000,"outcome":"backoff","clean":true"#,
                Event::Other,
            ),
        ] {
            assert_eq!(read(&line(rest)), expected, "{rest}");
        }
        let failed = line(
            r#""reconnect","client_id":"p","attempt":1,"delay_ms":5000,"outcome":"failed","cause":"refused","connack":137,"clean":true"#,
        );
        let Event::DeviceAttempt(attempt) = read(&failed) else {
            panic!()
        };
        assert_eq!(
            (attempt.outcome, attempt.pause),
            (Outcome::RefusedByBroker(137), Some(5.0))
        );
    }

    #[test]
    fn what_is_no_record_is_none() {
        for line in [
            "",
            "{}",
            "[]",
            "not JSON",
            r#"{"ts":"yesterday","event":"attempt"}"#,
            r#"{"ts":"2026-11-29T10:15:00.000042Z"}"#,
            "{\"ts\":\"2026-11-29T10:15:00.000042Z\",\"event\":\"\u{fffd}",
        ] {
            assert_eq!(Entry::read(line.as_bytes()), None, "{line}");
        }
    }

    #[test]
    fn times_are_read_in_our_shape_and_in_others() {
        assert_eq!(micros("2026-11-29T10:15:00.000042Z"), Some(AT));
        assert_eq!(micros("2026-11-29T11:15:00.000042+01:00"), Some(AT));
        assert_eq!(micros("2026-11-29T10:15:00Z"), Some(AT - 42));
        assert_eq!(ours(b"1970-01-01T00:00:00.000001Z"), Some(1));
        for text in ["2026-13-29T10:15:00.000042Z", "2026-11-29T10:15:00.00004xZ", ""] {
            assert_eq!(micros(text), None, "{text}");
        }
    }
}
