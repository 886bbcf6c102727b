//! Owns the different values of a group.

use std::collections::HashSet;

use foldhash::fast::RandomState;

use crate::FastMap;

/// Different integers and texts. Integers stand as bits of words: what counts calls or numbers
/// sequences lies close together.
#[derive(Debug, Clone, Default)]
pub(super) struct Distinct {
    /// Which of the 64 integers that begin at 64 times the key are there.
    words: FastMap<i64, u64>,
    /// The word that is worked on; it may not be among the others yet.
    last: (i64, u64),
    texts: HashSet<Vec<u8>, RandomState>,
    text_bytes: usize,
}

impl Distinct {
    pub(super) fn add(&mut self, value: i64) {
        let (key, bit) = (value >> 6, 1 << (value & 63));
        if self.last.0 != key {
            self.put(self.last);
            self.last = (key, 0);
        }
        self.last.1 |= bit;
    }

    fn put(&mut self, (key, bits): (i64, u64)) {
        if bits != 0 {
            *self.words.entry(key).or_default() |= bits;
        }
    }

    pub(super) fn add_text(&mut self, text: &[u8]) {
        if !self.texts.contains(text) {
            self.text_bytes += text.len();
            self.texts.insert(text.to_vec());
        }
    }

    pub(super) fn merge(&mut self, other: &Self) {
        other.words.iter().for_each(|(key, bits)| self.put((*key, *bits)));
        self.put(other.last);
        other.texts.iter().for_each(|text| self.add_text(text));
    }

    pub(super) fn count(&self) -> i64 {
        let of_last = self.last.1 & !self.words.get(&self.last.0).copied().unwrap_or(0);
        let words = self.words.values().copied().chain([of_last]);
        words.map(|bits| i64::from(bits.count_ones())).sum::<i64>() + self.texts.len() as i64
    }

    /// What it takes, about.
    pub(super) fn bytes(&self) -> usize {
        let words = self.words.capacity() * (size_of::<(i64, u64)>() + 1);
        size_of::<Self>() + words + self.texts.capacity() * (size_of::<Vec<u8>>() + 1) + self.text_bytes
    }
}
