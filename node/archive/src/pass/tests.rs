//! Passes over stores: what is written once, again, and not at all; clocks and cursors that are wrong.

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
    let store = Store::open(&db, StoreConfig { max_age, hold_for_archive: true, ..StoreConfig::default() }).unwrap();
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
    assert!(manifest.dropped.contains(&Dropped { table: "collectives".into(), until_ns, rows: 100 }), "{manifest:?}");
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

/// An archive with one store, whose file says what `change` makes of it.
fn with_cursor(dir: &Path, change: impl FnOnce(&mut StoreHours)) -> (Place, StoreName) {
    let target = dir.join("archive");
    let _ = std::fs::create_dir(&target);
    let place = Place::open(target.to_str().unwrap(), &Settings::default()).unwrap();
    let db = dir.join("n1.db");
    let name = StoreName { node: "n1".into(), birth_ns: Hours::open(&db).unwrap().birth_ns() };
    let mut known = known(&place, &name).unwrap().unwrap_or(StoreHours {
        version: VERSION,
        node: name.node.clone(),
        store: format!("{:016x}", name.birth_ns),
        first_ns: T0,
        until_ns: T0,
        failed: None,
    });
    change(&mut known);
    place.write(&layout::store(&name), serde_json::to_vec(&known).unwrap()).unwrap();
    (place, name)
}

/// Remembers what it is told.
#[derive(Default)]
struct Told(std::cell::RefCell<Vec<i64>>);

impl Watch for Told {
    fn stop(&self) -> bool {
        false
    }
    fn archived(&self, until_ns: i64) {
        self.0.borrow_mut().push(until_ns);
    }
}

#[test]
fn a_cursor_of_the_future_stops_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let db = dir.path().join("n1.db");
    store_of_segments(&db, 4, 16).close();
    let year_ns = 365 * 24 * HOUR_NS;
    for until_ns in [i64::MAX, record::unix_now_ns() + year_ns] {
        let (place, name) = with_cursor(dir.path(), |known| known.until_ns = until_ns);
        let now_ns = record::unix_now_ns();
        let told = Told::default();
        let done = pass(&place, wanted(&db), &told).unwrap();
        let first = place.read(&layout::manifest(Hour::of_ns(T0), &name)).unwrap();
        assert!(first.is_some(), "{done:?}");
        let told = told.0.into_inner();
        assert!(told[0] < T0 + HOUR_NS * 2, "nothing is told before an hour is written: {told:?}");
        assert!(told.iter().all(|until_ns| *until_ns <= now_ns + HOUR_NS), "{told:?}");
        let until_ns = known(&place, &name).unwrap().unwrap().until_ns;
        assert!(until_ns <= Hour::of_ns(record::unix_now_ns()).range_ns().end, "{until_ns}");
        // What is there already is not written again.
        with_cursor(dir.path(), |known| known.until_ns = i64::MAX);
        let again = pass(&place, wanted(&db), &never).unwrap();
        assert!(again.hours.iter().all(|hour| hour.range_ns().start > T0 + 4 * HOUR_NS), "{again:?}");
        std::fs::remove_dir_all(dir.path().join("archive")).unwrap();
    }
}

#[test]
fn an_open_hour_of_the_future_is_not_how_far_it_got() {
    let dir = tempfile::tempdir().unwrap();
    let db = dir.path().join("n1.db");
    store_of_segments(&db, 2, 16).close();
    let store = Store::open(&db, forever()).unwrap();
    let now_ns = record::unix_now_ns();
    let future = Hour::of_ns(now_ns + 400 * 24 * HOUR_NS);
    for ts_ns in [now_ns, future.range_ns().start + 5] {
        store.ingest().record(record::Record::Collective(record::Collective { ts_ns, ..collective(7) }));
    }
    store.flush(PATIENCE).unwrap();
    store.close();
    let (place, name) = with_cursor(dir.path(), |_| {});
    let told = Told::default();
    let done = pass(&place, Wanted { open_hours: true, now_ns, ..wanted(&db) }, &told).unwrap();
    let open = Hour::of_ns(now_ns);
    assert!(done.hours.contains(&open) && !done.hours.contains(&future), "{done:?}");
    assert_eq!(done.ahead_ns.map(Hour::of_ns), Some(future), "from its hour on");
    assert!(known(&place, &name).unwrap().unwrap().until_ns <= open.range_ns().end);
    let told = told.0.into_inner();
    assert!(told.iter().all(|until_ns| *until_ns <= open.range_ns().start), "{told:?}");
}
