//! Warm latency of a trivial indexed question over 4, 16, 64 and 256 in-process agents, of files
//! that they serve and, up to 16, of the trace stores that they write themselves, compared with
//! bare quinn in the same run (`bench mesh direct [NODES…]`); full agents started at once that find
//! each other by gossip over QUIC, and then one of them goes silent (`bench mesh meet [NODES]`); a
//! thousand light agents, asked directly and through a tree (`bench mesh tree [NODES]`); and the
//! command line compared with clush, pdsh and serf, those that are installed, with 16 hosts
//! (`bench mesh peers`).
//!
//! They are measured in turns (one round each), so that all see the same noise of the machine. Bare
//! quinn has an agent's socket buffers and transport settings on both sides; with quinn's defaults
//! it is measured, too, to show the effect of these.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use clap::Subcommand;
use query::FanoutPolicy;
use query::ask::{AskError, QueryOutcome};
use scenarios::agents::binary;
use scenarios::cluster::{Cluster, make_database};
use scenarios::figures::{cpu_time, cpu_time_of_threads, figure, ms, quantile};
use scenarios::floor::{Floor, Like};
use scenarios::light::LightCluster;
use scenarios::peers::{self, Serf, Ssh};
use store::Finding;

const SIZES: [usize; 4] = [4, 16, 64, 256];
const WARM_UP: usize = 30;
/// Questions asked of all agents together, and bounds of the resulting number of rounds: some
/// tenths of a second of rounds would measure the machine rather than the code.
const ANSWERS: usize = 32_000;
const ROUNDS: std::ops::RangeInclusive<usize> = 300..=2_000;
/// An aggregate that SQLite answers from one index lookup a node.
const SQL: &str = "SELECT count(*), max(v) FROM t WHERE k = 7";

/// Rows of each node for it.
const ROWS: &str = "CREATE TABLE t(k INTEGER NOT NULL, v INTEGER NOT NULL);
    WITH RECURSIVE r(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM r WHERE i < 9999)
    INSERT INTO t SELECT i % 1000, i FROM r;
    CREATE INDEX t_k ON t(k);";
/// With more agents than this, light ones are used: the gossip of as many full ones in one process
/// leaves little of two cores for questions.
const MOST_FULL: usize = 64;
/// With more agents than this, stores of their own are not measured, too: as many start slowly.
const MOST_STORES: usize = 16;

/// Full agents in one process, how long they may take to meet, and how long a death may take to be
/// known.
const FULL: usize = 128;
const MEETING: Duration = Duration::from_secs(120);
const DYING: Duration = Duration::from_secs(60);
/// Time limit of a question that is asked meanwhile.
const SHORT: Duration = Duration::from_millis(500);

/// Hosts for the comparison with other tools, and rounds of each.
const PEER_HOSTS: usize = 16;
const PEER_ROUNDS: usize = 20;

/// Light agents, and rounds of questions in each way.
const LIGHT: usize = 1_000;
const LIGHT_IN_CELL: usize = 64;
const LIGHT_ROUNDS: usize = 40;
const COORDINATOR: &str = "coordinator";
/// Longer than QUIC may delay an acknowledgement (25 ms, RFC 9000 section 18.2) and its probes
/// after it.
const SETTLING: Duration = Duration::from_millis(150);

/// A question over many agents beside bare quinn, clush, pdsh and serf
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// Only this part
    #[command(subcommand)]
    part: Option<Part>,
}

#[derive(Debug, Subcommand)]
enum Part {
    /// Beside bare quinn
    Direct {
        /// Sizes of the mesh
        #[arg(default_values_t = SIZES)]
        nodes: Vec<usize>,
    },
    /// Beside clush, pdsh and serf
    Peers,
    /// Full agents that meet by gossip, and one that goes silent
    Meet {
        #[arg(default_value_t = FULL)]
        nodes: usize,
    },
    /// Light agents, directly and through a tree
    Tree {
        #[arg(default_value_t = LIGHT)]
        nodes: usize,
        /// They lie in cells of at most so many [default: one cell]
        #[arg(long)]
        most_in_cell: Option<NonZeroUsize>,
    },
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    match &arguments.part {
        Some(Part::Direct { nodes }) => direct(nodes),
        Some(Part::Peers) => against_peers(),
        Some(Part::Meet { nodes }) => meet(*nodes),
        Some(Part::Tree { nodes, most_in_cell }) => tree(*nodes, *most_in_cell),
        None => {
            direct(&SIZES)?;
            against_peers()?;
            meet(FULL)?;
            tree(LIGHT, None)?;
            tree(LIGHT, NonZeroUsize::new(LIGHT_IN_CELL))
        }
    }
}

/// Light agents, directly and through a tree, in turns; the coordinator has threads of its own,
/// whose CPU is its cost.
fn tree(n: usize, most_in_cell: Option<NonZeroUsize>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let coordinator = tokio::runtime::Builder::new_multi_thread().thread_name(COORDINATOR).enable_all().build()?;
    let rows = |index: usize| {
        format!(
            "CREATE TABLE t(k INTEGER NOT NULL, v INTEGER NOT NULL); CREATE INDEX t_k ON t(k); INSERT INTO t VALUES (7, {index}), (8, 0);"
        )
    };
    let mut cluster = {
        let _here = runtime.enter();
        LightCluster::start_apart(n, rows, coordinator.handle())?
    };
    most_in_cell.iter().for_each(|most| cluster.split(most.get()));
    let cells: BTreeSet<_> = cluster.members.iter().map(|member| member.seat.cell).collect();
    cluster.introduce(0);
    let cluster = Arc::new(cluster);
    let ask = |tree_above: usize| -> anyhow::Result<(Duration, Duration)> {
        let agent = cluster.agents[0].as_ref().context("the coordinator lives")?;
        *agent.shared().coordinator.fanout.lock() = FanoutPolicy { tree_above };
        let (cluster, cpu, started) = (Arc::clone(&cluster), cpu_time_of_threads(COORDINATOR)?, Instant::now());
        let asked = coordinator.spawn(async move { cluster.ask(0, SQL, Duration::from_secs(60)).await });
        let QueryOutcome::Answer { answer, coverage, .. } = coordinator.block_on(asked)?? else { bail!("no answer") };
        let took = started.elapsed();
        let expected = query_planner::Value::Integer(i64::try_from(n)?);
        if coverage.answered != n || answer.rows[0][0] != expected {
            bail!("wrong answer: {answer:?} {coverage:?}");
        }
        // Delayed acknowledgements of QUIC belong to this question's cost, and must not burden the
        // next one.
        std::thread::sleep(SETTLING);
        Ok((took, cpu_time_of_threads(COORDINATOR)?.saturating_sub(cpu)))
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
    let (tree, all) = (quantile(&mut through, 0.5), quantile(&mut direct, 0.5));
    let each = |cpu: Duration| ms(cpu) / LIGHT_ROUNDS as f64;
    println!(
        "{n} light agents in {} cells: first answer through a tree {:.0} ms; warm p50 tree {:.1} ms, direct {:.1} ms; \
         the coordinator's CPU a question: tree {:.1} ms, direct {:.1} ms",
        cells.len(),
        ms(cold),
        ms(tree),
        ms(all),
        each(through_cpu),
        each(direct_cpu)
    );
    let n = if cells.len() > 1 { format!("{n}_in_cells") } else { n.to_string() };
    figure(&format!("cold_answer_of_{n}"), cold.as_secs_f64(), "s", "<=", 2.0);
    figure(&format!("tree_warm_p50_of_{n}"), ms(tree), "ms", "<=", 60.0);
    figure(&format!("tree_over_direct_p50_{n}"), tree.as_secs_f64() / all.as_secs_f64(), "ratio", "<=", 1.0);
    let cpu = through_cpu.as_secs_f64() / direct_cpu.as_secs_f64().max(1e-9);
    figure(&format!("asker_cpu_tree_over_direct_{n}"), cpu, "ratio", "<=", 0.2);
    Ok(())
}

/// Full agents that start at once from one seed, and one that goes silent.
fn meet(n: usize) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let (met, gone, longest) = runtime.block_on(async {
        let dir = tempfile::tempdir()?;
        let databases: Vec<_> = (0..n).map(|index| dir.path().join(format!("{index}.db"))).collect();
        for path in &databases {
            let sql = "PRAGMA synchronous = OFF; CREATE TABLE t(k INTEGER, v INTEGER); INSERT INTO t VALUES (7, 1);";
            make_database(path, sql)?;
        }
        let (cluster, met) = Cluster::serve_at_once(&databases, MEETING).await?;
        let silent = cluster.agents[n / 2].shared();
        let name = silent.identity.node().to_string();
        silent.mesh.vanish()?;
        let (began, mut longest) = (Instant::now(), Duration::ZERO);
        let asks_it = |agent: &agent::Agent| {
            agent.shared().coordinator.gossip.list().iter().any(|member| member.name == name && member.is_live())
        };
        while cluster.agents.iter().enumerate().any(|(index, agent)| index != n / 2 && asks_it(agent)) {
            if began.elapsed() > DYING {
                bail!("{name} is still asked after {DYING:?}");
            }
            let asked = Instant::now();
            // Complete, partial or none: here only its time counts.
            let _ = cluster.ask_within(0, SQL, SHORT).await;
            longest = longest.max(asked.elapsed());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let gone = began.elapsed();
        cluster.shutdown().await;
        anyhow::Ok((met, gone, longest))
    })?;
    println!(
        "{n} whole agents over QUIC: all know all {:.1} s after they started at once; one that fell silent is asked by nobody after \
         {:.1} s, and meanwhile a question with {SHORT:?} took {:.0} ms at most",
        met.as_secs_f64(),
        gone.as_secs_f64(),
        ms(longest)
    );
    figure(&format!("full_agents_know_all_{n}"), met.as_secs_f64(), "s", "<=", 10.0);
    figure(&format!("dead_node_asked_by_nobody_{n}"), gone.as_secs_f64(), "s", "<=", 10.0);
    figure(
        "question_beside_a_dead_node_over_its_deadline",
        longest.as_secs_f64() / SHORT.as_secs_f64(),
        "ratio",
        "<=",
        1.1,
    );
    Ok(())
}

/// The command line and the other tools, in turns. One that is not installed is left out, with a
/// line of output.
fn against_peers() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let dir = tempfile::tempdir()?;
    let databases: Vec<_> = (0..PEER_HOSTS).map(|host| peers::database(dir.path(), host)).collect();
    databases.iter().try_for_each(|path| make_database(path, ROWS))?;
    let socket = dir.path().join("socket");
    let cluster = runtime.block_on(Cluster::serve_with_socket(&databases, socket.clone(), MEETING))?;
    let rankmesh = binary()?;
    let expected = format!("{}|9007", 10 * PEER_HOSTS);
    let ours = || -> anyhow::Result<Duration> {
        let began = Instant::now();
        let output =
            Command::new(&rankmesh).args(["query", "--format", "csv", "--socket"]).arg(&socket).arg(SQL).output()?;
        let took = began.elapsed();
        let text = String::from_utf8_lossy(&output.stdout).replace(',', "|");
        if !text.lines().any(|line| line == expected) {
            bail!("wrong answer: {text} {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(took)
    };
    let ssh = || Ssh::start(dir.path(), PEER_HOSTS).map(Arc::new);
    let (ssh, serf) = (ssh(), Serf::start(dir.path(), PEER_HOSTS, SQL));
    let incomplete = Cell::new(0);
    type Ask<'a> = Box<dyn Fn() -> anyhow::Result<Duration> + 'a>;
    let mut tools: Vec<(&str, Ask<'_>)> = vec![("rankmesh query", Box::new(ours))];
    match &ssh {
        Ok(ssh) => {
            if peers::installed("clush").is_some() {
                tools.push(("clush", Box::new(|| ssh.clush(SQL, false))));
                tools.push(("clush, connections kept", Box::new(|| ssh.clush(SQL, true))));
            } else {
                println!("clush is not installed (clustershell): left out");
            }
            if peers::installed("pdsh").is_some() {
                tools.push(("pdsh", Box::new(|| ssh.pdsh(SQL))));
            } else {
                println!("pdsh is not installed: left out");
            }
        }
        Err(error) => println!("clush and pdsh are left out: {error:#}"),
    }
    match &serf {
        Ok(serf) => tools.push((
            "serf query, last answer",
            Box::new(|| {
                let (answers, last) = serf.query()?;
                incomplete.set(incomplete.get() + usize::from(answers < PEER_HOSTS));
                Ok(last)
            }),
        )),
        Err(error) => println!("serf is left out: {error:#}"),
    }
    let mut times = vec![Vec::new(); tools.len()];
    for round in 0..=PEER_ROUNDS {
        for ((tool, ask), times) in tools.iter().zip(&mut times) {
            let took = ask().with_context(|| (*tool).to_owned())?;
            // The first is to warm up.
            if round > 0 {
                times.push(took);
            }
        }
    }
    println!("{SQL} at {PEER_HOSTS} hosts, whole commands, p50 of {PEER_ROUNDS} in turns:");
    let mut p50s = Vec::new();
    for ((tool, _), times) in tools.iter().zip(&mut times) {
        let p50 = quantile(times, 0.5);
        println!("{tool:>26} {:>9.1} ms", ms(p50));
        p50s.push((*tool, p50.as_secs_f64()));
    }
    if serf.is_ok() {
        println!("{} of serf's {} answers lacked agents", incomplete.get(), PEER_ROUNDS + 1);
    }
    let (_, ours) = p50s[0];
    for (tool, p50) in &p50s[1..] {
        let name = tool.replace(", ", "_").replace(' ', "_");
        figure(&format!("{name}_over_rankmesh_{PEER_HOSTS}"), p50 / ours, "ratio", ">=", 1.0);
    }
    drop(tools);
    runtime.block_on(cluster.shutdown());
    Ok(())
}

fn direct(sizes: &[usize]) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    println!(
        "{SQL}; {} to {} warm rounds each, in turns; times are p50 of one whole fan-out",
        ROUNDS.start(),
        ROUNDS.end()
    );
    println!(
        "{:>6} {:>10} {:>12} {:>12} {:>7} {:>20} {:>20} {:>17}",
        "nodes", "data", "bare quinn", "rankmesh", "ratio", "floor CPU/answer", "our CPU/answer", "quinn's defaults"
    );
    let mut ratios = Vec::new();
    for &n in sizes {
        for of in [Data::Served, Data::Stores] {
            if of == Data::Stores && n > MOST_STORES {
                continue;
            }
            let measured = runtime.block_on(measure(n, of)).with_context(|| format!("{n} agents, {of}"))?;
            ratios.push((n, of, measured));
        }
    }
    for (n, of, (latency, cpu)) in ratios {
        let of = if of == Data::Stores { "_own_stores" } else { "" };
        let aim = if n <= 16 { 1.2 } else { 1.3 };
        figure(&format!("fanout_p50_over_bare_quinn_{n}{of}"), latency, "ratio", "<=", aim);
        figure(&format!("cpu_per_answer_over_bare_quinn_{n}{of}"), cpu, "ratio", "<=", 2.0);
    }
    Ok(())
}

/// What the agents serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Data {
    /// Rows of a file with a rollback journal that nothing writes.
    Served,
    /// Rows of the trace store that each writes itself, which also has the audit.
    Stores,
}

impl std::fmt::Display for Data {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Served => "files",
            Self::Stores => "own stores",
        })
    }
}

/// As many rows as the question is about in the files, of an instant, and as many again a second
/// later and so on.
fn findings(at_ns: i64) -> Vec<Finding> {
    let finding = |number: i64| Finding {
        ts_ns: at_ns + number / 10 * 1_000_000_000,
        since_ns: at_ns,
        until_ns: at_ns + number,
        verdict: "none".to_owned(),
        rank: None,
        culprit_node: None,
        job_id: None,
        comm_hash: None,
        func: None,
        tier: None,
        lateness_ns: None,
        clock_bound_ns: None,
        score: None,
        cost_gpu_s: None,
        cause: None,
        detail: String::new(),
    };
    (0..1_000).map(finding).collect()
}

/// Those that are asked; the first is the coordinator.
enum Agents {
    Full(Cluster),
    Light(Box<LightCluster>),
}

impl Agents {
    async fn ask(&self, sql: &str) -> Result<QueryOutcome, AskError> {
        match self {
            Self::Full(cluster) => cluster.ask(0, sql).await,
            Self::Light(cluster) => cluster.ask(0, sql, Duration::from_secs(30)).await,
        }
    }
}

/// Ratios (latency p50, CPU) of ours over the floor.
async fn measure(n: usize, of: Data) -> anyhow::Result<(f64, f64)> {
    let dir = tempfile::tempdir()?;
    let mut sql = SQL.to_owned();
    let agents = if of == Data::Stores {
        let now_ns = i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos())?;
        sql = format!("SELECT count(*), max(until_ns) FROM findings WHERE ts_ns = {now_ns}");
        Agents::Full(Cluster::with_stores(n, &findings(now_ns), Duration::from_secs(120)).await?)
    } else if n > MOST_FULL {
        let cluster = LightCluster::start(n, |_| ROWS.to_owned())?;
        cluster.introduce(0);
        Agents::Light(Box::new(cluster))
    } else {
        let databases: Vec<_> = (0..n).map(|index| dir.path().join(format!("n{index}.db"))).collect();
        databases.iter().try_for_each(|path| make_database(path, ROWS))?;
        Agents::Full(Cluster::serve(&databases, &[], Duration::from_secs(120)).await?)
    };
    // Last: their connections would not survive a slow start of the agents.
    let (floor, defaults) = (Floor::start(n, Like::Agent).await?, Floor::start(n, Like::Defaults).await?);
    let expected = i64::try_from(n)? * 10;
    let (mut floor_times, mut our_times, mut default_times) = (Vec::new(), Vec::new(), Vec::new());
    let (mut floor_cpu, mut our_cpu) = (Duration::ZERO, Duration::ZERO);
    let rounds = (ANSWERS / n).clamp(*ROUNDS.start(), *ROUNDS.end());
    for round in 0..WARM_UP + rounds {
        let cpu = cpu_time();
        let floor_time = floor.round().await?;
        let between = cpu_time();
        let started = Instant::now();
        let QueryOutcome::Answer { answer, coverage, .. } = agents.ask(&sql).await? else { bail!("no answer") };
        let our_time = started.elapsed();
        let after = cpu_time();
        if coverage.answered != n || answer.rows[0][0] != query_planner::Value::Integer(expected) {
            bail!("wrong answer: {answer:?} {coverage:?}");
        }
        let default_time = defaults.round().await?;
        if round >= WARM_UP {
            floor_times.push(floor_time);
            default_times.push(default_time);
            our_times.push(our_time);
            floor_cpu += between - cpu;
            our_cpu += after - between;
        }
    }
    if let Agents::Full(cluster) = agents {
        cluster.shutdown().await;
    }
    let (floor_p50, our_p50) = (quantile(&mut floor_times, 0.5), quantile(&mut our_times, 0.5));
    let default_p50 = quantile(&mut default_times, 0.5);
    let ratio = our_p50.as_secs_f64() / floor_p50.as_secs_f64();
    let per_answer = |cpu: Duration| cpu.as_secs_f64() * 1e6 / (rounds * n) as f64;
    println!(
        "{n:>6} {of:>10} {:>9.3} ms {:>9.3} ms {ratio:>7.2} {:>17.1} us {:>17.1} us {:>14.3} ms",
        ms(floor_p50),
        ms(our_p50),
        per_answer(floor_cpu),
        per_answer(our_cpu),
        ms(default_p50)
    );
    Ok((ratio, our_cpu.as_secs_f64() / floor_cpu.as_secs_f64()))
}
