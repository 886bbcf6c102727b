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
    let end_ns = if wanted.open_hours {
        i64::MAX
    } else {
        let settled_ns = if wanted.at_once { 0 } else { SETTLED_NS };
        Hour::of_ns(wanted.now_ns.saturating_sub(settled_ns)).range_ns().start
    };
    if let Some(known) = &known {
        watch.archived(known.until_ns.min(end_ns));
    }
    let again_ns = known.as_ref().map(|known| known.until_ns.saturating_sub(LOOKED_AT_AGAIN * HOUR_NS));
    let mut from_ns = again_ns.unwrap_or(i64::MIN);
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
        watch.archived(from_ns.min(end_ns));
        // A snapshot keeps the write-ahead log from being truncated: so it is held no longer than
        // an hour's writing takes.
        hours = Hours::open(wanted.db)?;
    }
    if !wanted.open_hours {
        watch.archived(end_ns);
    }
    Ok(done)
}

fn known(place: &Place, name: &StoreName) -> Result<Option<StoreHours>, PlaceError> {
    let found = place.read(&layout::store(name))?;
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
mod tests {
    use store::testing::{PATIENCE, T0, collective, store_of_segments};
    use store::{Store, StoreConfig};

    use super::*;
    use crate::place::Settings;

    fn wanted(db: &Path) -> Wanted<'_> {
        Wanted { db, node: "n1", now_ns: record::unix_now_ns(), at_once: false, open_hours: false, full_speed: true }
    }

    fn forever() -> StoreConfig {
        StoreConfig { max_age: Duration::from_secs(100 * 365 * 86_400), ..StoreConfig::default() }
    }

    fn never() -> bool {
        false
    }

    #[test]
    fn hours_are_written_once_and_again_where_rows_came_later() {
        let dir = tempfile::tempdir().unwrap();
        let db = dir.path().join("n1.db");
        store_of_segments(&db, 300, 16).close();
        let target = dir.path().join("archive");
        std::fs::create_dir(&target).unwrap();
        let place = Place::open(target.to_str().unwrap(), &Settings::default()).unwrap();
        let first = pass(&place, wanted(&db), &never).unwrap();
        assert!(first.rows >= 300 * 16 && first.hours.len() >= 300, "{first:?}");
        let again = pass(&place, wanted(&db), &never).unwrap();
        assert!(again.hours.iter().all(|hour| hour.range_ns().end > T0 + 300 * HOUR_NS), "{again:?}");

        // A call that hung: its row has the time of its entry.
        let last = first.hours[299];
        let store = Store::open(&db, forever()).unwrap();
        let late = record::Collective { ts_ns: last.range_ns().start + 5, ..collective(7) };
        store.ingest().record(record::Record::Collective(late));
        store.flush(PATIENCE).unwrap();
        store.close();
        let again = pass(&place, wanted(&db), &never).unwrap();
        let hours: Vec<&Hour> = again.hours.iter().filter(|hour| hour.range_ns().end <= last.range_ns().end).collect();
        assert_eq!(hours, [&last], "{again:?}");
        let name = StoreName { node: "n1".into(), birth_ns: Hours::open(&db).unwrap().birth_ns() };
        let manifest = Manifest::read(&place.read(&layout::manifest(last, &name)).unwrap().unwrap()).unwrap();
        assert_eq!(manifest.table("collectives").map(|table| table.rows), Some(17));
        assert_eq!((manifest.node, i64::from_str_radix(&manifest.store, 16)), (name.node, Ok(name.birth_ns)));
    }

    #[test]
    fn a_place_that_fails_costs_nothing_and_the_next_pass_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let db = dir.path().join("n1.db");
        store_of_segments(&db, 3, 16).close();
        let target = dir.path().join("archive");
        std::fs::create_dir(&target).unwrap();
        let place = Place::open(target.to_str().unwrap(), &Settings::default()).unwrap();
        // A file where a folder should be.
        std::fs::write(target.join("manifest"), "in the way").unwrap();
        let error = pass(&place, wanted(&db), &never).unwrap_err();
        assert!(!error.is_stop() && error.to_string().contains("archive"), "{error}");
        std::fs::remove_file(target.join("manifest")).unwrap();
        let stopped = pass(&place, wanted(&db), &|| true).unwrap_err();
        assert!(stopped.is_stop());
        assert!(pass(&place, wanted(&db), &never).unwrap().rows >= 48);
    }

    #[test]
    fn hours_that_retention_took_first_are_in_the_manifests() {
        let dir = tempfile::tempdir().unwrap();
        let db = dir.path().join("n1.db");
        let max_age = Duration::from_secs(3600);
        let store =
            Store::open(&db, StoreConfig { max_age, hold_for_archive: true, ..StoreConfig::default() }).unwrap();
        let now_ns = record::unix_now_ns();
        let past = Hour::of_ns(now_ns - 30 * HOUR_NS);
        for row in 0..100 {
            // One hour older than the time that the archive is waited for, and one within it.
            for ts_ns in [past.range_ns().start + row, now_ns - HOUR_NS - 600_000_000_000 + row] {
                let call = record::Collective { ts_ns, ..collective(row.cast_unsigned()) };
                store.ingest().record(record::Record::Collective(call));
            }
        }
        store.flush(PATIENCE).unwrap();
        let deadline = Instant::now() + PATIENCE;
        while store.archive_backlog().not_archived < 100 {
            assert!(Instant::now() < deadline, "{:?}", store.archive_backlog());
            std::thread::yield_now();
        }
        let target = dir.path().join("archive");
        std::fs::create_dir(&target).unwrap();
        let place = Place::open(target.to_str().unwrap(), &Settings::default()).unwrap();
        struct Held<'s>(&'s Store);
        impl Watch for Held<'_> {
            fn stop(&self) -> bool {
                false
            }
            fn archived(&self, until_ns: i64) {
                self.0.archived(until_ns);
            }
        }
        pass(&place, Wanted { at_once: true, ..wanted(&db) }, &Held(&store)).unwrap();
        let name = StoreName { node: "n1".into(), birth_ns: Hours::open(&db).unwrap().birth_ns() };
        let manifest = Manifest::read(&place.read(&layout::manifest(past, &name)).unwrap().unwrap()).unwrap();
        assert_eq!(manifest.table("collectives").map(|table| table.rows), Some(0));
        let until_ns = past.range_ns().start + 99;
        assert!(
            manifest.dropped.contains(&Dropped { table: "collectives".into(), until_ns, rows: 100 }),
            "{manifest:?}"
        );
        // The rows that waited are archived now, and dropped.
        let deadline = Instant::now() + PATIENCE;
        while store.facts().table("collectives").is_some_and(|table| table.rows > 0) {
            assert!(Instant::now() < deadline, "{:?} {:?}", store.archive_backlog(), store.facts());
            std::thread::yield_now();
        }
        let hours = Hours::open(&db).unwrap();
        let gaps = hours.not_archived(&(i64::MIN..i64::MAX)).filter(|gap| gap.table == "collectives");
        assert_eq!(gaps.map(|gap| gap.rows).sum::<u64>(), 100);
        let later = Hour::of_ns(now_ns - HOUR_NS - 600_000_000_000);
        let manifest = Manifest::read(&place.read(&layout::manifest(later, &name)).unwrap().unwrap()).unwrap();
        assert_eq!(manifest.table("collectives").map(|table| table.rows), Some(100));
    }

    #[test]
    fn what_is_no_store_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::open(dir.path().to_str().unwrap(), &Settings::default()).unwrap();
        let foreign = dir.path().join("x.db");
        rusqlite::Connection::open(&foreign).unwrap().execute_batch("CREATE TABLE t (x)").unwrap();
        let error = pass(&place, wanted(&foreign), &never).unwrap_err();
        assert!(error.to_string().contains("no trace store"), "{error}");
    }
}
