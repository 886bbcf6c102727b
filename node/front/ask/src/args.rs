//! The flags by which a command chooses the agent or stores to ask, for how long, and about which
//! time.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::times::{When, parse_when};
use crate::values::{parse_duration, parse_label};

/// Which agent to ask.
#[derive(Debug, Clone, Args)]
pub struct SocketArg {
    /// Socket of the local agent [default: under $XDG_RUNTIME_DIR or /run/rankmesh]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Ask the agent of another host over the mesh, from a machine that needs none (port 7117
    /// unless given)
    #[arg(long, value_name = "HOST[:PORT]", requires = "identity", conflicts_with = "socket")]
    pub via: Option<String>,
    /// With --via: who asks, a directory made by `rankmesh identity issue --role operator` or
    /// `--role reader`
    #[arg(long, value_name = "DIR", requires = "via")]
    pub identity: Option<PathBuf>,
}

/// Whom to ask and how long to wait.
#[derive(Debug, Clone, Args)]
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

/// Whom to ask, and for how long.
#[derive(Debug, Clone, Args)]
pub struct TargetArgs {
    /// Which agent.
    #[command(flatten)]
    pub socket: SocketArg,
    /// Ask no agent, but these trace stores, exports and other SQLite files (repeatable; a
    /// directory, such as a Slurm job's, means all its .db files): each is a node, named after its
    /// file
    #[arg(long, value_name = "PATH", conflicts_with_all = ["socket", "via", "label"])]
    pub db: Vec<PathBuf>,
    /// Ask the hours of this archive (`rankmesh archive`, `rankmesh up --archive`), too: a
    /// directory, or s3://BUCKET/PREFIX with AWS_… in the environment. With --db the stores' newer
    /// rows, with --live (or --socket, --via) those of the mesh, else the archive alone; an hour
    /// that both hold counts once
    #[arg(long, value_name = "DIR|URL", conflicts_with_all = ["label"])]
    pub archive: Option<String>,
    /// With --archive: ask the mesh's live hosts, too
    #[arg(long, requires = "archive", conflicts_with = "db")]
    pub live: bool,
    /// For how long, and which nodes.
    #[command(flatten)]
    pub ask: AskArgs,
}

/// Which time is asked about.
#[derive(Debug, Clone, Default, Args)]
pub struct SpanArgs {
    /// From then on: 10m (ago; of --db before its newest row; a bare number is seconds), 14:05,
    /// 2026-11-22T03:00 (this host's zone), or s, ms, us or ns since 1970 (1796014570) [default: what stands now, of --db its last minute; for jobs and cost all there is, for
    /// a report that of --db, or an agent's last ten minutes]
    #[arg(long, value_name = "TIME", value_parser = parse_when)]
    pub since: Option<When>,
    /// With --since: up to then
    #[arg(long, value_name = "TIME", value_parser = parse_when, requires = "since")]
    pub until: Option<When>,
    /// This span of the past
    #[arg(long, num_args = 2, value_names = ["A", "B"], value_parser = parse_when, conflicts_with_all = ["since", "until"])]
    pub between: Vec<When>,
}

/// Formats of reports that are not a plain table of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ReportFormat {
    /// Text for people.
    Table,
    /// One JSON value.
    Json,
}
