//! Who is there, in no order: pure.

/// Everybody who waits for a notice, with what it is given by. Entering, leaving and being drawn take constant time.
///
/// Invariant: a key belongs to one entry from [`Self::enter`] to [`Self::leave`], also when it was drawn in between.
#[derive(Debug)]
pub(super) struct Roster<T> {
    present: Vec<(Key, T)>,
    /// For each key where its entry is among the present; [`DRAWN`]: it is not.
    places: Vec<u32>,
    free: Vec<Key>,
}

/// An entry's name. 2³² connections are more than a machine has ports and descriptors for.
pub(super) type Key = u32;

const DRAWN: u32 = u32::MAX;

impl<T> Roster<T> {
    /// Nobody.
    pub(super) const fn new() -> Self {
        Self {
            present: Vec::new(),
            places: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Adds an entry.
    pub(super) fn enter(&mut self, entry: T) -> Key {
        let place = self.present.len() as u32;
        let key = self.free.pop().unwrap_or(self.places.len() as Key);
        match self.places.get_mut(key as usize) {
            Some(free) => *free = place,
            None => self.places.push(place),
        }
        self.present.push((key, entry));
        key
    }

    /// Takes the entry out, drawn or not; to be called once for each key.
    pub(super) fn leave(&mut self, key: Key) {
        let place = self.places.get(key as usize).copied();
        if let Some(place) = place.filter(|place| *place != DRAWN) {
            self.take(place as usize);
        }
        self.free.push(key);
    }

    /// Draws one of those present, by `random` from 0 up to their number.
    pub(super) fn draw(&mut self, random: impl FnOnce(usize) -> usize) -> Option<T> {
        if self.present.is_empty() {
            return None;
        }
        self.take(random(self.present.len()))
    }

    /// How many are present.
    pub(super) fn len(&self) -> usize {
        self.present.len()
    }

    fn take(&mut self, place: usize) -> Option<T> {
        if place >= self.present.len() {
            return None;
        }
        let (key, entry) = self.present.swap_remove(place);
        self.set_place(key, DRAWN);
        if let Some((moved, _)) = self.present.get(place) {
            self.set_place(*moved, place as u32);
        }
        Some(entry)
    }

    fn set_place(&mut self, key: Key, place: u32) {
        if let Some(known) = self.places.get_mut(key as usize) {
            *known = place;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Enter,
        Leave(prop::sample::Index),
        Draw(prop::sample::Index),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            3 => Just(Step::Enter),
            2 => any::<prop::sample::Index>().prop_map(Step::Leave),
            1 => any::<prop::sample::Index>().prop_map(Step::Draw),
        ];
        prop::collection::vec(step, 0..200)
    }

    proptest! {
        #[test]
        fn as_a_set_of_names_would_be(steps in steps()) {
            let mut roster = Roster::new();
            let mut keys: BTreeMap<usize, Key> = BTreeMap::new();
            let mut present = BTreeSet::new();
            for (name, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Enter => {
                        let key = roster.enter(name);
                        prop_assert!(!keys.values().any(|known| *known == key), "two have one key");
                        keys.insert(name, key);
                        present.insert(name);
                    }
                    Step::Leave(_) if keys.is_empty() => {}
                    Step::Leave(index) => {
                        let name = *keys.keys().nth(index.index(keys.len())).unwrap();
                        roster.leave(keys.remove(&name).unwrap());
                        present.remove(&name);
                    }
                    Step::Draw(index) => {
                        let drawn = roster.draw(|count| index.index(count));
                        prop_assert_eq!(drawn.is_some(), !present.is_empty());
                        prop_assert!(drawn.is_none_or(|name| present.remove(&name)));
                    }
                }
                prop_assert_eq!(roster.len(), present.len());
            }
            let most = keys.len() + roster.free.len();
            prop_assert_eq!(roster.places.len(), most, "a key was lost");
            let mut rest = BTreeSet::new();
            while let Some(name) = roster.draw(|count| count - 1) {
                rest.insert(name);
            }
            prop_assert_eq!(rest, present);
        }
    }

    #[test]
    fn everybody_is_as_likely_to_be_drawn_first() {
        let mut random = fastrand::Rng::with_seed(7);
        let mut first = [0; 10];
        for _ in 0..10_000 {
            let mut roster = Roster::new();
            for name in 0..10 {
                roster.enter(name);
            }
            first[roster.draw(|count| random.usize(..count)).unwrap()] += 1;
        }
        assert!(
            first.iter().all(|count| (850..1_150).contains(count)),
            "{first:?}"
        );
    }
}
