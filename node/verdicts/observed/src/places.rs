//! Numbers things in the order in which they come first. Those that mostly come again in the same
//! order (a host's lanes in its digests, a rank's collectives) are found without a search.

use std::collections::HashMap;
use std::hash::Hash;

/// The places of keys.
#[derive(Debug)]
pub struct Places<K> {
    keys: Vec<K>,
    known: HashMap<K, usize>,
    /// The place that is looked at first.
    next: usize,
}

impl<K> Default for Places<K> {
    fn default() -> Self {
        Self { keys: Vec::new(), known: HashMap::new(), next: 0 }
    }
}

impl<K: Copy + Eq + Hash> Places<K> {
    /// The place of a key: a new one at the end where it has none.
    pub fn of(&mut self, key: K) -> usize {
        if self.keys.get(self.next) != Some(&key) {
            let new = self.keys.len();
            self.next = *self.known.entry(key).or_insert(new);
            if self.next == new {
                self.keys.push(key);
            }
        }
        self.next += 1;
        self.next - 1
    }

    /// What comes next is looked for at the beginning.
    pub fn restart(&mut self) {
        self.next = 0;
    }

    /// The keys by place.
    pub fn into_keys(self) -> Vec<K> {
        self.keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_keeps_its_place_in_whatever_order_it_comes() {
        let mut places = Places::default();
        assert_eq!(["a", "b", "c"].map(|key| places.of(key)), [0, 1, 2]);
        assert_eq!(["c", "a", "b", "d", "a"].map(|key| places.of(key)), [2, 0, 1, 3, 0]);
        places.restart();
        assert_eq!(["a", "c", "d"].map(|key| places.of(key)), [0, 2, 3]);
        assert_eq!(places.into_keys(), ["a", "b", "c", "d"]);
    }
}
