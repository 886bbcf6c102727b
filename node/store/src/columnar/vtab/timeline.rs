//! Owns a scan in order of time. The segments of a table are put in order of the first time that
//! each has by its header, and so are the blocks of those that a scan comes to; as many blocks are
//! read as rows are asked for: whoever wants the next row after a time, or the first ones, reads one
//! or two, however large the table is.
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

/// The first and the last place of times from the least to the greatest.
fn places(least: Option<i64>, greatest: Option<i64>, desc: bool) -> (Rank, Rank) {
    let (first, last) = if desc { (greatest, least) } else { (least, greatest) };
    (rank(first, desc), rank(last, desc))
}

/// Some segments and their blocks.
pub(super) struct Timeline {
    segments: Vec<Segment>,
    /// In the order of their first rows.
    spans: Vec<Span>,
    /// Of each span, the last place that it or one before it reaches.
    reach: Vec<Rank>,
    /// Of each segment, once a scan came to it.
    blocks: Vec<Option<Blocks>>,
    /// Rows of the blocks, and of the segments to which no scan came.
    rows: usize,
    /// Rows that were looked at so far.
    looked: usize,
    /// The place of the column with the time.
    time: usize,
    desc: bool,
    within: (Rank, Rank),
    reservation: Reservation,
}

/// A segment's rows lie between two places.
#[derive(Clone, Copy)]
struct Span {
    first: Rank,
    last: Rank,
    segment: usize,
}

/// The blocks of a segment that may have rows within.
#[derive(Default)]
struct Blocks {
    /// In the order of their first rows.
    list: Vec<Block>,
    /// As that of the spans.
    reach: Vec<Rank>,
}

struct Block {
    first: Rank,
    last: Rank,
    /// Its number in the segment.
    at: usize,
}

/// Of places in the order of the first of each, the last place up to each of them.
fn reach_of(lasts: impl Iterator<Item = Rank>) -> Vec<Rank> {
    let furthest = |reach: &mut Rank, last: Rank| {
        *reach = (*reach).max(last);
        Some(*reach)
    };
    lasts.scan(Rank::MIN, furthest).collect()
}

impl Timeline {
    /// Of `segments`, what may have rows from the first to the second time.
    pub(super) fn of(
        conn: &Connection,
        segments: Vec<Segment>,
        columns: &[String],
        (time, desc): (usize, bool),
        within: (i64, i64),
    ) -> Result<Self> {
        let name = columns.get(time).map_or("", String::as_str);
        let mut timeline = Self {
            spans: Vec::with_capacity(segments.len()),
            reach: Vec::new(),
            blocks: segments.iter().map(|_| None).collect(),
            rows: segments.iter().map(|segment| segment.rows).sum(),
            looked: 0,
            time,
            desc,
            within: bounds(within, desc),
            reservation: Reservation::default(),
            segments,
        };
        for segment in 0..timeline.segments.len() {
            let header = timeline.segments[segment].header(name).filter(|header| !header.has_null());
            let (first, last) = match header.and_then(|header| header.range) {
                Some((least, greatest)) => places(Some(least), Some(greatest), desc),
                None => {
                    let blocks = timeline.blocks_of(segment, conn, columns)?;
                    let Some(first) = blocks.list.first().map(|block| block.first) else { continue };
                    (first, blocks.reach.last().copied().unwrap_or(first))
                }
            };
            if last >= timeline.within.0 && first <= timeline.within.1 {
                timeline.spans.push(Span { first, last, segment });
            } else {
                timeline.rows -= timeline.segments[segment].rows;
            }
        }
        timeline.spans.sort_unstable_by_key(|span| (span.first, span.segment));
        timeline.reach = reach_of(timeline.spans.iter().map(|span| span.last));
        timeline.reserve(timeline.spans.len() * (size_of::<Span>() + size_of::<Rank>()))?;
        Ok(timeline)
    }

    /// Counts so many bytes more as the question's memory.
    fn reserve(&mut self, more: usize) -> Result<()> {
        if self.reservation.try_grow(more) { Ok(()) } else { Err(no_memory()) }
    }

    /// The blocks of a segment.
    fn blocks_of(&mut self, segment: usize, conn: &Connection, columns: &[String]) -> Result<&Blocks> {
        if self.blocks[segment].is_none() {
            let (read, name) = (&self.segments[segment], columns.get(self.time).map_or("", String::as_str));
            let (column, mut buffer) = (read.column(conn, name)?, Vec::with_capacity(BLOCK));
            let (mut list, mut rows) = (Vec::new(), 0);
            for at in 0..read.rows.div_ceil(BLOCK) {
                let ends = ends(&column, at, read.rows, self.desc, &mut buffer);
                let (first, last) = ends.ok_or_else(|| read.damaged(name.to_owned()))?;
                if last >= self.within.0 && first <= self.within.1 {
                    list.push(Block { first, last, at });
                    rows += BLOCK.min(read.rows - at * BLOCK);
                }
            }
            self.rows = (self.rows + rows).saturating_sub(read.rows);
            list.sort_unstable_by_key(|block| (block.first, block.at));
            let reach = reach_of(list.iter().map(|block| block.last));
            self.reserve(list.capacity() * (size_of::<Block>() + size_of::<Rank>()))?;
            self.blocks[segment] = Some(Blocks { list, reach });
        }
        Ok(self.blocks[segment].get_or_insert_default())
    }

    /// Whether it has become dearer than keeping the rows.
    pub(super) fn is_dear(&self) -> bool {
        self.looked > self.rows.saturating_mul(MOST_LOOKS).max(BLOCK * MOST_LOOKS)
    }

    /// Begins: rows from the first to the second time that `wanted` admits.
    pub(super) fn begin(&self, wanted: Vec<(usize, Admits)>, within: (i64, i64)) -> Walk {
        let (from, to) = bounds(within, self.desc);
        let next = self.reach.partition_point(|reach| *reach < from);
        let (blocks, open, ahead, chunks) = (BinaryHeap::new(), Vec::new(), BinaryHeap::new(), Vec::new());
        Walk { wanted, from, to, next, blocks, open, ahead, reservation: Reservation::default(), chunks, here: (0, 0) }
    }
}

fn bounds((least, greatest): (i64, i64), desc: bool) -> (Rank, Rank) {
    // Without a bound NULL is within.
    let least = Some(least).filter(|least| *least > i64::MIN);
    places(least, Some(greatest), desc)
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
    Some(places(least, greatest, desc))
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
    /// The span that it comes to next.
    next: usize,
    /// Of each segment that it came to, the block that is read next: its first place, the segment, and
    /// where it stands in the segment's order.
    blocks: BinaryHeap<Reverse<(Rank, usize, usize)>>,
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
            let span = timeline.spans.get(self.next).filter(|span| span.first <= self.to).copied();
            let block = self.blocks.peek().map(|Reverse((first, ..))| *first);
            let following = span.map(|span| span.first).into_iter().chain(block).min();
            if let Some(Reverse((place, ..))) = self.ahead.peek()
                && following.is_none_or(|following| *place < following)
                && let Some(Reverse((.., chunk, row))) = self.ahead.pop()
            {
                self.here = (chunk, row);
                if let Some((_, left)) = self.chunks.get_mut(chunk).and_then(Option::as_mut) {
                    *left -= 1;
                }
                return Ok(true);
            }
            if let Some(span) = span.filter(|span| block.is_none_or(|first| span.first <= first)) {
                self.next += 1;
                if span.last >= self.from {
                    let blocks = timeline.blocks_of(span.segment, conn, columns)?;
                    let next = blocks.reach.partition_point(|reach| *reach < self.from);
                    self.comes_to(span.segment, blocks, next);
                }
                continue;
            }
            let Some(Reverse((_, segment, place))) = self.blocks.pop() else { return Ok(false) };
            let blocks = timeline.blocks_of(segment, conn, columns)?;
            self.comes_to(segment, blocks, place + 1);
            let block = &blocks.list[place];
            if block.last >= self.from {
                let at = block.at;
                let looked = self.read(timeline, (segment, at), conn, columns, used)?;
                timeline.looked += looked;
            }
        }
    }

    /// A segment's block is the one of it that is read next, where there is one in time.
    fn comes_to(&mut self, segment: usize, blocks: &Blocks, place: usize) {
        let block = blocks.list.get(place).filter(|block| block.first <= self.to);
        self.blocks.extend(block.map(|block| Reverse((block.first, segment, place))));
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
