//! Warm latency of a trivial indexed question over 4, 16 and 64 in-process agents, beside bare quinn in the same run.
//!
//! The two are measured in turns (one round each), so that both see the same noise of the machine.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rankmesh::query::ask::Asked;
use scenarios::cluster::{Cluster, make_database};
use scenarios::figures::{cpu_time, figure, quantile};
use scenarios::floor::Floor;

const SIZES: [usize; 3] = [4, 16, 64];
const WARM_UP: usize = 30;
const ROUNDS: usize = 300;
/// An aggregate that SQLite answers from one index lookup a node.
const SQL: &str = "SELECT count(*), max(v) FROM t WHERE k = 7";

fn main() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    println!("{SQL}; {ROUNDS} warm rounds each, in turns; times are p50 of one whole fan-out");
    println!(
        "{:>6} {:>12} {:>12} {:>7} {:>20} {:>20}",
        "nodes", "bare quinn", "rankmesh", "ratio", "floor CPU/answer", "our CPU/answer"
    );
    let mut ratios = Vec::new();
    for n in SIZES {
        ratios.push((n, runtime.block_on(measure(n)).with_context(|| format!("{n} agents"))?));
    }
    for (n, (latency, cpu)) in ratios {
        figure(&format!("fanout_p50_over_bare_quinn_{n}"), latency, "ratio", "<=", 2.0);
        figure(&format!("cpu_per_answer_over_bare_quinn_{n}"), cpu, "ratio", "<=", 2.0);
    }
    Ok(())
}

/// Ratios (latency p50, CPU) of ours over the floor.
async fn measure(n: usize) -> anyhow::Result<(f64, f64)> {
    let dir = tempfile::tempdir()?;
    let mut databases = Vec::with_capacity(n);
    for index in 0..n {
        let path = dir.path().join(format!("n{index}.db"));
        make_database(
            &path,
            "CREATE TABLE t(k INTEGER NOT NULL, v INTEGER NOT NULL);
             WITH RECURSIVE r(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM r WHERE i < 9999)
             INSERT INTO t SELECT i % 1000, i FROM r;
             CREATE INDEX t_k ON t(k);",
        )?;
        databases.push(path);
    }
    let floor = Floor::start(n).await?;
    let cluster = Cluster::serve(&databases, &[], Duration::from_secs(120)).await?;
    let expected = i64::try_from(n)? * 10;
    let (mut floor_times, mut our_times) = (Vec::new(), Vec::new());
    let (mut floor_cpu, mut our_cpu) = (Duration::ZERO, Duration::ZERO);
    for round in 0..WARM_UP + ROUNDS {
        let cpu = cpu_time();
        let floor_time = floor.round().await?;
        let between = cpu_time();
        let started = Instant::now();
        let Asked::Answer { answer, coverage, .. } = cluster.ask(0, SQL).await? else { bail!("no answer") };
        let our_time = started.elapsed();
        let after = cpu_time();
        if coverage.answered != n || answer.rows[0][0] != query_planner::Value::Integer(expected) {
            bail!("wrong answer: {answer:?} {coverage:?}");
        }
        if round >= WARM_UP {
            floor_times.push(floor_time);
            our_times.push(our_time);
            floor_cpu += between - cpu;
            our_cpu += after - between;
        }
    }
    cluster.shutdown().await;
    let (floor_p50, our_p50) = (quantile(&mut floor_times, 0.5), quantile(&mut our_times, 0.5));
    let ratio = our_p50.as_secs_f64() / floor_p50.as_secs_f64();
    let per_answer = |cpu: Duration| cpu.as_secs_f64() * 1e6 / (ROUNDS * n) as f64;
    println!(
        "{n:>6} {:>9.3} ms {:>9.3} ms {ratio:>7.2} {:>17.1} us {:>17.1} us",
        floor_p50.as_secs_f64() * 1e3,
        our_p50.as_secs_f64() * 1e3,
        per_answer(floor_cpu),
        per_answer(our_cpu)
    );
    Ok((ratio, our_cpu.as_secs_f64() / floor_cpu.as_secs_f64()))
}
