//! A storm while it is read: counters for each second, and the clients.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::clients::Clients;
use super::line::{Attempt, Micros, Outcome, SECOND};

/// Two days. What is longer goes on as another storm.
const MOST_SECONDS: usize = 2 * 86_400;
/// Different reasons that are told apart; ours are fewer.
const MOST_REASONS: usize = 200;

/// What happened within one second.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Second {
    pub(super) arrived: u32,
    /// Forwarded to a broker.
    pub(super) admitted: u32,
    pub(super) connected: u32,
    pub(super) refused: u32,
    pub(super) shed: u32,
    pub(super) held: u32,
    pub(super) connacks: u32,
    /// Of the broker's answers, in seconds.
    pub(super) connack_sum: f32,
    pub(super) connack_most: f32,
}

/// Sessions that ended.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lost {
    /// In the two minutes before the storm.
    pub(super) before: u64,
    /// When that began.
    pub(super) began: Option<Micros>,
    /// During the storm.
    pub(super) during: u64,
}

/// A storm.
pub(super) struct Storm {
    pub(super) start: Micros,
    pub(super) last_pressed: Micros,
    /// Attempts and sheds that show that there was too little room.
    pub(super) pressed: u64,
    pub(super) seconds: Vec<Second>,
    pub(super) clients: Clients,
    pub(super) attempts: u64,
    pub(super) connected: u64,
    pub(super) would_refuse: u64,
    pub(super) refused: BTreeMap<String, u64>,
    pub(super) refused_by_broker: BTreeMap<u8, u64>,
    pub(super) failed: BTreeMap<String, u64>,
    pub(super) shed: BTreeMap<String, u64>,
    pub(super) lost: Lost,
    /// Tokens a second of all replicas, from these moments on.
    pub(super) rates: Vec<(Micros, f64)>,
    pub(super) breakers_opened: u64,
    pub(super) dropped: u64,
}

impl Storm {
    pub(super) fn new(start: Micros, lost: Lost, rate: Option<f64>) -> Self {
        Self {
            start,
            last_pressed: start,
            pressed: 0,
            seconds: Vec::new(),
            clients: Clients::new(),
            attempts: 0,
            connected: 0,
            would_refuse: 0,
            refused: BTreeMap::new(),
            refused_by_broker: BTreeMap::new(),
            failed: BTreeMap::new(),
            shed: BTreeMap::new(),
            lost,
            rates: rate.map(|rate| (start, rate)).into_iter().collect(),
            breakers_opened: 0,
            dropped: 0,
        }
    }

    /// Takes down an attempt whose outcome was known at `at`.
    pub(super) fn take(&mut self, attempt: &Attempt<'_>, at: Micros) {
        self.attempts += 1;
        self.would_refuse += u64::from(attempt.would_refuse);
        if let Some(second) = self.second(attempt.arrived) {
            second.arrived += 1;
        }
        match &attempt.outcome {
            Outcome::Connected => self.connected += 1,
            Outcome::Refused(reason) => count(&mut self.refused, reason, 1),
            Outcome::RefusedByBroker(code) => *self.refused_by_broker.entry(*code).or_default() += 1,
            Outcome::Failed(why) => count(&mut self.failed, why, 1),
        }
        if let Some(second) = self.second(at) {
            second.take(attempt);
        }
        if let Some(id) = &attempt.client_id {
            self.clients.take(id, attempt, at);
        }
    }

    /// Sockets that were closed before TLS in the second before `at`.
    pub(super) fn take_sheds(&mut self, counts: &[(Cow<'_, str>, u64)], at: Micros) {
        for (reason, times) in counts {
            count(&mut self.shed, reason, *times);
            if let Some(second) = self.second(at - SECOND / 2) {
                let times = u32::try_from(*times).unwrap_or(u32::MAX);
                second.shed = second.shed.saturating_add(times);
                second.arrived = second.arrived.saturating_add(times);
            }
        }
    }

    pub(super) fn is_too_long(&self) -> bool {
        self.seconds.len() >= MOST_SECONDS
    }

    fn second(&mut self, at: Micros) -> Option<&mut Second> {
        let place = usize::try_from((at - self.start).max(0) / SECOND).unwrap_or(usize::MAX);
        if place >= MOST_SECONDS {
            return None;
        }
        if place >= self.seconds.len() {
            self.seconds.resize(place + 1, Second::default());
        }
        self.seconds.get_mut(place)
    }
}

impl Second {
    fn take(&mut self, attempt: &Attempt<'_>) {
        self.held += u32::from(attempt.held.is_some());
        match attempt.outcome {
            Outcome::Connected => {
                self.admitted += 1;
                self.connected += 1;
            }
            Outcome::RefusedByBroker(_) => self.admitted += 1,
            Outcome::Refused(_) => self.refused += 1,
            Outcome::Failed(_) => {}
        }
        if let Some(latency) = attempt.connack_latency {
            self.connacks += 1;
            self.connack_sum += latency as f32;
            self.connack_most = self.connack_most.max(latency as f32);
        }
    }
}

pub(super) fn count(counts: &mut BTreeMap<String, u64>, word: &str, times: u64) {
    if let Some(count) = counts.get_mut(word) {
        *count += times;
        return;
    }
    let word = if counts.len() < MOST_REASONS {
        word
    } else {
        "others"
    };
    *counts.entry(word.to_owned()).or_default() += times;
}
