//! SQLite's own sqllogictest corpus, where a copy is at hand: `RANKMESH_SLT=DIR cargo test -p
//! query-planner corpus`. Every query is answered by a mesh of `RANKMESH_SLT_NODES` (3) stores,
//! rows dealt at random and unevenly, and by one database. The wire, the agents and the expected
//! results in the files belong to the `slt` harness of `scenarios`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use rusqlite::Connection;

use super::mesh::Mesh;
use crate::Value;

#[derive(Default)]
struct Tally {
    passed: u64,
    wrong: Vec<String>,
    refused: BTreeMap<String, u64>,
    strategies: BTreeMap<String, u64>,
    shipped: u64,
}

#[test]
fn corpus_agrees() {
    let Some(root) = std::env::var_os("RANKMESH_SLT") else {
        eprintln!("skipped: RANKMESH_SLT names no directory of sqllogictest files");
        return;
    };
    let count = std::env::var("RANKMESH_SLT_NODES").ok().and_then(|n| n.parse().ok()).unwrap_or(3);
    let limit = std::env::var("RANKMESH_SLT_QUERIES").ok().and_then(|n| n.parse().ok()).unwrap_or(usize::MAX);
    let mut files = Vec::new();
    collect(Path::new(&root), &mut files);
    files.sort();
    assert!(!files.is_empty(), "no .test files under {}", Path::new(&root).display());
    let mut all = Tally::default();
    for file in files {
        let started = Instant::now();
        let before = all.passed;
        run_file(&file, count, limit, &mut all);
        eprintln!("{}: {} passed in {:?}", file.display(), all.passed - before, started.elapsed());
    }
    eprintln!("passed {} shipped {} rows; {:?}\nrefused {:#?}", all.passed, all.shipped, all.strategies, all.refused);
    assert!(all.wrong.is_empty(), "{} wrong:\n{}", all.wrong.len(), all.wrong[..all.wrong.len().min(10)].join("\n\n"));
}

fn collect(path: &Path, files: &mut Vec<PathBuf>) {
    if path.is_dir() {
        path.read_dir().expect("directory").flatten().for_each(|entry| collect(&entry.path(), files));
    } else if path.extension().is_some_and(|extension| extension == "test") {
        files.push(path.to_owned());
    }
}

fn run_file(file: &Path, count: usize, limit: usize, tally: &mut Tally) {
    let text = String::from_utf8_lossy(&std::fs::read(file).expect("file")).into_owned();
    let mut union = Some(Connection::open_in_memory().expect("open"));
    let mut mesh: Option<Mesh> = None;
    let mut state = 7u64;
    // Skewed: the last node gets little, often nothing.
    let mut deal = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let draw = (state >> 33) as usize % (count * count);
        draw.isqrt().min(count - 1)
    };
    let mut seen = 0;
    for record in text.replace('\r', "").split("\n\n") {
        let mut lines = record.lines().skip_while(|line| line.starts_with('#') || line.is_empty()).peekable();
        let mut skip = false;
        while let Some(line) = lines.peek() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words.as_slice() {
                ["skipif", "sqlite", ..] => skip = true,
                ["onlyif", engine, ..] if *engine != "sqlite" => skip = true,
                ["skipif" | "onlyif", ..] => {}
                _ if line.starts_with('#') => {}
                _ => break,
            }
            lines.next();
        }
        let Some(head) = lines.next() else { continue };
        if skip {
            continue;
        }
        let sql: Vec<&str> = lines.take_while(|line| *line != "----").collect();
        let sql = sql.join("\n");
        if head.starts_with("statement") {
            if let Some(mesh) = mesh.take() {
                union = Some(mesh.union);
            }
            let done = union.as_ref().expect("either").execute_batch(&sql);
            assert!(done.is_ok() || head.contains("error"), "{sql}: {done:?}");
        } else if head.starts_with("query") {
            seen += 1;
            if seen > limit {
                return;
            }
            let mesh = mesh.get_or_insert_with(|| Mesh::dealt(union.take().expect("either"), count, &mut deal));
            compare(mesh, &sql, tally);
        }
    }
}

fn compare(mesh: &mut Mesh, sql: &str, tally: &mut Tally) {
    let oracle = mesh.oracle(sql);
    let plan = match mesh.plan(sql) {
        Ok(plan) => plan,
        Err(error) => {
            if oracle.is_ok() {
                let reason: String = error.message.chars().take(60).collect();
                *tally.refused.entry(reason).or_default() += 1;
            }
            return;
        }
    };
    *tally.strategies.entry(plan.strategy.to_string()).or_default() += 1;
    let answer = mesh.run(&plan);
    tally.shipped += mesh.shipped_rows;
    let concat = sql.contains("group_concat");
    match (answer, oracle) {
        (Ok(answer), Ok(oracle)) if same_rows(&answer.rows, &oracle, concat) => tally.passed += 1,
        (Err(_), Err(_)) => tally.passed += 1,
        (answer, oracle) => tally.wrong.push(format!(
            "{sql}\n{}mesh {:?}\nsqlite {oracle:?}",
            crate::explain(&plan),
            answer.map(|answer| answer.rows)
        )),
    }
}

/// Equal as multisets; doubles may differ in the last bits, as SQLite's own do with the order of
/// rows. The order inside group_concat is free.
fn same_rows(a: &[Vec<Value>], b: &[Vec<Value>], concat: bool) -> bool {
    let key = |row: &Vec<Value>| {
        row.iter()
            .map(|value| match value {
                Value::Real(x) => format!("R{x:.9e}"),
                Value::Text(text) if concat => {
                    let mut bytes = text.clone();
                    bytes.sort_unstable();
                    format!("{bytes:?}")
                }
                other => format!("{other:?}"),
            })
            .collect::<Vec<_>>()
    };
    let sorted = |rows: &[Vec<Value>]| {
        let mut keys: Vec<_> = rows.iter().map(key).collect();
        keys.sort();
        keys
    };
    sorted(a) == sorted(b)
}
