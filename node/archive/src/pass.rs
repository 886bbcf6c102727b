//! Owns one pass over a store: which of its hours are due, and writing them. Oldest first, the
//! manifest after the rows, so that a pass that is interrupted is continued by the next, and an
//! hour that is written twice gives the same files with the same names.

use std::path::Path;
use std::time::{Duration, Instant};

use store::exchange::{Hours, HoursError, RowsOf};

use crate::hour::{HOUR_NS, Hour};
use crate::layout::{self, StoreName};
use crate::manifest::{Dropped, Gap, Loss, Manifest, StoreHours, TableRows, VERSION};
use crate::place::{Place, PlaceError, Upload};
use crate::units;

/// How long after its end an hour is written: calls that began in it have mostly ended by then.
const SETTLED_NS: i64 = 300_000_000_000;
/// Hours back that are checked for later rows (a call that hung has the time of its entry).
const LOOKED_AT_AGAIN: i64 = 6;
/// The share of one CPU that writing may take.
const CPU_SHARE: f64 = 0.25;
/// Longest pause at a time.
const REST: Duration = Duration::from_secs(2);
/// Bytes a second to the directory or bucket.
const RATE_BYTES: u64 = 16 << 20;

/// Why a pass did not finish.
#[derive(Debug, thiserror::Error)]
pub enum PassError {
    /// The store cannot be read.
    #[error(transparent)]
    Hours(#[from] HoursError),
    /// The directory or bucket cannot be used.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// It was asked to stop.
    #[error("stopped")]
    Stopped,
}

impl PassError {
    /// Whether it was just asked to stop.
    #[must_use]
    pub fn is_stop(&self) -> bool {
        matches!(self, Self::Stopped | Self::Hours(HoursError::Stopped))
    }
}

/// The store to archive, and how.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// A store; an agent may be writing to it.
    pub db: &'a Path,
    /// The node's name.
    pub node: &'a str,
    /// Now, Unix nanoseconds.
    pub now_ns: i64,
    /// Also the hours that ended a moment ago: retention is about to drop their rows.
    pub at_once: bool,
    /// Also hours that are not over.
    pub open_hours: bool,
    /// No pauses and no limit of the rate: nothing else runs here.
    pub full_speed: bool,
}

/// Observer of a pass.
pub trait Watch {
    /// Whether to stop; called every few thousand rows.
    fn stop(&self) -> bool;
    /// Rows of the store before `until_ns` (Unix nanoseconds) are in the archive.
    fn archived(&self, until_ns: i64);
}

/// An observer that can only stop it.
impl<F: Fn() -> bool> Watch for F {
    fn stop(&self) -> bool {
        self()
    }

    fn archived(&self, _: i64) {}
}

/// The result of a pass.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Done {
    /// The hours, oldest first.
    pub hours: Vec<Hour>,
    /// Rows of all tables.
    pub rows: u64,
    /// Bytes of all files.
    pub bytes: u64,
    /// Files, manifests too.
    pub files: u64,
    /// The first time, Unix nanoseconds, of rows whose hour has not begun yet by this host's clock:
    /// they are left out.
    pub ahead_ns: Option<i64>,
}

/// Writes the hours of a store that are due.
///
/// # Errors
/// [`PassError`]; the files written until then are complete, and the next pass continues from
/// there.
pub fn pass(place: &Place, wanted: Wanted<'_>, watch: &dyn Watch) -> Result<Done, PassError> {
    let mut hours = Hours::open(wanted.db)?;
    let name = StoreName { node: wanted.node.to_owned(), birth_ns: hours.birth_ns() };
    let mut known = known(place, &name)?;
    let mut done = Done::default();
    // The hour of now is the last there can be: what says that it got further was written while a
    // clock was ahead, or is no pass's.
    let open = Hour::of_ns(wanted.now_ns).range_ns();
    let end_ns = if wanted.open_hours {
        open.end
    } else {
        let settled_ns = if wanted.at_once { 0 } else { SETTLED_NS };
        Hour::of_ns(wanted.now_ns.saturating_sub(settled_ns)).range_ns().start
    };
    let is_believed = known.as_ref().is_some_and(|known| known.until_ns <= open.end);
    if let Some(known) = known.as_mut().filter(|_| !is_believed) {
        // Then each hour's own manifest says whether it was written.
        tracing::warn!("{} says that it was archived up to a time after now: its hours are looked at again", name);
        known.until_ns = open.end;
    }
    let mut from_ns = i64::MIN;
    if let Some(known) = known.as_ref().filter(|_| is_believed) {
        watch.archived(known.until_ns.min(end_ns).min(open.start));
        from_ns = known.until_ns.saturating_sub(LOOKED_AT_AGAIN * HOUR_NS);
    }
    while let Some(next_ns) = hours.next_ns(from_ns)?.filter(|next_ns| *next_ns < end_ns) {
        if watch.stop() {
            return Err(PassError::Stopped);
        }
        let hour = Hour::of_ns(next_ns);
        from_ns = hour.range_ns().end;
        let is_known = known.as_ref().is_some_and(|known| known.until_ns >= from_ns);
        if is_known && !has_changed(place, &hours, &name, hour)? {
            continue;
        }
        write(place, &hours, &name, hour, &wanted, watch, &mut done)?;
        let range = hour.range_ns();
        let reached = known.get_or_insert_with(|| StoreHours {
            version: VERSION,
            node: name.node.clone(),
            store: format!("{:016x}", name.birth_ns),
            first_ns: range.start,
            until_ns: range.end,
            failed: None,
        });
        reached.first_ns = reached.first_ns.min(range.start);
        // An hour that is not over is written again by the next pass.
        reached.until_ns = reached.until_ns.max(range.end);
        place.write(&layout::store(&name), serde_json::to_vec(&reached).unwrap_or_default())?;
        watch.archived(from_ns.min(open.start));
        // A snapshot keeps the write-ahead log from being truncated: so it is held no longer than
        // an hour's writing takes.
        hours = Hours::open(wanted.db)?;
    }
    if wanted.open_hours {
        done.ahead_ns = hours.next_ns(end_ns)?;
    } else {
        watch.archived(end_ns);
    }
    Ok(done)
}

fn known(place: &Place, name: &StoreName) -> Result<Option<StoreHours>, PlaceError> {
    let found = place.read_small(&layout::store(name))?;
    Ok(found.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
}

/// Whether an hour's manifest is missing, or the store got rows of the hour since and still has all
/// of its other rows.
fn has_changed(place: &Place, hours: &Hours, name: &StoreName, hour: Hour) -> Result<bool, PassError> {
    let found = place.read(&layout::manifest(hour, name))?;
    let Some(manifest) = found.and_then(|bytes| Manifest::read(&bytes).ok()) else { return Ok(true) };
    let range = hour.range_ns();
    let mut has_changed = false;
    for table in hours.tables() {
        if hours.dropped_until_ns(table).is_some_and(|until_ns| until_ns >= range.start) {
            return Ok(false);
        }
        let last_rowid = manifest.table(table).map_or(i64::MIN, |known| known.last_rowid);
        has_changed = has_changed || hours.has_later(table, &range, last_rowid)?;
    }
    Ok(has_changed)
}

fn write(
    place: &Place,
    hours: &Hours,
    name: &StoreName,
    hour: Hour,
    wanted: &Wanted<'_>,
    watch: &dyn Watch,
    done: &mut Done,
) -> Result<(), PassError> {
    let range = hour.range_ns();
    let store = format!("{:016x}", name.birth_ns);
    let mut tables = Vec::new();
    let mut pace = Pace { is_full: wanted.full_speed, since: Instant::now() };
    for table in hours.tables() {
        let of = RowsOf {
            table,
            range: range.clone(),
            rowids: None,
            constants: vec![("node".to_owned(), name.node.clone())],
            metadata: vec![
                ("rankmesh.table".to_owned(), table.to_owned()),
                ("rankmesh.node".to_owned(), name.node.clone()),
                ("rankmesh.store".to_owned(), store.clone()),
                ("rankmesh.schema_version".to_owned(), hours.schema_version().to_string()),
                ("rankmesh.units".to_owned(), units::json(hours.columns(table))),
            ],
        };
        let rate = if wanted.full_speed { u64::MAX } else { RATE_BYTES };
        let (written, file) = hours.write(
            of,
            || place.upload(&layout::rows(table, hour, name), rate),
            || {
                pace.rest();
                !watch.stop()
            },
        )?;
        let bytes = file.map(Upload::finish).transpose()?;
        done.files += u64::from(bytes.is_some());
        done.rows += written.rows;
        done.bytes += bytes.unwrap_or(0);
        let (first_ns, last_ns) = written.span_ns.unzip();
        tables.push(TableRows {
            table: table.to_owned(),
            rows: written.rows,
            bytes: bytes.unwrap_or(0),
            first_ns,
            last_ns,
            last_rowid: written.last_rowid,
        });
    }
    let not_archived: Vec<_> = hours.not_archived(&range).collect();
    let dropped = |table: &str| {
        let gap = not_archived.iter().find(|gap| gap.table == table);
        let until_ns = hours.dropped_until_ns(table).filter(|until_ns| *until_ns >= range.start);
        let until_ns = until_ns.max(gap.map(|gap| gap.until_ns))?.min(range.end);
        Some(Dropped { table: table.to_owned(), until_ns, rows: gap.map_or(0, |gap| gap.rows) })
    };
    let manifest = Manifest {
        version: VERSION,
        node: name.node.clone(),
        store,
        schema_version: hours.schema_version(),
        rankmesh: env!("CARGO_PKG_VERSION").to_owned(),
        since_ns: range.start,
        until_ns: range.end,
        written_ns: wanted.now_ns,
        tables,
        losses: hours
            .losses(&range)
            .into_iter()
            .map(|loss| Loss {
                probe: loss.probe,
                reason: loss.reason,
                since_ns: loss.since_ns,
                until_ns: loss.until_ns,
                lost: loss.lost,
            })
            .collect(),
        gaps: hours.gaps(&range).into_iter().map(|(since_ns, until_ns)| Gap { since_ns, until_ns }).collect(),
        dropped: hours.tables().filter_map(dropped).collect(),
    };
    place.write(&layout::manifest(hour, name), serde_json::to_vec(&manifest).unwrap_or_default())?;
    done.files += 1;
    done.hours.push(hour);
    Ok(())
}

/// Leaves the CPU to the job.
struct Pace {
    is_full: bool,
    since: Instant,
}

impl Pace {
    fn rest(&mut self) {
        if !self.is_full {
            let worked = self.since.elapsed();
            std::thread::sleep(worked.mul_f64(1.0 / CPU_SHARE - 1.0).min(REST));
        }
        self.since = Instant::now();
    }
}

#[cfg(test)]
mod tests;
