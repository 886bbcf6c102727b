//! Questions that mean harm, put to a real agent: each ends in a clear refusal, costs no more than
//! its budget, leaves nothing behind, and the agent answers the next one.

mod common;

use std::collections::BTreeMap;
use std::path::Path;

use common::{Lab, make_db, stderr, stdout};
use serde_json::json;

/// Every file of the directory with its bytes.
fn contents(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = std::fs::read_dir(dir).expect("a directory").flatten();
    files.map(|f| (f.file_name().to_string_lossy().into_owned(), std::fs::read(f.path()).expect("a file"))).collect()
}

/// The most memory that a process ever had, MiB.
fn peak_mib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") >> 10
}

/// A lab with one agent `q` that serves a file alone in its directory.
fn lab() -> Lab {
    let mut lab = Lab::new();
    std::fs::create_dir(lab.path("data")).expect("a directory");
    let file = lab.path("data/t.db");
    make_db(
        &file,
        "CREATE TABLE t(x INTEGER, s TEXT);
         WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000) INSERT INTO t SELECT i, 'row ' || i FROM n;",
    );
    lab.start("q", &["--serve-db", &file.display().to_string()]);
    lab.wait_for_members(&["q"]);
    lab
}

/// Asks, expects a refusal, and returns its message.
fn refused(lab: &Lab, sql: &str, timeout: &str) -> String {
    let asked = lab.ask("q", "query", &["--timeout", timeout, "--", sql]);
    let shown: String = sql.chars().take(100).collect();
    assert!(!asked.status.success(), "{shown}: {}", stdout(&asked));
    assert!(asked.status.code().is_some(), "{shown}: the command line crashed");
    assert_eq!(stdout(&asked), "", "{shown}");
    let message = stderr(&asked);
    assert!(message.trim().len() > 10 && !message.contains("panicked"), "{shown}: {message}");
    message
}

#[test]
fn nothing_is_written_attached_loaded_or_read_from_elsewhere() {
    let lab = lab();
    let before = contents(&lab.path("data"));
    let out = lab.path("stolen.db").display().to_string();
    for sql in [
        "INSERT INTO t VALUES (1, 'x')",
        "UPDATE t SET x = 0",
        "DELETE FROM t",
        "DROP TABLE t",
        "CREATE TABLE u(x)",
        "CREATE TEMP TABLE u AS SELECT * FROM t",
        "CREATE TRIGGER g AFTER INSERT ON t BEGIN SELECT 1; END",
        "REINDEX",
        "ANALYZE",
        "BEGIN EXCLUSIVE",
        "SAVEPOINT s",
        "SELECT 1; DELETE FROM t",
        &format!("ATTACH '{out}' AS a"),
        &format!("VACUUM INTO '{out}'"),
        "PRAGMA writable_schema = 1",
        "PRAGMA journal_mode = DELETE",
        "SELECT * FROM pragma_database_list",
        "SELECT * FROM sqlite_dbpage",
        "SELECT * FROM dbstat",
        "SELECT load_extension('/tmp/x.so')",
        "SELECT readfile('/etc/passwd')",
        "SELECT writefile('/tmp/rankmesh-written', 'x')",
        "SELECT edit('x')",
        "SELECT fts3_tokenizer('simple')",
        "SELECT * FROM generate_series(1, 10)",
        "WITH d AS (SELECT 1) DELETE FROM t",
        "EXPLAIN SELECT * FROM t",
    ] {
        refused(&lab, sql, "10s");
    }
    assert_eq!(contents(&lab.path("data")), before, "the file and its directory are as they were");
    assert!(!Path::new(&out).exists() && !Path::new("/tmp/rankmesh-written").exists());
    assert_eq!(lab.query("q", "SELECT count(*) FROM t", &[]).0["rows"], json!([[1000]]));
}

#[test]
fn what_never_ends_is_stopped_by_the_deadline() {
    let lab = lab();
    for sql in [
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n, t",
        "SELECT count(*) FROM t a, t b, t c, t d WHERE a.x + b.x + c.x + d.x = -1",
        "SELECT a.x FROM t a, t b, t c, t d ORDER BY a.x * b.x - c.x * d.x LIMIT 1",
    ] {
        let message = refused(&lab, sql, "1s");
        assert!(
            message.contains("timeout") || message.contains("deadline") || message.contains("budget"),
            "{sql}: {message}"
        );
    }
    assert_eq!(lab.query("q", "SELECT count(*) FROM t", &[]).0["rows"], json!([[1000]]));
}

#[test]
fn gigabytes_are_not_built() {
    let lab = lab();
    let before = peak_mib(lab.pid("q"));
    for sql in [
        "SELECT zeroblob(2000000000)",
        "SELECT length(zeroblob(2000000000)) FROM t",
        "SELECT length(printf('%.*c', 1000000000, 'x')) FROM t",
        "SELECT length(replace(hex(zeroblob(8000000)), '0', 'xxxxxxxxxxxxxxxx')) FROM t",
        "SELECT length(group_concat(a.s || b.s || c.s)) FROM t a, t b, t c",
        "SELECT x, randomblob(16000000) AS b FROM t ORDER BY b",
        "SELECT DISTINCT hex(zeroblob(1000000)) || x AS h FROM t ORDER BY h",
        "WITH RECURSIVE n(s) AS (SELECT 'x' UNION ALL SELECT s || s FROM n) SELECT max(length(s)) FROM n",
        "SELECT json_group_array(a.s || b.s) FROM t a, t b, t c",
    ] {
        let message = refused(&lab, sql, "5s");
        assert!(
            ["too big", "budget", "timeout", "deadline", "memory", "refused", "not allowed"]
                .iter()
                .any(|why| message.contains(why)),
            "{sql}: {message}"
        );
    }
    // Twice the cap of a question, for the copy that was under way when it was refused.
    let grown = peak_mib(lab.pid("q")) - before;
    assert!(grown < 700, "the agent grew by {grown} MiB");
    assert_eq!(lab.query("q", "SELECT count(*) FROM t", &[]).0["rows"], json!([[1000]]));
}

#[test]
fn the_parser_and_its_limits_hold() {
    let lab = lab();
    let parentheses = format!("SELECT {}1{}", "(".repeat(50_000), ")".repeat(50_000));
    let nested = format!("SELECT {}x{} FROM t", "abs(".repeat(2_000), ")".repeat(2_000));
    let chain = format!("SELECT {} FROM t", vec!["x"; 20_000].join("+"));
    let columns = format!("SELECT {} FROM t", vec!["x"; 5_000].join(","));
    let compound = vec!["SELECT x FROM t"; 2_000].join(" UNION ALL ");
    let subqueries = format!("SELECT {}1{}", "(SELECT ".repeat(3_000), ")".repeat(3_000));
    let like = format!("SELECT count(*) FROM t WHERE s LIKE '{}'", "%a".repeat(30_000));
    let long = format!("SELECT '{}'", "x".repeat(110_000));
    let joins = format!("SELECT 1 FROM {}", (0..80).map(|i| format!("t t{i}")).collect::<Vec<_>>().join(","));
    let not = format!("SELECT {}1", "NOT ".repeat(20_000));
    let list = [&parentheses, &nested, &chain, &columns, &compound, &subqueries, &like, &joins, &not];
    for sql in list {
        refused(&lab, sql, "10s");
    }
    // Odd, but no harm: an answer or a refusal, and no crash.
    for sql in
        [long.as_str(), "SELECT '\u{1b}[2J'", "SELECT x'00'", "SELECT ''''", "SELECT \u{0}1", "", ";", "--", "/*"]
    {
        if !sql.contains('\0') {
            assert!(lab.ask("q", "query", &["--timeout", "10s", "--", sql]).status.code().is_some());
        }
    }
    assert_eq!(lab.query("q", "SELECT count(*) FROM t", &[]).0["rows"], json!([[1000]]));
}
