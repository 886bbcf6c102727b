//! Warm latency of a trivial indexed question over 4, 16 and 64 in-process agents, beside bare quinn in the same run; then a
//! thousand light agents, asked directly and through a tree. `bench-mesh tree [NODES]` does only the latter.
//!
//! The two are measured in turns (one round each), so that both see the same noise of the machine.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rankmesh::query::FanoutPolicy;
use rankmesh::query::ask::Asked;
use scenarios::cluster::{Cluster, make_database};
use scenarios::figures::{cpu_time, cpu_time_of_threads, figure, quantile};
use scenarios::floor::Floor;
use scenarios::light::LightCluster;

const SIZES: [usize; 3] = [4, 16, 64];
const WARM_UP: usize = 30;
const ROUNDS: usize = 300;
/// An aggregate that SQLite answers from one index lookup a node.
const SQL: &str = "SELECT count(*), max(v) FROM t WHERE k = 7";

/// Light agents, and questions asked of them each way.
const LIGHT: usize = 1_000;
const LIGHT_ROUNDS: usize = 40;
const ASKER: &str = "asker";

fn main() -> anyhow::Result<()> {
    let mut args = std::env::args().skip(1);
    match args.next().as_deref() {
        Some("tree") => tree(args.next().map_or(Ok(LIGHT), |n| n.parse()).context("NODES is a number")?),
        Some(other) => bail!("{other}: no such part; give nothing, or tree [NODES]"),
        None => {
            direct()?;
            tree(LIGHT)
        }
    }
}

/// Light agents, directly and through a tree, in turns; the asker has threads of its own, whose CPU is its cost.
fn tree(n: usize) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let asker = tokio::runtime::Builder::new_multi_thread().thread_name(ASKER).enable_all().build()?;
    let rows = |index: usize| {
        format!(
            "CREATE TABLE t(k INTEGER NOT NULL, v INTEGER NOT NULL); CREATE INDEX t_k ON t(k); INSERT INTO t VALUES (7, {index}), (8, 0);"
        )
    };
    let cluster = {
        let _here = runtime.enter();
        Arc::new(LightCluster::start_apart(n, rows, asker.handle())?)
    };
    cluster.introduce(0);
    let ask = |tree_above: usize| -> anyhow::Result<(Duration, Duration)> {
        let agent = cluster.agents[0].as_ref().context("the asker lives")?;
        *agent.shared().fanout.lock().map_err(|_| anyhow::anyhow!("poisoned"))? = FanoutPolicy { tree_above };
        let (cluster, cpu, started) = (Arc::clone(&cluster), cpu_time_of_threads(ASKER)?, Instant::now());
        let asked = asker.spawn(async move { cluster.ask(0, SQL, Duration::from_secs(60)).await });
        let Asked::Answer { answer, coverage, .. } = asker.block_on(asked)?? else { bail!("no answer") };
        let took = started.elapsed();
        let expected = query_planner::Value::Integer(i64::try_from(n)?);
        if coverage.answered != n || answer.rows[0][0] != expected {
            bail!("wrong answer: {answer:?} {coverage:?}");
        }
        Ok((took, cpu_time_of_threads(ASKER)?.saturating_sub(cpu)))
    };
    let (cold, _) = ask(0)?;
    ask(usize::MAX)?;
    let (mut through, mut direct) = (Vec::new(), Vec::new());
    let (mut through_cpu, mut direct_cpu) = (Duration::ZERO, Duration::ZERO);
    for round in 0..2 + LIGHT_ROUNDS {
        let ((tree, tree_cpu), (all, all_cpu)) = (ask(0)?, ask(usize::MAX)?);
        if round >= 2 {
            through.push(tree);
            direct.push(all);
            through_cpu += tree_cpu;
            direct_cpu += all_cpu;
        }
    }
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let (tree, all) = (quantile(&mut through, 0.5), quantile(&mut direct, 0.5));
    let each = |cpu: Duration| ms(cpu) / LIGHT_ROUNDS as f64;
    println!(
        "{n} light agents: first answer through a tree {:.0} ms; warm p50 tree {:.1} ms, direct {:.1} ms; \
         the asker's CPU a question: tree {:.1} ms, direct {:.1} ms",
        ms(cold),
        ms(tree),
        ms(all),
        each(through_cpu),
        each(direct_cpu)
    );
    figure(&format!("cold_answer_of_{n}"), cold.as_secs_f64(), "s", "<=", 5.0);
    figure(&format!("tree_warm_p50_of_{n}"), ms(tree), "ms", "<=", 200.0);
    figure(&format!("tree_over_direct_p50_{n}"), tree.as_secs_f64() / all.as_secs_f64(), "ratio", "<=", 1.0);
    let cpu = through_cpu.as_secs_f64() / direct_cpu.as_secs_f64().max(1e-9);
    figure(&format!("asker_cpu_tree_over_direct_{n}"), cpu, "ratio", "<=", 0.2);
    Ok(())
}

fn direct() -> anyhow::Result<()> {
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
