//! Agents that archive their hours, and questions to them and an archive together.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use store::{Store, StoreConfig};

use crate::common::job_stores::{EndedJob, T0};
use crate::common::{Lab, run, stderr, stdout, wait_for};
use crate::{ask, text, try_ask};

#[test]
fn an_agent_archives_its_hours_and_a_missing_target_is_a_finding() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut lab = Lab::new();
    EndedJob::small().write(dir.path());
    let (store, target) = (dir.path().join("n0.db"), dir.path().join("archive"));
    std::fs::create_dir(&target).expect("a directory");
    let archive = ["--archive", text(&target), "--store-max-age", "36500d"];
    lab.start("n0", &[&["--store", text(&store)], &archive[..]].concat());
    let answer = wait_for("the job's hour in the archive", || {
        try_ask(&["--archive", text(&target)], "SELECT count(*), min(ts_ns) FROM collectives")
    });
    assert_eq!(answer["rows"][0][0], 400);
    assert!(answer["rows"][0][1].as_i64().is_some_and(|first_ns| first_ns > T0));

    // The archive is gone: the agent answers as before, and reports it.
    let gone = dir.path().join("gone");
    lab.start("n1", &["--archive", text(&gone)]);
    let found = wait_for("the finding", || {
        let sql = "SELECT detail FROM findings WHERE verdict = 'archive'";
        let output = lab.ask("n1", "query", &["--format", "json", sql]);
        let answer: Value = serde_json::from_slice(&output.stdout).map_err(|_| stderr(&output))?;
        answer["rows"][0][0].as_str().map(str::to_owned).ok_or_else(|| answer.to_string())
    });
    assert!(found.contains("hours are not archived") && found.contains("gone"), "{found}");
}

/// A file system of its own, of the size in its options.
struct Small(PathBuf);

impl Small {
    fn mount(dir: PathBuf, options: &str) -> Self {
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(&dir).status();
        assert!(mounted.is_ok_and(|status| status.success()), "mounting {}", dir.display());
        Self(dir)
    }

    fn resize(&self, size: &str) {
        let options = format!("remount,size={size}");
        let done = Command::new("mount").args(["-o", &options]).arg(&self.0).status();
        assert!(done.is_ok_and(|status| status.success()), "remounting {}", self.0.display());
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").args(["-l"]).arg(&self.0).status();
    }
}

/// The texts of the findings about archiving, the newest last.
fn finding_with(lab: &Lab, node: &str, words: &str) -> String {
    wait_for(words, || {
        let sql = "SELECT json_extract(detail, '$.text') FROM findings WHERE verdict = 'archive' ORDER BY ts_ns";
        let output = lab.ask(node, "query", &["--format", "json", sql]);
        let answer: Value = serde_json::from_slice(&output.stdout).map_err(|_| stderr(&output))?;
        let texts: Vec<&str> = answer["rows"].as_array().into_iter().flatten().filter_map(|r| r[0].as_str()).collect();
        texts.iter().find(|text| text.contains(words)).map(|text| (*text).to_owned()).ok_or_else(|| answer.to_string())
    })
}

#[test]
fn a_full_target_and_then_a_missing_one_cost_findings_and_a_gap_that_is_counted() {
    // SAFETY: no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("skipped: a_full_target…: needs root, for a small file system");
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    EndedJob::small().write(dir.path());
    let (store, target) = (dir.path().join("n0.db"), dir.path().join("archive"));
    std::fs::create_dir(&target).expect("a directory");
    let small = Small::mount(target.clone(), "size=16k");
    let mut lab = Lab::new();
    lab.start("n0", &["--store", text(&store), "--archive", text(&target), "--store-max-age", "36500d"]);
    let full = finding_with(&lab, "n0", "hours are not archived");
    assert!(full.contains("No space left"), "{full}");
    // No incomplete file has appeared, and the agent answers as before.
    let files = || -> Vec<PathBuf> {
        let found = Command::new("find").arg(&target).args(["-type", "f"]).output().expect("find");
        stdout(&found).lines().map(PathBuf::from).collect()
    };
    assert!(!files().iter().any(|file| file.starts_with(target.join("manifest"))), "{:?}", files());
    let count = "SELECT count(*) FROM collectives";
    assert_eq!(lab.query("n0", count, &[]).0["rows"][0][0], 400);
    small.resize("16m");
    lab.kill("n0");
    lab.restart("n0");
    let count_there = || try_ask(&["--archive", text(&target)], count).map(|answer| answer["rows"][0][0].as_i64());
    wait_for("the job's hour in the archive", || match count_there()? {
        Some(400) => Ok(()),
        other => Err(format!("{other:?}")),
    });
    assert!(!files().iter().any(|file| text(file).contains('#')), "left over: {:?}", files());
    lab.kill("n0");

    // Rows past their retention, and no target: they are dropped, one finding reports it, and the
    // archive counts them later.
    let (store, gone) = (dir.path().join("n1.db"), dir.path().join("gone"));
    lab.start("n1", &["--store", text(&store), "--archive", text(&gone), "--store-max-age", "1d"]);
    let dropped = finding_with(&lab, "n1", "retention drops rows that are not archived");
    assert!(dropped.contains("no such directory"), "{dropped}");
    wait_for("no row left", || match lab.query("n1", count, &[]).0["rows"][0][0].as_i64() {
        Some(0) => Ok(()),
        other => Err(format!("{other:?}")),
    });
    std::fs::create_dir(&gone).expect("a directory");
    lab.kill("n1");
    lab.restart("n1");
    let note = "collectives: 400 rows up to".to_owned();
    let missing = wait_for("the gap in the archive", || {
        let sql = format!("{count} WHERE ts_ns < {}", T0 + 3_600_000_000_000);
        let answer = try_ask(&["--archive", text(&gone)], &sql)?;
        let notes = answer["coverage"].to_string();
        if notes.contains(&note) { Ok(notes) } else { Err(notes) }
    });
    assert!(missing.contains("dropped by retention before they were archived"), "{missing}");
    let findings = "SELECT count(*) FROM findings WHERE detail LIKE '%retention drops rows%'";
    assert_eq!(lab.query("n1", findings, &[]).0["rows"][0][0], 1);
}

fn collective() -> record::Collective {
    record::Collective {
        nranks: Some(2),
        comm_hash: Some(7),
        func: "all_reduce",
        count: Some(1),
        datatype: Some("float32"),
        bytes: Some(4),
        library: record::Library::Mpi,
        tier: 1,
        ret: Some(0),
        cgroup_id: 1,
        ..record::Collective::default()
    }
}

/// Hours that the archive and a live host both hold count once, and a host that is gone lacks only
/// what the archive does not have.
#[test]
fn one_question_asks_the_live_mesh_and_the_archive() {
    let dir = tempfile::tempdir().expect("a directory");
    EndedJob::small().write(dir.path());
    let archive = dir.path().join("archive");
    std::fs::create_dir(&archive).expect("a directory");
    let done = run(&["archive", "--open-hours", "--full-speed", "--db", text(dir.path()), "--to", text(&archive)]);
    assert!(done.status.success(), "{}", stderr(&done));
    // Two hours later: rows that no archive has.
    let later_ns = T0 + 2 * 3_600_000_000_000;
    for (host, pid) in [("n0", 1), ("n1", 2)] {
        let forever = StoreConfig { max_age: Duration::from_secs(100 * 365 * 86_400), ..StoreConfig::default() };
        let store = Store::open(dir.path().join(format!("{host}.db")), forever).expect("a store");
        for seq in 0..50_u32 {
            let (ts_ns, seq) = (later_ns + i64::from(seq) * 1_000_000, Some(u64::from(seq)));
            store.ingest().record(record::Record::Collective(record::Collective {
                ts_ns,
                duration_ns: 1_000,
                pid,
                seq,
                rank: Some(pid.cast_signed()),
                ..collective()
            }));
        }
        store.close();
        std::fs::create_dir_all(dir.path().join("live")).expect("a directory");
        let file = format!("{host}.db");
        std::fs::copy(dir.path().join(&file), dir.path().join("live").join(&file)).expect("copied");
    }
    let mut lab = Lab::new();
    for host in ["n0", "n1"] {
        let store = dir.path().join("live").join(format!("{host}.db"));
        lab.start(host, &["--store", text(&store), "--store-max-age", "36500d"]);
    }
    lab.wait_for_members(&["n0", "n1"]);
    let socket = lab.socket("n0").display().to_string();
    let both = ["--socket", socket.as_str(), "--archive", text(&archive)];
    for sql in [
        "SELECT node, rank, count(*), sum(duration_ns), min(ts_ns), max(ts_ns) FROM collectives GROUP BY node, rank ORDER BY node, rank",
        "SELECT count(*), count(DISTINCT seq) FROM collectives",
        "SELECT a.rank, count(*) FROM collectives a JOIN collectives b ON a.node = b.node AND a.ts_ns = b.ts_ns GROUP BY a.rank ORDER BY a.rank",
        "SELECT rank, job_id FROM processes WHERE rank IS NOT NULL ORDER BY rank",
    ] {
        // Processes were seen as their rows were written, just now: rows of the last two seconds
        // are left out where live hosts and an archive are asked together.
        wait_for("the joined answer to be that of the stores", || {
            let (joined, live) = (ask(&both, sql), ask(&["--socket", &socket], sql));
            assert_eq!(joined["coverage"]["answered"], 2, "{joined}");
            if joined["rows"] == live["rows"] { Ok(()) } else { Err(format!("{sql}: {joined} {live}")) }
        });
    }
    let of_job = |output: std::process::Output| -> Value {
        assert!(output.status.success(), "{}", stderr(&output));
        let listed: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        listed["jobs"][0]["calls"].clone()
    };
    assert_eq!(of_job(run(&[&["jobs", "--sacct", "off", "--format", "json"][..], &both].concat())), 800);

    // One agent is gone: the rows that the archive has of it are there, the others are noted as
    // missing.
    lab.kill("n1");
    wait_for("n1 is known to be dead", || match lab.nodes("n0")?.iter().find(|node| node["name"] == "n1") {
        Some(node) if node["state"] == "dead" => Ok(()),
        other => Err(format!("{other:?}")),
    });
    let archived =
        format!("SELECT count(DISTINCT node), count(*) FROM collectives WHERE ts_ns < {}", T0 + 3_600_000_000_000);
    assert_eq!(ask(&both, &archived)["rows"], serde_json::json!([[2, 800]]));
    let output =
        run(&[&["query", "--format", "json"][..], &both, &["SELECT node, count(*) FROM collectives GROUP BY node"]]
            .concat());
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(answer["rows"], serde_json::json!([["n0", 450]]), "{answer}");
    assert_eq!(answer["coverage"]["missing"][0]["node"], "n1", "{answer}");
    let why = answer["coverage"]["missing"][0]["reason"].as_str().unwrap_or_default();
    assert!(why.contains("newer rows are not reached"), "{answer}");
}
