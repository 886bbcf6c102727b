//! Hours of a job's stores in an archive: the same answers from the stores, from the archive, from
//! both, and from DuckDB and ClickHouse's local engine over the archive's files.

mod common;

use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::job_stores::{EndedJob, T0};
use common::{Lab, rankmesh, run, stderr, stdout, wait_for};
use serde_json::Value;
use store::{Finding, Store, StoreConfig};

/// Two hosts, eight ranks, two hours and a half.
fn job() -> EndedJob {
    EndedJob { hosts: 2, local: 4, steps: 900, step_ns: 10_000_000_000, late: Some((5, 100_000_000)) }
}

/// A question of docs/investigations that other engines can be asked, too.
struct Investigation {
    name: String,
    /// For engines with the views.
    engines: String,
    mesh: String,
}

/// Those that need none of our functions and no table that the job's stores lack.
const OF_ALL_ENGINES: [&str; 20] = [
    "jobs",
    "waits-by-rank",
    "longest-waits",
    "calls-by-function",
    "communicators",
    "durations-by-rank",
    "calls-by-hour",
    "incomplete-collectives",
    "step-times",
    "ranks",
    "calls-by-process",
    "preempted-by",
    "offcpu-by-rank",
    "off-cpu-at-least",
    "retransmits",
    "sums-by-function",
    "sums-and-rows",
    "findings",
    "repeat-culprits",
    "host-load",
];

fn investigations() -> Vec<Investigation> {
    let read = |name: &str| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../docs/investigations/{name}.sql"));
        // All of the job's time, and no job.
        let mut mesh = std::fs::read_to_string(path).expect("an investigation");
        for (parameter, value) in [
            (":since", (T0 - 1).to_string()),
            (":until", (T0 + 86_400_000_000_000).to_string()),
            (":job", "''".to_owned()),
            (":least", "1000000000".to_owned()),
        ] {
            mesh = mesh.replace(parameter, &value);
        }
        let engines = mesh.lines().find_map(|line| line.strip_prefix("-- views: ")).unwrap_or(&mesh).to_owned();
        Investigation { name: name.to_owned(), engines, mesh }
    };
    OF_ALL_ENGINES.iter().map(|name| read(name)).collect()
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

fn ask(arguments: &[&str], sql: &str) -> Value {
    try_ask(arguments, sql).unwrap_or_else(|error| panic!("{sql}: {error}"))
}

fn try_ask(arguments: &[&str], sql: &str) -> Result<Value, String> {
    let output = run(&[&["query", "--format", "json", "--timeout", "60s"], arguments, &["--", sql]].concat());
    if !output.status.success() {
        return Err(stderr(&output));
    }
    serde_json::from_str(&stdout(&output)).map_err(|error| error.to_string())
}

/// Equal but for the last bits of floats.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Value::Number(a), Value::Number(b)) => match (a.as_i64(), b.as_i64()) {
            (Some(a), Some(b)) => a == b,
            _ => {
                let (a, b) = (a.as_f64().unwrap_or(f64::NAN), b.as_f64().unwrap_or(f64::NAN));
                (a - b).abs() <= 1e-9 * a.abs().max(b.abs())
            }
        },
        (a, b) => a == b,
    }
}

/// The Python that `make test-history` made, or the system's, where it has these packages.
fn python(test: &str, packages: &str) -> Option<PathBuf> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/history/bin/python");
    let python = if own.exists() { own } else { PathBuf::from("python3") };
    let has = Command::new(&python).args(["-c", &format!("import {packages}")]).stderr(Stdio::null()).status();
    if !has.is_ok_and(|status| status.success()) {
        eprintln!("skipped: {test}: {} has no {packages} (make test-history installs them)", python.display());
        return None;
    }
    Some(python)
}

/// The stores of the job and their archive.
fn archived(dir: &Path) -> (PathBuf, PathBuf) {
    let (stores, archive) = (dir.join("stores"), dir.join("archive"));
    std::fs::create_dir(&stores).expect("a directory");
    std::fs::create_dir(&archive).expect("a directory");
    job().write(&stores);
    let forever = StoreConfig { max_age: Duration::from_secs(100 * 365 * 86_400), ..StoreConfig::default() };
    let store = Store::open(stores.join("n0.db"), forever).expect("a store");
    for (job, node) in [("4711", "n1"), ("4712", "n1"), ("4712", "n1"), ("4713", "n0")] {
        store.ingest().finding(Finding {
            ts_ns: T0 + 3_600_000_000_000,
            verdict: "rank".to_owned(),
            rank: Some(5),
            culprit_node: Some(node.to_owned()),
            job_id: Some(job.to_owned()),
            ..Finding::default()
        });
    }
    store.close();
    let done = run(&["archive", "--open-hours", "--full-speed", "--db", text(&stores), "--to", text(&archive)]);
    assert!(done.status.success(), "{}", stderr(&done));
    (stores, archive)
}

#[test]
fn stores_archive_and_both_together_answer_alike() {
    let dir = tempfile::tempdir().expect("a directory");
    let (stores, archive) = archived(dir.path());
    let (stores, archive) = (text(&stores), text(&archive));
    for Investigation { name, mesh, .. } in investigations() {
        let expected = ask(&["--db", stores], &mesh);
        let is_empty = expected["rows"].as_array().is_none_or(Vec::is_empty);
        assert_eq!(is_empty, name == "incomplete-collectives", "{name}");
        for from in [&["--archive", archive][..], &["--archive", archive, "--db", stores]] {
            let answer = ask(from, &mesh);
            assert!(same(&answer["rows"], &expected["rows"]), "{name} {from:?}: {answer} is not {expected}");
            assert_eq!(answer["coverage"]["answered"], 2, "{name}");
        }
    }
    // A job's verdict and bill come from the archive as from the stores.
    let span = ["--between", "2026-01-01T01:30Z", "2026-01-01T02:00Z"];
    for (command, span, figures) in
        [("stragglers", &span[..], ["verdict", "ranks"]), ("cost", &["--job", "4711"], ["culprits", "collectives"])]
    {
        let of = |flag: &str, path: &str| -> Value {
            let output = run(&[&[command, "--format", "json", "--timeout", "60s", flag, path], span].concat());
            assert!(output.status.success(), "{command} {flag}: {}", stderr(&output));
            serde_json::from_str(&stdout(&output)).expect("JSON")
        };
        let (from_stores, from_archive) = (of("--db", stores), of("--archive", archive));
        for figure in figures {
            assert!(
                same(&from_archive[figure], &from_stores[figure]),
                "{command}: {from_archive} is not {from_stores}"
            );
        }
        assert_ne!(from_stores[figures[0]], Value::Null, "{command}");
    }
    // A second pass writes nothing.
    let again = run(&["archive", "--full-speed", "--db", stores, "--to", archive]);
    assert!(stderr(&again).starts_with("0 hours, 0 rows"), "{}", stderr(&again));
    let copy = dir.path().join("copy.db");
    std::fs::copy(Path::new(stores).join("n0.db"), &copy).expect("copied");
    let twice = run(&["query", "--archive", archive, "--db", stores, "--db", text(&copy), "SELECT 1 FROM collectives"]);
    assert_eq!(twice.status.code(), Some(2));
    assert!(stderr(&twice).contains("another copy of the store of n0"), "{}", stderr(&twice));
}

/// A question of docs/history.md: what follows this sentence.
fn documented(sentence: &str) -> String {
    let text = include_str!("../../docs/history.md");
    let after = text.split(sentence).nth(1).expect("the sentence is there");
    let lines = after.lines().skip(1).skip_while(|line| line.is_empty()).take_while(|line| line.starts_with("    "));
    lines.map(str::trim).collect::<Vec<_>>().join(" ")
}

#[test]
fn jobs_are_listed_from_stores_and_archive_with_accounting() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().expect("a directory");
    let (stores, archive) = archived(dir.path());
    let sacct = dir.path().join("sacct");
    let line = "4711|4711|ada|physics|h100|COMPLETED|9180|2|cpu=8,gres/gpu=8,node=2|train|me";
    std::fs::write(&sacct, format!("#!/bin/sh\necho \"$@\" > {}/asked\necho '{line}'\n", text(dir.path())))
        .and_then(|()| std::fs::set_permissions(&sacct, std::fs::Permissions::from_mode(0o755)))
        .expect("written");
    let jobs = |arguments: &[&str]| {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = rankmesh();
        command.args(["jobs", "--timeout", "60s"]).args(arguments).env("PATH", format!("{}:{path}", text(dir.path())));
        command.output().expect("it runs")
    };
    let of = |flag: &str, path: &str| -> Value {
        let output = jobs(&[flag, path, "--format", "json", "--gpu-hour", "2.00EUR"]);
        assert!(output.status.success(), "{}", stderr(&output));
        serde_json::from_str(&stdout(&output)).expect("JSON")
    };
    let (from_stores, from_archive) = (of("--db", text(&stores)), of("--archive", text(&archive)));
    assert!(same(&from_stores["jobs"], &from_archive["jobs"]), "{from_archive} is not {from_stores}");
    let job = &from_stores["jobs"][0];
    assert_eq!((&job["job_id"], &job["ranks"], &job["calls"]), (&"4711".into(), &8.into(), &7200.into()), "{job}");
    assert_eq!(job["nodes"], serde_json::json!(["n0", "n1"]));
    let p50_ns = job["steps"]["p50_ns"].as_i64().expect("steps");
    assert!((9_900_000_000..10_200_000_000).contains(&p50_ns), "{job}");
    assert_eq!(job["waited"]["culprits"][0]["rank"], 5, "{job}");
    // Seven ranks wait 100 ms in each of 450 steps, and some for the others' unevenness.
    let waited = job["waited"]["rank_seconds"].as_f64().expect("a figure");
    assert!((315.0..500.0).contains(&waited), "{job}");
    let cost = job["money"]["total"].as_f64().expect("a price");
    assert!((cost - waited / 3600.0 * 2.0).abs() < 1e-6, "{job}");
    assert_eq!((&job["accounting"]["user"], &job["accounting"]["gpus"]), (&"ada".into(), &8.into()), "{job}");
    assert_eq!((&job["verdicts"][0]["verdict"], &job["verdicts"][0]["node"]), (&"rank".into(), &"n1".into()), "{job}");
    let asked = std::fs::read_to_string(dir.path().join("asked")).expect("sacct was asked");
    assert!(asked.trim_end().ends_with("--jobs 4711"), "{asked}");

    // As a table and as a file; a sacct that fails costs nothing but a line.
    std::fs::write(&sacct, "#!/bin/sh\necho no database >&2\nexit 1\n").expect("written");
    let (parquet, table) = (dir.path().join("jobs.parquet"), dir.path().join("jobs.csv"));
    for file in [&parquet, &table] {
        let output = jobs(&["--db", text(&stores), "--out", text(file)]);
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(stdout(&output).contains("rank 5 on n1"), "{}", stdout(&output));
        assert!(stderr(&output).contains("without accounting: sacct") && stderr(&output).contains("no database"));
    }
    assert!(std::fs::read(&parquet).expect("a file").starts_with(b"PAR1"));
    let table = std::fs::read_to_string(&table).expect("a file");
    assert!(table.lines().nth(1).is_some_and(|line| line.starts_with("4711,")), "{table}");
    let again = jobs(&["--db", text(&stores), "--out", text(&parquet)]);
    assert_eq!(again.status.code(), Some(2), "{}", stderr(&again));
    let none = jobs(&["--db", text(&stores), "--job", "1"]);
    assert!(none.status.code() == Some(2) && stderr(&none).contains("no calls of job 1"), "{}", stderr(&none));

    // Who was a culprit most often, as docs/history.md asks.
    let sql = documented("Which hosts were culprits most often this month, over different jobs:");
    for from in [["--db", text(&stores)], ["--archive", text(&archive)]] {
        let answer = ask(&from, &sql);
        assert_eq!(answer["rows"], serde_json::json!([["n1", 2, 3], ["n0", 1, 1]]), "{sql}");
    }
}

/// Two stores in addition to those of the job: one of the first schema version, which lacks
/// columns, and one with an additional column; archived under names of their own.
fn archive_other_schemas(dir: &Path, archive: &Path) {
    let sessions = "INSERT INTO sessions VALUES (1, {birth}, {birth}, NULL, '0.1', 'b', 'h', 'k');";
    let calls = "WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 99) \
         INSERT INTO collectives (ts_ns, duration_ns, pid, tid, rank, nranks, comm_hash, func, seq, library, tier, ret, \
         cgroup_id, job_id) SELECT {first} + i, 1000 + i, 1, 1, i % 4, 4, 7, 'all_reduce', i, 'mpi', 1, 0, 1, 'old' FROM n;";
    let filled =
        |sql: &str, birth: i64| sql.replace("{birth}", &birth.to_string()).replace("{first}", &(T0 + 5).to_string());
    let first = include_str!("../store/src/schema_v1.sql");
    let mark = "PRAGMA application_id = 0x524D5348; PRAGMA user_version = {version};";
    common::make_db(
        &dir.join("older.db"),
        &filled(&[first, sessions, calls, &mark.replace("{version}", "1")].concat(), T0 + 1),
    );
    let newer = dir.join("more.db");
    let connection = rusqlite::Connection::open(&newer).expect("a database");
    store::write_plain_schema(&connection).expect("a store");
    let more = "ALTER TABLE collectives ADD COLUMN algorithm TEXT; {sessions} {calls} UPDATE collectives SET captured = 9, algorithm = 'ring';";
    let more = more.replace("{sessions}", sessions).replace("{calls}", calls);
    connection.execute_batch(&filled(&more, T0 + 2)).expect("valid SQL");
    drop(connection);
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

/// A process that ends with the test.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
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
    let _server = Ends(server.expect("a server"));
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
