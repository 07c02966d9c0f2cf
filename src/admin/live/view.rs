//! One event of the live page.

use std::collections::{BTreeMap, VecDeque};

use serde::Serialize;

use super::super::{NotReady, Pages};
use super::Second;
use crate::admission::controller::Snapshot;
use crate::moment::Moment;
use crate::telemetry::metrics::{BrokerTotals, LaneTotals, Totals};
use crate::telemetry::storm::increases;

/// Looks back for what is given a second: short enough to follow a storm, long enough for a fleet that retries every 5 s.
const RATES_OVER: usize = 10;
/// Reasons that are shown.
const MOST_REASONS: usize = 8;

/// What was found at one look.
pub(super) struct Look {
    at: Moment,
    pub(super) totals: Totals,
    lanes: Vec<LaneTotals>,
    brokers: Vec<BrokerTotals>,
}

impl Look {
    pub(super) fn at(pages: &Pages, at: Moment) -> Self {
        Self {
            at,
            totals: pages.metrics.totals(),
            lanes: pages.metrics.lane_totals(),
            brokers: pages.metrics.broker_totals(),
        }
    }

    fn admitted(&self) -> u64 {
        self.totals.decisions.get("admitted").copied().unwrap_or(0)
    }
}

/// What the page shows beside its chart.
#[derive(Serialize)]
pub(super) struct View<'a> {
    /// Unix time in seconds.
    unix: u64,
    version: &'static str,
    uptime: u64,
    not_ready: Option<&'static str>,
    /// Seconds that the storm has lasted.
    storm: Option<u64>,
    /// The newest second of the history.
    second: Second,
    arriving: f64,
    admitting: f64,
    refusing: f64,
    crowd: Crowd,
    rate: Rate,
    phases: BTreeMap<&'static str, i64>,
    reasons: Vec<Counted>,
    lanes: Vec<Lane<'a>>,
    brokers: Vec<Broker<'a>>,
}

#[derive(Serialize)]
struct Crowd {
    /// About how many clients were refused and have not come in since.
    outside: u64,
    /// Seconds until they are in, at the present rate; absent where none is admitted.
    seconds: Option<u64>,
}

#[derive(Serialize)]
struct Rate {
    tokens_a_second: f64,
    cause: &'static str,
    floor: f64,
    tokens: f64,
    in_flight: u32,
    window: u32,
    dry_run: bool,
}

/// In the last minute.
#[derive(Serialize)]
struct Counted {
    verb: &'static str,
    reason: &'static str,
    count: u64,
}

#[derive(Serialize)]
struct Lane<'a> {
    name: &'a str,
    admitting: f64,
    refusing: f64,
}

#[derive(Serialize)]
struct Broker<'a> {
    name: &'a str,
    up: bool,
    breaker: &'static str,
    answering: f64,
    /// Mean of CONNECT to CONNACK in milliseconds; absent where there was none.
    latency: Option<f64>,
}

impl<'a> View<'a> {
    pub(super) fn of(
        pages: &Pages,
        recent: &'a VecDeque<Look>,
        second: Second,
        storm: Option<u64>,
        unix: u64,
    ) -> Self {
        let snapshot = pages.state.snapshot();
        let over = Span::of(recent);
        let admitting = over.a_second(Look::admitted);
        let outside = if storm.is_some() {
            pages.metrics.crowd().outside()
        } else {
            0
        };
        Self {
            unix,
            version: env!("CARGO_PKG_VERSION"),
            uptime: pages.started.elapsed().as_secs(),
            not_ready: pages.state.ready().err().map(NotReady::word),
            storm,
            second,
            arriving: over.a_second(|look| look.totals.connections),
            admitting,
            refusing: over.a_second(|look| look.totals.refused.values().sum()),
            crowd: Crowd {
                outside,
                seconds: (admitting > 0.0).then(|| (outside as f64 / admitting).ceil() as u64),
            },
            rate: Rate::of(&snapshot),
            phases: pages.metrics.phases(),
            reasons: reasons(recent),
            lanes: over.lanes(),
            brokers: over.brokers(),
        }
    }
}

impl Rate {
    fn of(snapshot: &Snapshot) -> Self {
        Self {
            tokens_a_second: snapshot.rate,
            cause: snapshot.cause.word(),
            floor: snapshot.rate_floor,
            tokens: snapshot.tokens,
            in_flight: snapshot.in_flight,
            window: snapshot.window,
            dry_run: snapshot.dry_run,
        }
    }
}

/// Two looks, and the seconds between.
struct Span<'a> {
    looks: Option<(&'a Look, &'a Look)>,
    seconds: f64,
}

impl<'a> Span<'a> {
    fn of(recent: &'a VecDeque<Look>) -> Self {
        let first = recent.len().saturating_sub(1 + RATES_OVER);
        let looks = recent.get(first).zip(recent.back());
        let seconds = looks.map_or(0.0, |(from, to)| (to.at - from.at).as_secs_f64());
        Self { looks, seconds }
    }

    fn a_second(&self, count: impl Fn(&Look) -> u64) -> f64 {
        self.looks
            .map_or(0.0, |(from, to)| self.per_second(count(from), count(to)))
    }

    fn per_second(&self, from: u64, to: u64) -> f64 {
        if self.seconds > 0.0 {
            to.saturating_sub(from) as f64 / self.seconds
        } else {
            0.0
        }
    }

    fn lanes(&self) -> Vec<Lane<'a>> {
        let Some((from, to)) = self.looks else {
            return Vec::new();
        };
        // By name: a reload adds some.
        let before = |name: &str| from.lanes.iter().find(|lane| lane.name == name);
        let lanes = to.lanes.iter().map(|to| {
            let (admitted, refused) = before(&to.name).map_or((0, 0), |from| (from.admitted, from.refused));
            Lane {
                name: &to.name,
                admitting: self.per_second(admitted, to.admitted),
                refusing: self.per_second(refused, to.refused),
            }
        });
        lanes.collect()
    }

    fn brokers(&self) -> Vec<Broker<'a>> {
        let Some((from, to)) = self.looks else {
            return Vec::new();
        };
        let before = |name: &str| from.brokers.iter().find(|broker| broker.name == name);
        let brokers = to.brokers.iter().map(|to| {
            let (connacks, seconds) = before(&to.name).map_or((0, 0.0), |from| (from.connacks, from.seconds));
            let answers = to.connacks.saturating_sub(connacks);
            Broker {
                name: &to.name,
                up: to.up,
                breaker: to.breaker,
                answering: self.per_second(connacks, to.connacks),
                latency: (answers > 0).then(|| 1000.0 * (to.seconds - seconds) / answers as f64),
            }
        });
        brokers.collect()
    }
}

/// The most frequent first.
fn reasons(recent: &VecDeque<Look>) -> Vec<Counted> {
    let Some((from, to)) = recent.front().zip(recent.back()) else {
        return Vec::new();
    };
    let (from, to) = (&from.totals, &to.totals);
    let mut all = Vec::new();
    for (verb, before, now) in [
        ("refused", &from.refused, &to.refused),
        ("shed", &from.shed, &to.shed),
        ("would refuse", &from.dry_run, &to.dry_run),
    ] {
        let grown = increases(now, before).into_iter();
        all.extend(grown.map(|(reason, count)| Counted { verb, reason, count }));
    }
    all.sort_by_key(|counted| std::cmp::Reverse(counted.count));
    all.truncate(MOST_REASONS);
    all
}
