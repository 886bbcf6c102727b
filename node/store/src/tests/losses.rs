//! What is lost or was not recorded is counted and noted; the facts follow the rows.

use record::{LossCount, Record};

use super::*;

#[test]
fn stored_and_lost_make_up_what_was_made() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    let store = Store::open(&path, StoreConfig { queue_records: 64, max_age: Duration::MAX, ..StoreConfig::default() })
        .unwrap();
    let (threads, each) = (4_u64, 20_000_u64);
    std::thread::scope(|scope| {
        for t in 0..threads {
            let ingest = store.ingest();
            scope.spawn(move || {
                for i in 0..each {
                    ingest.record(Record::Collective(collective(t * each + i)));
                }
            });
        }
    });
    store.flush(PATIENCE).unwrap();
    let health = store.health();
    let facts = store.facts();
    let notes = store.notes(&["nccl_events"], ALL_TIME);
    assert_eq!(health.stored + health.lost, threads * each);
    assert!(health.lost > 0, "the queue of 64 never filled: nothing was tested");
    drop(store);
    let conn = connect(&path);
    let rows = int(&conn, "SELECT count(*) FROM collectives");
    assert_eq!(rows + lost(&conn), (threads * each).cast_signed());
    assert_eq!(int(&conn, "SELECT count(DISTINCT probe || reason) FROM capture_loss"), 1);
    let fact = &facts.losses[0];
    assert_eq!((fact.probe.as_str(), fact.reason.as_str(), fact.lost), ("collectives", "queue", health.lost));
    assert!(notes[0].starts_with(&format!("collectives: {} records lost (queue) between ", health.lost)), "{notes:?}");
}

#[test]
fn loss_reported_by_capture_is_kept_and_noted_where_it_matters() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    let store = open(&path);
    let began = unix_now_ns();
    for lost in [5, 7] {
        let (probe, reason) = ("sched_switch".to_owned(), "ringbuf".to_owned());
        store.ingest().record(Record::Loss(LossCount { ts_ns: unix_now_ns(), since_ns: None, probe, reason, lost }));
        store.flush(PATIENCE).unwrap();
    }
    let conn = store.reader().unwrap();
    assert_eq!((int(&conn, "SELECT count(*) FROM capture_loss"), lost(&conn)), (1, 12));
    let noted = |range| store.notes(&["offcpu"], range);
    assert!(
        noted(ALL_TIME)[0].starts_with("sched_switch: 12 records lost (ringbuf) between 20"),
        "{:?}",
        noted(ALL_TIME)
    );
    assert_eq!(noted(0..began - 3_600_000_000_000), Vec::<String>::new());
    assert_eq!(store.notes(&["collectives", "tcp_events"], ALL_TIME), Vec::<String>::new(), "not theirs");
    assert_eq!(store.notes(&["events"], ALL_TIME).len(), 1);
    assert_eq!(store.notes(&["call_rollups"], ALL_TIME).len(), 1, "the sums miss it, too");
    drop((conn, store));
    // The digest is the same after a restart.
    let store = open(&path);
    assert_eq!(store.facts().losses[0].lost, 12);
}

#[test]
fn calls_recorded_in_slices_are_noted_with_the_share_that_was() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    let store = open(&path);
    let (second, began) = (1_000_000_000, unix_now_ns() / 10_000_000_000 * 10_000_000_000);
    for slice in 0..600 {
        // Ten seconds each, of which one is recorded; of the third the end came late.
        let since_ns = began + slice * 10 * second + second;
        let until_ns = began + (slice + 1) * 10 * second;
        let late_ns = if slice == 3 { second / 2 } else { 0 };
        for (since_ns, until_ns) in [(since_ns, until_ns), (until_ns, until_ns + late_ns)] {
            let (probe, reason) = ("collectives".to_owned(), "budget".to_owned());
            let loss = LossCount { ts_ns: until_ns, since_ns: Some(since_ns), probe, reason, lost: 100 };
            if until_ns > since_ns {
                store.ingest().record(Record::Loss(loss));
                store.flush(PATIENCE).unwrap();
            }
        }
    }
    let rows = "SELECT count(*) FROM capture_loss WHERE reason = 'budget' AND ts_ns - since_ns = 9000000000";
    let conn = store.reader().unwrap();
    assert_eq!((int(&conn, rows), lost(&conn)), (599, 60_100));
    let in_the_second = began + 11 * second..began + 20 * second;
    let note = |store: &Store, range| store.notes(&["collectives"], range);
    assert!(note(&store, in_the_second)[0].contains("in slices (up --budget): 0.0 of the 9.0 s"));
    let all = format!("collectives: recorded in slices (up --budget): {:.1} of the {:.1} s", 598.5, 5_999.0);
    assert!(note(&store, ALL_TIME)[0].starts_with(&all), "{:?}", note(&store, ALL_TIME));
    assert!(store.notes(&["call_rollups"], ALL_TIME)[0].starts_with(&all), "the sums miss them, too");
    assert_eq!(store.notes(&["offcpu"], ALL_TIME), Vec::<String>::new());
    drop((conn, store));
    let again = open(&path);
    assert!(note(&again, ALL_TIME)[0].starts_with(&all), "{:?}", note(&again, ALL_TIME));
}

#[test]
fn what_a_host_cannot_record_is_noted_where_it_matters() {
    let (_dir, store) = fresh();
    store.not_recorded(vec![(vec!["memory_events", "process_events"], "oom: the kernel has no tracepoint".to_owned())]);
    let note = ["oom: the kernel has no tracepoint".to_owned()];
    assert_eq!(store.notes(&["memory_events"], ALL_TIME), note);
    assert_eq!(store.notes(&["events"], ALL_TIME), note, "a view over it");
    assert_eq!(store.notes(&["collectives"], ALL_TIME), Vec::<String>::new());
}

#[test]
fn sessions_show_when_nothing_was_recorded() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    drop(open(&path));
    {
        let conn = connect(&path);
        assert_eq!(int(&conn, "SELECT stop_ns >= start_ns FROM sessions"), 1);
        // As if it had ended an hour ago, by a kill.
        conn.execute("UPDATE sessions SET start_ns = start_ns - 7200000000000, alive_ns = alive_ns - 3600000000000, stop_ns = NULL", []).unwrap();
    }
    let store = open(&path);
    let now = unix_now_ns();
    let notes = store.notes(&[], now - 1_800_000_000_000..now);
    assert!(notes.iter().any(|n| n.starts_with("no agent recorded between ")), "{notes:?}");
    assert_eq!(store.notes(&["collectives"], now - 7_000_000_000_000..now - 4_000_000_000_000), Vec::<String>::new());

    // Until capture records, and from its end on, nothing is recorded either.
    let began = now + 5_000_000_000;
    store.recording_began(began);
    let notes = store.notes(&[], began - 1_000_000_000..began - 1);
    assert!(notes.iter().any(|n| n.starts_with("no agent recorded between ")), "{notes:?}");
    assert_eq!(store.notes(&[], began + 1..began + 2), Vec::<String>::new());
    store.recording_ends(began + 7);
    drop(store);
    let conn = connect(&path);
    assert_eq!(int(&conn, "SELECT max(start_ns) FROM sessions"), began);
    assert_eq!(int(&conn, "SELECT max(stop_ns) FROM sessions"), began + 7);
}

/// The clock by which a session says that it lives takes a pause before it only after an hour.
#[test]
fn a_killed_session_ends_with_its_newest_row() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    let (now, hour) = (unix_now_ns(), 3_600_000_000_000);
    let last = now - hour;
    {
        let store = open(&path);
        let mut call = collective(0);
        call.ts_ns = last;
        store.ingest().record(Record::Collective(call));
        store.flush(PATIENCE).unwrap();
    }
    let killed =
        format!("UPDATE sessions SET start_ns = {}, alive_ns = {}, stop_ns = NULL", last - hour, last - 2 * hour);
    connect(&path).execute(&killed, []).unwrap();
    let store = open(&path);
    let gap = |range| store.notes(&[], range).iter().any(|note| note.starts_with("no agent recorded between "));
    assert!(gap(last + 1..now) && !gap(last - hour..last), "{:?}", store.notes(&[], ALL_TIME));
    drop(store);
    let conn = connect(&path);
    assert_eq!(int(&conn, "SELECT alive_ns FROM sessions ORDER BY id LIMIT 1"), last);
    let next = int(&conn, "SELECT alive_ns FROM sessions ORDER BY id DESC LIMIT 1");
    assert!(next < last - hour, "the next one's clock is as patient as before: {next}");
}

#[test]
fn facts_follow_the_rows() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    let store = open(&path);
    for i in 0..1000 {
        store.ingest().record(Record::Collective(collective(i)));
    }
    store.flush(PATIENCE).unwrap();
    let facts = store.facts();
    let table = facts.table("collectives").unwrap();
    assert_eq!((table.rows, table.first_ns, table.last_ns), (1000, Some(T0), Some(T0 + 999_000_000)));
    assert_eq!(facts.span(), Some((T0, T0 + 999_000_000)));
    assert!(store.notes(&["cuda_events"], ALL_TIME)[0].starts_with("cuda_calls: slow calls"));
    drop(store);
    assert_eq!(open(&path).facts().tables, facts.tables);
}

#[test]
fn rows_of_the_future_are_said_and_are_not_the_newest() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("s.db"));
    let day_ns = 86_400_000_000_000;
    for (at, ts_ns) in [(0, unix_now_ns()), (1, unix_now_ns() + 400 * day_ns)] {
        let mut call = collective(at);
        call.ts_ns = ts_ns;
        store.ingest().record(Record::Collective(call));
    }
    store.flush(PATIENCE).unwrap();
    let (_, newest_ns) = store.facts().span().unwrap();
    assert!(newest_ns <= unix_now_ns(), "{newest_ns}");
    let is_said = |range| store.notes(&["collectives"], range).iter().any(|note| note.contains("clock was ahead"));
    assert!(is_said(ALL_TIME) && !is_said(0..unix_now_ns()));
    // Both are there: a clock that is ahead for a moment makes no row old.
    assert_eq!(store.facts().table("collectives").unwrap().rows, 2);
}
