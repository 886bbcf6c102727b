//! The standing verdict, live: the time from an injected delay to the verdict on every agent,
//! whether all agents agree, whether a healthy job is never accused (but for ranks that other
//! programs of a busy host keep from a CPU, by the scheduler's records), and what it costs. Four
//! agents in this process with a cgroup each, real eBPF, eight ranks on real Open MPI.
//! And a simulated job of eight ranks a host: the cost of judging it in memory, and on agents over
//! loopback.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use agent::{Agent, AgentConfig, CaptureChoice, SourceConfig};
use anyhow::{Context, ensure};
use certs::Authority;
use scenarios::figures::{cpu_time, figure, ms, none_of, quantile};
use scenarios::jobs::{Cgroups, Job, build_workloads, mpirun};
use scenarios::stragglers::cpu_waits::{cpu_waits, explain};
use scenarios::stragglers::loopback::loopback;
use scenarios::stragglers::scale::{RANKS_PER_HOST, scale};
use standing::{JUDGES, Key};
use store::StoreConfig;
use verdicts::{Verdict, text};

const NODES: usize = 4;
const RANKS: usize = 8;
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(5);

/// The standing verdict, live on Open MPI: time to verdict, agreement, cost
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// Delays that are injected
    #[arg(long, default_value_t = 20)]
    injections: usize,
    /// Seconds of a healthy job
    #[arg(long, default_value_t = 60)]
    healthy: u64,
    /// The same in minutes
    #[arg(long, conflicts_with = "healthy")]
    healthy_minutes: Option<u64>,
    /// Hosts of a simulated job whose judging in memory is timed; 0: none
    #[arg(long, value_name = "HOSTS", default_value_t = 64)]
    in_memory: usize,
    /// Agents over loopback that judge a simulated job, in place of the live part
    #[arg(long, default_value_t = 0)]
    agents: usize,
}

pub(super) async fn run(arguments: &Arguments) -> anyhow::Result<()> {
    if arguments.in_memory > 0 {
        in_memory(arguments.in_memory);
    }
    if arguments.agents > 0 {
        return on_agents(arguments.agents).await;
    }
    if let Err(error) = node_bpf::supported() {
        println!("the live part is skipped: {error}");
        return Ok(());
    }
    let healthy = arguments.healthy_minutes.map_or(arguments.healthy, |minutes| 60 * minutes);
    live(arguments.injections, Duration::from_secs(healthy)).await
}

/// The agents' verdicts so far: by window, then agent, the named rank.
#[derive(Default)]
struct Seen(BTreeMap<i64, BTreeMap<usize, Option<i32>>>);

struct Lab {
    agents: Vec<Agent>,
    seen: Seen,
}

impl Lab {
    /// The rank that each agent names now; none where it has no verdict on a window with all hosts.
    fn look(&mut self) -> Vec<Option<Option<i32>>> {
        let currents = self.agents.iter().map(|agent| agent.shared().standing.current());
        let mut named = Vec::with_capacity(self.agents.len());
        for (at, current) in currents.enumerate() {
            let Some(standing) = current.map(|c| c.standing).filter(|s| s.heard == NODES) else {
                named.push(None);
                continue;
            };
            let who = match &standing.report.verdict {
                Verdict::Rank { culprit, .. } => Some(Some(culprit.rank)),
                Verdict::Unknown { .. } => None,
                Verdict::None => Some(None),
                other => {
                    println!("agent {at}: {other:?}");
                    Some(Some(-1))
                }
            };
            if let Some(who) = who {
                self.seen.0.entry(standing.window).or_default().insert(at, who);
            }
            named.push(who);
        }
        named
    }

    /// Waits until every agent names `who`; returns how long that took, and which others were named
    /// meanwhile.
    async fn until(&mut self, who: Option<i32>) -> anyhow::Result<(Duration, Vec<i32>)> {
        let started = Instant::now();
        let before = self.look();
        let mut others = Vec::new();
        loop {
            let named = self.look();
            for (now, then) in named.iter().zip(&before) {
                if now != then
                    && let Some(Some(rank)) = now
                    && Some(*rank) != who
                {
                    others.push(*rank);
                }
            }
            if named.iter().all(|n| *n == Some(who)) {
                others.sort_unstable();
                others.dedup();
                return Ok((started.elapsed(), others));
            }
            ensure!(started.elapsed() < PATIENCE, "waited {PATIENCE:?} for {who:?}; the agents say {named:?}");
            tokio::time::sleep(LOOK).await;
        }
    }
}

async fn live(injections: usize, healthy: Duration) -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let root = node_bpf::cgroup_mount_point().context("no cgroup v2 hierarchy")?;
    let cgroups = Cgroups::make(&root, "bench", &["n0", "n1", "n2", "n3"]).context("making cgroups")?;
    let bin = workloads(dir.path())?;
    let agents = start(dir.path(), &cgroups).await?;
    let late = dir.path().join("late");
    let top = cgroups.0[0].display().to_string();
    let each = RANKS / NODES;
    let script = format!(
        "echo $$ > {top}/n$((OMPI_COMM_WORLD_RANK / {each}))/cgroup.procs && exec {} --iters 1000000 --work-ms 20 --late-file {}",
        bin.display(),
        late.display()
    );
    let child = mpirun(RANKS, &script)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("mpirun: install openmpi-bin")?;
    let _job = Job(child);
    let mut lab = Lab { agents, seen: Seen::default() };
    lab.until(None).await.context("the healthy job at its start")?;

    let bytes = |lab: &Lab| lab.agents.iter().map(|a| a.shared().standing.published_bytes()).sum::<u64>();
    let (started, published, cpu) = (Instant::now(), bytes(&lab), cpu_time());
    let (mut looked, mut accused, mut robbed) = (0u64, 0u64, 0u64);
    let mut last: Vec<Option<(i64, Key)>> = vec![None; NODES];
    let mut counted: BTreeSet<(i64, String)> = BTreeSet::new();
    while started.elapsed() < healthy {
        lab.look();
        for (agent, before) in lab.agents.iter().zip(&mut last) {
            let Some(standing) = agent.shared().standing.current().map(|c| c.standing) else { continue };
            let now = Key::of(&standing.report.verdict);
            let news = before.as_ref().is_none_or(|(_, key)| *key != now);
            // The same verdict on one window by several agents is one accusation.
            if news && now != Key::Quiet && counted.insert((standing.window, format!("{now:?}"))) {
                let named = standing.report.verdict.named();
                let since = named.iter().map(|culprit| culprit.since_ns).min();
                let until = named.iter().map(|culprit| culprit.until_ns).max();
                let waits = match since.zip(until) {
                    Some((since, until)) => cpu_waits(agent, since..until).await?,
                    None => BTreeMap::new(),
                };
                let by_others = !named.is_empty() && named.iter().all(|culprit| explain(&waits, culprit));
                *(if by_others { &mut robbed } else { &mut accused }) += 1;
                println!(
                    "after {:.1} s, window {}, {}; load {}; shares of that time in which ranks waited for a CPU: \
                     {waits:.3?}\n{}",
                    started.elapsed().as_secs_f64(),
                    standing.window,
                    if by_others { "a rank is named that was kept from a CPU" } else { "a healthy job is accused" },
                    load(),
                    text(&standing.report)
                );
            }
            *before = Some((standing.window, now));
        }
        looked += 1;
        tokio::time::sleep(LOOK).await;
    }
    let seconds = started.elapsed().as_secs_f64();
    let rate = (bytes(&lab) - published) as f64 / RANKS as f64 / seconds;
    let cores = (cpu_time() - cpu).as_secs_f64() / seconds / NODES as f64;
    println!(
        "healthy for {seconds:.0} s ({looked} looks at {NODES} agents), {:.2} % of a core an agent, load {}",
        100.0 * cores,
        load()
    );

    let (mut times, mut ends, mut wrong) = (Vec::new(), Vec::new(), 0);
    for i in 0..injections {
        let rank = (i * 3 + 1) % RANKS;
        // At different places of the windows.
        tokio::time::sleep(Duration::from_millis((i as u64 * 137) % 500)).await;
        let fresh = dir.path().join("fresh");
        std::fs::write(&fresh, format!("{rank} 60\n"))?;
        std::fs::rename(&fresh, &late)?;
        let (took, others) = lab.until(Some(i32::try_from(rank)?)).await?;
        wrong += others.len();
        std::fs::remove_file(&late)?;
        let (over, others) = lab.until(None).await?;
        wrong += others.iter().filter(|o| **o != i32::try_from(rank).unwrap_or(-1)).count();
        println!("rank {rank}: named by every agent after {took:?}, no more {over:?} after the end");
        times.push(took);
        ends.push(over);
        // The look back before the next injection has passed the late calls.
        tokio::time::sleep(Duration::from_secs(3)).await;
    }
    let (mut compared, mut differ) = (0, 0);
    for verdicts in lab.seen.0.values().filter(|v| v.len() > 1) {
        compared += 1;
        let mut all = verdicts.values();
        let first = all.next();
        differ += usize::from(all.any(|v| Some(v) != first));
    }
    println!("{compared} windows seen at two agents or more, {differ} with different verdicts");
    if !times.is_empty() {
        figure("standing_seconds_to_verdict_median", quantile(&mut times, 0.5).as_secs_f64(), "s", "<=", 3.0);
        figure("standing_seconds_to_verdict_p95", quantile(&mut times, 0.95).as_secs_f64(), "s", "<=", 5.0);
        figure("standing_seconds_to_clear_median", quantile(&mut ends, 0.5).as_secs_f64(), "s", "<=", 6.0);
        none_of("standing_wrong_names", wrong, "ranks");
    }
    println!("{robbed} verdicts named a rank that other programs kept from a CPU");
    none_of("standing_healthy_accusations", accused, "verdicts");
    none_of("standing_windows_with_different_verdicts", differ, "windows");
    figure("standing_bytes_per_rank_and_second", rate, "B/s", "<=", 100.0);
    for agent in lab.agents {
        agent.shutdown().await;
    }
    Ok(())
}

/// The machine's load averages.
fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').take(3).collect::<Vec<_>>().join(" ")
}

fn workloads(dir: &Path) -> anyhow::Result<PathBuf> {
    let out = dir.join("job");
    build_workloads(Path::new(env!("CARGO_MANIFEST_DIR")), &out).context("the workloads")?;
    let bin = out.join("mpi-ranks");
    ensure!(bin.exists(), "no mpi-ranks: install libopenmpi-dev and openmpi-bin");
    Ok(bin)
}

async fn start(dir: &Path, cgroups: &Cgroups) -> anyhow::Result<Vec<Agent>> {
    let authority = Authority::create(&"lab".parse()?)?;
    let mut agents: Vec<Agent> = Vec::new();
    for n in 0..NODES {
        let name = format!("n{n}");
        let identity = dir.join(format!("{name}.id"));
        authority.issue(&name.parse()?, Duration::from_secs(86_400))?.save(&identity)?;
        let config = AgentConfig {
            join: agents.first().map(|first| first.shared().advertise.into()).into_iter().collect(),
            capture: CaptureChoice::Auto {
                cgroup: Some(cgroups.0[n + 1].clone()),
                probes: Vec::new(),
                job: None,
                rings: None,
                budget: None,
                serving: None,
            },
            ..AgentConfig::new(
                name.parse()?,
                identity,
                SourceConfig::Store { path: dir.join(format!("{name}.db")), limits: StoreConfig::default() },
            )
        };
        agents.push(Agent::start(config).await.with_context(|| format!("starting {name}"))?);
    }
    Ok(agents)
}

/// The data that a judge needs for a job of this many hosts, in memory.
fn in_memory(hosts: usize) {
    let scale = scale(hosts);
    let ranks = hosts * RANKS_PER_HOST;
    println!(
        "{ranks} ranks on {hosts} hosts in memory: {} of {} windows judged, {:?} at the longest, load {}",
        scale.judged,
        scale.windows,
        scale.longest,
        load()
    );
    let named_s = scale.named_after.map_or(f64::INFINITY, |after| after.as_secs_f64());
    let limit_s = if ranks >= 10_000 { 8.0 } else { 5.0 };
    figure(&format!("standing_{ranks}_judge_cpu_ms_a_second"), ms(scale.judge), "ms", "<=", 150.0);
    figure(&format!("standing_{ranks}_other_cpu_ms_a_second"), ms(scale.other), "ms", "<=", 1.0);
    figure(&format!("standing_{ranks}_seconds_to_verdict"), named_s, "s", "<=", limit_s);
    none_of(&format!("standing_{ranks}_wrong_names"), scale.wrong, "verdicts");
    // To three judges.
    let bytes = scale.digest_bytes * JUDGES as f64;
    figure(&format!("standing_{ranks}_bytes_per_rank_and_second"), bytes, "B/s", "<=", 100.0);
}

/// The same job on agents over loopback.
async fn on_agents(agents: usize) -> anyhow::Result<()> {
    let found = loopback(agents).await?;
    println!(
        "{agents} agents over loopback, {:?} of CPU an agent and second, load {}; the first says at the end:",
        found.cpu,
        load()
    );
    println!("{}", found.last);
    let seconds = |after: Option<Duration>| after.map_or(f64::INFINITY, |after| after.as_secs_f64());
    figure("standing_agents_seconds_to_first_verdict", seconds(found.first_after), "s", "<=", 5.0);
    figure("standing_agents_seconds_to_last_verdict", seconds(found.named_after), "s", "<=", 5.0);
    none_of("standing_agents_wrong_names", found.wrong, "looks");
    figure("standing_agents_bytes_per_rank_and_second", found.digest_bytes, "B/s", "<=", 100.0);
    figure("standing_agents_gossiped_verdict_bytes_a_second", found.verdict_bytes, "B/s", "<=", 10_000.0);
    none_of("standing_agents_lost_windows", found.lost, "windows");
    Ok(())
}
