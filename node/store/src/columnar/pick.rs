//! Owns what a condition on one column admits, what a segment's header alone says to it, and
//! picking the rows of a segment that conditions admit, some thousands at a time. Does not own
//! where conditions come from (`scan/filter` reads them from SQL, `vtab` gets them from SQLite).

use super::Kind;
use super::bits::BLOCK;
use super::encode::{Cell, Encoded};
use super::segment::{Segment, SegmentError};

/// What a condition admits.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Admits {
    /// Integers of these ranges (ascending, apart), and NULL or not.
    Integers { ranges: Vec<(i64, i64)>, null: bool },
    /// Text for which the test holds, and NULL or not.
    Text { test: TextTest, null: bool },
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum TextTest {
    Among { not: bool, list: Vec<Vec<u8>> },
    Less { than: Vec<u8>, or_equal: bool, not: bool },
    Between { not: bool, low: Vec<u8>, high: Vec<u8> },
    All,
    None,
}

impl TextTest {
    fn holds(&self, text: &[u8]) -> bool {
        match self {
            Self::Among { not, list } => list.iter().any(|other| other == text) != *not,
            Self::Less { than, or_equal, not } => {
                let than = than.as_slice();
                (if *or_equal { text <= than } else { text < than }) != *not
            }
            Self::Between { not, low, high } => (low.as_slice() <= text && text <= high.as_slice()) != *not,
            Self::All => true,
            Self::None => false,
        }
    }
}

/// Ranges in ascending order, apart, none empty.
pub(super) fn united(mut ranges: Vec<(i64, i64)>) -> Vec<(i64, i64)> {
    ranges.retain(|(least, greatest)| least <= greatest);
    ranges.sort_unstable();
    let mut out: Vec<(i64, i64)> = Vec::new();
    for range in ranges {
        match out.last_mut() {
            Some(last) if range.0 <= last.1.saturating_add(1) => last.1 = last.1.max(range.1),
            _ => out.push(range),
        }
    }
    out
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    No,
    Some,
    All,
}

/// What a segment's header alone tells.
pub(super) fn verdict(segment: &Segment, name: &str, admits: &Admits) -> Verdict {
    let Some(header) = segment.header(name) else {
        let null = match admits {
            Admits::Integers { null, .. } | Admits::Text { null, .. } => *null,
        };
        return if null { Verdict::All } else { Verdict::No };
    };
    let Admits::Integers { ranges, null } = admits else {
        // A column with one value only.
        return match header.constant().filter(|_| header.kind == Kind::Text) {
            Some(value) if holds(admits, value.cell()) => Verdict::All,
            Some(_) => Verdict::No,
            None => Verdict::Some,
        };
    };
    if header.kind != Kind::Integer {
        return Verdict::Some;
    }
    let Some((least, greatest)) = header.range else {
        return if *null { Verdict::All } else { Verdict::No };
    };
    let touches = ranges.iter().any(|range| range.0 <= greatest && range.1 >= least);
    let covers = ranges.iter().any(|range| range.0 <= least && range.1 >= greatest);
    match (covers, touches, header.has_null(), null) {
        (true, _, false, _) | (true, _, true, true) => Verdict::All,
        (_, true, ..) | (_, _, true, true) => Verdict::Some,
        _ => Verdict::No,
    }
}

/// A condition at work on a segment.
pub(super) struct Pick {
    column: Encoded,
    admits: Admits,
    /// Of a column with a dictionary: whether a code is admitted.
    codes: Option<Vec<bool>>,
    buffer: Vec<i64>,
}

/// Put conditions in order: first those whose columns' blocks rule out most rows without being
/// read.
pub(super) fn most_telling_first(picks: &mut [Pick]) {
    if picks.len() > 1 {
        picks.sort_by_cached_key(Pick::blocks_left);
    }
}

/// Put into `rows` (relative to `start`) those of the next `len` rows that all of `picks` admit.
pub(super) fn admitted(
    picks: &mut [Pick],
    segment: &Segment,
    start: usize,
    len: usize,
    rows: &mut Vec<u32>,
) -> Result<(), SegmentError> {
    rows.clear();
    match picks.first().filter(|first| first.column.constant().is_none()) {
        // Of a narrow span most blocks need not even be counted through.
        Some(first) => {
            for from in (0..len).step_by(BLOCK) {
                if first.of_block((start + from) / BLOCK) != Verdict::No {
                    rows.extend(from as u32..(from + BLOCK).min(len) as u32);
                }
            }
        }
        None => rows.extend(0..len as u32),
    }
    for pick in picks {
        if rows.is_empty() {
            return Ok(());
        }
        pick.keep(start, len, rows).ok_or_else(|| segment.damaged("a column"))?;
    }
    Ok(())
}

/// Read a column's values, or codes, of some of the next `len` rows from `start` on (a multiple of
/// 1024), each into its row's place of `out`: of blocks without a wanted row nothing is read.
/// `rows` are relative to `start` and ascending. None when the bytes are damaged.
pub(super) fn read_rows(
    column: &Encoded,
    (start, len): (usize, usize),
    rows: &[u32],
    out: &mut Vec<i64>,
) -> Option<()> {
    out.resize(len, 0);
    if rows.len() == len {
        return column.read(start, out);
    }
    let mut left = rows;
    while let Some(first) = left.first() {
        let block = *first as usize / BLOCK;
        let end = ((block + 1) * BLOCK).min(len);
        column.read(start + block * BLOCK, out.get_mut(block * BLOCK..end)?)?;
        left = &left[left.partition_point(|row| (*row as usize) < end)..];
    }
    Some(())
}

impl Pick {
    pub(super) fn new(column: Encoded, admits: Admits) -> Self {
        let codes = column.entries().map(|entries| {
            // The code after the last entry is NULL.
            (0..=entries.len()).map(|code| holds(&admits, entries.at(code as i64))).collect()
        });
        Self { column, admits, codes, buffer: Vec::new() }
    }

    /// Keep those of `rows` (relative to `start`) that are admitted. None when the bytes are
    /// damaged.
    fn keep(&mut self, start: usize, len: usize, rows: &mut Vec<u32>) -> Option<()> {
        if let Some(value) = self.column.constant() {
            if !holds(&self.admits, value.cell()) {
                rows.clear();
            }
            return Some(());
        }
        self.buffer.resize(len, 0);
        let (mut kept, mut at) = (0, 0);
        while let Some(first) = rows.get(at) {
            let from = *first as usize / BLOCK * BLOCK;
            let to = (from + BLOCK).min(len);
            let until = at + rows[at..].partition_point(|row| (*row as usize) < to);
            match self.of_block((start + from) / BLOCK) {
                Verdict::No => {}
                Verdict::All => {
                    rows.copy_within(at..until, kept);
                    kept += until - at;
                }
                Verdict::Some => {
                    self.column.read(start + from, self.buffer.get_mut(from..to)?)?;
                    kept = self.keep_some(start, (start + from) / BLOCK, rows, at..until, kept)?;
                }
            }
            at = until;
        }
        rows.truncate(kept);
        Some(())
    }

    /// Blocks that cannot be ruled out before they are read.
    fn blocks_left(&self) -> usize {
        (0..self.column.blocks()).filter(|block| self.of_block(*block) != Verdict::No).count()
    }

    /// Rows of the blocks that cannot be ruled out, at most.
    pub(super) fn rows_left(&self) -> usize {
        self.blocks_left() * BLOCK
    }

    /// What is known of a block before it is read.
    fn of_block(&self, block: usize) -> Verdict {
        let Some((least, greatest)) = self.column.block_range(block) else { return Verdict::Some };
        if let Some(codes) = &self.codes {
            let at = |code: i64| usize::try_from(code).unwrap_or(usize::MAX).min(codes.len());
            let within = codes.get(at(least)..at(greatest).saturating_add(1).min(codes.len())).unwrap_or_default();
            return match within.iter().any(|is_admitted| *is_admitted) {
                _ if greatest >= codes.len() as i64 => Verdict::Some,
                false => Verdict::No,
                true if within.iter().all(|is_admitted| *is_admitted) => Verdict::All,
                true => Verdict::Some,
            };
        }
        match &self.admits {
            Admits::Integers { ranges, null } if self.column.valid().is_none() || !*null => {
                let within = touching(ranges, (least, greatest));
                let is_some = !within.is_empty();
                let is_all = self.column.valid().is_none()
                    && within.first().is_some_and(|range| range.0 <= least && greatest <= range.1);
                match (is_all, is_some) {
                    (true, _) => Verdict::All,
                    (false, true) => Verdict::Some,
                    (false, false) => Verdict::No,
                }
            }
            _ => Verdict::Some,
        }
    }

    /// Of the rows at places `of`, whose values were read, move those that are admitted to `kept`
    /// and on; where the next one is to go.
    fn keep_some(
        &self,
        start: usize,
        block: usize,
        rows: &mut [u32],
        of: std::ops::Range<usize>,
        kept: usize,
    ) -> Option<usize> {
        let buffer = &self.buffer;
        // Without a branch: about half of the rows may go.
        fn keep(
            rows: &mut [u32],
            of: std::ops::Range<usize>,
            mut kept: usize,
            is_admitted: impl Fn(u32) -> bool,
        ) -> usize {
            for at in of {
                let row = rows[at];
                rows[kept] = row;
                kept += usize::from(is_admitted(row));
            }
            kept
        }
        if let Some(codes) = &self.codes {
            return Some(keep(rows, of, kept, |row| codes.get(buffer[row as usize] as usize) == Some(&true)));
        }
        let Admits::Integers { ranges, null } = &self.admits else { return None };
        let valid = self.column.valid();
        // Of many ranges a block mostly lies in one.
        let ranges = match self.column.block_range(block) {
            Some(between) => touching(ranges, between),
            None => ranges.as_slice(),
        };
        if let (None, [(least, greatest)]) = (valid, ranges) {
            let span = greatest.wrapping_sub(*least).cast_unsigned();
            let is_in = |row: u32| buffer[row as usize].wrapping_sub(*least).cast_unsigned() <= span;
            return Some(keep(rows, of, kept, is_in));
        }
        Some(keep(rows, of, kept, |row| {
            let at = start + row as usize;
            match valid {
                Some(valid) if valid[at / 8] >> (at % 8) & 1 == 0 => *null,
                _ => is_in(ranges, buffer[row as usize]),
            }
        }))
    }
}

/// Those of ascending ranges that have something between two numbers.
fn touching(ranges: &[(i64, i64)], (least, greatest): (i64, i64)) -> &[(i64, i64)] {
    let from = ranges.partition_point(|range| range.1 < least);
    let to = ranges.partition_point(|range| range.0 <= greatest);
    ranges.get(from..to).unwrap_or_default()
}

/// Whether one of ascending ranges has a value.
fn is_in(ranges: &[(i64, i64)], value: i64) -> bool {
    let at = ranges.partition_point(|(_, greatest)| *greatest < value);
    ranges.get(at).is_some_and(|(least, _)| *least <= value)
}

pub(super) fn holds(admits: &Admits, cell: Cell<'_>) -> bool {
    match (admits, cell) {
        (Admits::Integers { null, .. } | Admits::Text { null, .. }, Cell::Null) => *null,
        (Admits::Integers { ranges, .. }, Cell::Integer(value)) => is_in(ranges, value),
        (Admits::Text { test, .. }, Cell::Text(text)) => test.holds(text),
        _ => false,
    }
}
