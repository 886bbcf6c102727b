//! The traits behind which agents and stores are: one answers requests, one opens those besides the
//! agent of this host.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use model::board::Board;
use model::{Coverage, Failure, LocalRequest, OnBehalf};
use query_planner::{ColumnMeta, Value};
use tokio_util::sync::CancellationToken;

use crate::args::SocketArg;

/// The result of a request.
#[derive(Debug)]
pub enum Reply {
    /// A text: a plan, or a JSON document.
    Text(String),
    /// The end of a result, whose rows were passed on as they came.
    Result {
        /// Coverage of it.
        coverage: Coverage,
        /// Time from question to answer.
        elapsed_ms: f64,
        /// The plan with its cost, if that was asked for.
        explained: String,
    },
    /// What ranks did, window by window.
    Board(Box<Board>),
}

/// A piece of a result, in order.
#[derive(Debug)]
pub enum Piece {
    /// Its columns; come first.
    Columns(Vec<ColumnMeta>),
    /// Some rows.
    Rows(Vec<Vec<Value>>),
    /// The current state, as JSON; more come.
    Watched(String),
    /// Nothing has come for a second.
    Idle,
}

/// Receives the pieces of a result as they come.
pub type Take<'a> = &'a mut dyn FnMut(Piece) -> anyhow::Result<()>;

/// Error: no answer, with what is known about the coverage.
#[derive(Debug, thiserror::Error)]
#[error("{failure}")]
pub struct NoAnswer {
    /// The reason.
    pub failure: Failure,
    /// The coverage so far.
    pub coverage: Option<Coverage>,
}

/// Error: the question was stopped by its client.
#[derive(Debug, thiserror::Error)]
#[error("stopped")]
pub struct Stopped;

/// Who answers requests: an agent, or stores.
pub trait Backend: Send + Sync {
    /// Answers, for a client of this process where there is one, until `stop` ([`Stopped`]). `take`
    /// gets rows as they come; while it blocks, the nodes wait.
    ///
    /// # Errors
    /// Nobody answers, the question is wrong ([`UsageError`](crate::UsageError)) or failed
    /// ([`NoAnswer`]), it was stopped, or what `take` returned.
    fn ask_into(
        &self,
        behalf: Option<&OnBehalf>,
        request: LocalRequest,
        stop: &CancellationToken,
        take: Take<'_>,
    ) -> anyhow::Result<Reply>;

    /// Whether nobody listens where it answers, as far as this host can tell at once.
    fn is_gone(&self) -> bool {
        false
    }

    /// Description, such as `the stores DIR`.
    fn description(&self) -> String;

    /// Whether stores are asked: then nothing changes, and the time of the newest row is used as
    /// now.
    fn is_stores(&self) -> bool {
        false
    }

    /// The first and the last time in the stores, Unix nanoseconds; none of an agent.
    fn stored_ns(&self) -> Option<(i64, i64)> {
        None
    }
}

/// Opens what is not behind the local socket.
pub trait Connector: Sync {
    /// The agent of another host over the mesh, with the identity in a directory.
    fn via(&self, host: &str, identity: &Path) -> Arc<dyn Backend>;

    /// The stores that `paths` mean: each file, of a directory every `*.db`.
    ///
    /// # Errors
    /// A directory cannot be read or holds none, or not one of the files can be read.
    fn stores(&self, paths: &[PathBuf]) -> anyhow::Result<Arc<dyn Backend>>;

    /// The hours of an archive with the newer rows of stores, or of a mesh's live hosts, each of
    /// which may take this long to answer.
    ///
    /// # Errors
    /// The archive cannot be read, or is empty; as [`Self::stores`].
    fn archive(
        &self,
        paths: &[PathBuf],
        archive: &str,
        live: Option<(Arc<dyn Backend>, Duration)>,
    ) -> anyhow::Result<Arc<dyn Backend>>;

    /// The socket of the mesh that a Slurm job has of its own.
    ///
    /// # Errors
    /// The job has no mesh, or is not reached; the command ran on a node of the job instead
    /// ([`RanOnNode`](crate::RanOnNode)).
    fn slurm_job(&self, job: &str) -> anyhow::Result<PathBuf>;

    /// Whether a Slurm job has a mesh of its own.
    fn has_own_mesh(&self, job: &str) -> bool;
}

impl SocketArg {
    fn names_an_agent(&self) -> bool {
        self.socket.is_some() || self.via.is_some()
    }

    /// For commands with `--job`: the socket of the job's mesh.
    ///
    /// # Errors
    /// As [`Connector::slurm_job`].
    pub fn of_slurm_job(&self, job: Option<&str>, connector: &dyn Connector) -> anyhow::Result<Self> {
        match job {
            Some(job) if !self.names_an_agent() => Ok(Self { socket: Some(connector.slurm_job(job)?), ..self.clone() }),
            _ => Ok(self.clone()),
        }
    }

    /// As [`Self::of_slurm_job`], for commands whose `--job` may also be a job within a larger
    /// mesh: only a job with a mesh of its own is looked for there, and as such a mesh has no other
    /// job, `job` is taken out.
    ///
    /// # Errors
    /// As there.
    pub fn of_any_job(&self, job: &mut Option<String>, connector: &dyn Connector) -> anyhow::Result<Self> {
        if !self.names_an_agent() && job.as_deref().is_some_and(|job| connector.has_own_mesh(job)) {
            self.of_slurm_job(job.take().as_deref(), connector)
        } else {
            Ok(self.clone())
        }
    }
}
