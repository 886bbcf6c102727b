//! CPython's line tables: from the position in a function's bytecode to the line in its file.
//!
//! There are three formats, each described in CPython's own documentation: `lnotab` up to 3.9, the
//! table of PEP 626 in 3.10, and the location table since 3.11. Everything here is pure and accepts
//! any bytes: a table that was read from another process may be torn.

use super::layout::LineTable;

/// A run of bytecode that belongs to one line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LineRange {
    /// Offset of the first byte of the run.
    pub start: u64,
    /// Offset of the first byte after the run; `u64::MAX` for the open end of an `lnotab`.
    pub end: u64,
    /// The line, where the compiler gave one.
    pub line: Option<u32>,
}

/// The line at byte `offset` of the bytecode. A negative offset stands for "not started": the first
/// line.
pub fn line_at(format: LineTable, table: &[u8], first_line: i32, offset: i64) -> Option<u32> {
    let Ok(offset) = u64::try_from(offset) else { return positive(i64::from(first_line)) };
    line_ranges(format, table, first_line).find(|range| offset < range.end)?.line
}

/// All runs of a table in order of their offsets; empty runs are included as the table has them.
pub fn line_ranges(format: LineTable, table: &[u8], first_line: i32) -> LineRanges<'_> {
    LineRanges { format, rest: table, end: 0, line: i64::from(first_line), open: format == LineTable::Lnotab }
}

/// See [`line_ranges`].
#[derive(Debug)]
pub struct LineRanges<'a> {
    format: LineTable,
    rest: &'a [u8],
    end: u64,
    line: i64,
    open: bool,
}

impl Iterator for LineRanges<'_> {
    type Item = LineRange;

    fn next(&mut self) -> Option<LineRange> {
        match self.format {
            LineTable::Lnotab => self.next_lnotab(),
            LineTable::Pep626 => self.next_pep626(),
            LineTable::Locations => self.next_location(),
        }
    }
}

impl LineRanges<'_> {
    /// Pairs (bytes to go, signed line step): the step applies from the end of its bytes on.
    fn next_lnotab(&mut self) -> Option<LineRange> {
        let (start, line) = (self.end, self.line);
        if let [bytes, step, rest @ ..] = self.rest {
            self.rest = rest;
            self.end += u64::from(*bytes);
            self.line += i64::from(i8::from_ne_bytes([*step]));
            return Some(LineRange { start, end: self.end, line: positive(line) });
        }
        std::mem::take(&mut self.open).then_some(LineRange { start, end: u64::MAX, line: positive(line) })
    }

    /// Pairs (length, signed line step): the step applies to its own bytes; -128 means that they
    /// have no line.
    fn next_pep626(&mut self) -> Option<LineRange> {
        let [bytes, step, rest @ ..] = self.rest else { return None };
        self.rest = rest;
        let start = self.end;
        self.end += u64::from(*bytes);
        let step = i8::from_ne_bytes([*step]);
        if step == i8::MIN {
            return Some(LineRange { start, end: self.end, line: None });
        }
        self.line += i64::from(step);
        Some(LineRange { start, end: self.end, line: positive(self.line) })
    }

    /// Entries that start with a byte `1cccclll`: a form `c` and a length of `l + 1` code units of
    /// two bytes.
    fn next_location(&mut self) -> Option<LineRange> {
        let (first, rest) = self.rest.split_first()?;
        let next_entry = rest.iter().position(|byte| byte & 0x80 != 0).unwrap_or(rest.len());
        let (operands, rest) = rest.split_at(next_entry);
        self.rest = rest;
        let start = self.end;
        self.end += (u64::from(first & 7) + 1) * 2;
        let form = (first >> 3) & 15;
        let step = match form {
            0..=9 => 0,
            10..=12 => i64::from(form) - 10,
            13 | 14 => signed_varint(operands),
            _ => return Some(LineRange { start, end: self.end, line: None }),
        };
        self.line = self.line.saturating_add(step);
        Some(LineRange { start, end: self.end, line: positive(self.line) })
    }
}

/// Six bits a byte, least significant first, bit 6 means that more follow; the lowest bit of the
/// value is the sign.
fn signed_varint(bytes: &[u8]) -> i64 {
    let mut value = 0_u64;
    for (index, byte) in bytes.iter().take(10).enumerate() {
        value |= u64::from(byte & 63) << (6 * index);
        if byte & 64 == 0 {
            break;
        }
    }
    let magnitude = i64::try_from(value >> 1).unwrap_or(i64::MAX);
    if value & 1 == 1 { -magnitude } else { magnitude }
}

fn positive(line: i64) -> Option<u32> {
    u32::try_from(line).ok().filter(|line| *line > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Encodes one entry of a location table, as CPython's `Objects/locations.md` describes it.
    fn push_location(table: &mut Vec<u8>, units: u8, step: Option<i32>) {
        let head = |form: u8| 0x80 | (form << 3) | (units - 1);
        match step {
            None => table.push(head(15)),
            Some(0) => table.extend([head(3), 0x21]),
            Some(step @ 1..=2) => table.extend([head(10 + step as u8), 4, 9]),
            Some(step) => {
                table.push(head(13));
                let mut value = if step < 0 { (u64::from(step.unsigned_abs()) << 1) | 1 } else { (step as u64) << 1 };
                while value >= 64 {
                    table.push(64 | (value & 63) as u8);
                    value >>= 6;
                }
                table.push(value as u8);
            }
        }
    }

    proptest! {
        #[test]
        fn a_location_table_decodes_to_what_was_encoded(
            entries in proptest::collection::vec((1_u8..=8, proptest::option::of(-5000_i32..5000)), 0..60),
        ) {
            let mut table = Vec::new();
            let (mut expected, mut line, mut offset) = (Vec::new(), 100_000_i64, 0_u64);
            for (units, step) in &entries {
                push_location(&mut table, *units, *step);
                line += i64::from(step.unwrap_or(0));
                let end = offset + u64::from(*units) * 2;
                expected.push(LineRange { start: offset, end, line: step.map(|_| line as u32) });
                offset = end;
            }
            let ranges: Vec<_> = line_ranges(LineTable::Locations, &table, 100_000).collect();
            prop_assert_eq!(&ranges, &expected);
            for range in &expected {
                let at = |offset| line_at(LineTable::Locations, &table, 100_000, offset as i64);
                prop_assert_eq!(at(range.start), range.line);
                prop_assert_eq!(at(range.end - 1), range.line);
            }
            prop_assert_eq!(line_at(LineTable::Locations, &table, 100_000, offset as i64), None);
        }

        #[test]
        fn any_bytes_give_ordered_ranges_and_an_end(
            table in proptest::collection::vec(any::<u8>(), 0..400),
            first in any::<i32>(),
            offset in any::<i64>(),
        ) {
            for format in [LineTable::Lnotab, LineTable::Pep626, LineTable::Locations] {
                let mut end = 0;
                let mut count = 0;
                for range in line_ranges(format, &table, first) {
                    prop_assert_eq!(range.start, end);
                    prop_assert!(range.end >= range.start);
                    end = range.end;
                    count += 1;
                }
                prop_assert!(count <= table.len() + 1);
                let _ = line_at(format, &table, first, offset);
            }
        }
    }

    #[test]
    fn lnotab_steps_after_its_bytes_and_backwards() {
        // 0..6 line 10, 6..50 line 12, 50.. line 9
        let table = [6, 2, 44, 253];
        let at = |offset| line_at(LineTable::Lnotab, &table, 10, offset);
        assert_eq!(
            [at(-1), at(0), at(5), at(6), at(49), at(50), at(9999)].map(Option::unwrap),
            [10, 10, 10, 12, 12, 9, 9]
        );
    }

    #[test]
    fn pep626_has_bytes_without_a_line() {
        // 0..4 line 11, 4..8 none, 8..10 line 11 again (step 0), 10..12 line 9
        let table = [4, 1, 4, 0x80, 2, 0, 2, 254];
        let at = |offset| line_at(LineTable::Pep626, &table, 10, offset);
        assert_eq!([at(-1), at(0), at(4), at(8), at(10), at(12)], [Some(10), Some(11), None, Some(11), Some(9), None]);
    }
}
