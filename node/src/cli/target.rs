//! Who is asked: the agent of this host or of another, or stores without any agent. Every command
//! that asks takes these flags, and asks both alike.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, bail};
use model::board::{Board, BoardQuestion};
use model::explanation::Explanation;
use model::{ExplainQuestion, LocalRequest, OnBehalf, Question, StragglersQuestion, TableSeen};
use record::unix_now_ns;
use tokio_util::sync::CancellationToken;

use super::args::SocketArg;
pub(super) use super::args::{SpanArgs, TargetArgs};
use super::local::{self, Piece, Reply};
use super::mesh_rows::Hosts;
use super::stores::Stores;
use super::times::When;
use super::values::millis;
use super::{Exit, UsageError};

impl TargetArgs {
    /// Whether an agent is asked.
    fn is_agent(&self) -> bool {
        self.db.is_empty() && self.archive.is_none()
    }

    /// The stores and the archive that the flags name.
    fn files(&self) -> anyhow::Result<Target> {
        match &self.archive {
            None => Target::stores(&self.db),
            Some(archive) => {
                let is_live = self.live || self.socket.socket.is_some() || self.socket.via.is_some();
                let mesh = if is_live { Some(Hosts::ask(&self.socket, self.ask.timeout)?) } else { None };
                let stores = Stores::with_archive(&self.db, archive, mesh)?;
                Ok(Target::of_stores(stores))
            }
        }
    }

    /// Whom the flags name.
    ///
    /// # Errors
    /// As [`Stores::open`].
    pub(super) fn target(&self) -> anyhow::Result<Target> {
        Ok(if self.is_agent() { Target::agent(&self.socket) } else { self.files()? })
    }

    /// As [`Self::target`], or the mesh of a Slurm job; the exit code where the command ran on a
    /// node of the job.
    ///
    /// # Errors
    /// As [`Stores::open`]; the job has no mesh.
    pub(super) fn of_slurm_job(&self, job: Option<&str>) -> anyhow::Result<Result<Target, Exit>> {
        if !self.is_agent() {
            return self.target().map(Ok);
        }
        Ok(super::slurm::reach(&self.socket, job)?.map(|socket| Target::agent(&socket)))
    }

    /// As [`Self::target`], for commands whose `job` may be one of many of a mesh: of a Slurm job
    /// with a mesh of its own that mesh, which knows of nothing else, so that `job` is taken.
    ///
    /// # Errors
    /// As [`Self::of_slurm_job`].
    pub(super) fn of_any_job(&self, job: &mut Option<String>) -> anyhow::Result<Result<Target, Exit>> {
        if self.archive.is_some() {
            return self.files().map(Ok);
        }
        Target::of_any_job(&self.socket, &self.db, job)
    }

    /// Milliseconds that a question may take.
    pub(super) fn timeout_ms(&self) -> u64 {
        millis(self.ask.timeout)
    }

    /// A SQL question to the chosen nodes.
    pub(super) fn question(&self, sql: String) -> Question {
        Question {
            sql,
            timeout_ms: self.timeout_ms(),
            nodes: self.ask.nodes.clone(),
            labels: self.ask.label.clone(),
            ..Question::default()
        }
    }
}

/// Who is asked.
#[derive(Clone)]
pub(super) struct Target {
    to: To,
    /// Ends the question that is asked at the moment; see [`Self::until`].
    stop: CancellationToken,
    /// For whom this process asks, where it is a front end.
    behalf: Option<OnBehalf>,
}

#[derive(Clone)]
enum To {
    Agent(SocketArg),
    Stores(Arc<Stores>),
}

impl Target {
    /// An agent, by its socket or over the mesh.
    pub(super) fn agent(socket: &SocketArg) -> Self {
        Self { to: To::Agent(socket.clone()), stop: CancellationToken::new(), behalf: None }
    }

    /// The stores that `paths` mean.
    ///
    /// # Errors
    /// As [`Stores::open`].
    pub(super) fn stores(paths: &[PathBuf]) -> anyhow::Result<Self> {
        Ok(Self::of_stores(Stores::open(paths)?))
    }

    fn of_stores(stores: Stores) -> Self {
        Self { to: To::Stores(Arc::new(stores)), stop: CancellationToken::new(), behalf: None }
    }

    /// Stores, where any are named; else an agent, as [`TargetArgs::of_any_job`].
    ///
    /// # Errors
    /// As there.
    pub(super) fn of_any_job(
        socket: &SocketArg,
        db: &[PathBuf],
        job: &mut Option<String>,
    ) -> anyhow::Result<Result<Self, Exit>> {
        if !db.is_empty() {
            return Self::stores(db).map(Ok);
        }
        Ok(super::slurm::reach_own_mesh(socket, job)?.map(|socket| Self::agent(&socket)))
    }

    /// Lets `stop` end what is asked from now on, on every node.
    pub(super) fn until(&mut self, stop: CancellationToken) {
        self.stop = stop;
    }

    /// The same, asked for a client of this process until `stop`.
    #[cfg(feature = "serve")]
    pub(super) fn on_behalf(&self, behalf: OnBehalf, stop: CancellationToken) -> Self {
        Self { to: self.to.clone(), stop, behalf: Some(behalf) }
    }

    /// Whether stores are asked: then nothing changes, and the newest row stands for now.
    pub(super) fn is_stores(&self) -> bool {
        matches!(self.to, To::Stores(_))
    }

    /// In words, such as `stores in DIR`.
    pub(super) fn said(&self) -> String {
        match &self.to {
            To::Agent(SocketArg { via: Some(host), .. }) => format!("the agent of {host}"),
            To::Agent(_) => "the agent of this host".to_owned(),
            To::Stores(stores) => {
                let paths: Vec<String> = stores.paths().map(|path| path.display().to_string()).collect();
                format!("the stores {}", paths.join(", "))
            }
        }
    }

    /// Now, Unix nanoseconds; of stores the time of their newest row.
    pub(super) fn now_ns(&self) -> i64 {
        match &self.to {
            To::Agent(_) => unix_now_ns(),
            To::Stores(stores) => stores.span_ns().map_or_else(unix_now_ns, |(_, newest_ns)| newest_ns + 1),
        }
    }

    /// The first and the last time that stores hold, Unix nanoseconds; none of an agent.
    pub(super) fn stored_ns(&self) -> Option<(i64, i64)> {
        match &self.to {
            To::Agent(_) => None,
            To::Stores(stores) => stores.span_ns(),
        }
    }

    /// A point in time as Unix nanoseconds; a stretch is counted back from [`Self::now_ns`].
    pub(super) fn at_ns(&self, when: When) -> i64 {
        match when {
            When::At(at) => {
                let ns = at.as_nanosecond();
                i64::try_from(ns).unwrap_or(if ns < 0 { i64::MIN } else { i64::MAX })
            }
            When::Ago(back) => self.now_ns().saturating_sub(i64::try_from(back.as_nanos()).unwrap_or(i64::MAX)),
        }
    }

    /// Asks; `take` gets rows as they come, and while it takes its time the nodes wait.
    ///
    /// # Errors
    /// Nobody answers, the question is wrong ([`UsageError`]) or failed ([`local::NoAnswer`]), it
    /// was stopped, or what `take` returned.
    pub(super) fn ask_into(
        &self,
        request: LocalRequest,
        take: &mut dyn FnMut(Piece) -> anyhow::Result<()>,
    ) -> anyhow::Result<Reply> {
        match &self.to {
            To::Agent(socket) => local::ask_into(socket, self.behalf.as_ref(), &request, &self.stop, take),
            To::Stores(stores) => stores.ask_into(self.behalf.as_ref(), request, &self.stop, take),
        }
    }

    /// Asks for what has no rows: one JSON document.
    ///
    /// # Errors
    /// As [`Self::ask_into`].
    pub(super) fn document(&self, request: LocalRequest) -> anyhow::Result<String> {
        match self.ask_into(request, &mut |_| Ok(()))? {
            Reply::Text(json) => Ok(json),
            Reply::Result { .. } | Reply::Board(_) => bail!("rows came in place of a document"),
        }
    }

    /// What ranks did, window by window: of what a judge keeps, a part where there is much
    /// (`more`); of stores always all of it.
    ///
    /// # Errors
    /// As [`Self::ask_into`].
    pub(super) fn board(&self, question: BoardQuestion) -> anyhow::Result<Board> {
        match self.ask_into(LocalRequest::Board(question), &mut |_| Ok(()))? {
            Reply::Board(board) => Ok(*board),
            Reply::Text(_) | Reply::Result { .. } => bail!("something else came in place of what ranks did"),
        }
    }

    /// The tables that can be asked for.
    ///
    /// # Errors
    /// As [`Self::ask_into`]; also where the agent is of a release that does not tell.
    pub(super) fn tables(&self) -> anyhow::Result<Vec<TableSeen>> {
        serde_json::from_str(&self.document(LocalRequest::Tables)?).context("reading the list of tables")
    }

    /// A SQL question: rows as they come, then plan or coverage.
    ///
    /// # Errors
    /// As [`Self::ask_into`].
    pub(super) fn query(
        &self,
        question: Question,
        take: &mut dyn FnMut(Piece) -> anyhow::Result<()>,
    ) -> anyhow::Result<Reply> {
        self.ask_into(LocalRequest::Query(question), take)
    }

    /// A verdict as JSON: of a span, Unix nanoseconds, else as the question says.
    ///
    /// # Errors
    /// As [`Self::ask_into`].
    pub(super) fn stragglers(&self, question: StragglersQuestion, span: Option<(i64, i64)>) -> anyhow::Result<String> {
        self.document(match span {
            Some((since_ns, until_ns)) => LocalRequest::StragglersBetween { question, since_ns, until_ns },
            None => LocalRequest::Stragglers(question),
        })
    }

    /// An explanation.
    ///
    /// # Errors
    /// As [`Self::ask_into`].
    pub(super) fn explain(&self, question: ExplainQuestion) -> anyhow::Result<Explanation> {
        let json = self.document(LocalRequest::Explain(question))?;
        serde_json::from_str(&json).context("reading the explanation")
    }
}

/// The time that was asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Span {
    /// None was.
    Last,
    /// So many milliseconds up to now; of stores, to their last call.
    Back(u64),
    /// Unix nanoseconds.
    Between(i64, i64),
}

impl SpanArgs {
    /// The span, said on standard error where the zone was left to this host.
    ///
    /// # Errors
    /// It ends before it begins, or is still to come ([`UsageError`]).
    pub(super) fn resolved(&self, target: &Target) -> Result<Span, UsageError> {
        let (since, until) = match (self.between.as_slice(), self.since) {
            (&[since, until], _) => (since, Some(until)),
            (_, Some(since)) => (since, self.until),
            _ => return Ok(Span::Last),
        };
        if let Some(said) = since.said() {
            let until = until.and_then(When::said).map_or_else(String::new, |until| format!(" until {until}"));
            eprintln!("since {said}{until}");
        }
        match (since, until) {
            (When::Ago(back), None) => Ok(Span::Back(millis(back))),
            (since, None) if !target.is_stores() => Ok(Span::Back(millis(since.ago().map_err(UsageError)?))),
            (since, until) => {
                let (since_ns, until_ns) =
                    (target.at_ns(since), until.map_or(target.now_ns(), |until| target.at_ns(until)));
                let order =
                    || UsageError("the span ends before it begins: of A and B, A has to be before B".to_owned());
                (since_ns < until_ns).then_some(Span::Between(since_ns, until_ns)).ok_or_else(order)
            }
        }
    }
}
