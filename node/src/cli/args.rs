//! The flags of each command.

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::times::{When, parse_when};
use super::values::{Ranks, parse_duration, parse_hash, parse_label, parse_ranks, parse_validity};
use crate::output::Format;

/// Flags of `rankmesh up`.
#[derive(Debug, Args)]
pub(super) struct UpArgs {
    /// Name of this node in the mesh [default: the host name]
    #[arg(long, value_name = "NAME")]
    pub(super) name: Option<String>,
    /// UDP address to listen on
    #[arg(long, value_name = "IP:PORT", default_value = "0.0.0.0:7117")]
    pub(super) listen: SocketAddr,
    /// Address the other nodes reach this one at [default: the listen address, or this host's first
    /// address]
    #[arg(long, value_name = "IP:PORT")]
    pub(super) advertise: Option<SocketAddr>,
    /// A node of the mesh to join (repeatable); without it and without an identity a new mesh is
    /// founded
    #[arg(long, value_name = "IP:PORT")]
    pub(super) join: Vec<SocketAddr>,
    /// Join token that the founding node printed; needed once, until this node has its identity.
    /// Other users may see it in the process list for a moment: --token-file, or RANKMESH_TOKEN in
    /// the environment, keep it from them
    #[arg(long, value_name = "TOKEN")]
    pub(super) token: Option<String>,
    /// File with the join token; `-` reads standard input
    #[arg(long, value_name = "FILE")]
    pub(super) token_file: Option<PathBuf>,
    /// Where this node holds the mesh's CA: how long the certificates are valid that it signs for
    /// those who join or renew
    #[arg(long, value_name = "DURATION", default_value = "7d", value_parser = parse_validity)]
    pub(super) cert_validity: Duration,
    /// Directory of this node's identity [default: under /var/lib/rankmesh or $XDG_STATE_HOME]
    #[arg(long, value_name = "DIR")]
    pub(super) identity: Option<PathBuf>,
    /// Trace store of this node [default: beside the identity]
    #[arg(long, value_name = "FILE")]
    pub(super) store: Option<PathBuf>,
    /// Keep at most this many MiB in the store
    #[arg(long, value_name = "MIB", default_value_t = 4096)]
    pub(super) store_max_mib: u64,
    /// Memory that all questions together may have on this node, MiB: those asked here and those of
    /// other nodes
    #[arg(long, value_name = "MIB", default_value_t = crate::agent::QUESTIONS_MIB, value_parser = clap::value_parser!(u64).range(64..1 << 20))]
    pub(super) question_memory_mib: u64,
    /// Keep rows at most this long
    #[arg(long, value_name = "DURATION", default_value = "7d", value_parser = parse_duration)]
    pub(super) store_max_age: Duration,
    /// Socket for the command line on this host [default: under $XDG_RUNTIME_DIR or /run/rankmesh]
    #[arg(long, value_name = "PATH")]
    pub(super) socket: Option<PathBuf>,
    /// Take the place of the agent that listens on the socket: it is ended in good order first, and
    /// what happens until this one records is missing in the coverage
    #[arg(long)]
    pub(super) replace: bool,
    /// User who may ask over the socket, too (repeatable, name or number): a reader, who does not
    /// see other users' processes
    #[arg(long, value_name = "USER")]
    pub(super) allow_user: Vec<String>,
    /// Group whose members may ask over the socket, too (repeatable, name or number), as readers
    #[arg(long, value_name = "GROUP")]
    pub(super) allow_group: Vec<String>,
    /// Let readers see other users' processes and the audit
    #[arg(long)]
    pub(super) readers_see_processes: bool,
    /// Let every other user of this host ask over the socket, too: she sees the rows of her own
    /// processes, from every node
    #[arg(long)]
    pub(super) users_see_own: bool,
    /// Serve the tables of this SQLite file, read-only, in place of a trace store
    #[arg(long, value_name = "FILE", conflicts_with = "store")]
    pub(super) serve_db: Option<PathBuf>,
    /// Tables that are equal on every node: read once, never multiplied
    #[arg(long, value_name = "TABLE,…", value_delimiter = ',')]
    pub(super) replicated: Vec<String>,
    /// Record with eBPF: auto says why when it cannot and goes on without, off does not try
    #[arg(long, value_enum, default_value_t = CaptureMode::Auto)]
    pub(super) capture: CaptureMode,
    /// Record only tasks in this cgroup (v2) and below
    #[arg(long, value_name = "PATH")]
    pub(super) cgroup: Option<PathBuf>,
    /// Shell command to run when the standing verdict changes: the finding as JSON on its standard
    /// input and in RANKMESH_VERDICT, RANKMESH_RANK, RANKMESH_NODE, RANKMESH_TEXT, …; one at a
    /// time, killed after 30 s
    #[arg(long, value_name = "COMMAND")]
    pub(super) on_finding: Option<String>,
    /// Record the calls of a function, too (repeatable): LIB is a path or a file name such as
    /// libgloo.so.0, SYMBOL may be mangled, demangled, or a beginning that is unique; `:retval`
    /// records what it returns
    #[arg(long, value_name = "LIB:SYMBOL[:retval]")]
    pub(super) probe: Vec<String>,
    /// Record each passing of a USDT point, too (repeatable)
    #[arg(long, value_name = "LIB:PROVIDER:NAME")]
    pub(super) usdt: Vec<String>,
    /// Write each hour that is over as Parquet into this directory, or s3://BUCKET/PREFIX: history
    /// for any engine (docs/history.md)
    #[arg(long, value_name = "DIR|URL", conflicts_with = "serve_db")]
    pub(super) archive: Option<String>,
    /// With --archive: file of NAME=VALUE lines with the bucket's settings, in place of AWS_… in the
    /// environment; only its owner may read it
    #[arg(long, value_name = "FILE", requires = "archive")]
    pub(super) archive_settings: Option<PathBuf>,
    /// Push all rows into the tables of this ClickHouse server, http://HOST:8123/DATABASE or https://…, as
    /// CLICKHOUSE_USER with CLICKHOUSE_PASSWORD (`rankmesh archive --clickhouse-schema` prints the
    /// script that makes them)
    #[arg(long, value_name = "URL", conflicts_with = "serve_db")]
    pub(super) clickhouse: Option<String>,
    /// With --clickhouse: file of NAME=VALUE lines with user and password, in place of the environment;
    /// only its owner may read it
    #[arg(long, value_name = "FILE", requires = "clickhouse")]
    pub(super) clickhouse_settings: Option<PathBuf>,
    /// Label of this node (repeatable), usable with --label in questions
    #[arg(long, value_name = "K=V", value_parser = parse_label)]
    pub(super) label: Vec<(String, String)>,
}

/// Whether to record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum CaptureMode {
    /// Record when the host allows it.
    Auto,
    /// Do not record.
    Off,
}

/// Which agent to ask.
#[derive(Debug, Clone, Args)]
pub(super) struct SocketArg {
    /// Socket of the local agent [default: under $XDG_RUNTIME_DIR or /run/rankmesh]
    #[arg(long, value_name = "PATH")]
    pub(super) socket: Option<PathBuf>,
    /// Ask the agent of another host over the mesh, from a machine that needs none (port 7117
    /// unless given)
    #[arg(long, value_name = "HOST[:PORT]", requires = "identity", conflicts_with = "socket")]
    pub(super) via: Option<String>,
    /// With --via: who asks, a directory made by `rankmesh identity issue --role operator` or
    /// `--role reader`
    #[arg(long, value_name = "DIR", requires = "via")]
    pub(super) identity: Option<PathBuf>,
}

/// Whom to ask and how long to wait.
#[derive(Debug, Clone, Args)]
pub(super) struct AskArgs {
    /// Deadline of the question
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_duration)]
    pub(super) timeout: Duration,
    /// Ask only these nodes
    #[arg(long, value_name = "NODE,…", value_delimiter = ',')]
    pub(super) nodes: Vec<String>,
    /// Ask only nodes with this label (repeatable: all must match)
    #[arg(long, value_name = "K=V", value_parser = parse_label)]
    pub(super) label: Vec<(String, String)>,
    /// Fail instead of printing a partial answer
    #[arg(long)]
    pub(super) require_all: bool,
}

/// Whom to ask, and for how long.
#[derive(Debug, Clone, Args)]
pub(super) struct TargetArgs {
    /// Which agent.
    #[command(flatten)]
    pub(super) socket: SocketArg,
    /// Ask no agent, but these trace stores, exports and other SQLite files (repeatable; a
    /// directory, such as a Slurm job's, means all its .db files): each is a node, named after its
    /// file
    #[arg(long, value_name = "PATH", conflicts_with_all = ["socket", "via", "label"])]
    pub(super) db: Vec<PathBuf>,
    /// Ask the hours of this archive (`rankmesh archive`, `rankmesh up --archive`), too: a directory,
    /// or s3://BUCKET/PREFIX with AWS_… in the environment. With --db the stores' newer rows, with
    /// --live (or --socket, --via) those of the mesh, else the archive alone; an hour that both hold
    /// counts once
    #[arg(long, value_name = "DIR|URL", conflicts_with_all = ["label"])]
    pub(super) archive: Option<String>,
    /// With --archive: ask the mesh's live hosts, too
    #[arg(long, requires = "archive", conflicts_with = "db")]
    pub(super) live: bool,
    /// For how long, and which nodes.
    #[command(flatten)]
    pub(super) ask: AskArgs,
}

/// Which time is asked about.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct SpanArgs {
    /// From then on: 10m (ago; of --db before its newest row), 14:05, 2026-11-22T03:00 (this host's
    /// zone) [default: the standing verdict, which every agent keeps; of --db the last minute]
    #[arg(long, value_name = "TIME", value_parser = parse_when)]
    pub(super) since: Option<When>,
    /// With --since: up to then
    #[arg(long, value_name = "TIME", value_parser = parse_when, requires = "since")]
    pub(super) until: Option<When>,
    /// This span of the past
    #[arg(long, num_args = 2, value_names = ["A", "B"], value_parser = parse_when, conflicts_with_all = ["since", "until"])]
    pub(super) between: Vec<When>,
}

/// What a GPU costs.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct RateArgs {
    /// Price of one GPU for one hour, such as 2.49EUR [default: /etc/rankmesh/rates.toml, by label
    /// and model, where the site has one]
    #[arg(long, value_name = "PRICE", conflicts_with = "rates")]
    pub(super) gpu_hour: Option<String>,
    /// Another file of rates than the site's
    #[arg(long, value_name = "FILE")]
    pub(super) rates: Option<PathBuf>,
}

/// Where a site keeps investigations of its own, each in place of a shipped one of the same name.
pub(super) const SITE_INVESTIGATIONS: &str = "/etc/rankmesh/investigations";

/// Flags of commands that ask a saved investigation.
#[derive(Debug, Args)]
pub(super) struct AskSavedArgs {
    /// Ask this saved investigation (`rankmesh saved` lists them)
    #[arg(long, value_name = "NAME", conflicts_with = "sql")]
    pub(super) saved: Option<String>,
    /// Value of one of its parameters (repeatable)
    #[arg(short = 'p', long = "param", value_name = "NAME=VALUE", requires = "saved")]
    pub(super) param: Vec<String>,
    /// The site's own investigations, NAME.sql each
    #[arg(long, value_name = "DIR", default_value = SITE_INVESTIGATIONS)]
    pub(super) investigations: PathBuf,
}

/// Flags of `rankmesh query`.
#[derive(Debug, Args)]
pub(super) struct QueryArgs {
    /// Whom to ask.
    #[command(flatten)]
    pub(super) target: TargetArgs,
    /// Output format [default: table on a terminal and in pipes alike]
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub(super) format: Format,
    /// Run the SQL as it stands on each node and put the rows one after the other, `node` first
    #[arg(long)]
    pub(super) per_node: bool,
    /// Print the plan instead of running it; `analyze` runs it and adds rows, bytes and times
    #[arg(long, value_name = "WHAT", num_args = 0..=1, require_equals = true, default_missing_value = "plan")]
    pub(super) explain: Option<Explain>,
    /// Ask the mesh of this Slurm job (`rankmesh slurm up`), from any host of the cluster
    #[arg(long, value_name = "JOBID", conflicts_with_all = ["socket", "via", "db", "archive"])]
    pub(super) job: Option<String>,
    /// A saved investigation in place of SQL.
    #[command(flatten)]
    pub(super) saved: AskSavedArgs,
    /// The question; '-' reads it from standard input; without one a terminal becomes `rankmesh
    /// shell`
    #[arg(value_name = "SQL")]
    pub(super) sql: Option<String>,
}

impl QueryArgs {
    /// Whether nothing is asked yet, on a terminal.
    pub(super) fn wants_shell(&self) -> bool {
        let nothing = self.sql.is_none() && self.saved.saved.is_none() && !self.per_node && self.explain.is_none();
        nothing && std::io::stdin().is_terminal() && std::io::stdout().is_terminal()
    }

    /// What a shell takes of them.
    pub(super) fn into_shell(self) -> ShellArgs {
        ShellArgs { target: self.target, job: self.job, format: self.format, bail: false }
    }
}

/// Flags of `rankmesh shell`.
#[derive(Debug, Args)]
pub(super) struct ShellArgs {
    /// Whom to ask.
    #[command(flatten)]
    pub(super) target: TargetArgs,
    /// Ask the mesh of this Slurm job (`rankmesh slurm up`), from any host of the cluster
    #[arg(long, value_name = "JOBID", conflicts_with_all = ["socket", "via", "db", "archive"])]
    pub(super) job: Option<String>,
    /// How answers are printed (`.mode` changes it)
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub(super) format: Format,
    /// Statements from standard input: end at the first that fails
    #[arg(long)]
    pub(super) bail: bool,
}

/// Flags of `rankmesh schema`.
#[derive(Debug, Args)]
pub(super) struct SchemaArgs {
    /// Only this table or view [default: their list]
    #[arg(value_name = "TABLE")]
    pub(super) table: Option<String>,
    /// Output format
    #[arg(long, value_enum, default_value_t = ReportFormat::Table)]
    pub(super) format: ReportFormat,
}

/// What `--explain` shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Explain {
    /// The plan, without running it.
    Plan,
    /// The plan and what running it cost.
    Analyze,
}

/// Flags of `rankmesh stragglers`.
#[derive(Debug, Args)]
pub(super) struct StragglersArgs {
    /// Whom to ask.
    #[command(flatten)]
    pub(super) target: TargetArgs,
    /// Of which time.
    #[command(flatten)]
    pub(super) span: SpanArgs,
    /// Only this job (the standing verdict, or with --since the stores); of a Slurm job with a mesh of its own, that mesh, from any
    /// host of the cluster
    #[arg(long, value_name = "ID")]
    pub(super) job: Option<String>,
    /// Only this communicator, by its hexadecimal hash (asks the stores)
    #[arg(long, value_name = "HASH", value_parser = parse_hash)]
    pub(super) comm: Option<u64>,
    /// All rows of long tables, not the worst eight and the median
    #[arg(long)]
    pub(super) all: bool,
    /// Ask again every two seconds and redraw
    #[arg(long, conflicts_with_all = ["between", "until", "db", "archive"])]
    pub(super) watch: bool,
    /// What a GPU costs.
    #[command(flatten)]
    pub(super) rate: RateArgs,
    /// Also print the SQL that gives each figure again, for `rankmesh query`
    #[arg(long)]
    pub(super) show_sql: bool,
    /// Ask no agent: judge recorded jobs. Operations of ranks as CSV or Parquet (the columns of
    /// ByteDance's straggler study; .gz too), PyTorch flight recorder dumps as they are written
    /// (pickle, one file a rank; no code in them is run) or as JSON, or directories of these
    #[arg(long, value_name = "PATH", num_args = 1.., conflicts_with_all = ["since", "between", "job", "comm", "watch", "show_sql", "db", "archive"])]
    pub(super) recorded: Vec<PathBuf>,
    /// Output format
    #[arg(long, value_enum, default_value_t = ReportFormat::Table)]
    pub(super) format: ReportFormat,
}

/// Formats of reports that are not a plain table of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum ReportFormat {
    /// Text for people.
    Table,
    /// One JSON value.
    Json,
}

/// Flags of `rankmesh stacks`.
#[derive(Debug, Args)]
pub(super) struct StacksArgs {
    /// The local agent.
    #[command(flatten)]
    pub(super) socket: SocketArg,
    /// Whom to ask.
    #[command(flatten)]
    pub(super) ask: AskArgs,
    /// Only this job; of a Slurm job with a mesh of its own, that mesh, from any host of the
    /// cluster
    #[arg(long, value_name = "ID")]
    pub(super) job: Option<String>,
    /// Only these ranks, as 3,5-7 or 64-126/2
    #[arg(long, value_name = "RANK,…", value_parser = parse_ranks)]
    pub(super) ranks: Option<Ranks>,
    /// How often each rank is looked at (1 to 200)
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(super) samples: u32,
    /// Time between two looks (5ms to 10s)
    #[arg(long, value_name = "DURATION", default_value = "50ms", value_parser = parse_duration)]
    pub(super) every: Duration,
    /// Also the ranks' child processes, such as a data loader's workers
    #[arg(long)]
    pub(super) children: bool,
    /// All threads, not each process's first one only
    #[arg(long)]
    pub(super) all_threads: bool,
    /// Output format
    #[arg(long, value_enum, default_value_t = StacksFormat::Table)]
    pub(super) format: StacksFormat,
}

/// Formats of stacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum StacksFormat {
    /// Classes and tree, for people.
    Table,
    /// One JSON value.
    Json,
    /// A line a stack, `outer;inner COUNT`, for flame graph tools.
    Folded,
}

/// Flags of `rankmesh nodes`.
#[derive(Debug, Args)]
pub(super) struct NodesArgs {
    /// The local agent.
    #[command(flatten)]
    pub(super) socket: SocketArg,
    /// List the mesh of this Slurm job (`rankmesh slurm up`), from any host of the cluster
    #[arg(long, value_name = "JOBID", conflicts_with_all = ["socket", "via"])]
    pub(super) job: Option<String>,
    /// Output format
    #[arg(long, value_enum, default_value_t = ReportFormat::Table)]
    pub(super) format: ReportFormat,
}

/// Flags of `rankmesh check`.
#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    /// Output format
    #[arg(long, value_enum, default_value_t = ReportFormat::Table)]
    pub(super) format: ReportFormat,
    /// Check this trace store's integrity instead of the host
    #[arg(long, value_name = "FILE")]
    pub(super) db: Option<PathBuf>,
}

/// Flags of `rankmesh demo`.
#[derive(Debug, Args)]
pub(super) struct DemoArgs {
    /// Show the recorded trace even where live capture would work
    #[arg(long)]
    pub(super) replay: bool,
    /// Record the demo's own run into this directory (how the shipped recording was made)
    #[arg(long, value_name = "DIR", hide = true)]
    pub(super) record: Option<PathBuf>,
}

/// Flags of `rankmesh trace`.
#[derive(Debug, Args)]
pub(super) struct TraceArgs {
    /// SQLite file to write (a trace store; must not exist)
    #[arg(long, value_name = "FILE")]
    pub(super) out: PathBuf,
    /// How long to record [default: until Ctrl-C]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(super) duration: Option<Duration>,
    /// Record only tasks in this cgroup (v2) and below
    #[arg(long, value_name = "PATH")]
    pub(super) cgroup: Option<PathBuf>,
}

/// Flags of `rankmesh export`.
#[derive(Debug, Args)]
pub(super) struct ExportArgs {
    /// Whose rows: for --out of one --db (an agent may be writing to it), for --perfetto of any
    /// number of them, or of an agent's mesh.
    #[command(flatten)]
    pub(super) target: TargetArgs,
    /// New file; its ending says the form: .db (plain SQLite), .csv or .parquet (one table each)
    #[arg(
        long,
        value_name = "FILE",
        required_unless_present = "perfetto",
        requires = "db",
        conflicts_with = "archive"
    )]
    pub(super) out: Option<PathBuf>,
    /// New file: a trace for Perfetto (ui.perfetto.dev, trace_processor) of all nodes; without --db
    /// the mesh is asked, without a span for the last minute
    #[arg(long, value_name = "FILE", conflicts_with_all = ["out", "table"])]
    pub(super) perfetto: Option<PathBuf>,
    /// Only this table (repeatable for .db) [default: all for .db, else collectives]
    #[arg(long, value_name = "TABLE")]
    pub(super) table: Vec<String>,
    /// Of which time; with --out only --since, a stretch counted back from the newest row.
    #[command(flatten)]
    pub(super) span: SpanArgs,
    /// With --perfetto: only these ranks and their hosts, as 3,5-7 or 64-126/2
    #[arg(long, value_name = "RANK,…", value_parser = parse_ranks, requires = "perfetto")]
    pub(super) ranks: Option<Ranks>,
    /// With --perfetto: only this job; of a Slurm job with a mesh of its own, that mesh, from any
    /// host of the cluster
    #[arg(long, value_name = "ID", requires = "perfetto")]
    pub(super) job: Option<String>,
}

/// Flags of `rankmesh import`.
#[derive(Debug, Args)]
pub(super) struct ImportArgs {
    /// Trace recorded by another program (Ingero's databases, schema v0.8 and v0.9); it is only
    /// read
    #[arg(value_name = "FILE")]
    pub(super) file: PathBuf,
    /// New trace store [default: FILE's name with .rankmesh.db, in this directory]
    #[arg(long, value_name = "FILE")]
    pub(super) out: Option<PathBuf>,
    /// Which node's rows, where the trace holds those of several
    #[arg(long, value_name = "NAME")]
    pub(super) node: Option<String>,
}
