//! `rankmesh mark`: notes something beside the rows of this host.

use std::io::Write;

use anyhow::bail;
use clap::Args;
use model::{LocalRequest, Mark};

use super::Exit;
use super::args::SocketArg;
use super::local::{self, Reply};
use super::values::parse_label;
use crate::output::quiet;

/// Flags of `rankmesh mark`.
#[derive(Debug, Args)]
pub(super) struct MarkArgs {
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

pub(super) fn run(args: MarkArgs) -> anyhow::Result<Exit> {
    let request = LocalRequest::Mark(Mark { text: args.text, attributes: args.attributes });
    let Reply::Text(json) = local::ask(&args.socket, &request)? else { bail!("the agent gave rows for a note") };
    writeln!(std::io::stdout(), "{}", quiet(&json))?;
    Ok(Exit::Complete)
}
