//! A full disk, a torn file, a second agent and a killed process.

use std::io::{Seek, SeekFrom, Write};
use std::process::{Command, Stdio};
use std::time::Instant;

use record::Record;

use super::*;

#[test]
fn one_agent_per_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    let store = open(&path);
    let error = Store::open(&path, StoreConfig::default()).unwrap_err();
    assert!(matches!(error, StoreError::InUse { .. }), "{error}");
    drop(store);
    open(&path);
}

#[test]
fn a_store_has_one_name() {
    let dir = tempfile::tempdir().unwrap();
    let (path, link, name) = (dir.path().join("s.db"), dir.path().join("link.db"), dir.path().join("other.db"));
    let store = open(&path);
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let error = Store::open(&link, StoreConfig::default()).unwrap_err();
    assert!(matches!(error, StoreError::InUse { .. }), "{error}");
    std::fs::hard_link(&path, &name).unwrap();
    let error = Store::open(&name, StoreConfig::default()).unwrap_err();
    assert!(matches!(error, StoreError::Linked { .. }), "{error}");
    drop(store);
    std::fs::remove_file(&name).unwrap();
    assert_eq!(open(&link).path(), std::fs::canonicalize(&path).unwrap());
}

/// And what is lost until it is back was lost from then on, not from the moment it came back.
#[test]
fn a_store_whose_file_is_taken_away_says_so_and_writes_nothing_into_the_void() {
    let dir = tempfile::tempdir().unwrap();
    let (path, aside) = (dir.path().join("s.db"), dir.path().join("aside"));
    let store =
        Store::open(&path, StoreConfig { queue_records: 8, max_age: Duration::MAX, ..StoreConfig::default() }).unwrap();
    let record = |i| store.ingest().record(Record::Collective(collective(i)));
    record(0);
    store.flush(PATIENCE).unwrap();
    std::fs::rename(&path, &aside).unwrap();
    record(1);
    let until = Instant::now() + PATIENCE;
    while !matches!(store.health().state, StoreState::Retrying(_)) {
        assert!(Instant::now() < until, "nothing noticed");
        std::thread::yield_now();
    }
    let notes = store.notes(&["collectives"], ALL_TIME);
    assert!(notes.iter().any(|note| note.contains("file was removed or replaced")), "{notes:?}");
    let full_ns = unix_now_ns();
    (2..20).for_each(record);
    std::fs::rename(&aside, &path).unwrap();
    store.flush(PATIENCE).unwrap();
    let conn = connect(&path);
    assert_eq!(int(&conn, "SELECT count(*) FROM collectives") + int(&conn, "SELECT sum(lost) FROM capture_loss"), 20);
    let since_ns = int(&conn, "SELECT min(since_ns) FROM capture_loss WHERE reason = 'queue'");
    assert!(since_ns <= full_ns, "lost since {since_ns}, the queue was full at {full_ns}");
    store.close();
}

#[test]
fn a_torn_store_is_refused_or_read_never_a_panic() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    let store = open(&path);
    for i in 0..3000 {
        store.ingest().record(Record::Collective(collective(i)));
    }
    drop(store);
    let complete = std::fs::read(&path).unwrap();
    let mut refused = 0;
    for pages in 1..complete.len() / 4096 {
        std::fs::write(&path, &complete[..pages * 4096]).unwrap();
        match Store::open(&path, StoreConfig { max_age: Duration::MAX, ..StoreConfig::default() }) {
            Err(error) => {
                assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
                refused += 1;
            }
            // A cut that opening does not notice: closing it is all that must work.
            Ok(store) => store.close(),
        }
    }
    assert!(refused > 0, "no cut was noticed");
}

#[test]
fn a_full_disk_is_waited_out_and_accounted_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    let config = StoreConfig { queue_records: 1000, max_age: Duration::MAX, ..StoreConfig::default() };
    let lock = lock_file(&path, 0o600).unwrap();
    let conn = schema::open_writer(&path, 0o600).unwrap();
    // SQLite answers as on a full disk once the file would grow past this.
    let pages = int(&conn, "PRAGMA page_count") + 60;
    conn.query_row(&format!("PRAGMA max_page_count = {pages}"), [], |_| Ok(())).unwrap();
    let store = Store::start(path.clone(), lock, conn, config).unwrap();
    let (mut made, deadline) = (0_u64, Instant::now() + PATIENCE);
    while store.health().state == StoreState::Ok {
        assert!(Instant::now() < deadline, "never full");
        store.ingest().record(Record::Collective(collective(made)));
        made += 1;
    }
    let error = store.flush(Duration::from_millis(100)).unwrap_err();
    assert!(error.to_string().contains("full"), "{error}");
    // It still answers, and notes that it lags.
    assert!(int(&store.reader().unwrap(), "SELECT count(*) FROM collectives") > 0);
    assert!(store.notes(&[], ALL_TIME).iter().any(|n| n.contains("not stored")));
    store.close();
    let health = store.health();
    assert_eq!(health.state, StoreState::Closed);
    let stored = int(&store.reader().unwrap(), "SELECT count(*) FROM collectives");
    assert_eq!(health.stored.cast_signed(), stored);
    assert_eq!(health.stored + health.lost, made);
    drop(store);
    assert_sound(&path);
    // With room again it goes on.
    let store = open(&path);
    store.ingest().record(Record::Collective(collective(made)));
    store.flush(PATIENCE).unwrap();
    assert_eq!(int(&store.reader().unwrap(), "SELECT count(*) FROM collectives"), stored + 1);
}

/// Not a test by itself: the process that [`a_killed_process_loses_at_most_one_commit`] kills.
#[test]
#[ignore = "started and killed by another test"]
fn endless_ingest() {
    let Some(dir) = std::env::var_os("RANKMESH_TEST_KILL_DIR") else {
        return;
    };
    let dir = PathBuf::from(dir);
    let store = open(&dir.join("s.db"));
    let ingest = store.ingest();
    let mut progress = File::create(dir.join("made")).unwrap();
    for i in 0_u64.. {
        ingest.record(Record::Collective(collective(i)));
        if i % 100 == 99 {
            progress.seek(SeekFrom::Start(0)).unwrap();
            progress.write_all(&(i + 1).to_ne_bytes()).unwrap();
            // As fast as the store takes it, so that nothing is dropped and what is in flight has a
            // bound.
            while store.health().queued + 100 > StoreConfig::default().queue_records {
                std::thread::yield_now();
            }
        }
    }
}

#[test]
fn a_killed_process_loses_at_most_one_commit() {
    for after in [1_u64, 30_000, 77_700] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.db");
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "tests::failures::endless_ingest", "--ignored", "--nocapture"])
            .env("RANKMESH_TEST_KILL_DIR", dir.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let made = || {
            let bytes = std::fs::read(dir.path().join("made")).unwrap_or_default();
            bytes.try_into().map_or(0, u64::from_ne_bytes)
        };
        let deadline = Instant::now() + PATIENCE;
        while made() < after {
            assert!(Instant::now() < deadline, "the child made {}", made());
            assert_eq!(child.try_wait().unwrap(), None, "the child ended by itself");
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let made = made();
        assert_sound(&path);
        let conn = connect(&path);
        let rows = int(&conn, "SELECT count(*) FROM collectives").cast_unsigned();
        // In flight at a kill: one queue being written, one filling, and up to 100 made since
        // progress was noted.
        let in_flight = 2 * StoreConfig::default().queue_records as u64 + 100;
        assert!(rows <= made + 100, "{rows} of {made}");
        assert!(rows + in_flight >= made, "{rows} of {made}");
        // What is there is all that was made up to some instant: no holes.
        assert_eq!(int(&conn, "SELECT ifnull(max(seq), -1) + 1 FROM collectives").cast_unsigned(), rows);
        assert_eq!(lost(&conn), 0);
        // Each commit is there completely or not at all.
        assert_eq!(int(&conn, ROLLUP_DIFFERENCE), 0);
        assert_eq!(int(&conn, "SELECT count(*) FROM sessions WHERE stop_ns IS NULL"), 1);
        drop(conn);
        let store = open(&path);
        store.ingest().record(Record::Collective(collective(made)));
        store.flush(PATIENCE).unwrap();
    }
}
