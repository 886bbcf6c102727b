//! The flags of the commands that ask.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

use ask::args::{AskArgs, ReportFormat, SocketArg, SpanArgs, TargetArgs};
use ask::output::Format;
use ask::values::{Ranks, parse_duration, parse_hash, parse_ranks};
use clap::{Args, ValueEnum};

/// What a GPU costs.
#[derive(Debug, Clone, Default, Args)]
pub struct RateArgs {
    /// Price of one GPU for one hour, such as 2.49EUR [default: /etc/rankmesh/rates.toml, by label
    /// and model, where the site has one]
    #[arg(long, value_name = "PRICE", conflicts_with = "rates")]
    pub gpu_hour: Option<String>,
    /// Another file of rates than the site's
    #[arg(long, value_name = "FILE")]
    pub rates: Option<PathBuf>,
}

/// Where a site keeps investigations of its own, each in place of a shipped one of the same name.
pub const SITE_INVESTIGATIONS: &str = "/etc/rankmesh/investigations";

/// Flags of commands that ask a saved investigation.
#[derive(Debug, Args)]
pub struct AskSavedArgs {
    /// Ask this saved investigation (`rankmesh saved` lists them)
    #[arg(long, value_name = "NAME", conflicts_with = "sql")]
    pub saved: Option<String>,
    /// Value of one of its parameters, or of `:NAME` in the SQL (repeatable); in SQL a number, null,
    /// true, false, and else a text
    #[arg(short = 'p', long = "param", value_name = "NAME=VALUE")]
    pub param: Vec<String>,
    /// The site's own investigations, NAME.sql each
    #[arg(long, value_name = "DIR", default_value = SITE_INVESTIGATIONS)]
    pub investigations: PathBuf,
}

/// Flags of `rankmesh query`.
#[derive(Debug, Args)]
pub struct QueryArgs {
    /// Whom to ask.
    #[command(flatten)]
    pub target: TargetArgs,
    /// Output format [default: table on a terminal and in pipes alike]
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub format: Format,
    /// Run the SQL as it stands on each node and put the rows one after the other, `node` first
    #[arg(long)]
    pub per_node: bool,
    /// Print the plan instead of running it; `analyze` runs it and adds rows, bytes and times
    #[arg(long, value_name = "WHAT", num_args = 0..=1, require_equals = true, default_missing_value = "plan")]
    pub explain: Option<Explain>,
    /// Ask the mesh of this Slurm job (`rankmesh slurm up`), from any host of the cluster
    #[arg(long, value_name = "JOBID", conflicts_with_all = ["socket", "via", "db", "archive"])]
    pub job: Option<String>,
    /// A saved investigation in place of SQL.
    #[command(flatten)]
    pub saved: AskSavedArgs,
    /// What standard input has: the SQL, or JSON with `sql` or `saved`, and `parameters`, as
    /// `POST query` takes it
    #[arg(long, value_enum, default_value_t = Input::Sql, value_name = "FORM")]
    pub input: Input,
    /// The question; '-' reads it from standard input; without one a terminal becomes `rankmesh
    /// shell`
    #[arg(value_name = "SQL")]
    pub sql: Option<String>,
}

/// Forms of a question on standard input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Input {
    /// One SELECT.
    Sql,
    /// `{"sql": …, "parameters": {…}}`.
    Json,
}

impl QueryArgs {
    /// Whether nothing is asked yet, on a terminal.
    pub fn wants_shell(&self) -> bool {
        let nothing = self.sql.is_none() && self.saved.saved.is_none() && !self.per_node && self.explain.is_none();
        nothing && std::io::stdin().is_terminal() && std::io::stdout().is_terminal()
    }

    /// What a shell takes of them.
    pub fn into_shell(self) -> ShellArgs {
        ShellArgs {
            target: self.target,
            job: self.job,
            format: if self.format == Format::Table { Format::Auto } else { self.format },
            bail: false,
        }
    }
}

/// Flags of `rankmesh shell`.
#[derive(Debug, Args)]
pub struct ShellArgs {
    /// Whom to ask.
    #[command(flatten)]
    pub target: TargetArgs,
    /// Ask the mesh of this Slurm job (`rankmesh slurm up`), from any host of the cluster
    #[arg(long, value_name = "JOBID", conflicts_with_all = ["socket", "via", "db", "archive"])]
    pub job: Option<String>,
    /// How answers are printed (`.mode` changes it)
    #[arg(long, value_enum, default_value_t = Format::Auto)]
    pub format: Format,
    /// Statements from standard input: end at the first that fails
    #[arg(long)]
    pub bail: bool,
}

/// Flags of `rankmesh schema`.
#[derive(Debug, Args)]
pub struct SchemaArgs {
    /// Only this table or view [default: their list]
    #[arg(value_name = "TABLE")]
    pub table: Option<String>,
    /// Output format
    #[arg(long, value_enum, default_value_t = ReportFormat::Table)]
    pub format: ReportFormat,
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
    /// Whom to ask.
    #[command(flatten)]
    pub target: TargetArgs,
    /// Of which time.
    #[command(flatten)]
    pub span: SpanArgs,
    /// Only this job (the standing verdict, or with --since the stores); of a Slurm job with a mesh
    /// of its own, that mesh, from any host of the cluster
    #[arg(long, value_name = "ID")]
    pub job: Option<String>,
    /// Only this communicator, by its hexadecimal hash (asks the stores)
    #[arg(long, value_name = "HASH", value_parser = parse_hash)]
    pub comm: Option<u64>,
    /// All rows of long tables, not the worst eight and the median
    #[arg(long)]
    pub all: bool,
    /// Also print what the verdict rests on: what was looked at, and what could not be seen
    #[arg(long)]
    pub evidence: bool,
    /// Ask again every two seconds and redraw
    #[arg(long, conflicts_with_all = ["between", "until", "db", "archive"])]
    pub watch: bool,
    /// What a GPU costs.
    #[command(flatten)]
    pub rate: RateArgs,
    /// Also print the SQL that gives each figure again, for `rankmesh query`
    #[arg(long)]
    pub show_sql: bool,
    /// Ask no agent: judge recorded jobs. Operations of ranks as CSV or Parquet (the columns of
    /// ByteDance's straggler study; .gz too), PyTorch flight recorder dumps as they are written
    /// (pickle, one file a rank; no code in them is run) or as JSON, or directories of these
    #[arg(long, value_name = "PATH", num_args = 1.., conflicts_with_all = ["since", "between", "job", "comm", "watch", "show_sql", "db", "archive"])]
    pub recorded: Vec<PathBuf>,
    /// Output format
    #[arg(long, value_enum, default_value_t = ReportFormat::Table)]
    pub format: ReportFormat,
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
    /// Only this job; of a Slurm job with a mesh of its own, that mesh, from any host of the
    /// cluster
    #[arg(long, value_name = "ID")]
    pub job: Option<String>,
    /// Only these ranks, as 3,5-7 or 64-126/2
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

/// Flags of `rankmesh export`.
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// Whose rows: for --out of one --db (an agent may be writing to it), for --perfetto of any
    /// number of them, or of an agent's mesh.
    #[command(flatten)]
    pub target: TargetArgs,
    /// New file; its ending says the form: .db (plain SQLite), .csv or .parquet (one table each)
    #[arg(
        long,
        value_name = "FILE",
        required_unless_present = "perfetto",
        requires = "db",
        conflicts_with = "archive"
    )]
    pub out: Option<PathBuf>,
    /// New file ('-': standard output): a trace for Perfetto (ui.perfetto.dev, trace_processor) of all
    /// nodes; without --db the mesh is asked, without a span for the last minute
    #[arg(long, value_name = "FILE", conflicts_with_all = ["out", "table"])]
    pub perfetto: Option<PathBuf>,
    /// Only this table (repeatable for .db) [default: all for .db, else collectives]
    #[arg(long, value_name = "TABLE")]
    pub table: Vec<String>,
    /// Of which time.
    #[command(flatten)]
    pub span: SpanArgs,
    /// With --perfetto: only these ranks and their hosts, as 3,5-7 or 64-126/2
    #[arg(long, value_name = "RANK,…", value_parser = parse_ranks, requires = "perfetto")]
    pub ranks: Option<Ranks>,
    /// With --perfetto: only this job; of a Slurm job with a mesh of its own, that mesh, from any
    /// host of the cluster
    #[arg(long, value_name = "ID", requires = "perfetto")]
    pub job: Option<String>,
}
