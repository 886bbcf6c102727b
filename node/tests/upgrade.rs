//! Two builds in one mesh, as during an upgrade: agents of an earlier build and of this one find
//! each other, and whoever is asked answers for all of them, or names those that cannot. `make
//! test-upgrade` builds the earlier one and says where it is; without `RANKMESH_PREVIOUS` this is
//! skipped.

mod common;

use std::process::{Command, Stdio};

use common::{Lab, make_db, wait_for};
use serde_json::{Value, json};

/// Starts an agent of the earlier build beside those of the lab.
fn start_previous(lab: &mut Lab, program: &str, name: &str, database: &str) {
    let identity = lab.issue(name);
    let first = lab.nodes("new1").expect("it answers")[0]["address"].as_str().expect("an address").to_owned();
    let log = std::fs::File::create(lab.path(&format!("{name}.log"))).expect("a log file");
    let mut command = Command::new(program);
    command.args(["up", "--name", name, "--listen", "127.0.0.1:0", "--capture", "off", "--join", &first, "--identity"]);
    command.arg(identity).arg("--socket").arg(lab.socket(name)).args(["--serve-db", database]);
    command.env_remove("RANKMESH_SOCKET").env_remove("RANKMESH_LOG").stdin(Stdio::null());
    command.stdout(log.try_clone().expect("clone")).stderr(log);
    lab.adopt(name, command);
}

/// Asks an agent by the command line of its own build.
fn ask(lab: &Lab, program: &str, name: &str, sql: &str, more: &[&str]) -> (Value, i32) {
    let mut command = Command::new(program);
    command.args(["query", "--format", "json", "--timeout", "60s", "--socket"]).arg(lab.socket(name)).args(more);
    let output = command.arg(sql).stdin(Stdio::null()).output().expect("the binary runs");
    let answer = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{name}: {sql}: {error}: {}", String::from_utf8_lossy(&output.stderr)));
    (answer, output.status.code().unwrap_or(-1))
}

#[test]
fn agents_of_two_builds_answer_for_each_other() {
    let Ok(previous) = std::env::var("RANKMESH_PREVIOUS") else {
        eprintln!("skipped: agents_of_two_builds_answer_for_each_other: RANKMESH_PREVIOUS names no earlier build");
        return;
    };
    let mut lab = Lab::new();
    let database = |lab: &Lab, name: &str, sql: &str| {
        let file = lab.path(&format!("{name}-rows.db"));
        make_db(&file, sql);
        file.display().to_string()
    };
    let t = |values: &str| format!("CREATE TABLE t(k INTEGER, v INTEGER); INSERT INTO t VALUES {values};");
    // The newer ones have one more column and one more table.
    let wider = |values: &str| {
        format!(
            "CREATE TABLE t(k INTEGER, v INTEGER, w INTEGER); INSERT INTO t(k, v) VALUES {values};
             CREATE TABLE of_tomorrow(x INTEGER); INSERT INTO of_tomorrow VALUES (7);"
        )
    };
    for (name, values) in [("new1", "(1, 10), (2, 20)"), ("new2", "(1, 30)")] {
        let file = database(&lab, name, &wider(values));
        lab.start(name, &["--serve-db", &file]);
    }
    for (name, values) in [("old1", "(2, 40), (3, 50)"), ("old2", "(3, 60)")] {
        let file = database(&lab, name, &t(values));
        start_previous(&mut lab, &previous, name, &file);
    }
    let current = env!("CARGO_BIN_EXE_rankmesh");
    let all = ["new1", "new2", "old1", "old2"];
    let programs = [current, current, &previous, &previous];
    for (name, program) in all.iter().zip(programs) {
        wait_for(&format!("{name} counts four nodes"), || {
            let (answer, _) = ask(&lab, program, name, "SELECT count(*) FROM t", &[]);
            let covered = &answer["coverage"];
            if covered["answered"] == 4 && covered["asked"] == 4 { Ok(()) } else { Err(answer.to_string()) }
        });
        for (sql, rows) in [
            (
                "SELECT k, count(*), sum(v), avg(v), median(v) FROM t GROUP BY k ORDER BY k",
                json!([[1, 2, 40, 20.0, 20.0], [2, 2, 60, 30.0, 30.0], [3, 2, 110, 55.0, 55.0]]),
            ),
            ("SELECT node, k, v FROM t ORDER BY v DESC LIMIT 2", json!([["old2", 3, 60], ["old1", 3, 50]])),
            (
                "SELECT a.v, b.v FROM t a JOIN t b ON b.k = a.k AND b.v > a.v WHERE a.v < 45 ORDER BY 1",
                json!([[10, 30], [20, 40]]),
            ),
            ("SELECT approx_count_distinct(k), stddev_pop(v) FROM t WHERE k = 1", json!([[1, 10.0]])),
            // What the older ones lack counts as empty.
            ("SELECT count(w), count(*) FROM t", json!([[0, 6]])),
            ("SELECT x FROM of_tomorrow", json!([[7], [7]])),
        ] {
            let (answer, code) = ask(&lab, program, name, sql, &[]);
            assert_eq!((&answer["rows"], code), (&rows, 0), "asked at {name}: {sql}: {answer}");
            assert_eq!(answer["coverage"]["missing"], json!([]), "asked at {name}: {sql}");
        }
        let (answer, code) = ask(&lab, program, name, "SELECT count(*) FROM t", &["--per-node"]);
        assert_eq!((answer["rows"].as_array().map(Vec::len), code), (Some(4), 0), "asked at {name}: {answer}");
    }
    // An error of the question is one at every build; a node that goes is named by every build.
    for (name, program) in all.iter().zip(programs) {
        let mut command = Command::new(program);
        command.args(["query", "--timeout", "60s", "--socket"]).arg(lab.socket(name));
        let output = command.arg("SELECT abs(v - 9223372036854775807 - 11) FROM t").output().expect("the binary runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && said.contains("integer overflow"), "asked at {name}: {said}");
    }
    lab.kill("old2");
    lab.kill("new2");
    for (name, program) in [("new1", current), ("old1", &previous)] {
        let (answer, code) = ask(&lab, program, name, "SELECT sum(v) FROM t", &[]);
        assert_eq!((&answer["rows"], code), (&json!([[120]]), 3), "asked at {name}: {answer}");
        assert_eq!(answer["coverage"]["missing"].as_array().map(Vec::len), Some(2), "asked at {name}: {answer}");
    }
}
