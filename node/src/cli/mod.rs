//! The command line: raw flags here, one module a command beside it.
//!
//! Data goes to standard output, everything else to standard error. Exit codes: 0 complete, 1 failed, 2 usage,
//! 3 partial. This module owns the flags and the dispatch; what the commands do lives in `agent`, `slurm`,
//! `demo` and the crates below.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::exit::Exit;
use crate::output::Format;

mod check;
mod demo;
mod env;
mod export;
pub mod identity;
mod import;
mod local;
mod nodes;
mod person;
mod query;
mod recorded;
mod secret;
mod slurm;
mod stacks;
mod stragglers;
mod trace;
mod up;
mod utc;

/// Which rank holds the job up, and why: ask any host.
#[derive(Debug, Parser)]
#[command(name = "rankmesh", version, about, long_about = None, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the agent of this host: capture, store, mesh
    Up(Box<UpArgs>),
    /// Ask the mesh (or one file) a SQL question
    Query(QueryArgs),
    /// Name the rank that holds the others up
    Stragglers(StragglersArgs),
    /// Show where ranks are: their call stacks, in classes
    Stacks(StacksArgs),
    /// List the nodes of the mesh
    Nodes(NodesArgs),
    /// Say what this host can capture, what not, and what to do about it
    Check(CheckArgs),
    /// Show the main job on this machine: four agents, eight ranks, one of them late
    Demo(DemoArgs),
    /// Record a trace of this host into a file, without a mesh
    Trace(TraceArgs),
    /// Write a store's rows into a plain SQLite, CSV or Parquet file
    Export(ExportArgs),
    /// Make a trace recorded by another program into a trace store
    Import(ImportArgs),
    /// Print what a shell sets so that MPI and NCCL programs are recorded without root: eval "$(rankmesh env)"
    Env(env::EnvArgs),
    /// Give a Slurm job its own mesh
    Slurm(slurm::SlurmArgs),
    /// Make and show identities: CA, node certificates, join tokens
    Identity(identity::IdentityArgs),
}

/// Flags of `rankmesh up`.
#[derive(Debug, Args)]
pub struct UpArgs {
    /// Name of this node in the mesh [default: the host name]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// UDP address to listen on
    #[arg(long, value_name = "IP:PORT", default_value = "0.0.0.0:7117")]
    pub listen: SocketAddr,
    /// Address the other nodes reach this one at [default: the listen address, or this host's first address]
    #[arg(long, value_name = "IP:PORT")]
    pub advertise: Option<SocketAddr>,
    /// A node of the mesh to join (repeatable); without it and without an identity a new mesh is founded
    #[arg(long, value_name = "IP:PORT")]
    pub join: Vec<SocketAddr>,
    /// Join token that the founding node printed; needed once, until this node has its identity. Other users may see it in
    /// the process list for a moment: --token-file, or RANKMESH_TOKEN in the environment, keep it from them
    #[arg(long, value_name = "TOKEN")]
    pub token: Option<String>,
    /// File with the join token; `-` reads standard input
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Where this node holds the mesh's CA: how long the certificates are valid that it signs for those who join or renew
    #[arg(long, value_name = "DURATION", default_value = "7d", value_parser = parse_validity)]
    pub cert_validity: Duration,
    /// Directory of this node's identity [default: under /var/lib/rankmesh or $XDG_STATE_HOME]
    #[arg(long, value_name = "DIR")]
    pub identity: Option<PathBuf>,
    /// Trace store of this node [default: beside the identity]
    #[arg(long, value_name = "FILE")]
    pub store: Option<PathBuf>,
    /// Keep at most this many MiB in the store
    #[arg(long, value_name = "MIB", default_value_t = 4096)]
    pub store_max_mib: u64,
    /// Memory that all questions together may have on this node, MiB: those asked here and those of other nodes
    #[arg(long, value_name = "MIB", default_value_t = crate::agent::QUESTIONS_MIB, value_parser = clap::value_parser!(u64).range(64..1 << 20))]
    pub question_memory_mib: u64,
    /// Keep rows at most this long
    #[arg(long, value_name = "DURATION", default_value = "7d", value_parser = parse_duration)]
    pub store_max_age: Duration,
    /// Socket for the command line on this host [default: under $XDG_RUNTIME_DIR or /run/rankmesh]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// User who may ask over the socket, too (repeatable, name or number): a reader, who does not see other users' processes
    #[arg(long, value_name = "USER")]
    pub allow_user: Vec<String>,
    /// Group whose members may ask over the socket, too (repeatable, name or number), as readers
    #[arg(long, value_name = "GROUP")]
    pub allow_group: Vec<String>,
    /// Let readers see other users' processes and the audit
    #[arg(long)]
    pub readers_see_processes: bool,
    /// Let every other user of this host ask over the socket, too: she sees the rows of her own processes, from every node
    #[arg(long)]
    pub users_see_own: bool,
    /// Serve the tables of this SQLite file, read-only, in place of a trace store
    #[arg(long, value_name = "FILE", conflicts_with = "store")]
    pub serve_db: Option<PathBuf>,
    /// Tables that are equal on every node: read once, never multiplied
    #[arg(long, value_name = "TABLE,…", value_delimiter = ',')]
    pub replicated: Vec<String>,
    /// Record with eBPF: auto says why when it cannot and goes on without, off does not try
    #[arg(long, value_enum, default_value_t = CaptureMode::Auto)]
    pub capture: CaptureMode,
    /// Record only tasks in this cgroup (v2) and below
    #[arg(long, value_name = "PATH")]
    pub cgroup: Option<PathBuf>,
    /// Shell command to run when the standing verdict changes: the finding as JSON on its standard input and in
    /// RANKMESH_VERDICT, RANKMESH_RANK, RANKMESH_NODE, RANKMESH_TEXT, …; one at a time, killed after 30 s
    #[arg(long, value_name = "COMMAND")]
    pub on_finding: Option<String>,
    /// Record the calls of a function, too (repeatable): LIB is a path or a file name such as libgloo.so.0, SYMBOL may be
    /// mangled, demangled, or a beginning that is unique; `:retval` records what it returns
    #[arg(long, value_name = "LIB:SYMBOL[:retval]")]
    pub probe: Vec<String>,
    /// Record each passing of a USDT point, too (repeatable)
    #[arg(long, value_name = "LIB:PROVIDER:NAME")]
    pub usdt: Vec<String>,
    /// Label of this node (repeatable), usable with --label in questions
    #[arg(long, value_name = "K=V", value_parser = parse_label)]
    pub label: Vec<(String, String)>,
}

/// Whether to record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CaptureMode {
    /// Record when the host allows it.
    Auto,
    /// Do not record.
    Off,
}

/// Which agent to ask.
#[derive(Debug, Clone, Args)]
pub struct SocketArg {
    /// Socket of the local agent [default: under $XDG_RUNTIME_DIR or /run/rankmesh]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Ask the agent of another host over the mesh, from a machine that needs none (port 7117 unless given)
    #[arg(long, value_name = "HOST[:PORT]", requires = "identity", conflicts_with = "socket")]
    pub via: Option<String>,
    /// With --via: who asks, a directory made by `rankmesh identity issue --role operator` or `--role reader`
    #[arg(long, value_name = "DIR", requires = "via")]
    pub identity: Option<PathBuf>,
}

/// Whom to ask and how long to wait.
#[derive(Debug, Args)]
pub struct AskArgs {
    /// Deadline of the question
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_duration)]
    pub timeout: Duration,
    /// Ask only these nodes
    #[arg(long, value_name = "NODE,…", value_delimiter = ',')]
    pub nodes: Vec<String>,
    /// Ask only nodes with this label (repeatable: all must match)
    #[arg(long, value_name = "K=V", value_parser = parse_label)]
    pub label: Vec<(String, String)>,
    /// Fail instead of printing a partial answer
    #[arg(long)]
    pub require_all: bool,
}

/// Flags of `rankmesh query`.
#[derive(Debug, Args)]
pub struct QueryArgs {
    /// The local agent.
    #[command(flatten)]
    pub socket: SocketArg,
    /// Whom to ask.
    #[command(flatten)]
    pub ask: AskArgs,
    /// Output format [default: table on a terminal and in pipes alike]
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub format: Format,
    /// Run the SQL as it stands on each node and put the rows one after the other, `node` first
    #[arg(long)]
    pub per_node: bool,
    /// Print the plan instead of running it; `analyze` runs it and adds rows, bytes and times
    #[arg(long, value_name = "WHAT", num_args = 0..=1, require_equals = true, default_missing_value = "plan")]
    pub explain: Option<Explain>,
    /// Ask this file alone, without a mesh
    #[arg(long, value_name = "FILE", conflicts_with_all = ["socket", "via", "nodes", "label", "per_node"])]
    pub db: Option<PathBuf>,
    /// Ask the mesh of this Slurm job (`rankmesh slurm up`), from any host of the cluster
    #[arg(long, value_name = "JOBID", conflicts_with_all = ["socket", "via", "db"])]
    pub job: Option<String>,
    /// The question; '-' reads it from standard input
    #[arg(value_name = "SQL")]
    pub sql: String,
}

/// What `--explain` shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Explain {
    /// The plan, without running it.
    Plan,
    /// The plan and what running it cost.
    Analyze,
}

/// Flags of `rankmesh stragglers`.
#[derive(Debug, Args)]
pub struct StragglersArgs {
    /// The local agent.
    #[command(flatten)]
    pub socket: SocketArg,
    /// Whom to ask.
    #[command(flatten)]
    pub ask: AskArgs,
    /// Ask the stores for so long back [default: answer from the standing verdict, which every agent keeps]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub since: Option<Duration>,
    /// Only this job (asks the stores); of a Slurm job with a mesh of its own, that mesh, from any host of the cluster
    #[arg(long, value_name = "ID")]
    pub job: Option<String>,
    /// Only this communicator, by its hexadecimal hash (asks the stores)
    #[arg(long, value_name = "HASH", value_parser = parse_hash)]
    pub comm: Option<u64>,
    /// Ask again every two seconds and redraw
    #[arg(long)]
    pub watch: bool,
    /// Also print the SQL that gives each figure again, for `rankmesh query`
    #[arg(long)]
    pub show_sql: bool,
    /// Ask no agent: judge recorded jobs. Operations of ranks as CSV (.csv, .csv.gz; the format of ByteDance's straggler
    /// study), PyTorch flight recorder dumps as JSON (a whole job, or one file a rank), or directories of these
    #[arg(long, value_name = "PATH", num_args = 1.., conflicts_with_all = ["since", "job", "comm", "watch", "show_sql"])]
    pub recorded: Vec<PathBuf>,
    /// Output format
    #[arg(long, value_enum, default_value_t = ReportFormat::Table)]
    pub format: ReportFormat,
}

/// Formats of reports that are not a plain table of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ReportFormat {
    /// Text for people.
    Table,
    /// One JSON value.
    Json,
}

/// Flags of `rankmesh stacks`.
#[derive(Debug, Args)]
pub struct StacksArgs {
    /// The local agent.
    #[command(flatten)]
    pub socket: SocketArg,
    /// Whom to ask.
    #[command(flatten)]
    pub ask: AskArgs,
    /// Only this job; of a Slurm job with a mesh of its own, that mesh, from any host of the cluster
    #[arg(long, value_name = "ID")]
    pub job: Option<String>,
    /// Only these ranks, as 3,5-7
    #[arg(long, value_name = "RANK,…", value_parser = parse_ranks)]
    pub ranks: Option<Ranks>,
    /// How often each rank is looked at (1 to 200)
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub samples: u32,
    /// Time between two looks (5ms to 10s)
    #[arg(long, value_name = "DURATION", default_value = "50ms", value_parser = parse_duration)]
    pub every: Duration,
    /// Also the ranks' child processes, such as a data loader's workers
    #[arg(long)]
    pub children: bool,
    /// All threads, not each process's first one only
    #[arg(long)]
    pub all_threads: bool,
    /// Output format
    #[arg(long, value_enum, default_value_t = StacksFormat::Table)]
    pub format: StacksFormat,
}

/// Ranks of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ranks(pub Vec<u32>);

/// Formats of stacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum StacksFormat {
    /// Classes and tree, for people.
    Table,
    /// One JSON value.
    Json,
    /// A line a stack, `outer;inner COUNT`, for flame graph tools.
    Folded,
}

/// Flags of `rankmesh nodes`.
#[derive(Debug, Args)]
pub struct NodesArgs {
    /// The local agent.
    #[command(flatten)]
    pub socket: SocketArg,
    /// List the mesh of this Slurm job (`rankmesh slurm up`), from any host of the cluster
    #[arg(long, value_name = "JOBID", conflicts_with_all = ["socket", "via"])]
    pub job: Option<String>,
    /// Output format
    #[arg(long, value_enum, default_value_t = ReportFormat::Table)]
    pub format: ReportFormat,
}

/// Flags of `rankmesh check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Output format
    #[arg(long, value_enum, default_value_t = ReportFormat::Table)]
    pub format: ReportFormat,
    /// Check this trace store's integrity instead of the host
    #[arg(long, value_name = "FILE")]
    pub db: Option<PathBuf>,
}

/// Flags of `rankmesh demo`.
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// Show the recorded trace even where live capture would work
    #[arg(long)]
    pub replay: bool,
    /// Record the demo's own run into this directory (how the shipped recording was made)
    #[arg(long, value_name = "DIR", hide = true)]
    pub record: Option<PathBuf>,
}

/// Flags of `rankmesh trace`.
#[derive(Debug, Args)]
pub struct TraceArgs {
    /// SQLite file to write (a trace store; must not exist)
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// How long to record [default: until Ctrl-C]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub duration: Option<Duration>,
    /// Record only tasks in this cgroup (v2) and below
    #[arg(long, value_name = "PATH")]
    pub cgroup: Option<PathBuf>,
}

/// Flags of `rankmesh export`.
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// Trace store (an agent may be writing to it) or any other SQLite file
    #[arg(long, value_name = "FILE")]
    pub db: PathBuf,
    /// New file; its ending says the form: .db (plain SQLite), .csv or .parquet (one table each)
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Only this table (repeatable for .db) [default: all for .db, else collectives]
    #[arg(long, value_name = "TABLE")]
    pub table: Vec<String>,
    /// Only the last stretch of the recording, counted back from its newest row
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub since: Option<Duration>,
}

/// Flags of `rankmesh import`.
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// Trace recorded by another program (Ingero's databases, schema v0.8 and v0.9); it is only read
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// New trace store [default: FILE's name with .rankmesh.db, in this directory]
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Which node's rows, where the trace holds those of several
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
}

/// Runs the command and gives the process's exit code.
pub fn run() -> ExitCode {
    let cli = Cli::parse(); // exits with 2 on a usage error
    start_logging(match &cli.command {
        Command::Up(_) => true,
        Command::Slurm(args) => slurm::is_agent(args),
        _ => false,
    });
    let outcome = match cli.command {
        Command::Up(args) => up::run(*args),
        Command::Query(args) => query::run(args),
        Command::Stragglers(args) => stragglers::run(args),
        Command::Stacks(args) => stacks::run(args),
        Command::Nodes(args) => nodes::run(args),
        Command::Check(args) => check::run(args),
        Command::Demo(args) => demo::run(args),
        Command::Trace(args) => trace::run(args),
        Command::Export(args) => export::run(args),
        Command::Import(args) => import::run(args),
        Command::Env(args) => env::run(args),
        Command::Slurm(args) => slurm::run(args),
        Command::Identity(args) => identity::run(args).map(|()| Exit::Complete),
    };
    match outcome {
        Ok(exit) => ExitCode::from(exit as u8),
        Err(error) => {
            // A reader that went away (`… | head`) is the end of the work, not a fault.
            if is_broken_pipe(&error) {
                return ExitCode::SUCCESS;
            }
            // It may hold words of others: a node's, a file's.
            eprintln!("{}", crate::output::printable_lines(&format!("rankmesh: {error:#}")));
            ExitCode::from(if error.is::<UsageError>() { Exit::Usage } else { Exit::Failed } as u8)
        }
    }
}

/// An error of the person who typed, not of the machine: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.downcast_ref::<std::io::Error>().is_some_and(|io| io.kind() == std::io::ErrorKind::BrokenPipe)
    })
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
        .with_ansi(std::io::stderr().is_terminal())
        .try_init();
}

/// `10s`, `500ms`, `5m`, `2h`, `7d`; a bare number is seconds.
/// Ranks named at once.
const MOST_RANKS: usize = 65_536;

fn parse_ranks(text: &str) -> Result<Ranks, String> {
    let wrong = || format!("'{text}' are no ranks; write 5 or 3,5-7");
    let mut ranks = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| text.trim().parse::<u32>().map_err(|_| wrong());
        let (first, last) = (number(first)?, number(last)?);
        if first > last {
            return Err(wrong());
        }
        if (last - first) as usize >= MOST_RANKS - ranks.len() {
            return Err(format!("more than {MOST_RANKS} ranks"));
        }
        ranks.extend(first..=last);
    }
    Ok(Ranks(ranks))
}

fn parse_duration(text: &str) -> Result<Duration, String> {
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let wrong = || format!("'{text}' is not a duration; write 500ms, 10s, 5m, 2h or 7d");
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let seconds = match unit.trim() {
        "ms" => number / 1e3,
        "" | "s" => number,
        "m" | "min" => number * 60.0,
        "h" => number * 3600.0,
        "d" => number * 86400.0,
        _ => return Err(wrong()),
    };
    if seconds <= 0.0 {
        return Err(format!("'{text}': a duration is more than zero"));
    }
    Duration::try_from_secs_f64(seconds).map_err(|_| wrong())
}

/// Shorter, and nodes would be shut out by a clock that is a little off or an answer that is late.
const SHORTEST_VALIDITY: Duration = Duration::from_secs(30);

fn parse_validity(text: &str) -> Result<Duration, String> {
    let validity = parse_duration(text)?;
    if validity < SHORTEST_VALIDITY {
        return Err(format!("certificates valid for less than {} s cannot be kept up", SHORTEST_VALIDITY.as_secs()));
    }
    Ok(validity)
}

fn parse_label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(format!("'{text}' is not a label; write KEY=VALUE")),
    }
}

fn parse_hash(text: &str) -> Result<u64, String> {
    let digits = text.trim_start_matches("0x");
    u64::from_str_radix(digits, 16)
        .map_err(|_| format!("'{text}' is not a communicator hash; write 1 to 16 hexadecimal digits"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn ranks() {
        assert_eq!(parse_ranks("5"), Ok(Ranks(vec![5])));
        assert_eq!(parse_ranks("3,5-7"), Ok(Ranks(vec![3, 5, 6, 7])));
        for wrong in ["", "a", "3-1", "1,", "-2", "0-4294967295"] {
            assert!(parse_ranks(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn durations() {
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(parse_duration("1.5m"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration("7d"), Ok(Duration::from_secs(604_800)));
        assert_eq!(parse_duration("3"), Ok(Duration::from_secs(3)));
        for wrong in ["", "s", "-1s", "0s", "10 parsecs", "1e99d", "nan"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn labels_and_hashes() {
        assert_eq!(parse_label("rack=a=b"), Ok(("rack".into(), "a=b".into())));
        assert!(parse_label("rack").is_err());
        assert!(parse_label("=x").is_err());
        assert_eq!(parse_hash("0xff"), Ok(255));
        assert_eq!(parse_hash("00ab"), Ok(171));
        assert!(parse_hash("xyz").is_err());
    }
}
