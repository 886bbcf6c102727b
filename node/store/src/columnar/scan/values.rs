//! Owns the values of a segment's rows, some thousands at a time: of a column, or worked out of
//! several (`compute`). Only the rows that conditions admit are looked at, and of each column only
//! the blocks in which such a row lies.

use query_planner::Value;
use query_planner::scan::Operand;

use super::super::encode::{Cell, Encoded, Entries, Scalar};
use super::super::pick::read_rows;
use super::super::segment::Segment;
use super::compute::{Vector, compute, reals};
use super::{Failure, StepAside, Work, damaged};

/// Some rows of a segment.
#[derive(Clone, Copy)]
pub(super) struct Morsel<'m> {
    pub(super) segment: &'m Segment,
    /// A multiple of 1024.
    pub(super) start: usize,
    pub(super) len: usize,
    /// Those of the `len` rows from `start` on that are wanted, ascending.
    pub(super) rows: &'m [u32],
}

impl Morsel<'_> {
    /// What is stored of the rows: integers, or codes.
    fn stored(&self, column: &Encoded, out: &mut Vec<i64>) -> Result<(), Failure> {
        read_rows(column, (self.start, self.len), self.rows, out).ok_or_else(|| damaged(self.segment, "a column"))?;
        if self.rows.len() < self.len {
            for (to, from) in self.rows.iter().enumerate() {
                out[to] = out[*from as usize];
            }
            out.truncate(self.rows.len());
        }
        Ok(())
    }

    /// The integers of a column; of text the codes.
    fn integers(&self, column: &Encoded, out: &mut Vector) -> Result<(), Failure> {
        out.nulls.clear();
        if let Some(constant) = column.constant() {
            let value = match constant {
                Scalar::Integer(value) => Some(*value),
                Scalar::Null => None,
                Scalar::Text(_) => Some(0),
            };
            *out = Vector::same(value, self.rows.len());
            return Ok(());
        }
        self.stored(column, &mut out.values)?;
        if let Some(entries) = column.entries() {
            let is_null = |code: &i64| entries.at(*code) == Cell::Null;
            let is_beyond = |code: &i64| usize::try_from(*code).unwrap_or(usize::MAX) >= entries.len();
            let may_be_null = matches!(entries, Entries::Made(_)) || out.values.iter().any(is_beyond);
            if may_be_null {
                out.nulls.extend(out.values.iter().map(is_null));
            }
            if !entries.has_text() {
                let of = |code: &mut i64| {
                    *code = match entries.at(*code) {
                        Cell::Integer(value) => value,
                        _ => 0,
                    }
                };
                match entries {
                    Entries::Integers(list) if !may_be_null => {
                        out.values.iter_mut().for_each(|code| *code = list[*code as usize]);
                    }
                    _ => out.values.iter_mut().for_each(of),
                }
            }
        } else if let Some(valid) = column.valid() {
            for (row, value) in self.rows.iter().zip(&mut out.values) {
                let at = self.start + *row as usize;
                let is_null = valid[at / 8] >> (at % 8) & 1 == 0;
                out.nulls.push(is_null);
                if is_null {
                    *value = 0;
                }
            }
        }
        Ok(())
    }
}

/// The values of an operand in a segment.
pub(super) struct Values {
    operand: Operand,
    columns: Vec<(String, Encoded)>,
    /// Those of the columns, where it is made of several.
    parts: Vec<(String, Vector)>,
    /// Of the rows that were read last: integers, or of a text column codes, or the bits of
    /// doubles.
    pub(super) vector: Vector,
    is_real: bool,
}

impl Values {
    pub(super) fn open(work: &Work<'_>, segment: &Segment, operand: &Operand) -> Result<Self, Failure> {
        let mut columns: Vec<(String, Encoded)> = Vec::new();
        for name in operand.columns() {
            if !columns.iter().any(|(known, _)| known == name) {
                columns.push((name.to_owned(), work.column(segment, name)?));
            }
        }
        let is_real = operand.is_real();
        Ok(Self { operand: operand.clone(), columns, parts: Vec::new(), vector: Vector::default(), is_real })
    }

    /// The column, when that is all it is.
    pub(super) fn column(&self) -> Option<&Encoded> {
        match (&self.operand, self.columns.as_slice()) {
            (Operand::Column(_), [(_, column)]) => Some(column),
            _ => None,
        }
    }

    /// The column, when it is one of text or bytes.
    pub(super) fn text(&self) -> Option<&Encoded> {
        self.column().filter(|column| match column.constant() {
            Some(constant) => matches!(constant, Scalar::Text(_)),
            None => column.entries().is_some_and(Entries::has_text),
        })
    }

    /// Read the values of some rows.
    pub(super) fn read(&mut self, morsel: Morsel<'_>) -> Result<(), Failure> {
        if let (Operand::Column(_) | Operand::RealColumn(_), [(_, column)]) = (&self.operand, self.columns.as_slice()) {
            return morsel.integers(column, &mut self.vector);
        }
        self.parts.resize(self.columns.len(), Default::default());
        for ((name, column), part) in self.columns.iter().zip(&mut self.parts) {
            part.0.clone_from(name);
            morsel.integers(column, &mut part.1)?;
        }
        if self.is_real {
            self.vector = Vector::of_reals(&reals(&self.operand, &self.parts, morsel.rows.len())?);
            return Ok(());
        }
        self.vector = compute(&self.operand, &self.parts, morsel.rows.len())?.into_owned();
        Ok(())
    }

    /// Read what is stored of a column's rows: its codes, where it has a dictionary.
    pub(super) fn read_codes(&mut self, morsel: Morsel<'_>) -> Result<(), Failure> {
        let Some((_, column)) = self.columns.first() else { return Err(StepAside.into()) };
        morsel.stored(column, &mut self.vector.values)
    }

    /// What was read of the row at a place among those that were wanted, also where it is a double.
    pub(super) fn value(&self, at: usize) -> Value {
        if self.is_real {
            return self.vector.real_at(at).map_or(Value::Null, Value::Real);
        }
        match self.cell(at) {
            Cell::Null => Value::Null,
            Cell::Integer(value) => Value::Integer(value),
            Cell::Text(text) => Value::Text(text.to_vec()),
        }
    }

    /// What was read of the row at a place among those that were wanted: an integer or a text.
    pub(super) fn cell(&self, at: usize) -> Cell<'_> {
        match (self.text(), self.vector.at(at)) {
            (_, None) => Cell::Null,
            (Some(column), Some(code)) => match (column.constant(), column.entries()) {
                (Some(constant), _) => constant.cell(),
                (None, entries) => entries.map_or(Cell::Null, |entries| entries.at(code)),
            },
            (None, Some(value)) => Cell::Integer(value),
        }
    }
}

#[cfg(test)]
impl Values {
    /// Of a column of which these codes were read.
    pub(super) fn of_read(column: Encoded, vector: Vector) -> Self {
        let columns = vec![("x".to_owned(), column)];
        Self { operand: Operand::Column("x".to_owned()), columns, parts: Vec::new(), vector, is_real: false }
    }
}
