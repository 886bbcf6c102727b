//! Owns the values of many rows of several segments in memory: integers, or texts by codes of one
//! dictionary, in the order of the texts.

use query_planner::scan::Operand;

use super::super::encode::Cell;
use super::StepAside;
use super::compute::Vector;
use super::values::Values;
use crate::FastMap;

/// Values of one operand.
#[derive(Default)]
pub(super) struct Gathered {
    /// Integers, or codes of `texts`.
    pub(super) vector: Vector,
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
            let at = usize::try_from(*code).unwrap_or(0);
            if self.of_segment.len() <= at {
                self.of_segment.resize(at + 1, None);
            }
            let known = self.of_segment[at];
            let code = match (known, values.cell(row)) {
                (Some(code), _) => code,
                (None, Cell::Text(text)) => {
                    let next = self.texts.len() as i64;
                    let code = *self.codes.entry(text.to_vec()).or_insert(next);
                    if code == next {
                        self.texts.push(text.to_vec());
                    }
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
        self.texts = order.into_iter().map(|old| std::mem::take(&mut self.texts[old])).collect();
        self.codes.clear();
        for code in &mut self.vector.values {
            *code = renamed.get(*code as usize).copied().unwrap_or(0);
        }
    }

    /// The text of a code.
    pub(super) fn text(&self, code: i64) -> Option<&[u8]> {
        usize::try_from(code).ok().and_then(|at| self.texts.get(at)).map(Vec::as_slice)
    }
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
