//! One record of every attempt, to a sink of the caller's, as JSON lines if he likes.

use std::fmt::Write;
use std::time::{Duration, SystemTime};

use super::Cause;
use crate::moment::Moment;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The next attempt waits by the schedule.
    Backoff,
    /// The next attempt waits for the rate limit of its process or host.
    RateLimited,
    /// CONNACK 0.
    Connected,
    /// The attempt failed, or the connection was lost.
    Failed(Cause),
}

impl Outcome {
    /// The word in audit lines.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Backoff => "backoff",
            Self::RateLimited => "rate-limited",
            Self::Connected => "connected",
            Self::Failed(_) => "failed",
        }
    }
}

/// One attempt, or one reason why it is put off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// When.
    pub at: Moment,
    /// Client identifier.
    pub client_id: &'a str,
    /// Attempts since the last reset, this one included; for a wait: those before it.
    pub attempt: u32,
    /// The wait that begins (backoff, rate-limited) or that went before (connected, failed).
    pub delay: Duration,
    /// What happened.
    pub outcome: Outcome,
    /// Whether the session is a clean one.
    pub clean: bool,
}

/// Takes records. Any `FnMut(&Record)` does.
pub trait Audit {
    /// Called once for every record, at once.
    fn record(&mut self, record: &Record<'_>);
}

impl<F: FnMut(&Record<'_>)> Audit for F {
    fn record(&mut self, record: &Record<'_>) {
        self(record);
    }
}

impl Record<'_> {
    /// The record as a line of JSON without its line feed. `wall` is the time of day: the core has no clock. Before
    /// 1970 counts as 1970.
    pub fn to_json(&self, wall: SystemTime) -> String {
        let mut line = String::from("{\"ts\":\"");
        write_timestamp(wall, &mut line);
        line.push_str("\",\"event\":\"reconnect\",\"client_id\":\"");
        write_escaped(self.client_id, &mut line);
        let (attempt, delay, outcome) = (self.attempt, self.delay.as_millis(), self.outcome.word());
        // Writing to a string does not fail.
        let _ = write!(
            line,
            "\",\"attempt\":{attempt},\"delay_ms\":{delay},\"outcome\":\"{outcome}\""
        );
        if let Outcome::Failed(cause) = self.outcome {
            let _ = write!(line, ",\"cause\":\"{}\"", cause.word());
            if let Cause::Refused(code) = cause {
                let _ = write!(line, ",\"connack\":{code}");
            }
        }
        let _ = write!(line, ",\"clean\":{}}}", self.clean);
        line
    }
}

/// RFC 3339 in UTC with microseconds.
fn write_timestamp(wall: SystemTime, out: &mut String) {
    let since = wall.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let (seconds, microseconds) = (since.as_secs(), since.subsec_micros());
    let (year, month, day) = civil(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let _ = write!(
        out,
        "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{microseconds:06}Z"
    );
}

/// Year, month and day of a day since 1970-01-01 in the Gregorian calendar. Years begin in March here, so that the leap
/// day is their last.
fn civil(days_since_1970: u64) -> (u64, u64, u64) {
    const FROM_MARCH_0000: u64 = 719_468;
    const ERA: u64 = 146_097;
    let days = days_since_1970 + FROM_MARCH_0000;
    let (era, day_of_era) = (days / ERA, days % ERA);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
}

/// RFC 8259 section 7. DEL and the C1 controls are escaped as well: an audit line must not move a terminal.
fn write_escaped(text: &str, out: &mut String) {
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            character if character.is_control() => {
                let _ = write!(out, "\\u{:04x}", u32::from(character));
            }
            character => out.push(character),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn record(outcome: Outcome, client_id: &str) -> Record<'_> {
        let delay = Duration::from_micros(1_234_567);
        Record {
            at: Moment::ZERO,
            client_id,
            attempt: 3,
            delay,
            outcome,
            clean: false,
        }
    }

    #[test]
    fn records_are_json_lines() {
        let wall = at(1_795_947_300) + Duration::from_micros(42);
        let cases = [
            (Outcome::Backoff, ""),
            (Outcome::RateLimited, ""),
            (Outcome::Connected, ""),
            (Outcome::Failed(Cause::Timeout), r#","cause":"timeout""#),
            (
                Outcome::Failed(Cause::Refused(0x89)),
                r#","cause":"refused","connack":137"#,
            ),
        ];
        for (outcome, cause) in cases {
            let expected = format!(
                r#"{{"ts":"2026-11-29T10:15:00.000042Z","event":"reconnect","client_id":"pump-7","attempt":3,"delay_ms":1234,"outcome":"{}"{cause},"clean":false}}"#,
                outcome.word()
            );
            assert_eq!(record(outcome, "pump-7").to_json(wall), expected);
        }
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00"),
            (68_169_599, "1972-02-28T23:59:59"),
            (68_169_600, "1972-02-29T00:00:00"),
            (951_782_400, "2000-02-29T00:00:00"),
            (1_709_251_199, "2024-02-29T23:59:59"),
            (1_709_251_200, "2024-03-01T00:00:00"),
            (4_107_542_400, "2100-03-01T00:00:00"),
            (4_107_456_000, "2100-02-28T00:00:00"),
            (253_402_300_799, "9999-12-31T23:59:59"),
        ] {
            let mut found = String::new();
            write_timestamp(at(seconds), &mut found);
            assert_eq!(found, format!("{expected}.000000Z"));
        }
    }

    #[cfg(feature = "daemon")]
    proptest! {
        #[test]
        fn any_client_identifier_survives(client_id in ".*") {
            let line = record(Outcome::Connected, &client_id).to_json(at(0));
            let value: serde_json::Value = serde_json::from_str(&line).unwrap();
            prop_assert_eq!(value["client_id"].as_str(), Some(&*client_id));
            prop_assert!(!line.chars().any(char::is_control));
        }
    }
}
