//! What a fleet counts.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustls::HandshakeKind;
use serde::{Deserialize, Serialize};

use super::client::Failure;
use super::outcome::Loss;

/// Counters since the start, and gauges of now. `arrivals` is the sum of what became of them, and of those that are
/// under way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Attempts that reached for the network.
    pub arrivals: u64,
    /// CONNACK 0.
    pub admitted: u64,
    /// CONNACK with any other code, by code.
    pub refused: BTreeMap<u8, u64>,
    /// Attempts that ended without a CONNACK, by the word of their [`Loss`].
    pub lost: BTreeMap<String, u64>,
    /// TLS handshakes.
    pub handshakes: Handshakes,
    /// Connections that the other side ended.
    pub dropped: u64,
    /// Devices that came back after the outage.
    pub returned: usize,
    /// Devices connected now.
    pub connected: usize,
}

/// TLS handshakes that devices have finished.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handshakes {
    /// With the whole key exchange and certificates.
    pub full: u64,
    /// With a ticket of an earlier session.
    pub resumed: u64,
    /// Those of both kinds after which the device was not let in: work for nobody.
    pub wasted: u64,
}

impl Counts {
    /// CONNACKs with a code other than 0.
    pub fn refused_in_all(&self) -> u64 {
        self.refused.values().sum()
    }

    /// Attempts that a device gave up after its patience.
    pub fn gave_up(&self) -> u64 {
        self.lost_by(Loss::is_impatience)
    }

    /// Attempts that ended in any other way: reset, closed without CONNACK, TLS failure, no network.
    pub fn broken(&self) -> u64 {
        self.lost_by(|loss| !loss.is_impatience())
    }

    /// Attempts that ended in this way.
    pub fn lost(&self, loss: Loss) -> u64 {
        self.lost.get(loss.word()).copied().unwrap_or_default()
    }

    /// What happened since `earlier`; the gauge is that of now.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let handshakes = Handshakes {
            full: self.handshakes.full.saturating_sub(earlier.handshakes.full),
            resumed: self.handshakes.resumed.saturating_sub(earlier.handshakes.resumed),
            wasted: self.handshakes.wasted.saturating_sub(earlier.handshakes.wasted),
        };
        Self {
            arrivals: self.arrivals.saturating_sub(earlier.arrivals),
            admitted: self.admitted.saturating_sub(earlier.admitted),
            refused: difference(&self.refused, &earlier.refused),
            lost: difference(&self.lost, &earlier.lost),
            handshakes,
            dropped: self.dropped.saturating_sub(earlier.dropped),
            returned: self.returned.saturating_sub(earlier.returned),
            connected: self.connected,
        }
    }

    /// Adds the counts of another part of the fleet.
    pub fn add(&mut self, other: &Self) {
        self.arrivals += other.arrivals;
        self.admitted += other.admitted;
        for (code, times) in &other.refused {
            *self.refused.entry(*code).or_default() += times;
        }
        for (word, times) in &other.lost {
            *self.lost.entry(word.clone()).or_default() += times;
        }
        self.handshakes.full += other.handshakes.full;
        self.handshakes.resumed += other.handshakes.resumed;
        self.handshakes.wasted += other.handshakes.wasted;
        self.dropped += other.dropped;
        self.returned += other.returned;
        self.connected += other.connected;
    }

    fn lost_by(&self, which: impl Fn(Loss) -> bool) -> u64 {
        let ways = Loss::ALL.into_iter().filter(|loss| which(*loss));
        ways.map(|loss| self.lost(loss)).sum()
    }
}

fn difference<K: Ord + Clone>(now: &BTreeMap<K, u64>, earlier: &BTreeMap<K, u64>) -> BTreeMap<K, u64> {
    now.iter()
        .map(|(key, times)| {
            let before = earlier.get(key).copied().unwrap_or_default();
            (key.clone(), times.saturating_sub(before))
        })
        .filter(|(_, times)| *times > 0)
        .collect()
}

/// A device that is back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Return {
    /// From the moment at which it could come back to the CONNACK.
    pub after: Duration,
    /// Attempts that it took, at least one.
    pub attempts: u32,
}

/// Counts for all devices of a fleet.
#[derive(Debug)]
pub(super) struct Tally {
    arrivals: AtomicU64,
    admitted: AtomicU64,
    /// By CONNACK code.
    refused: [AtomicU64; 256],
    /// By place in [`Loss::ALL`].
    lost: [AtomicU64; Loss::ALL.len()],
    full: AtomicU64,
    resumed: AtomicU64,
    wasted: AtomicU64,
    dropped: AtomicU64,
    connected: AtomicUsize,
    /// One entry for each device and outage.
    returns: Mutex<Vec<Return>>,
}

impl Tally {
    pub(super) fn new() -> Self {
        Self {
            arrivals: AtomicU64::new(0),
            admitted: AtomicU64::new(0),
            refused: [const { AtomicU64::new(0) }; 256],
            lost: [const { AtomicU64::new(0) }; Loss::ALL.len()],
            full: AtomicU64::new(0),
            resumed: AtomicU64::new(0),
            wasted: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            connected: AtomicUsize::new(0),
            returns: Mutex::new(Vec::new()),
        }
    }

    pub(super) fn arrived(&self) {
        count(&self.arrivals);
    }

    /// A handshake was done; `in_vain`: the device was not let in after it.
    pub(super) fn shook_hands(&self, kind: HandshakeKind, in_vain: bool) {
        match kind {
            HandshakeKind::Resumed => count(&self.resumed),
            HandshakeKind::Full | HandshakeKind::FullWithHelloRetryRequest => count(&self.full),
        }
        if in_vain {
            count(&self.wasted);
        }
    }

    pub(super) fn failed(&self, failure: Failure) {
        let counter = match failure {
            Failure::Refused { code, .. } => self.refused.get(usize::from(code)),
            Failure::Lost(loss) => Loss::ALL
                .iter()
                .position(|way| *way == loss)
                .and_then(|place| self.lost.get(place)),
        };
        if let Some(counter) = counter {
            count(counter);
        }
    }

    /// Counts one more connected device until the guard is dropped.
    pub(super) fn admitted(&self) -> Present<'_> {
        count(&self.admitted);
        self.connected.fetch_add(1, Ordering::Relaxed);
        Present(&self.connected)
    }

    /// The other side ended a connection.
    pub(super) fn dropped(&self) {
        count(&self.dropped);
    }

    pub(super) fn returned(&self, back: Return) {
        self.lock_returns().push(back);
    }

    pub(super) fn counts(&self) -> Counts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let refused = (0..=u8::MAX).zip(self.refused.iter().map(read));
        let lost = Loss::ALL.into_iter().zip(self.lost.iter().map(read));
        Counts {
            admitted: read(&self.admitted),
            refused: refused.filter(|(_, times)| *times > 0).collect(),
            lost: lost
                .filter(|(_, times)| *times > 0)
                .map(|(loss, times)| (loss.word().to_owned(), times))
                .collect(),
            handshakes: Handshakes {
                full: read(&self.full),
                resumed: read(&self.resumed),
                wasted: read(&self.wasted),
            },
            dropped: read(&self.dropped),
            returned: self.lock_returns().len(),
            connected: self.connected(),
            // Last, so that no outcome is counted of an arrival that is not.
            arrivals: read(&self.arrivals),
        }
    }

    pub(super) fn connected(&self) -> usize {
        self.connected.load(Ordering::Relaxed)
    }

    pub(super) fn returns(&self) -> Vec<Return> {
        self.lock_returns().clone()
    }

    fn lock_returns(&self) -> MutexGuard<'_, Vec<Return>> {
        self.returns.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// A connected device.
#[derive(Debug)]
pub(super) struct Present<'a>(&'a AtomicUsize);

impl Drop for Present<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_add_up_and_subtract() {
        let tally = Tally::new();
        for _ in 0..6 {
            tally.arrived();
        }
        let present = tally.admitted();
        for failure in [
            Failure::Refused {
                code: 3,
                retry_after: None,
            },
            Failure::Refused {
                code: 0x89,
                retry_after: None,
            },
            Failure::Lost(Loss::Shed),
            Failure::Lost(Loss::ImpatientTls),
        ] {
            tally.failed(failure);
        }
        tally.shook_hands(HandshakeKind::Full, true);
        tally.shook_hands(HandshakeKind::Resumed, false);
        let counts = tally.counts();
        assert_eq!(
            (counts.refused_in_all(), counts.gave_up(), counts.broken()),
            (2, 1, 1)
        );
        assert_eq!(
            (
                counts.handshakes.full,
                counts.handshakes.resumed,
                counts.handshakes.wasted
            ),
            (1, 1, 1)
        );

        let mut twice = counts.clone();
        twice.add(&counts);
        assert_eq!((twice.arrivals, twice.connected, twice.refused[&3]), (12, 2, 2));
        let again = twice.since(&counts);
        assert_eq!(
            (again.arrivals, &again.refused, &again.lost),
            (6, &counts.refused, &counts.lost)
        );
        assert_eq!(counts.since(&counts).refused, BTreeMap::new());

        drop(present);
        assert_eq!(tally.connected(), 0);
        let json = serde_json::to_string(&counts).unwrap();
        assert_eq!(serde_json::from_str::<Counts>(&json).unwrap(), counts);
    }
}
