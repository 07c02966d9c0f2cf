//! Who knocks next, among ten million: a wheel of buckets, with the devices themselves as the links of their chains. A
//! heap of that size misses the cache at each of its two dozen levels; here an event costs two misses.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::device::{Device, NOBODY};
use crate::moment::Moment;

/// A bucket is 2^20 ns wide, which is a millisecond: few devices fall into one, and those are sorted.
const WIDTH_BITS: u32 = 20;

/// 2^20 buckets, 18 minutes: longer than most caps. Who is due later passes its bucket by, and stays in it.
const BUCKETS: u64 = 1 << 20;

/// Devices by the time at which they are due. Each is in it once at most.
#[derive(Debug)]
pub(super) struct Wheel {
    /// The first device of each bucket.
    heads: Vec<u32>,
    /// Number of the bucket that is being emptied, counted from the beginning of time.
    at: u64,
    /// Its devices, the next one last: offset in the bucket above the device's number.
    current: Vec<u64>,
    /// Those that became due within it while it was being emptied.
    late: BinaryHeap<Reverse<(Moment, u32)>>,
    /// Devices in the buckets.
    chained: usize,
}

impl Wheel {
    /// With nobody in it.
    pub(super) fn new() -> Self {
        Self {
            heads: vec![NOBODY; BUCKETS as usize],
            at: 0,
            current: Vec::new(),
            late: BinaryHeap::new(),
            chained: 0,
        }
    }

    /// `number` is due at `due`, not before what was taken out last.
    pub(super) fn insert(&mut self, devices: &mut [Device], number: u32, due: Moment) {
        let Some(device) = devices.get_mut(number as usize) else {
            return;
        };
        device.due = due;
        let bucket = bucket(due);
        if bucket <= self.at {
            self.late.push(Reverse((due, number)));
        } else if let Some(head) = self.heads.get_mut((bucket % BUCKETS) as usize) {
            device.next = std::mem::replace(head, number);
            self.chained += 1;
        }
    }

    /// When the next one is due; [`Moment::NEVER`]: there is nobody.
    pub(super) fn next_due(&mut self, devices: &mut [Device]) -> Moment {
        loop {
            let current = self.current.last().map(|entry| self.due(*entry));
            let late = self.late.peek().map(|Reverse((due, _))| *due);
            match (current, late) {
                (Some(current), Some(late)) => return current.min(late),
                (Some(due), None) | (None, Some(due)) => return due,
                (None, None) if self.chained == 0 => return Moment::NEVER,
                (None, None) => self.turn(devices),
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

    fn turn(&mut self, devices: &mut [Device]) {
        self.at += 1;
        let Some(head) = self.heads.get_mut((self.at % BUCKETS) as usize) else {
            return;
        };
        let mut next = std::mem::replace(head, NOBODY);
        while let Some(device) = devices.get_mut(next as usize) {
            let number = next;
            next = device.next;
            if bucket(device.due) == self.at {
                let offset = device.due.as_nanos() & ((1 << WIDTH_BITS) - 1);
                self.current.push(offset << 32 | u64::from(number));
                self.chained -= 1;
            } else {
                // Another turn of the wheel.
                device.next = std::mem::replace(head, number);
            }
        }
        self.current.sort_unstable_by_key(|entry| Reverse(*entry));
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
    use std::time::Duration;

    use super::super::device::Fleet;
    use super::super::scenario;
    use super::*;

    fn devices(count: u32) -> Vec<Device> {
        let settings = scenario::Fleet {
            devices: count,
            ..scenario::Fleet::default()
        };
        Fleet::new(&settings, 1).unwrap().devices
    }

    /// A wheel and a sorted set do the same, over many turns and with everything that can be close together.
    #[test]
    fn it_gives_what_a_sorted_set_gives() {
        let mut devices = devices(500);
        let mut wheel = Wheel::new();
        let mut judge = std::collections::BTreeSet::new();
        let mut random = fastrand::Rng::with_seed(5);
        let mut put = |wheel: &mut Wheel,
                       judge: &mut std::collections::BTreeSet<(Moment, u32)>,
                       devices: &mut [Device],
                       number,
                       now: Moment| {
            let span = match random.u8(0..6) {
                0 => 0,
                1 => random.u64(0..1000),
                2 => random.u64(0..5_000_000),
                3 => 5_000_000_000,
                4 => random.u64(0..700_000_000_000),
                _ => random.u64(0..5_000_000_000_000),
            };
            let due = now + Duration::from_nanos(span);
            wheel.insert(devices, number, due);
            judge.insert((due, number));
        };
        for number in 0..500 {
            put(&mut wheel, &mut judge, &mut devices, number, Moment::ZERO);
        }
        for _ in 0..5000 {
            let expected = judge.pop_first().unwrap();
            let due = wheel.next_due(&mut devices);
            assert_eq!((due, wheel.pop()), (expected.0, Some(expected.1)));
            put(&mut wheel, &mut judge, &mut devices, expected.1, due);
        }
        while let Some((due, number)) = judge.pop_first() {
            assert_eq!((wheel.next_due(&mut devices), wheel.pop()), (due, Some(number)));
        }
        assert_eq!((wheel.next_due(&mut devices), wheel.pop()), (Moment::NEVER, None));
    }
}
