//! Stores without agents: the verdict and its explanation from what the hosts of a job left behind,
//! with the clocks that their agents kept.

mod common;

use std::path::Path;
use std::time::Duration;

use common::{rankmesh, run, stderr, stdout};
use record::{Collective, ProcessSeen, Record};
use store::{ClockOffsetSeen, Store, StoreConfig};

/// So far the second host's clock is ahead.
const AHEAD_NS: i64 = 3_250_000_000;
/// By so much rank 2, the second host's first, is late.
const LATE_NS: i64 = 30_000_000;
const STEP_NS: i64 = 100_000_000;
const STEPS: i64 = 300;
const START_NS: i64 = 1_750_000_000_000_000_000;

fn call(host: i32, rank: i32, seq: i64) -> Record {
    let noise_ns = (seq * 7_919 + i64::from(rank) * 104_729) % 20_000;
    let late_ns = if rank == 2 { LATE_NS } else { 0 };
    let ahead_ns = if host == 1 { AHEAD_NS } else { 0 };
    Record::Collective(Collective {
        ts_ns: START_NS + seq * STEP_NS + late_ns + noise_ns + ahead_ns,
        duration_ns: 15_000 + noise_ns / 10,
        pid: 100 + rank.unsigned_abs(),
        tid: 100 + rank.unsigned_abs(),
        rank: Some(rank),
        local_rank: Some(rank % 2),
        nranks: Some(4),
        comm_hash: Some(7),
        func: "all_reduce",
        seq: Some(seq.unsigned_abs()),
        count: Some(1_024),
        bytes: Some(4_096),
        ret: Some(0),
        cgroup_id: 1,
        job_id: Some("4711".into()),
        ..Collective::default()
    })
}

/// The stores of two hosts with two ranks each, whose calls only enqueue; with or without what the
/// agents (whose names were others than the files') measured of each other.
fn job(dir: &Path, with_clocks: bool) {
    job_of(dir, with_clocks, STEPS);
}

fn job_of(dir: &Path, with_clocks: bool, steps: i64) {
    std::fs::create_dir(dir).expect("a directory");
    for host in 0..2_i32 {
        let config = StoreConfig { max_age: Duration::from_secs(100 * 365 * 86_400), ..StoreConfig::default() };
        let store = Store::open(dir.join(format!("gpu{host}.db")), config).expect("a store");
        for rank in [2 * host, 2 * host + 1] {
            store.ingest().record(Record::Process(ProcessSeen {
                pid: 100 + rank.unsigned_abs(),
                start_ns: START_NS,
                rank: Some(rank),
                job_id: Some("4711".to_owned()),
                ..ProcessSeen::default()
            }));
            (0..steps).for_each(|seq| store.ingest().record(call(host, rank, seq)));
        }
        // The first is the reference, to whose clock the other keeps its own.
        for minute in (0..2).filter(|_| with_clocks) {
            let (offset_ns, bound_ns) = if host == 0 { (0, 0) } else { (-AHEAD_NS + 11_000, 40_000) };
            store.ingest().clock_offset(ClockOffsetSeen {
                ts_ns: START_NS + minute * 60_000_000_000 + if host == 0 { 0 } else { AHEAD_NS },
                measured_by: format!("node-{host}"),
                peer: "node-0".to_owned(),
                offset_ns,
                bound_ns,
                drift_ppb: 0,
                drift_bound_ppb: 1_000,
            });
        }
        store.flush(Duration::from_secs(60)).expect("written");
        store.close();
    }
}

fn asked(arguments: &[&str], dir: &Path) -> serde_json::Value {
    let output = run(&[arguments, &["--format", "json", "--db", &dir.display().to_string()]].concat());
    assert!(matches!(output.status.code(), Some(0 | 3)), "{arguments:?}: {}", stderr(&output));
    serde_json::from_str(&stdout(&output)).expect("JSON")
}

#[test]
fn lateness_is_told_from_stores_with_the_clocks_that_their_agents_kept() {
    let dir = tempfile::tempdir().expect("a directory");
    let known = dir.path().join("known");
    job(&known, true);
    let verdict = asked(&["stragglers"], &known);
    assert_eq!((&verdict["verdict"]["kind"], &verdict["verdict"]["rank"]), (&"rank".into(), &2.into()), "{verdict}");
    assert_eq!(verdict["verdict"]["node"], "gpu1");
    let bound_ns = verdict["evidence"]["clock_bound_ns"].as_i64().expect("clocks are known");
    assert!((1..200_000).contains(&bound_ns), "{bound_ns}");
    let late_ns = verdict["verdict"]["late_by_ns"].as_i64().expect("a time");
    assert!((late_ns - LATE_NS).abs() <= bound_ns + 20_000, "{late_ns} within {bound_ns}");

    // On the clock of the first, also where SQL asks.
    let explained = asked(&["explain", "--job", "4711"], &known);
    assert_eq!((&explained["verdict"], &explained["clock_of"]), (&"rank".into(), &"gpu0".into()), "{explained}");
    assert_eq!(explained["place"]["rank"], 2);
    let not_visible = explained["not_visible"].to_string();
    assert!(not_visible.contains("what its ranks do now: stores were asked, no agent"), "{not_visible}");
    let sql = "SELECT max(cluster_ns(ts_ns)) - min(cluster_ns(ts_ns)), max(clock_bound_ns(ts_ns)) FROM collectives WHERE seq = 5";
    let apart = asked(&["query", "--nodes", "gpu0,gpu1", sql], &known);
    let (apart_ns, bound_ns) =
        (apart["rows"][0][0].as_i64().expect("a time"), apart["rows"][0][1].as_i64().expect("a bound"));
    assert!((apart_ns - LATE_NS).abs() < 20_000 + 2 * bound_ns && bound_ns < 200_000, "{apart}");

    // A span of the past, and one that holds nothing.
    let at = |step: i64| {
        jiff::Timestamp::from_nanosecond(i128::from(START_NS + step * STEP_NS)).expect("a time").to_string()
    };
    let past = asked(&["stragglers", "--between", &at(50), &at(150)], &known);
    assert_eq!((&past["verdict"]["kind"], &past["evidence"]["matched"]), (&"rank".into(), &100.into()), "{past}");
    let before = asked(&["stragglers", "--since", &at(-600), "--until", &at(-300)], &known);
    assert_eq!(before["verdict"]["kind"], "unknown", "{before}");
    let wrong = run(&["stragglers", "--between", &at(150), &at(50), "--db", &known.display().to_string()]);
    assert_eq!(wrong.status.code(), Some(2), "{}", stderr(&wrong));
}

#[test]
fn without_kept_clocks_nobody_is_named_by_entries_and_that_is_said() {
    let dir = tempfile::tempdir().expect("a directory");
    let unknown = dir.path().join("unknown");
    job(&unknown, false);
    let verdict = asked(&["stragglers"], &unknown);
    assert_ne!(verdict["verdict"]["kind"], "rank", "{verdict}");
    assert!(verdict["evidence"]["clock_bound_ns"].is_null(), "{verdict}");
    assert!(verdict.to_string().contains("clock"), "{verdict}");
}

#[test]
fn a_store_that_breaks_off_within_its_rows_is_a_missing_node_of_the_verdict() {
    let dir = tempfile::tempdir().expect("a directory");
    let job_dir = dir.path().join("job");
    job_of(&job_dir, true, 60_000);
    let last = rusqlite::Connection::open(job_dir.join("gpu0.db")).expect("a store");
    let damaged = last
        .execute(
            "UPDATE segment_columns SET data = zeroblob(length(data)) WHERE id > (SELECT avg(id) FROM segment_columns)",
            [],
        )
        .expect("mischief");
    assert!(damaged > 10, "{damaged}");
    last.close().expect("closed");
    let path = job_dir.display().to_string();
    // Who prints rows as they come has printed some.
    let span = verdicts::Span { until_ns: i64::MAX, ..verdicts::Span::default() };
    let verdicts_sql = verdicts::sql(&span);
    let printed = run(&["query", "--format", "csv", "--db", &path, &verdicts_sql]);
    assert_eq!(printed.status.code(), Some(1), "{}", stderr(&printed));
    let output = run(&["stragglers", "--db", &path, "--since", "2h"]);
    assert_eq!(output.status.code(), Some(3), "{}{}", stdout(&output), stderr(&output));
    assert!(stderr(&output).contains("missing gpu0: failed: "), "{}", stderr(&output));
    assert!(stderr(&output).contains("1 of 2 nodes answered"), "{}", stderr(&output));
}

#[test]
fn a_damaged_store_is_a_missing_node_of_every_command() {
    let dir = tempfile::tempdir().expect("a directory");
    let job_dir = dir.path().join("job");
    job(&job_dir, true);
    std::fs::write(job_dir.join("gpu2.db"), b"no database").expect("written");
    let path = job_dir.display().to_string();
    for command in [
        vec!["stragglers", "--db", &path],
        vec!["explain", "--db", &path],
        vec!["compare", "--db", &path, "--before", "20s..10s", "--after", "10s"],
        vec!["cost", "--db", &path],
    ] {
        let output = run(&command);
        assert_eq!(output.status.code(), Some(3), "{command:?}: {}{}", stdout(&output), stderr(&output));
        assert!(stderr(&output).contains("missing gpu2: failed: "), "{command:?}: {}", stderr(&output));
        // A reader that goes away, as `2>&1 | head` does, is no fault.
        let (reader, closed) = std::io::pipe().expect("a pipe");
        drop(reader);
        let unread = rankmesh().args(&command).stderr(closed.try_clone().expect("a copy")).output().expect("runs");
        assert_eq!(unread.status.code(), Some(0), "{command:?}: {}", stdout(&unread));
        let unread = rankmesh().args(&command).stdout(closed).output().expect("runs");
        assert!(unread.status.success() && !stderr(&unread).contains("panicked"), "{command:?}: {}", stderr(&unread));
    }
    // Of each collective some ranks' calls are in another store: who came last of it is not known.
    let one = job_dir.join("gpu0.db").display().to_string();
    let cost = stdout(&run(&["cost", "--db", &one]));
    assert!(
        cost.split_whitespace().collect::<Vec<_>>().join(" ").contains("what ranks waited is not known here"),
        "{cost}"
    );
    let live = run(&["stacks", "--db", &path]);
    assert_eq!(live.status.code(), Some(2), "stacks are of running processes: {}", stderr(&live));
    let empty = dir.path().join("empty");
    std::fs::create_dir(&empty).expect("a directory");
    for command in ["stragglers", "explain", "cost", "shell"] {
        let output = run(&[command, "--db", &empty.display().to_string()]);
        assert_eq!(output.status.code(), Some(1), "{command}");
        assert!(stderr(&output).contains("holds no .db file"), "{command}: {}", stderr(&output));
    }
}
