//! Owns the forms a column takes: one value, a dictionary with codes, or packed integers; and how
//! it is read back. Does not own where the bytes lie (`segment`).
//!
//! | form | bytes |
//! |---|---|
//! | constant | none: the value stands in the segment's header |
//! | dictionary | its entries, then the packed codes; NULL is the code after the last entry |
//! | packed | a bit a row saying "not NULL" where some are NULL, then the packed values |

use std::sync::{Arc, OnceLock};

use query_planner::scan::By;
use serde::{Deserialize, Serialize};

use super::Kind;
use super::bits::{BLOCK, ToPack, block_range, unpack, width};
use crate::FastMap;

/// Different integers up to which a dictionary is tried.
const MOST_ENTRIES: usize = 1024;

/// The code of NULL in a text column being built.
pub(super) const NULL_CODE: i64 = i64::MAX;

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

/// A column in memory: text as codes of its dictionary.
#[derive(Debug, Clone)]
pub(crate) struct Column {
    kind: Kind,
    /// Values, or codes; for text [`NULL_CODE`] is NULL.
    values: Vec<i64>,
    /// Integers: which are not NULL; empty while none is.
    valid: Vec<bool>,
    texts: Vec<Vec<u8>>,
    codes: FastMap<Vec<u8>, i64>,
    /// Codes of texts that came of late, by where these lie in memory: a text that many rows share is
    /// compared with one, not looked up.
    recent: [i64; RECENT],
}

/// Places of [`Column::recent`].
const RECENT: usize = 16;

impl Column {
    pub(super) fn new(kind: Kind) -> Self {
        Self::with_room(kind, 0)
    }

    /// With room for `rows` rows.
    pub(super) fn with_room(kind: Kind, rows: usize) -> Self {
        Self {
            kind,
            values: Vec::with_capacity(rows),
            valid: Vec::new(),
            texts: Vec::new(),
            codes: FastMap::default(),
            recent: [NULL_CODE; RECENT],
        }
    }

    /// Without rows, with the memory that it has.
    pub(super) fn clear(&mut self) {
        self.values.clear();
        self.valid.clear();
        self.texts.clear();
        self.codes.clear();
        self.recent = [NULL_CODE; RECENT];
    }

    pub(super) fn kind(&self) -> Kind {
        self.kind
    }

    pub(super) fn len(&self) -> usize {
        self.values.len()
    }

    /// The integer, or the code of the text, of a row; None for NULL.
    pub(super) fn raw(&self, row: usize) -> Option<i64> {
        let value = self.values[row];
        match self.kind {
            Kind::Integer => self.valid.get(row).copied().unwrap_or(true).then_some(value),
            Kind::Text | Kind::Blob => (value != NULL_CODE).then_some(value),
        }
    }

    /// The texts that codes stand for.
    pub(super) fn texts(&self) -> Option<&[Vec<u8>]> {
        (self.kind != Kind::Integer).then_some(&self.texts)
    }

    pub(super) fn push_integer(&mut self, value: Option<i64>) {
        match value {
            Some(value) => {
                self.values.push(value);
                self.all_valid();
            }
            None => {
                if self.valid.is_empty() {
                    self.valid = vec![true; self.values.len()];
                }
                // What compresses best: the value before.
                self.values.push(self.values.last().copied().unwrap_or(0));
                self.valid.push(false);
            }
        }
    }

    pub(super) fn push_text(&mut self, text: Option<&[u8]>) {
        let code = text.map_or(NULL_CODE, |text| self.code(text));
        self.values.push(code);
    }

    fn code(&mut self, text: &[u8]) -> i64 {
        let place = (text.as_ptr().addr() / 8 + text.len()) % RECENT;
        let recent = self.recent[place];
        if self.texts.get(recent as usize).is_some_and(|known| known == text) {
            return recent;
        }
        let code = match self.codes.get(text) {
            Some(&code) => code,
            None => {
                let code = self.texts.len() as i64;
                self.texts.push(text.to_vec());
                self.codes.insert(text.to_vec(), code);
                code
            }
        };
        self.recent[place] = code;
        code
    }

    pub(super) fn push(&mut self, value: &Scalar) {
        self.push_cell(value.cell());
    }

    /// Add the rows of a column that was read; one of another kind gives NULLs.
    pub(super) fn extend(&mut self, read: &Decoded) {
        let is_integer = self.kind == Kind::Integer;
        match &read.column.shape {
            Shape::Many { entries: None, .. } if is_integer && read.column.valid().is_none() => {
                self.values.extend_from_slice(&read.values);
                self.all_valid();
            }
            Shape::Many { entries: Some(entries), .. } if matches!(**entries, Entries::Texts(_)) && !is_integer => {
                let codes: Vec<i64> = (0..entries.len() as i64)
                    .map(|code| if let Cell::Text(text) = entries.at(code) { self.code(text) } else { NULL_CODE })
                    .collect();
                let code = |code: &i64| codes.get(*code as usize).copied().unwrap_or(NULL_CODE);
                self.values.extend(read.values.iter().map(code));
            }
            Shape::Constant(value) if read.rows() > 0 => {
                self.push_cell(value.cell());
                let (rows, last) = (self.values.len() + read.rows() - 1, self.values[self.values.len() - 1]);
                self.values.resize(rows, last);
                if let Some(last) = self.valid.last().copied() {
                    self.valid.resize(rows, last);
                }
            }
            _ => (0..read.rows()).for_each(|row| self.push_cell(read.at(row))),
        }
    }

    /// Integers that were added are not NULL.
    fn all_valid(&mut self) {
        if !self.valid.is_empty() {
            self.valid.resize(self.values.len(), true);
        }
    }

    /// A value; one of another kind is NULL.
    fn push_cell(&mut self, cell: Cell<'_>) {
        match (self.kind, cell) {
            (Kind::Integer, Cell::Integer(value)) => self.push_integer(Some(value)),
            (Kind::Integer, _) => self.push_integer(None),
            (_, Cell::Text(text)) => self.push_text(Some(text)),
            (_, _) => self.push_text(None),
        }
    }

    /// The smallest form, its bytes, and the range of the integers in it.
    pub(super) fn encode(&self) -> (Form, Vec<u8>, Option<(i64, i64)>) {
        match self.kind {
            Kind::Text | Kind::Blob => {
                let (form, bytes) = self.encode_text();
                (form, bytes, None)
            }
            Kind::Integer => self.encode_integers(),
        }
    }

    fn encode_text(&self) -> (Form, Vec<u8>) {
        let first = self.values.first().copied().unwrap_or(NULL_CODE);
        if self.values.iter().all(|&code| code == first) {
            let text = self.texts.get(first as usize);
            return (Form::Constant(text.map_or(Scalar::Null, |text| Scalar::Text(text.clone()))), Vec::new());
        }
        let null = self.texts.len() as i64;
        let mut bytes = Vec::new();
        for text in &self.texts {
            bytes.extend_from_slice(&u32::try_from(text.len()).unwrap_or(u32::MAX).to_le_bytes());
            bytes.extend_from_slice(text);
        }
        let has_null = self.values.contains(&NULL_CODE);
        let codes: Vec<i64> = self.values.iter().map(|&code| if code == NULL_CODE { null } else { code }).collect();
        let to_pack = ToPack::of(&codes);
        let (plain, by_delta) = to_pack.sizes();
        let by_differences = by_delta < plain;
        (Form::Dictionary { entries: null as u32, has_null, by_differences }, to_pack.pack(by_differences, bytes))
    }

    fn encode_integers(&self) -> (Form, Vec<u8>, Option<(i64, i64)>) {
        let has_null = self.valid.contains(&false);
        let first = self.values.first().copied();
        if let Some(first) = first.filter(|first| !has_null && self.values.iter().all(|value| value == first)) {
            return (Form::Constant(Scalar::Integer(first)), Vec::new(), Some((first, first)));
        }
        let to_pack = ToPack::of(&self.values);
        let range = if has_null { self.range_of_valid() } else { to_pack.range() };
        if range.is_none() {
            return (Form::Constant(Scalar::Null), Vec::new(), None);
        }
        let (plain, by_delta) = to_pack.sizes();
        let packed = plain.min(by_delta) + if has_null { self.len().div_ceil(8) } else { 0 };
        if let Some((entries, codes)) = self.dictionary(has_null) {
            let bits = width((entries.len() - usize::from(!has_null)) as u64) as usize;
            if entries.len() * 8 + (self.len() * bits).div_ceil(8) < packed {
                let bytes: Vec<u8> = entries.iter().flat_map(|entry| entry.to_le_bytes()).collect();
                let form = Form::Dictionary { entries: entries.len() as u32, has_null, by_differences: false };
                return (form, ToPack::of(&codes).pack(false, bytes), range);
            }
        }
        let mut bytes = Vec::new();
        if has_null {
            bytes.resize(self.len().div_ceil(8), 0);
            let valid = self.valid.iter().enumerate().filter(|(_, valid)| **valid);
            valid.for_each(|(row, _)| bytes[row / 8] |= 1 << (row % 8));
        }
        let by_differences = by_delta < plain;
        (Form::Packed { has_null, by_differences }, to_pack.pack(by_differences, bytes), range)
    }

    /// The smallest and the greatest integer that is not NULL, where some are.
    fn range_of_valid(&self) -> Option<(i64, i64)> {
        let valid = self.values.iter().zip(&self.valid).filter(|(_, valid)| **valid).map(|(value, _)| *value);
        valid.fold(None, |range, value| {
            Some(range.map_or((value, value), |(a, b): (i64, i64)| (a.min(value), b.max(value))))
        })
    }

    /// The different integers in ascending order and each row's code, when they are few.
    fn dictionary(&self, has_null: bool) -> Option<(Vec<i64>, Vec<i64>)> {
        // Open addressing; slots hold the entry's number from 1.
        let mut slots = [0_u16; MOST_ENTRIES * 2];
        let mut entries: Vec<i64> = Vec::new();
        let mut codes = Vec::with_capacity(self.len());
        let mut last = (0_i64, u16::MAX);
        for (row, &value) in self.values.iter().enumerate() {
            if has_null && !self.valid[row] {
                codes.push(i64::from(u16::MAX));
                continue;
            }
            if last.1 != u16::MAX && last.0 == value {
                codes.push(i64::from(last.1));
                continue;
            }
            let mut at = (value.cast_unsigned().wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 53) as usize;
            let code = loop {
                match slots[at] {
                    0 => {
                        if entries.len() >= MOST_ENTRIES {
                            return None;
                        }
                        entries.push(value);
                        slots[at] = entries.len() as u16;
                        break entries.len() as u16 - 1;
                    }
                    entry if entries[usize::from(entry) - 1] == value => break entry - 1,
                    _ => at = (at + 1) % slots.len(),
                }
            };
            last = (value, code);
            codes.push(i64::from(code));
        }
        let mut order: Vec<u16> = (0..entries.len() as u16).collect();
        order.sort_unstable_by_key(|&entry| entries[usize::from(entry)]);
        let mut renamed = vec![0_i64; entries.len()];
        for (new, &old) in order.iter().enumerate() {
            renamed[usize::from(old)] = new as i64;
        }
        let null = entries.len() as i64;
        for code in &mut codes {
            *code = renamed.get(*code as usize).copied().unwrap_or(null);
        }
        entries.sort_unstable();
        Some((entries, codes))
    }
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
    column: Encoded,
    values: Vec<i64>,
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
