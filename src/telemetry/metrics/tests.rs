use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::mqtt::{Protocol, Version};
use crate::reason::Reason;
use crate::telemetry::ending::{Decision, Handshake, HandshakeFailure, HandshakeKind, Side, TlsVersion};

fn metrics() -> Arc<Metrics> {
    let metrics = Metrics::new(&["a:1883".to_owned(), "b:1883".to_owned()], &[]).unwrap();
    metrics.certificates([("default", 1)].into_iter());
    metrics.revocation_lists([("devices.crl", 1)].into_iter());
    metrics
}

fn attempt() -> Attempt {
    Attempt::new(1, (Ipv4Addr::LOCALHOST, 4000).into())
}

fn ending(side: Side, phase: Phase) -> Ending {
    Ending {
        side,
        phase,
        cause: "test",
        lasted: Duration::from_secs(1),
        bytes_up: 10,
        bytes_down: 20,
    }
}

fn text(metrics: &Metrics) -> String {
    metrics.render(Snapshot::default()).unwrap()
}

/// The value of the one series that is written as `series`.
fn value(metrics: &Metrics, series: &str) -> f64 {
    let text = text(metrics);
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {series} in\n{text}"))
        .parse()
        .unwrap()
}

#[test]
fn an_admitted_session_counts_once_at_its_beginning_and_its_end_once_at_the_end() {
    let metrics = metrics();
    let mut attempt = attempt();
    let took = Duration::from_millis(3);
    attempt.handshake = Some(Ok(Handshake {
        kind: HandshakeKind::Resumed,
        version: TlsVersion::V1_3,
        took,
    }));
    metrics.observe(&mut attempt);
    attempt.protocol = Protocol::Known(Version::V5);
    attempt.held = Some(Duration::from_millis(700));
    attempt.decision = Some(Decision::Admitted { would_refuse: None });
    attempt.server = Some(1);
    attempt.connack = Some((0, Duration::from_millis(15)));
    let counted = |ended: f64| {
        for (series, expected) in [
            ("seawall_handshakes_total{kind=\"resumed\",version=\"1.3\"}", 1.0),
            (
                "seawall_handshake_seconds_bucket{kind=\"resumed\",le=\"0.0025\"}",
                0.0,
            ),
            (
                "seawall_handshake_seconds_bucket{kind=\"resumed\",le=\"0.005\"}",
                1.0,
            ),
            (
                "seawall_connects_total{decision=\"admitted\",lane=\"default\",protocol=\"5\"}",
                1.0,
            ),
            ("seawall_hold_seconds_sum", 0.7),
            ("seawall_hold_seconds_count", 1.0),
            ("seawall_connack_seconds_count{server=\"b:1883\"}", 1.0),
            ("seawall_connack_seconds_count{server=\"a:1883\"}", 0.0),
            ("seawall_broker_connacks_total{code=\"0\",server=\"b:1883\"}", 1.0),
            ("seawall_closed_total{phase=\"relaying\",side=\"broker\"}", ended),
        ] {
            assert!(
                (value(&metrics, series) - expected).abs() < 1e-9,
                "{series} is not {expected}"
            );
        }
    };
    metrics.observe(&mut attempt);
    metrics.observe(&mut attempt);
    counted(0.0);
    metrics.record(&mut attempt, &ending(Side::Broker, Phase::Relaying));
    counted(1.0);
}

#[test]
fn each_decision_is_counted_under_its_own_word() {
    for (decision, series) in [
        (
            Decision::Refused(Reason::HoldFull),
            &[
                "seawall_connects_total{decision=\"refused\",lane=\"default\",protocol=\"other\"}",
                "seawall_refused_total{lane=\"default\",reason=\"hold-full\"}",
            ][..],
        ),
        (
            Decision::Invalid(Some(Reason::TooLarge)),
            &[
                "seawall_connects_total{decision=\"invalid\",lane=\"default\",protocol=\"other\"}",
                "seawall_refused_total{lane=\"default\",reason=\"too-large\"}",
            ],
        ),
        (
            Decision::Invalid(None),
            &["seawall_connects_total{decision=\"invalid\",lane=\"default\",protocol=\"other\"}"],
        ),
        (
            Decision::Admitted {
                would_refuse: Some(Reason::Rate),
            },
            &[
                "seawall_connects_total{decision=\"admitted\",lane=\"default\",protocol=\"other\"}",
                "seawall_dry_run_total{reason=\"rate\"}",
            ],
        ),
        (
            Decision::TimedOut,
            &["seawall_connects_total{decision=\"timeout\",lane=\"default\",protocol=\"other\"}"],
        ),
        (
            Decision::Left,
            &["seawall_connects_total{decision=\"left\",lane=\"default\",protocol=\"other\"}"],
        ),
    ] {
        let metrics = metrics();
        let mut attempt = attempt();
        attempt.decision = Some(decision);
        metrics.record(&mut attempt, &ending(Side::Proxy, Phase::Refusing));
        let counted: BTreeSet<String> = text(&metrics)
            .lines()
            .filter(|line| {
                line.starts_with("seawall_connects_total{")
                    || line.contains("{lane=\"default\",reason=")
                    || line.starts_with("seawall_dry_run_total")
            })
            .filter_map(|line| line.strip_suffix(" 1").map(ToOwned::to_owned))
            .collect();
        let expected: BTreeSet<String> = series.iter().map(|series| (*series).to_owned()).collect();
        assert_eq!(counted, expected, "{decision:?}");
    }
}

#[test]
fn failed_handshakes_are_counted_by_cause_and_never_as_a_connect() {
    let metrics = metrics();
    for failure in HandshakeFailure::ALL {
        let mut attempt = attempt();
        attempt.handshake = Some(Err(failure));
        metrics.record(&mut attempt, &ending(Side::Client, Phase::Handshake));
        let series = format!("seawall_handshake_failures_total{{cause=\"{}\"}}", failure.word());
        assert!((value(&metrics, &series) - 1.0).abs() < f64::EPSILON, "{series}");
    }
    let totals = metrics.totals();
    assert_eq!(
        totals.handshakes,
        BTreeMap::from([("full", 0), ("resumed", 0), ("failed", 12), ("timeout", 2)])
    );
    assert_eq!(totals.decisions.values().sum::<u64>(), 0);
}

#[test]
fn expiries_are_those_said_last_and_of_one_name_the_earliest() {
    let metrics = metrics();
    metrics.certificates([("old.example.com", 5), ("default", 7)].into_iter());
    metrics.certificates(
        [
            ("default", 9),
            ("a.example.com", 3),
            ("a.example.com", 2),
            ("a.example.com", 4),
        ]
        .into_iter(),
    );
    let text = text(&metrics);
    let series: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("seawall_certificate_expiry_seconds"))
        .collect();
    assert_eq!(
        series,
        [
            "seawall_certificate_expiry_seconds{name=\"a.example.com\"} 2",
            "seawall_certificate_expiry_seconds{name=\"default\"} 9"
        ]
    );
}

#[test]
fn traffic_of_any_kind_adds_no_series() {
    fn series(metrics: &Metrics) -> BTreeSet<String> {
        let name = |line: &str| line.rsplit_once(' ').map(|(name, _)| name.to_owned());
        text(metrics).lines().filter_map(name).collect()
    }
    let metrics = metrics();
    let before = series(&metrics);
    for number in 0..50_000_u32 {
        let mut attempt = Attempt::new(number.into(), (Ipv4Addr::from(number % 10_000), 1).into());
        attempt.client_id = Some(format!("sensor-{number}"));
        attempt.protocol = Protocol::ALL[number as usize % 4];
        attempt.decision = Some(Decision::Refused(
            Reason::ALL[number as usize % Reason::ALL.len()],
        ));
        attempt.server = Some(number as usize % 3);
        attempt.connack = Some((number as u8, Duration::from_millis(number.into())));
        metrics.accepted();
        metrics.shed(Shed::ALL[number as usize % Shed::ALL.len()]);
        metrics.record(
            &mut attempt,
            &ending(Side::ALL[number as usize % 3], Phase::ALL[number as usize % 7]),
        );
    }
    assert_eq!(series(&metrics), before);
}

#[test]
fn the_documentation_names_every_metric_with_its_type_and_no_other() {
    let documentation =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/metrics.md")).unwrap();
    let mut documented = BTreeSet::new();
    for row in documentation.lines().filter(|line| line.starts_with("| `")) {
        let mut cells = row.split('|').map(str::trim).skip(1);
        let name = cells.next().unwrap().trim_matches('`').to_owned();
        let kind = cells.next().unwrap().to_owned();
        if name.starts_with("seawall_") || name.starts_with("process_") {
            assert!(documented.insert((name.clone(), kind)), "{name} has two rows");
        }
    }
    let text = text(&metrics());
    let gathered: BTreeSet<(String, String)> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '))
        .map(|(name, kind)| (name.to_owned(), kind.to_owned()))
        .collect();
    assert_eq!(documented, gathered);
    for word in documentation.split(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
        let known = gathered.iter().any(|(name, kind)| {
            word == name
                || kind == "histogram"
                    && word
                        .strip_prefix(name.as_str())
                        .is_some_and(|rest| matches!(rest, "_bucket" | "_sum" | "_count"))
        });
        assert!(
            !word.starts_with("seawall_") || known,
            "docs/metrics.md speaks of {word}, which does not exist"
        );
    }
}

#[test]
fn the_documentation_names_every_label_value() {
    let documentation =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/metrics.md")).unwrap();
    let row = |name: &str| {
        let start = format!("| `{name}` |");
        documentation
            .lines()
            .find(|line| line.starts_with(&start))
            .unwrap_or_else(|| panic!("no row {name}"))
    };
    for (name, line) in text(&metrics()).lines().filter_map(|line| line.split_once('{')) {
        let name = ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|end| name.strip_suffix(end))
            .unwrap_or(name);
        for (label, word) in line
            .split('}')
            .next()
            .unwrap()
            .split(',')
            .filter_map(|pair| pair.split_once('='))
        {
            let open = matches!(label, "server" | "name" | "version" if name.contains("build") || label != "version");
            if label != "le" && label != "code" && !open {
                let quoted = format!("`{}`", word.trim_matches('"'));
                assert!(
                    row(name).contains(&quoted),
                    "{name}: {label} {quoted} is not in its row"
                );
            }
        }
    }
}

proptest! {
    /// Whatever ways connections take, the gauge is the number of guards that live, by phase.
    #[test]
    fn open_connections_are_the_living_guards(steps in prop::collection::vec((0_usize..3, 0_usize..8, 0_usize..7), 0..200)) {
        let metrics = metrics();
        let mut guards: Vec<PhaseGuard> = Vec::new();
        for (step, which, phase) in steps {
            match step {
                0 => guards.push(metrics.enter(Phase::ALL[phase])),
                1 => if let Some(guard) = guards.get_mut(which) { guard.to(Phase::ALL[phase]) },
                _ => if which < guards.len() { drop(guards.swap_remove(which)) },
            }
            for phase in Phase::ALL {
                let living = guards.iter().filter(|guard| guard.phase() == phase).count();
                prop_assert_eq!(metrics.phases()[phase.word()], i64::try_from(living).unwrap());
            }
        }
        drop(guards);
        prop_assert!(metrics.phases().values().all(|open| *open == 0));
    }
}
