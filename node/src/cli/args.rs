//! The flags of the commands that send no questions.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use ask::args::ReportFormat;
use ask::values::{parse_duration, parse_label, parse_validity};
use clap::{Args, ValueEnum};
use mesh::Place;
use node_bpf::Budget;

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
    /// A node of the mesh to join, by name or address (repeatable, or by commas; port 7117 unless
    /// given); while none answers it is tried again. Without it and without an identity a new mesh
    /// is founded
    #[arg(long, value_name = "HOST[:PORT]", value_delimiter = ',')]
    pub(super) join: Vec<Place>,
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
    #[arg(long, value_name = "MIB", default_value_t = agent::QUESTIONS_MIB, value_parser = clap::value_parser!(u64).range(64..1 << 20))]
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
    /// What recording calls may take of one core, in the busiest rank and in the agent together: a
    /// share, or none to record each call. Where calls come too fast for it they are recorded in
    /// time slices (docs/capture.md)
    #[arg(long, value_name = "SHARE", default_value = "1%", value_parser = parse_budget)]
    pub(super) budget: Share,
    /// Shell command to run when the standing verdict changes, or p99 of a service of this host has
    /// grown: the finding as JSON on its standard input and in RANKMESH_VERDICT, RANKMESH_RANK,
    /// RANKMESH_NODE, RANKMESH_TEXT, …; one at a time of either kind, killed after 30 s
    #[arg(long, value_name = "COMMAND")]
    pub(super) on_finding: Option<String>,
    /// Time between two looks at whether p99 of a service has grown
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_duration, hide = true)]
    pub(super) tail_every: Duration,
    /// Do not ask NCCL itself (its RAS, on the loopback address) what it knows, in a hang of ranks
    /// that are recorded here
    #[arg(long)]
    pub(super) no_nccl_ras: bool,
    /// Record the calls of a function, too (repeatable): LIB is a path or a file name such as
    /// libgloo.so.0, SYMBOL may be mangled, demangled, or a beginning that is unique; `:retval`
    /// records what it returns
    #[arg(long, value_name = "LIB:SYMBOL[:retval]")]
    pub(super) probe: Vec<String>,
    /// Record each passing of a USDT point, too (repeatable)
    #[arg(long, value_name = "LIB:PROVIDER:NAME")]
    pub(super) usdt: Vec<String>,
    /// Record the requests that these processes answer (repeatable): those of the executable, of the
    /// systemd unit, or that listen on the TCP port. Model servers are found without it, and their
    /// HTTP requests recorded (docs/serving.md)
    #[arg(long, value_name = "NAME=exe:GLOB|port:N|unit:UNIT")]
    pub(super) serve: Vec<String>,
    /// Record the calls of a function as requests, too (repeatable), of each process that has the
    /// library mapped, or is the program: FUNCTION is a symbol or a C++ name, which without its
    /// parameters means all overloads. Or what is between two USDT points of a thread
    /// (docs/serving.md)
    #[arg(long, value_name = "LIBRARY:FUNCTION|LIBRARY:PROVIDER:BEGIN:END")]
    pub(super) request: Vec<String>,
    /// Record no requests but those of --serve and --request
    #[arg(long)]
    pub(super) no_detect: bool,
    /// Record no paths of requests, not even with their numbers and names of things left out
    #[arg(long)]
    pub(super) no_paths: bool,
    /// Write each hour that is over as Parquet into this directory, or s3://BUCKET/PREFIX: history
    /// for any engine (docs/history.md)
    #[arg(long, value_name = "DIR|URL", conflicts_with = "serve_db")]
    pub(super) archive: Option<String>,
    /// With --archive: file of NAME=VALUE lines with the bucket's settings, in place of AWS_… in
    /// the environment; only its owner may read it
    #[arg(long, value_name = "FILE", requires = "archive")]
    pub(super) archive_settings: Option<PathBuf>,
    /// Push all rows into the tables of this ClickHouse server, http://HOST:8123/DATABASE or
    /// https://…, as CLICKHOUSE_USER with CLICKHOUSE_PASSWORD
    /// (`rankmesh archive --clickhouse-schema` prints the script that makes them)
    #[arg(long, value_name = "URL", conflicts_with = "serve_db")]
    pub(super) clickhouse: Option<String>,
    /// With --clickhouse: file of NAME=VALUE lines with user and password, in place of the
    /// environment; only its owner may read it
    #[arg(long, value_name = "FILE", requires = "clickhouse")]
    pub(super) clickhouse_settings: Option<PathBuf>,
    /// Label of this node (repeatable), usable with --label in questions
    #[arg(long, value_name = "K=V", value_parser = parse_label)]
    pub(super) label: Vec<(String, String)>,
}

/// A budget; none is without bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Share(pub(super) Option<Budget>);

pub(super) fn parse_budget(text: &str) -> Result<Share, String> {
    if text == "none" {
        return Ok(Share(None));
    }
    let percent = text.strip_suffix('%').and_then(|number| number.trim().parse().ok());
    let budget = percent.and_then(Budget::percent);
    budget.map(|budget| Share(Some(budget))).ok_or_else(|| format!("{text:?} is no share such as 1% and not \"none\""))
}

/// Whether to record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum CaptureMode {
    /// Record when the host allows it.
    Auto,
    /// Do not record.
    Off,
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
    /// Show requests to two servers in place of a job: which are slow, where, and why; half a
    /// minute, as root on Linux 6.3 or later
    #[arg(long, conflicts_with_all = ["replay", "record"])]
    pub(super) serving: bool,
    /// Be a server of that demo
    #[arg(long, hide = true)]
    pub(super) server: Option<DemoServer>,
    /// Record the demo's own run into this directory (how the shipped recording was made)
    #[arg(long, value_name = "DIR", hide = true)]
    pub(super) record: Option<PathBuf>,
}

/// How a server of the demo does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum DemoServer {
    /// Its requests take what they compute.
    Well,
    /// Some wait.
    Faulty,
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
