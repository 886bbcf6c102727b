//! Owns the codes of a grouping value within a segment: small numbers that stand for its different
//! values.

use query_planner::scan::Operand;

use super::super::encode::{Cell, Entries, Scalar};
use super::super::segment::Segment;
use super::values::{Morsel, Values};
use super::{Failure, Work};
use crate::FastMap;

/// Integers around the first one whose codes are found by a look into a table.
const NEAR: usize = 1 << 16;

/// A grouping value within a segment.
pub(super) struct KeyCodes {
    source: Values,
    given: Given,
    /// More than any code.
    pub(super) size: u64,
    /// Of the rows that were read last.
    pub(super) codes: Vec<u32>,
}

/// Codes given to integers that have no dictionary.
#[derive(Default)]
struct Given {
    /// By the distance from `base`, one more than the code; 0 is "none yet".
    near: Vec<u32>,
    base: i64,
    far: FastMap<i64, u32>,
    null: Option<u32>,
    names: Vec<Scalar>,
}

impl Given {
    fn name(&mut self, name: Scalar) -> u32 {
        self.names.push(name);
        self.names.len() as u32 - 1
    }

    fn code(&mut self, value: Option<i64>) -> u32 {
        let Some(value) = value else {
            if let Some(code) = self.null {
                return code;
            }
            let code = self.name(Scalar::Null);
            self.null = Some(code);
            return code;
        };
        if self.near.is_empty() {
            self.near = vec![0; NEAR];
            self.base = value.saturating_sub(NEAR as i64 / 2);
        }
        // Wrapped around, it is far.
        let distance = usize::try_from(value.wrapping_sub(self.base)).unwrap_or(usize::MAX);
        if let Some(slot) = self.near.get_mut(distance) {
            if *slot == 0 {
                self.names.push(Scalar::Integer(value));
                *slot = self.names.len() as u32;
            }
            return *slot - 1;
        }
        if let Some(code) = self.far.get(&value) {
            return *code;
        }
        let code = self.name(Scalar::Integer(value));
        self.far.insert(value, code);
        code
    }
}

impl KeyCodes {
    pub(super) fn open(work: &Work<'_>, segment: &Segment, operand: &Operand) -> Result<Self, Failure> {
        let source = Values::open(work, segment, operand)?;
        let size = match source.column() {
            Some(column) if column.constant().is_some() => 1,
            column => column.and_then(|column| column.entries()).map_or(segment.rows, Entries::len) as u64 + 1,
        };
        Ok(Self { source, given: Given::default(), size, codes: Vec::new() })
    }

    /// The codes of some rows.
    pub(super) fn read(&mut self, morsel: Morsel<'_>) -> Result<(), Failure> {
        self.codes.clear();
        match self.source.column().map(|column| (column.constant().is_some(), column.entries().is_some())) {
            Some((true, _)) => self.codes.resize(morsel.rows.len(), 0),
            Some((_, true)) => {
                self.source.read_codes(morsel)?;
                self.codes.extend(self.source.vector.values.iter().map(|code| *code as u32));
            }
            _ => {
                self.source.read(morsel)?;
                let mut last: Option<(Option<i64>, u32)> = None;
                for row in 0..morsel.rows.len() {
                    let value = self.source.vector.at(row);
                    let code = match last {
                        Some((known, code)) if known == value => code,
                        _ => self.given.code(value),
                    };
                    last = Some((value, code));
                    self.codes.push(code);
                }
            }
        }
        Ok(())
    }

    /// What a code stands for.
    pub(super) fn name(&self, code: u64) -> Scalar {
        let column = self.source.column();
        if let Some(constant) = column.and_then(|column| column.constant()) {
            return constant.clone();
        }
        match column.and_then(|column| column.entries()) {
            Some(entries) => match entries.at(code as i64) {
                Cell::Null => Scalar::Null,
                Cell::Integer(value) => Scalar::Integer(value),
                Cell::Text(text) => Scalar::Text(text.to_vec()),
            },
            None => self.given.names.get(code as usize).cloned().unwrap_or(Scalar::Null),
        }
    }
}
