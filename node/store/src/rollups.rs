//! Owns `call_rollups`: per second, source, func, process, rank, communicator and cgroup the count,
//! sum, minimum, maximum and quantile sketch of durations, kept in the same transaction as the rows
//! they sum up. Does not own the rows (`rows`), nor the sketch's form (`query_planner::states`).
//!
//! The table is columnar. The newest seconds may still grow: they lie in segments of their own at
//! the table's end, the open ones, of which a commit replaces those from the first second on to
//! which it adds (as a rule the last one alone). What is older goes to segments that stay. A call
//! that comes in later than that (a collective that hung) makes a second row of its key.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::collections::hash_map::Entry;

use query_planner::states::{Buckets, read_stored, stored};
use rusqlite::Connection;

use super::FastMap;
use super::columnar::{self, Appender, Compactor, MOST_ROWS, RowColumns, Segment, SegmentError, cells};

/// Width of a bucket.
pub(crate) const BUCKET_NS: i64 = 1_000_000_000;
/// The table.
const TABLE: &str = "call_rollups";
/// Its column of time.
const TIME: &str = "bucket_ns";
/// Buckets that are older than the newest by more than this do not grow any more.
const OPEN_NS: i64 = 2 * BUCKET_NS;
/// Rows of the open segments together, at most.
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

    /// A hash by numbers alone: of the function's name, which is mostly one of the program's own
    /// constants, where it lies. Equal keys may have different ones.
    fn cheap_hash(&self) -> usize {
        let numbers = [
            self.bucket_ns.cast_unsigned(),
            u64::from(self.pid),
            self.comm_hash.unwrap_or_default().cast_unsigned(),
            self.func.as_ptr().addr() as u64,
        ];
        crate::cheap_hash(numbers)
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

    /// As it is stored, with the least and the greatest of the durations.
    pub(crate) fn stored(&self, range: (u64, u64)) -> Vec<u8> {
        stored(range, self.zeros, &self.buckets)
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
    fn of(duration_ns: i64) -> Self {
        let (min_ns, max_ns) = (duration_ns, duration_ns);
        let mut sum = Self { count: 0, sum_ns: 0, min_ns, max_ns, bytes: None, sketch: Some(Counts::default()) };
        sum.add(duration_ns);
        sum
    }

    fn add(&mut self, duration_ns: i64) {
        self.count += 1;
        self.sum_ns = self.sum_ns.saturating_add(duration_ns);
        self.min_ns = self.min_ns.min(duration_ns);
        self.max_ns = self.max_ns.max(duration_ns);
        if let Some(sketch) = &mut self.sketch {
            sketch.add(duration_ns.cast_unsigned(), 1);
        }
    }

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

/// Sums of keys that came lately.
const RECENT: usize = 128;

/// What one batch adds.
#[derive(Debug, Default)]
pub(crate) struct Rollups {
    sums: Sums,
    /// What was added of late, by a cheap hash of the key: a batch has few keys with many rows
    /// each, and to hash a key's texts for each row costs more than to add it. Each place has one
    /// key; the next one moves it to `sums`.
    recent: Vec<Option<(RollupKey, Sum)>>,
}

impl Rollups {
    /// One row's duration.
    pub(crate) fn add(&mut self, key: RollupKey, duration_ns: i64) {
        if self.recent.is_empty() {
            self.recent.resize_with(RECENT, || None);
        }
        let place = &mut self.recent[key.cheap_hash() % RECENT];
        match place {
            Some((known, sum)) if *known == key => sum.add(duration_ns),
            _ => {
                if let Some((key, sum)) = place.replace((key, Sum::of(duration_ns))) {
                    merge_into(&mut self.sums, key, sum);
                }
            }
        }
    }

    /// All sums.
    fn settled(&mut self) -> &Sums {
        for (key, sum) in self.recent.iter_mut().filter_map(Option::take) {
            merge_into(&mut self.sums, key, sum);
        }
        &self.sums
    }

    /// Many at once, summed up before.
    pub(crate) fn add_sum(&mut self, key: RollupKey, more: Sum) {
        merge_into(&mut self.sums, key, more);
    }

    pub(crate) fn clear(&mut self) {
        self.sums.clear();
        self.recent.clear();
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
    /// The rows of the open segments, by bucket.
    open: BTreeMap<i64, Sums>,
    /// The open segments by the first bucket in them. Row ids ascend with the buckets.
    segments: BTreeMap<i64, OpenSegment>,
    newest_ns: i64,
}

/// Where an open segment lies.
#[derive(Debug, Clone, Copy)]
struct OpenSegment {
    id: i64,
    /// The row id after its last row.
    end_rowid: i64,
}

/// What a transaction wrote; nothing has changed in memory before it is committed.
#[derive(Debug)]
pub(crate) struct RollupsWritten {
    closed: Vec<Segment>,
    /// Buckets up to this one do not grow any more.
    closed_until_ns: i64,
    /// Open segments of this bucket and later ones were replaced by `open`.
    replaced_from_ns: i64,
    open: Vec<(i64, OpenSegment)>,
    /// Sums that were known before and stay open, as they are now.
    grown: Vec<(RollupKey, Sum)>,
    newest_ns: i64,
}

impl RollupWriter {
    pub(crate) fn open(conn: &Connection) -> Result<Self, SegmentError> {
        let mut appender = Appender::open(conn, TABLE, TIME)?;
        let mut compactor = Compactor::open(conn, TABLE, TIME)?;
        let mut open: BTreeMap<i64, Sums> = BTreeMap::new();
        let mut segments = BTreeMap::new();
        let last: Option<(i64, i64, i64)> = columnar::last_segment(conn, TABLE)?;
        if let Some((id, first_rowid, count)) = last.filter(|(_, _, rows)| *rows <= MOST_OPEN as i64) {
            match read_rows(conn, first_rowid) {
                Ok(rows) => {
                    for (key, sum) in rows {
                        merge_into(open.entry(key.bucket_ns).or_default(), key, sum);
                    }
                    compactor.dropped(id);
                    appender.rewind(first_rowid);
                    let first = open.keys().next().copied().unwrap_or(i64::MIN);
                    segments.insert(first, OpenSegment { id, end_rowid: first_rowid + count });
                }
                // Damaged: questions for these rows get an error; new ones are added behind them.
                Err(error) => tracing::error!(%error, "the newest sums of the trace store cannot be continued"),
            }
        }
        let newest_ns = open.keys().next_back().copied().unwrap_or(i64::MIN);
        Ok(Self { appender, compactor, open, segments, newest_ns })
    }

    /// Add `rollups` to the stored rows inside the open transaction. None when there was nothing to
    /// add.
    pub(crate) fn write(
        &self,
        conn: &Connection,
        rollups: &mut Rollups,
        now_ns: i64,
    ) -> Result<Option<RollupsWritten>, SegmentError> {
        let all = rollups.settled();
        let mut added: BTreeMap<i64, Vec<(&RollupKey, &Sum)>> = BTreeMap::new();
        for (key, sum) in all {
            added.entry(key.bucket_ns).or_default().push((key, sum));
        }
        let Some(first_added) = added.keys().next().copied() else { return Ok(None) };
        let known = added.keys().copied().filter(|bucket| *bucket <= now_ns.saturating_add(AHEAD_NS));
        let newest_ns = known.max().unwrap_or(i64::MIN).max(self.newest_ns);
        let closed_until_ns = self.closed_until(&added, newest_ns);
        let oldest = self.open.keys().next().copied().unwrap_or(i64::MAX).min(first_added);
        let replaced_from_ns = if oldest <= closed_until_ns {
            i64::MIN
        } else {
            self.segments.range(..=first_added).next_back().map_or(first_added, |(first, _)| *first)
        };
        let mut rows: BTreeMap<i64, Vec<(&RollupKey, Cow<'_, Sum>)>> = BTreeMap::new();
        for (bucket, sums) in self.open.range(replaced_from_ns..) {
            let grown = sums.iter().map(|(key, sum)| match all.get(key) {
                None => (key, Cow::Borrowed(sum)),
                Some(more) => {
                    let mut sum = sum.clone();
                    sum.merge(more);
                    (key, Cow::Owned(sum))
                }
            });
            rows.insert(*bucket, grown.collect());
        }
        for (bucket, sums) in added {
            let open = self.open.get(&bucket);
            let new = sums.into_iter().filter(|(key, _)| open.is_none_or(|open| !open.contains_key(*key)));
            rows.entry(bucket).or_default().extend(new.map(|(key, sum)| (key, Cow::Borrowed(sum))));
        }
        for segment in self.segments.range(replaced_from_ns..).map(|(_, segment)| segment.id) {
            columnar::delete_segment(conn, segment)?;
        }
        let kept = self.segments.range(..replaced_from_ns).next_back().map(|(_, segment)| segment.end_rowid);
        let mut before = kept.map_or(0, |end| (end - self.appender.next_rowid()).max(0) as usize);
        let still_open = rows.split_off(&closed_until_ns.saturating_add(1));
        let mut closed = Vec::new();
        let mut closing: Vec<(&RollupKey, Cow<'_, Sum>)> = rows.into_values().flatten().collect();
        closing.sort_unstable_by(|a, b| a.0.cmp(b.0));
        for chunk in closing.chunks(MOST_ROWS) {
            closed.push(self.write_segment(conn, chunk, before)?);
            before += chunk.len();
        }
        let mut open = Vec::new();
        for (bucket, rows) in &still_open {
            let segment = self.write_segment(conn, rows, before)?;
            before += rows.len();
            open.push((*bucket, OpenSegment { id: segment.id(), end_rowid: segment.first_rowid + rows.len() as i64 }));
        }
        let grown = still_open.into_values().flatten().filter_map(|(key, sum)| match sum {
            Cow::Owned(sum) => Some((key.clone(), sum)),
            Cow::Borrowed(_) => None,
        });
        let grown = grown.collect();
        Ok(Some(RollupsWritten { closed, closed_until_ns, replaced_from_ns, open, grown, newest_ns }))
    }

    /// The last bucket that does not grow any more: of those that may, as many are closed as the
    /// open segments cannot hold.
    fn closed_until(&self, added: &BTreeMap<i64, Vec<(&RollupKey, &Sum)>>, newest_ns: i64) -> i64 {
        let mut closed_until_ns = newest_ns.saturating_sub(OPEN_NS + 1);
        let after = closed_until_ns.saturating_add(1);
        let mut rows: BTreeMap<i64, usize> =
            self.open.range(after..).map(|(bucket, sums)| (*bucket, sums.len())).collect();
        for (bucket, sums) in added.range(after..) {
            let open = self.open.get(bucket);
            let new = sums.iter().filter(|(key, _)| open.is_none_or(|open| !open.contains_key(*key)));
            *rows.entry(*bucket).or_default() += new.count();
        }
        let mut open_rows: usize = rows.values().sum();
        for (bucket, rows) in rows {
            if open_rows <= MOST_OPEN {
                break;
            }
            open_rows -= rows;
            closed_until_ns = bucket;
        }
        closed_until_ns
    }

    fn write_segment(
        &self,
        conn: &Connection,
        rows: &[(&RollupKey, Cow<'_, Sum>)],
        before: usize,
    ) -> Result<Segment, SegmentError> {
        let mut columns = self.appender.rows(rows.len());
        rows.iter().for_each(|(key, sum)| push(key, sum, &mut columns));
        self.appender.write(conn, &columns, before)
    }

    /// The transaction that [`RollupWriter::write`] wrote in is committed.
    pub(crate) fn committed(&mut self, written: RollupsWritten, rollups: &mut Rollups) {
        self.appender.committed(written.closed.iter().map(|segment| segment.rows).sum());
        written.closed.iter().for_each(|segment| self.compactor.added(segment));
        self.segments.retain(|first, _| *first < written.replaced_from_ns);
        self.segments.extend(written.open);
        self.newest_ns = written.newest_ns;
        self.open = self.open.split_off(&written.closed_until_ns.saturating_add(1));
        for (key, sum) in rollups.sums.drain().filter(|(key, _)| key.bucket_ns > written.closed_until_ns) {
            self.open.entry(key.bucket_ns).or_default().entry(key).or_insert(sum);
        }
        for (key, sum) in written.grown {
            self.open.entry(key.bucket_ns).or_default().insert(key, sum);
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
        let Some(first) = self.segments.iter().find(|(_, open)| open.id == segment).map(|(first, _)| *first) else {
            return;
        };
        let next = self.segments.range(first.saturating_add(1)..).next().map_or(i64::MAX, |(next, _)| *next);
        self.segments.remove(&first);
        self.open.retain(|bucket, _| !(first..next).contains(bucket));
    }
}

/// In the order of the schema.
fn push(key: &RollupKey, sum: &Sum, columns: &mut RowColumns) {
    let range = (sum.min_ns.max(0).cast_unsigned(), sum.max_ns.max(0).cast_unsigned());
    let sketch = sum.sketch.as_ref().map(|counts| counts.stored(range));
    cells!(
        columns, key: bucket_ns, source = *key.source, func = *key.func, pid, rank, comm_hash, count = sum.count,
        sum_ns = sum.sum_ns, min_ns = sum.min_ns, max_ns = sum.max_ns, cgroup_id, sketch = sketch, bytes = sum.bytes,
    );
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use record::Record;

    use super::super::testing::collective;
    use super::super::{Store, StoreConfig};
    use super::RollupKey;

    /// Ids of the segments of sums, and each sum's bucket and count, in the order of row ids.
    fn segments_and_sums(store: &Store) -> (Vec<i64>, Vec<(i64, i64)>) {
        let conn = store.reader().unwrap();
        let ids = "SELECT id FROM segments WHERE table_name = 'call_rollups' ORDER BY first_rowid";
        let mut ids = conn.prepare(ids).unwrap();
        let ids = ids.query_map([], |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap();
        let sums = "SELECT bucket_ns / 1000000000 % 60, count FROM call_rollups ORDER BY rowid";
        let mut sums = conn.prepare(sums).unwrap();
        let sums = sums.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
        (ids, sums.collect::<Result<_, _>>().unwrap())
    }

    #[test]
    fn what_is_added_row_by_row_is_what_a_map_of_all_keys_has() {
        let mut rollups = super::Rollups::default();
        let mut known: std::collections::BTreeMap<RollupKey, (i64, i64, i64, i64)> = std::collections::BTreeMap::new();
        // More keys than there are places, some of them with names that lie elsewhere; and runs of
        // one.
        let mut random = 1_u64;
        for row in 0..20_000_i64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let of = random >> 40;
            let func: std::borrow::Cow<'static, str> = if of.is_multiple_of(3) {
                "send".into()
            } else {
                ["send", "all_reduce"][of as usize % 2].to_owned().into()
            };
            let (pid, comm) = ((of / 8 % 50) as u32, (!of.is_multiple_of(5)).then_some((of / 7 % 5) as i64));
            let key = RollupKey::new(row / 4_000 * 1_000_000_000, "mpi", func, pid, None, comm, 1);
            let duration_ns = (of % 1_000) as i64;
            let sum = known.entry(key.clone()).or_insert((0, 0, i64::MAX, i64::MIN));
            *sum = (sum.0 + 1, sum.1 + duration_ns, sum.2.min(duration_ns), sum.3.max(duration_ns));
            rollups.add(key, duration_ns);
        }
        let sums = rollups.settled();
        let in_sketch = |sum: &super::Sum| {
            sum.sketch.as_ref().map(|sketch| sketch.zeros + sketch.buckets.iter().map(|(_, n)| n).sum::<u64>())
        };
        assert_eq!(sums.len(), known.len());
        for (key, sum) in sums {
            assert_eq!(Some(&(sum.count, sum.sum_ns, sum.min_ns, sum.max_ns)), known.get(key), "{key:?}");
            assert_eq!(in_sketch(sum), Some(sum.count.cast_unsigned()));
        }
        rollups.clear();
        assert!(rollups.settled().is_empty());
    }

    #[test]
    fn a_commit_replaces_the_sums_of_the_first_second_that_grew_and_later_ones() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.db");
        let open = || Store::open(&path, StoreConfig { max_age: Duration::MAX, ..StoreConfig::default() }).unwrap();
        // One call a millisecond.
        let commit = |store: &Store, calls: &[u64]| {
            calls.iter().for_each(|call| store.ingest().record(Record::Collective(collective(*call))));
            assert!(store.flush(Duration::from_secs(30)).is_ok());
            segments_and_sums(store)
        };
        let store = open();
        commit(&store, &[0]);
        let (first, sums) = commit(&store, &[1000]);
        assert_eq!((first.len(), sums), (2, vec![(0, 1), (1, 1)]));
        let (second, sums) = commit(&store, &[1001]);
        assert_eq!(sums, [(0, 1), (1, 2)]);
        assert_eq!(second[0], first[0], "the second that did not grow stays as it is");
        assert_ne!(second[1], first[1]);
        // What comes late goes to its own second; what follows it is written again, too.
        let (third, sums) = commit(&store, &[1, 2000]);
        assert_eq!((third.len(), sums), (3, vec![(0, 2), (1, 2), (2, 1)]));
        assert!(third.iter().all(|id| !second.contains(id)));
        // A second is closed: its sum stays, the others go on.
        let (fourth, sums) = commit(&store, &[2001, 3000]);
        assert_eq!((fourth.len(), sums), (4, vec![(0, 2), (1, 2), (2, 2), (3, 1)]));
        drop(store);
        let store = open();
        let (_, sums) = commit(&store, &[3001, 4000]);
        assert_eq!(sums, [(0, 2), (1, 2), (2, 2), (3, 2), (4, 1)]);
    }
}
