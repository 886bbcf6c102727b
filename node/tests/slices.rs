//! Live: a program whose calls come too fast for the budget of one of its two hosts, a rank of real
//! Open MPI on each; the other host records all. What is recorded in time slices is truthful, the
//! standing verdict names the late rank by it and never the other, and a hang that began between two
//! slices is told by the rank's stack. Needs root, mpirun and mpi4py.

mod common;

use std::path::Path;
use std::time::{Duration, Instant};

use common::jobs::{Cgroups, mpi_script_by};
use common::pair::busy;
use common::{Lab, can_capture, has, stderr, wait_for};
use serde_json::Value;

/// Which rank is late, and sleeps in the end.
const LATE: i64 = 1;

/// For so long the late rank is looked for: several slices.
const LOOKED_AT: Duration = Duration::from_secs(90);

fn verdict(lab: &Lab, more: &[&str]) -> Result<Value, String> {
    let output = lab.ask("m1", "stragglers", &[&["--format", "json"], more].concat());
    serde_json::from_slice(&output.stdout).map_err(|error| format!("{error}: {}", stderr(&output)))
}

/// A verdict that blames the other rank is false, whatever comes later.
fn is_not_false(answer: &Value) {
    let verdict = &answer["verdict"];
    let named = verdict["kind"] == "rank" && verdict["rank"] != LATE;
    let missing = verdict["missing"].as_array().into_iter().flatten().any(|missing| missing["rank"] != LATE);
    let others = ["circles", "jammed"].iter().any(|of| verdict[of].as_array().is_some_and(|list| !list.is_empty()));
    assert!(!named && !missing && !others && verdict["differing"].is_null(), "{answer}");
}

fn notes(answer: &Value) -> String {
    answer["coverage"]["notes"].to_string()
}

/// The first number of an answer.
fn number(lab: &Lab, sql: &str) -> i64 {
    let (answer, code) = lab.query("m1", sql, &[]);
    assert_eq!(code, 0, "{answer}");
    answer["rows"][0][0].as_i64().unwrap_or_else(|| panic!("{sql}: {answer}"))
}

#[test]
fn a_fast_program_is_recorded_in_slices_and_nothing_false_is_said_of_it() {
    const TEST: &str = "a_fast_program_is_recorded_in_slices_and_nothing_false_is_said_of_it";
    let python = std::process::Command::new("/usr/bin/python3").args(["-c", "import mpi4py"]).status();
    if !can_capture(TEST) || !has("mpirun", TEST) || !python.is_ok_and(|status| status.success()) {
        return;
    }
    let mut lab = Lab::new();
    let cgroups = Cgroups::new("slices", &["m1", "m2"]);
    let cgroup = |name: &str| cgroups.path(name).display().to_string();
    lab.start("m1", &["--cgroup", &cgroup("m1"), "--budget", "0.3%"]);
    lab.start("m2", &["--cgroup", &cgroup("m2"), "--budget", "none"]);
    lab.wait_for_members(&["m1", "m2"]);
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios/workloads/rate.py");
    let stop = lab.path("stop");
    let command = format!("/usr/bin/python3 {} 1000 {LATE} 1000 {}", program.display(), stop.display());
    let _job = mpi_script_by(1, &lab, &cgroups, 2, &command);

    let gaps =
        "SELECT count(*) FROM capture_loss WHERE reason = 'budget' AND ts_ns < (SELECT max(ts_ns) FROM collectives)";
    wait_for("two stretches are over in which calls were missed", || {
        let gaps = number(&lab, gaps);
        if gaps >= 2 { Ok(()) } else { Err(format!("{gaps} gaps")) }
    });
    // What was missed was missed, and is said; after it no call has a number.
    let within = "SELECT count(*) FROM collectives c, capture_loss l WHERE l.reason = 'budget' AND l.ts_ns > l.since_ns + 2000000000 \
                  AND c.ts_ns > l.since_ns + 1000000000 AND c.ts_ns + 1000000000 < l.ts_ns AND c.node = 'm1'";
    assert_eq!(number(&lab, within), 0, "calls were recorded in a time that is said to be without");
    let after = "FROM collectives WHERE node = 'm1' \
                 AND ts_ns > (SELECT min(ts_ns) FROM capture_loss WHERE reason = 'budget')";
    assert!(number(&lab, &format!("SELECT count(*) {after}")) > 0);
    assert_eq!(number(&lab, &format!("SELECT count(seq) + count(comm_seq) {after}")), 0, "a number after a gap");
    let (answer, _) = lab.query("m1", "SELECT count(*) FROM collectives", &[]);
    assert!(answer["coverage"].to_string().contains("recorded in slices (up --budget): "), "{answer}");
    wait_for("nodes shows it", || {
        let nodes = lab.nodes("m1")?;
        let m1 = nodes.iter().find(|node| node["name"] == "m1").ok_or("no m1")?;
        let shown = m1["capture"].to_string();
        if shown.contains("in slices: ") { Ok(()) } else { Err(shown) }
    });

    // Where others' work takes the ranks' CPUs, nobody may stand out; the other rank never does.
    let (mut named, mut answer) = (false, Value::Null);
    let began = Instant::now();
    while !named && began.elapsed() < LOOKED_AT {
        answer = verdict(&lab, &[]).expect("a verdict");
        is_not_false(&answer);
        assert!(answer["standing"].is_null() || notes(&answer).contains("by slices: "), "{answer}");
        named = answer["standing"].is_object() && answer["verdict"]["kind"] == "rank";
    }
    if !named {
        let why =
            busy().unwrap_or_else(|| panic!("the late rank is not named where nothing else takes the CPUs: {answer}"));
        eprintln!("skipped: the late rank is not named: {why}");
    }

    // It sleeps, and the other waits in a call that began when none was recorded, or in a slice.
    std::fs::write(&stop, "").expect("written");
    for more in [&[][..], &["--since", "60s"]] {
        wait_for("the hang is told, and who is in no call", || {
            let answer = verdict(&lab, more)?;
            is_not_false(&answer);
            let missing = answer["verdict"]["missing"].as_array().is_some_and(|missing| !missing.is_empty());
            if answer["verdict"]["kind"] == "hang" && missing { Ok(()) } else { Err(answer.to_string()) }
        });
    }
    wait_for("an agent wrote the finding", || {
        let found = number(&lab, "SELECT count(*) FROM findings WHERE verdict = 'hang'");
        if found > 0 { Ok(()) } else { Err("none".into()) }
    });
}
