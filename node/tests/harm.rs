//! Harm done to a mesh of real agents, one of which records: questions that build gigabytes or
//! never end are stopped on every node, and names of hostile processes steer neither a terminal nor
//! SQL.

mod common;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::jobs::{Cgroups, Job, workloads};
use common::{Lab, can_capture, rankmesh, stderr, stdout, wait_for};
use serde_json::{Value, json};

/// Of a file that lists `name: N kB` lines.
fn peak_mib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") >> 10
}

/// CPU time of a process, in ticks of 10 ms.
fn cpu_ticks(pid: u32) -> u64 {
    let stat = procfs::process::Process::new(pid.cast_signed()).and_then(|process| process.stat()).expect("a process");
    stat.utime + stat.stime
}

/// A number that one node answers.
fn number(lab: &Lab, node: &str, sql: &str) -> i64 {
    let (answer, _) = lab.query(node, sql, &["--nodes", node, "--timeout", "60s"]);
    answer["rows"][0][0].as_i64().unwrap_or_else(|| panic!("{sql}: {answer}"))
}

/// What each would do on a node that let it.
const BOMBS: [&str; 5] = [
    "SELECT zeroblob(2000000000) FROM audit",
    "SELECT length(printf('%.*c', 1000000000, 'x')) FROM audit",
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 1000000) \
     SELECT length(group_concat(hex(zeroblob(1000000)))) FROM audit, n",
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 10000) \
     SELECT count(*) FROM audit, n a, n b, n c WHERE a.i + b.i + c.i = -1",
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n, audit",
];

#[test]
fn bombs_are_stopped_on_every_node_and_recording_goes_on() {
    const NODES: [&str; 3] = ["h1", "h2", "h3"];
    let records = can_capture("that recording goes on while bombs are stopped");
    let mut lab = Lab::new();
    let cgroups = records.then(|| Cgroups::new("harm", &["h1"]));
    match &cgroups {
        Some(cgroups) => lab.start("h1", &["--cgroup", &cgroups.path("h1").display().to_string()]),
        None => lab.start("h1", &[]),
    }
    lab.start("h2", &[]);
    lab.start("h3", &[]);
    lab.wait_for_members(&NODES);
    let calls = "SELECT count(*) FROM collectives WHERE func = 'all_reduce'";
    let job = cgroups.as_ref().map(|cgroups| {
        let child = Command::new(workloads(&lab).join("nccl-ranks"))
            .args(["--ranks", "2", "--iters", "1000000", "--work-ms", "20", "--cgroups"])
            .arg(cgroups.path("h1"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("the job starts");
        wait_for("the job is recorded", || {
            let recorded = number(&lab, "h1", calls);
            if recorded > 0 { Ok(()) } else { Err("no call".to_owned()) }
        });
        Job(child)
    });
    for node in NODES {
        wait_for("every audit has a row to start from", || {
            let rows = number(&lab, node, "SELECT count(*) FROM audit");
            if rows > 0 { Ok(()) } else { Err(format!("{node}: none")) }
        });
    }
    let before = NODES.map(|node| peak_mib(lab.pid(node)));
    for bomb in BOMBS {
        let asked = lab.ask("h1", "query", &["--per-node", "--timeout", "3s", "--", bomb]);
        let printed = stderr(&asked);
        assert_eq!((asked.status.code(), stdout(&asked).as_str()), (Some(1), ""), "{bomb}: {printed}");
        // If all nodes refuse alike, the first refusal ends the question for all; else each is
        // named.
        let why = ["too big", "budget", "timeout", "deadline", "memory", "took longer"];
        assert!(
            printed.contains("0 of 3 nodes answered") && why.iter().any(|why| printed.contains(why)),
            "{bomb}: {printed}"
        );
    }
    for (node, before) in NODES.iter().zip(before) {
        // Nothing of it runs on: the process is idle for a while. (A loop of SQLite's would take
        // all it gets.)
        wait_for("the node is at rest", || {
            let began = cpu_ticks(lab.pid(node));
            std::thread::sleep(Duration::from_millis(300));
            let ticks = cpu_ticks(lab.pid(node)) - began;
            if ticks <= 3 { Ok(()) } else { Err(format!("{node}: {ticks} ticks")) }
        });
        // Twice the cap of a question, for the copy that was under way when it was refused.
        let grown = peak_mib(lab.pid(node)) - before;
        assert!(grown < 700, "{node} grew by {grown} MiB");
    }
    // The first node that refuses a question to all ends it for the others, which may not have
    // received it: so each is asked alone, for the audit.
    for node in &NODES[1..] {
        for bomb in BOMBS {
            let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a clock").as_nanos();
            let noted = format!(
                "SELECT count(*) FROM audit WHERE kind = 'task' AND who = 'h1' AND outcome IN ('refused', 'failed') AND ts_ns >= {since}"
            );
            // If the machine is so slow that the deadline passes before the node has received the
            // question, it is asked again.
            wait_for("the audit has it", || {
                let asked = lab.ask("h1", "query", &["--nodes", node, "--timeout", "3s", "--", bomb]);
                assert_eq!(asked.status.code(), Some(1), "{node}: {bomb}: {}", stderr(&asked));
                let until = Instant::now() + Duration::from_secs(2);
                while number(&lab, node, &noted) == 0 {
                    if Instant::now() >= until {
                        return Err(format!("{node}: {bomb}: {}", stderr(&asked)));
                    }
                    std::thread::sleep(Duration::from_millis(20));
                }
                Ok(())
            });
        }
    }
    if job.is_some() {
        let so_far = number(&lab, "h1", calls);
        wait_for("recording goes on", || {
            let now = number(&lab, "h1", calls);
            if now > so_far { Ok(()) } else { Err(format!("{now} calls")) }
        });
        assert_eq!(number(&lab, "h1", "SELECT coalesce(sum(lost), 0) FROM capture_loss"), 0, "calls were lost");
    }
}

/// What steers a terminal, ends a SQL text, turns the reading direction and is no UTF-8.
const NAME: &[u8] = b"\x1b[2J'; DROP TABLE processes; --\xe2\x80\xae\xc2\x9b\xff";

#[test]
fn names_of_hostile_processes_steer_neither_a_terminal_nor_sql() {
    if !can_capture("names_of_hostile_processes_steer_neither_a_terminal_nor_sql") {
        return;
    }
    let mut lab = Lab::new();
    let cgroups = Cgroups::new("names", &["h1"]);
    let cgroup = cgroups.path("h1").display().to_string();
    lab.start("h1", &["--cgroup", &cgroup]);
    lab.wait_for_members(&["h1"]);
    let bin = workloads(&lab);
    let program = bin.join(OsStr::from_bytes(NAME));
    std::fs::copy(bin.join("nccl-ranks"), &program).expect("a copy");
    let child = Command::new(&program)
        .args(["--ranks", "2", "--iters", "1000000", "--work-ms", "20", "--cgroups", &cgroup])
        .env("SLURM_JOB_ID", OsStr::from_bytes(b"\x1b]0;owned\x07'); --"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the job starts");
    let _job = Job(child);
    let sql = "SELECT comm, exe, job_id FROM processes WHERE rank = 0";
    let row = wait_for("the process is recorded", || {
        let (answer, _) = lab.query("h1", sql, &[]);
        answer["rows"][0].as_array().cloned().ok_or_else(|| answer.to_string())
    });
    // The data are what they are …
    let exe = String::from_utf8_lossy(NAME);
    assert!(row[1].as_str().is_some_and(|found| found.ends_with(&*exe)), "{row:?}");
    // … are found by it, and every way of showing them is quiet.
    let by_name = "SELECT count(*) > 0 FROM processes WHERE exe LIKE '%DROP TABLE%' AND comm = comm";
    assert_eq!(lab.query("h1", by_name, &[]).0["rows"], json!([[1]]));
    wait_for("calls of it are there", || {
        let calls = number(&lab, "h1", "SELECT count(*) FROM collectives");
        if calls > 20 { Ok(()) } else { Err(format!("{calls}")) }
    });
    let shown = [
        ("query", vec!["--format", "table", sql]),
        ("query", vec!["--format", "json", sql]),
        ("query", vec!["--format", "ndjson", sql]),
        ("query", vec!["--explain=analyze", sql]),
        ("query", vec!["SELECT \"\u{1b}[2J\" FROM nothing"]),
        ("nodes", vec![]),
        ("nodes", vec!["--format", "json"]),
        ("stragglers", vec!["--since", "10s"]),
        ("stragglers", vec!["--since", "10s", "--format", "json"]),
        ("stragglers", vec!["--since", "10s", "--show-sql"]),
    ];
    for (command, arguments) in shown {
        let output = lab.ask("h1", command, &arguments);
        for text in [stdout(&output), stderr(&output)] {
            let steers = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
            assert!(!text.chars().any(steers), "{command} {arguments:?}: {text:?}");
        }
    }
    let log = lab.log("h1");
    assert!(!log.contains(['\u{1b}', '\u{9b}', '\u{202e}', '\u{7}']), "{log:?}");
    let tables: Value = lab.query("h1", "SELECT count(*) > 0 FROM processes", &[]).0["rows"].clone();
    assert_eq!(tables, json!([[1]]));
}

#[test]
fn files_are_private_under_any_umask_and_temporary_directory() {
    use std::os::unix::fs::{FileTypeExt, PermissionsExt};

    let dir = tempfile::tempdir().expect("a directory");
    let (state, hostile) = (dir.path().join("state"), dir.path().join("tmp"));
    for made in [&hostile, &state, &state.join("store")] {
        std::fs::create_dir(made).expect("a directory");
        std::fs::set_permissions(made, std::fs::Permissions::from_mode(0o700)).expect("a mode");
    }
    std::fs::set_permissions(&hostile, std::fs::Permissions::from_mode(0o1777)).expect("a mode");
    let socket = state.join("run/a.sock");
    let log = std::fs::File::create(dir.path().join("log")).expect("a log file");
    let child = Command::new("sh")
        .args(["-c", "umask 0; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_rankmesh")])
        .args(["up", "--name", "a", "--listen", "127.0.0.1:0", "--capture", "off", "--identity"])
        .arg(state.join("identity"))
        .arg("--store")
        .arg(state.join("store/a.db"))
        .arg("--socket")
        .arg(&socket)
        .env("TMPDIR", &hostile)
        .env("SQLITE_TMPDIR", &hostile)
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("clone"))
        .stderr(log)
        .spawn()
        .expect("the agent starts");
    let agent = Job(child);
    let sort = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 200000) \
                SELECT hex(i), (SELECT count(*) FROM audit) FROM n ORDER BY hex(i) DESC LIMIT 1";
    wait_for("it sorts more than fits a page", || {
        let asked = common::rankmesh()
            .args(["query", "--format", "json", "--timeout", "60s", "--socket"])
            .args([socket.as_os_str(), OsStr::new(sort)])
            .output()
            .expect("runs");
        let log = || std::fs::read_to_string(dir.path().join("log")).unwrap_or_default();
        if asked.status.success() { Ok(()) } else { Err(stderr(&asked) + &log()) }
    });
    let mut files = Vec::new();
    let mut directories = vec![state];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(&directory).expect("readable").flatten() {
            let metadata = entry.metadata().expect("a file");
            let (path, mode) = (entry.path(), metadata.permissions().mode() & 0o7777);
            let public = ["ca.pem", "trust.json"].iter().any(|name| path.ends_with(name));
            let most = match () {
                () if metadata.is_dir() => 0o700,
                () if public => 0o644,
                () if metadata.file_type().is_socket() => 0o600,
                () => 0o640,
            };
            assert_eq!(mode & !most, 0, "{} has mode {mode:o}", path.display());
            if metadata.is_dir() {
                directories.push(path);
            } else {
                files.push(path);
            }
        }
    }
    for made in ["node.pem", "authority.pem", "tokens.json", "a.db", "a.sock"] {
        assert!(files.iter().any(|file| file.ends_with(made)), "{made} is not among {files:?}");
    }
    // Nothing of the agent goes through a directory where others may put files and links.
    let left: Vec<_> = std::fs::read_dir(&hostile).expect("readable").flatten().collect();
    assert!(left.is_empty(), "{left:?}");
    drop(agent);
}

/// Long values, made anew for each row by functions that SQLite would not look up from.
const HOSTILE: &str = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 100000) \
     SELECT count(*) FROM audit, n WHERE replace(hex(zeroblob(4000000)), '0' || i, 'x') LIKE '%0%1%2%3'";

#[test]
fn an_agent_with_hostile_questions_at_work_ends_when_it_is_asked_to_and_its_store_is_whole() {
    let mut lab = Lab::new();
    lab.start("h1", &[]);
    wait_for("audit has a row to start from", || {
        if number(&lab, "h1", "SELECT count(*) FROM audit") > 0 { Ok(()) } else { Err("none".to_owned()) }
    });
    let mut clients: Vec<_> = (0..8)
        .map(|_| {
            let mut client = rankmesh();
            client.arg("query").arg("--socket").arg(lab.socket("h1")).args(["--timeout", "300s", HOSTILE]);
            client.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("runs")
        })
        .collect();
    let (pid, before) = (lab.pid("h1"), cpu_ticks(lab.pid("h1")));
    wait_for("the questions are at work", || {
        let ticks = cpu_ticks(pid) - before;
        if ticks > 100 { Ok(()) } else { Err(format!("{ticks} ticks")) }
    });
    let began = Instant::now();
    lab.terminate("h1");
    let took = began.elapsed();
    eprintln!("an agent with 8 hostile questions at work ended {took:?} after SIGTERM");
    // The questions had minutes left: `terminate` would have failed had the agent waited for them.
    for client in &mut clients {
        assert!(!client.wait().expect("its end").success(), "an answer of an agent that has gone");
    }
    let counted = rankmesh().args(["query", "--db"]).arg(lab.path("h1.db")).arg("SELECT count(*) FROM audit").output();
    let counted = counted.expect("runs");
    assert!(counted.status.success(), "{}", stderr(&counted));
}
