//! What reads an archive's files: other engines, a bucket's client, and the mesh where files have
//! other columns or are damaged.

use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::common::job_stores::T0;
use crate::common::{Killed, rankmesh, run, stderr, stdout, wait_for};
use crate::{archived, ask, investigations, same, text};

/// The Python that `make check NAME=history` made, or the system's, where it has these packages.
fn python(test: &str, packages: &str) -> Option<PathBuf> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/history/bin/python");
    let python = if own.exists() { own } else { PathBuf::from("python3") };
    let has = Command::new(&python).args(["-c", &format!("import {packages}")]).stderr(Stdio::null()).status();
    if !has.is_ok_and(|status| status.success()) {
        eprintln!("skipped: {test}: {} has no {packages} (make check NAME=history installs them)", python.display());
        return None;
    }
    Some(python)
}

/// Two stores in addition to those of the job: one that lacks columns, and one with an additional
/// column; archived under names of their own.
fn archive_other_schemas(dir: &Path, archive: &Path) {
    let sessions = "INSERT INTO sessions VALUES (1, {birth}, {birth}, NULL, '0.1', 'b', 'h', 'k');";
    let calls = "WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 99) \
         INSERT INTO collectives (ts_ns, duration_ns, pid, tid, rank, nranks, comm_hash, func, seq, library, tier, ret, \
         cgroup_id, job_id) SELECT {first} + i, 1000 + i, 1, 1, i % 4, 4, 7, 'all_reduce', i, 'mpi', 1, 0, 1, 'old' FROM n;";
    let filled =
        |sql: &str, birth: i64| sql.replace("{birth}", &birth.to_string()).replace("{first}", &(T0 + 5).to_string());
    let fewer =
        "ALTER TABLE collectives DROP COLUMN captured; ALTER TABLE collectives DROP COLUMN site; {sessions} {calls}";
    let more = "ALTER TABLE collectives ADD COLUMN algorithm TEXT; {sessions} {calls} UPDATE collectives SET captured = 9, algorithm = 'ring';";
    for (name, sql, birth) in [("older", fewer, T0 + 1), ("more", more, T0 + 2)] {
        let connection = rusqlite::Connection::open(dir.join(format!("{name}.db"))).expect("a database");
        store::write_plain_schema(&connection).expect("a store");
        let sql = sql.replace("{sessions}", sessions).replace("{calls}", calls);
        connection.execute_batch(&filled(&sql, birth)).expect("valid SQL");
    }
    for name in ["older", "more"] {
        let db = dir.join(format!("{name}.db"));
        let done = run(&["archive", "--open-hours", "--full-speed", "--db", text(&db), "--to", text(archive)]);
        assert!(done.status.success(), "{name}: {}", stderr(&done));
    }
}

/// A question over nodes whose files have different columns, and its answer.
const OF_SCHEMAS: (&str, &str) = (
    "SELECT node, count(*), count(captured), sum(duration_ns), max(seq) FROM collectives WHERE node IN ('older', 'more') \
     GROUP BY node ORDER BY node",
    r#"[["more", 100, 100, 104950, 99], ["older", 100, 0, 104950, 99]]"#,
);

#[test]
fn files_of_several_schemas_are_asked_together_and_a_damaged_one_is_missing() {
    let dir = tempfile::tempdir().expect("a directory");
    let archive = dir.path().join("archive");
    std::fs::create_dir(&archive).expect("a directory");
    archive_other_schemas(dir.path(), &archive);
    let of = ["--archive", text(&archive)];
    let (sql, wanted) = OF_SCHEMAS;
    assert_eq!(ask(&of, sql)["rows"], serde_json::from_str::<Value>(wanted).expect("JSON"));
    // The same from columns and through SQLite's rows, whose values are texts too.
    for (sql, wanted) in [
        ("SELECT count(*) FROM collectives WHERE captured IS NULL", 100),
        ("SELECT count(*) FROM collectives WHERE captured = 9 AND func = 'all_reduce'", 100),
        ("SELECT count(*) FROM collectives WHERE captured + 0 IS NULL AND func LIKE 'all%'", 100),
        ("SELECT count(*) FROM collectives a JOIN collectives b USING (node, seq) WHERE a.captured IS b.captured", 200),
    ] {
        assert_eq!(ask(&of, sql)["rows"][0][0], wanted, "{sql}");
    }
    let explained = run(&["query", "--explain=analyze", "--archive", text(&archive), sql]);
    assert!(stdout(&explained).contains("columns of 1 segments"), "{}", stdout(&explained));

    // A file that lost its end, and one whose bytes changed: those nodes are missing by name, the
    // others answer.
    let found =
        Command::new("find").arg(&archive).args(["-name", "node=older*.parquet", "-path", "*=collectives*"]).output();
    let file = PathBuf::from(stdout(&found.expect("find")).trim());
    let complete = std::fs::read(&file).expect("a file");
    let mut changed = complete.clone();
    let middle = changed.len() / 8;
    changed[4..middle].iter_mut().for_each(|byte| *byte = !*byte);
    for damaged in [&complete[..complete.len() / 2], b"", &changed] {
        std::fs::write(&file, damaged).expect("written");
        for sql in [
            "SELECT sum(duration_ns), sum(seq), max(ts_ns) FROM collectives",
            "SELECT * FROM collectives ORDER BY ts_ns, seq",
        ] {
            let output = run(&[&["query", "--format", "json"], &of[..], &["--", sql]].concat());
            assert_eq!(output.status.code(), Some(3), "{sql}: {}", stderr(&output));
            let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
            assert_eq!(answer["coverage"]["answered"], 1, "{answer}");
            let missing = answer["coverage"].to_string();
            assert!(missing.contains("older") && missing.contains("table=collectives/"), "{missing}");
        }
    }
}

#[test]
fn duckdb_and_clickhouse_answer_as_the_mesh_does() {
    let dir = tempfile::tempdir().expect("a directory");
    let engines: Vec<(&str, &str)> = vec![("duckdb", "duckdb"), ("clickhouse", "chdb")];
    let found: Vec<(&str, PathBuf)> = engines
        .into_iter()
        .filter_map(|(engine, package)| {
            Some((engine, python("duckdb_and_clickhouse_answer_as_the_mesh_does", package)?))
        })
        .collect();
    if found.is_empty() {
        return;
    }
    let (stores, archive) = archived(dir.path());
    let all = investigations();
    let questions: Vec<&str> = all.iter().map(|investigation| investigation.engines.as_str()).collect();
    let ask_engine = |engine: &str, python: &Path, questions: &[&str]| -> Vec<Value> {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut child = Command::new(python)
            .arg(here.join("tests/history/ask.py"))
            .arg(engine)
            .arg(here.join(format!("../docs/history/{engine}.sql")))
            .arg(&archive)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("Python");
        let mut to = child.stdin.take().expect("a pipe");
        to.write_all(serde_json::to_string(&questions).expect("JSON").as_bytes()).expect("written");
        drop(to);
        let output = child.wait_with_output().expect("an end");
        assert!(output.status.success(), "{engine} failed; its words are above");
        serde_json::from_slice(&output.stdout).expect("JSON")
    };
    for (engine, python) in &found {
        let answers = ask_engine(engine, python, &questions);
        for (investigation, answer) in all.iter().zip(&answers) {
            let expected = ask(&["--db", text(&stores)], &investigation.mesh);
            assert!(
                same(answer, &expected["rows"]),
                "{engine}, {}: {answer} is not {}",
                investigation.name,
                expected["rows"]
            );
        }
    }
    // Files of other schema versions are added to the archive.
    archive_other_schemas(dir.path(), &archive);
    let (sql, wanted) = OF_SCHEMAS;
    let wanted: Value = serde_json::from_str(wanted).expect("JSON");
    for (engine, python) in &found {
        let answers = ask_engine(engine, python, &[sql]);
        assert!(same(&answers[0], &wanted), "{engine}: {} is not {wanted}", answers[0]);
    }
}

#[test]
fn a_bucket_is_an_archive_as_a_directory_is() {
    let Some(python) = python("a_bucket_is_an_archive_as_a_directory_is", "moto.server") else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let port = TcpListener::bind("127.0.0.1:0").and_then(|found| found.local_addr()).expect("a port").port();
    let log = std::fs::File::create(dir.path().join("moto.log")).expect("a file");
    let server = Command::new(python)
        .args(["-m", "moto.server", "-H", "127.0.0.1", "-p", &port.to_string()])
        .stdout(Stdio::null())
        .stderr(log)
        .spawn();
    let _server = Killed(server.expect("a server"));
    wait_for("the S3 server", || std::net::TcpStream::connect(("127.0.0.1", port)).map_err(|error| error.to_string()));
    let endpoint = format!("http://127.0.0.1:{port}");
    let put = |path: &str| {
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).expect("a connection");
        write!(
            stream,
            "PUT {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        )
        .expect("sent");
        let mut answer = String::new();
        std::io::Read::read_to_string(&mut stream, &mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    };
    put("/history");
    let with = |arguments: &[&str]| {
        let mut command = rankmesh();
        command.args(arguments).env("AWS_ACCESS_KEY_ID", "who").env("AWS_SECRET_ACCESS_KEY", "hush-hush");
        command.env("AWS_REGION", "us-east-1").env("AWS_ENDPOINT_URL", &endpoint).env("AWS_ALLOW_HTTP", "true");
        command.output().expect("it runs")
    };
    let (stores, directory) = archived(dir.path());
    let bucket = "s3://history/cluster/one";
    let done = with(&["archive", "--open-hours", "--full-speed", "--db", text(&stores), "--to", bucket]);
    assert!(done.status.success(), "{}", stderr(&done));
    let sql = "SELECT rank, count(*), sum(duration_ns) FROM collectives GROUP BY rank ORDER BY rank";
    let answer = with(&["query", "--format", "json", "--archive", bucket, sql]);
    assert!(answer.status.success(), "{}", stderr(&answer));
    let answer: Value = serde_json::from_str(&stdout(&answer)).expect("JSON");
    assert_eq!(answer["rows"], ask(&["--archive", text(&directory)], sql)["rows"]);
    let wrong = with(&["archive", "--db", text(&stores), "--to", "s3://no-such-bucket/x", "--open-hours"]);
    assert_eq!(wrong.status.code(), Some(1));
    assert!(!stderr(&wrong).contains("hush-hush") && stderr(&wrong).contains("no-such-bucket"), "{}", stderr(&wrong));
}
