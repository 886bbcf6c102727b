//! The command line's side of asking an agent: this host's over its socket, or another's over the
//! mesh (`--via`).

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use mesh::via::Via;
use model::Coverage;
use model::board::Board;
use model::frame::{self, FrameReader};
use model::{LocalRequest, LocalResponse, OnBehalf};
use query_planner::{ColumnMeta, Value};
use tokio::net::UnixStream;
use tokio_util::sync::CancellationToken;

use super::UsageError;
use super::args::SocketArg;
use crate::agent::config;

/// The port of an agent that was not told another.
const DEFAULT_PORT: u16 = 7117;

/// What a request came to.
#[derive(Debug)]
pub(crate) enum Reply {
    /// A text: a plan, or a JSON document.
    Text(String),
    /// A result, whose rows were taken as they came.
    Result { coverage: Coverage, elapsed_ms: f64, explained: String },
    /// What ranks did, window by window.
    Board(Box<Board>),
}

/// A piece of a result, in order.
#[derive(Debug)]
pub(crate) enum Piece {
    /// Its columns; come first.
    Columns(Vec<ColumnMeta>),
    /// Some rows.
    Rows(Vec<Vec<Value>>),
    /// What stands, as JSON; more come.
    Watched(String),
    /// Nothing has come for [`IDLE`].
    Idle,
}

/// Silence after which whoever takes the pieces is told of it.
const IDLE: Duration = Duration::from_secs(1);

/// How long an agent is waited for beyond a question's own time: its word on why there is no answer
/// should come first.
const BEYOND: Duration = Duration::from_millis(240);

/// The time that an agent has for a request, where the request says.
struct Patience {
    timeout_ms: u64,
    until: Option<Instant>,
}

impl Patience {
    fn with(request: &LocalRequest) -> Self {
        let timeout_ms = match request {
            LocalRequest::Query(question) => question.timeout_ms,
            LocalRequest::Stacks(question) => question.timeout_ms,
            LocalRequest::Explain(question) => question.timeout_ms,
            LocalRequest::Board(question) => question.timeout_ms,
            LocalRequest::Nodes
            | LocalRequest::Tables
            | LocalRequest::Doctor
            | LocalRequest::Watch(_)
            | LocalRequest::Stragglers(_)
            | LocalRequest::StragglersBetween { .. }
            | LocalRequest::OnBehalf(_)
            | LocalRequest::Mark(_) => {
                return Self { timeout_ms: 0, until: None };
            }
        };
        // As good as for ever, where the clock ends before.
        let until = Instant::now().checked_add(Duration::from_millis(timeout_ms).saturating_add(BEYOND));
        Self { timeout_ms, until }
    }

    /// How long to wait for the next piece before looking again.
    fn next(&self) -> Duration {
        let left = self.until.map(|until| until.saturating_duration_since(Instant::now()));
        left.map_or(IDLE, |left| left.min(IDLE))
    }

    /// Fails when nothing more is waited for.
    fn left(&self) -> anyhow::Result<()> {
        if self.until.is_some_and(|until| Instant::now() >= until) {
            bail!("timeout: the agent gave no answer within {} ms, nor said why", self.timeout_ms);
        }
        Ok(())
    }
}

/// No answer, with what is known about the coverage.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct NoAnswer {
    pub(crate) message: String,
    pub(crate) coverage: Option<Coverage>,
}

/// The question was stopped by whoever asked it.
#[derive(Debug, thiserror::Error)]
#[error("stopped")]
pub(crate) struct Stopped;

/// Asks the agent something that has no rows, and waits for the answer.
pub(crate) fn ask(socket: &SocketArg, request: &LocalRequest) -> anyhow::Result<Reply> {
    ask_into(socket, None, request, &CancellationToken::new(), &mut |_| Ok(()))
}

/// Asks the agent, until `stop` ([`Stopped`]), for a client of this process where there is one;
/// `take` gets the rows as they come. While it takes its time the agent waits.
pub(crate) fn ask_into(
    socket: &SocketArg,
    behalf: Option<&OnBehalf>,
    request: &LocalRequest,
    stop: &CancellationToken,
    take: &mut dyn FnMut(Piece) -> anyhow::Result<()>,
) -> anyhow::Result<Reply> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let asking = async {
        match (&socket.via, &socket.identity) {
            (Some(host), Some(identity)) => over_mesh(host, identity, request, take).await,
            _ => exchange(&socket.socket.clone().unwrap_or_else(default_socket), behalf, request, take).await,
        }
    };
    // The agent stops the question on every node when its client hangs up.
    runtime.block_on(stop.run_until_cancelled(asking)).unwrap_or_else(|| Err(Stopped.into()))
}

/// Asks the agent of another host.
async fn over_mesh(
    host: &str,
    identity: &Path,
    request: &LocalRequest,
    take: &mut dyn FnMut(Piece) -> anyhow::Result<()>,
) -> anyhow::Result<Reply> {
    let dir = identity;
    let identity = super::person::load(dir)?;
    let mut tried = Err(anyhow!("{host} has no address"));
    for address in addresses(host).await? {
        let asked = match Via::connect(&identity, address).await {
            Ok(connection) => connection.ask(request.clone()).await,
            Err(error) => Err(error),
        };
        match asked {
            Ok(answer) => {
                tried = Ok((address, answer));
                break;
            }
            Err(error) => tried = Err(anyhow!("asking {address} as {} {}: {error}", identity.role(), identity.node())),
        }
    }
    let (address, mut answer) = tried?;
    let patience = Patience::with(request);
    let reply = loop {
        let Ok(read) = tokio::time::timeout(patience.next(), answer.next()).await else {
            patience.left()?;
            take(Piece::Idle)?;
            continue;
        };
        let response = read.with_context(|| format!("asking {host} as {}", identity.node()))?;
        if let Some(reply) = put(response, take)? {
            break reply;
        }
    };
    let connection = answer.end();
    super::person::renew_if_due(dir, &identity, address, &connection).await;
    connection.close().await;
    Ok(reply)
}

/// Where `HOST`, `HOST:PORT`, `IP`, `IP:PORT` or `[IPv6]:PORT` listens.
pub(super) async fn addresses(host: &str) -> anyhow::Result<Vec<SocketAddr>> {
    if let Ok(ip) = host.trim_matches(['[', ']']).parse::<IpAddr>() {
        return Ok(vec![(ip, DEFAULT_PORT).into()]);
    }
    let with_port = if host.contains(':') { host.to_owned() } else { format!("{host}:{DEFAULT_PORT}") };
    let found = tokio::net::lookup_host(&with_port).await.with_context(|| format!("--via {host}"))?;
    Ok(found.collect())
}

/// Without a flag: the user's own agent when it runs, else the system's.
fn default_socket() -> PathBuf {
    let own = config::default_socket();
    let system = PathBuf::from("/run/rankmesh/agent.sock");
    if !own.exists() && system.exists() { system } else { own }
}

async fn exchange(
    path: &Path,
    behalf: Option<&OnBehalf>,
    request: &LocalRequest,
    take: &mut dyn FnMut(Piece) -> anyhow::Result<()>,
) -> anyhow::Result<Reply> {
    let stream = UnixStream::connect(path).await.with_context(|| {
        format!("no agent answers on {}; start one with `rankmesh up`, or give --socket PATH", path.display())
    })?;
    let (reader, mut writer) = stream.into_split();
    let mut reader = FrameReader::new(reader);
    // An agent that refuses says so at once and hangs up, perhaps before it was asked: its word is
    // read all the same.
    let asked = async {
        if let Some(behalf) = behalf {
            frame::write(&mut writer, &LocalRequest::OnBehalf(behalf.clone())).await?;
        }
        frame::write(&mut writer, request).await
    };
    let asked = asked.await;
    let patience = Patience::with(request);
    let mut heard = false;
    loop {
        let Ok(read) = tokio::time::timeout(patience.next(), reader.read::<LocalResponse>()).await else {
            patience.left()?;
            take(Piece::Idle)?;
            continue;
        };
        let hung_up = !heard && !matches!(read, Ok(Some(_))) && !matches!(request, LocalRequest::Nodes);
        if hung_up && answers_others(path).await {
            let what = match behalf {
                Some(_) => "takes no questions of front ends",
                None => "does not know this question",
            };
            bail!(
                "the agent on {} is of an earlier release, which {what}: upgrade the agent and start it again (rankmesh up \
                 --replace), or ask with rankmesh query or rankmesh stragglers, which it knows",
                path.display()
            );
        }
        heard = true;
        let response = match (read, &asked) {
            (Err(_) | Ok(None), Err(error)) => bail!("asking the agent: {error}"),
            (response, _) => response.context("reading the agent's answer")?,
        };
        let response = response.context("the agent went away before it had answered")?;
        if let Some(reply) = put(response, take)? {
            return Ok(reply);
        }
    }
}

/// Whether an agent that hung up without a word answers what every release knows: then it could not
/// read the request.
async fn answers_others(path: &Path) -> bool {
    let asked = async {
        let (reader, mut writer) = UnixStream::connect(path).await.ok()?.into_split();
        frame::write(&mut writer, &LocalRequest::Nodes).await.ok()?;
        let answer = FrameReader::new(reader).read::<LocalResponse>().await.ok()??;
        matches!(answer, LocalResponse::Text(_)).then_some(())
    };
    tokio::time::timeout(IDLE, asked).await.ok().flatten().is_some()
}

/// Hands a piece on; what it all came to, once the last is there.
fn put(response: LocalResponse, take: &mut dyn FnMut(Piece) -> anyhow::Result<()>) -> anyhow::Result<Option<Reply>> {
    match response {
        LocalResponse::Columns(columns) => take(Piece::Columns(columns)).map(|()| None),
        LocalResponse::Rows(rows) => take(Piece::Rows(rows)).map(|()| None),
        LocalResponse::Watch(json) => take(Piece::Watched(json)).map(|()| None),
        LocalResponse::Board(board) => Ok(Some(Reply::Board(board))),
        LocalResponse::Text(text) => Ok(Some(Reply::Text(text))),
        LocalResponse::End { coverage, elapsed_ns, explained } => {
            Ok(Some(Reply::Result { coverage, elapsed_ms: elapsed_ns as f64 / 1e6, explained }))
        }
        LocalResponse::Wrong(message) => Err(UsageError(message).into()),
        LocalResponse::Failed { message, coverage } => Err(anyhow!(NoAnswer { message, coverage })),
    }
}
