//! What a node says of itself to the whole mesh: its card. A cell's cards together are its roll,
//! which is known by its hash and fetched once.

use std::net::SocketAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::bytes::encoded;
use super::cell::{CellId, hash_of, name_hash, place_of};
use crate::seal::Sealing;

/// Cards of one roll: a cell's largest size, its dead, and room for a cell that is about to split.
pub(crate) const MAX_ROLL: usize = 1_024;
const MAX_NAME_BYTES: usize = 64;
/// Facts in a card, bytes.
pub(crate) const MAX_FACTS_BYTES: usize = 768;
/// A seal, bytes.
pub(crate) const MAX_SEAL_BYTES: usize = 8 << 10;
/// What a seal of a card is over, besides the card.
const CONTEXT: &[u8] = b"rankmesh card 1\0";

/// What a node says of itself to the whole mesh; seldom something new.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Card {
    /// Its name.
    pub name: String,
    /// Its rack; empty where none is given.
    pub rack: String,
    /// Its incarnation.
    pub generation: u64,
    /// Higher with each new word of this incarnation.
    pub serial: u64,
    /// Where it is reached.
    pub address: SocketAddr,
    /// The cell that it is in.
    pub cell: CellId,
    /// Facts that everybody has to know, in the caller's form; 768 bytes at most.
    pub facts: String,
    /// What a later version says besides, as it was sealed: passed on as it is.
    #[serde(skip)]
    pub(crate) later: Vec<u8>,
}

/// A card with its owner's seal; empty in a mesh without seals.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealedCard {
    /// What it says.
    #[serde(with = "as_sealed")]
    pub card: Card,
    /// That the owner says so.
    pub seal: String,
}

/// A card as the bytes that are sealed; in texts in hexadecimal.
mod as_sealed {
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::Card;
    use crate::cells::bytes::read_said;

    pub(super) fn serialize<S: Serializer>(card: &Card, to: S) -> Result<S::Ok, S::Error> {
        let said = card.said();
        if !to.is_human_readable() {
            return said.serialize(to);
        }
        hex::encode(said).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Card, D::Error> {
        let said = if from.is_human_readable() {
            hex::decode(String::deserialize(from)?).map_err(D::Error::custom)?
        } else {
            Vec::deserialize(from)?
        };
        let (card, later) = read_said::<Card>(&said).ok_or_else(|| D::Error::custom("no card"))?;
        Ok(Card { later, ..card })
    }
}

impl SealedCard {
    /// Seals a card of this node.
    pub(crate) fn new(card: Card, sealing: &Sealing) -> Self {
        let seal = sealing.word(&statement(&card)).unwrap_or_default();
        Self { card, seal }
    }

    /// Whether its owner says so, and it can be.
    pub(crate) fn is_good(&self, sealing: &Sealing) -> bool {
        let fits = self.card.is_sound() && self.seal.len() <= MAX_SEAL_BYTES;
        fits && sealing.is_word(&self.card.name, &statement(&self.card), &self.seal)
    }
}

impl Card {
    /// Whether it is of a possible size, and of a cell that its place lies in.
    pub(crate) fn is_sound(&self) -> bool {
        let named = (1..=MAX_NAME_BYTES).contains(&self.name.len()) && self.rack.len() <= MAX_NAME_BYTES;
        named && self.facts.len() <= MAX_FACTS_BYTES && self.cell.is_sound() && self.cell.contains(self.place())
    }

    /// The bytes that are sealed and hashed.
    pub(crate) fn said(&self) -> Vec<u8> {
        [&encoded(self)[..], &self.later].concat()
    }

    /// Where it stands.
    pub(crate) fn place(&self) -> u64 {
        place_of(&self.name, &self.rack)
    }

    /// Of two cards of one name the newer is the higher.
    pub(crate) fn age(&self) -> (u64, u64) {
        (self.generation, self.serial)
    }
}

fn statement(card: &Card) -> Vec<u8> {
    [CONTEXT, &card.said()].concat()
}

/// A card of a roll, with what is computed once.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) card: Card,
    pub(crate) id: u128,
    pub(crate) place: u64,
    pub(crate) name_hash: u64,
}

impl Entry {
    pub(crate) fn new(card: Card) -> Self {
        let id = hash_of(&[&card.said()]);
        let (place, name_hash) = (card.place(), name_hash(&card.name));
        Self { card, id, place, name_hash }
    }

    /// A short form of [`Entry::id`], to say which cards are there already.
    pub(crate) fn short(&self) -> u64 {
        self.id as u64
    }
}

/// The members of a cell, the dead included, sorted by name.
#[derive(Debug, Default)]
pub(crate) struct Roll {
    pub(crate) entries: Vec<Arc<Entry>>,
    pub(crate) id: u128,
}

impl Roll {
    pub(crate) fn new(mut entries: Vec<Arc<Entry>>) -> Self {
        entries.sort_by(|a, b| a.card.name.cmp(&b.card.name));
        let id = Self::id_of(entries.iter().map(|entry| entry.id));
        Self { entries, id }
    }

    /// Its hash, by those of its cards.
    pub(crate) fn id_of(cards: impl Iterator<Item = u128>) -> u128 {
        let all: Vec<u8> = cards.flat_map(u128::to_le_bytes).collect();
        hash_of(&[b"roll", &all])
    }

    /// Whether it has one card of each name: one member could fill it otherwise.
    pub(crate) fn names_each_once(&self) -> bool {
        self.entries.windows(2).all(|pair| pair[0].card.name != pair[1].card.name)
    }

    /// Where a name stands in it.
    pub(crate) fn find(&self, name: &str) -> Option<usize> {
        self.entries.binary_search_by(|entry| entry.card.name.as_str().cmp(name)).ok()
    }

    /// Bytes that it takes, about.
    pub(crate) fn bytes(&self) -> usize {
        let text = |entry: &Arc<Entry>| entry.card.name.len() + entry.card.rack.len() + entry.card.facts.len();
        self.entries.iter().map(|entry| size_of::<Entry>() + 16 + text(entry) + entry.card.later.len()).sum()
    }
}
