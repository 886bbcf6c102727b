//! Owns `call_rollups`: per second, source, func, process, rank, communicator and cgroup the count,
//! sum, minimum, maximum and quantile sketch of durations, kept in the same transaction as the rows
//! they sum up. Does not own the rows (`rows`), nor the sketch's form (`query_planner::states`).
//!
//! The table is columnar. The newest seconds may still grow: they are in one segment at the table's
//! end, the open one, which every commit that adds to them replaces. What is older goes to segments
//! that stay. A call that comes in later than that (a collective that hung) makes a second row of
//! its key.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Place;
use std::collections::hash_map::Entry;

use query_planner::states::{Buckets, read_stored, stored};
use rusqlite::Connection;

use super::FastMap;
use super::columnar::{self, Appender, Compactor, MOST_ROWS, RowColumns, Segment, SegmentError};

/// Width of a bucket.
pub(crate) const BUCKET_NS: i64 = 1_000_000_000;
/// The table.
const TABLE: &str = "call_rollups";
/// Its column of time.
const TIME: &str = "bucket_ns";
/// Buckets that are older than the newest by more than this do not grow any more.
const OPEN_NS: i64 = 2 * BUCKET_NS;
/// Rows of the open segment at most.
const MOST_OPEN: usize = 16_384;
/// A bucket that is further ahead of the clock than this is no measure of what is new.
const AHEAD_NS: i64 = 10 * BUCKET_NS;

/// What a rollup row stands for.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct RollupKey {
    bucket_ns: i64,
    source: Cow<'static, str>,
    func: Cow<'static, str>,
    pid: u32,
    rank: Option<i32>,
    comm_hash: Option<i64>,
    cgroup_id: Option<i64>,
}

impl RollupKey {
    pub(crate) fn new(
        ts_ns: i64,
        source: &'static str,
        func: impl Into<Cow<'static, str>>,
        pid: u32,
        rank: Option<i32>,
        comm_hash: Option<i64>,
        cgroup_id: i64,
    ) -> Self {
        Self {
            bucket_ns: ts_ns.div_euclid(BUCKET_NS) * BUCKET_NS,
            source: Cow::Borrowed(source),
            func: func.into(),
            pid,
            rank,
            comm_hash,
            cgroup_id: Some(cgroup_id),
        }
    }
}

/// Durations by bucket of the quantile sketch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    zeros: u64,
    /// Ascending.
    buckets: Vec<(u16, u64)>,
}

impl Counts {
    /// `count` durations of `duration_ns`.
    pub(crate) fn add(&mut self, duration_ns: u64, count: u64) {
        if duration_ns == 0 {
            self.zeros += count;
            return;
        }
        let bucket = u16::try_from(Buckets::table().of(duration_ns)).unwrap_or(u16::MAX);
        self.put(bucket, count);
    }

    fn put(&mut self, bucket: u16, count: u64) {
        match self.buckets.binary_search_by_key(&bucket, |(bucket, _)| *bucket) {
            Ok(at) => self.buckets[at].1 = self.buckets[at].1.saturating_add(count),
            Err(at) => self.buckets.insert(at, (bucket, count)),
        }
    }

    fn merge(&mut self, more: &Counts) {
        self.zeros = self.zeros.saturating_add(more.zeros);
        more.buckets.iter().for_each(|(bucket, count)| self.put(*bucket, *count));
    }
}

/// Durations summed up.
#[derive(Debug, Clone)]
pub(crate) struct Sum {
    pub(crate) count: i64,
    pub(crate) sum_ns: i64,
    pub(crate) min_ns: i64,
    pub(crate) max_ns: i64,
    /// Bytes moved, where the calls have them.
    pub(crate) bytes: Option<i64>,
    /// None where some calls came without.
    pub(crate) sketch: Option<Counts>,
}

impl Sum {
    /// A sum that leaves 64 bits (after 1,024 calls of the longest duration in a second) stops at
    /// the largest integer.
    fn merge(&mut self, more: &Sum) {
        self.count = self.count.saturating_add(more.count);
        self.sum_ns = self.sum_ns.saturating_add(more.sum_ns);
        self.min_ns = self.min_ns.min(more.min_ns);
        self.max_ns = self.max_ns.max(more.max_ns);
        self.bytes = self.bytes.zip(more.bytes).map(|(a, b)| a.saturating_add(b));
        match (&mut self.sketch, &more.sketch) {
            (Some(mine), Some(theirs)) => mine.merge(theirs),
            _ => self.sketch = None,
        }
    }
}

type Sums = FastMap<RollupKey, Sum>;

/// What one batch adds.
#[derive(Debug, Default)]
pub(crate) struct Rollups {
    sums: Sums,
}

impl Rollups {
    /// One row's duration.
    pub(crate) fn add(&mut self, key: RollupKey, duration_ns: i64) {
        let sum = self.sums.entry(key).or_insert_with(|| Sum {
            count: 0,
            sum_ns: 0,
            min_ns: duration_ns,
            max_ns: duration_ns,
            bytes: None,
            sketch: Some(Counts::default()),
        });
        sum.count += 1;
        sum.sum_ns = sum.sum_ns.saturating_add(duration_ns);
        sum.min_ns = sum.min_ns.min(duration_ns);
        sum.max_ns = sum.max_ns.max(duration_ns);
        if let Some(sketch) = &mut sum.sketch {
            sketch.add(duration_ns.cast_unsigned(), 1);
        }
    }

    /// Many at once, summed up before.
    pub(crate) fn add_sum(&mut self, key: RollupKey, more: Sum) {
        merge_into(&mut self.sums, key, more);
    }

    pub(crate) fn clear(&mut self) {
        self.sums.clear();
    }
}

fn merge_into(sums: &mut Sums, key: RollupKey, more: Sum) {
    match sums.entry(key) {
        Entry::Vacant(slot) => {
            slot.insert(more);
        }
        Entry::Occupied(mut slot) => slot.get_mut().merge(&more),
    }
}

/// Writes what batches add.
#[derive(Debug)]
pub(crate) struct RollupWriter {
    appender: Appender,
    compactor: Compactor,
    /// The rows of the open segment, by bucket.
    open: BTreeMap<i64, Sums>,
    /// The open segment.
    segment: Option<i64>,
    newest_ns: i64,
}

/// What a transaction wrote; nothing has changed in memory before it is committed.
#[derive(Debug)]
pub(crate) struct RollupsWritten {
    closed: Vec<Segment>,
    /// Buckets up to this one do not grow any more.
    closed_until_ns: i64,
    open: Option<i64>,
    newest_ns: i64,
}

impl RollupWriter {
    pub(crate) fn open(conn: &Connection) -> Result<Self, SegmentError> {
        let mut appender = Appender::open(conn, TABLE, TIME)?;
        let mut compactor = Compactor::open(conn, TABLE, TIME)?;
        let mut open: BTreeMap<i64, Sums> = BTreeMap::new();
        let mut segment = None;
        let last: Option<(i64, i64, i64)> = columnar::last_segment(conn, TABLE)?;
        if let Some((id, first_rowid, _)) = last.filter(|(_, _, rows)| *rows <= MOST_OPEN as i64) {
            match read_rows(conn, first_rowid) {
                Ok(rows) => {
                    for (key, sum) in rows {
                        merge_into(open.entry(key.bucket_ns).or_default(), key, sum);
                    }
                    compactor.dropped(id);
                    appender.rewind(first_rowid);
                    segment = Some(id);
                }
                // Damaged: questions for these rows get an error; new ones are added behind them.
                Err(error) => tracing::error!(%error, "the newest sums of the trace store cannot be continued"),
            }
        }
        let newest_ns = open.keys().next_back().copied().unwrap_or(i64::MIN);
        Ok(Self { appender, compactor, open, segment, newest_ns })
    }

    /// Add `rollups` to the stored rows inside the open transaction. None when there was nothing to
    /// add.
    pub(crate) fn write(
        &self,
        conn: &Connection,
        rollups: &Rollups,
        now_ns: i64,
    ) -> Result<Option<RollupsWritten>, SegmentError> {
        if rollups.sums.is_empty() {
            return Ok(None);
        }
        let mut added: BTreeMap<i64, Vec<(&RollupKey, &Sum)>> = BTreeMap::new();
        for (key, sum) in &rollups.sums {
            added.entry(key.bucket_ns).or_default().push((key, sum));
        }
        let known = added.keys().copied().filter(|bucket| *bucket <= now_ns.saturating_add(AHEAD_NS));
        let newest_ns = known.max().unwrap_or(i64::MIN).max(self.newest_ns);
        let mut rows: BTreeMap<i64, Vec<(&RollupKey, Cow<'_, Sum>)>> = BTreeMap::new();
        for (bucket, sums) in &self.open {
            let mut all: FastMap<&RollupKey, Cow<'_, Sum>> =
                sums.iter().map(|(key, sum)| (key, Cow::Borrowed(sum))).collect();
            for (key, sum) in added.remove(bucket).unwrap_or_default() {
                match all.entry(key) {
                    Entry::Vacant(slot) => {
                        slot.insert(Cow::Borrowed(sum));
                    }
                    Entry::Occupied(mut slot) => slot.get_mut().to_mut().merge(sum),
                }
            }
            rows.insert(*bucket, all.into_iter().collect());
        }
        for (bucket, sums) in added {
            rows.insert(bucket, sums.into_iter().map(|(key, sum)| (key, Cow::Borrowed(sum))).collect());
        }
        // What does not grow any more, then as much of the rest as does not fit into the open
        // segment.
        let mut closed_until_ns = newest_ns.saturating_sub(OPEN_NS + 1);
        let mut open_rows: usize = rows.range(closed_until_ns.saturating_add(1)..).map(|(_, rows)| rows.len()).sum();
        for (bucket, rows) in rows.range(closed_until_ns.saturating_add(1)..) {
            if open_rows <= MOST_OPEN {
                break;
            }
            open_rows -= rows.len();
            closed_until_ns = *bucket;
        }
        if let Some(segment) = self.segment {
            columnar::delete_segment(conn, segment)?;
        }
        let still_open = rows.split_off(&closed_until_ns.saturating_add(1));
        let mut closed = Vec::new();
        let mut before = 0;
        let mut closing: Vec<(&RollupKey, Cow<'_, Sum>)> = rows.into_values().flatten().collect();
        closing.sort_unstable_by(|a, b| a.0.cmp(b.0));
        for chunk in closing.chunks(MOST_ROWS) {
            closed.push(self.write_segment(conn, chunk.iter().map(|(key, sum)| (*key, &**sum)), before)?);
            before += chunk.len();
        }
        let mut open = None;
        if !still_open.is_empty() {
            let rows = still_open.values().flatten().map(|(key, sum)| (*key, &**sum));
            open = Some(self.write_segment(conn, rows, before)?.id());
        }
        Ok(Some(RollupsWritten { closed, closed_until_ns, open, newest_ns }))
    }

    fn write_segment<'r>(
        &self,
        conn: &Connection,
        rows: impl Iterator<Item = (&'r RollupKey, &'r Sum)>,
        before: usize,
    ) -> Result<Segment, SegmentError> {
        let mut columns = self.appender.rows();
        rows.for_each(|(key, sum)| push(key, sum, &mut columns));
        self.appender.write(conn, &columns, before)
    }

    /// The transaction that [`RollupWriter::write`] wrote in is committed.
    pub(crate) fn committed(&mut self, written: RollupsWritten, rollups: &mut Rollups) {
        self.appender.committed(written.closed.iter().map(|segment| segment.rows).sum());
        written.closed.iter().for_each(|segment| self.compactor.added(segment));
        self.segment = written.open;
        self.newest_ns = written.newest_ns;
        self.open = self.open.split_off(&written.closed_until_ns.saturating_add(1));
        for (key, sum) in rollups.sums.drain().filter(|(key, _)| key.bucket_ns > written.closed_until_ns) {
            match self.open.entry(key.bucket_ns) {
                Place::Vacant(slot) => merge_into(slot.insert(Sums::default()), key, sum),
                Place::Occupied(mut slot) => merge_into(slot.get_mut(), key, sum),
            }
        }
    }

    /// Join small segments.
    pub(crate) fn compact(&mut self, conn: &Connection) -> Result<bool, SegmentError> {
        self.compactor.step(conn)
    }

    /// Leave small segments as they are.
    pub(crate) fn forget(&mut self) {
        self.compactor.forget();
    }

    /// A segment was dropped.
    pub(crate) fn dropped(&mut self, segment: i64) {
        self.compactor.dropped(segment);
        if self.segment == Some(segment) {
            self.segment = None;
            self.open.clear();
        }
    }
}

/// In the order of the schema.
fn push(key: &RollupKey, sum: &Sum, columns: &mut RowColumns) {
    let range = (sum.min_ns.max(0).cast_unsigned(), sum.max_ns.max(0).cast_unsigned());
    let sketch = sum.sketch.as_ref().map(|counts| stored(range, counts.zeros, &counts.buckets));
    columns
        .integer(key.bucket_ns)
        .text(&*key.source)
        .text(&*key.func)
        .integer(i64::from(key.pid))
        .integer(key.rank.map(i64::from))
        .integer(key.comm_hash)
        .integer(sum.count)
        .integer(sum.sum_ns)
        .integer(sum.min_ns)
        .integer(sum.max_ns)
        .integer(key.cgroup_id)
        .blob(sketch.as_deref())
        .integer(sum.bytes)
        .end();
}

/// The rows from a row id on.
fn read_rows(conn: &Connection, first_rowid: i64) -> rusqlite::Result<Vec<(RollupKey, Sum)>> {
    let mut statement = conn.prepare(
        "SELECT bucket_ns, source, func, pid, rank, comm_hash, cgroup_id, count, sum_ns, min_ns, max_ns, bytes, sketch \
         FROM call_rollups WHERE rowid >= ?1",
    )?;
    let rows = statement.query_map([first_rowid], |row| {
        let key = RollupKey {
            bucket_ns: row.get(0)?,
            source: Cow::Owned(row.get(1)?),
            func: Cow::Owned(row.get(2)?),
            pid: row.get(3)?,
            rank: row.get(4)?,
            comm_hash: row.get(5)?,
            cgroup_id: row.get(6)?,
        };
        let sketch: Option<Vec<u8>> = row.get(12)?;
        let sketch = sketch.and_then(|bytes| read_stored(&bytes)).map(|(_, zeros, buckets)| Counts { zeros, buckets });
        let sum = Sum {
            count: row.get(7)?,
            sum_ns: row.get(8)?,
            min_ns: row.get(9)?,
            max_ns: row.get(10)?,
            bytes: row.get(11)?,
            sketch,
        };
        Ok((key, sum))
    })?;
    rows.collect()
}
