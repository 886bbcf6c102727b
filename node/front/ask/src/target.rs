//! The target of questions: the agent of this host or of another, or stores without any agent.
//! Every command that asks takes these flags, and asks all targets alike.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, bail};
use model::board::{Board, BoardQuestion};
use model::explanation::Explanation;
use model::{AskedSpan, ExplainQuestion, LocalRequest, OnBehalf, Question, StragglersQuestion, TableSeen};
use record::unix_now_ns;
use tokio_util::sync::CancellationToken;

use crate::args::{SocketArg, SpanArgs, TargetArgs};
use crate::backend::{Backend, Connector, Reply, Take};
use crate::exit::UsageError;
use crate::socket::SocketBackend;
use crate::times::When;
use crate::values::millis;

impl TargetArgs {
    /// Whether an agent is asked.
    fn is_agent(&self) -> bool {
        self.db.is_empty() && self.archive.is_none()
    }

    /// The stores and the archive that the flags name.
    fn files(&self, connector: &dyn Connector) -> anyhow::Result<Target> {
        let Some(archive) = &self.archive else { return Target::stores(&self.db, connector) };
        let is_live = self.live || self.socket.socket.is_some() || self.socket.via.is_some();
        let live = is_live.then(|| (agent(&self.socket, connector), self.ask.timeout));
        Ok(Target::of(connector.archive(&self.db, archive, live)?))
    }

    /// The target that the flags choose.
    ///
    /// # Errors
    /// As [`Connector::stores`] and [`Connector::archive`].
    pub fn target(&self, connector: &dyn Connector) -> anyhow::Result<Target> {
        if self.is_agent() { Ok(Target::agent(&self.socket, connector)) } else { self.files(connector) }
    }

    /// As [`Self::target`], or the mesh of a Slurm job.
    ///
    /// # Errors
    /// As there, and as [`Connector::slurm_job`].
    pub fn of_slurm_job(&self, job: Option<&str>, connector: &dyn Connector) -> anyhow::Result<Target> {
        if !self.is_agent() {
            return self.target(connector);
        }
        Ok(Target::agent(&self.socket.of_slurm_job(job, connector)?, connector))
    }

    /// As [`Self::target`], for commands whose `job` may be one of many of a mesh: of a Slurm job
    /// with a mesh of its own that mesh, which has no other job, so that `job` is taken out.
    ///
    /// # Errors
    /// As [`Self::of_slurm_job`]; the job is not known ([`UnknownJob`](crate::UnknownJob)).
    pub fn of_any_job(&self, job: &mut Option<String>, connector: &dyn Connector) -> anyhow::Result<Target> {
        if self.archive.is_none() {
            return Target::of_any_job(&self.socket, &self.db, job, connector);
        }
        let target = self.files(connector)?;
        target.check_job(job.as_deref())?;
        Ok(target)
    }

    /// Milliseconds that a question may take.
    pub fn timeout_ms(&self) -> u64 {
        millis(self.ask.timeout)
    }

    /// A SQL question to the chosen nodes.
    pub fn question(&self, sql: String) -> Question {
        Question {
            sql,
            timeout_ms: self.timeout_ms(),
            nodes: self.ask.nodes.clone(),
            labels: self.ask.label.clone(),
            ..Question::default()
        }
    }
}

fn agent(socket: &SocketArg, connector: &dyn Connector) -> Arc<dyn Backend> {
    match (&socket.via, &socket.identity) {
        (Some(host), Some(identity)) => connector.via(host, identity),
        _ => Arc::new(SocketBackend::at(socket.socket.clone())),
    }
}

/// The target of questions.
#[derive(Clone)]
pub struct Target {
    backend: Arc<dyn Backend>,
    /// Ends the present question; see [`Self::until`].
    stop: CancellationToken,
    /// The client that this process serves, if it is a front end.
    behalf: Option<OnBehalf>,
}

impl fmt::Debug for Target {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_tuple("Target").field(&self.description()).finish()
    }
}

impl Target {
    /// What answers behind `backend`.
    pub fn of(backend: Arc<dyn Backend>) -> Self {
        Self { backend, stop: CancellationToken::new(), behalf: None }
    }

    /// An agent, by its socket or over the mesh.
    pub fn agent(socket: &SocketArg, connector: &dyn Connector) -> Self {
        Self::of(agent(socket, connector))
    }

    /// The stores that `paths` mean.
    ///
    /// # Errors
    /// As [`Connector::stores`].
    pub fn stores(paths: &[PathBuf], connector: &dyn Connector) -> anyhow::Result<Self> {
        Ok(Self::of(connector.stores(paths)?))
    }

    /// Stores, where any are named; else an agent, as [`TargetArgs::of_any_job`].
    ///
    /// # Errors
    /// As there.
    pub fn of_any_job(
        socket: &SocketArg,
        db: &[PathBuf],
        job: &mut Option<String>,
        connector: &dyn Connector,
    ) -> anyhow::Result<Self> {
        let target = match db.is_empty() {
            true => Self::agent(&socket.of_any_job(job, connector)?, connector),
            false => Self::stores(db, connector)?,
        };
        target.check_job(job.as_deref())?;
        Ok(target)
    }

    /// Lets `stop` end the questions from now on, on every node.
    pub fn until(&mut self, stop: CancellationToken) {
        self.stop = stop;
    }

    /// The same, for a client of this process, until `stop`.
    pub fn on_behalf(&self, behalf: OnBehalf, stop: CancellationToken) -> Self {
        Self { backend: Arc::clone(&self.backend), stop, behalf: Some(behalf) }
    }

    /// Whether stores are asked: then nothing changes, and the time of the newest row is used as
    /// now.
    pub fn is_stores(&self) -> bool {
        self.backend.is_stores()
    }

    /// Whether nobody listens where it answers, as far as this host can tell at once.
    pub fn is_gone(&self) -> bool {
        self.backend.is_gone()
    }

    /// Description, such as `the stores DIR`.
    pub fn description(&self) -> String {
        self.backend.description()
    }

    /// Now, Unix nanoseconds; of stores the time of their newest row.
    pub fn now_ns(&self) -> i64 {
        self.stored_ns().map_or_else(unix_now_ns, |(_, newest_ns)| newest_ns.saturating_add(1))
    }

    /// The first and the last time in the stores, Unix nanoseconds; none of an agent.
    pub fn stored_ns(&self) -> Option<(i64, i64)> {
        self.backend.stored_ns()
    }

    /// A point in time as Unix nanoseconds; a length of time is counted back from [`Self::now_ns`].
    pub fn at_ns(&self, when: When) -> i64 {
        match when {
            When::At(at) | When::OfDay { last: at, .. } => {
                let ns = at.as_nanosecond();
                i64::try_from(ns).unwrap_or(if ns < 0 { i64::MIN } else { i64::MAX })
            }
            When::Ago(back) => self.now_ns().saturating_sub(i64::try_from(back.as_nanos()).unwrap_or(i64::MAX)),
        }
    }

    /// A span, Unix nanoseconds; without an end it ends now. A time of day as its beginning is the
    /// last one before its end.
    ///
    /// # Errors
    /// It is in the future, or ends before it begins ([`UsageError`]).
    pub fn span_ns(&self, since: When, until: Option<When>) -> Result<(i64, i64), UsageError> {
        // Clocks of stores may be ahead of ours.
        since.check_past(self.now_ns().max(unix_now_ns())).map_err(UsageError)?;
        let until_ns = until.map_or_else(|| self.now_ns(), |until| self.at_ns(until));
        let since_ns = self.at_ns(since.beginning(until_ns));
        if since_ns >= until_ns {
            return Err(UsageError("the span ends before it begins: of A and B, A has to be before B".to_owned()));
        }
        Ok((since_ns, until_ns))
    }

    /// Asks. `take` gets rows as they come; while it blocks, the nodes wait.
    ///
    /// # Errors
    /// Nobody answers, the question is wrong ([`UsageError`]) or failed ([`crate::NoAnswer`]), it
    /// was stopped, or what `take` returned.
    pub fn ask_into(&self, request: LocalRequest, take: Take<'_>) -> anyhow::Result<Reply> {
        self.backend.ask_into(self.behalf.as_ref(), request, &self.stop, take)
    }

    /// Asks for what has no rows: one JSON document.
    ///
    /// # Errors
    /// As [`Self::ask_into`].
    pub fn document(&self, request: LocalRequest) -> anyhow::Result<String> {
        match self.ask_into(request, &mut |_| Ok(()))? {
            Reply::Text(json) => Ok(json),
            Reply::Result { .. } | Reply::Board(_) => bail!("rows came in place of a document"),
        }
    }

    /// What ranks did, window by window: of what a judge keeps, a part if there is much (`more`);
    /// of stores always all of it.
    ///
    /// # Errors
    /// As [`Self::ask_into`].
    pub fn board(&self, question: BoardQuestion) -> anyhow::Result<Board> {
        match self.ask_into(LocalRequest::Board(question), &mut |_| Ok(()))? {
            Reply::Board(board) => Ok(*board),
            Reply::Text(_) | Reply::Result { .. } => bail!("something else came in place of what ranks did"),
        }
    }

    /// The tables that can be asked for.
    ///
    /// # Errors
    /// As [`Self::ask_into`]; the agent is of a release without this request.
    pub fn tables(&self) -> anyhow::Result<Vec<TableSeen>> {
        serde_json::from_str(&self.document(LocalRequest::Tables)?).context("reading the list of tables")
    }

    /// A SQL question: rows as they come, then plan or coverage.
    ///
    /// # Errors
    /// As [`Self::ask_into`].
    pub fn query(&self, question: Question, take: Take<'_>) -> anyhow::Result<Reply> {
        self.ask_into(LocalRequest::Query(question), take)
    }

    /// A verdict as JSON.
    ///
    /// # Errors
    /// As [`Self::ask_into`].
    pub fn stragglers(&self, question: StragglersQuestion) -> anyhow::Result<String> {
        self.document(LocalRequest::Stragglers(question))
    }

    /// A span of this target's clock as Unix nanoseconds, up to [`Self::now_ns`] where it has no end;
    /// none of [`AskedSpan::Now`].
    #[must_use]
    pub fn ns_of(&self, span: AskedSpan) -> Option<(i64, i64)> {
        match span {
            AskedSpan::Now => None,
            AskedSpan::Last { ms } => {
                let now_ns = self.now_ns();
                Some((now_ns.saturating_sub_unsigned(ms.saturating_mul(1_000_000)), now_ns))
            }
            AskedSpan::Since { ns } => Some((ns, self.now_ns())),
            AskedSpan::Between { since_ns, until_ns } => Some((since_ns, until_ns)),
        }
    }

    /// The span from one time to another, or to now.
    ///
    /// # Errors
    /// It ends before it begins, or is in the future ([`UsageError`]).
    pub fn span(&self, since: When, until: Option<When>) -> Result<AskedSpan, UsageError> {
        let (since_ns, until_ns) = self.span_ns(since, until)?;
        Ok(match (since, until) {
            (When::Ago(back), None) => AskedSpan::Last { ms: millis(back).max(1) },
            (_, None) => AskedSpan::Since { ns: since_ns },
            (_, Some(_)) => AskedSpan::Between { since_ns, until_ns },
        })
    }

    /// An explanation.
    ///
    /// # Errors
    /// As [`Self::ask_into`].
    pub fn explain(&self, question: ExplainQuestion) -> anyhow::Result<Explanation> {
        let json = self.document(LocalRequest::Explain(question))?;
        serde_json::from_str(&json).context("reading the explanation")
    }
}

impl SpanArgs {
    /// The span; printed on standard error if this host's zone was assumed.
    ///
    /// # Errors
    /// It ends before it begins, or is in the future ([`UsageError`]).
    pub fn resolved(&self, target: &Target) -> Result<AskedSpan, UsageError> {
        let (since, until) = match (self.between.as_slice(), self.since) {
            (&[since, until], _) => (since, Some(until)),
            (_, Some(since)) => (since, self.until),
            _ => return Ok(AskedSpan::Now),
        };
        let span = target.span(since, until)?;
        if let Some((_, until_ns)) = target.ns_of(span) {
            note_zone(since.beginning(until_ns), until);
        }
        Ok(span)
    }

    /// The span as Unix nanoseconds, up to [`Target::now_ns`] where it has no end; none where none was given.
    ///
    /// # Errors
    /// As [`Self::resolved`].
    pub fn resolved_ns(&self, target: &Target) -> Result<Option<(i64, i64)>, UsageError> {
        Ok(target.ns_of(self.resolved(target)?))
    }
}

/// Says on standard error which span was meant, where the text left the zone to this host.
fn note_zone(since: When, until: Option<When>) {
    if let Some(text) = since.with_zone() {
        let until = until.and_then(When::with_zone).map_or_else(String::new, |until| format!(" until {until}"));
        eprintln!("since {text}{until}");
    }
}
