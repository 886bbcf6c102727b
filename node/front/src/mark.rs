//! `rankmesh mark`: adds a note to the rows of this host.

use std::io::Write;

use ask::args::SocketArg;
use ask::output::quiet;
use ask::values::parse_label;
use ask::{Connector, Exit, Target};
use clap::Args;
use model::{LocalRequest, Mark};

/// Flags of `rankmesh mark`.
#[derive(Debug, Args)]
pub struct MarkArgs {
    /// The local agent.
    #[command(flatten)]
    socket: SocketArg,
    /// What happened: an epoch, a phase, a deployment
    #[arg(value_name = "TEXT")]
    text: String,
    /// Names with values
    #[arg(value_name = "K=V", value_parser = parse_label)]
    attributes: Vec<(String, String)>,
}

/// Has the agent of this host store the note.
///
/// # Errors
/// Nobody answers, the flags are wrong, or the output cannot be written.
pub fn run(args: MarkArgs, connector: &dyn Connector) -> anyhow::Result<Exit> {
    let request = LocalRequest::Mark(Mark { text: args.text, attributes: args.attributes });
    let json = Target::agent(&args.socket, connector).document(request)?;
    writeln!(std::io::stdout(), "{}", quiet(&json))?;
    Ok(Exit::Complete)
}
