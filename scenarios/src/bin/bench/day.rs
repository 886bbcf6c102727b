//! Three agents with the stores of a host after a day, asked every question of the documentation,
//! over every table, and those behind a verdict, in random order during ingest; every answer is
//! compared with that of one plain SQLite database.
//!
//! Two agents are `rankmesh up` (in the directory of this program, or RANKMESH_BINARY). The third
//! is the same agent in a process of this program, which also gets rows as from capture. Questions
//! are asked with the command line.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use agent::{AgentConfig, SourceConfig};
use anyhow::{Context, bail, ensure};
use certs::Authority;
use clap::Subcommand;
use query_planner::Value;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use scenarios::agents::{self, Agent, Outcome};
use scenarios::day::fill::{fill, keeps_all};
use scenarios::day::oracle::{Oracle, compare, unite};
use scenarios::day::{Day, bound, files, questions};
use scenarios::figures::{figure, mib, ms, none_of, p50_ms, quantile};
use scenarios::store_bench::generate::{Generator, START_NS, at_pace};
use store::Source;

use crate::folder;

/// Three hosts after a day, asked everything.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    child: Option<Child>,
    /// Collectives of a host
    #[arg(long, default_value_t = 10_000_000)]
    rows: u64,
    /// Seed of the day and of the order of questions
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Rows a second recorded meanwhile by one of the agents
    #[arg(long, default_value_t = 5_000)]
    rate: u64,
    /// How often each question is asked
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// A question's deadline
    #[arg(long, default_value = "10s")]
    timeout: String,
    /// Instead: so many hosts' stores of eight hours, asked without agents
    #[arg(long, value_name = "HOSTS")]
    files: Option<u32>,
    /// Where the stores go [default: a temporary directory, about 500 bytes a collective]
    #[arg(long)]
    dir: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(super) enum Child {
    /// An agent that is handed rows, from the line `start` on standard input to the line `stop`
    #[command(hide = true)]
    Agent(ChildArgs),
}

#[derive(Debug, clap::Args)]
pub(super) struct ChildArgs {
    name: String,
    dir: PathBuf,
    store: PathBuf,
    rate: u64,
    join: Vec<std::net::SocketAddr>,
}

const HOSTS: u32 = 3;
/// The host that records while questions are asked.
const RECORDING: usize = 1;

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    if let Some(Child::Agent(child)) = &arguments.child {
        return tokio::runtime::Runtime::new()?.block_on(recording_agent(child));
    }
    let (dir, _temporary) = folder(arguments.dir.as_deref())?;
    bench(arguments, &dir)
}

fn now_ns() -> anyhow::Result<i64> {
    Ok(i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos())?)
}

/// A question with SQLite's answer and the result of asking the mesh.
struct Known {
    from: String,
    sql: String,
    answer: Vec<Vec<Value>>,
    times: Vec<Duration>,
    problems: BTreeMap<String, usize>,
}

fn bench(arguments: &Arguments, dir: &Path) -> anyhow::Result<()> {
    let minute_ns = 60_000_000_000;
    let until_ns = now_ns()? / minute_ns * minute_ns;
    if let Some(hosts) = arguments.files {
        return files::bench(dir, hosts, arguments.rows, arguments.seed, until_ns);
    }
    let began = Instant::now();
    let mut stores = Vec::new();
    for host in 0..HOSTS {
        let path = dir.join(format!("{}.db", Day::node(host)));
        let filled = fill(&path, &Day::full(arguments.seed, host, HOSTS, arguments.rows, until_ns), false)?;
        eprintln!("{:.0?}: {} {filled:?}", began.elapsed(), path.display());
        stores.push((Day::node(host), path));
    }
    let united = dir.join("united.db");
    unite(&stores, &united)?;
    eprintln!("{:.0?}: one SQLite database of {} bytes", began.elapsed(), std::fs::metadata(&united)?.len());

    let mut agents = start(&stores, dir, arguments.rate)?;
    idle(&agents)?;
    let since = Duration::from_nanos((now_ns()? - until_ns).cast_unsigned()) + Duration::from_secs(120);
    let (verdict, shown) = agents[0].investigation(since)?;
    eprintln!("{:.0?}: the verdict is {verdict}, with {} questions behind it", began.elapsed(), shown.len());

    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut asked = questions::of_pages(&root, (until_ns - minute_ns, until_ns))?;
    asked.extend(questions::of_tables());
    asked.extend(shown.into_iter().map(|(title, sql)| questions::Asked { from: title, sql }));
    let mut known = answers(&united, &asked, until_ns)?;
    eprintln!("{:.0?}: SQLite has answered {} questions", began.elapsed(), known.len());

    let mut order: Vec<usize> = (0..known.len()).flat_map(|at| vec![at; arguments.rounds]).collect();
    let mut rng = StdRng::seed_from_u64(arguments.seed);
    order.shuffle(&mut rng);
    agents[RECORDING].tell("start")?;
    for (nth, at) in order.into_iter().enumerate() {
        let Known { sql, answer, times, problems, .. } = &mut known[at];
        let (outcome, took) = agents[nth % agents.len()].ask(sql, &arguments.timeout)?;
        times.push(took);
        let problem = match outcome {
            Outcome::Complete(rows) => compare(sql, &rows, answer).err().map(|error| format!("wrong: {error:#}")),
            Outcome::Failed(why) => Some(format!("failed: {why}")),
        };
        if let Some(problem) = problem {
            *problems.entry(problem.chars().take(600).collect()).or_default() += 1;
        }
    }
    agents[RECORDING].tell("stop")?;
    let lost = recorded(&mut agents[RECORDING])?;
    eprintln!("{:.0?}: all is asked", began.elapsed());
    tell(&known);
    let peak = agents.iter().map(Agent::peak_bytes).collect::<anyhow::Result<Vec<_>>>()?;
    figure("day_agent_memory_at_most", mib(peak.into_iter().max().unwrap_or(0)), "MiB", "<=", 1024.0);
    none_of("day_rows_lost_meanwhile", lost, "rows");
    Ok(())
}

/// Prints what was slow, wrong or failed, and the figures.
fn tell(known: &[Known]) {
    let mut slowest: Vec<&Known> = known.iter().collect();
    slowest.sort_by_key(|known| std::cmp::Reverse(known.times.iter().max().copied()));
    for slow in slowest.iter().take(10) {
        println!("{:.2?} at most ({}): {}", slow.times.iter().max().copied().unwrap_or_default(), slow.from, slow.sql);
    }
    let mut counted = BTreeMap::from([("wrong", 0), ("failed", 0)]);
    for known in known {
        for (problem, times) in &known.problems {
            println!("{times} x {problem}\n  ({}) {}", known.from, known.sql);
            let kind = if problem.starts_with("wrong") { "wrong" } else { "failed" };
            *counted.entry(kind).or_default() += times;
        }
    }
    let mut times: Vec<Duration> = known.iter().flat_map(|known| known.times.iter().copied()).collect();
    figure("day_questions", times.len() as f64, "questions", ">=", 100.0);
    figure("day_question_p50", p50_ms(&mut times), "ms", "<=", 500.0);
    figure("day_question_p99", ms(quantile(&mut times, 0.99)), "ms", "<=", 5_000.0);
    figure("day_question_longest", ms(quantile(&mut times, 1.0)), "ms", "<=", 10_000.0);
    none_of("day_questions_failed", counted["failed"], "questions");
    none_of("day_questions_wrong", counted["wrong"], "questions");
}

/// The agents, which know each other.
fn start(stores: &[(String, PathBuf)], dir: &Path, rate: u64) -> anyhow::Result<Vec<Agent>> {
    let authority = Authority::create(&"day".parse()?)?;
    let mut agents: Vec<Agent> = Vec::new();
    for (at, (name, store)) in stores.iter().enumerate() {
        let join = agents.first().map(Agent::address).transpose()?;
        let place = agents::place(dir, name, &authority)?;
        let mut command;
        if at == RECORDING {
            command = Command::new(std::env::current_exe()?);
            command.args(["day", "agent", name]).arg(&place).arg(store).arg(rate.to_string()).args(join);
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
        } else {
            command = agents::up(name, &place)?;
            // Nothing is dropped while answers are compared: no row is older.
            command.args(["--capture", "off", "--store-max-age", "36500d", "--store-max-mib", "1048576", "--store"]);
            command.arg(store).args(join.iter().flat_map(|join| ["--join", join]));
        }
        agents.push(Agent::start(name, &place, command)?);
    }
    agents.iter().try_for_each(|agent| agent.wait_for(stores.len()))?;
    Ok(agents)
}

/// The cost of an agent that nobody asks, on such a store.
fn idle(agents: &[Agent]) -> anyhow::Result<()> {
    // The work after a start does not count as idling.
    std::thread::sleep(Duration::from_secs(10));
    let (before, began) = (agents[0].cpu()?, Instant::now());
    std::thread::sleep(Duration::from_secs(20));
    let share = (agents[0].cpu()? - before).as_secs_f64() / began.elapsed().as_secs_f64();
    figure("day_idle_agent_cpu", share * 100.0, "% of a core", "<=", 1.0);
    Ok(())
}

/// SQLite's answer to each question about rows from before the end of the day, by two connections
/// at once.
fn answers(united: &Path, asked: &[questions::Asked], until_ns: i64) -> anyhow::Result<Vec<Known>> {
    let next = AtomicUsize::new(0);
    let known: Mutex<Vec<(usize, Known)>> = Mutex::default();
    std::thread::scope(|scope| {
        let work = || -> anyhow::Result<()> {
            let oracle = Oracle::open(united, HOSTS)?;
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(question) = asked.get(at) else { return Ok(()) };
                let sql = bound::before(&question.sql, until_ns);
                let answer = oracle.answer(&sql).with_context(|| format!("SQLite refuses {sql}"))?;
                let from = question.from.clone();
                let answered = Known { from, sql, answer, times: Vec::new(), problems: BTreeMap::new() };
                known.lock().unwrap_or_else(PoisonError::into_inner).push((at, answered));
            }
        };
        let workers = [scope.spawn(work), scope.spawn(work)];
        workers.into_iter().try_for_each(|worker| match worker.join() {
            Ok(done) => done,
            Err(_) => bail!("a thread of the oracle panicked"),
        })
    })?;
    let mut known = known.into_inner().unwrap_or_else(PoisonError::into_inner);
    // In a fixed order, so that the seed decides which is asked when.
    known.sort_by_key(|(at, _)| *at);
    Ok(known.into_iter().map(|(_, known)| known).collect())
}

/// How many rows the recording agent lost.
fn recorded(agent: &mut Agent) -> anyhow::Result<u64> {
    let mut line = String::new();
    BufReader::new(agent.stdout().context("it prints nothing")?).read_line(&mut line)?;
    eprintln!("recorded meanwhile: {}", line.trim());
    let lost: serde_json::Value = serde_json::from_str(&line)?;
    let number = |name: &str| lost[name].as_u64().context("a number");
    ensure!(number("offered")? > 0, "nothing was recorded meanwhile");
    number("lost")
}

/// An agent of this process, and rows for its store.
async fn recording_agent(child: &ChildArgs) -> anyhow::Result<()> {
    let agent = agent::Agent::start(AgentConfig {
        join: child.join.iter().copied().map(Into::into).collect(),
        socket: Some(child.dir.join("socket")),
        ..AgentConfig::new(
            child.name.parse()?,
            child.dir.join("identity"),
            SourceConfig::Store { path: child.store.clone(), limits: keeps_all() },
        )
    })
    .await?;
    let (source, stop) = (Arc::clone(&agent.shared().source), Arc::new(AtomicBool::new(false)));
    let rate = child.rate;
    let done = tokio::task::spawn_blocking(move || -> anyhow::Result<()> {
        let mut lines = std::io::stdin().lines();
        ensure!(lines.next().transpose()?.as_deref() == Some("start"), "no start");
        let recording = {
            let (source, stop) = (Arc::clone(&source), Arc::clone(&stop));
            std::thread::spawn(move || record(&source, rate, &stop))
        };
        let _ = lines.next().transpose()?;
        stop.store(true, Ordering::Relaxed);
        let Ok(offered) = recording.join() else { bail!("the recorder panicked") };
        let offered = offered?;
        let Source::Store(store) = source.as_ref() else { bail!("no store") };
        store.flush(Duration::from_secs(60))?;
        let counts =
            serde_json::json!({"offered": offered, "stored": store.health().stored, "lost": store.health().lost});
        println!("{counts}");
        std::io::stdout().flush()?;
        // Until it is killed.
        let _ = lines.next();
        Ok(())
    });
    done.await??;
    agent.shutdown().await;
    Ok(())
}

/// Writes current rows into a store until it is told to stop; how many.
fn record(source: &Source, rate: u64, stop: &AtomicBool) -> anyhow::Result<u64> {
    let Source::Store(store) = source else { bail!("no store") };
    let (hour, later_ns) = (3600 * rate, now_ns()? - START_NS);
    let rows = Generator::spread(hour, 3_600_000_000_000).map(|mut row| {
        row.ts_ns += later_ns;
        row
    });
    let offered = at_pace(&store.ingest(), rate, rows, stop);
    ensure!(offered < hour, "an hour of rows was not enough");
    Ok(offered)
}
