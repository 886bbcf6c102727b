//! Owns looking rows up that are asked for again and again, as the inner side of a join: SQLite
//! makes indexes of its own tables where it wants them, and none of this one.
//!
//! From a scan's second beginning on, the rows that its constant conditions admit are kept, and an
//! index of them by the conditions that change from beginning to beginning: by a hash of what is
//! compared for equality, then by the one column that lies between bounds. Whatever is given out,
//! SQLite compares again; so what is found may be too much, never too little. What is too much to
//! be kept is read anew each time.

use query_planner::memory::Reservation;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, Result};

use super::super::Kind;
use super::super::encode::Cell;
use super::super::pick::{Admits, TextTest, united};
use super::super::segment::checksum;
use super::choice::{KEPT_BYTES, Operator, Term};
use super::chunk::{Chunk, MOST_ROWS, Reader, no_memory};

/// Chunks that a place can name.
const MOST_CHUNKS: usize = u32::MAX as usize / MOST_ROWS;

/// What a condition asks for at one beginning of a scan. All of it none: only SQLite can tell.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Test {
    /// What it admits of its column.
    admits: Option<Admits>,
    /// A hash that all values have that it finds equal.
    key: Option<u64>,
    /// Between which integers the values lie.
    range: Option<(i64, i64)>,
}

/// Where nothing lies.
const NOTHING: (i64, i64) = (i64::MAX, i64::MIN);

impl Test {
    /// A comparison of a column of such a kind (none for the row id) with a value that is not NULL.
    pub(super) fn compare(operator: Operator, kind: Option<Kind>, value: ValueRef<'_>) -> Self {
        match (kind, value) {
            (Some(Kind::Text), ValueRef::Text(text)) => {
                let list = vec![text.to_vec()];
                let admits = Admits::Text { test: TextTest::Among { not: false, list }, null: false };
                // A number in a text may equal one that is written otherwise.
                Self { admits: Some(admits).filter(|_| number(text).is_none()), key: Some(text_key(text)), range: None }
            }
            (Some(Kind::Text), ValueRef::Integer(value)) => {
                Self { key: Some(number_key(value as f64)), ..Self::default() }
            }
            (Some(Kind::Integer) | None, ValueRef::Integer(value)) => Self::of_integer(operator, value),
            (Some(Kind::Integer) | None, ValueRef::Real(value)) if operator == Operator::Equal => {
                // -2^63 and 2^63 are doubles; what is no integer equals none.
                let edge = -(i64::MIN as f64);
                let is_integer = value.fract() == 0.0 && value >= -edge && value < edge;
                if is_integer { Self::of_integer(operator, value as i64) } else { Self::of_range(NOTHING) }
            }
            _ => Self::default(),
        }
    }

    fn of_integer(operator: Operator, value: i64) -> Self {
        let range = match operator {
            Operator::Equal | Operator::Among => {
                return Self { key: Some(integer_key(value)), ..Self::of_range((value, value)) };
            }
            Operator::Greater => value.checked_add(1).map_or(NOTHING, |least| (least, i64::MAX)),
            Operator::AtLeast => (value, i64::MAX),
            Operator::Less => value.checked_sub(1).map_or(NOTHING, |greatest| (i64::MIN, greatest)),
            Operator::AtMost => (i64::MIN, value),
        };
        Self::of_range(range)
    }

    fn of_range(range: (i64, i64)) -> Self {
        let admits = Admits::Integers { ranges: united(vec![range]), null: false };
        Self { admits: Some(admits), key: None, range: Some(range) }
    }

    /// A column of such a kind among values; NULLs among them are left out, as nothing equals them.
    pub(super) fn among(kind: Option<Kind>, tests: &[Self]) -> Self {
        let admits = match kind {
            Some(Kind::Integer) => {
                let ranges: Option<Vec<(i64, i64)>> = tests.iter().map(|test| test.range).collect();
                ranges.map(|ranges| Admits::Integers { ranges: united(ranges), null: false })
            }
            _ => {
                let texts = tests.iter().map(|test| match &test.admits {
                    Some(Admits::Text { test: TextTest::Among { not: false, list }, .. }) => Some(list.clone()),
                    _ => None,
                });
                let list: Option<Vec<Vec<Vec<u8>>>> = texts.collect();
                list.map(|list| Admits::Text { test: TextTest::Among { not: false, list: list.concat() }, null: false })
            }
        };
        Self { admits, ..Self::default() }
    }

    /// Integers that it limits its column to, from the first to the last.
    pub(super) fn range(&self) -> Option<(i64, i64)> {
        self.range
    }

    /// Whether no row can meet it.
    pub(super) fn is_never(&self) -> bool {
        match &self.admits {
            Some(Admits::Integers { ranges, null: false }) => ranges.is_empty(),
            _ => false,
        }
    }
}

/// The number that a text is under numeric affinity, so nearly that equal numbers give equal ones.
fn number(text: &[u8]) -> Option<f64> {
    let text = text.trim_ascii();
    let is_number = text.first().is_some_and(|byte| byte.is_ascii_digit() || b"+-.".contains(byte));
    std::str::from_utf8(text).ok().filter(|_| is_number)?.parse().ok()
}

const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

fn integer_key(value: i64) -> u64 {
    (value.cast_unsigned() ^ value.cast_unsigned() >> 32).wrapping_mul(SPREAD)
}

fn number_key(value: f64) -> u64 {
    // Both zeros are one.
    (value + 0.0).to_bits().wrapping_mul(SPREAD)
}

fn text_key(text: &[u8]) -> u64 {
    number(text).map_or_else(|| u64::from(checksum(text)).wrapping_mul(SPREAD), number_key)
}

fn together(keys: u64, key: u64) -> u64 {
    (keys.rotate_left(23) ^ key).wrapping_mul(SPREAD)
}

/// Of the conditions of a scan with the same value at every beginning so far: columns and what they
/// admit.
pub(super) fn constant(terms: &[Term], tests: &[Test], is_constant: &[bool]) -> Vec<(usize, Admits)> {
    let of = |((term, test), is_constant): ((&Term, &Test), &bool)| {
        Some((term.column?, test.admits.clone()?)).filter(|_| *is_constant)
    };
    terms.iter().zip(tests).zip(is_constant).filter_map(of).collect()
}

/// The rows that a scan's constant conditions admit.
pub(super) struct Kept {
    pub(super) chunks: Vec<Chunk>,
    is_constant: Vec<bool>,
    index: Index,
}

/// Rows by what changes.
struct Index {
    /// Conditions that compare for equality.
    equal: Vec<usize>,
    /// The column between bounds, none for the row id.
    between: Option<Option<usize>>,
    /// In order: hash of the values compared for equality, the value between bounds, place.
    rows: Vec<(u32, i64, u32)>,
    _reservation: Reservation,
}

/// What is left to give out of what is kept.
pub(super) enum Found {
    /// Rows of the index.
    Some(std::ops::Range<usize>),
    All,
}

impl Kept {
    /// Keep what `reader` gives, for scans with such conditions; none when that is too much. What
    /// is looked up comes in order of `ordered_by`, where there is one.
    pub(super) fn read(
        mut reader: Reader,
        conn: &Connection,
        columns: &[String],
        (terms, tests, is_constant): (&[Term], &[Test], &[bool]),
        ordered_by: Option<usize>,
    ) -> Result<Option<Self>> {
        let (mut chunks, mut bytes) = (Vec::new(), 0);
        while let Some(chunk) = reader.next(conn, columns)? {
            bytes += chunk.heap_bytes();
            chunks.push(chunk);
            if bytes > KEPT_BYTES || chunks.len() >= MOST_CHUNKS {
                return Ok(None);
            }
        }
        let index = Index::of(&chunks, terms, tests, is_constant, ordered_by)?;
        Ok(Some(Self { chunks, is_constant: is_constant.to_vec(), index }))
    }

    /// What can be found by the conditions that change.
    pub(super) fn look_up(&self, terms: &[Term], tests: &[Test]) -> Found {
        let index = &self.index;
        let mut hash = 0;
        for at in &index.equal {
            let Some(key) = tests.get(*at).and_then(|test| test.key) else { return Found::All };
            hash = together(hash, key);
        }
        let hash = short(hash);
        let (mut least, mut greatest) = (i64::MIN, i64::MAX);
        if let Some(column) = index.between {
            for (at, (term, test)) in terms.iter().zip(tests).enumerate() {
                let changes = self.is_constant.get(at) == Some(&false);
                if let Some(range) = test.range.filter(|_| changes && term.column == column) {
                    (least, greatest) = (least.max(range.0), greatest.min(range.1));
                }
            }
        } else if index.equal.is_empty() {
            return Found::All;
        }
        let first = index.rows.partition_point(|(other, value, _)| (*other, *value) < (hash, least));
        let rest = index.rows.get(first..).unwrap_or_default();
        let end = first + rest.partition_point(|(other, value, _)| (*other, *value) <= (hash, greatest));
        Found::Some(first..end)
    }

    /// The chunk and row of a place of the index.
    pub(super) fn place(&self, at: usize) -> Option<(usize, usize)> {
        let (.., place) = self.index.rows.get(at)?;
        Some((*place as usize / MOST_ROWS, *place as usize % MOST_ROWS))
    }
}

impl Index {
    /// Fails where it is more than the question may have: without it each look-up would read
    /// everything again.
    fn of(
        chunks: &[Chunk],
        terms: &[Term],
        tests: &[Test],
        is_constant: &[bool],
        ordered_by: Option<usize>,
    ) -> Result<Self> {
        let changing: Vec<(usize, &Term, &Test)> = (0..terms.len())
            .filter(|at| is_constant.get(*at) == Some(&false))
            .filter_map(|at| Some((at, terms.get(at)?, tests.get(at)?)))
            .collect();
        let is_equal =
            |term: &Term, test: &Test| term.operator == Operator::Equal && term.column.is_some() && test.key.is_some();
        let bounds: Vec<Option<usize>> = changing
            .iter()
            .filter(|(_, term, test)| !is_equal(term, test) && test.range.is_some())
            .map(|(_, term, _)| term.column)
            .collect();
        // The column with most bounds: rather between two than above one.
        let most = || bounds.iter().max_by_key(|column| bounds.iter().filter(|other| other == column).count()).copied();
        let between = ordered_by.map(Some).or_else(most);
        let (equal, columns): (Vec<usize>, Vec<usize>) = changing
            .iter()
            .filter(|(_, term, test)| is_equal(term, test))
            .filter_map(|(at, term, _)| Some((*at, term.column?)))
            .unzip();
        let (mut rows, mut reservation) = (Vec::new(), Reservation::default());
        if between.is_some() || !equal.is_empty() {
            let count = chunks.iter().map(Chunk::rows).sum::<usize>();
            if !reservation.try_resize(count * size_of::<(u32, i64, u32)>()) {
                return Err(no_memory());
            }
            rows.reserve_exact(count);
            for (at, chunk) in chunks.iter().enumerate() {
                rows.extend((0..chunk.rows()).filter_map(|row| {
                    let value = match between {
                        None => 0,
                        Some(None) => chunk.rowid(row),
                        Some(Some(column)) => match chunk.cell(row, column) {
                            Cell::Integer(value) => value,
                            _ => return None,
                        },
                    };
                    Some((short(hash(chunk, row, &columns)?), value, (at * MOST_ROWS + row) as u32))
                }));
            }
            rows.sort_unstable();
        }
        Ok(Self { equal, between, rows, _reservation: reservation })
    }
}

/// The hash of some cells of a row; none where one is NULL, which equals nothing.
fn hash(chunk: &Chunk, row: usize, columns: &[usize]) -> Option<u64> {
    columns.iter().try_fold(0, |hash, column| {
        Some(together(
            hash,
            match chunk.cell(row, *column) {
                Cell::Null => return None,
                Cell::Integer(value) => integer_key(value),
                Cell::Text(text) => text_key(text),
            },
        ))
    })
}

fn short(hash: u64) -> u32 {
    (hash >> 32) as u32
}
