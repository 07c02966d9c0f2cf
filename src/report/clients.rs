//! What is kept of each client of a storm: little, since there may be millions.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;

use super::line::{Attempt, Micros, Outcome, SECOND};
use super::pauses::{self, KEPT, NEEDED, Policy};

/// Clients that are told apart: half a GiB of them. What comes on top is counted with the rest, and said to be.
const MOST_CLIENTS: usize = 3_000_000;
/// Kept of a client id, in bytes: more is never shown.
const NAME: usize = 48;
/// Protocols, lanes, reasons: closed sets of a configuration.
const MOST_WORDS: usize = 1000;

/// The clients of a storm.
pub(super) struct Clients {
    all: Vec<Client>,
    /// By a keyed hash of the id: with 3 million clients two share one in a million storms.
    places: HashMap<u64, u32>,
    hasher: RandomState,
    names: String,
    pub(super) words: Words,
    /// Attempts of clients for which there was no room.
    pub(super) surplus: u64,
}

/// One of them.
pub(super) struct Client {
    name_at: u32,
    name_length: u8,
    gaps: u8,
    is_retrying: bool,
    pub(super) protocol: Word,
    pub(super) lane: Word,
    pub(super) source: Prefix,
    pub(super) first: Micros,
    /// Of its second attempt: the first one's moment is the outage's, this one is its own.
    pub(super) second: Micros,
    last: Micros,
    answered: Micros,
    /// When its first CONNACK 0 was passed on; 0: never.
    back: Micros,
    pub(super) attempts: u32,
    pub(super) refused: u32,
    pub(super) connected: u32,
    pauses: [f32; KEPT],
    periods: [f32; KEPT],
}

impl Clients {
    pub(super) fn new() -> Self {
        Self {
            all: Vec::new(),
            places: HashMap::new(),
            hasher: RandomState::new(),
            names: String::new(),
            words: Words::default(),
            surplus: 0,
        }
    }

    /// Takes down an attempt of the client `id`, whose outcome was known at `at`.
    pub(super) fn take(&mut self, id: &str, attempt: &Attempt<'_>, at: Micros) {
        let Some(place) = self.place(id, attempt) else {
            self.surplus += 1;
            return;
        };
        if let Some(client) = self.all.get_mut(place as usize) {
            client.take(attempt, at);
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Client> {
        self.all.iter()
    }

    pub(super) fn name(&self, client: &Client) -> &str {
        let from = client.name_at as usize;
        self.names
            .get(from..from + usize::from(client.name_length))
            .unwrap_or_default()
    }

    fn place(&mut self, id: &str, attempt: &Attempt<'_>) -> Option<u32> {
        let place = u32::try_from(self.all.len()).ok()?;
        match self.places.entry(self.hasher.hash_one(id)) {
            Entry::Occupied(entry) => return Some(*entry.get()),
            Entry::Vacant(_) if self.all.len() >= MOST_CLIENTS => return None,
            Entry::Vacant(entry) => {
                entry.insert(place);
            }
        }
        let name = id.get(..id.floor_char_boundary(NAME)).unwrap_or_default();
        let name_at = u32::try_from(self.names.len()).ok()?;
        self.names.push_str(name);
        self.all.push(Client {
            name_at,
            name_length: u8::try_from(name.len()).unwrap_or_default(),
            gaps: 0,
            is_retrying: false,
            protocol: self.words.of(attempt.protocol.as_deref().unwrap_or("unknown")),
            lane: self.words.of(attempt.lane.as_deref().unwrap_or("unknown")),
            source: attempt.source.map_or(Prefix::UNKNOWN, Prefix::of),
            first: attempt.arrived,
            second: 0,
            last: 0,
            answered: 0,
            back: 0,
            attempts: 0,
            refused: 0,
            connected: 0,
            pauses: [0.0; KEPT],
            periods: [0.0; KEPT],
        });
        Some(place)
    }
}

impl Client {
    fn take(&mut self, attempt: &Attempt<'_>, at: Micros) {
        if self.is_retrying {
            self.gap(attempt);
        }
        if self.attempts == 1 {
            self.second = attempt.arrived;
        }
        self.attempts = self.attempts.saturating_add(1);
        self.last = attempt.arrived;
        self.answered = at;
        self.is_retrying = attempt.outcome != Outcome::Connected;
        match attempt.outcome {
            Outcome::Connected => {
                self.connected = self.connected.saturating_add(1);
                if self.back == 0 {
                    self.back = at;
                }
                // A series that a success broke off begins anew; one that is long enough stays.
                if usize::from(self.gaps) < NEEDED {
                    self.gaps = 0;
                }
            }
            Outcome::Refused(_) | Outcome::RefusedByBroker(_) => {
                self.refused = self.refused.saturating_add(1);
            }
            Outcome::Failed(_) => {}
        }
    }

    fn gap(&mut self, attempt: &Attempt<'_>) {
        let place = usize::from(self.gaps);
        let seconds = |micros: Micros| (micros.max(0) as f64 / SECOND as f64) as f32;
        let pause = attempt
            .pause
            .map_or_else(|| seconds(attempt.arrived - self.answered), |pause| pause as f32);
        let period = seconds(attempt.arrived - self.last);
        if let (Some(kept_pause), Some(kept_period)) =
            (self.pauses.get_mut(place), self.periods.get_mut(place))
        {
            (*kept_pause, *kept_period) = (pause, period);
            self.gaps += 1;
        }
    }

    /// When it was back.
    pub(super) fn back(&self) -> Option<Micros> {
        (self.back > 0).then_some(self.back)
    }

    pub(super) fn last(&self) -> Micros {
        self.last
    }

    pub(super) fn policy(&self) -> Policy {
        let kept = usize::from(self.gaps);
        let (pauses, periods) = (self.pauses.get(..kept), self.periods.get(..kept));
        pauses::classify(pauses.unwrap_or_default(), periods.unwrap_or_default())
    }

    /// From attempt to attempt, in seconds: the median.
    pub(super) fn period(&self) -> Option<f32> {
        let mut periods = self.periods.get(..usize::from(self.gaps))?.to_vec();
        periods.sort_unstable_by(f32::total_cmp);
        periods.get(periods.len() / 2).copied()
    }
}

/// A word of a small set, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Word(u16);

#[derive(Default)]
pub(super) struct Words {
    words: Vec<String>,
    places: HashMap<String, Word>,
}

impl Words {
    pub(super) fn of(&mut self, word: &str) -> Word {
        if let Some(place) = self.places.get(word) {
            return *place;
        }
        let word = if self.words.len() >= MOST_WORDS {
            "others"
        } else {
            word
        };
        let new = Word(u16::try_from(self.words.len()).unwrap_or(u16::MAX));
        let place = *self.places.entry(word.to_owned()).or_insert(new);
        if place == new {
            self.words.push(word.to_owned());
        }
        place
    }

    pub(super) fn get(&self, word: Word) -> &str {
        self.words
            .get(usize::from(word.0))
            .map_or("others", String::as_str)
    }
}

/// Where a client comes from: an IPv4 network of 24 bits, or an IPv6 network of 48.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Prefix(u64);

impl Prefix {
    pub(super) const UNKNOWN: Self = Self(0);
    const V4: u64 = 1 << 62;
    const V6: u64 = 1 << 63;

    pub(super) fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self(Self::V4 | u64::from(address.to_bits() >> 8)),
            IpAddr::V6(address) => Self(Self::V6 | (address.to_bits() >> 80) as u64),
        }
    }
}

impl std::fmt::Display for Prefix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0 & Self::V6 != 0 {
            let bits = u128::from(self.0 & !Self::V6) << 80;
            return write!(f, "{}/48", std::net::Ipv6Addr::from_bits(bits));
        }
        if self.0 & Self::V4 != 0 {
            let bits = ((self.0 & !Self::V4) << 8) as u32;
            return write!(f, "{}/24", std::net::Ipv4Addr::from_bits(bits));
        }
        f.write_str("unknown")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(arrived: f64, outcome: Outcome<'static>) -> Attempt<'static> {
        Attempt {
            arrived: (arrived * 1e6) as Micros,
            client_id: None,
            source: Some("10.1.2.3".parse().unwrap()),
            protocol: Some("5".into()),
            lane: None,
            outcome,
            held: None,
            connack_latency: None,
            would_refuse: false,
            pause: None,
        }
    }

    #[test]
    fn a_client_is_known_by_its_attempts() {
        let mut clients = Clients::new();
        let long = "é".repeat(100);
        for id in ["pump", long.as_str()] {
            for (second, refused) in [
                (1.0, true),
                (6.5, true),
                (12.0, true),
                (17.5, false),
                (300.0, false),
            ] {
                let outcome = if refused {
                    Outcome::Refused("rate".into())
                } else {
                    Outcome::Connected
                };
                let at = ((second + 0.5) * 1e6) as Micros;
                clients.take(id, &attempt(second, outcome), at);
            }
        }
        let found: Vec<&Client> = clients.iter().collect();
        assert_eq!(found.len(), 2);
        let client = found[0];
        assert_eq!(clients.name(client), "pump");
        assert_eq!(clients.name(found[1]), "é".repeat(24));
        assert_eq!((client.attempts, client.refused, client.connected), (5, 3, 2));
        assert_eq!((client.first, client.second), (SECOND, 6_500_000));
        assert_eq!(client.back(), Some(18 * SECOND));
        // From the answer to the next attempt; what comes after the success is no retry.
        assert_eq!(client.policy(), Policy::Fixed { pause: 5.0 });
        assert_eq!(client.period(), Some(5.5));
        assert_eq!(clients.words.get(client.protocol), "5");
        assert_eq!(clients.words.get(client.lane), "unknown");
        assert_eq!(client.source.to_string(), "10.1.2.0/24");
    }

    #[test]
    fn a_success_breaks_a_short_series_off() {
        let mut clients = Clients::new();
        for (second, refused) in [
            (0.0, true),
            (5.0, false),
            (20.0, true),
            (25.0, true),
            (30.0, true),
        ] {
            let outcome = if refused {
                Outcome::Failed("gone".into())
            } else {
                Outcome::Connected
            };
            clients.take("a", &attempt(second, outcome), (second * 1e6) as Micros);
        }
        let client = clients.iter().next().unwrap();
        assert_eq!((client.gaps, client.refused), (2, 0));
        assert_eq!(client.policy(), Policy::Unknown);
    }

    #[test]
    fn prefixes_are_networks() {
        let of = |address: &str| Prefix::of(address.parse().unwrap()).to_string();
        assert_eq!(of("192.0.2.77"), "192.0.2.0/24");
        assert_eq!(of("::ffff:192.0.2.77"), "192.0.2.0/24");
        assert_eq!(of("2001:db8:1:2::3"), "2001:db8:1::/48");
        assert_eq!(of("0.0.0.1"), "0.0.0.0/24");
        assert_eq!(of("::1"), "::/48");
        assert_eq!(Prefix::UNKNOWN.to_string(), "unknown");
    }

    #[test]
    fn words_are_bounded() {
        let mut words = Words::default();
        for number in 0..2 * MOST_WORDS {
            words.of(&number.to_string());
        }
        assert_eq!(words.words.len(), MOST_WORDS + 1);
        let other = words.of("another");
        assert_eq!(words.get(other), "others");
        let known = words.of("7");
        assert_eq!(words.get(known), "7");
    }
}
