//! `rankmesh compare` on stores, as people run it.

mod common;

use std::path::Path;

use common::{run, stderr, stdout};
use record::unix_now_ns;
use serde_json::Value;

/// A store of two ranks; every collective takes `ns`, after `compute_ns` of work.
fn store(dir: &Path, ns: i64, compute_ns: i64) {
    let store = store::Store::open(dir.join("a.db"), store::StoreConfig::default()).expect("a store");
    let mut at_ns = unix_now_ns() - 120_000_000_000;
    for seq in 0..1_500_u64 {
        at_ns += compute_ns + (seq as i64 * 7_919 % 97) * compute_ns / 2_000;
        for rank in 0..2 {
            store.ingest().record(record::Record::Collective(collective(at_ns, ns, rank, seq)));
        }
        at_ns += ns;
    }
    store.close();
}

fn collective(ts_ns: i64, duration_ns: i64, rank: i32, seq: u64) -> record::Collective {
    record::Collective {
        ts_ns,
        duration_ns,
        pid: 100 + rank.unsigned_abs(),
        tid: 100 + rank.unsigned_abs(),
        rank: Some(rank),
        local_rank: Some(rank),
        nranks: Some(2),
        comm_hash: Some(7),
        func: "all_reduce",
        seq: Some(seq),
        bytes: Some(1 << 20),
        library: record::Library::Mpi,
        tier: 1,
        ret: Some(0),
        cgroup_id: 1,
        ..record::Collective::default()
    }
}

fn compare(before: &Path, after: &Path, more: &[&str]) -> String {
    let (before, after) = (before.display().to_string(), after.display().to_string());
    let flags = ["compare", "--timeout", "60s", "--before", &before, "--after", &after];
    let output = run(&[&flags, more].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    stdout(&output)
}

#[test]
fn two_sets_of_stores_differ_in_what_changed_and_in_nothing_else() {
    let dir = || tempfile::tempdir().expect("a directory");
    let (before, after) = (dir(), dir());
    store(before.path(), 2_000_000, 18_000_000);
    store(after.path(), 2_000_000, 24_000_000);
    let found: Value =
        serde_json::from_str(&compare(before.path(), after.path(), &["--format", "json"])).expect("JSON");
    let outcome = |measure: &str, of: &str| {
        let changes = found["changes"].as_array().expect("changes");
        let change = changes.iter().find(|change| change["measure"] == measure && change["of"] == of);
        change.unwrap_or_else(|| panic!("no {measure} {of}: {found}"))["verdict"].clone()
    };
    assert_eq!(outcome("compute time between calls", "rank 1"), "more");
    assert_eq!(outcome("time from collective to collective", "all ranks"), "more");
    assert_ne!(outcome("duration of", "all_reduce of more than 1 MiB"), "more", "{found}");
    let same = compare(before.path(), before.path(), &[]);
    assert!(same.starts_with("No difference that this data can show."), "{same}");
    let not_visible = found["not_visible"].as_array().expect("lines");
    assert!(not_visible.iter().filter_map(Value::as_str).any(|line| line.starts_with("GPU clock")), "{found}");
}
