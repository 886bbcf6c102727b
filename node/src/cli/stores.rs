//! Stores without agents: trace stores, exports and served databases on disk, asked in this process
//! with the requests that an agent takes. Each file is a node.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use ::ask::{Backend, NoAnswer, Piece, Reply, Stopped, Take, UsageError};
use agent::board_of_stores::{self, BoardSpan};
use agent::stragglers::{self, Asked};
use agent::{explain, facts};
use model::{LocalRequest, OnBehalf, Question};
use query::Coordinator;
use query::access::{Access, Caller};
use query::ask::{self, AskError, QueryOutcome, RowChunk};
use query::files::FilesError;
use serde::Serialize;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

/// Time for reading the files' tables.
const FOR_TABLES: Duration = Duration::from_secs(10);

/// Open stores.
pub(super) struct Stores {
    /// None only while this is dropped.
    runtime: Option<Runtime>,
    coordinator: Coordinator,
    paths: Vec<PathBuf>,
}

impl Stores {
    /// Opens the stores that `paths` mean: each file, of a directory every `*.db`.
    ///
    /// # Errors
    /// A directory cannot be read or holds none, or not one of the files can be read.
    pub(super) fn open(paths: &[PathBuf]) -> anyhow::Result<Self> {
        let files = query::files::expand(paths)?;
        Self::over(paths.to_vec(), || query::files::coordinator(&files, verdicts::VIEWS))
    }

    /// Stores read from `paths`, over which `make` makes a coordinator.
    ///
    /// # Errors
    /// As `make`.
    pub(super) fn over(
        paths: Vec<PathBuf>,
        make: impl FnOnce() -> Result<Coordinator, FilesError>,
    ) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let coordinator = {
            let _in_runtime = runtime.enter();
            make()?
        };
        Ok(Self { runtime: Some(runtime), coordinator, paths })
    }
}

impl Backend for Stores {
    fn ask_into(
        &self,
        behalf: Option<&OnBehalf>,
        request: LocalRequest,
        stop: &CancellationToken,
        take: Take<'_>,
    ) -> anyhow::Result<Reply> {
        let ended = stop.child_token();
        let _stop_on_return = ended.clone().drop_guard();
        let mut caller = Caller::agent();
        if behalf.is_some_and(|of| of.reader) {
            caller.access = Access::Reader;
        }
        let of = Asked::files(&self.coordinator);
        let Some(runtime) = &self.runtime else { anyhow::bail!("the stores are closed") };
        runtime
            .block_on(async {
                match request {
                    LocalRequest::Query(question) => query(&self.coordinator, question, &caller, ended, take).await,
                    LocalRequest::Stragglers(question) => {
                        document(stragglers::verdict(of, question, &caller, ended).await)
                    }
                    LocalRequest::Explain(question) => document(explain::answer(of, question, &caller, ended).await),
                    LocalRequest::Board(question) => {
                        let newest_ns =
                            query::files::span_ns(&self.coordinator).map(|(_, newest_ns)| newest_ns.saturating_add(1));
                        let span = BoardSpan::of(question, newest_ns);
                        match board_of_stores::board(&self.coordinator, &span, &caller, &ended).await {
                            Ok(board) => Ok(Reply::Board(Box::new(board))),
                            Err(error) => Err(no_answer(error)),
                        }
                    }
                    LocalRequest::Nodes => {
                        Ok(Reply::Text(serde_json::to_string(&facts::node_list(&self.coordinator))?))
                    }
                    LocalRequest::Tables => {
                        let tables = query::tables::tables(&self.coordinator, Instant::now() + FOR_TABLES).await;
                        document(tables.map_err(AskError::failed))
                    }
                    LocalRequest::Doctor => Err(only_agents("a mesh is examined by its agents")),
                    LocalRequest::Stacks(_) => Err(only_agents("stacks are read from processes that run")),
                    LocalRequest::Watch(_) => Err(only_agents("what stands now is pushed by agents")),
                    LocalRequest::Mark(_) => Err(only_agents("notes are written by the agent of a host")),
                    LocalRequest::OnBehalf(_) => Err(only_agents("who asks for whom is said before a request")),
                }
            })
            .map_err(|error| if stop.is_cancelled() { Stopped.into() } else { error })
    }

    fn description(&self) -> String {
        let paths: Vec<String> = self.paths.iter().map(|path| path.display().to_string()).collect();
        format!("the stores {}", paths.join(", "))
    }

    fn is_stores(&self) -> bool {
        true
    }

    fn stored_ns(&self) -> Option<(i64, i64)> {
        query::files::span_ns(&self.coordinator)
    }
}

impl Drop for Stores {
    fn drop(&mut self) {
        // Work that still runs only reads.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn only_agents(why: &str) -> anyhow::Error {
    UsageError(format!("{why}: ask an agent, without --db")).into()
}

fn document<T: Serialize>(answer: Result<T, AskError>) -> anyhow::Result<Reply> {
    match answer {
        Ok(answer) => Ok(Reply::Text(serde_json::to_string(&answer)?)),
        Err(error) => Err(no_answer(error)),
    }
}

fn no_answer(error: AskError) -> anyhow::Error {
    match error {
        AskError::Wrong(failure) => ::ask::wrong(failure),
        AskError::Failed { failure, coverage } => NoAnswer { failure, coverage }.into(),
    }
}

async fn query(
    coordinator: &Coordinator,
    question: Question,
    caller: &Caller,
    stop: CancellationToken,
    take: Take<'_>,
) -> anyhow::Result<Reply> {
    let mut has_columns = false;
    let mut hand_on = |RowChunk { columns, rows }| -> anyhow::Result<()> {
        if !std::mem::replace(&mut has_columns, true) {
            take(Piece::Columns(columns))?;
        }
        take(Piece::Rows(rows))
    };
    match ask::ask_each(coordinator, question, caller, stop, &mut hand_on).await {
        Ok(QueryOutcome::Plan(text)) => Ok(Reply::Text(text)),
        Ok(QueryOutcome::Answer { answer, coverage, elapsed, explained }) => {
            hand_on(RowChunk { columns: answer.columns, rows: answer.rows })?;
            Ok(Reply::Result { coverage, elapsed_ms: elapsed.as_secs_f64() * 1e3, explained })
        }
        Err(error) => Err(error.downcast().map_or_else(|other| other, no_answer)),
    }
}
