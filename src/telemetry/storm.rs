//! When a storm begins, how it goes and when it is over, for log and live page. Pure: it is shown the counters once a
//! second.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use super::metrics::Totals;
use crate::chart::grouped;
use crate::moment::Moment;
use crate::reason::Reason;

/// This many turned away within [`SUMMARY_EVERY`] are a storm: a single device gone mad is none.
const BEGINS_WITH: u64 = 10;
/// A storm is over when nobody was turned away for so long: the pause between two waves of a fleet that retries every
/// minute is none.
const OVER_AFTER: Duration = Duration::from_secs(60);
/// One line as often as this, however many are turned away.
pub const SUMMARY_EVERY: Duration = Duration::from_secs(10);

/// Who was turned away since the last look that was told of, and who was let in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Admitted CONNECTs.
    pub admitted: u64,
    /// Refused ones by reason; none is 0.
    pub refused: BTreeMap<&'static str, u64>,
    /// Sockets closed before TLS by reason; none is 0.
    pub shed: BTreeMap<&'static str, u64>,
}

/// What there is to tell.
#[derive(Debug, PartialEq, Eq)]
pub enum Told {
    /// A storm has begun.
    Begun(Summary),
    /// It goes on: what happened since the last time.
    Goes(Summary),
    /// It is over: what happened in it.
    Over(Summary, Duration),
    /// [`SUMMARY_EVERY`] without one have passed.
    Calm,
}

/// Watches for storms.
#[derive(Debug, Default)]
pub struct Storm {
    /// The counters when last told of, or [`SUMMARY_EVERY`] ago.
    told: Option<(Counts, Moment)>,
    current: Option<Current>,
}

#[derive(Debug)]
struct Current {
    since: Moment,
    before: Counts,
    last: Moment,
    turned_away: u64,
}

#[derive(Clone, Debug, Default)]
struct Counts {
    admitted: u64,
    refused: BTreeMap<&'static str, u64>,
    shed: BTreeMap<&'static str, u64>,
}

impl Storm {
    /// Since when there is one.
    pub fn since(&self) -> Option<Moment> {
        self.current.as_ref().map(|current| current.since)
    }

    /// Looks at the counters; once a second.
    pub fn look(&mut self, totals: &Totals, now: Moment) -> Option<Told> {
        let counts = Counts::of(totals);
        let (told, at) = self.told.get_or_insert_with(|| (counts.clone(), now)).clone();
        let summary = counts.since(&told);
        let Some(current) = &mut self.current else {
            if summary.turned_away() >= BEGINS_WITH {
                self.current = Some(Current {
                    since: now,
                    before: told,
                    last: now,
                    turned_away: counts.turned_away(),
                });
                self.told = Some((counts, now));
                return Some(Told::Begun(summary));
            }
            if now - at >= SUMMARY_EVERY {
                self.told = Some((counts, now));
                return Some(Told::Calm);
            }
            return None;
        };
        if counts.turned_away() > current.turned_away {
            current.turned_away = counts.turned_away();
            current.last = now;
        }
        if now - current.last >= OVER_AFTER {
            let (all, lasted) = (counts.since(&current.before), current.last - current.since);
            self.current = None;
            self.told = Some((counts, now));
            return Some(Told::Over(all, lasted));
        }
        if now - at < SUMMARY_EVERY {
            return None;
        }
        self.told = Some((counts, now));
        (summary.turned_away() > 0).then_some(Told::Goes(summary))
    }
}

impl Counts {
    fn of(totals: &Totals) -> Self {
        let comes_again = |word: &str| {
            let reason = Reason::ALL.into_iter().find(|reason| reason.word() == word);
            reason.is_some_and(|reason| reason.answer().closable)
        };
        Self {
            admitted: totals.decisions.get("admitted").copied().unwrap_or(0),
            refused: totals
                .refused
                .iter()
                .filter(|(word, _)| comes_again(word))
                .map(|(word, count)| (*word, *count))
                .collect(),
            shed: totals.shed.clone(),
        }
    }

    fn turned_away(&self) -> u64 {
        self.refused.values().chain(self.shed.values()).sum()
    }

    fn since(&self, before: &Self) -> Summary {
        Summary {
            admitted: self.admitted.saturating_sub(before.admitted),
            refused: increases(&self.refused, &before.refused),
            shed: increases(&self.shed, &before.shed),
        }
    }
}

/// By how much each has grown, of those that have.
pub fn increases(
    now: &BTreeMap<&'static str, u64>,
    before: &BTreeMap<&'static str, u64>,
) -> BTreeMap<&'static str, u64> {
    now.iter()
        .map(|(word, count)| {
            (
                *word,
                count.saturating_sub(before.get(word).copied().unwrap_or(0)),
            )
        })
        .filter(|(_, grown)| *grown > 0)
        .collect()
}

impl Summary {
    /// Refused and shed.
    pub fn turned_away(&self) -> u64 {
        self.refused.values().chain(self.shed.values()).sum()
    }

    /// "admitted 804, refused 18,204 for rate, 212 for in-flight, shed 31 for source-rate".
    pub fn words(&self) -> String {
        let mut words = format!("admitted {}", grouped(self.admitted));
        for (verb, counts) in [("refused", &self.refused), ("shed", &self.shed)] {
            let mut most: Vec<(&&str, &u64)> = counts.iter().collect();
            most.sort_by_key(|(word, count)| (std::cmp::Reverse(**count), **word));
            for (place, (reason, count)) in most.into_iter().enumerate() {
                let verb = if place == 0 {
                    format!("{verb} ")
                } else {
                    String::new()
                };
                // Writing to a String cannot fail.
                let _ = write!(words, ", {verb}{} for {reason}", grouped(*count));
            }
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::metrics::Metrics;

    fn totals(admitted: u64, rate: u64, bad: u64, shed: u64) -> Totals {
        let mut totals = Metrics::new(&[], &[]).unwrap().totals();
        totals.decisions.insert("admitted", admitted);
        totals.refused.insert("rate", rate);
        totals.refused.insert("bad-credentials", bad);
        totals.shed.insert("source-rate", shed);
        totals
    }

    fn at(seconds: u64) -> Moment {
        Moment::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn a_storm_is_told_at_its_beginning_every_ten_seconds_and_at_its_end() {
        let mut storm = Storm::default();
        assert_eq!(storm.look(&totals(5, 100, 0, 0), at(0)), None, "what was before");
        let Some(Told::Begun(summary)) = storm.look(&totals(5, 140, 0, 2), at(1)) else {
            panic!("42 turned away within a second are a storm");
        };
        assert_eq!(
            summary.words(),
            "admitted 0, refused 40 for rate, shed 2 for source-rate"
        );
        let mut told = Vec::new();
        for second in 2..=31 {
            if let Some(Told::Goes(summary)) = storm.look(&totals(second, 1000 * second, 0, 2), at(second)) {
                told.push((second, summary.words()));
            }
        }
        assert_eq!(
            told,
            [
                (11, "admitted 6, refused 10,860 for rate".to_owned()),
                (21, "admitted 10, refused 10,000 for rate".to_owned()),
                (31, "admitted 10, refused 10,000 for rate".to_owned()),
            ]
        );
        assert!(storm.since().is_some());
        for second in 32..91 {
            assert_eq!(
                storm.look(&totals(40, 31_000, 0, 2), at(second)),
                None,
                "{second}"
            );
        }
        let Some(Told::Over(all, lasted)) = storm.look(&totals(40, 31_000, 0, 2), at(91)) else {
            panic!("nobody was turned away for a minute");
        };
        assert_eq!(
            all.words(),
            "admitted 35, refused 30,900 for rate, shed 2 for source-rate"
        );
        assert_eq!(lasted, Duration::from_secs(30));
        assert_eq!(storm.since(), None);
    }

    #[test]
    fn a_few_are_no_storm_and_wrong_passwords_are_none() {
        let mut storm = Storm::default();
        for second in 0..600 {
            let totals = totals(0, second / 2, 50 * second, 0);
            let calm = (second > 0 && second % 10 == 0).then_some(Told::Calm);
            assert_eq!(storm.look(&totals, at(second)), calm, "{second}");
        }
    }

    #[test]
    fn thousands_are_grouped() {
        for (number, text) in [
            (0, "0"),
            (999, "999"),
            (1_000, "1,000"),
            (18_204, "18,204"),
            (1_000_000, "1,000,000"),
        ] {
            assert_eq!(grouped(number), text);
        }
    }
}
