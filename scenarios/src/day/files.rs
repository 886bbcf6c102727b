//! The stores of a job's hosts asked without agents, by the command line: how long a person waits.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use super::calls::LATE_RANK;
use super::{Day, fill};
use crate::agents::rankmesh;
use crate::figures::{figure, p50_ms};

/// The span that a verdict is asked for, back from the last call.
const SPAN: &str = "10m";
/// Times that each command runs.
const ROUNDS: usize = 5;

/// Writes the stores of `hosts` hosts with about `rows` collectives each into `dir`, asks them with
/// `rankmesh`, and prints the figures. The files are in the page cache, since they were just
/// written.
///
/// # Errors
/// A store cannot be written, or a command fails or gives a wrong answer.
pub fn bench(dir: &Path, hosts: u32, rows: u64, seed: u64, until_ns: i64) -> anyhow::Result<()> {
    let began = Instant::now();
    let (mut stored, mut bytes, mut collectives) = (0, 0, 0);
    for host in 0..hosts {
        let path = dir.join(format!("{}.db", Day::node(host)));
        let filled = fill::fill(&path, &Day::shift(seed, host, hosts, rows, until_ns), false)?;
        (stored, bytes, collectives) = (stored + filled.stored, bytes + filled.bytes, collectives + filled.collectives);
        if host == 0 {
            eprintln!("{:.0?}: {} {filled:?}", began.elapsed(), path.display());
        }
    }
    eprintln!("{:.0?}: {hosts} stores with {stored} rows, {} MiB", began.elapsed(), bytes >> 20);
    let dir = dir.to_str().context("a directory with a name of text")?;
    let count = ["--db", dir, "SELECT count(*), count(DISTINCT node) FROM collectives"];
    let (mut times, answer) = asked("query", &count)?;
    let row = &answer["rows"][0];
    ensure!(row[0] == collectives && row[1] == hosts, "wrong: {row} of {collectives} in {hosts}");
    figure("files_first_answer", p50_ms(&mut times), "ms", "<=", 2_000.0);

    let verdict = ["--timeout", "60s", "--db", dir, "--since", SPAN];
    let (mut times, answer) = asked("stragglers", &verdict)?;
    let heard = &answer["coverage"]["answered"];
    ensure!(*heard == hosts, "only {heard} of {hosts} hosts are in the verdict");
    let bound = answer["evidence"]["clock_bound_ns"].as_i64().context("clocks are known")?;
    eprintln!(
        "{:.0?}: {} on {} with {} matched, clocks within {bound} ns",
        began.elapsed(),
        answer["verdict"]["kind"],
        answer["verdict"]["rank"],
        answer["evidence"]["matched"]
    );
    ensure!(answer["verdict"]["rank"] == LATE_RANK, "the late rank is {LATE_RANK}: {}", answer["verdict"]);
    figure("files_verdict_of_ten_minutes", p50_ms(&mut times), "ms", "<=", 3_000.0);

    let explain = ["--timeout", "60s", "--db", dir, "--since", SPAN];
    let (mut times, _) = asked("explain", &explain)?;
    figure("files_explanation_of_ten_minutes", p50_ms(&mut times), "ms", "<=", 6_000.0);
    Ok(())
}

/// How long a command takes, several times, and what it says.
fn asked(what: &str, arguments: &[&str]) -> anyhow::Result<(Vec<Duration>, serde_json::Value)> {
    let (mut times, mut answer) = (Vec::new(), serde_json::Value::Null);
    for _ in 0..ROUNDS {
        let began = Instant::now();
        answer = rankmesh(what, arguments)?;
        times.push(began.elapsed());
    }
    Ok((times, answer))
}
