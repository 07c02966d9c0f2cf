//! Finds the storms in a stream of events.
//!
//! A storm is a time in which clients are turned away or kept waiting for want of room: refusals, sheds, holds of a second
//! and more, with at most a minute without any. It begins with the rush that led to the first of them, which is found by
//! going back from there over the seconds in which more came than usually.

use std::collections::{BTreeMap, VecDeque};

use super::line::{Attempt, Entry, Event, Micros, Outcome, SECOND};
use super::storm::{Lost, Storm, count};

/// A storm is over when nobody was turned away for so long: two of the longest pauses of most libraries.
const QUIET: Micros = 60 * SECOND;
/// How far back attempts are kept for a storm that may begin.
const LOOK_BACK: Micros = 60 * SECOND;
const MOST_KEPT: usize = 200_000;
/// How far back sessions that ended are counted as lost in the storm.
const LOST_WITHIN: Micros = 120 * SECOND;
/// Held for less is what a busy second does.
const LONG_HOLD: f64 = 1.0;
/// Fewer attempts that were turned away are no storm.
const LEAST: u64 = 10;
/// Storms of which all is kept; more are counted.
const MOST_STORMS: usize = 100;

/// All that happened, and the storms in it.
pub(super) struct Storms {
    pub(super) totals: Totals,
    recent: VecDeque<(Micros, Attempt<'static>)>,
    ends: VecDeque<(Micros, u64)>,
    /// By log: each replica has its own.
    rates: Vec<Option<f64>>,
    storm: Option<Storm>,
    finished: Vec<Storm>,
}

/// Counts over everything that was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) first: Option<Micros>,
    pub(super) last: Option<Micros>,
    pub(super) attempts: u64,
    pub(super) connected: u64,
    pub(super) ended: u64,
    pub(super) starts: u64,
    pub(super) dropped: u64,
    pub(super) refused: BTreeMap<String, u64>,
    pub(super) shed: BTreeMap<String, u64>,
    pub(super) small_storms: u64,
}

impl Storms {
    pub(super) fn new(logs: usize) -> Self {
        Self {
            totals: Totals::default(),
            recent: VecDeque::new(),
            ends: VecDeque::new(),
            rates: vec![None; logs],
            storm: None,
            finished: Vec::new(),
        }
    }

    /// Takes the next event, of the log with this index. Events come in the order of their time, about.
    pub(super) fn take(&mut self, entry: Entry<'_>, log: usize) {
        let at = entry.at;
        self.totals.first = Some(self.totals.first.map_or(at, |first| first.min(at)));
        self.totals.last = Some(self.totals.last.map_or(at, |last| last.max(at)));
        if self
            .storm
            .as_ref()
            .is_some_and(|storm| at > storm.last_pressed + QUIET || storm.is_too_long())
        {
            self.end_storm();
        }
        match entry.event {
            Event::Attempt(attempt) | Event::DeviceAttempt(attempt) => self.attempt(attempt, at),
            Event::Shed(counts) => {
                let counts: Vec<_> = counts
                    .into_iter()
                    .map(|(reason, times)| (reason.0, times))
                    .collect();
                for (reason, times) in &counts {
                    count(&mut self.totals.shed, reason, *times);
                }
                self.pressed(at - SECOND, counts.iter().map(|(_, times)| times).sum());
                if let Some(storm) = &mut self.storm {
                    storm.take_sheds(&counts, at);
                }
            }
            Event::End => self.ended(at),
            Event::Rate(rate) => self.rate(rate, at, log),
            Event::BreakerOpen => {
                if let Some(storm) = &mut self.storm {
                    storm.breakers_opened += 1;
                }
            }
            Event::Dropped(records) => {
                self.totals.dropped += records;
                if let Some(storm) = &mut self.storm {
                    storm.dropped += records;
                }
            }
            Event::Start => self.totals.starts += 1,
            Event::Other => {}
        }
    }

    /// The storms, the oldest first.
    pub(super) fn finish(mut self) -> (Totals, Vec<Storm>) {
        self.end_storm();
        (self.totals, self.finished)
    }

    fn attempt(&mut self, attempt: Attempt<'_>, at: Micros) {
        self.totals.attempts += 1;
        match &attempt.outcome {
            Outcome::Connected => self.totals.connected += 1,
            Outcome::Refused(reason) => count(&mut self.totals.refused, reason, 1),
            Outcome::RefusedByBroker(_) | Outcome::Failed(_) => {}
        }
        if is_pressed(&attempt) {
            self.pressed(attempt.arrived, 1);
        }
        if let Some(storm) = &mut self.storm {
            storm.take(&attempt, at);
            return;
        }
        self.recent.push_back((at, attempt.into_owned()));
        while self.recent.len() > MOST_KEPT
            || self
                .recent
                .front()
                .is_some_and(|(then, _)| *then < at - LOOK_BACK)
        {
            self.recent.pop_front();
        }
    }

    /// So many clients, the first of which came at `arrived`, found too little room.
    fn pressed(&mut self, arrived: Micros, times: u64) {
        if self.storm.is_none() {
            self.begin_storm(arrived);
        }
        if let Some(storm) = &mut self.storm {
            storm.pressed += times;
            storm.last_pressed = storm.last_pressed.max(arrived);
        }
    }

    fn begin_storm(&mut self, pressed: Micros) {
        let recent = std::mem::take(&mut self.recent);
        let start = begin_of_rush(&recent, pressed);
        let mut storm = Storm::new(start, self.lost(start), self.whole_rate());
        for (at, attempt) in recent.iter().filter(|(_, attempt)| attempt.arrived >= start) {
            storm.take(attempt, *at);
        }
        self.storm = Some(storm);
    }

    fn end_storm(&mut self) {
        let Some(storm) = self.storm.take() else { return };
        if storm.pressed < LEAST || self.finished.len() >= MOST_STORMS {
            self.totals.small_storms += 1;
        } else {
            self.finished.push(storm);
        }
    }

    fn ended(&mut self, at: Micros) {
        self.totals.ended += 1;
        if let Some(storm) = &mut self.storm {
            storm.lost.during += 1;
        }
        let second = at - at.rem_euclid(SECOND);
        match self.ends.back_mut() {
            Some((last, ended)) if *last >= second => *ended += 1,
            _ => self.ends.push_back((second, 1)),
        }
        while self
            .ends
            .front()
            .is_some_and(|(then, _)| *then < at - LOST_WITHIN)
        {
            self.ends.pop_front();
        }
    }

    /// What ended before the storm, and when most of it began to.
    fn lost(&self, start: Micros) -> Lost {
        let within = || self.ends.iter().filter(move |(at, _)| *at >= start - LOST_WITHIN);
        let most = within().map(|(_, ended)| *ended).max().unwrap_or_default();
        Lost {
            before: within().map(|(_, ended)| ended).sum(),
            began: within().find(|(_, ended)| ended * 10 >= most).map(|(at, _)| *at),
            during: 0,
        }
    }

    fn rate(&mut self, rate: f64, at: Micros, log: usize) {
        if let Some(known) = self.rates.get_mut(log) {
            *known = Some(rate);
        }
        let whole = self.whole_rate();
        if let (Some(storm), Some(whole)) = (&mut self.storm, whole) {
            storm.rates.push((at, whole));
        }
    }

    fn whole_rate(&self) -> Option<f64> {
        let known = || self.rates.iter().flatten();
        known().next().is_some().then(|| known().sum())
    }
}

/// Whether there was too little room for it. A client that is refused for its own sake (credentials, protocol) is no
/// sign of a storm.
fn is_pressed(attempt: &Attempt<'_>) -> bool {
    let own_fault = |reason: &str| {
        [
            "bad-credentials",
            "protocol",
            "client-id",
            "malformed",
            "too-large",
            "no MQTT",
            "draining",
        ]
        .contains(&reason)
    };
    attempt.held.is_some_and(|held| held >= LONG_HOLD)
        || match &attempt.outcome {
            Outcome::Refused(reason) => !own_fault(reason),
            // Server unavailable, server busy, connection rate exceeded, and what 3.1.1 has for them.
            Outcome::RefusedByBroker(code) => [3, 0x88, 0x89, 0x9C, 0x9F].contains(code),
            Outcome::Connected => false,
            Outcome::Failed(_) => attempt.would_refuse,
        }
        || attempt.would_refuse
}

/// Goes back from `pressed` over the seconds in which more came than usually.
fn begin_of_rush(recent: &VecDeque<(Micros, Attempt<'static>)>, pressed: Micros) -> Micros {
    let mut arrived: BTreeMap<Micros, u32> = BTreeMap::new();
    for (_, attempt) in recent {
        *arrived.entry(attempt.arrived.div_euclid(SECOND)).or_default() += 1;
    }
    let at = |second: Micros| arrived.get(&second).copied().unwrap_or_default();
    let first = pressed.div_euclid(SECOND);
    let mut usual: Vec<u32> = (first - LOOK_BACK / SECOND..first - 10).map(at).collect();
    usual.sort_unstable();
    let usual = usual.get(usual.len() / 2).copied().unwrap_or_default();
    let mut second = first;
    while first - second < LOOK_BACK / SECOND && at(second - 1) > 2 * usual + 2 {
        second -= 1;
    }
    let of_rush = recent.iter().map(|(_, attempt)| attempt.arrived);
    of_rush
        .filter(|arrived| *arrived >= second * SECOND)
        .fold(pressed, Micros::min)
}

impl Attempt<'_> {
    fn into_owned(self) -> Attempt<'static> {
        let owned = |text: Option<std::borrow::Cow<'_, str>>| text.map(|text| text.into_owned().into());
        Attempt {
            client_id: owned(self.client_id),
            protocol: owned(self.protocol),
            lane: owned(self.lane),
            outcome: match self.outcome {
                Outcome::Connected => Outcome::Connected,
                Outcome::RefusedByBroker(code) => Outcome::RefusedByBroker(code),
                Outcome::Refused(reason) => Outcome::Refused(reason.into_owned().into()),
                Outcome::Failed(why) => Outcome::Failed(why.into_owned().into()),
            },
            arrived: self.arrived,
            source: self.source,
            held: self.held,
            connack_latency: self.connack_latency,
            would_refuse: self.would_refuse,
            pause: self.pause,
        }
    }
}
