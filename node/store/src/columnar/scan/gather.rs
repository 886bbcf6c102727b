//! Owns the values of many rows of several segments in memory: integers, doubles by their bits, or
//! texts by codes of one dictionary, in the order of the texts; and making columns of a segment in
//! memory of them.

use std::sync::Arc;

use query_planner::memory::Reservation;
use query_planner::scan::Operand;
use query_planner::{NodeError, Value};

use super::super::Kind;
use super::super::encode::{Cell, Encoded, Entries};
use super::super::segment::InMemory;
use super::compute::Vector;
use super::values::{Morsel, Values};
use super::{Failure, MORSEL, StepAside, Work, failed, wanted};
use crate::FastMap;

/// Values of one operand.
#[derive(Default)]
pub(super) struct Gathered {
    /// Integers, codes of `texts`, or bits of doubles.
    pub(super) vector: Vector,
    /// Once all is there.
    entries: Option<Arc<Entries>>,
    texts: Vec<Vec<u8>>,
    codes: FastMap<Vec<u8>, i64>,
    /// Of the segment that is read: what its codes are here, as far as they were met.
    of_segment: Vec<Option<i64>>,
}

impl Gathered {
    /// Nothing of so many rows.
    pub(super) fn rows(rows: usize) -> Self {
        Self { vector: Vector::same(Some(0), rows), ..Self::default() }
    }

    /// Of values that are integers, or texts, or (where it `is_real`) doubles, and NULL; none where
    /// one is anything else, or several kinds are there.
    pub(super) fn of_values<'v>(values: impl Iterator<Item = &'v Value>, is_real: bool) -> Option<Self> {
        let (mut all, mut has_integer) = (Self::default(), false);
        for value in values {
            let at = match value {
                Value::Null => None,
                Value::Real(value) if is_real => Some(value.to_bits().cast_signed()),
                _ if is_real => return None,
                Value::Integer(value) => {
                    has_integer = true;
                    Some(*value)
                }
                Value::Text(text) => Some(all.code(text)),
                Value::Real(_) | Value::Blob(_) => return None,
            };
            if at.is_none() || !all.vector.nulls.is_empty() {
                all.vector.nulls.resize(all.vector.values.len(), false);
                all.vector.nulls.push(at.is_none());
            }
            all.vector.values.push(at.unwrap_or(0));
        }
        all.finish();
        (!has_integer || all.entries.is_none()).then_some(all)
    }

    fn code(&mut self, text: &[u8]) -> i64 {
        if let Some(code) = self.codes.get(text) {
            return *code;
        }
        let code = self.texts.len() as i64;
        self.codes.insert(text.to_vec(), code);
        self.texts.push(text.to_vec());
        code
    }

    pub(super) fn len(&self) -> usize {
        self.vector.values.len()
    }

    pub(super) fn begin_segment(&mut self) {
        self.of_segment.clear();
    }

    /// What `values` has read last.
    pub(super) fn append(&mut self, values: &Values) {
        let read = &values.vector;
        if !read.nulls.is_empty() || !self.vector.nulls.is_empty() {
            self.vector.nulls.resize(self.vector.values.len(), false);
            self.vector.nulls.extend((0..read.values.len()).map(|row| read.is_null(row)));
        }
        if values.text().is_none() {
            self.vector.values.extend_from_slice(&read.values);
            return;
        }
        for (row, code) in read.values.iter().enumerate() {
            // The code of a NULL may be any number: it lies beyond the entries.
            if read.is_null(row) {
                self.vector.values.push(0);
                continue;
            }
            let at = usize::try_from(*code).unwrap_or(0);
            if self.of_segment.len() <= at {
                self.of_segment.resize(at + 1, None);
            }
            let known = self.of_segment[at];
            let code = match (known, values.cell(row)) {
                (Some(code), _) => code,
                (None, Cell::Text(text)) => {
                    let code = self.code(text);
                    self.of_segment[at] = Some(code);
                    code
                }
                (None, _) => 0,
            };
            self.vector.values.push(code);
        }
    }

    /// All is there: codes follow the order of their texts from now on.
    pub(super) fn finish(&mut self) {
        if self.texts.is_empty() {
            return;
        }
        let mut order: Vec<usize> = (0..self.texts.len()).collect();
        order.sort_unstable_by(|a, b| self.texts[*a].cmp(&self.texts[*b]));
        let mut renamed = vec![0_i64; order.len()];
        for (new, old) in order.iter().enumerate() {
            renamed[*old] = new as i64;
        }
        let texts = order.into_iter().map(|old| std::mem::take(&mut self.texts[old])).collect();
        self.entries = Some(Arc::new(Entries::Texts(texts)));
        self.texts.clear();
        self.codes.clear();
        for code in &mut self.vector.values {
            *code = renamed.get(*code as usize).copied().unwrap_or(0);
        }
    }

    /// The texts that codes stand for; none where there is no text.
    pub(super) fn entries(&self) -> Option<&Arc<Entries>> {
        self.entries.as_ref()
    }
}

/// So many rows of so many words are the question's memory.
pub(super) fn reserve(reservation: &mut Reservation, rows: usize, width: usize) -> Result<(), NodeError> {
    let bytes = rows.saturating_mul(width.saturating_mul(size_of::<i64>()));
    if reservation.try_resize(bytes) { Ok(()) } else { Err(NodeError::out_of_memory()) }
}

/// The values of operands, of all rows that the conditions admit: columns of integers or texts, and
/// what is made of integers. Without an operand, one that says how many rows there are.
pub(super) fn gather(
    work: &Work<'_>,
    operands: &[Operand],
    reservation: &mut Reservation,
) -> Result<Vec<Gathered>, Failure> {
    let is_integer = |operand: &Operand| operand.columns().iter().all(|name| work.kind(name) == Kind::Integer);
    let is_plain = |operand: &Operand| {
        matches!(operand, Operand::Column(name) if work.kind(name) != Kind::Blob) || is_integer(operand)
    };
    if !operands.iter().all(is_plain) {
        return Err(Failure::StepAside);
    }
    let mut gathered: Vec<Gathered> = operands.iter().map(|_| Gathered::default()).collect();
    let mut kept: Vec<u32> = Vec::with_capacity(MORSEL);
    let mut rows = 0;
    for segment in work.segments {
        work.go_on()?;
        let mut picks = work.filter.of_segment(work.conn, segment).map_err(failed)?;
        let open = |operand: &Operand| Values::open(work, segment, operand);
        let mut predicates: Vec<Values> = work.predicates.iter().map(open).collect::<Result<_, _>>()?;
        let mut values: Vec<Values> = operands.iter().map(open).collect::<Result<_, _>>()?;
        gathered.iter_mut().for_each(Gathered::begin_segment);
        for start in (0..segment.rows).step_by(MORSEL) {
            let len = MORSEL.min(segment.rows - start);
            wanted(&mut picks, &mut predicates, (segment, start, len), &mut kept)?;
            rows += kept.len();
            reserve(reservation, rows, 2 * operands.len() + 2)?;
            if !kept.is_empty() {
                for (gathered, values) in gathered.iter_mut().zip(&mut values) {
                    values.read(Morsel { segment, start, len, rows: &kept })?;
                    gathered.append(values);
                }
            }
        }
    }
    if operands.is_empty() {
        gathered.push(Gathered::rows(rows));
    }
    gathered.iter_mut().for_each(Gathered::finish);
    Ok(gathered)
}

/// A column of a segment in memory: of some rows, in this order, what `vector` has of them. Codes
/// are of `texts`.
pub(super) fn column(name: &str, kind: Kind, vector: &Vector, texts: &Gathered, rows: &[u32]) -> InMemory {
    let name = name.to_owned();
    let value = |row: &u32| vector.values.get(*row as usize).copied().unwrap_or(0);
    if kind != Kind::Integer {
        let entries = texts.entries().cloned().unwrap_or_else(|| Arc::new(Entries::Texts(Vec::new())));
        let null = entries.len() as i64;
        let code = |row: &u32| if vector.is_null(*row as usize) { null } else { value(row) };
        let codes = rows.iter().map(code).collect();
        return InMemory { name, kind, values: Encoded::codes(entries, codes), range: None };
    }
    let values: Vec<i64> = rows.iter().map(value).collect();
    let nulls: Vec<bool> = if vector.nulls.is_empty() {
        Vec::new()
    } else {
        rows.iter().map(|row| vector.is_null(*row as usize)).collect()
    };
    let vector = Vector { values, nulls };
    let range = vector.range();
    InMemory { name, kind, values: Encoded::integers(vector.values, &vector.nulls), range }
}

/// What was gathered of some operands.
#[derive(Clone, Copy)]
pub(super) struct Pool<'g> {
    pub(super) operands: &'g [Operand],
    pub(super) gathered: &'g [Gathered],
}

impl<'g> Pool<'g> {
    pub(super) fn of(self, operand: &Operand) -> Result<&'g Gathered, StepAside> {
        let at = self.operands.iter().position(|known| known == operand).ok_or(StepAside)?;
        self.gathered.get(at).ok_or(StepAside)
    }

    pub(super) fn vector(self, operand: &Operand) -> Result<&'g Vector, StepAside> {
        self.of(operand).map(|gathered| &gathered.vector)
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::encode::Column;
    use super::*;

    #[test]
    fn a_code_beyond_its_dictionary_is_null_and_takes_no_memory() {
        let mut column = Column::new(Kind::Text);
        ["a", "b", "a", "b"].iter().for_each(|text| column.push_text(Some(text.as_bytes())));
        let (form, bytes, _) = column.encode();
        let column = Encoded::open(4, Kind::Text, &form, bytes).expect("as it was written");
        let vector = Vector { values: vec![0, 1 << 40, 1], nulls: vec![false, true, false] };
        let mut gathered = Gathered::default();
        gathered.append(&Values::of_read(column, vector));
        gathered.finish();
        assert!(gathered.of_segment.len() <= 2, "{}", gathered.of_segment.len());
        let read = &gathered.vector;
        assert_eq!((read.at(0), read.at(1), read.at(2)), (Some(0), None, Some(1)));
    }
}
