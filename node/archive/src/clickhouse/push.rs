//! Owns one pass over a store: rows that were not pushed yet go into the server, table by table, in
//! inserts of some thousand rows. The store itself is the queue: when the server is slow or gone,
//! pushing falls behind, and only rows that retention drops meanwhile are lost, which is counted.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use store::exchange::{Hours, HoursError, RowsOf};

use super::client::{Client, ClientError};
use super::cursor::{Cursor, TableCursor};
use super::schema::UPDATED;

/// Rows of an insert: fewer than a row group, so that the server takes them as one block.
const ROWS: i64 = 50_000;
/// Rows of tables whose rows change are pushed when they have not changed for this long.
const SETTLED_NS: i64 = 5_000_000_000;
/// The share of one CPU that pushing may take.
const CPU_SHARE: f64 = 0.25;
/// Longest pause at a time.
const REST: Duration = Duration::from_secs(2);

/// Why a pass did not finish.
#[derive(Debug, thiserror::Error)]
pub enum PushError {
    /// The store cannot be read.
    #[error(transparent)]
    Hours(#[from] HoursError),
    /// The server did not take the rows.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The record of pushed rows cannot be written.
    #[error("noting what was pushed: {0}")]
    Cursor(#[from] io::Error),
    /// It was asked to stop.
    #[error("stopped")]
    Stopped,
}

impl PushError {
    /// Whether it was just asked to stop.
    #[must_use]
    pub fn is_stop(&self) -> bool {
        matches!(self, Self::Stopped | Self::Hours(HoursError::Stopped))
    }
}

/// The result of a pass.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pushed {
    /// Inserts.
    pub inserts: u64,
    /// Rows in them.
    pub rows: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Rows that retention dropped before they could be pushed, by table.
    pub lost: Vec<(String, u64)>,
}

/// Pushes what is new in a store.
///
/// # Errors
/// [`PushError`]; rows pushed until then are recorded, and the next pass continues from there.
pub fn push(
    client: &Client,
    db: &Path,
    node: &str,
    now_ns: i64,
    full_speed: bool,
    stop: &dyn Fn() -> bool,
) -> Result<Pushed, PushError> {
    let mut hours = Hours::open(db)?;
    let tables: Vec<String> = hours.tables().map(str::to_owned).collect();
    let mut cursor = Cursor::open(db, hours.birth_ns(), &client.place())?;
    let mut pushed = Pushed::default();
    let mut began = Instant::now();
    for table in &tables {
        loop {
            if stop() {
                return Err(PushError::Stopped);
            }
            let at = cursor.table(table);
            let (after, until) = match at.pending {
                Some(pending) => pending,
                None => match next(&hours, table, at.until, now_ns, &mut pushed)? {
                    Some(range) => range,
                    None => break,
                },
            };
            let of = rows_of(&hours, table, node, (after, until));
            let (written, parquet) = hours.write(of, Vec::new, || !stop())?;
            if let Some(parquet) = parquet {
                cursor.note(table, TableCursor { until: at.until, pending: Some((after, until)) })?;
                pushed.bytes += parquet.len() as u64;
                // With a time, since row ids of a table that was emptied start over.
                let first_ns = written.span_ns.map_or(0, |(first_ns, _)| first_ns);
                let token = format!("{node}/{:016x}/{table}/{after}-{until}/{first_ns}", hours.birth_ns());
                client.insert(table, &token, parquet)?;
                pushed.inserts += 1;
                pushed.rows += written.rows;
            }
            cursor.note(table, TableCursor { until: Some(until), pending: None })?;
            if !full_speed {
                std::thread::sleep(began.elapsed().mul_f64(1.0 / CPU_SHARE - 1.0).min(REST));
            }
            began = Instant::now();
            // A snapshot keeps the write-ahead log from being truncated: so it is held no longer
            // than an insert takes.
            hours = Hours::open(db)?;
        }
    }
    Ok(pushed)
}

/// The rows of the next insert: after the first number, up to the second. None where there are
/// none.
fn next(
    hours: &Hours,
    table: &str,
    until: Option<i64>,
    now_ns: i64,
    pushed: &mut Pushed,
) -> Result<Option<(i64, i64)>, PushError> {
    if table == UPDATED {
        let (after, settled_ns) = (until.unwrap_or(i64::MIN), now_ns.saturating_sub(SETTLED_NS));
        let newest = hours.newest_ns(table)?.map(|newest_ns| newest_ns.min(settled_ns));
        return Ok(newest.filter(|newest_ns| *newest_ns > after).map(|newest_ns| (after, newest_ns)));
    }
    let found = match hours.rowids_after(table, until.unwrap_or(i64::MIN))? {
        // Row ids of a table that retention has emptied start over.
        None if hours.rowids_after(table, i64::MIN)?.is_some_and(|(_, last)| until > Some(last)) => {
            hours.rowids_after(table, i64::MIN)?
        }
        found => found,
    };
    let Some((first, last)) = found else { return Ok(None) };
    let is_cut = hours.dropped_until_ns(table).is_some();
    let between = |until: i64| first.saturating_sub(until).saturating_sub(1);
    if let Some(lost) = until.map(between).filter(|lost| *lost > 0 && is_cut) {
        pushed.lost.push((table.to_owned(), lost.cast_unsigned()));
    }
    Ok(Some((first.saturating_sub(1), last.min(first.saturating_add(ROWS - 1)))))
}

fn rows_of<'t>(hours: &Hours, table: &'t str, node: &str, (after, until): (i64, i64)) -> RowsOf<'t> {
    let (range, rowids): (Range<i64>, Option<Range<i64>>) = match table == UPDATED {
        true => (after.saturating_add(1)..until.saturating_add(1), None),
        false => (i64::MIN..i64::MAX, Some(after.saturating_add(1)..until.saturating_add(1))),
    };
    let constants =
        vec![("node".to_owned(), node.to_owned()), ("store".to_owned(), format!("{:016x}", hours.birth_ns()))];
    RowsOf { table, range, rowids, constants, metadata: Vec::new() }
}
