//! How many clients are outside: refused since a storm began, and not admitted since. Counted by a sketch, because the
//! ids of a fleet would be a table that grows with the storm.
//!
//! Two sketches of the kind `HyperLogLog` (Flajolet, Fusy, Gandouet, Meunier 2007) of 16 KiB each: those who were refused or admitted, and
//! those who were admitted. The second counts a part of the first, with the same hash, so that the difference is exact
//! when nobody is outside. The hash is keyed, by a key of this process: whoever chooses client ids can be counted, but
//! can't choose how they are counted. Who is shed has not said its name and is not counted.

use std::collections::hash_map::RandomState;
use std::f64::consts::LN_2;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU8, Ordering};

use super::ending::{Attempt, Decision};

/// Bits of the hash that pick a register: with 2^14 of them the standard error is 1.04 / 2^7, 0.8 %.
const PRECISION: u32 = 14;
const REGISTERS: usize = 1 << PRECISION;
/// Bits that are left for the rank.
const RANKS: usize = (u64::BITS - PRECISION) as usize;

/// Clients by what became of them since [`Crowd::forget`].
pub struct Crowd {
    key: RandomState,
    seen: Sketch,
    admitted: Sketch,
}

impl Default for Crowd {
    fn default() -> Self {
        Self {
            key: RandomState::new(),
            seen: Sketch::default(),
            admitted: Sketch::default(),
        }
    }
}

impl Crowd {
    /// Takes down who was admitted, and who was refused and will come again. 50 ns.
    pub(super) fn note(&self, decision: Decision, attempt: &Attempt) {
        let admitted = match decision {
            Decision::Admitted { .. } => true,
            Decision::Refused(reason) if reason.answer().closable => false,
            Decision::Refused(_) | Decision::Invalid(_) | Decision::TimedOut | Decision::Left => return,
        };
        let hash = match attempt.client_id.as_deref() {
            None | Some("") => self.key.hash_one(attempt.source),
            Some(client_id) => self.key.hash_one(client_id),
        };
        self.seen.note(hash);
        if admitted {
            self.admitted.note(hash);
        }
    }

    /// About how many are outside.
    pub fn outside(&self) -> u64 {
        (self.seen.estimate() - self.admitted.estimate()).max(0.0).round() as u64
    }

    /// There is no storm: who comes before the next one does not count.
    pub fn forget(&self) {
        self.admitted.clear();
        self.seen.clear();
    }
}

struct Sketch(Box<[AtomicU8]>);

impl Default for Sketch {
    fn default() -> Self {
        Self((0..REGISTERS).map(|_| AtomicU8::new(0)).collect())
    }
}

impl Sketch {
    fn note(&self, hash: u64) {
        let index = (hash >> (u64::BITS - PRECISION)) as usize;
        // The lowest bit ends the run of zeros where the hash has none left.
        let rank = ((hash << PRECISION) | (1 << (PRECISION - 1))).leading_zeros() as u8 + 1;
        // Most are there already: a read that all cores share.
        if let Some(register) = self.0.get(index)
            && register.load(Ordering::Relaxed) < rank
        {
            register.fetch_max(rank, Ordering::Relaxed);
        }
    }

    /// Ertl's improved estimator (2017, arXiv 1702.01284, algorithm 6): without bias from none to all, where the first
    /// one was off by 4 % at some 40,000.
    fn estimate(&self) -> f64 {
        let count = REGISTERS as f64;
        let mut having = [0.0; RANKS + 2];
        for register in &self.0 {
            if let Some(having) = having.get_mut(usize::from(register.load(Ordering::Relaxed))) {
                *having += 1.0;
            }
        }
        let [none, between @ .., all] = having;
        let start = count * tau(1.0 - all / count);
        let sum = between
            .iter()
            .rev()
            .fold(start, |sum, having| 0.5 * (sum + having));
        let sum = sum + count * sigma(none / count);
        count * count / (2.0 * LN_2 * sum)
    }

    fn clear(&self) {
        for register in &self.0 {
            register.store(0, Ordering::Relaxed);
        }
    }
}

/// x + x² + 2x⁴ + 4x⁸ …; without end for 1.
fn sigma(mut x: f64) -> f64 {
    if x >= 1.0 {
        return f64::INFINITY;
    }
    let (mut weight, mut sum) = (1.0, x);
    loop {
        x *= x;
        let next = sum + x * weight;
        if next <= sum {
            return sum;
        }
        sum = next;
        weight += weight;
    }
}

/// A third of 1 − x − (1 − √x)² / 2 − (1 − ⁴√x)² / 4 …
fn tau(mut x: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return 0.0;
    }
    let (mut weight, mut sum) = (1.0, 1.0 - x);
    loop {
        x = x.sqrt();
        weight *= 0.5;
        let next = sum - (1.0 - x).powi(2) * weight;
        if next >= sum {
            return sum / 3.0;
        }
        sum = next;
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::reason::Reason;

    const REFUSED: Decision = Decision::Refused(Reason::Rate);
    const ADMITTED: Decision = Decision::Admitted { would_refuse: None };

    fn note(crowd: &Crowd, decision: Decision, client_id: &str) {
        let mut attempt = Attempt::new(1, (Ipv4Addr::LOCALHOST, 4000).into());
        attempt.client_id = Some(client_id.to_owned());
        crowd.note(decision, &attempt);
    }

    #[test]
    fn clients_are_counted_once_within_three_per_cent() {
        for clients in [0_u32, 1, 100, 5_000, 40_000, 60_000, 300_000] {
            let crowd = Crowd::default();
            for _ in 0..2 {
                for number in 0..clients {
                    note(&crowd, REFUSED, &format!("device-{number}"));
                }
            }
            let (found, clients) = (crowd.outside() as f64, f64::from(clients));
            assert!(
                (found - clients).abs() <= (clients * 0.03).max(1.0),
                "{found} of {clients}"
            );
        }
    }

    #[test]
    fn who_is_admitted_is_no_longer_outside() {
        let crowd = Crowd::default();
        for number in 0..20_000 {
            note(&crowd, REFUSED, &format!("device-{number}"));
        }
        for number in 0..15_000 {
            note(&crowd, ADMITTED, &format!("device-{number}"));
        }
        // Of each sketch 0.8 %, as a standard deviation.
        let outside = crowd.outside();
        assert!((4_000..6_000).contains(&outside), "{outside}");
        for number in 15_000..20_000 {
            note(&crowd, ADMITTED, &format!("device-{number}"));
        }
        assert_eq!(crowd.outside(), 0, "the two sketches are the same");
        note(&crowd, REFUSED, "one more");
        crowd.forget();
        assert_eq!(crowd.outside(), 0);
    }

    #[test]
    fn who_will_not_come_again_or_has_no_name_is_not_taken_for_one_of_the_crowd() {
        let crowd = Crowd::default();
        for (number, decision) in [
            Decision::Left,
            Decision::TimedOut,
            Decision::Invalid(None),
            Decision::Refused(Reason::BadCredentials),
        ]
        .into_iter()
        .enumerate()
        {
            note(&crowd, decision, &format!("device-{number}"));
        }
        assert_eq!(crowd.outside(), 0);
        note(&crowd, REFUSED, "");
        note(&crowd, REFUSED, "");
        assert_eq!(crowd.outside(), 1, "without an id the address tells them apart");
    }
}
