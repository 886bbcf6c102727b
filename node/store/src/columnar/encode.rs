//! Owns the forms a column takes: one value, a dictionary with codes, or packed integers; and how
//! it is read back. Does not own which form a column gets (`column`), nor where the bytes lie
//! (`segment`).
//!
//! | form | bytes |
//! |---|---|
//! | constant | none: the value stands in the segment's header |
//! | dictionary | its entries, then the packed codes; NULL is the code after the last entry |
//! | packed | a bit a row saying "not NULL" where some are NULL, then the packed values |

mod column;

use std::sync::{Arc, OnceLock};

use query_planner::scan::By;
use serde::{Deserialize, Serialize};

use super::Kind;
use super::bits::{BLOCK, block_range, unpack};
pub(crate) use column::Column;

/// One value.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Scalar {
    /// NULL.
    Null,
    /// Integer.
    Integer(i64),
    /// Text.
    Text(Vec<u8>),
}

impl Scalar {
    /// As a cell.
    pub(crate) fn cell(&self) -> Cell<'_> {
        match self {
            Self::Null => Cell::Null,
            Self::Integer(value) => Cell::Integer(*value),
            Self::Text(text) => Cell::Text(text),
        }
    }
}

/// How a column's bytes are to be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Form {
    Constant(Scalar),
    Dictionary { entries: u32, has_null: bool, by_differences: bool },
    Packed { has_null: bool, by_differences: bool },
}

/// One cell as it is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cell<'a> {
    /// NULL.
    Null,
    /// Integer.
    Integer(i64),
    /// Text.
    Text(&'a [u8]),
}

impl Cell<'_> {
    /// Bytes of a text.
    fn bytes(&self) -> usize {
        match self {
            Self::Null | Self::Integer(_) => 0,
            Self::Text(text) => text.len(),
        }
    }
}

/// A column's entries, where it has a dictionary.
#[derive(Debug, Clone)]
pub(crate) enum Entries {
    /// Ascending.
    Integers(Vec<i64>),
    /// In no order.
    Texts(Vec<Vec<u8>>),
    /// What is made of other entries, perhaps equal ones; the last of NULL.
    Made(Vec<Scalar>),
}

impl Entries {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Integers(entries) => entries.len(),
            Self::Texts(entries) => entries.len(),
            Self::Made(entries) => entries.len(),
        }
    }

    /// What they take in memory, about.
    pub(crate) fn heap_bytes(&self) -> usize {
        match self {
            Self::Integers(entries) => entries.capacity() * size_of::<i64>(),
            Self::Texts(entries) => {
                entries.iter().map(|text| text.capacity() + size_of::<Vec<u8>>() + ALLOCATION_BYTES).sum()
            }
            Self::Made(entries) => {
                entries.iter().map(|value| size_of::<Scalar>() + value.cell().bytes() + ALLOCATION_BYTES).sum()
            }
        }
    }

    /// Whether texts are among them.
    pub(crate) fn has_text(&self) -> bool {
        match self {
            Self::Integers(_) => false,
            Self::Texts(_) => true,
            Self::Made(entries) => entries.iter().any(|value| matches!(value, Scalar::Text(_))),
        }
    }

    /// The value of a code; NULL beyond the last entry.
    pub(crate) fn at(&self, code: i64) -> Cell<'_> {
        let at = usize::try_from(code).unwrap_or(usize::MAX);
        match self {
            Self::Integers(entries) => entries.get(at).map_or(Cell::Null, |value| Cell::Integer(*value)),
            Self::Texts(entries) => entries.get(at).map_or(Cell::Null, |text| Cell::Text(text)),
            Self::Made(entries) => entries.get(at).map_or(Cell::Null, Scalar::cell),
        }
    }
}

/// What an allocation takes beside what is asked for, about.
const ALLOCATION_BYTES: usize = 16;

/// A column ready to be read; a copy shares its bytes.
#[derive(Debug, Clone)]
pub(crate) struct Encoded {
    rows: usize,
    shape: Shape,
}

#[derive(Debug, Clone)]
enum Shape {
    Constant(Scalar),
    Many { entries: Option<Arc<Entries>>, values: Stored },
}

/// Values, or codes of entries.
#[derive(Debug, Clone)]
enum Stored {
    /// With `has_valid`, the first bytes say which rows are not NULL. What is packed begins at
    /// `skip`.
    Packed { has_valid: bool, bytes: Arc<[u8]>, skip: usize, by_differences: bool, seen: Seen },
    /// As they are, in memory; a bit a row says which are not NULL, where one is.
    Plain { valid: Option<Arc<[u8]>>, values: Arc<[i64]> },
}

/// Of a column that is packed by differences: the least and the greatest value of each block, once
/// it was unpacked. What its entry says of them alone is often much wider. Copies share it.
type Seen = Arc<[OnceLock<(i64, i64)>]>;

fn unseen(rows: usize, by_differences: bool) -> Seen {
    let blocks = if by_differences { rows.div_ceil(BLOCK) } else { 0 };
    (0..blocks).map(|_| OnceLock::new()).collect()
}

impl Encoded {
    /// Make sense of a column's bytes; None when they are damaged.
    pub(super) fn open(rows: usize, kind: Kind, form: &Form, bytes: impl Into<Arc<[u8]>>) -> Option<Self> {
        let bytes = bytes.into();
        let shape = match form {
            Form::Constant(value) => Shape::Constant(value.clone()),
            Form::Dictionary { entries, by_differences, .. } => {
                let mut at = 0_usize;
                let entries = match kind {
                    Kind::Integer => {
                        let raw = bytes.get(..(*entries as usize).checked_mul(8)?)?;
                        at = raw.len();
                        let read = |chunk: &[u8]| Some(i64::from_le_bytes(chunk.try_into().ok()?));
                        Entries::Integers(raw.chunks_exact(8).map(read).collect::<Option<_>>()?)
                    }
                    Kind::Text | Kind::Blob => {
                        let mut texts = Vec::new();
                        for _ in 0..*entries {
                            let len = u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?) as usize;
                            texts.push(bytes.get(at + 4..at.checked_add(4 + len)?)?.to_vec());
                            at += 4 + len;
                        }
                        Entries::Texts(texts)
                    }
                };
                let by_differences = *by_differences;
                let seen = unseen(rows, by_differences);
                let values = Stored::Packed { has_valid: false, bytes, skip: at, by_differences, seen };
                Shape::Many { entries: Some(Arc::new(entries)), values }
            }
            Form::Packed { has_null, by_differences } => {
                let skip = if *has_null { rows.div_ceil(8) } else { 0 };
                bytes.get(..skip)?;
                let (has_valid, by_differences) = (*has_null, *by_differences);
                let seen = unseen(rows, by_differences);
                let values = Stored::Packed { has_valid, bytes, skip, by_differences, seen };
                Shape::Many { entries: None, values }
            }
        };
        Some(Self { rows, shape })
    }

    /// Integers in memory, NULL where `nulls` says so (empty where none is).
    pub(super) fn integers(values: Vec<i64>, nulls: &[bool]) -> Self {
        let valid = nulls.contains(&true).then(|| {
            let bits =
                |byte: &[bool]| (0..8).filter(|bit| byte.get(*bit) == Some(&false)).fold(0, |all, bit| all | 1 << bit);
            nulls.chunks(8).map(bits).collect()
        });
        let rows = values.len();
        Self { rows, shape: Shape::Many { entries: None, values: Stored::Plain { valid, values: values.into() } } }
    }

    /// Codes of `entries` in memory; one beyond the last is NULL.
    pub(super) fn codes(entries: Arc<Entries>, codes: Vec<i64>) -> Self {
        let (rows, values) = (codes.len(), Stored::Plain { valid: None, values: codes.into() });
        Self { rows, shape: Shape::Many { entries: Some(entries), values } }
    }

    /// What it takes in memory, about.
    pub(crate) fn heap_bytes(&self) -> usize {
        match &self.shape {
            Shape::Constant(Scalar::Text(text)) => text.capacity(),
            Shape::Constant(_) => 0,
            Shape::Many { entries, values } => {
                let values = match values {
                    Stored::Packed { bytes, seen, .. } => bytes.len() + size_of_val::<[_]>(seen),
                    Stored::Plain { values, .. } => size_of_val::<[i64]>(values),
                };
                entries.as_ref().map_or(0, |entries| entries.heap_bytes()) + values
            }
        }
    }

    /// The column's one value, when it has no other.
    pub(crate) fn constant(&self) -> Option<&Scalar> {
        match &self.shape {
            Shape::Constant(value) => Some(value),
            Shape::Many { .. } => None,
        }
    }

    pub(crate) fn entries(&self) -> Option<&Entries> {
        match &self.shape {
            Shape::Many { entries, .. } => entries.as_deref(),
            Shape::Constant(_) => None,
        }
    }

    /// As [`Encoded::entries`], to be kept without the column.
    pub(crate) fn shared_entries(&self) -> Option<Arc<Entries>> {
        match &self.shape {
            Shape::Many { entries, .. } => entries.clone(),
            Shape::Constant(_) => None,
        }
    }

    /// One bit a row, set where the value is not NULL; none when no value is. (A dictionary has a
    /// code for NULL.)
    pub(crate) fn valid(&self) -> Option<&[u8]> {
        match &self.shape {
            Shape::Constant(_) => None,
            Shape::Many { values: Stored::Packed { has_valid, bytes, skip, .. }, .. } => {
                bytes.get(..*skip).filter(|_| *has_valid)
            }
            Shape::Many { values: Stored::Plain { valid, .. }, .. } => valid.as_deref(),
        }
    }

    /// Values, or codes of [`Encoded::entries`], from row `start` (a multiple of 1024) on. Of a
    /// constant: its integer, or 0. None when the bytes are damaged.
    pub(crate) fn read(&self, start: usize, out: &mut [i64]) -> Option<()> {
        #[cfg(any(test, debug_assertions))]
        VALUES_READ.fetch_add(out.len() as u64, std::sync::atomic::Ordering::Relaxed);
        match &self.shape {
            Shape::Constant(Scalar::Integer(value)) => out.fill(*value),
            Shape::Constant(_) => out.fill(0),
            Shape::Many { values: Stored::Packed { bytes, skip, by_differences, seen, .. }, .. } => {
                unpack(bytes.get(*skip..)?, *by_differences, self.rows, start, out)?;
                for (at, block) in out.chunks(BLOCK).enumerate() {
                    let is_all_of_block = block.len() == BLOCK.min(self.rows - start - at * BLOCK);
                    if let Some(seen) = seen.get(start / BLOCK + at).filter(|_| is_all_of_block) {
                        seen.get_or_init(|| {
                            block.iter().fold((i64::MAX, i64::MIN), |(a, b), value| (a.min(*value), b.max(*value)))
                        });
                    }
                }
            }
            Shape::Many { values: Stored::Plain { values, .. }, .. } => {
                out.copy_from_slice(values.get(start..start.checked_add(out.len())?)?);
            }
        }
        Some(())
    }

    /// Blocks of 1024 rows.
    pub(crate) fn blocks(&self) -> usize {
        self.rows.div_ceil(BLOCK)
    }

    /// Between which integers the values, or codes, of a block of 1024 rows lie, without reading
    /// them; none where that is not known. (What stands for NULL lies there, too.)
    pub(crate) fn block_range(&self, block: usize) -> Option<(i64, i64)> {
        match &self.shape {
            Shape::Many { values: Stored::Packed { bytes, skip, by_differences, seen, .. }, .. } => {
                if let Some(range) = seen.get(block).and_then(OnceLock::get) {
                    return Some(*range);
                }
                block_range(bytes.get(*skip..)?, *by_differences, self.rows, block)
            }
            Shape::Many { .. } | Shape::Constant(_) => None,
        }
    }

    /// As [`Encoded::block_range`], exact: where that takes unpacking the block, it is unpacked.
    pub(crate) fn exact_block_range(&self, block: usize) -> Option<(i64, i64)> {
        if let Shape::Many { values: Stored::Packed { seen, .. }, .. } = &self.shape
            && seen.get(block).is_some_and(|range| range.get().is_none())
        {
            let mut values = [0; BLOCK];
            let start = block * BLOCK;
            self.read(start, values.get_mut(..BLOCK.min(self.rows.checked_sub(start)?))?)?;
        }
        self.block_range(block)
    }

    /// What a value that was read from row `row` stands for.
    pub(crate) fn cell(&self, row: usize, value: i64) -> Cell<'_> {
        match &self.shape {
            Shape::Constant(Scalar::Null) => Cell::Null,
            Shape::Constant(Scalar::Integer(value)) => Cell::Integer(*value),
            Shape::Constant(Scalar::Text(text)) => Cell::Text(text),
            Shape::Many { entries: Some(entries), .. } => entries.at(value),
            Shape::Many { .. } if self.valid().is_some_and(|valid| valid[row / 8] >> (row % 8) & 1 == 0) => Cell::Null,
            Shape::Many { .. } => Cell::Integer(value),
        }
    }

    /// The text column that is made of this one. None when the bytes are damaged.
    pub(crate) fn derive(self, by: &By) -> Option<Self> {
        let rows = self.rows;
        let shape = match self.shape {
            Shape::Constant(value) => Shape::Constant(match value {
                Scalar::Null => Scalar::Null,
                Scalar::Integer(value) => Scalar::Text(derived(Cell::Integer(value), by)),
                Scalar::Text(text) => Scalar::Text(derived(Cell::Text(&text), by)),
            }),
            Shape::Many { entries: Some(entries), values } => {
                let texts = (0..entries.len()).map(|code| derived(entries.at(code as i64), by)).collect();
                Shape::Many { entries: Some(Arc::new(Entries::Texts(texts))), values }
            }
            shape @ Shape::Many { .. } => {
                let decoded = Self { rows, shape }.decode()?;
                let mut column = Column::new(Kind::Text);
                for row in 0..rows {
                    match decoded.at(row) {
                        Cell::Null => column.push_text(None),
                        cell => column.push_text(Some(&derived(cell, by))),
                    }
                }
                let (form, bytes, _) = column.encode();
                return Self::open(rows, Kind::Text, &form, bytes);
            }
        };
        Some(Self { rows, shape })
    }

    /// The column with `make` of each of its different values; none where they are not few enough
    /// to be listed (integers may not be).
    ///
    /// # Errors
    /// Those of `make`.
    pub(super) fn made<E>(self, mut make: impl FnMut(Cell<'_>) -> Result<Scalar, E>) -> Result<Option<Self>, E> {
        let shape = match self.shape {
            Shape::Constant(value) => Shape::Constant(make(value.cell())?),
            Shape::Many { entries: Some(entries), values } => {
                // One more: that of NULL.
                let made: Result<Vec<Scalar>, E> = (0..=entries.len()).map(|at| make(entries.at(at as i64))).collect();
                Shape::Many { entries: Some(Arc::new(Entries::Made(made?))), values }
            }
            Shape::Many { entries: None, .. } => return Ok(None),
        };
        Ok(Some(Self { rows: self.rows, shape }))
    }

    /// All values in memory.
    pub(crate) fn decode(self) -> Option<Decoded> {
        let mut values = Vec::new();
        if self.constant().is_none() {
            values.resize(self.rows, 0);
            self.read(0, &mut values)?;
        }
        Some(Decoded { column: self, values })
    }
}

/// Values that this process has read out of columns.
#[cfg(any(test, debug_assertions))]
static VALUES_READ: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

/// How many values this process has read out of columns: what a question costs, whatever the
/// machine.
#[cfg(any(test, debug_assertions))]
pub fn values_read() -> u64 {
    VALUES_READ.load(std::sync::atomic::Ordering::Relaxed)
}

/// As SQLite's `upper`, `lower` (ASCII only) and `printf('%016x', …)`.
fn derived(cell: Cell<'_>, by: &By) -> Vec<u8> {
    match (by, cell) {
        (_, Cell::Null) => Vec::new(),
        (By::Hex, Cell::Integer(value)) => format!("{value:016x}").into_bytes(),
        (_, Cell::Integer(value)) => value.to_string().into_bytes(),
        (By::Upper, Cell::Text(text)) => text.to_ascii_uppercase(),
        (By::Lower, Cell::Text(text)) => text.to_ascii_lowercase(),
        // (What SQLite makes of a text is not made here.)
        (By::Hex | By::Sql { .. }, Cell::Text(text)) => text.to_vec(),
    }
}

/// A column with all its values in memory.
#[derive(Debug, Clone)]
pub(crate) struct Decoded {
    pub(super) column: Encoded,
    pub(super) values: Vec<i64>,
}

impl Decoded {
    pub(crate) fn rows(&self) -> usize {
        self.column.rows
    }

    pub(crate) fn at(&self, row: usize) -> Cell<'_> {
        self.column.cell(row, self.values.get(row).copied().unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cells() -> impl Strategy<Value = (Kind, Vec<Scalar>)> {
        let integer = prop_oneof![any::<i64>(), -3_i64..3, (0_i64..40).prop_map(|i| 1 << i)];
        let integers = |null: f64| {
            let cell = prop::option::weighted(1.0 - null, integer.clone());
            prop::collection::vec(cell.prop_map(|v| v.map_or(Scalar::Null, Scalar::Integer)), 0..2500)
        };
        let text =
            prop_oneof![Just(Vec::new()), prop::collection::vec(any::<u8>(), 0..6), Just(b"all_reduce".to_vec())];
        let cell = prop::option::weighted(0.9, text).prop_map(|v| v.map_or(Scalar::Null, Scalar::Text));
        prop_oneof![
            prop::collection::vec(integer.clone().prop_map(Scalar::Integer), 0..2500).prop_map(|v| (Kind::Integer, v)),
            integers(0.2).prop_map(|v| (Kind::Integer, v)),
            prop::collection::vec((-2_i64..2).prop_map(Scalar::Integer), 0..2500).prop_map(|v| (Kind::Integer, v)),
            (integer, 0_usize..2500).prop_map(|(v, n)| (Kind::Integer, vec![Scalar::Integer(v); n])),
            prop::collection::vec(cell, 0..2500).prop_map(|v| (Kind::Text, v)),
        ]
    }

    #[test]
    fn a_block_that_was_unpacked_has_its_exact_range() {
        let mut column = Column::new(Kind::Integer);
        // Steps of 1,000, in one place one back: the block's entry alone says a wide range.
        let values: Vec<i64> = (0..3_000).map(|row| row * 1_000 - if row == 700 { 5_000 } else { 0 }).collect();
        values.iter().for_each(|value| column.push_integer(Some(*value)));
        let (form, bytes, _) = column.encode();
        let encoded = Encoded::open(values.len(), Kind::Integer, &form, bytes).unwrap();
        let copy = encoded.clone();
        let exact = |block: usize| (values[block * BLOCK], values[(block * BLOCK + BLOCK).min(values.len()) - 1]);
        for block in 0..3 {
            let (least, greatest) = copy.block_range(block).unwrap();
            assert!(least <= exact(block).0 && exact(block).1 <= greatest);
        }
        assert_ne!(copy.block_range(0).unwrap(), exact(0));
        let mut out = vec![0; values.len() - BLOCK];
        // Of a part of a block nothing is known.
        encoded.read(0, &mut out[..100]).unwrap();
        assert_ne!(copy.block_range(0).unwrap(), exact(0));
        encoded.read(0, &mut out[..BLOCK]).unwrap();
        assert_eq!(copy.block_range(0).unwrap(), exact(0));
        encoded.read(BLOCK, &mut out).unwrap();
        assert_eq!([copy.block_range(1).unwrap(), copy.block_range(2).unwrap()], [exact(1), exact(2)]);
    }

    fn same(cell: Cell<'_>, scalar: &Scalar) -> bool {
        match (cell, scalar) {
            (Cell::Null, Scalar::Null) => true,
            (Cell::Integer(a), Scalar::Integer(b)) => a == *b,
            (Cell::Text(a), Scalar::Text(b)) => a == b,
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn every_cell_comes_back((kind, cells) in cells()) {
            let mut column = Column::new(kind);
            cells.iter().for_each(|cell| column.push(cell));
            let (form, bytes, range) = column.encode();
            let read = Encoded::open(cells.len(), kind, &form, bytes).expect("own bytes").decode().expect("own bytes");
            for (row, cell) in cells.iter().enumerate() {
                prop_assert!(same(read.at(row), cell), "row {}: {:?} for {:?}", row, read.at(row), cell);
                if let Scalar::Integer(value) = cell {
                    prop_assert!(range.is_some_and(|(a, b)| (a..=b).contains(value)));
                }
            }
            let mut again = Column::new(kind);
            again.extend(&read);
            prop_assert_eq!(again.encode().0, form);
        }

        #[test]
        fn damaged_bytes_are_read_or_refused((kind, cells) in cells(), cut in 0_usize..400, at in 0_usize..400, by: u8) {
            let mut column = Column::new(kind);
            cells.iter().for_each(|cell| column.push(cell));
            let (form, mut bytes, _) = column.encode();
            bytes.truncate(bytes.len().saturating_sub(cut));
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= by;
            }
            if let Some(read) = Encoded::open(cells.len(), kind, &form, bytes).and_then(Encoded::decode) {
                (0..read.rows()).for_each(|row| { read.at(row); });
            }
        }
    }
}
