//! Owns a scan in order of time. The blocks of a table's segments are put in order of the first
//! time that each may have, and as many of them are read as rows are asked for: whoever wants the
//! next row after a time, or the first ones, reads one or two.
//!
//! SQLite is told beforehand that rows come in this order (`choice`), so they do at every
//! beginning. Does not own what is kept for look-ups (`lookup`), which has this order, too.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use query_planner::memory::Reservation;
use rusqlite::{Connection, Result};

use super::super::bits::BLOCK;
use super::super::encode::{Cell, Encoded};
use super::super::pick::Admits;
use super::super::segment::Segment;
use super::chunk::{Chunk, Open, no_memory, open_segment};

/// What giving out a row costs, in rows that are only looked at.
const ROW_COST: usize = 8;
/// Once so many times as many rows have been looked at as there are, keeping them would have cost
/// less.
const MOST_LOOKS: usize = 8;

/// A place in the order: times ascending or descending, NULL where SQLite has it.
type Rank = i128;

fn rank(time: Option<i64>, desc: bool) -> Rank {
    let ascending = time.map_or(Rank::from(i64::MIN) - 1, Rank::from);
    if desc { -ascending } else { ascending }
}

/// The blocks of some segments.
pub(super) struct Timeline {
    segments: Vec<Segment>,
    /// In the order of their first rows.
    blocks: Vec<Block>,
    /// Of each block, the last place that it or one before it reaches.
    reach: Vec<Rank>,
    rows: usize,
    /// Rows that were looked at so far.
    looked: usize,
    /// The place of the column with the time.
    time: usize,
    desc: bool,
    _reservation: Reservation,
}

struct Block {
    first: Rank,
    last: Rank,
    segment: usize,
    /// Its number in the segment.
    at: usize,
}

impl Timeline {
    /// Of `segments`, the blocks that may have rows from the first to the second time.
    pub(super) fn of(
        conn: &Connection,
        segments: Vec<Segment>,
        columns: &[String],
        (time, desc): (usize, bool),
        within: (i64, i64),
    ) -> Result<Self> {
        let (mut blocks, mut rows) = (Vec::new(), 0);
        let mut buffer = Vec::with_capacity(BLOCK);
        let name = columns.get(time).map_or("", String::as_str);
        let (from, to) = bounds(within, desc);
        for (segment, read) in segments.iter().enumerate() {
            let column = read.column(conn, name)?;
            for at in 0..read.rows.div_ceil(BLOCK) {
                let (first, last) =
                    ends(&column, at, read.rows, desc, &mut buffer).ok_or_else(|| read.damaged(name.to_owned()))?;
                if last >= from && first <= to {
                    blocks.push(Block { first, last, segment, at });
                    rows += BLOCK.min(read.rows - at * BLOCK);
                }
            }
        }
        blocks.sort_unstable_by_key(|block| (block.first, block.segment, block.at));
        let furthest = |reach: &mut Rank, block: &Block| {
            *reach = (*reach).max(block.last);
            Some(*reach)
        };
        let reach: Vec<Rank> = blocks.iter().scan(Rank::MIN, furthest).collect();
        let mut reservation = Reservation::default();
        if !reservation.try_resize(blocks.capacity() * (size_of::<Block>() + size_of::<Rank>())) {
            return Err(no_memory());
        }
        Ok(Self { segments, blocks, reach, rows, looked: 0, time, desc, _reservation: reservation })
    }

    /// Whether it has become dearer than keeping the rows.
    pub(super) fn is_dear(&self) -> bool {
        self.looked > self.rows.saturating_mul(MOST_LOOKS).max(BLOCK * MOST_LOOKS)
    }

    /// Begins: rows from the first to the second time that `wanted` admits.
    pub(super) fn begin(&self, wanted: Vec<(usize, Admits)>, within: (i64, i64)) -> Walk {
        let (from, to) = bounds(within, self.desc);
        let next = self.reach.partition_point(|reach| *reach < from);
        let (open, ahead, chunks) = (Vec::new(), BinaryHeap::new(), Vec::new());
        Walk { wanted, from, to, next, open, ahead, reservation: Reservation::default(), chunks, here: (0, 0) }
    }
}

fn bounds((least, greatest): (i64, i64), desc: bool) -> (Rank, Rank) {
    // Without a bound NULL is within.
    let least = Some(least).filter(|least| *least > i64::MIN);
    if desc { (rank(Some(greatest), desc), rank(least, desc)) } else { (rank(least, desc), rank(Some(greatest), desc)) }
}

/// The first and the last place of a block's rows. None when its bytes are damaged.
fn ends(column: &Encoded, block: usize, rows: usize, desc: bool, buffer: &mut Vec<i64>) -> Option<(Rank, Rank)> {
    let start = block * BLOCK;
    let (least, greatest) = if column.constant().is_some() {
        (time_of(column.cell(start, 0)), time_of(column.cell(start, 0)))
    } else if let (None, None, Some((least, greatest))) =
        (column.entries(), column.valid(), column.exact_block_range(block))
    {
        (Some(least), Some(greatest))
    } else {
        buffer.resize(BLOCK.min(rows - start), 0);
        column.read(start, buffer)?;
        let times = || buffer.iter().enumerate().map(|(at, value)| time_of(column.cell(start + at, *value)));
        (times().min()?, times().max()?)
    };
    let (first, last) = if desc { (greatest, least) } else { (least, greatest) };
    Some((rank(first, desc), rank(last, desc)))
}

fn time_of(cell: Cell<'_>) -> Option<i64> {
    match cell {
        Cell::Integer(time) => Some(time),
        Cell::Null | Cell::Text(_) => None,
    }
}

/// A row that was read: its place in the order, row id, chunk and row.
type Ahead = (Rank, i64, usize, usize);

/// Where a scan stands.
pub(super) struct Walk {
    wanted: Vec<(usize, Admits)>,
    from: Rank,
    to: Rank,
    /// The block that is read next.
    next: usize,
    /// Segments that were opened; none where no row of one is wanted.
    open: Vec<(usize, Option<Open>)>,
    /// Rows that were read and not given out.
    ahead: BinaryHeap<Reverse<Ahead>>,
    reservation: Reservation,
    /// With how many rows are left of each; those without are let go.
    chunks: Vec<Option<(Chunk, usize)>>,
    here: (usize, usize),
}

impl Walk {
    /// The row where it stands, after [`Walk::next`] said that there is one.
    pub(super) fn here(&self) -> Option<(&Chunk, usize)> {
        let (chunk, row) = self.here;
        Some((&self.chunks.get(chunk)?.as_ref()?.0, row))
    }

    /// Goes to the next row; whether there is one.
    pub(super) fn next(
        &mut self,
        timeline: &mut Timeline,
        conn: &Connection,
        columns: &[String],
        used: &[bool],
    ) -> Result<bool> {
        if let Some(chunk) = self.chunks.get_mut(self.here.0)
            && chunk.as_ref().is_some_and(|(_, left)| *left == 0)
        {
            *chunk = None;
        }
        loop {
            let block = timeline.blocks.get(self.next).filter(|block| block.first <= self.to);
            if let Some(Reverse((place, ..))) = self.ahead.peek()
                && block.is_none_or(|block| *place < block.first)
                && let Some(Reverse((.., chunk, row))) = self.ahead.pop()
            {
                self.here = (chunk, row);
                if let Some((_, left)) = self.chunks.get_mut(chunk).and_then(Option::as_mut) {
                    *left -= 1;
                }
                return Ok(true);
            }
            let Some(block) = block else { return Ok(false) };
            self.next += 1;
            if block.last >= self.from {
                let looked = self.read(timeline, (block.segment, block.at), conn, columns, used)?;
                timeline.looked += looked;
            }
        }
    }

    /// Reads a block; how many rows that was as much as.
    fn read(
        &mut self,
        timeline: &Timeline,
        (segment, at): (usize, usize),
        conn: &Connection,
        columns: &[String],
        used: &[bool],
    ) -> Result<usize> {
        let place = match self.open.iter().position(|(other, _)| *other == segment) {
            Some(place) => place,
            None => {
                let Some(found) = timeline.segments.get(segment) else { return Ok(0) };
                self.open.push((segment, open_segment(conn, found.clone(), &self.wanted, columns)?));
                self.open.len() - 1
            }
        };
        let Some((_, Some(open))) = self.open.get_mut(place) else { return Ok(0) };
        let Some(chunk) = open.block(conn, columns, used, at * BLOCK)? else { return Ok(BLOCK) };
        let (rows, number) = (chunk.rows(), self.chunks.len());
        for row in 0..rows {
            let place = rank(time_of(chunk.cell(row, timeline.time)), timeline.desc);
            self.ahead.push(Reverse((place, chunk.rowid(row), number, row)));
        }
        if !self.reservation.try_resize(self.ahead.capacity() * size_of::<Ahead>()) {
            return Err(no_memory());
        }
        self.chunks.push(Some((chunk, rows)));
        Ok(BLOCK + rows * ROW_COST)
    }
}
