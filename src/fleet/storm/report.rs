//! What came of a storm: the closing table, and all of it as JSON.

use std::fmt;
use std::time::Duration;

use serde::{Serialize, Serializer};

use super::effort::Effort;
use super::live::Second;
use crate::fleet::broker;
use crate::fleet::bystander::{Latency, Messages};
use crate::fleet::outcome::Loss;
use crate::fleet::swarm::{Counts, Return};

/// What came of a storm. Its JSON is documented in `docs/storm.md`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Of the program.
    pub version: &'static str,
    /// What was hit by it.
    pub target: String,
    /// What happened, in words.
    pub pattern: String,
    /// Policies of the devices and their shares.
    pub mix: String,
    /// Devices in the fleet.
    pub devices: usize,
    /// Devices that the blow hit, and that have to come back.
    pub hit: usize,
    /// Wall clock of the blow, RFC 3339; absent: it never came to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blow: Option<String>,
    /// Wall clock of the moment from which on devices could come back (with several groups: the first of them).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open: Option<String>,
    /// The blow, in seconds since the beginning, as `at_s` counts them.
    pub blow_s: f64,
    /// It was interrupted before all were back.
    pub interrupted: bool,
    /// What a command of the operator's said, where it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command_failed: Option<String>,
    /// The shortest time that the target's rate allows for all of them, where it is known.
    #[serde(
        rename = "ideal_s",
        serialize_with = "optional_seconds",
        skip_serializing_if = "Option::is_none"
    )]
    pub ideal: Option<Duration>,
    /// Derived from the returns.
    pub back: Back,
    /// What the devices counted before the blow: their first connections.
    pub before: Counts,
    /// What they counted from the blow on.
    pub storm: Counts,
    /// What the broker saw from the blow on; absent: it was somebody else's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broker: Option<broker::Figures>,
    /// Absent without bystanders.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bystanders: Option<Watched>,
    /// What the generator itself did.
    pub generator: Generator,
    /// Second by second.
    pub seconds: Vec<Second>,
    /// The returns in the order of time, each as `[seconds, attempts]`.
    #[serde(serialize_with = "pairs")]
    pub returns: Vec<Return>,
}

/// When how many were back.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Back {
    /// Devices that are back.
    pub devices: usize,
    /// When half of those that were hit were back, in seconds; absent: never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50_s: Option<f64>,
    /// When 90 in a hundred were.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p90_s: Option<f64>,
    /// When 99 in a hundred were.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_s: Option<f64>,
    /// When all were.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub all_s: Option<f64>,
    /// Attempts of the device in the middle of those that are back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempts_p50: Option<u32>,
    /// One in a hundred needed more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempts_p99: Option<u32>,
    /// Most that a device needed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempts_most: Option<u32>,
}

/// What the bystanders saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Watched {
    /// Publisher and subscriber pairs; each is two connections more to the target.
    pub pairs: usize,
    /// Before the blow.
    pub calm: Latency,
    /// From the blow until all were back.
    pub storm: Latency,
    /// All of them, before the blow and after it.
    pub messages: Messages,
}

/// What the generator itself did from the blow on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Generator {
    /// Processes with devices in them.
    pub processes: usize,
    /// Threads with devices on them, in all.
    pub threads: usize,
    /// Processors that it may use.
    pub cores: usize,
    /// How long it took.
    pub elapsed_s: f64,
    /// Its processor time, busiest thread and latest timer over all this time.
    pub effort: Effort,
    /// `cpu_s` to `elapsed_s` and `cores`, 0 to 1.
    pub share: f64,
    /// In so many of `seconds` it was the bottleneck: a thread without room for more, or timers 100 ms late.
    pub bottleneck_seconds: usize,
    /// Seconds looked at.
    pub seconds: usize,
}

impl Report {
    /// Whether every device that was hit was back in the end.
    pub fn all_back(&self) -> bool {
        self.blow.is_some() && self.returns.len() >= self.hit
    }
}

impl Back {
    /// Of `returns` in the order of time, of so many devices that were hit.
    pub(super) fn of(returns: &[Return], hit: usize) -> Self {
        let back = |hundredths: usize| {
            let needed = (hit * hundredths).div_ceil(100).max(1);
            returns.get(needed - 1).map(|back| back.after.as_secs_f64())
        };
        let mut attempts: Vec<u32> = returns.iter().map(|back| back.attempts).collect();
        attempts.sort_unstable();
        let quantile = |quantile: f64| {
            let last = attempts.len().checked_sub(1)?;
            attempts.get((quantile * last as f64).round() as usize).copied()
        };
        Self {
            devices: returns.len(),
            p50_s: back(50),
            p90_s: back(90),
            p99_s: back(99),
            all_s: back(100),
            attempts_p50: quantile(0.5),
            attempts_p99: quantile(0.99),
            attempts_most: quantile(1.0),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (label, text) in self.rows() {
            writeln!(f, "  {label:<20} {text}")?;
        }
        Ok(())
    }
}

impl Report {
    fn rows(&self) -> Vec<(&'static str, String)> {
        let mut rows = self.rows_of_the_returns();
        let Counts {
            arrivals,
            admitted,
            handshakes,
            dropped,
            ..
        } = &self.storm;
        let (refused, gave_up, broken) = (
            self.storm.refused_in_all(),
            self.storm.gave_up(),
            self.storm.broken(),
        );
        rows.push((
            "attempts in all",
            format!(
                "{arrivals}: {admitted} admitted, {refused} refused, {gave_up} given up, {broken} broken"
            ),
        ));
        for (label, words) in [
            ("refused by code", refusals(&self.storm)),
            ("no answer", losses(&self.storm)),
        ] {
            if !words.is_empty() {
                rows.push((label, words));
            }
        }
        if handshakes.full + handshakes.resumed > 0 {
            rows.push((
                "TLS handshakes",
                format!(
                    "{} full, {} resumed, {} of them in vain",
                    handshakes.full, handshakes.resumed, handshakes.wasted
                ),
            ));
        }
        if *dropped > 0 {
            rows.push((
                "dropped",
                format!("{dropped} connections were ended by the other side"),
            ));
        }
        if let Some(broker) = self.broker {
            rows.push((
                "the broker saw",
                format!(
                    "{} CONNECTs, {} of them of clients that had left",
                    broker.connects, broker.wasted
                ),
            ));
        }
        if let Some(watched) = self.bystanders {
            rows.push(("bystanders, calm", latency(watched.calm)));
            rows.push(("bystanders, storm", latency(watched.storm)));
            rows.push((
                "",
                format!(
                    "{} of {} messages lost",
                    watched.messages.lost(),
                    watched.messages.sent
                ),
            ));
        }
        rows.extend(self.generator.rows());
        rows
    }

    fn rows_of_the_returns(&self) -> Vec<(&'static str, String)> {
        let mut rows = Vec::new();
        if self.interrupted {
            rows.push(("interrupted", "what follows is the report so far".to_owned()));
        }
        if let Some(failed) = &self.command_failed {
            rows.push(("the command failed", failed.clone()));
        }
        rows.push((
            "back again",
            format!("{} of {} devices", self.back.devices, self.hit),
        ));
        let Back {
            p50_s,
            p90_s,
            p99_s,
            all_s,
            ..
        } = self.back;
        let after = [(50, p50_s), (90, p90_s), (99, p99_s), (100, all_s)].map(|(hundredths, after)| {
            let after = after.map_or("never".to_owned(), seconds);
            format!("{hundredths} % {after}")
        });
        rows.push(("after", after.join("   ")));
        if let Some(ideal) = self.ideal.map(|ideal| ideal.as_secs_f64()) {
            rows.push((
                "",
                match all_s {
                    Some(all) => format!(
                        "{:.2} times the {} that the rate allows at best",
                        all / ideal,
                        seconds(ideal)
                    ),
                    None => format!("the rate allows {} at best", seconds(ideal)),
                },
            ));
        }
        if let (Some(p50), Some(p99), Some(most)) = (
            self.back.attempts_p50,
            self.back.attempts_p99,
            self.back.attempts_most,
        ) {
            rows.push((
                "attempts a device",
                format!("p50 {p50}   p99 {p99}   most {most}"),
            ));
        }
        rows
    }
}

impl Generator {
    fn rows(&self) -> Vec<(&'static str, String)> {
        let Self {
            cores,
            elapsed_s,
            effort,
            share,
            bottleneck_seconds,
            seconds: all,
            ..
        } = self;
        let mut rows = vec![(
            "the generator",
            format!(
                "{:.1} s of processor time in {elapsed_s:.1} s: {:.0} % of {cores} cores",
                effort.cpu_s,
                share * 100.0
            ),
        )];
        if *bottleneck_seconds > 0 {
            rows.push((
                "",
                format!(
                    "it was the bottleneck in {bottleneck_seconds} of {all} s: its timers came up to {:.0} ms late",
                    effort.late_ms
                ),
            ));
            rows.push((
                "",
                "the target was offered less than this fleet would; give it more cores, or a machine of its own"
                    .to_owned(),
            ));
        }
        rows
    }
}

/// What became of attempts that were not admitted, in words.
pub(super) fn outcomes(counts: &Counts) -> String {
    let both = [refusals(counts), losses(counts)];
    let words: Vec<&str> = both
        .iter()
        .map(String::as_str)
        .filter(|words| !words.is_empty())
        .collect();
    match words.as_slice() {
        [] => "no attempt was answered yet".to_owned(),
        words => words.join("   "),
    }
}

fn refusals(counts: &Counts) -> String {
    let codes = counts.refused.iter();
    let words: Vec<_> = codes
        .map(|(code, times)| format!("{code:#04x} {times}"))
        .collect();
    words.join("   ")
}

fn losses(counts: &Counts) -> String {
    let ways = Loss::ALL.into_iter().map(|loss| (loss, counts.lost(loss)));
    let words: Vec<_> = ways
        .filter(|(_, times)| *times > 0)
        .map(|(loss, times)| format!("{} {times}", loss.word()))
        .collect();
    words.join("   ")
}

fn latency(latency: Latency) -> String {
    let Latency {
        p50_us,
        p99_us,
        max_us,
        ..
    } = latency;
    format!(
        "p50 {}   p99 {}   slowest {}",
        milliseconds(p50_us),
        milliseconds(p99_us),
        milliseconds(max_us)
    )
}

/// Microseconds as milliseconds.
pub(super) fn milliseconds(microseconds: u64) -> String {
    format!("{:.1} ms", microseconds as f64 / 1000.0)
}

pub(super) fn seconds(seconds: f64) -> String {
    format!("{seconds:.1} s")
}

#[allow(clippy::ref_option, reason = "serde calls it so")]
fn optional_seconds<S: Serializer>(span: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    span.map(|span| span.as_secs_f64()).serialize(serializer)
}

fn pairs<S: Serializer>(returns: &[Return], serializer: S) -> Result<S::Ok, S::Error> {
    let microseconds = |back: &Return| back.after.as_micros() as f64 / 1e6;
    serializer.collect_seq(returns.iter().map(|back| (microseconds(back), back.attempts)))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Of a fleet of which so many are back.
    pub(in crate::fleet::storm) fn report(devices: usize, back: usize) -> Report {
        let returns: Vec<Return> = (1..=back as u64)
            .zip(1_u32..)
            .map(|(second, attempts)| Return {
                after: Duration::from_secs(second),
                attempts,
            })
            .collect();
        let mut storm = Counts {
            arrivals: 31,
            admitted: 10,
            refused: [(3, 8), (0x89, 7)].into(),
            dropped: 4,
            connected: back,
            ..Counts::default()
        };
        storm.lost = [(Loss::Shed, 2), (Loss::ImpatientConnack, 4)]
            .map(|(loss, times)| (loss.word().to_owned(), times))
            .into();
        storm.handshakes = crate::fleet::swarm::Handshakes {
            full: 20,
            resumed: 9,
            wasted: 19,
        };
        let latency = |p50_us, p99_us, max_us| Latency {
            messages: 100,
            p50_us,
            p99_us,
            max_us,
        };
        Report {
            version: "0.1.0",
            target: "localhost:8883".into(),
            pattern: "100 % lose their tower for 4 s".into(),
            mix: "fixed".into(),
            devices,
            hit: devices,
            blow: Some("2026-11-29T22:00:00Z".into()),
            open: Some("2026-11-29T22:00:04Z".into()),
            blow_s: 1.5,
            interrupted: false,
            command_failed: None,
            ideal: Some(Duration::from_secs(8)),
            back: Back::of(&returns, devices),
            before: Counts::default(),
            storm,
            broker: Some(broker::Figures {
                connects: 11,
                wasted: 1,
                ..broker::Figures::default()
            }),
            bystanders: Some(Watched {
                pairs: 20,
                calm: latency(300, 900, 1100),
                storm: latency(400, 2100, 30_000),
                messages: Messages {
                    sent: 200,
                    received: 198,
                },
            }),
            generator: Generator {
                processes: 1,
                threads: 2,
                cores: 2,
                elapsed_s: 10.0,
                effort: Effort {
                    cpu_s: 5.0,
                    busiest: 0.95,
                    late_ms: 120.0,
                },
                share: 0.25,
                bottleneck_seconds: 3,
                seconds: 10,
            },
            seconds: Vec::new(),
            returns,
        }
    }

    #[test]
    fn shares_are_of_the_devices_and_not_of_those_who_came() {
        let report = report(10, 9);
        let Back {
            p50_s,
            p90_s,
            p99_s,
            attempts_p50,
            ..
        } = report.back;
        assert_eq!(
            (p50_s, p90_s, p99_s, attempts_p50),
            (Some(5.0), Some(9.0), None, Some(5))
        );
        assert!(!report.all_back());
    }

    #[test]
    fn nobody_back_is_no_division_by_zero() {
        let report = report(10, 0);
        assert_eq!((report.back.p50_s, report.back.attempts_p50), (None, None));
        assert!(report.to_string().contains("0 of 10 devices"), "{report}");
        assert!(Back::of(&[], 0).p50_s.is_none());
    }

    #[test]
    fn the_table_says_it_all() {
        let expected = "  back again           10 of 10 devices
  after                50 % 5.0 s   90 % 9.0 s   99 % 10.0 s   100 % 10.0 s
                       1.25 times the 8.0 s that the rate allows at best
  attempts a device    p50 6   p99 10   most 10
  attempts in all      31: 10 admitted, 15 refused, 4 given up, 2 broken
  refused by code      0x03 8   0x89 7
  no answer            shed 2   gave-up-waiting 4
  TLS handshakes       20 full, 9 resumed, 19 of them in vain
  dropped              4 connections were ended by the other side
  the broker saw       11 CONNECTs, 1 of them of clients that had left
  bystanders, calm     p50 0.3 ms   p99 0.9 ms   slowest 1.1 ms
  bystanders, storm    p50 0.4 ms   p99 2.1 ms   slowest 30.0 ms
                       2 of 200 messages lost
  the generator        5.0 s of processor time in 10.0 s: 25 % of 2 cores
                       it was the bottleneck in 3 of 10 s: its timers came up to 120 ms late
                       the target was offered less than this fleet would; give it more cores, or a machine of its own
";
        assert_eq!(report(10, 10).to_string(), expected);
    }

    #[test]
    fn an_interrupted_storm_says_so_first() {
        let report = Report {
            interrupted: true,
            ..report(10, 3)
        };
        assert!(
            report.to_string().trim_start().starts_with("interrupted"),
            "{report}"
        );
    }

    #[test]
    fn json_has_the_names_that_are_documented() {
        let json = serde_json::to_value(report(2, 2)).unwrap();
        let page = include_str!("../../../docs/storm.md");
        let mut paths = Vec::new();
        names(&json, &mut paths);
        for name in paths {
            assert!(
                page.contains(&format!("`{name}`")),
                "docs/storm.md does not name `{name}`"
            );
        }
        assert_eq!(json["returns"][1], serde_json::json!([2.0, 2]));
        assert_eq!(json["storm"]["refused"]["137"], 7);
        assert_eq!(json["storm"]["lost"]["gave-up-waiting"], 4);
    }

    /// Names of fields; keys of the maps by code and by word are none.
    fn names(value: &serde_json::Value, found: &mut Vec<String>) {
        let Some(object) = value.as_object() else { return };
        for (name, value) in object {
            found.push(name.clone());
            if !["refused", "lost"].contains(&name.as_str()) {
                names(value, found);
            }
        }
    }
}
