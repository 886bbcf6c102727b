//! The report of a job that ends: its first node's agent writes it into the job's directory, once
//! the others have closed their stores. Slurm gives a step that ends some time for that (KillWait in
//! slurm.conf); what takes longer is not written.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use super::run_dir::{Charter, RunDir};

const LOOK: Duration = Duration::from_millis(50);

/// How the time between SIGTERM and SIGKILL is spent. The last sixth is left.
struct Times {
    /// For the other agents to close their stores.
    others: Duration,
    /// For the report.
    report: Duration,
    /// For one of its questions.
    question: Duration,
}

impl Times {
    fn of(kill_wait: Duration) -> Self {
        Self { others: kill_wait / 6, report: kill_wait * 2 / 3, question: kill_wait / 6 }
    }
}

/// Writes it; if that fails the log `report` has the reason.
///
/// # Errors
/// The program cannot be started, fails, or takes too long.
pub(super) fn write(run_dir: &RunDir, charter: &Charter) -> anyhow::Result<PathBuf> {
    let stores: Vec<PathBuf> = charter.job.nodes.iter().map(|node| run_dir.store(charter, node)).collect();
    // A store that is closed has no log of its own any more.
    let is_open = |store: &PathBuf| PathBuf::from(format!("{}-wal", store.display())).exists();
    let times = Times::of(charter.kill_wait);
    let until = Instant::now() + times.others;
    while stores.iter().any(is_open) && Instant::now() < until {
        std::thread::sleep(LOOK);
    }
    let (page, log) = (run_dir.path().join("report.html"), run_dir.log("report"));
    let errors = std::fs::File::create(&log).with_context(|| format!("writing {}", log.display()))?;
    let mut command = Command::new(std::env::current_exe().context("finding this program's file")?);
    command.args(["report", "--timeout", &format!("{}ms", times.question.as_millis()), "-o"]).arg(&page);
    for store in &stores {
        command.arg("--db").arg(store);
    }
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors).spawn().context("starting the report")?;
    let until = Instant::now() + times.report;
    let status = loop {
        match child.try_wait().context("waiting for the report")? {
            Some(status) => break status,
            None if Instant::now() >= until => {
                let _ = child.kill();
                let _ = child.wait();
                anyhow::bail!(
                    "it was not done within {} s, two thirds of Slurm's KillWait: rankmesh report --db {} makes it",
                    times.report.as_secs(),
                    run_dir.path().display()
                );
            }
            None => std::thread::sleep(LOOK),
        }
    };
    // 3: some of the stores could not be read; the page lists them.
    ensure!(matches!(status.code(), Some(0 | 3)), "the report failed, see {}", log.display());
    Ok(page)
}
