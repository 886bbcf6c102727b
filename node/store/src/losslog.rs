//! Owns the record of losses: the `capture_loss` rows and their digest in memory, from which
//! questions get notes of what is missing without a query. Does not own how loss is counted
//! (`queue`, capture).

use std::collections::BTreeMap;

use rusqlite::{Connection, params};

use super::queue::Losses;
use super::sessions::Session;

/// Losses of one probe within this time of a row's start are added to that row, so that steady loss
/// stays few rows.
const ROW_SPAN_NS: i64 = 10_000_000_000;

/// Capture counts what it loses once a second; a busy host makes it late.
const COUNTED_NS: i64 = 10_000_000_000;

/// Intervals kept per probe in memory; beyond, neighbours are merged (the interval grows, the count
/// stays exact). Two days of one every ten seconds, as the slices of a budget leave them.
const MOST_INTERVALS: usize = 16_384;

/// Loss of one probe for one reason over a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LossFact {
    /// Probe, or the table whose records were lost in the queue or the store.
    pub probe: String,
    /// "ringbuf", "map_full", "queue", "store", "invalid", …
    pub reason: String,
    /// Not before this time (Unix nanoseconds).
    pub since_ns: i64,
    /// Not after this time.
    pub until_ns: i64,
    /// How many records.
    pub lost: u64,
    /// In how much of that time, nanoseconds.
    pub missed_ns: i64,
}

#[derive(Debug, Clone, Copy)]
struct Interval {
    since_ns: i64,
    until_ns: i64,
    lost: u64,
    /// Less than its length where others were merged into it.
    missed_ns: i64,
}

impl Interval {
    fn new(since_ns: i64, until_ns: i64, lost: u64) -> Self {
        Self { since_ns, until_ns, lost, missed_ns: until_ns.saturating_sub(since_ns) }
    }

    /// How much of it lies within others' bounds.
    fn missed_within(&self, since_ns: i64, until_ns: i64) -> i64 {
        let within = self.until_ns.min(until_ns).saturating_sub(self.since_ns.max(since_ns));
        within.clamp(0, self.missed_ns.max(0))
    }
}

/// The digest.
#[derive(Debug, Clone, Default)]
pub(crate) struct LossLog {
    by_probe: BTreeMap<(String, String), Vec<Interval>>,
}

impl LossLog {
    /// Read what earlier sessions lost.
    pub(crate) fn load(conn: &Connection) -> rusqlite::Result<Self> {
        let mut log = Self::default();
        let mut stmt = conn.prepare("SELECT probe, reason, since_ns, ts_ns, lost FROM capture_loss ORDER BY ts_ns")?;
        let mut rows = stmt.query([])?;
        while let Some(row) = rows.next()? {
            let lost: i64 = row.get(4)?;
            log.add(row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, u64::try_from(lost).unwrap_or(0));
        }
        Ok(log)
    }

    fn add(&mut self, probe: String, reason: String, since_ns: i64, until_ns: i64, lost: u64) {
        let intervals = self.by_probe.entry((probe, reason)).or_default();
        match intervals.last_mut() {
            Some(last) if until_ns.saturating_sub(last.since_ns) <= ROW_SPAN_NS => {
                let all = last.lost.saturating_add(lost);
                *last = Interval::new(last.since_ns.min(since_ns), last.until_ns.max(until_ns), all);
            }
            _ => intervals.push(Interval::new(since_ns, until_ns, lost)),
        }
        if intervals.len() > MOST_INTERVALS {
            *intervals = intervals
                .chunks(2)
                .map(|pair| Interval {
                    since_ns: pair.iter().map(|i| i.since_ns).min().unwrap_or(i64::MIN),
                    until_ns: pair.iter().map(|i| i.until_ns).max().unwrap_or(i64::MAX),
                    lost: pair.iter().fold(0, |sum: u64, i| sum.saturating_add(i.lost)),
                    missed_ns: pair.iter().fold(0, |sum: i64, i| sum.saturating_add(i.missed_ns)),
                })
                .collect();
        }
    }

    /// Losses that may have hit rows of `[since_ns, until_ns]`, one per probe and reason.
    pub(crate) fn between(&self, since_ns: i64, until_ns: i64) -> Vec<LossFact> {
        self.by_probe
            .iter()
            .filter_map(|((probe, reason), intervals)| {
                let hit: Vec<_> =
                    intervals.iter().filter(|i| i.until_ns >= since_ns && i.since_ns <= until_ns).collect();
                Some(LossFact {
                    probe: probe.clone(),
                    reason: reason.clone(),
                    since_ns: hit.iter().map(|i| i.since_ns).min()?,
                    until_ns: hit.iter().map(|i| i.until_ns).max()?,
                    lost: hit.iter().fold(0, |sum: u64, i| sum.saturating_add(i.lost)),
                    missed_ns: hit.iter().fold(0, |sum, i| sum.saturating_add(i.missed_within(since_ns, until_ns))),
                })
            })
            .collect()
    }

    /// Forget what retention dropped (everything up to `cutoff_ns`).
    pub(crate) fn forget(&mut self, cutoff_ns: i64) {
        for intervals in self.by_probe.values_mut() {
            intervals.retain(|i| i.until_ns > cutoff_ns);
        }
        self.by_probe.retain(|_, intervals| !intervals.is_empty());
    }
}

/// Writes loss rows inside the batch's transaction.
#[derive(Debug, Default)]
pub(crate) struct LossWriter {
    /// Per probe and reason: the row being added to (rowid, since) and when loss was last counted.
    open: BTreeMap<(String, String), OpenRow>,
}

#[derive(Debug, Clone, Copy)]
struct OpenRow {
    rowid: i64,
    since_ns: i64,
    until_ns: i64,
}

/// What a successful commit means for the digest and for the next rows.
#[derive(Debug, Default)]
pub(crate) struct LossesWritten(Vec<(LossFact, OpenRow)>);

impl LossWriter {
    /// Write `losses`, none of which had reached the queue when it was drained at `unsettled_ns`:
    /// those that the store counts itself happened since; those of capture since the count before,
    /// at most [`COUNTED_NS`] earlier.
    pub(crate) fn write(
        &self,
        conn: &Connection,
        losses: &Losses,
        session: Session,
        unsettled_ns: i64,
    ) -> rusqlite::Result<LossesWritten> {
        let mut written = Vec::with_capacity(losses.len());
        for ((probe, reason), lost) in losses {
            let ts_ns = lost.ts_ns;
            let open = self.open.get(&(probe.clone(), reason.clone()));
            let ours = matches!(reason.as_str(), "queue" | "store" | "invalid");
            let counted_ns = unsettled_ns.saturating_sub(COUNTED_NS);
            let before_ns = open.map_or(session.start_ns, |o| o.until_ns).max(counted_ns);
            let since_ns = lost.since_ns.unwrap_or(if ours { unsettled_ns } else { before_ns }).min(ts_ns);
            let count = i64::try_from(lost.count).unwrap_or(i64::MAX);
            let mut row = OpenRow { rowid: 0, since_ns, until_ns: ts_ns };
            if let Some(open) = open.filter(|o| ts_ns.saturating_sub(o.since_ns) <= ROW_SPAN_NS) {
                let changed = conn
                    .prepare_cached(
                        "UPDATE capture_loss SET ts_ns = max(ts_ns, ?2), lost = lost + ?3 WHERE rowid = ?1 \
                         AND probe = ?4 AND reason = ?5",
                    )?
                    .execute(params![open.rowid, ts_ns, count, probe, reason])?;
                if changed == 1 {
                    row = OpenRow { until_ns: ts_ns.max(open.until_ns), ..*open };
                }
            }
            if row.rowid == 0 {
                conn.prepare_cached(
                    "INSERT INTO capture_loss (since_ns, ts_ns, probe, reason, lost) VALUES (?1,?2,?3,?4,?5)",
                )?
                .execute(params![since_ns, ts_ns, probe, reason, count])?;
                row.rowid = conn.last_insert_rowid();
            }
            let (probe, reason) = (probe.clone(), reason.clone());
            let missed_ns = ts_ns.saturating_sub(since_ns);
            let fact = LossFact { probe, reason, since_ns, until_ns: ts_ns, lost: lost.count, missed_ns };
            written.push((fact, row));
        }
        Ok(LossesWritten(written))
    }

    /// The transaction that wrote `written` is committed.
    pub(crate) fn committed(&mut self, written: LossesWritten, log: &mut LossLog) {
        for (fact, row) in written.0 {
            self.open.insert((fact.probe.clone(), fact.reason.clone()), row);
            log.add(fact.probe, fact.reason, fact.since_ns, fact.until_ns, fact.lost);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::Lost;

    const S: i64 = 1_000_000_000;

    /// A process that was stopped for 20 s, eleven minutes after its start, and a disk that was full
    /// for as long.
    #[test]
    fn a_loss_is_of_the_time_since_it_was_looked_for_before() {
        let conn = Connection::open_in_memory().unwrap();
        conn.execute_batch("CREATE TABLE capture_loss (ts_ns, since_ns, probe, reason, lost)").unwrap();
        let (session, now_ns) = (Session { id: 1, start_ns: 0 }, 680 * S);
        let drained_ns = now_ns - 20 * S;
        for (reason, earliest_ns) in
            [("ringbuf", drained_ns - COUNTED_NS), ("queue", drained_ns), ("store", drained_ns)]
        {
            let losses = Losses::from([(
                ("calls".to_owned(), reason.to_owned()),
                Lost { since_ns: None, ts_ns: now_ns, count: 7 },
            )]);
            let (mut writer, mut log) = (LossWriter::default(), LossLog::default());
            let written = writer.write(&conn, &losses, session, drained_ns).unwrap();
            writer.committed(written, &mut log);
            let fact = log.between(i64::MIN, i64::MAX).pop().unwrap();
            assert_eq!((fact.since_ns, fact.until_ns, fact.lost), (earliest_ns, now_ns, 7), "{reason}");
        }
        let row: (i64, i64) = conn
            .query_row("SELECT since_ns, ts_ns FROM capture_loss WHERE reason = 'queue'", [], |r| {
                Ok((r.get(0)?, r.get(1)?))
            })
            .unwrap();
        assert_eq!(row, (drained_ns, now_ns));
    }
}
