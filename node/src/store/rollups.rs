//! Owns `call_rollups`: per second, source, func, process, rank, communicator and cgroup the count, sum, minimum and maximum
//! of durations, kept in the same transaction as the rows they sum up. Does not own the rows (`rows`). A mergeable
//! quantile sketch is to come as a new column in a later schema version.

use std::borrow::Cow;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

use rusqlite::{Connection, Statement, params};

/// Width of a bucket.
pub(crate) const BUCKET_NS: i64 = 1_000_000_000;

/// What a rollup row stands for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct RollupKey {
    bucket_ns: i64,
    source: &'static str,
    func: Cow<'static, str>,
    pid: u32,
    rank: Option<i32>,
    comm_hash: Option<i64>,
    cgroup_id: i64,
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
            source,
            func: func.into(),
            pid,
            rank,
            comm_hash,
            cgroup_id,
        }
    }
}

/// Durations summed up.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sum {
    pub(crate) count: i64,
    pub(crate) sum_ns: i64,
    pub(crate) min_ns: i64,
    pub(crate) max_ns: i64,
    /// Bytes moved, where the calls say.
    pub(crate) bytes: Option<i64>,
}

/// What one batch adds.
#[derive(Debug, Default)]
pub(crate) struct Rollups {
    sums: HashMap<RollupKey, Sum>,
}

impl Rollups {
    /// One row's duration.
    pub(crate) fn add(&mut self, key: RollupKey, duration_ns: i64) {
        self.add_sum(key, Sum { count: 1, sum_ns: duration_ns, min_ns: duration_ns, max_ns: duration_ns, bytes: None });
    }

    /// Many at once, summed up before.
    pub(crate) fn add_sum(&mut self, key: RollupKey, more: Sum) {
        match self.sums.entry(key) {
            Entry::Vacant(slot) => {
                slot.insert(more);
            }
            Entry::Occupied(mut slot) => {
                let sum = slot.get_mut();
                sum.count += more.count;
                sum.sum_ns = sum.sum_ns.saturating_add(more.sum_ns);
                sum.min_ns = sum.min_ns.min(more.min_ns);
                sum.max_ns = sum.max_ns.max(more.max_ns);
                sum.bytes = sum.bytes.zip(more.bytes).map(|(a, b)| a.saturating_add(b));
            }
        }
    }

    pub(crate) fn clear(&mut self) {
        self.sums.clear();
    }
}

/// Writes what a batch adds.
pub(crate) struct RollupWriter<'c> {
    upsert: Statement<'c>,
}

impl<'c> RollupWriter<'c> {
    pub(crate) fn prepare(conn: &'c Connection) -> rusqlite::Result<Self> {
        // No conflict target: the only unique index is the key. A sum can only leave 64 bits after 1,024 calls of the
        // longest duration in one second; it then stops at the largest integer instead of turning into a float.
        let upsert = conn.prepare(
            "INSERT INTO call_rollups (bucket_ns, source, func, pid, rank, comm_hash, cgroup_id, count, sum_ns, min_ns, \
             max_ns, bytes) VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12) \
             ON CONFLICT DO UPDATE SET count = count + excluded.count, \
             sum_ns = CASE WHEN sum_ns > 9223372036854775807 - excluded.sum_ns THEN 9223372036854775807 \
                           ELSE sum_ns + excluded.sum_ns END, \
             min_ns = min(min_ns, excluded.min_ns), max_ns = max(max_ns, excluded.max_ns), \
             bytes = CASE WHEN bytes > 9223372036854775807 - excluded.bytes THEN 9223372036854775807 \
                          ELSE bytes + excluded.bytes END",
        )?;
        Ok(Self { upsert })
    }

    /// Add `rollups` to the stored rows inside the open transaction. True when there was anything to add.
    pub(crate) fn write(&mut self, rollups: &Rollups) -> rusqlite::Result<bool> {
        for (key, sum) in &rollups.sums {
            self.upsert.execute(params![
                key.bucket_ns,
                key.source,
                key.func,
                key.pid,
                key.rank,
                key.comm_hash,
                key.cgroup_id,
                sum.count,
                sum.sum_ns,
                sum.min_ns,
                sum.max_ns,
                sum.bytes,
            ])?;
        }
        Ok(!rollups.sums.is_empty())
    }
}
