//! Owns joining small segments into larger ones, so that history is few large segments whatever the
//! size of commits. Does not own when it runs (`ingest`).
//!
//! Segments have a tier by their rows. When eight neighbours at the end of the table lie in or
//! below one of the lower tiers, or as many as fill a whole segment in any, they become one: a row
//! is written at most once a tier. Neighbours are joined in the order of their row ids, so row ids
//! stay.

use rusqlite::{Connection, Transaction, TransactionBehavior};

use super::append::table_columns;
use super::encode::Column;
use super::segment::{self, Directory, MOST_ROWS, MOST_SPAN_NS, Segment, SegmentError};

/// Rows up to which a segment belongs to a lower tier. (A commit at 20,000 records a second has
/// 4,000 and is written once more, in a whole segment.)
const LOWER_TIERS: [usize; 2] = [512, 2048];
/// Rows of the last tier; above it a segment is done.
const LAST_TIER: usize = MOST_ROWS / 2;
/// Neighbours of a lower tier that are joined. (Those of the last fill a whole segment before they
/// are very many.)
const JOINED: usize = 8;

/// A segment's place and size.
#[derive(Debug, Clone, Copy)]
struct Small {
    id: i64,
    first_rowid: i64,
    rows: usize,
    first_ns: i64,
    last_ns: i64,
}

/// Joins the segments of one table.
#[derive(Debug)]
pub(crate) struct Compactor {
    table: &'static str,
    time: &'static str,
    /// The segments at the table's end that are not done, oldest first.
    small: Vec<Small>,
}

impl Compactor {
    pub(crate) fn open(conn: &Connection, table: &'static str, time: &'static str) -> Result<Self, SegmentError> {
        let mut statement = conn.prepare(
            "SELECT id, first_rowid, row_count, first_ns, last_ns FROM segments WHERE table_name = ?1 \
             ORDER BY first_rowid DESC",
        )?;
        let mut rows = statement.query([table])?;
        let mut small = Vec::new();
        while let Some(row) = rows.next()? {
            let one = Small {
                id: row.get(0)?,
                first_rowid: row.get(1)?,
                rows: row.get::<_, i64>(2)?.max(0) as usize,
                first_ns: row.get(3)?,
                last_ns: row.get(4)?,
            };
            if is_done(one.rows) {
                break;
            }
            small.push(one);
        }
        small.reverse();
        Ok(Self { table, time, small })
    }

    /// A segment was committed.
    pub(crate) fn added(&mut self, segment: &Segment) {
        if is_done(segment.rows) {
            // What lies before it stays as it is: only neighbours at the end are joined.
            self.small.clear();
        } else {
            let (first_ns, last_ns) = segment.range(self.time).unwrap_or((0, 0));
            let (id, first_rowid, rows) = (segment.id, segment.first_rowid, segment.rows);
            self.small.push(Small { id, first_rowid, rows, first_ns, last_ns });
        }
    }

    /// Leave everything up to now as it is.
    pub(crate) fn forget(&mut self) {
        self.small.clear();
    }

    /// A segment was dropped.
    pub(crate) fn dropped(&mut self, id: i64) {
        self.small.retain(|small| small.id != id);
    }

    /// How many segments at the end are to be joined now.
    fn due(&self) -> usize {
        let mut most = 0;
        for limit in LOWER_TIERS.into_iter().chain([LAST_TIER]) {
            let (mut count, mut rows, mut next) = (0, 0, None);
            let (mut first_ns, mut last_ns) = (i64::MAX, i64::MIN);
            for small in self.small.iter().rev() {
                let follows = next.is_none_or(|next| small.first_rowid + small.rows as i64 == next);
                (first_ns, last_ns) = (first_ns.min(small.first_ns), last_ns.max(small.last_ns));
                let is_long = last_ns.saturating_sub(first_ns) > MOST_SPAN_NS;
                if small.rows > limit || rows + small.rows > MOST_ROWS || !follows || is_long {
                    break;
                }
                count += 1;
                rows += small.rows;
                next = Some(small.first_rowid);
            }
            if (count >= JOINED && limit < LAST_TIER) || (count > 1 && rows > MOST_ROWS / 4 * 3) {
                most = most.max(count);
            }
        }
        most
    }

    /// Join what is due, in a transaction of its own. True when something was.
    pub(crate) fn step(&mut self, conn: &Connection) -> Result<bool, SegmentError> {
        let due = self.due();
        if due == 0 {
            return Ok(false);
        }
        let joined: Vec<Small> = self.small[self.small.len() - due..].to_vec();
        let tx = Transaction::new_unchecked(conn, TransactionBehavior::Immediate)?;
        let first = joined.first().map_or(0, |small| small.first_rowid);
        let all = Directory::of_ids(&tx, self.table, joined.iter().map(|small| small.id))?;
        let mut columns: Vec<(String, Column)> = Vec::new();
        for (name, kind) in table_columns(&tx, self.table)? {
            let mut column = Column::with_room(kind, joined.iter().map(|small| small.rows).sum());
            for segment in &all.segments {
                column.extend(&segment.decoded(&tx, &name)?);
            }
            columns.push((name, column));
        }
        for small in &joined {
            segment::delete(&tx, small.id)?;
        }
        let merged = segment::write(&tx, self.table, self.time, first, &columns)?;
        tx.commit()?;
        self.small.truncate(self.small.len() - due);
        self.added(&merged);
        Ok(true)
    }
}

fn is_done(rows: usize) -> bool {
    rows > LAST_TIER
}
