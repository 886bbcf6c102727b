//! `rankmesh jobs`: the jobs in stores, an archive or the mesh, one row each: where and how long
//! they ran, how long their steps took, who waited for whom, what was found, what it cost, and what
//! Slurm's accounting has on them. `gather` asks, `print` shows.

mod accounting;
mod gather;
mod print;

use std::io::Write;
use std::path::PathBuf;

use anyhow::bail;
use ask::args::{ReportFormat, SpanArgs, TargetArgs};
use ask::output::{quiet, said, say_coverage};
use ask::rows::Client;
use ask::{Connector, Exit};
use clap::{Args, ValueEnum};
use explain::repeat::Suspect;
use model::Coverage;
use serde::Serialize;

use super::args::RateArgs;
use super::rates::Priced;
use super::waits::Waited;
use accounting::Accounting;

/// Flags of `rankmesh jobs`.
#[derive(Debug, Args)]
pub struct JobsArgs {
    /// Whom to ask.
    #[command(flatten)]
    target: TargetArgs,
    /// What a GPU costs.
    #[command(flatten)]
    rate: RateArgs,
    /// Only this job; of a Slurm job with a mesh of its own, that mesh
    #[arg(long, value_name = "ID")]
    job: Option<String>,
    /// Jobs that made calls in that time; without it all that the stores have.
    #[command(flatten)]
    span: SpanArgs,
    /// Ask Slurm's accounting about the jobs: auto where this host has sacct
    #[arg(long, value_enum, default_value_t = Sacct::Auto)]
    sacct: Sacct,
    /// Also write the jobs into this new file, a row each; its ending says the form: .parquet, .csv
    /// or .db (SQLite)
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Output format
    #[arg(long, value_enum, default_value_t = ReportFormat::Table)]
    format: ReportFormat,
}

/// Whether accounting is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Sacct {
    /// Where there is a sacct; without an answer the jobs are listed without.
    Auto,
    /// Not asked.
    Off,
}

/// What `--format json` prints.
#[derive(Debug, Serialize)]
struct Jobs {
    version: u32,
    /// The newest first.
    jobs: Vec<Job>,
    /// Hosts that were culprits in more jobs than by chance, in most jobs first.
    repeat_culprits: Vec<Suspect>,
    /// Calls that belong to no job that their environment names; they are in no row.
    calls_without_job: i64,
    coverage: Coverage,
}

/// A job.
#[derive(Debug, Clone, Default, Serialize)]
struct Job {
    job_id: String,
    nodes: Vec<String>,
    /// Ranks: processes that made calls, or more where a communicator has more.
    ranks: i64,
    /// Beginning of the first call and end of the last, Unix nanoseconds.
    first_ns: i64,
    last_ns: i64,
    calls: i64,
    /// None where no cycle of collectives shows.
    steps: Option<Steps>,
    /// None where the time ran out before.
    waited: Option<Waited>,
    verdicts: Vec<VerdictSpan>,
    /// Price of the waiting, where there are rates.
    money: Option<explain::cost::Money>,
    accounting: Option<Accounting>,
}

/// How long steps took: from a collective to the same one of the next step, in one process.
#[derive(Debug, Clone, Default, Serialize)]
struct Steps {
    /// The process that they are counted by: the one with most calls in the largest communicator.
    node: String,
    pid: i64,
    /// Collectives of a step.
    collectives: usize,
    count: i64,
    p50_ns: i64,
    p90_ns: i64,
    p99_ns: i64,
    max_ns: i64,
}

/// A verdict, and how long it was the current one.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
struct VerdictSpan {
    verdict: String,
    since_ns: i64,
    /// When the next was found, or the job's last call ended.
    until_ns: i64,
    rank: Option<i64>,
    node: Option<String>,
    cause: Option<String>,
    cost_gpu_s: Option<f64>,
}

impl Jobs {
    fn is_complete(&self) -> bool {
        let is_complete = |job: &Job| job.waited.as_ref().is_some_and(|waited| waited.asked_since_ns <= job.first_ns);
        self.coverage.is_complete() && self.jobs.iter().all(is_complete)
    }
}

/// Lists the jobs, or writes them into a file.
///
/// # Errors
/// Nobody answers, the flags are wrong, or the output cannot be written.
pub fn run(mut args: JobsArgs, connector: &dyn Connector) -> anyhow::Result<Exit> {
    if let Some(out) = &args.out {
        print::check_file(out)?;
    }
    let target = args.target.of_any_job(&mut args.job, connector)?;
    let priced = Priced::of(&args.rate, &target)?;
    let client = Client::of(&target, &args.target);
    let mut jobs = gather::jobs(args.job.as_deref(), args.span.resolved_ns(&target)?, &client)?;
    let complete = jobs.is_complete();
    if args.target.ask.require_all && !complete {
        bail!("the answer is partial and --require-all was given: nothing is printed");
    }
    for job in &mut jobs.jobs {
        gather::price(job, priced.as_ref());
    }
    if args.sacct == Sacct::Auto {
        account(&mut jobs);
    }
    if let Some(out) = &args.out {
        print::file(&jobs, out)?;
    }
    let mut out = std::io::stdout().lock();
    match args.format {
        ReportFormat::Json => writeln!(out, "{}", quiet(&serde_json::to_string(&jobs)?))?,
        ReportFormat::Table => {
            write!(out, "{}", print::text(&jobs))?;
            say_coverage(&jobs.coverage);
        }
    }
    out.flush()?;
    Ok(if complete { Exit::Complete } else { Exit::Partial })
}

/// Joins the records of the accounting. Where it cannot be asked, jobs are listed without.
fn account(jobs: &mut Jobs) {
    match accounting::of(jobs.jobs.iter().map(|job| job.job_id.as_str())) {
        Ok(None) => {}
        Ok(Some(mut known)) => {
            for job in &mut jobs.jobs {
                job.accounting = known.remove(&job.job_id);
            }
        }
        Err(error) => eprint!("{}", said(&format!("rankmesh: jobs are listed without accounting: {error:#}"))),
    }
}
