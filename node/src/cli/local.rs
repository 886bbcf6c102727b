//! The command line's side of the local socket.

use std::path::{Path, PathBuf};
use std::time::Duration;

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
    /// A result, whose rows were taken as they came.
    Result { coverage: Coverage, elapsed_ms: f64, explained: String },
}

/// A piece of a result, in order.
#[derive(Debug)]
pub(crate) enum Piece {
    /// Its columns; come first.
    Columns(Vec<ColumnMeta>),
    /// Some rows.
    Rows(Vec<Vec<Value>>),
    /// Nothing has come for [`IDLE`].
    Idle,
}

/// Silence after which whoever takes the pieces is told of it.
const IDLE: Duration = Duration::from_secs(1);

/// No answer, with what is known about the coverage.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct NoAnswer {
    pub(crate) message: String,
    pub(crate) coverage: Option<Coverage>,
}

/// Asks the local agent something that has no rows, and waits for the answer.
pub(crate) fn ask(socket: &SocketArg, request: &LocalRequest) -> anyhow::Result<Reply> {
    ask_into(socket, request, &mut |_| Ok(()))
}

/// Asks the local agent; `take` gets the rows as they come. While it takes its time the agent waits.
pub(crate) fn ask_into(
    socket: &SocketArg,
    request: &LocalRequest,
    take: &mut dyn FnMut(Piece) -> anyhow::Result<()>,
) -> anyhow::Result<Reply> {
    let path = socket.socket.clone().unwrap_or_else(default_socket);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(exchange(&path, request, take))
}

/// Without a flag: the user's own agent when it runs, else the system's.
fn default_socket() -> PathBuf {
    let own = config::default_socket();
    let system = PathBuf::from("/run/rankmesh/agent.sock");
    if !own.exists() && system.exists() { system } else { own }
}

async fn exchange(
    path: &Path,
    request: &LocalRequest,
    take: &mut dyn FnMut(Piece) -> anyhow::Result<()>,
) -> anyhow::Result<Reply> {
    let stream = UnixStream::connect(path).await.with_context(|| {
        format!("no agent answers on {}; start one with `rankmesh up`, or give --socket PATH", path.display())
    })?;
    let (reader, mut writer) = stream.into_split();
    let mut reader = FrameReader::new(reader);
    // An agent that refuses says so at once and hangs up, perhaps before it was asked: its word is read all the same.
    let asked = frame::write(&mut writer, request).await;
    loop {
        let Ok(read) = tokio::time::timeout(IDLE, reader.read::<LocalResponse>()).await else {
            take(Piece::Idle)?;
            continue;
        };
        let response = match (read, &asked) {
            (Err(_) | Ok(None), Err(error)) => bail!("asking the agent: {error}"),
            (response, _) => response.context("reading the agent's answer")?,
        };
        let response = response.context("the agent went away before it had answered")?;
        match response {
            LocalResponse::Columns(columns) => take(Piece::Columns(columns))?,
            LocalResponse::Rows(rows) => take(Piece::Rows(rows))?,
            LocalResponse::Text(text) => return Ok(Reply::Text(text)),
            LocalResponse::End { coverage, elapsed_ns, explained } => {
                return Ok(Reply::Result { coverage, elapsed_ms: elapsed_ns as f64 / 1e6, explained });
            }
            LocalResponse::Wrong(message) => return Err(UsageError(message).into()),
            LocalResponse::Failed { message, coverage } => return Err(anyhow!(NoAnswer { message, coverage })),
        }
    }
}
