//! The command line: one module a command, their flags in `args`.
//!
//! Data goes to standard output, everything else to standard error. Exit codes: 0 complete, 1
//! failed, 2 usage, 3 partial. This module owns the dispatch; what the commands do lives in
//! `agent`, `slurm`, `demo` and the crates below.

use std::process::ExitCode;

use ask::{Exit, RanOnNode, is_broken_pipe};
use clap::{FromArgMatches, Parser, Subcommand};

#[cfg(feature = "archive")]
mod archive;
mod args;
mod check;
mod connector;
mod demo;
mod env;
mod export;
mod groups;
mod help;
pub mod identity;
mod import;
mod person;
mod pipes;
mod replace;
mod secret;
mod slurm;
mod stores;
mod trace;
mod up;
mod via;

use args::{CheckArgs, DemoArgs, ImportArgs, TraceArgs, UpArgs};
use connector::LocalConnector;
use front::args::{ExportArgs, NodesArgs, QueryArgs, SchemaArgs, ShellArgs, StacksArgs, StragglersArgs};
use front::{
    compare, cost, doctor, explain, jobs, mark, nodes, query, report, runbook, saved, schema, shell, stacks,
    stragglers, tail, top,
};

/// Which rank holds the job up, and why: ask any host.
#[derive(Debug, Parser)]
#[command(name = "rankmesh", version, long_version = help::LONG_VERSION.as_str(), about, long_about = None, max_term_width = 100)]
#[command(disable_help_subcommand = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the agent of this host: capture, store, mesh
    Up(Box<UpArgs>),
    /// Ask the mesh (or one file) a SQL question
    Query(QueryArgs),
    /// List saved investigations: SQL files with parameters, for `query --saved` and the page
    Saved(saved::SavedArgs),
    /// Ask one SQL question after the other, with history and completion
    Shell(ShellArgs),
    /// Say what the tables and columns of a trace store hold, with their units
    Schema(SchemaArgs),
    /// Name the rank that holds the others up
    Stragglers(StragglersArgs),
    /// Watch a job live on the terminal: verdict, ranks, heat map; also of the past, and of stores
    Top(top::TopArgs),
    /// Say how long servers' requests take, and what makes the slowest 1 % slow
    Tail(tail::TailArgs),
    /// Explain a verdict: where, how, since when, what was ruled out, what it costs, what to do
    Explain(explain::ExplainArgs),
    /// Show where ranks are: their call stacks, in classes
    Stacks(StacksArgs),
    /// Answer an assistant's questions: the Model Context Protocol on standard input and output
    #[cfg(feature = "mcp")]
    Mcp(mcp::McpArgs),
    /// Compare two spans of a job, or two sets of stores: what changed, and how sure that is
    Compare(compare::CompareArgs),
    /// Serve a page and an HTTP interface for browsers and programs
    #[cfg(feature = "serve")]
    Serve(Box<serve::ServeArgs>),
    /// Note something beside the rows of this host: an epoch, a phase, a deployment
    Mark(mark::MarkArgs),
    /// Say what waiting for late ranks cost, by culprit and cause
    Cost(cost::CostArgs),
    /// List the jobs of the past: nodes, steps, who was waited for, verdicts, cost, accounting
    Jobs(jobs::JobsArgs),
    /// Show what to do about a kind of cause: check, fix, verify
    Runbook(runbook::RunbookArgs),
    /// List the nodes of the mesh
    Nodes(NodesArgs),
    /// Examine every node and the ways between them: what is wrong, and what to do about it
    Doctor(doctor::DoctorArgs),
    /// Say what this host can capture, what not, and what to do about it
    Check(CheckArgs),
    /// Show the main job on this machine: four agents, eight ranks, one of them late
    Demo(DemoArgs),
    /// Record a trace of this host into a file, without a mesh
    Trace(TraceArgs),
    /// Write rows into a plain SQLite, CSV or Parquet file, or as a trace for Perfetto
    Export(ExportArgs),
    /// Write hours of trace stores as Parquet into a directory or bucket, for any engine
    #[cfg(feature = "archive")]
    Archive(archive::ArchiveArgs),
    /// Write a job's report: one HTML file with verdict, heat map, steps, ranks and causes
    Report(report::ReportArgs),
    /// Make a trace recorded by another program into a trace store
    Import(ImportArgs),
    /// Print what a shell sets so that MPI and NCCL programs are recorded without root: eval
    /// "$(rankmesh env)"
    Env(env::EnvArgs),
    /// Give a Slurm job its own mesh
    Slurm(slurm::SlurmArgs),
    /// Make and show identities: CA, node certificates, join tokens
    Identity(identity::IdentityArgs),
    /// Print the help of a command, or the page of a topic
    Help(help::HelpArgs),
    /// Print completions of commands and flags for a shell
    Completions(help::CompletionsArgs),
    /// Write manual pages
    Man(help::ManArgs),
}

/// What a build without the feature `archive` says where one is asked for.
#[cfg(not(feature = "archive"))]
fn without_archives() -> anyhow::Error {
    ask::UsageError(
        "this build reads and writes no archive: build it with the feature `archive` (`make build` does)".to_owned(),
    )
    .into()
}

/// Runs the command and gives the process's exit code.
pub fn run() -> ExitCode {
    // Exits with 2 on a usage error.
    let cli = Cli::from_arg_matches(&groups::root().get_matches()).unwrap_or_else(|error| error.exit());
    let Some(command) = cli.command else {
        pipes::say(&groups::without_command());
        return ExitCode::from(Exit::Usage as u8);
    };
    start_logging(match &command {
        Command::Up(_) => true,
        Command::Slurm(args) => slurm::is_agent(args),
        _ => false,
    });
    let connector = LocalConnector;
    let outcome = pipes::while_read(|| match command {
        Command::Up(args) => up::run(*args),
        Command::Query(args) if args.wants_shell() => shell::run(args.into_shell(), &connector),
        Command::Query(args) => query::run(args, &connector),
        Command::Saved(args) => saved::run(&args),
        Command::Shell(args) => shell::run(args, &connector),
        Command::Schema(args) => schema::run(&args),
        Command::Stragglers(args) => stragglers::run(args, &connector),
        Command::Top(args) => top::run(args, &connector),
        Command::Tail(args) => tail::run(args, &connector),
        Command::Explain(args) => explain::run(args, &connector),
        Command::Stacks(args) => stacks::run(args, &connector),
        #[cfg(feature = "mcp")]
        Command::Mcp(args) => mcp::run(args, &connector),
        Command::Compare(args) => compare::run(args, &connector),
        #[cfg(feature = "serve")]
        Command::Serve(args) => serve::run(*args, &connector),
        Command::Mark(args) => mark::run(args, &connector),
        Command::Cost(args) => cost::run(args, &connector),
        Command::Jobs(args) => jobs::run(args, &connector),
        Command::Runbook(args) => runbook::run(args),
        Command::Nodes(args) => nodes::run(args, &connector),
        Command::Doctor(args) => doctor::run(&args, &connector),
        Command::Check(args) => check::run(args),
        Command::Demo(args) => demo::run(args),
        Command::Trace(args) => trace::run(args),
        Command::Export(args) => export::run(args, &connector),
        #[cfg(feature = "archive")]
        Command::Archive(args) => archive::run(args),
        Command::Report(args) => report::run(args, &connector),
        Command::Import(args) => import::run(args),
        Command::Env(args) => env::run(args),
        Command::Slurm(args) => slurm::run(args),
        Command::Identity(args) => identity::run(args).map(|()| Exit::Complete),
        Command::Help(args) => help::help(&args),
        Command::Completions(args) => help::completions(&args),
        Command::Man(args) => help::man(&args),
    });
    match outcome {
        Ok(exit) => ExitCode::from(exit as u8),
        Err(error) => {
            if let Some(RanOnNode(exit)) = error.downcast_ref() {
                return ExitCode::from(*exit as u8);
            }
            // A reader that closed the pipe (as `head` does) ends the work; it is not a fault.
            if is_broken_pipe(&error) {
                return ExitCode::SUCCESS;
            }
            // It may contain text of others: of a node, of a file.
            pipes::say(&ask::output::said(&format!("rankmesh: {error:#}")));
            ExitCode::from(if ask::is_usage(&error) { Exit::Usage } else { Exit::Failed } as u8)
        }
    }
}

fn start_logging(agent: bool) {
    use std::io::IsTerminal;
    let default = if agent { "info,quinn=warn,quinn_proto=error,chitchat=error,rustls=error" } else { "warn" };
    let filter = tracing_subscriber::EnvFilter::try_from_env("RANKMESH_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(default));
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false)
        // (It would say that by eprintln!, which panics where standard error is a closed pipe.)
        .log_internal_errors(false)
        .with_ansi(ask::output::has_colour(std::io::stderr().is_terminal()))
        .try_init();
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
