//! Two builds in one mesh, as during an upgrade: agents of an earlier build and of this one find
//! each other, and the asked one answers for all of them, or names those that cannot. `make
//! check NAME=upgrade` builds the earlier one and sets its path; without `RANKMESH_PREVIOUS` this is
//! skipped.

mod common;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use common::{Lab, make_db, wait_for};
use rusqlite::Connection;
use serde_json::{Value, json};

/// Starts an agent of the earlier build in addition to those of the lab.
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
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && message.contains("integer overflow"), "asked at {name}: {message}");
    }
    lab.kill("old2");
    lab.kill("new2");
    for (name, program) in [("new1", current), ("old1", &previous)] {
        let (answer, code) = ask(&lab, program, name, "SELECT sum(v) FROM t", &[]);
        assert_eq!((&answer["rows"], code), (&json!([[120]]), 3), "asked at {name}: {answer}");
        assert_eq!(answer["coverage"]["missing"].as_array().map(Vec::len), Some(2), "asked at {name}: {answer}");
    }
}

/// Rows of a node before anything is upgraded.
const ROWS: i64 = 1_000;

/// One host of a mesh that is upgraded host by host.
#[derive(Clone)]
struct Host {
    name: &'static str,
    index: i64,
    program: String,
    socket: PathBuf,
}

impl Host {
    /// What a question for its rows is answered with: number and sum.
    fn rows(&self) -> (i64, f64) {
        (ROWS, (self.index * 1_000_000 * ROWS + ROWS * (ROWS + 1) / 2) as f64)
    }

    fn up(&self, lab: &Lab, store: &Path, join: Option<&str>) -> Command {
        let mut command = Command::new(&self.program);
        command.args(["up", "--name", self.name, "--listen", "127.0.0.1:0", "--capture", "off", "--identity"]);
        command.arg(lab.issue(self.name)).arg("--socket").arg(&self.socket).arg("--store").arg(store);
        command.args(join.map(|address| ["--join", address]).into_iter().flatten());
        command.env_remove("RANKMESH_SOCKET").env_remove("RANKMESH_LOG").stdin(Stdio::null());
        command
    }

    fn ask(&self, what: &str, more: &[&str]) -> Result<Value, String> {
        let mut command = Command::new(&self.program);
        command.args([what, "--format", "json", "--socket"]).arg(&self.socket).args(more);
        let output = command.stdin(Stdio::null()).output().expect("the binary runs");
        serde_json::from_slice(&output.stdout)
            .map_err(|error| format!("{}: {error}: {}", self.name, String::from_utf8_lossy(&output.stderr)))
    }
}

const BY_NODE: &str =
    "SELECT node, count(*), sum(value) FROM self_stats WHERE name = 'test' GROUP BY node ORDER BY node";
const ALL: &str = "SELECT count(*), sum(value), max(value) FROM self_stats WHERE name = 'test'";

/// Checks the answers of a host: each other one's rows are there completely, or it is named as
/// missing. With `complete` none may be missing.
fn judge(asked: &Host, hosts: &[Host], complete: bool) -> Result<usize, String> {
    let answer = asked.ask("query", &["--timeout", "60s", BY_NODE])?;
    let coverage = |answer: &Value| {
        let missing = answer["coverage"]["missing"].as_array().cloned().unwrap_or_default();
        missing.iter().filter_map(|node| node["node"].as_str().map(str::to_owned)).collect::<BTreeSet<String>>()
    };
    let missing = coverage(&answer);
    for host in hosts {
        let rows = answer["rows"].as_array().into_iter().flatten().filter(|row| row[0] == host.name);
        let found: Vec<_> = rows.map(|row| (row[1].as_i64(), row[2].as_f64())).collect();
        let (count, sum) = host.rows();
        let right = found == [(Some(count), Some(sum))] || (found.is_empty() && missing.contains(host.name));
        if !right || (complete && !missing.is_empty()) {
            return Err(format!("asked at {}, of {}: {answer}", asked.name, host.name));
        }
    }
    let answer = asked.ask("query", &["--timeout", "60s", ALL])?;
    let missing = coverage(&answer);
    let there = hosts.iter().filter(|host| !missing.contains(host.name)).map(Host::rows);
    let (count, sum) = there.fold((0, 0.0), |all, host| (all.0 + host.0, all.1 + host.1));
    if answer["rows"][0][0] != count || answer["rows"][0][1].as_f64() != Some(sum) || (complete && !missing.is_empty())
    {
        return Err(format!("asked at {}: {answer}, not {count} and {sum}", asked.name));
    }
    Ok(missing.len())
}

/// The mesh as it is upgraded: hosts that may be asked, and what answers were wrong.
struct Rolling {
    hosts: Mutex<Vec<Host>>,
    done: AtomicBool,
}

impl Rolling {
    /// Asks one host after the other until all is done: answers, partial ones among them, wrong
    /// ones.
    fn ask_all_the_time(&self, all: &[Host]) -> (usize, usize, Vec<String>) {
        let (mut answers, mut partial, mut wrong) = (0, 0, vec![]);
        for turn in 0.. {
            if self.done.load(Ordering::Acquire) {
                break;
            }
            let host = {
                let hosts = self.hosts.lock().expect("not poisoned");
                hosts[turn % hosts.len()].clone()
            };
            match judge(&host, all, false) {
                Ok(missing) => (answers, partial) = (answers + 1, partial + usize::from(missing > 0)),
                // Its agent was stopped while it was asked: no answer is no wrong answer.
                Err(_) if !self.hosts.lock().expect("not poisoned").iter().any(|h| h.name == host.name) => {}
                Err(why) => wrong.push(why),
            }
        }
        (answers, partial, wrong)
    }

    /// Stops a host's agent and has `next` run on `store`; returns when all six answer there.
    fn replace(&self, lab: &mut Lab, all: &[Host], name: &str, program: &str, store: &Path) {
        let (host, join) = {
            let mut hosts = self.hosts.lock().expect("not poisoned");
            let at = hosts.iter().position(|host| host.name == name).expect("it runs");
            let host = hosts.remove(at);
            (Host { program: program.to_owned(), ..host }, address(&hosts[0]))
        };
        lab.terminate(name);
        lab.agents.retain(|agent| agent.name != name);
        let mut command = host.up(lab, store, Some(&join));
        logged(lab, name, &mut command);
        lab.adopt(name, command);
        wait_for(&format!("{name} answers for all"), || judge(&host, all, true));
        self.hosts.lock().expect("not poisoned").push(host);
    }

    /// Whoever is asked answers for all six.
    fn all_answer(&self, all: &[Host]) {
        let hosts = self.hosts.lock().expect("not poisoned").clone();
        assert_eq!(hosts.len(), all.len());
        for host in hosts {
            wait_for(&format!("{} answers for all", host.name), || judge(&host, all, true));
        }
    }
}

fn address(host: &Host) -> String {
    let nodes = host.ask("nodes", &[]).expect("it answers");
    let own = nodes.as_array().into_iter().flatten().find(|node| node["self"] == true);
    own.and_then(|node| node["address"].as_str()).expect("its address").to_owned()
}

fn logged(lab: &Lab, name: &str, command: &mut Command) {
    let log = std::fs::OpenOptions::new().create(true).append(true).open(lab.path(&format!("{name}.log")));
    command.stdout(Stdio::null()).stderr(log.expect("a log file"));
}

fn schema_of(store: &Path) -> i64 {
    let conn = Connection::open(store).expect("opens");
    conn.query_row("PRAGMA user_version", [], |row| row.get(0)).expect("a number")
}

#[test]
fn six_agents_are_upgraded_one_after_the_other_and_back_under_questions() {
    let Ok(previous) = std::env::var("RANKMESH_PREVIOUS") else {
        eprintln!(
            "skipped: six_agents_are_upgraded…: RANKMESH_PREVIOUS names no earlier build (make check NAME=upgrade)"
        );
        return;
    };
    let current = env!("CARGO_BIN_EXE_rankmesh");
    let mut lab = Lab::new();
    let store = |lab: &Lab, name: &str| lab.path(&format!("{name}.db"));
    let kept = |lab: &Lab, name: &str| lab.path(&format!("{name}-before.db"));
    let names = ["u1", "u2", "u3", "u4", "u5", "u6"];
    let all: Vec<Host> = (1..)
        .zip(names)
        .map(|(index, name)| Host { name, index, program: previous.clone(), socket: lab.socket(name) })
        .collect();

    // Each store is the older release's own, and filled.
    for host in &all {
        let mut command = host.up(&lab, &store(&lab, host.name), None);
        logged(&lab, host.name, &mut command);
        lab.adopt(host.name, command);
        wait_for("the store is there", || host.ask("nodes", &[]));
        lab.terminate(host.name);
        lab.agents.clear();
        let conn = Connection::open(store(&lab, host.name)).expect("opens");
        conn.execute(
            "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < ?1)
             INSERT INTO self_stats SELECT unixepoch() * 1000000000 + n, 'test', ?2 * 1000000 + n, 'rows' FROM r",
            [ROWS, host.index],
        )
        .expect("rows");
        conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).expect("in the file");
        drop(conn);
        std::fs::copy(store(&lab, host.name), kept(&lab, host.name)).expect("a copy to go back to");
    }
    let mut first = None;
    for host in &all {
        let mut command = host.up(&lab, &store(&lab, host.name), first.as_deref());
        logged(&lab, host.name, &mut command);
        lab.adopt(host.name, command);
        wait_for("it answers", || host.ask("nodes", &[]));
        first.get_or_insert_with(|| address(host));
    }
    let rolling = Rolling { hosts: Mutex::new(all.clone()), done: AtomicBool::new(false) };
    rolling.all_answer(&all);
    let old_schema = schema_of(&store(&lab, "u1"));

    let (answers, partial, wrong) = std::thread::scope(|scope| {
        let asking = scope.spawn(|| rolling.ask_all_the_time(&all));
        for (done, name) in names.iter().enumerate() {
            let same = store(&lab, name);
            rolling.replace(&mut lab, &all, name, current, &same);
            if done == 2 {
                rolling.all_answer(&all);
            }
        }
        rolling.all_answer(&all);
        let new_schema = schema_of(&store(&lab, "u1"));
        for (done, name) in names.iter().enumerate() {
            let back = if new_schema == old_schema { store(&lab, name) } else { kept(&lab, name) };
            rolling.replace(&mut lab, &all, name, &previous, &back);
            if done == 2 {
                rolling.all_answer(&all);
            }
        }
        rolling.all_answer(&all);
        rolling.done.store(true, Ordering::Release);
        asking.join().expect("it asked")
    });
    eprintln!("{answers} pairs of questions while 12 agents were replaced, {partial} partial, {} wrong", wrong.len());
    assert_eq!(wrong, Vec::<String>::new());
    assert!(answers >= 24, "{answers} answers: hardly any while agents were replaced");

    // The store that the newer release has opened has all its rows; the older one gives the reason
    // why it does not open it, and leaves it as it is.
    let migrated = store(&lab, "u1");
    let asked = |program: &str| {
        let mut command = Command::new(program);
        let output = command.args(["query", "--format", "csv", "--db"]).arg(&migrated).arg(ALL).output().expect("runs");
        (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    };
    let (code, printed) = asked(current);
    assert!(code == Some(0) && printed.contains(&format!("\n{ROWS},")), "{printed}");
    if schema_of(&migrated) > old_schema {
        let (code, printed) = asked(&previous);
        assert!(
            code == Some(1) && printed.contains("schema version") && printed.contains("newer rankmesh"),
            "{printed}"
        );
        let host = Host { name: "u7", index: 7, program: previous, socket: lab.socket("u7") };
        let output = host.up(&lab, &migrated, None).output().expect("runs");
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && printed.contains("newer rankmesh"), "{printed}");
        assert!(asked(current).1.contains(&format!("\n{ROWS},")));
    }
}
