//! The local socket: the command line of this host asks its agent here.
//!
//! Frames are those of the mesh (`mesh::frame`). One request a connection; the answer is a sequence of
//! [`LocalResponse`]s that ends with `End`, `Failed` or `Wrong`. When the client closes the connection (Ctrl-C), the
//! question is cancelled on every node. Access: the socket's mode is 0600 and the peer's uid must be the agent's own
//! or root.

use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};
use query_planner::{ColumnMeta, Value};
use serde::{Deserialize, Serialize};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::Shared;
use super::stragglers::StragglersQuestion;
use crate::mesh::frame::{self, FrameReader};
use crate::query::Coverage;
use crate::query::ask::{self, AskError, Asked, Question};

/// Rows of one frame to the command line.
const ROWS_PER_FRAME: usize = 2_000;

/// What the command line asks.
#[derive(Debug, Serialize, Deserialize)]
pub enum LocalRequest {
    /// A SQL question.
    Query(Question),
    /// Who holds the job up.
    Stragglers(StragglersQuestion),
    /// The members of the mesh.
    Nodes,
}

/// What the agent answers.
#[derive(Debug, Serialize, Deserialize)]
pub enum LocalResponse {
    /// Columns of the result that follows.
    Columns(Vec<ColumnMeta>),
    /// Some rows.
    Rows(Vec<Vec<Value>>),
    /// The result is whole.
    End {
        /// Who is in it.
        coverage: Coverage,
        /// From question to answer.
        elapsed_ns: u64,
        /// The plan with what each node shipped.
        explained: String,
    },
    /// A text: a plan, or a JSON document (nodes, stragglers).
    Text(String),
    /// The question is wrong (exit code 2).
    Wrong(String),
    /// No answer (exit code 1).
    Failed {
        /// What happened.
        message: String,
        /// Who had answered by then.
        coverage: Option<Coverage>,
    },
}

/// Opens the socket. A socket file that nobody listens on (a killed agent's) is replaced.
///
/// # Errors
/// Another agent listens there, or the directory cannot be made or written.
pub fn bind(path: &Path) -> anyhow::Result<UnixListener> {
    if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .with_context(|| format!("creating {}", directory.display()))?;
    }
    if std::os::unix::net::UnixStream::connect(path).is_ok() {
        bail!("another agent listens there; stop it or give --socket PATH");
    }
    match std::fs::symlink_metadata(path) {
        Ok(metadata) if std::os::unix::fs::FileTypeExt::is_socket(&metadata.file_type()) => std::fs::remove_file(path)?,
        Ok(_) => bail!("the path exists and is not a socket"),
        Err(_) => {}
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Serves the socket until `stop`.
pub(super) async fn serve(listener: UnixListener, shared: Arc<Shared>, stop: CancellationToken) {
    let mut clients = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = clients.join_next(), if !clients.is_empty() => continue,
            () = stop.cancelled() => break,
        };
        match accepted {
            Ok((stream, _)) if may_ask(&stream) => {
                let (shared, stop) = (Arc::clone(&shared), stop.child_token());
                clients.spawn(async move {
                    if let Err(error) = one_client(stream, &shared, stop).await {
                        tracing::debug!("local client: {error:#}");
                    }
                });
            }
            Ok(_) => tracing::warn!("refused a local client of another user"),
            Err(error) => {
                tracing::warn!("local socket: {error}");
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
        }
    }
    clients.shutdown().await;
}

fn may_ask(stream: &UnixStream) -> bool {
    let own = nix::unistd::geteuid().as_raw();
    stream.peer_cred().is_ok_and(|peer| peer.uid() == own || peer.uid() == 0)
}

async fn one_client(stream: UnixStream, shared: &Arc<Shared>, stop: CancellationToken) -> anyhow::Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut reader = FrameReader::new(reader);
    let Some(request) = reader.read::<LocalRequest>().await.context("reading the request")? else { return Ok(()) };
    let _watch = tokio::spawn(cancel_at_end(reader, stop.clone()));
    match request {
        LocalRequest::Query(question) => query(shared, question, &mut writer, stop.clone()).await?,
        LocalRequest::Nodes => {
            let nodes = serde_json::to_string(&super::facts::node_list(shared))?;
            frame::write(&mut writer, &LocalResponse::Text(nodes)).await?;
        }
        LocalRequest::Stragglers(question) => {
            let response = match super::stragglers::answer(shared, question, stop.clone()).await {
                Ok(report) => LocalResponse::Text(serde_json::to_string(&report)?),
                Err(error) => failure(error),
            };
            frame::write(&mut writer, &response).await?;
        }
    }
    stop.cancel();
    Ok(())
}

/// The client sends nothing after its request: when reading ends, it is gone.
async fn cancel_at_end(mut reader: FrameReader<OwnedReadHalf>, stop: CancellationToken) {
    tokio::select! {
        _ = reader.read::<LocalRequest>() => stop.cancel(),
        () = stop.cancelled() => {}
    }
}

async fn query(
    shared: &Arc<Shared>,
    question: Question,
    writer: &mut OwnedWriteHalf,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    match ask::ask(shared, question, stop).await {
        Ok(Asked::Plan(text)) => frame::write(writer, &LocalResponse::Text(text)).await?,
        Ok(Asked::Answer { answer, coverage, elapsed, explained }) => {
            frame::write(writer, &LocalResponse::Columns(answer.columns)).await?;
            let mut rows = answer.rows.into_iter();
            loop {
                let chunk: Vec<_> = rows.by_ref().take(ROWS_PER_FRAME).collect();
                if chunk.is_empty() {
                    break;
                }
                frame::write(writer, &LocalResponse::Rows(chunk)).await?;
            }
            let elapsed_ns = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
            frame::write(writer, &LocalResponse::End { coverage, elapsed_ns, explained }).await?;
        }
        Err(error) => frame::write(writer, &failure(error)).await?,
    }
    Ok(())
}

fn failure(error: AskError) -> LocalResponse {
    match error {
        AskError::Wrong(message) => LocalResponse::Wrong(message),
        AskError::Failed { message, coverage } => LocalResponse::Failed { message, coverage },
    }
}
