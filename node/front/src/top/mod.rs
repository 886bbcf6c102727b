//! `rankmesh top`: the current state, live on a terminal or of the past, and once for scripts.
//! Screens are the crate `top`'s; here are the terminal and the requests: `source` fetches in
//! threads of its own, `past` makes the state of a time in the past out of stores, `terminal` draws
//! and reads keys, `once` prints.

mod files;
mod once;
pub mod past;
mod source;
mod terminal;

use std::io::IsTerminal;
use std::path::PathBuf;

use ask::args::{SocketArg, SpanArgs};
use ask::{Connector, Exit, Target, UsageError};
use clap::{Args, ValueEnum};
use top::{Colours, Look, View};

/// Flags of `rankmesh top`.
#[derive(Debug, Args)]
pub struct TopArgs {
    /// Which agent.
    #[command(flatten)]
    socket: SocketArg,
    /// Ask no agent: show what was from these stores (repeatable; a directory, such as a Slurm
    /// job's, means all its .db files)
    #[arg(long, value_name = "PATH", conflicts_with_all = ["socket", "via"])]
    db: Vec<PathBuf>,
    /// Only this job; of a Slurm job with a mesh of its own, that mesh, from any host of the
    /// cluster
    #[arg(long, value_name = "ID")]
    job: Option<String>,
    /// Of which time; without it what stands now, of --db its last minute.
    #[command(flatten)]
    span: SpanArgs,
    /// The view to begin with
    #[arg(long, value_enum, default_value_t = View::Ranks)]
    view: View,
    /// Print what stands once, without a terminal's screen [default where standard output is no
    /// terminal, or TERM is dumb]
    #[arg(long)]
    once: bool,
    /// With --once: its form
    #[arg(long, value_enum, default_value_t = OnceFormat::Text)]
    format: OnceFormat,
    /// Only characters of ASCII [default where the locale is not of UTF-8]
    #[arg(long)]
    ascii: bool,
}

/// Forms of `--once`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OnceFormat {
    /// Text for people.
    Text,
    /// One JSON value.
    Json,
}

/// Shows a job on the terminal until it is quit.
///
/// # Errors
/// Nobody answers, the flags are wrong, or the output cannot be written.
pub fn run(mut args: TopArgs, connector: &dyn Connector) -> anyhow::Result<Exit> {
    let target = Target::of_any_job(&args.socket, &args.db, &mut args.job, connector)?;
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    let has_screen = std::io::stdout().is_terminal() && std::io::stdin().is_terminal() && !is_dumb;
    let look = look(args.ascii);
    if args.once || !has_screen {
        return once::run(target, &args, look);
    }
    if args.format == OnceFormat::Json {
        return Err(UsageError("--format json takes --once: the screen is no JSON".to_owned()).into());
    }
    terminal::run(target, &args, look)
}

/// The terminal's capabilities, by its environment.
fn look(ascii: bool) -> Look {
    let set = |name: &str| std::env::var(name).unwrap_or_default();
    let term = set("TERM");
    let colours = match () {
        () if !set("NO_COLOR").is_empty() || term == "dumb" => Colours::None,
        () if ["truecolor", "24bit"].contains(&set("COLORTERM").as_str()) => Colours::Rgb,
        () if term.contains("256color") || term.contains("direct") => Colours::Indexed,
        () => Colours::Ansi,
    };
    // In the order in which C libraries choose it.
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().map(set).find(|value| !value.is_empty());
    let is_utf8 = locale.is_some_and(|locale| {
        let locale = locale.to_ascii_lowercase();
        locale.contains("utf-8") || locale.contains("utf8")
    });
    Look { colours, ascii: ascii || !is_utf8, zone: jiff::tz::TimeZone::system() }
}
