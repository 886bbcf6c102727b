use std::path::Path;
use std::time::Duration;

use rusqlite::types::Value;
use store::testing::{PATIENCE, T0, collective, store_of_segments};
use store::{Store, StoreConfig};

use super::*;
use crate::hour::Hour;
use crate::live::Live;
use crate::manifest::Manifest;
use crate::pass::{Wanted, pass};
use crate::place::{Place, Settings};

fn forever() -> StoreConfig {
    StoreConfig { max_age: Duration::from_secs(100 * 365 * 86_400), ..StoreConfig::default() }
}

struct Lab {
    dir: tempfile::TempDir,
}

impl Lab {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("archive")).unwrap();
        Self { dir }
    }

    fn place(&self) -> Place {
        Place::open(self.dir.path().join("archive").to_str().unwrap(), &Settings::default()).unwrap()
    }

    fn archive(&self, db: &Path) {
        let wanted = Wanted {
            db,
            node: "n1",
            now_ns: record::unix_now_ns(),
            at_once: false,
            open_hours: true,
            full_speed: true,
        };
        pass(&self.place(), wanted, &|| false).unwrap();
    }

    fn history(&self, live: Option<&Path>) -> NodeHistory {
        let archive = Arc::new(Archive::open(self.place()).unwrap());
        NodeHistory::new(archive, "n1", live.map(|path| Arc::new(Live::open(path).unwrap()) as Arc<dyn LiveStore>))
    }
}

fn all(conn: &Connection, sql: &str) -> Vec<Vec<Value>> {
    let mut statement = conn.prepare(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    let width = statement.column_count();
    let rows = statement.query_map([], |row| (0..width).map(|at| row.get(at)).collect()).unwrap();
    rows.collect::<Result<_, _>>().unwrap_or_else(|error| panic!("{sql}: {error}"))
}

fn questions() -> Vec<String> {
    let hour = T0 + 5 * 21_600_000_000_005;
    vec![
        "SELECT count(*), min(ts_ns), max(ts_ns), sum(seq) FROM collectives".to_owned(),
        "SELECT * FROM collectives ORDER BY ts_ns, seq LIMIT 20".to_owned(),
        format!("SELECT rank, count(*), sum(bytes) FROM collectives WHERE ts_ns < {hour} GROUP BY rank ORDER BY rank"),
        format!("SELECT seq FROM collectives WHERE ts_ns > {hour} AND rank = 3 ORDER BY seq"),
        "SELECT count(*) FROM collectives a JOIN collectives b ON a.seq = b.seq AND a.rank = b.rank".to_owned(),
        "SELECT op, count(*) FROM nccl_events WHERE job_id = '42' GROUP BY op".to_owned(),
        "SELECT count(*) FROM collectives WHERE func = 'nothing' OR rank IS NULL".to_owned(),
        "SELECT count(*) FROM ops".to_owned(),
        "SELECT source, count(*) FROM events GROUP BY source".to_owned(),
        "SELECT count(*) FROM call_rollups r JOIN collectives c ON c.rank = r.rank AND c.ts_ns >= r.bucket_ns"
            .to_owned(),
        "SELECT count(*) FROM collectives WHERE rank = '3' OR seq = 3.0".to_owned(),
    ]
}

#[test]
fn an_archive_answers_as_the_store_does() {
    let lab = Lab::new();
    let db = lab.dir.path().join("n1.db");
    store_of_segments(&db, 20, 16).close();
    lab.archive(&db);
    let history = lab.history(None);
    let conn = history.open_reader().unwrap();
    let store = store::ServedDb::open(&db, Vec::new()).unwrap().reader().unwrap();
    for sql in questions() {
        assert_eq!(all(&conn, &sql), all(&store, &sql), "{sql}");
    }
    assert!(history.notes(&["collectives"], &(T0..T0 + HOUR_NS)).is_empty());
    let notes = history.notes(&["sessions"], &(T0..T0 + HOUR_NS));
    assert!(notes[0].contains("not archived as rows"), "{notes:?}");
}

#[test]
fn an_hour_that_store_and_archive_hold_is_counted_once() {
    let lab = Lab::new();
    let db = lab.dir.path().join("n1.db");
    store_of_segments(&db, 20, 16).close();
    let store = store::ServedDb::open(&db, Vec::new()).unwrap().reader().unwrap();
    let expected: Vec<_> = questions().iter().map(|sql| all(&store, sql)).collect();
    drop(store);
    lab.archive(&db);
    let both = |live: Option<&Path>| {
        let conn = lab.history(live).open_reader().unwrap();
        for (sql, expected) in questions().iter().zip(&expected) {
            assert_eq!(&all(&conn, sql), expected, "{sql}");
        }
    };
    both(Some(&db));

    // Retention drops the first segments: the archive has them, and the store the others.
    let conn = store::testing::connect(&db);
    conn.execute_batch(
        "CREATE TEMP TABLE gone AS SELECT id, last_ns, row_count FROM segments WHERE table_name = 'collectives' ORDER BY last_ns LIMIT 7;
         INSERT INTO retention SELECT 'collectives', max(last_ns), sum(row_count) FROM gone;
         DELETE FROM segment_columns WHERE id >> 8 IN (SELECT id FROM gone);
         DELETE FROM segments WHERE id IN (SELECT id FROM gone);",
    )
    .unwrap();
    assert_eq!(all(&conn, "SELECT count(*) FROM collectives"), [[Value::Integer(13 * 16)]]);
    drop(conn);
    both(Some(&db));
    let notes = lab.history(Some(&db)).notes(&["collectives"], &(T0..T0 + HOUR_NS));
    assert!(notes.is_empty(), "{notes:?}");

    // Rows that are in the store only.
    let store = Store::open(&db, forever()).unwrap();
    let now_ns = record::unix_now_ns();
    store.ingest().record(record::Record::Collective(record::Collective { ts_ns: now_ns, ..collective(9) }));
    store.flush(PATIENCE).unwrap();
    let conn = lab.history(Some(&db)).open_reader().unwrap();
    assert_eq!(all(&conn, "SELECT count(*) FROM collectives"), [[Value::Integer(20 * 16 + 1)]]);
}

#[test]
fn a_node_whose_store_began_anew_has_the_hours_of_both() {
    let lab = Lab::new();
    for name in ["old.db", "new.db"] {
        let db = lab.dir.path().join(name);
        store_of_segments(&db, 3, 16).close();
        lab.archive(&db);
    }
    let history = lab.history(Some(&lab.dir.path().join("new.db")));
    let conn = history.open_reader().unwrap();
    assert_eq!(all(&conn, "SELECT count(*) FROM collectives"), [[Value::Integer(2 * 3 * 16)]]);
}

#[test]
fn what_is_missing_from_hours_is_noted() {
    let lab = Lab::new();
    let db = lab.dir.path().join("n1.db");
    store_of_segments(&db, 3, 16).close();
    lab.archive(&db);
    let name = Archive::open(lab.place()).unwrap().stores().keys().next().unwrap().clone();
    let hour = Hour::of_ns(T0);
    let file = crate::layout::manifest(hour, &name);
    let mut manifest = Manifest::read(&lab.place().read(&file).unwrap().unwrap()).unwrap();
    manifest.losses.push(crate::manifest::Loss {
        probe: "collectives".into(),
        reason: "queue".into(),
        since_ns: T0,
        until_ns: T0 + 1,
        lost: 7,
    });
    manifest.gaps.push(crate::manifest::Gap { since_ns: T0, until_ns: T0 + 3_000_000_000 });
    manifest.dropped.push(crate::manifest::Dropped { table: "collectives".into(), until_ns: T0, rows: 7 });
    lab.place().write(&file, serde_json::to_vec(&manifest).unwrap()).unwrap();
    let notes_of = |range: Range<i64>| lab.history(None).notes(&["collectives"], &range).join("; ");
    let notes = notes_of(T0..T0 + HOUR_NS);
    for words in ["7 records lost (queue)", "no agent recorded for 3.0 s", "before they were archived"] {
        assert!(notes.contains(words), "{notes}");
    }
    assert!(notes_of(T0 + HOUR_NS..T0 + 2 * HOUR_NS).contains("1 hours from 2026-01-01T01:00Z"));
    let path = lab.dir.path().join("archive").join(crate::layout::rows("collectives", hour, &name));
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    let conn = lab.history(None).open_reader().unwrap();
    let error = conn.query_row("SELECT count(*) FROM collectives", [], |row| row.get::<_, i64>(0)).unwrap_err();
    assert!(error.to_string().contains("table=collectives/date=2026-01-01/hour=00"), "{error}");
    std::fs::write(lab.dir.path().join("archive").join(&file), "{").unwrap();
    assert!(notes_of(T0..T0 + HOUR_NS).contains("cannot be read"));
}
