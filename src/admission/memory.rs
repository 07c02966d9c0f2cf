//! What is remembered of many clients, in bounded room.
//!
//! Two generations: what is written or looked up lives in the young one; when the young one is full or `span` has
//! passed, the old one is forgotten and the young one takes its place. So an entry lives for `span` to twice `span`
//! after it was last used, and less only while more than `capacity` clients come within `span`. Then the memory
//! forgets, which lets clients in rather than keeping them out. No clean-up ever runs over all entries.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::time::Duration;

use crate::moment::Moment;

/// A keyed hash of what identifies a client; made by [`super::classify::Classifier`] with a secret key, so that nobody
/// outside can aim at a collision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key(pub u64);

/// A map by [`Key`].
pub type ByKey<V> = HashMap<Key, V, BuildHasherDefault<AsItIs>>;

/// Takes a [`Key`] for its own hash, which it is: to hash it once more would cost more than the rest of a look-up.
#[derive(Clone, Copy, Debug, Default)]
pub struct AsItIs(u64);

impl Hasher for AsItIs {
    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }

    /// Nothing but a [`Key`] is hashed by it; the trait asks for this.
    fn write(&mut self, bytes: &[u8]) {
        self.0 = bytes
            .iter()
            .fold(self.0, |hash, byte| hash.rotate_left(8) ^ u64::from(*byte));
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// A bounded memory: at most twice `capacity` entries.
#[derive(Clone, Debug)]
pub struct Memory<V> {
    young: ByKey<V>,
    old: ByKey<V>,
    capacity: usize,
    span: Duration,
    since: Moment,
}

impl<V> Memory<V> {
    /// Empty. `capacity`: entries a generation, at least 1; `span`: how long an unused entry is kept at least.
    pub fn new(capacity: usize, span: Duration) -> Self {
        Self {
            young: ByKey::default(),
            old: ByKey::default(),
            capacity: capacity.max(1),
            span,
            since: Moment::ZERO,
        }
    }

    /// What is remembered of `key`; keeps it young.
    pub fn get(&mut self, key: Key, now: Moment) -> Option<&mut V> {
        self.turn(now);
        if let Some(value) = self.old.remove(&key) {
            self.put(key, value, now);
        }
        self.young.get_mut(&key)
    }

    /// What is remembered of `key`, leaving its age alone.
    pub fn peek(&self, key: Key) -> Option<&V> {
        self.young.get(&key).or_else(|| self.old.get(&key))
    }

    /// Remembers `value` for `key` in place of what was known.
    pub fn put(&mut self, key: Key, value: V, now: Moment) {
        self.turn(now);
        self.old.remove(&key);
        if self.young.len() >= self.capacity && !self.young.contains_key(&key) {
            self.rotate(now);
        }
        self.young.insert(key, value);
    }

    /// Forgets `key`.
    pub fn remove(&mut self, key: Key) -> Option<V> {
        self.young.remove(&key).or_else(|| self.old.remove(&key))
    }

    /// Forgets what is too old by `now`. Whatever is written or looked up does so as well.
    pub fn age(&mut self, now: Moment) {
        self.turn(now);
    }

    /// How many are remembered.
    pub fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }

    /// Whether nobody is remembered.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn turn(&mut self, now: Moment) {
        let age = now - self.since;
        if age >= self.span {
            self.rotate(now);
            // Nothing has come for two spans: the young ones are as old as the old ones.
            if age >= self.span.saturating_mul(2) {
                self.old = ByKey::default();
            }
        }
    }

    fn rotate(&mut self, now: Moment) {
        // A fresh table gives the room of a storm back; what stays is about what the last generation needed.
        self.old = std::mem::take(&mut self.young);
        self.since = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn an_unused_entry_is_kept_for_one_span_and_gone_after_two() {
        let mut memory = Memory::new(10, Duration::from_mins(1));
        memory.put(Key(1), "one", at(59));
        assert_eq!(memory.get(Key(1), at(61)), Some(&mut "one"));
        assert_eq!(memory.get(Key(1), at(119)), Some(&mut "one"));
        memory.put(Key(2), "two", at(119));
        assert_eq!(memory.get(Key(2), at(180)), Some(&mut "two"), "kept by use");
        assert_eq!(memory.peek(Key(1)), Some(&"one"));
        assert_eq!(memory.get(Key(1), at(300)), None);
        assert!(memory.is_empty());
    }

    #[test]
    fn it_is_bounded_and_forgets_the_oldest() {
        let mut memory = Memory::new(100, Duration::from_hours(1));
        for number in 0..10_000 {
            memory.put(Key(number), number, at(1));
            assert!(memory.len() <= 200);
        }
        assert_eq!(memory.peek(Key(9_999)), Some(&9_999));
        assert_eq!(memory.peek(Key(9_900)), Some(&9_900));
        assert_eq!(memory.peek(Key(1)), None);
        memory.put(Key(9_999), 0, at(1));
        assert_eq!(
            memory.peek(Key(9_900)),
            Some(&9_900),
            "a known one takes no more room"
        );
    }

    #[test]
    fn one_key_has_one_entry() {
        let mut memory = Memory::new(1, Duration::from_hours(1));
        memory.put(Key(1), 1, at(0));
        memory.put(Key(2), 2, at(0));
        memory.put(Key(1), 3, at(0));
        assert_eq!(memory.remove(Key(1)), Some(3));
        assert_eq!(memory.remove(Key(1)), None);
    }
}
