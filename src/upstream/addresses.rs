//! The addresses of a name: in which order they are tried, and how long each may take of a dial.

use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// So many addresses that stay silent use up a dial, however many there are: a name with dozens would leave each too little
/// for a handshake. Those that refuse at once cost nothing; the ones that had no turn come first in the next dial.
const MOST_SILENT: u32 = 4;

/// What a name was last found to mean, and where a dial begins.
#[derive(Debug, Default)]
pub(super) struct Addresses(Mutex<Found>);

#[derive(Debug, Default)]
struct Found {
    all: Vec<SocketAddr>,
    /// The one that worked last, or stands behind those that failed since.
    first: Option<SocketAddr>,
}

impl Addresses {
    /// Others, in the order of the resolver. Where dials began they go on to begin, if that is still among them.
    pub(super) fn replace(&self, found: Vec<SocketAddr>) {
        self.lock().all = found;
    }

    /// All of them, in the order of a dial that begins now.
    pub(super) fn in_turn(&self) -> Vec<SocketAddr> {
        let found = self.lock();
        let mut all = found.all.clone();
        if let Some(begin) = found.first.and_then(|first| found.place(first)) {
            all.rotate_left(begin);
        }
        all
    }

    /// Dials begin with this one.
    pub(super) fn worked(&self, address: SocketAddr) {
        self.lock().first = Some(address);
    }

    /// Dials that would begin with this one begin behind it.
    pub(super) fn failed(&self, address: SocketAddr) {
        let mut found = self.lock();
        let first = found.first.or_else(|| found.all.first().copied());
        if first == Some(address) {
            let behind = found.place(address).map_or(0, |place| place + 1);
            found.first = found.all.get(behind).or(found.all.first()).copied();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Found> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Found {
    fn place(&self, address: SocketAddr) -> Option<usize> {
        self.all.iter().position(|other| *other == address)
    }
}

/// How long the next address may take, of `rest` out of `limit`, when `left` of them have not been tried: an equal part
/// of the rest, and never less than [`MOST_SILENT`] of them would have of all.
pub(super) fn share(limit: Duration, rest: Duration, left: usize) -> Duration {
    let left = u32::try_from(left).unwrap_or(u32::MAX).clamp(1, MOST_SILENT);
    (rest / left).max(limit / MOST_SILENT).min(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: u8) -> SocketAddr {
        ([127, 0, 0, number], 1883).into()
    }

    fn addresses(numbers: &[u8]) -> Addresses {
        let addresses = Addresses::default();
        addresses.replace(numbers.iter().copied().map(address).collect());
        addresses
    }

    fn order(addresses: &Addresses) -> Vec<u8> {
        let last = |address: &SocketAddr| address.to_string().as_bytes()[8] - b'0';
        addresses.in_turn().iter().map(last).collect()
    }

    #[test]
    fn a_dial_begins_with_the_address_that_worked_last() {
        let addresses = addresses(&[1, 2, 3]);
        assert_eq!(order(&addresses), [1, 2, 3], "as the resolver has it");
        addresses.worked(address(2));
        assert_eq!(order(&addresses), [2, 3, 1]);
        addresses.failed(address(1));
        assert_eq!(order(&addresses), [2, 3, 1], "it was not the first");
        addresses.replace([3, 2, 1].map(address).to_vec());
        assert_eq!(order(&addresses), [2, 1, 3], "a resolver may shuffle");
        addresses.replace([4, 5].map(address).to_vec());
        assert_eq!(order(&addresses), [4, 5], "it is gone");
    }

    #[test]
    fn what_failed_is_passed_by_until_all_have_failed() {
        let addresses = addresses(&[1, 2, 3]);
        let mut seen = Vec::new();
        for _ in 0..4 {
            let first = order(&addresses)[0];
            seen.push(first);
            addresses.failed(address(first));
            // Another dial that began with it as well.
            addresses.failed(address(first));
        }
        assert_eq!(seen, [1, 2, 3, 1]);
    }

    #[test]
    fn without_addresses_there_is_nothing_to_try() {
        let addresses = addresses(&[]);
        addresses.failed(address(1));
        assert_eq!(addresses.in_turn(), []);
    }

    /// Which part of 1200 ms each of silent addresses gets.
    #[test]
    fn silent_addresses_share_the_limit() {
        let cases: [(usize, &[u64]); 5] = [
            (1, &[1200]),
            (2, &[600, 600]),
            (3, &[400, 400, 400]),
            (4, &[300, 300, 300, 300]),
            (6, &[300, 300, 300, 300, 0, 0]),
        ];
        for (count, parts) in cases {
            let limit = Duration::from_millis(1200);
            let mut rest = limit;
            for (tried, part) in parts.iter().enumerate() {
                let share = share(limit, rest, count - tried);
                assert_eq!(share, Duration::from_millis(*part), "{tried} of {count}");
                rest -= share;
            }
        }
        // One that refuses at once leaves its part to the others.
        let limit = Duration::from_millis(1200);
        assert_eq!(share(limit, limit, 1), limit);
    }
}
