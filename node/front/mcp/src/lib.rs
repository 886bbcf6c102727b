//! `rankmesh mcp`: the questions of an assistant, by the Model Context Protocol.
//!
//! A client of the local socket like every other command, with the rights of the user who runs it.
//! On standard input and output it listens nowhere; `http` is a part of `rankmesh serve`. Owns what
//! an assistant gets: `tools` (definitions and their questions), `bounds` (limits of an answer, and
//! marks around data), `prompts`, and `server` (the protocol's side). The contents of answers are
//! made in `front`.

use std::time::Duration;

use ask::args::TargetArgs;
use ask::{Connector, Exit};
use clap::Args;
use rmcp::ServiceExt;

mod bounds;
#[cfg(feature = "http")]
pub mod http;
mod prompts;
mod server;
mod tools;

use server::Server;

/// Flags of `rankmesh mcp`.
#[derive(Debug, Args)]
pub struct McpArgs {
    /// Whom to ask.
    #[command(flatten)]
    target: TargetArgs,
    /// Ask the mesh of this Slurm job (`rankmesh slurm up`), from any host of the cluster; of a
    /// mesh with several jobs, only this job unless an assistant names another
    #[arg(long, value_name = "ID")]
    job: Option<String>,
    /// Tokens of one answer (as estimated; the rest is paged)
    #[arg(long, value_name = "N", default_value_t = 8_000, value_parser = clap::value_parser!(u32).range(500..=200_000))]
    max_tokens: u32,
}

/// How long to wait for running requests when the client has gone.
const FOR_THE_LAST: Duration = Duration::from_millis(100);

/// Answers one client until it goes away.
///
/// # Errors
/// The target cannot be asked, or the protocol failed.
pub fn run(mut args: McpArgs, connector: &dyn Connector) -> anyhow::Result<Exit> {
    let target = args.target.of_any_job(&mut args.job, connector)?;
    let server = Server::new(target, args.target, args.job, args.max_tokens);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let served = runtime.block_on(async {
        // A client that goes away before its first message is no error.
        let Ok(serving) = server.serve(rmcp::transport::stdio()).await else { return Ok(()) };
        serving.waiting().await.map(drop)
    });
    // A pending read of standard input would keep it running for ever.
    runtime.shutdown_timeout(FOR_THE_LAST);
    served?;
    Ok(Exit::Complete)
}
