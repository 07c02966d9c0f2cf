//! A storm in figures: what text, page and JSON are written from.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use super::clients::{Client, Clients};
use super::line::{Micros, SECOND};
use super::patterns::Patterns;
use super::storm::{Second, Storm};

/// Shown of those who waited longest, and of those who came most often.
const WORST: usize = 10;
/// Rows of a table; the rest is summed up.
const MOST_ROWS: usize = 20;
/// Sources that are told apart while counting.
const MOST_KEYS: usize = 100_000;

/// A storm, from its first attempt until its last client was back or given up on.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// When it began, in Unix seconds.
    pub started: f64,
    /// From then to the last that is known of it, in seconds.
    pub seconds: f64,
    /// Sessions that ended within two minutes before it.
    pub lost_before: u64,
    /// When most of that began, in Unix seconds.
    pub lost_began: Option<f64>,
    /// Sessions that ended during it.
    pub lost_during: u64,
    /// Attempts that reached the proxy: those with a line of their own, and those closed before TLS.
    pub attempts: u64,
    /// CONNECTs that were forwarded and answered by a broker.
    pub admitted: u64,
    /// CONNACK 0.
    pub connected: u64,
    /// In a dry run: admitted, though there was no room.
    pub would_refuse: u64,
    /// Refused by the proxy, by reason.
    pub refused: BTreeMap<String, u64>,
    /// Refused by a broker, by CONNACK code.
    pub refused_by_broker: BTreeMap<u8, u64>,
    /// Ended in another way, by cause.
    pub failed: BTreeMap<String, u64>,
    /// Closed before TLS, by reason.
    pub shed: BTreeMap<String, u64>,
    /// Different client ids.
    pub clients: u64,
    /// Of these, got CONNACK 0.
    pub back: u64,
    /// When so many hundredths of them were back, in seconds after the start.
    pub back_after: Vec<Share>,
    /// Attempts of a client: median, 99th percentile, most.
    pub attempts_each: [u32; 3],
    /// Clients of which nothing is kept but their attempts, for want of room in this report.
    pub untold: u64,
    /// How much of what the brokers could take was used.
    pub capacity: Option<Capacity>,
    /// By lane.
    pub by_lane: Vec<Row>,
    /// By protocol.
    pub by_protocol: Vec<Row>,
    /// By source network.
    pub by_source: Vec<Row>,
    /// Who waited longest.
    pub waited_longest: Vec<Worst>,
    /// Who came most often.
    pub hammered: Vec<Worst>,
    /// Who pauses how.
    pub patterns: Patterns,
    /// Times a breaker opened.
    pub breakers_opened: u64,
    /// Records that were lost: the figures are too low by so many.
    pub dropped: u64,
    /// For the charts.
    #[serde(skip)]
    pub(super) curves: Curves,
}

/// When a share of the clients was back.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Share {
    /// Of a hundred.
    pub hundredths: u8,
    /// Seconds after the start; `None`: not within what was read.
    pub seconds: Option<f64>,
}

/// What the brokers could take, and took, until nine of ten were back, or to the end.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Capacity {
    /// CONNECTs that the rate allowed.
    pub allowed: f64,
    /// CONNECTs that were forwarded.
    pub used: u64,
    /// Over so many seconds.
    pub seconds: f64,
}

/// Figures of one lane, protocol or network.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Which.
    pub name: String,
    /// Different client ids.
    pub clients: u64,
    /// Of these, got in.
    pub back: u64,
    /// Their attempts.
    pub attempts: u64,
    /// Attempts that were refused.
    pub refused: u64,
    /// When half of those that are back were, in seconds after the start.
    pub half_after: Option<f64>,
    /// When the last of them was.
    pub last_after: Option<f64>,
}

/// A client that had a worse time than others, or gave one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Worst {
    /// Its id, or the beginning of it.
    pub client: String,
    /// Its network.
    pub source: String,
    /// From its first attempt until it was back, or to its last attempt.
    pub seconds: f64,
    /// Whether it is back.
    pub is_back: bool,
    /// Attempts.
    pub attempts: u32,
}

/// What the charts are drawn from.
#[derive(Clone, Debug, Default)]
pub(super) struct Curves {
    pub(super) seconds: Vec<Second>,
    /// (second, tokens a second).
    pub(super) rates: Vec<(f64, f64)>,
    /// Seconds after the start, in order.
    pub(super) back: Vec<f64>,
    /// How many clients needed so many attempts; the last is "so many and more".
    pub(super) attempts: Vec<u64>,
}

impl Summary {
    /// `capacity`: CONNECTs a second that the brokers can take, where somebody has said so.
    pub(super) fn of(storm: Storm, capacity: Option<f64>) -> Self {
        let clients = &storm.clients;
        let after = |at: Micros| (at - storm.start) as f64 / SECOND as f64;
        let mut back: Vec<f64> = clients
            .iter()
            .filter_map(|client| client.back().map(after))
            .collect();
        back.sort_unstable_by(f64::total_cmp);
        let known = clients.iter().count();
        let back_after: Vec<Share> = [50, 90, 99, 100].map(|share| when(share, known, &back)).to_vec();
        let last = clients
            .iter()
            .map(|client| after(client.last()))
            .fold(0.0, f64::max);
        let seconds = last.max(back.last().copied().unwrap_or_default());
        let until = back_after
            .get(1)
            .and_then(|share| share.seconds)
            .unwrap_or(seconds);
        let admitted = storm
            .seconds
            .iter()
            .map(|second| u64::from(second.admitted))
            .sum();
        let sheds: u64 = storm.shed.values().sum();
        let (attempts_each, attempts) = attempts(clients);
        let rates: Vec<(f64, f64)> = match capacity {
            Some(capacity) => vec![(0.0, capacity)],
            None => storm.rates.iter().map(|(at, rate)| (after(*at), *rate)).collect(),
        };
        Self {
            started: unix(storm.start),
            seconds,
            lost_before: storm.lost.before,
            lost_began: storm.lost.began.map(unix),
            lost_during: storm.lost.during,
            attempts: storm.attempts + sheds,
            admitted,
            connected: storm.connected,
            would_refuse: storm.would_refuse,
            refused: storm.refused,
            refused_by_broker: storm.refused_by_broker,
            failed: storm.failed,
            shed: storm.shed,
            clients: known as u64,
            back: back.len() as u64,
            back_after,
            attempts_each,
            untold: clients.surplus,
            capacity: used(&storm.seconds, &rates, until),
            by_lane: rows(clients, storm.start, |client| {
                clients.words.get(client.lane).to_owned()
            }),
            by_protocol: rows(clients, storm.start, |client| {
                clients.words.get(client.protocol).to_owned()
            }),
            by_source: rows(clients, storm.start, |client| client.source.to_string()),
            waited_longest: worst(clients, |client| waited(client) as u64),
            hammered: worst(clients, |client| u64::from(client.attempts)),
            patterns: Patterns::of(clients),
            breakers_opened: storm.breakers_opened,
            dropped: storm.dropped,
            curves: Curves {
                seconds: storm.seconds,
                rates,
                back,
                attempts,
            },
        }
    }

    /// Refused by the proxy, in all.
    pub fn refused_in_all(&self) -> u64 {
        self.refused.values().sum()
    }

    /// Closed before TLS, in all.
    pub fn shed_in_all(&self) -> u64 {
        self.shed.values().sum()
    }
}

fn unix(at: Micros) -> f64 {
    at as f64 / SECOND as f64
}

fn when(hundredths: u8, clients: usize, back: &[f64]) -> Share {
    let needed = (clients * usize::from(hundredths)).div_ceil(100).max(1);
    Share {
        hundredths,
        seconds: back.get(needed - 1).copied(),
    }
}

/// Median, 99th percentile and most; and how many clients needed one attempt, two, and so on to 20 and more.
fn attempts(clients: &Clients) -> ([u32; 3], Vec<u64>) {
    let mut each: Vec<u32> = clients.iter().map(|client| client.attempts).collect();
    each.sort_unstable();
    let at = |hundredths: usize| each.get(each.len().saturating_sub(1) * hundredths / 100).copied();
    let mut counts = vec![0; 20];
    for attempts in &each {
        let place = (*attempts as usize).clamp(1, counts.len()) - 1;
        if let Some(count) = counts.get_mut(place) {
            *count += 1;
        }
    }
    ([50, 99, 100].map(|share| at(share).unwrap_or_default()), counts)
}

/// `None`: nobody knows what the brokers could take.
fn used(seconds: &[Second], rates: &[(f64, f64)], until: f64) -> Option<Capacity> {
    if rates.is_empty() || until <= 0.0 {
        return None;
    }
    let ends = rates.iter().skip(1).map(|(at, _)| *at).chain([until]);
    let first = rates
        .iter()
        .map(|(at, _)| *at)
        .next()
        .unwrap_or_default()
        .min(0.0);
    let allowed = rates
        .iter()
        .zip(ends)
        .enumerate()
        .map(|(number, ((at, rate), end))| {
            // What is known first also holds for what was before.
            let from = if number == 0 { first.max(0.0) } else { *at };
            (end.min(until) - from.max(0.0)).max(0.0) * rate
        })
        .sum();
    let used = seconds
        .iter()
        .take(until.ceil() as usize)
        .map(|second| u64::from(second.admitted))
        .sum();
    Some(Capacity {
        allowed,
        used,
        seconds: until,
    })
}

fn rows(clients: &Clients, start: Micros, name: impl Fn(&Client) -> String) -> Vec<Row> {
    #[derive(Default)]
    struct Sum {
        clients: u64,
        attempts: u64,
        refused: u64,
        back: Vec<f64>,
    }
    let mut sums: HashMap<String, Sum> = HashMap::new();
    for client in clients.iter() {
        let mut key = name(client);
        if sums.len() >= MOST_KEYS && !sums.contains_key(&key) {
            "others".clone_into(&mut key);
        }
        let sum = sums.entry(key).or_default();
        sum.clients += 1;
        sum.attempts += u64::from(client.attempts);
        sum.refused += u64::from(client.refused);
        sum.back
            .extend(client.back().map(|back| (back - start) as f64 / SECOND as f64));
    }
    let row = |(name, mut sum): (String, Sum)| {
        sum.back.sort_unstable_by(f64::total_cmp);
        Row {
            name,
            clients: sum.clients,
            back: sum.back.len() as u64,
            attempts: sum.attempts,
            refused: sum.refused,
            half_after: sum.back.get(sum.back.len().saturating_sub(1) / 2).copied(),
            last_after: sum.back.last().copied(),
        }
    };
    let mut rows: Vec<Row> = sums.into_iter().map(row).collect();
    rows.sort_by(|a, b| b.attempts.cmp(&a.attempts).then_with(|| a.name.cmp(&b.name)));
    if rows.len() > MOST_ROWS {
        let rest = rows.split_off(MOST_ROWS - 1);
        rows.push(Row {
            name: format!("{} others", rest.len()),
            clients: rest.iter().map(|row| row.clients).sum(),
            back: rest.iter().map(|row| row.back).sum(),
            attempts: rest.iter().map(|row| row.attempts).sum(),
            refused: rest.iter().map(|row| row.refused).sum(),
            half_after: None,
            last_after: rest.iter().filter_map(|row| row.last_after).reduce(f64::max),
        });
    }
    rows
}

fn waited(client: &Client) -> Micros {
    (client.back().unwrap_or(client.last()) - client.first).max(0)
}

fn worst(clients: &Clients, badness: impl Fn(&Client) -> u64) -> Vec<Worst> {
    let mut found: Vec<(u64, &Client)> = Vec::new();
    for client in clients.iter() {
        let bad = badness(client);
        if found.len() == WORST && found.last().is_some_and(|(least, _)| *least >= bad) {
            continue;
        }
        let place = found.partition_point(|(better, _)| *better >= bad);
        found.insert(place, (bad, client));
        found.truncate(WORST);
    }
    let shown = |(_, client): (u64, &Client)| Worst {
        client: clients.name(client).to_owned(),
        source: client.source.to_string(),
        seconds: waited(client) as f64 / SECOND as f64,
        is_back: client.back().is_some(),
        attempts: client.attempts,
    };
    found.into_iter().map(shown).collect()
}
