//! The command line's side of the local socket.

use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use query_planner::{ColumnMeta, Value};
use tokio::net::UnixStream;

use super::{SocketArg, UsageError};
use crate::agent::config;
use crate::agent::local::{LocalRequest, LocalResponse};
use crate::mesh::frame::{self, FrameReader};
use crate::query::Coverage;

/// What a request came to.
#[derive(Debug)]
pub(crate) enum Reply {
    /// A text: a plan, or a JSON document.
    Text(String),
    /// A whole result.
    Result { columns: Vec<ColumnMeta>, rows: Vec<Vec<Value>>, coverage: Coverage, elapsed_ms: f64, explained: String },
}

/// No answer, with what is known about the coverage.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct NoAnswer {
    pub(crate) message: String,
    pub(crate) coverage: Option<Coverage>,
}

/// Asks the local agent and waits for the whole answer.
pub(crate) fn ask(socket: &SocketArg, request: &LocalRequest) -> anyhow::Result<Reply> {
    let path = socket.socket.clone().unwrap_or_else(default_socket);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(exchange(&path, request))
}

/// Without a flag: the user's own agent when it runs, else the system's.
fn default_socket() -> PathBuf {
    let own = config::default_socket();
    let system = PathBuf::from("/run/rankmesh/agent.sock");
    if !own.exists() && system.exists() { system } else { own }
}

async fn exchange(path: &Path, request: &LocalRequest) -> anyhow::Result<Reply> {
    let stream = UnixStream::connect(path).await.with_context(|| {
        format!("no agent answers on {}; start one with `rankmesh up`, or give --socket PATH", path.display())
    })?;
    let (reader, mut writer) = stream.into_split();
    let mut reader = FrameReader::new(reader);
    // An agent that refuses says so at once and hangs up, perhaps before it was asked: its word is read all the same.
    let asked = frame::write(&mut writer, request).await;
    let (mut columns, mut rows) = (Vec::new(), Vec::new());
    loop {
        let response = match (reader.read::<LocalResponse>().await, &asked) {
            (Err(_) | Ok(None), Err(error)) => bail!("asking the agent: {error}"),
            (response, _) => response.context("reading the agent's answer")?,
        };
        let response = response.context("the agent went away before it had answered")?;
        match response {
            LocalResponse::Columns(names) => columns = names,
            LocalResponse::Rows(more) => rows.extend(more),
            LocalResponse::Text(text) => return Ok(Reply::Text(text)),
            LocalResponse::End { coverage, elapsed_ns, explained } => {
                return Ok(Reply::Result { columns, rows, coverage, elapsed_ms: elapsed_ns as f64 / 1e6, explained });
            }
            LocalResponse::Wrong(message) => return Err(UsageError(message).into()),
            LocalResponse::Failed { message, coverage } => return Err(anyhow!(NoAnswer { message, coverage })),
        }
    }
}
