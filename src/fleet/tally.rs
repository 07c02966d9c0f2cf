//! What a fleet counts.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use super::client::Failure;

/// Counters since the start, and gauges of now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Attempts that reached for the network.
    pub arrivals: u64,
    /// CONNACK 0.
    pub admitted: u64,
    /// CONNACK with any other code.
    pub refused: u64,
    /// Ended in another way: reset, closed without CONNACK, TLS failure.
    pub broken: u64,
    /// Given up by the device after its patience.
    pub gave_up: u64,
    /// Devices connected now.
    pub connected: usize,
}

impl Figures {
    /// What happened since `earlier`; the gauges are those of now.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            arrivals: self.arrivals.saturating_sub(earlier.arrivals),
            admitted: self.admitted.saturating_sub(earlier.admitted),
            refused: self.refused.saturating_sub(earlier.refused),
            broken: self.broken.saturating_sub(earlier.broken),
            gave_up: self.gave_up.saturating_sub(earlier.gave_up),
            connected: self.connected,
        }
    }
}

/// A device that is back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Return {
    /// From the tower's return to the CONNACK.
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
    broken: AtomicU64,
    gave_up: AtomicU64,
    connected: watch::Sender<usize>,
    /// One entry for each device and outage.
    returns: Mutex<Vec<Return>>,
}

impl Tally {
    pub(super) fn new() -> Self {
        Self {
            arrivals: AtomicU64::new(0),
            admitted: AtomicU64::new(0),
            refused: [const { AtomicU64::new(0) }; 256],
            broken: AtomicU64::new(0),
            gave_up: AtomicU64::new(0),
            connected: watch::Sender::new(0),
            returns: Mutex::new(Vec::new()),
        }
    }

    pub(super) fn arrived(&self) {
        self.arrivals.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn failed(&self, failure: &Failure) {
        let counter = match failure {
            Failure::Refused(code) => self.refused.get(usize::from(*code)),
            Failure::Broken => Some(&self.broken),
        };
        if let Some(counter) = counter {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn gave_up(&self) {
        self.gave_up.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts one more connected device until the guard is dropped.
    pub(super) fn admitted(&self) -> Present<'_> {
        self.admitted.fetch_add(1, Ordering::Relaxed);
        self.connected.send_modify(|connected| *connected += 1);
        Present(&self.connected)
    }

    pub(super) fn returned(&self, back: Return) {
        self.lock_returns().push(back);
    }

    pub(super) fn figures(&self) -> Figures {
        Figures {
            arrivals: self.arrivals.load(Ordering::Relaxed),
            admitted: self.admitted.load(Ordering::Relaxed),
            refused: self.refusals().map(|(_, times)| times).sum(),
            broken: self.broken.load(Ordering::Relaxed),
            gave_up: self.gave_up.load(Ordering::Relaxed),
            connected: *self.connected.borrow(),
        }
    }

    /// CONNACK codes that refused, and how often each.
    pub(super) fn refusals(&self) -> impl Iterator<Item = (u8, u64)> {
        (0..=u8::MAX)
            .zip(self.refused.iter().map(|times| times.load(Ordering::Relaxed)))
            .filter(|(_, times)| *times > 0)
    }

    pub(super) fn returns(&self) -> Vec<Return> {
        self.lock_returns().clone()
    }

    /// Waits until so many devices are connected at once.
    pub(super) async fn connected(&self, devices: usize) {
        // The sender lives as long as `self`: there is no error to wait for.
        let _ = self
            .connected
            .subscribe()
            .wait_for(|connected| *connected >= devices)
            .await;
    }

    fn lock_returns(&self) -> MutexGuard<'_, Vec<Return>> {
        self.returns.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connected device.
#[derive(Debug)]
pub(super) struct Present<'a>(&'a watch::Sender<usize>);

impl Drop for Present<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|connected| *connected -= 1);
    }
}
