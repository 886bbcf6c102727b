//! A column that is being built, and the smallest form it can be written in (`encode`, its parent).

use super::super::Kind;
use super::super::bits::{ToPack, width};
use super::{Cell, Decoded, Entries, Form, Scalar};
use crate::FastMap;

/// Different integers up to which a dictionary is tried.
const MOST_ENTRIES: usize = 1024;

/// The code of NULL in a text column being built.
pub(in super::super) const NULL_CODE: i64 = i64::MAX;

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
    pub(in super::super) fn new(kind: Kind) -> Self {
        Self::with_room(kind, 0)
    }

    /// With room for `rows` rows.
    pub(in super::super) fn with_room(kind: Kind, rows: usize) -> Self {
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
    pub(in super::super) fn clear(&mut self) {
        self.values.clear();
        self.valid.clear();
        self.texts.clear();
        self.codes.clear();
        self.recent = [NULL_CODE; RECENT];
    }

    pub(in super::super) fn kind(&self) -> Kind {
        self.kind
    }

    pub(in super::super) fn len(&self) -> usize {
        self.values.len()
    }

    /// The integer, or the code of the text, of a row; None for NULL.
    pub(in super::super) fn raw(&self, row: usize) -> Option<i64> {
        let value = self.values[row];
        match self.kind {
            Kind::Integer => self.valid.get(row).copied().unwrap_or(true).then_some(value),
            Kind::Text | Kind::Blob => (value != NULL_CODE).then_some(value),
        }
    }

    /// The texts that codes stand for.
    pub(in super::super) fn texts(&self) -> Option<&[Vec<u8>]> {
        (self.kind != Kind::Integer).then_some(&self.texts)
    }

    pub(in super::super) fn push_integer(&mut self, value: Option<i64>) {
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

    pub(in super::super) fn push_text(&mut self, text: Option<&[u8]>) {
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

    pub(in super::super) fn push(&mut self, value: &Scalar) {
        self.push_cell(value.cell());
    }

    /// Add the rows of a column that was read; one of another kind gives NULLs.
    pub(in super::super) fn extend(&mut self, read: &Decoded) {
        let is_integer = self.kind == Kind::Integer;
        let column = &read.column;
        match (column.constant(), column.entries()) {
            (Some(value), _) if read.rows() > 0 => {
                self.push_cell(value.cell());
                let (rows, last) = (self.values.len() + read.rows() - 1, self.values[self.values.len() - 1]);
                self.values.resize(rows, last);
                if let Some(last) = self.valid.last().copied() {
                    self.valid.resize(rows, last);
                }
            }
            (None, None) if is_integer && column.valid().is_none() => {
                self.values.extend_from_slice(&read.values);
                self.all_valid();
            }
            (None, Some(entries @ Entries::Texts(_))) if !is_integer => {
                let codes: Vec<i64> = (0..entries.len() as i64)
                    .map(|code| if let Cell::Text(text) = entries.at(code) { self.code(text) } else { NULL_CODE })
                    .collect();
                let code = |code: &i64| codes.get(*code as usize).copied().unwrap_or(NULL_CODE);
                self.values.extend(read.values.iter().map(code));
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
    pub(in super::super) fn encode(&self) -> (Form, Vec<u8>, Option<(i64, i64)>) {
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
