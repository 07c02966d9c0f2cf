//! Who knocks next, among ten million: a wheel of buckets. A heap of that size misses the cache at each of its two dozen
//! levels; here a device is put at the end of a bucket, whose end is in the cache, and is taken out in one go with its
//! neighbours.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::moment::Moment;

/// A bucket is 2^29 ns wide, which is half a second: those of ten million devices that fall into one, some ten thousand,
/// are sorted within the cache.
const WIDTH_BITS: u32 = 29;

/// 2^11 buckets, 18 minutes: longer than most caps, and few enough for the ends of all to stay in the cache.
const BUCKETS: u64 = 1 << 11;

/// So many are foreseen at a time: their lines stay in the cache until they knock.
const FORESEEN: usize = 512;

/// Devices by the time at which they are due. Each is in it once at most, and takes 8 to 16 bytes.
#[derive(Debug)]
pub(super) struct Wheel {
    /// Those who are due within a turn of the wheel: offset in the bucket above the device's number.
    buckets: Vec<Vec<u64>>,
    /// Those who are due later.
    far: Vec<(Moment, u32)>,
    /// How many there are in `buckets` and in `far`.
    waiting: usize,
    /// Number of the bucket that is being emptied, counted from the beginning of time.
    at: u64,
    /// Its devices, the next one last.
    current: Vec<u64>,
    /// Those of them, from the first on, that were not foreseen yet.
    unforeseen: usize,
    /// Those that became due within it, or before it, while it was being emptied.
    late: BinaryHeap<Reverse<(Moment, u32)>>,
}

impl Wheel {
    /// With nobody in it.
    pub(super) fn new() -> Self {
        Self {
            buckets: vec![Vec::new(); BUCKETS as usize],
            far: Vec::new(),
            waiting: 0,
            at: 0,
            current: Vec::new(),
            unforeseen: 0,
            late: BinaryHeap::new(),
        }
    }

    /// `number` is due at `due`, not before what was taken out last.
    pub(super) fn insert(&mut self, number: u32, due: Moment) {
        if bucket(due) <= self.at {
            self.late.push(Reverse((due, number)));
        } else {
            self.waiting += 1;
            self.put(number, due);
        }
    }

    /// When the next one is due; [`Moment::NEVER`]: there is nobody. `foresee` hears of those who will be due soon.
    pub(super) fn next_due(&mut self, foresee: impl Fn(u32)) -> Moment {
        loop {
            if self.unforeseen > 0 && self.unforeseen == self.current.len() {
                self.look_ahead(&foresee);
            }
            let current = self.current.last().map(|entry| self.due(*entry));
            let late = self.late.peek().map(|Reverse((due, _))| *due);
            match (current, late) {
                (Some(current), Some(late)) => return current.min(late),
                (Some(due), None) | (None, Some(due)) => return due,
                (None, None) if self.waiting == 0 => return Moment::NEVER,
                (None, None) => self.turn(),
            }
        }
    }

    /// Takes out the one that [`Self::next_due`] spoke of. Of those due at the same moment the lowest number is first.
    pub(super) fn pop(&mut self) -> Option<u32> {
        let current = self
            .current
            .last()
            .map(|entry| (self.due(*entry), number(*entry)));
        match (current, self.late.peek()) {
            (Some(current), Some(Reverse(late))) if *late < current => {
                self.late.pop().map(|Reverse((_, number))| number)
            }
            (None, Some(_)) => self.late.pop().map(|Reverse((_, number))| number),
            _ => self.current.pop().map(number),
        }
    }

    fn turn(&mut self) {
        self.at += 1;
        if self.at.is_multiple_of(BUCKETS) {
            for (due, number) in std::mem::take(&mut self.far) {
                self.put(number, due);
            }
        }
        if let Some(bucket) = self.buckets.get_mut((self.at % BUCKETS) as usize) {
            // Its room is given back: a wave of all devices would leave as much in every bucket that it passes.
            self.current = std::mem::take(bucket);
        }
        self.waiting -= self.current.len();
        self.current.sort_unstable_by_key(|entry| Reverse(*entry));
        self.unforeseen = self.current.len();
    }

    fn look_ahead(&mut self, foresee: impl Fn(u32)) {
        self.unforeseen = self.unforeseen.saturating_sub(FORESEEN);
        let soon = self.current.iter().skip(self.unforeseen);
        soon.copied().map(number).for_each(foresee);
    }

    fn put(&mut self, number: u32, due: Moment) {
        let bucket = bucket(due);
        if bucket - self.at >= BUCKETS {
            self.far.push((due, number));
        } else if let Some(bucket) = self.buckets.get_mut((bucket % BUCKETS) as usize) {
            let offset = due.as_nanos() & ((1 << WIDTH_BITS) - 1);
            bucket.push(offset << 32 | u64::from(number));
        }
    }

    fn due(&self, entry: u64) -> Moment {
        Moment::from_nanos((self.at << WIDTH_BITS) + (entry >> 32))
    }
}

const fn bucket(due: Moment) -> u64 {
    due.as_nanos() >> WIDTH_BITS
}

const fn number(entry: u64) -> u32 {
    entry as u32
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use super::*;

    /// A wheel and a sorted set do the same, over many turns and with everything that can be close together.
    #[test]
    fn it_gives_what_a_sorted_set_gives() {
        let mut wheel = Wheel::new();
        let mut judge = BTreeSet::new();
        let mut random = fastrand::Rng::with_seed(5);
        let mut put = |wheel: &mut Wheel, judge: &mut BTreeSet<(Moment, u32)>, number, now: Moment| {
            let span = match random.u8(0..6) {
                0 => 0,
                1 => random.u64(0..1000),
                2 => random.u64(0..500_000_000),
                3 => 5_000_000_000,
                4 => random.u64(0..700_000_000_000),
                _ => random.u64(0..5_000_000_000_000),
            };
            let due = now + Duration::from_nanos(span);
            wheel.insert(number, due);
            judge.insert((due, number));
        };
        for number in 0..500 {
            put(&mut wheel, &mut judge, number, Moment::ZERO);
        }
        for _ in 0..5000 {
            let expected = judge.pop_first().unwrap();
            let due = wheel.next_due(|_| ());
            assert_eq!((due, wheel.pop()), (expected.0, Some(expected.1)));
            put(&mut wheel, &mut judge, expected.1, due);
        }
        while let Some((due, number)) = judge.pop_first() {
            assert_eq!((wheel.next_due(|_| ()), wheel.pop()), (due, Some(number)));
        }
        assert_eq!((wheel.next_due(|_| ()), wheel.pop()), (Moment::NEVER, None));
    }

    /// The next one may be a long way off, and another event puts one in who is due before.
    #[test]
    fn who_is_due_before_the_next_one_comes_first() {
        let at = |seconds| Moment::ZERO + Duration::from_secs(seconds);
        let mut wheel = Wheel::new();
        wheel.insert(1, at(10_000));
        assert_eq!(wheel.next_due(|_| ()), at(10_000));
        wheel.insert(2, at(9));
        assert_eq!((wheel.next_due(|_| ()), wheel.pop()), (at(9), Some(2)));
        assert_eq!((wheel.next_due(|_| ()), wheel.pop()), (at(10_000), Some(1)));
    }
}
