//! Scrapes, and what is scraped as a test for `promtool test rules`.

use crate::rig::http::{self, Metrics};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Seconds between two scrapes, as in `deploy/prometheus/prometheus.yml`.
const STEP: u64 = 5;

/// Which alerts fire at a moment.
pub struct Expected {
    seconds: u64,
    firing: BTreeSet<String>,
    perhaps: Vec<String>,
}

impl Expected {
    /// These and no others.
    pub fn at(seconds: u64, firing: &[&str]) -> Self {
        Self {
            seconds,
            firing: firing.iter().map(ToString::to_string).collect(),
            perhaps: Vec::new(),
        }
    }

    pub fn nothing(seconds: u64) -> Self {
        Self::at(seconds, &[])
    }

    /// Whether these fire as well is a matter of chance.
    pub fn and_perhaps(mut self, perhaps: &[&str]) -> Self {
        self.perhaps = perhaps.iter().map(ToString::to_string).collect();
        self
    }
}

type Series = BTreeMap<String, Vec<Option<f64>>>;

/// Scrapes of one or several daemons, from its making on.
pub struct Recording {
    from: Instant,
    begun: f64,
    series: Arc<Mutex<Series>>,
    scraping: JoinHandle<()>,
}

impl Recording {
    /// `daemons`: name of the instance, admin address.
    pub fn start(daemons: &[(&str, SocketAddr)]) -> Self {
        let daemons: Vec<(String, SocketAddr)> = daemons
            .iter()
            .map(|(name, address)| ((*name).to_owned(), *address))
            .collect();
        let series = Arc::new(Mutex::new(Series::new()));
        let written = Arc::clone(&series);
        let scraping = tokio::spawn(async move {
            let mut clock = tokio::time::interval(Duration::from_secs(STEP));
            for step in 0.. {
                clock.tick().await;
                for (name, address) in &daemons {
                    let scraped = tokio::spawn(http::get(*address, "/metrics")).await;
                    let samples = scraped.map(|answer| samples(name, &answer.body));
                    let mut series = written.lock().unwrap();
                    let up = f64::from(u8::from(samples.is_ok()));
                    let up = (format!("up{{instance=\"{name}\",job=\"seawall\"}}"), up);
                    for (key, value) in samples.unwrap_or_default().into_iter().chain([up]) {
                        let values = series.entry(key).or_default();
                        values.resize(step, None);
                        values.push(Some(value));
                    }
                }
            }
        });
        Self {
            from: Instant::now(),
            begun: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap()
                .as_secs_f64(),
            series,
            scraping,
        }
    }

    pub async fn until(&self, seconds: u64) {
        tokio::time::sleep_until(self.from + Duration::from_secs(seconds)).await;
    }

    /// Writes `tests/NAME.yml` under `folder`.
    pub fn finish(self, folder: &Path, name: &str, expected: &[Expected]) {
        self.scraping.abort();
        let rules = std::fs::read_to_string(folder.join("rules.yml")).unwrap();
        let series = self.series.lock().unwrap();
        let steps = series.values().map(Vec::len).max().unwrap();
        let mut text = format!(
            "# Recorded by tests/it/alerts.rs from a real daemon: the series that the alerts look at, and did move.\n\
             rule_files: [../rules.yml]\nevaluation_interval: {STEP}s\ntests:\n  - name: {name}\n    interval: {STEP}s\n    input_series:\n"
        );
        for (key, values) in series.iter() {
            let metric = key.split('{').next().unwrap();
            if !rules.contains(metric) || is_idle(metric, values) {
                continue;
            }
            // promtool's time begins at 0.
            let shift = if metric.ends_with("_expiry_seconds") {
                self.begun.floor()
            } else {
                0.0
            };
            let values: Vec<Option<f64>> = values
                .iter()
                .map(|value| value.map(|value| value - shift))
                .chain(std::iter::repeat(None))
                .take(steps)
                .collect();
            writeln!(
                text,
                "      - series: '{key}'\n        values: '{}'",
                notation(&values)
            )
            .unwrap();
        }
        text.push_str("    promql_expr_test:\n");
        for moment in expected {
            let but = moment.perhaps.join("|");
            writeln!(
                text,
                "      - expr: max by (alertname) (ALERTS{{alertstate=\"firing\",alertname!~\"{but}\"}})\n        eval_time: {}s",
                moment.seconds
            )
            .unwrap();
            if moment.firing.is_empty() {
                text.push_str("        exp_samples: []\n");
                continue;
            }
            text.push_str("        exp_samples:\n");
            for alert in &moment.firing {
                writeln!(
                    text,
                    "          - {{ labels: '{{alertname=\"{alert}\"}}', value: 1 }}"
                )
                .unwrap();
            }
        }
        std::fs::write(folder.join("tests").join(format!("{name}.yml")), text).unwrap();
    }
}

fn samples(instance: &str, text: &str) -> Vec<(String, f64)> {
    let samples = Metrics::parse(text);
    samples
        .iter()
        .map(|(name, labels, value)| {
            let mut labels: BTreeMap<&str, &str> = labels
                .iter()
                .map(|(key, value)| (key.as_str(), value.as_str()))
                .collect();
            labels.insert("instance", instance);
            labels.insert("job", "seawall");
            // Ports and folders are another each time.
            let labels: Vec<String> = labels
                .iter()
                .map(|(key, value)| match (*key, *value) {
                    ("server", _) => "server=\"broker:1883\"".to_owned(),
                    ("name", path) => format!("name=\"{}\"", path.rsplit('/').next().unwrap()),
                    (key, value) => format!("{key}=\"{value}\""),
                })
                .collect();
            (format!("{name}{{{}}}", labels.join(",")), value)
        })
        .collect()
}

/// A counter that never counted says nothing that its absence does not.
fn is_idle(metric: &str, values: &[Option<f64>]) -> bool {
    (metric.ends_with("_total") || metric.ends_with("_bucket"))
        && values.iter().flatten().all(|value| *value == 0.0)
}

/// promtool's: `A+BxN` is A and N more, each by B; `_` is no sample; `stale` ends a series.
fn notation(values: &[Option<f64>]) -> String {
    let mut words: Vec<String> = Vec::new();
    let mut rest = values;
    let mut before = None;
    while let Some(first) = rest.first() {
        let Some(start) = first else {
            words.push(if before.is_some() { "stale" } else { "_" }.to_owned());
            before = None;
            rest = &rest[1..];
            continue;
        };
        before = Some(*start);
        let step = match rest.get(1) {
            Some(Some(next)) => next - start,
            _ => 0.0,
        };
        // Only what adds up exactly.
        let run = if step.fract() == 0.0 {
            rest.windows(2)
                .take_while(|pair| matches!(pair, [Some(one), Some(two)] if two - one == step))
                .count()
        } else {
            0
        };
        words.push(match (run, step) {
            (0, _) => format!("{start}"),
            (run, 0.0) => format!("{start}x{run}"),
            (run, step) => format!("{start}{step:+}x{run}"),
        });
        rest = &rest[run + 1..];
    }
    words.join(" ")
}

#[test]
fn values_are_written_as_promtool_reads_them() {
    let values = [
        None,
        Some(1.0),
        Some(1.0),
        Some(1.0),
        Some(3.0),
        Some(5.0),
        Some(0.5),
        None,
        None,
    ];
    assert_eq!(notation(&values), "_ 1x2 3+2x1 0.5 stale _");
}
