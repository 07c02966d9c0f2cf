//! Limits for each source address, decided before TLS: how many connections a second, how many at a time. An address is
//! an IPv4 address or the /64 of an IPv6 one, which is what one customer gets.
//!
//! The table is bounded by [`MOST_SOURCES`]. An address of which there is nothing to remember any more (no connection
//! open, its tokens all back) gives its row to the next one that needs it. Where all rows are in use, an unknown
//! address is let in and counted as untracked: whoever commands more addresses than that is not stopped by a limit for
//! each, and to refuse all unknown ones would lock the fleet out in his stead.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use super::bucket::{Bucket, Tokens};
use crate::moment::Moment;

/// `[admission.per_source]`: legal by construction of the configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Settings {
    /// Connections a second and at once after a quiet time; `None`: no limit.
    pub rate: Option<Rate>,
    /// Connections at a time; `None`: no limit.
    pub max_connections: Option<u32>,
}

/// How fast connections of one address may come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// Connections a second; above 0, may be fractional.
    pub rate: f64,
    /// Connections at once after a quiet time; at least 1.
    pub burst: f64,
}

/// Rows of the table: 96 bytes each, in 65,536 places for them 6 MB. More would double it.
pub const MOST_SOURCES: usize = 50_000;

/// How often rows that are not needed any more are looked for, at most, when there is no free one: it takes 0.3
/// ms, which is to stay below a thousandth of the time.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Why a connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Exceeded {
    /// Its address connects too often.
    Rate,
    /// Its address has too many connections open.
    Connections,
}

/// A connection that counts; given back exactly once, by [`Sources::leave`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a visit that is not ended counts for ever"]
pub struct Visit {
    /// `None`: untracked, or there is no limit.
    source: Option<Source>,
}

/// What can be seen of the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Rows in use.
    pub sources: usize,
    /// Connections that no row was free for, since the start.
    pub untracked: u64,
}

/// The table.
#[derive(Debug)]
pub struct Sources {
    settings: Settings,
    /// Hashed with keys of the process's own (`SipHash`): an attacker can't choose addresses that collide.
    rows: HashMap<Source, Row>,
    most: usize,
    swept: Option<Moment>,
    untracked: u64,
}

/// What is counted as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Source {
    V4(u32),
    /// The first 64 bits.
    V6(u64),
}

#[derive(Debug)]
struct Row {
    open: u32,
    bucket: Option<Bucket>,
}

impl Sources {
    /// An empty table.
    pub fn new(settings: Settings) -> Self {
        Self::with_rows(settings, MOST_SOURCES)
    }

    fn with_rows(settings: Settings, most: usize) -> Self {
        Self {
            settings,
            rows: HashMap::new(),
            most,
            swept: None,
            untracked: 0,
        }
    }

    /// Takes new settings over. What was issued stays issued: no address gets a fresh burst. What is open counts on,
    /// but connections that came while there was no limit at all are not known.
    pub fn reconfigure(&mut self, settings: Settings, now: Moment) {
        self.settings = settings;
        for row in self.rows.values_mut() {
            row.bucket = match (row.bucket.take(), settings.rate) {
                (_, None) => None,
                (None, Some(rate)) => Some(bucket(rate, now)),
                (Some(mut bucket), Some(rate)) => {
                    bucket.reconfigure(rate.rate, Tokens::new(rate.burst), now);
                    Some(bucket)
                }
            };
        }
        self.swept = None;
        self.sweep(now);
    }

    /// Decides over one connection from `address`. One that is closed for being one too many takes no token.
    pub fn enter(&mut self, address: IpAddr, now: Moment) -> Result<Visit, Exceeded> {
        if self.settings == Settings::default() {
            return Ok(Visit { source: None });
        }
        let source = Source::from(address);
        if let Some(row) = self.rows.get_mut(&source) {
            row.enter(&self.settings, now)?;
            return Ok(Visit { source: Some(source) });
        }
        if self.rows.len() >= self.most {
            self.sweep(now);
        }
        if self.rows.len() >= self.most {
            self.untracked += 1;
            return Ok(Visit { source: None });
        }
        let mut row = Row {
            open: 0,
            bucket: self.settings.rate.map(|rate| bucket(rate, now)),
        };
        // A burst is at least 1, and so is a limit of connections: the first always comes in.
        row.enter(&self.settings, now)?;
        self.rows.insert(source, row);
        Ok(Visit { source: Some(source) })
    }

    /// A connection has ended.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "a visit ends once, so it is used up"
    )]
    pub fn leave(&mut self, visit: Visit, now: Moment) {
        let Some(source) = visit.source else { return };
        let Some(row) = self.rows.get_mut(&source) else {
            return;
        };
        row.open = row.open.saturating_sub(1);
        if row.is_forgettable(now) {
            self.rows.remove(&source);
        }
    }

    /// Figures for metrics and status.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            sources: self.rows.len(),
            untracked: self.untracked,
        }
    }

    fn sweep(&mut self, now: Moment) {
        if self.swept.is_some_and(|swept| now - swept < SWEEP_INTERVAL) {
            return;
        }
        self.swept = Some(now);
        self.rows.retain(|_, row| !row.is_forgettable(now));
    }
}

impl Row {
    fn enter(&mut self, settings: &Settings, now: Moment) -> Result<(), Exceeded> {
        if settings.max_connections.is_some_and(|most| self.open >= most) {
            return Err(Exceeded::Connections);
        }
        if let Some(bucket) = &mut self.bucket
            && !bucket.take(Tokens::new(1.0), now)
        {
            return Err(Exceeded::Rate);
        }
        self.open = self.open.saturating_add(1);
        Ok(())
    }

    /// Whether a new row would say the same.
    fn is_forgettable(&self, now: Moment) -> bool {
        self.open == 0
            && self
                .bucket
                .as_ref()
                .is_none_or(|bucket| bucket.available_at(bucket.burst(), Tokens::NONE, now) <= now)
    }
}

impl From<IpAddr> for Source {
    fn from(address: IpAddr) -> Self {
        // An IPv4 client of an IPv6 socket is the same client.
        match address.to_canonical() {
            IpAddr::V4(address) => Self::V4(address.to_bits()),
            IpAddr::V6(address) => Self::V6((address.to_bits() >> 64) as u64),
        }
    }
}

fn bucket(rate: Rate, now: Moment) -> Bucket {
    Bucket::new(rate.rate, Tokens::new(rate.burst), now)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(milliseconds: u64) -> Moment {
        Moment::from_nanos(milliseconds * 1_000_000)
    }

    const fn rate(rate: f64, burst: f64) -> Rate {
        Rate { rate, burst }
    }

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    const TWO_AT_A_TIME: Settings = Settings {
        rate: None,
        max_connections: Some(2),
    };

    #[test]
    fn without_limits_nothing_is_remembered() {
        let mut sources = Sources::new(Settings::default());
        for _ in 0..10 {
            let visit = sources.enter(address("192.0.2.1"), at(0)).unwrap();
            assert_eq!(sources.snapshot(), Snapshot::default());
            sources.leave(visit, at(0));
        }
    }

    #[test]
    fn one_address_has_so_many_connections_and_another_its_own() {
        let mut sources = Sources::new(TWO_AT_A_TIME);
        let first = sources.enter(address("192.0.2.1"), at(0)).unwrap();
        let _second = sources.enter(address("192.0.2.1"), at(0)).unwrap();
        assert_eq!(
            sources.enter(address("192.0.2.1"), at(0)),
            Err(Exceeded::Connections)
        );
        assert!(sources.enter(address("192.0.2.2"), at(0)).is_ok());
        sources.leave(first, at(0));
        assert!(sources.enter(address("192.0.2.1"), at(0)).is_ok());
    }

    #[test]
    fn one_address_comes_so_often_and_is_forgotten_when_its_tokens_are_back() {
        let mut sources = Sources::new(Settings {
            rate: Some(rate(2.0, 2.0)),
            max_connections: None,
        });
        for expected in [Ok(()), Ok(()), Err(Exceeded::Rate)] {
            let visit = sources.enter(address("192.0.2.1"), at(0));
            assert_eq!(visit.as_ref().map(|_| ()).map_err(|error| *error), expected);
            if let Ok(visit) = visit {
                sources.leave(visit, at(0));
            }
        }
        assert_eq!(
            sources.snapshot().sources,
            1,
            "leaving does not bring tokens back"
        );
        let visit = sources.enter(address("192.0.2.1"), at(500)).unwrap();
        sources.leave(visit, at(1499));
        assert_eq!(sources.snapshot().sources, 1);
        let visit = sources.enter(address("192.0.2.1"), at(1499)).unwrap();
        sources.leave(visit, at(3000));
        assert_eq!(sources.snapshot().sources, 0);
    }

    #[test]
    fn one_too_many_takes_no_token() {
        let mut sources = Sources::new(Settings {
            rate: Some(rate(0.001, 2.0)),
            max_connections: Some(1),
        });
        let visit = sources.enter(address("192.0.2.1"), at(0)).unwrap();
        for _ in 0..5 {
            assert_eq!(
                sources.enter(address("192.0.2.1"), at(0)),
                Err(Exceeded::Connections)
            );
        }
        sources.leave(visit, at(0));
        assert!(sources.enter(address("192.0.2.1"), at(0)).is_ok());
    }

    #[test]
    fn what_counts_as_one_address() {
        for (one, other, same) in [
            ("192.0.2.1", "192.0.2.1", true),
            ("192.0.2.1", "192.0.2.2", false),
            ("192.0.2.1", "::ffff:192.0.2.1", true),
            ("2001:db8:0:1::1", "2001:db8:0:1:ffff:ffff:ffff:ffff", true),
            ("2001:db8:0:1::1", "2001:db8:0:2::1", false),
            ("::1", "0.0.0.1", false),
        ] {
            let equal = Source::from(address(one)) == Source::from(address(other));
            assert_eq!(equal, same, "{one} and {other}");
        }
    }

    #[test]
    fn a_full_table_lets_the_unknown_in_and_still_limits_the_known() {
        let mut sources = Sources::with_rows(TWO_AT_A_TIME, 2);
        let first = sources.enter(address("192.0.2.1"), at(0)).unwrap();
        let _second = sources.enter(address("192.0.2.2"), at(0)).unwrap();
        for _ in 0..3 {
            let untracked = sources.enter(address("192.0.2.3"), at(1)).unwrap();
            sources.leave(untracked, at(1));
        }
        assert_eq!(
            sources.snapshot(),
            Snapshot {
                sources: 2,
                untracked: 3
            }
        );
        let _third = sources.enter(address("192.0.2.1"), at(1)).unwrap();
        assert_eq!(
            sources.enter(address("192.0.2.1"), at(1)),
            Err(Exceeded::Connections)
        );
        sources.leave(first, at(1));
    }

    #[test]
    fn rows_are_swept_when_they_are_needed_and_not_more_often_than_said() {
        let mut sources = Sources::with_rows(
            Settings {
                rate: Some(rate(10.0, 1.0)),
                max_connections: None,
            },
            2,
        );
        for (source, now) in [("192.0.2.1", 0), ("192.0.2.2", 50)] {
            let visit = sources.enter(address(source), at(now)).unwrap();
            sources.leave(visit, at(now));
        }
        let mut untracked_after = |source: &str, now| {
            let visit = sources.enter(address(source), at(now)).unwrap();
            sources.leave(visit, at(now));
            sources.snapshot().untracked
        };
        assert_eq!(
            untracked_after("192.0.2.3", 110),
            0,
            "the first has its token back"
        );
        assert_eq!(untracked_after("192.0.2.4", 200), 1, "swept 90 ms ago");
        assert_eq!(untracked_after("192.0.2.4", 1110), 1);
    }

    #[test]
    fn a_reload_grants_no_fresh_burst() {
        let slow = Settings {
            rate: Some(rate(0.001, 1.0)),
            max_connections: None,
        };
        let mut sources = Sources::new(slow);
        let _visit = sources.enter(address("192.0.2.1"), at(0)).unwrap();
        sources.reconfigure(
            Settings {
                rate: Some(rate(1.0, 5.0)),
                ..slow
            },
            at(0),
        );
        assert_eq!(sources.enter(address("192.0.2.1"), at(0)), Err(Exceeded::Rate));
        assert!(sources.enter(address("192.0.2.1"), at(1000)).is_ok());
        sources.reconfigure(TWO_AT_A_TIME, at(1000));
        assert_eq!(
            sources.enter(address("192.0.2.1"), at(1000)),
            Err(Exceeded::Connections)
        );
    }

    proptest! {
        /// However many addresses come: the table stays within its bound, no address that has a row gets more than its
        /// due, and when all have left and their tokens are back nothing is remembered.
        #[test]
        fn memory_and_limits_hold(
            most in 1_usize..8,
            burst in 1_u32..4,
            connections in prop::option::of(1_u32..4),
            steps in prop::collection::vec((0_u32..20, 0_u64..400, any::<bool>()), 1..300),
        ) {
            let settings = Settings { rate: Some(rate(2.0, f64::from(burst))), max_connections: connections };
            let mut sources = Sources::with_rows(settings, most);
            let mut open: Vec<(u32, Visit)> = Vec::new();
            let mut entered: Vec<(u32, Moment)> = Vec::new();
            let mut now = at(0);
            for (source, wait, leaves) in steps {
                now = now + Duration::from_millis(wait);
                if leaves && !open.is_empty() {
                    let (_, visit) = open.swap_remove(source as usize % open.len());
                    sources.leave(visit, now);
                } else if let Ok(visit) = sources.enter(IpAddr::V4(source.into()), now) {
                    if visit.source.is_some() {
                        entered.push((source, now));
                    }
                    open.push((source, visit));
                }
                prop_assert!(sources.rows.len() <= most);
                let tracked = open.iter().filter(|(_, visit)| visit.source.is_some());
                let counted: u32 = sources.rows.values().map(|row| row.open).sum();
                prop_assert_eq!(counted as usize, tracked.count());
                if let Some(connections) = connections {
                    prop_assert!(sources.rows.values().all(|row| row.open <= connections));
                }
            }
            for (first, (source, from)) in entered.iter().enumerate() {
                let same = entered.iter().skip(first).filter(|(other, _)| other == source);
                for (count, (_, until)) in (1_u32..).zip(same) {
                    let due = f64::from(burst) + 2.0 * (*until - *from).as_secs_f64();
                    prop_assert!(f64::from(count) <= due + 1e-6, "{count} of {due}");
                }
            }
            for (_, visit) in open {
                sources.leave(visit, now);
            }
            sources.swept = None;
            sources.sweep(now + Duration::from_secs(10));
            prop_assert!(sources.rows.is_empty());
        }
    }
}
