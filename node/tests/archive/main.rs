//! Hours of a job's stores in an archive: the same answers from the stores, from the archive, from
//! both, and from DuckDB and ClickHouse's local engine over the archive's files. Here is what all
//! of these tests use.
#![cfg(feature = "archive")]

#[path = "../common/mod.rs"]
mod common;

mod agents;
mod answers;
mod engines;

use std::path::{Path, PathBuf};
use std::time::Duration;

use common::job_stores::{EndedJob, T0};
use common::{run, stderr, stdout};
use serde_json::Value;
use store::{Finding, Store, StoreConfig};

/// Two hosts, eight ranks, two hours and a half.
fn job() -> EndedJob {
    EndedJob {
        hosts: 2,
        local: 4,
        steps: 900,
        step_ns: 10_000_000_000,
        late: Some((5, 100_000_000)),
        ..EndedJob::small()
    }
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
