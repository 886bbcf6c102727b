//! The demo: four agents on loopback, each with its own identity and store; eight ranks of a job,
//! two to an agent; one rank enters its collectives late; the mesh names it.
//!
//! As root on a kernel with eBPF the ranks are real processes on the `nccl-sim` library, each agent
//! As root on a kernel with eBPF the ranks are real processes on the `nccl-sim` library, each agent
//! records its own cgroup. Otherwise the same agents answer from a trace that an earlier live demo
//! recorded, and the first line of output reports it. `lab` makes and removes agents, cgroups and
//! ranks; `recording` has the recorded trace. `serving` is another demo, on requests to a `server`.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::Value;

mod lab;
mod recording;
pub(crate) mod server;
pub(crate) mod serving;

use lab::{Lab, answered};

/// Agents, by name.
const AGENTS: [&str; 4] = ["node-1", "node-2", "node-3", "node-4"];
/// Ranks of the job; consecutive ranks share an agent.
const RANKS: usize = 8;
/// Work of every rank before each collective.
const WORK_MS: u64 = 20;
/// The rank that enters late, and by how much more.
const LATE_RANK: i64 = 5;
const LATE_MS: u64 = 290;
/// Collectives of the job: about twelve seconds.
const ITERATIONS: usize = 38;
/// Collectives that a verdict on the running job has to cover before it is shown.
const ENOUGH: u64 = 20;
/// Everything ends by itself within this time.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

const SQL: &str = "SELECT node, rank, count(*) AS calls, round(avg(duration_ns) / 1e6, 1) AS mean_ms, \
     round(max(duration_ns) / 1e6, 1) AS max_ms FROM collectives WHERE func = 'all_reduce' \
     GROUP BY node, rank ORDER BY rank";

/// Runs the demo; prints to standard output.
///
/// # Errors
/// Something could not be started, or the verdict is not what was injected.
pub async fn show(replay: bool, record: Option<&Path>) -> anyhow::Result<()> {
    let live = if replay { Err("asked for with --replay".to_owned()) } else { lab::can_capture() };
    let how = match &live {
        Ok(()) => format!(
            "Live: {} agents on loopback record {RANKS} ranks with eBPF; rank {LATE_RANK} enters every collective {LATE_MS} ms late.",
            AGENTS.len()
        ),
        Err(why) => format!(
            "Replay: live capture is not possible here ({why}); {} agents answer from a trace that this demo recorded earlier \
             (rank {LATE_RANK} {LATE_MS} ms late).",
            AGENTS.len()
        ),
    };
    print!("{}", record::wrapped(&how));
    let mut lab = Lab::new()?;
    if live.is_ok() {
        lab.make_cgroups(&AGENTS)?;
    } else {
        recording::fill_stores(&lab, &AGENTS)?;
    }
    lab.start_agents(&AGENTS, live.is_ok()).await?;
    lab.wait_for_members(&AGENTS, LONGEST_WAIT).await?;
    if live.is_ok() {
        lab.start_ranks(&AGENTS).await?;
    }
    let asked = AGENTS[0];
    if live.is_ok() {
        // While they run: a node lists the ranks that are there.
        wait_for_ranks(&mut lab, asked).await?;
    }
    run_command(&lab, asked, &["nodes"]).await?;
    let (verdict, stragglers) = wait_for_verdict(&mut lab, asked, live.is_ok()).await?;
    run_command(&lab, asked, stragglers).await?;
    wait_for_the_last_calls(&mut lab, asked).await?;
    run_command(&lab, asked, &["query", SQL]).await?;
    if let Some(dir) = record {
        recording::save(&lab, &AGENTS, dir)?;
    }
    lab.close().await;
    check(&verdict)?;
    println!(
        "\nThe verdict is what was injected: rank {LATE_RANK} on {}.",
        AGENTS[LATE_RANK as usize * AGENTS.len() / RANKS]
    );
    Ok(())
}

/// Prints a command and its output.
async fn run_command(lab: &Lab, agent: &str, arguments: &[&str]) -> anyhow::Result<()> {
    let quoted = |word: &&str| if word.contains(' ') { format!("\"{word}\"") } else { (*word).to_owned() };
    println!("\n$ rankmesh {}", arguments.iter().map(quoted).collect::<Vec<_>>().join(" "));
    let status = lab.ask(agent, arguments).await?;
    ensure!(answered(status), "`rankmesh {}` ended with {status}", arguments[0]);
    Ok(())
}

/// Asks for the nodes until every node lists ranks, or the job has ended.
async fn wait_for_ranks(lab: &mut Lab, agent: &str) -> anyhow::Result<()> {
    loop {
        let (nodes, _) = lab.json(agent, &["nodes", "--format", "json"]).await.context("asking who is there")?;
        let listed = nodes.as_array().into_iter().flatten();
        let with_ranks = listed.filter(|node| node["ranks"].as_array().is_some_and(|ranks| !ranks.is_empty()));
        if with_ranks.count() == AGENTS.len() || lab.ranks_ended()? {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// The command for the verdict while the job runs, and once it has ended: then the standing verdict
/// names nobody any more, but the stores still have the last minute.
const STANDING: &[&str] = &["stragglers"];
const OF_THE_STORES: &[&str] = &["stragglers", "--since", "60s"];

/// Asks for the verdict until it names a rank by enough collectives, or the job has ended; the
/// verdict, and the command that asked for it.
async fn wait_for_verdict(
    lab: &mut Lab,
    coordinator: &str,
    live: bool,
) -> anyhow::Result<(Value, &'static [&'static str])> {
    let until = Instant::now() + LONGEST_WAIT;
    loop {
        let job_ended = live && lab.ranks_ended()?;
        let command = if job_ended { OF_THE_STORES } else { STANDING };
        let asked = [command, &["--format", "json"]].concat();
        let (answer, complete) = lab.json(coordinator, &asked).await.context("asking for the verdict")?;
        let is_named = complete && answer["verdict"]["kind"] == "rank";
        let is_enough = answer["evidence"]["matched"].as_u64().is_some_and(|matched| matched >= ENOUGH);
        if is_named && (is_enough || job_ended || !live) {
            return Ok((answer, command));
        }
        if Instant::now() >= until {
            bail!("no rank was named within {LONGEST_WAIT:?}; the last verdict was {}", answer["verdict"]);
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Waits for the job's end, and then a moment for its last calls: stores commit several times a
/// second.
async fn wait_for_the_last_calls(lab: &mut Lab, coordinator: &str) -> anyhow::Result<()> {
    let until = Instant::now() + LONGEST_WAIT;
    while Instant::now() < until {
        if lab.ranks_ended()? {
            let sql = "SELECT count(*) FROM collectives WHERE func = 'all_reduce'";
            let (answer, _) = lab.json(coordinator, &["query", "--format", "json", sql]).await?;
            if answer["rows"][0][0].as_u64() == u64::try_from(RANKS * ITERATIONS).ok() {
                break;
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

/// The demo knows what it injected: any other verdict is a failure.
fn check(answer: &Value) -> anyhow::Result<()> {
    let verdict = &answer["verdict"];
    ensure!(verdict["rank"].as_i64() == Some(LATE_RANK), "the verdict names another rank: {verdict}");
    let expected_node = AGENTS[LATE_RANK as usize * AGENTS.len() / RANKS];
    ensure!(verdict["node"].as_str() == Some(expected_node), "the verdict names another host: {verdict}");
    let lateness_ms = verdict["late_by_ns"].as_f64().context("the verdict has no lateness")? / 1e6;
    let off = (lateness_ms - LATE_MS as f64).abs() / LATE_MS as f64;
    ensure!(off <= 0.1, "the lateness is {lateness_ms:.1} ms, not {LATE_MS} ms");
    Ok(())
}
