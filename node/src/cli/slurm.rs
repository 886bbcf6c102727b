//! `rankmesh slurm …`: a job's own mesh.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use ::agent::RecordingState;
use ask::values::{parse_duration, parse_label};
use ask::{Exit, UsageError};
use clap::{Args, Subcommand};

use super::args::{CaptureMode, Share, parse_budget};
use crate::slurm::up::{self, Founded, Wanted};
use crate::slurm::{JobError, agent, keeper};

/// Flags of `rankmesh slurm`.
#[derive(Debug, Args)]
pub(super) struct SlurmArgs {
    #[command(subcommand)]
    command: SlurmCommand,
}

#[derive(Debug, Subcommand)]
enum SlurmCommand {
    /// In a batch script or under salloc: start an agent on each node of the job, and wait until
    /// they know each other
    Up(SlurmUpArgs),
    /// The same for a job that already runs, from any host of the cluster
    Attach {
        /// The job, as squeue shows it
        #[arg(value_name = "JOBID")]
        job: String,
        /// How.
        #[command(flatten)]
        args: SlurmUpArgs,
    },
    /// The process that holds the job step of the mesh (started by up and attach)
    #[command(hide = true)]
    Keep {
        /// The job's directory
        #[arg(long, value_name = "DIR")]
        dir: PathBuf,
    },
    /// The agent of one node (started through srun)
    #[command(hide = true)]
    Agent {
        /// The job's directory
        #[arg(long, value_name = "DIR")]
        dir: PathBuf,
    },
}

/// Flags of `rankmesh slurm up` and `attach`.
#[derive(Debug, Args)]
pub(super) struct SlurmUpArgs {
    /// Directory for this job's identities, logs and stores, on a file system that all its nodes
    /// share; it is made, for you alone [default: rankmesh-JOBID where the job was submitted]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Write the stores here instead: a directory that each node has for itself, or shares
    #[arg(long, value_name = "DIR")]
    store_dir: Option<PathBuf>,
    /// Return when so many nodes are there [default: all]
    #[arg(long, value_name = "N")]
    wait_for: Option<usize>,
    /// Wait at most this long; then say which nodes are missing and end with exit code 3
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = parse_duration)]
    timeout: Duration,
    /// Record when the host allows it, or do not try
    #[arg(long, value_enum, default_value_t = CaptureMode::Auto)]
    capture: CaptureMode,
    /// What recording calls may take of one core on each node: a share, or none to record each call
    /// (docs/capture.md)
    #[arg(long, value_name = "SHARE", default_value = "1%", value_parser = parse_budget)]
    budget: Share,
    /// Keep at most this many MiB in each node's store
    #[arg(long, value_name = "MIB", default_value_t = 4096)]
    store_max_mib: u64,
    /// Write report.html into the job's directory when the job ends: the default
    #[arg(long, overrides_with = "no_report")]
    report: bool,
    /// Write no report when the job ends
    #[arg(long, overrides_with = "report")]
    no_report: bool,
    /// Label of the job's nodes besides job, array, restart and het group (repeatable)
    #[arg(long, value_name = "K=V", value_parser = parse_label)]
    label: Vec<(String, String)>,
}

/// Whether the command is an agent, which logs more.
pub(super) fn is_agent(args: &SlurmArgs) -> bool {
    matches!(args.command, SlurmCommand::Agent { .. })
}

pub(super) fn run(args: SlurmArgs) -> anyhow::Result<Exit> {
    let founded = match args.command {
        SlurmCommand::Keep { dir } => return keeper::run(&dir).map(|()| Exit::Complete),
        SlurmCommand::Agent { dir } => return agent::run(&dir).map(|()| Exit::Complete),
        SlurmCommand::Up(args) => up::here(&wanted(args)).map_err(|error| match error.downcast_ref::<JobError>() {
            Some(JobError::NoJob) => UsageError(format!("{error:#}")).into(),
            _ => error,
        })?,
        SlurmCommand::Attach { job, args } => up::attach(&job, &wanted(args))?,
    };
    report(&founded)?;
    Ok(if founded.complete { Exit::Complete } else { Exit::Partial })
}

fn wanted(args: SlurmUpArgs) -> Wanted {
    Wanted {
        directory: args.dir,
        store_dir: args.store_dir,
        wait_for: args.wait_for,
        timeout: args.timeout,
        capture: args.capture == CaptureMode::Auto,
        budget: args.budget.0,
        store_max_mib: args.store_max_mib,
        report: !args.no_report,
        labels: args.label,
    }
}

/// The directory on standard output; how it went on standard error.
fn report(founded: &Founded) -> anyhow::Result<()> {
    let seconds = founded.took.as_secs_f64();
    if founded.already {
        eprintln!("rankmesh: the job has its mesh already");
    } else if founded.complete {
        eprintln!("rankmesh: {} of {} nodes know each other after {seconds:.1} s", founded.ready, founded.nodes);
    } else {
        eprintln!("rankmesh: after {seconds:.1} s only {} of {} nodes are there", founded.ready, founded.nodes);
    }
    for (node, why) in &founded.missing {
        eprintln!("rankmesh: missing: {node}: {why}");
    }
    for (state, nodes) in &founded.not_recording {
        let nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
        match state {
            RecordingState::Failed(why) => eprintln!("rankmesh: not recording on {}: {why}", nodes.join(", ")),
            state => eprintln!("rankmesh: recording on {}: {state}", nodes.join(", ")),
        }
    }
    eprintln!(
        "rankmesh: afterwards: rankmesh explain --db {0}; rankmesh shell --db {0}; rankmesh report --db {0}",
        founded.directory.display()
    );
    writeln!(std::io::stdout(), "{}", founded.directory.display())?;
    Ok(())
}
