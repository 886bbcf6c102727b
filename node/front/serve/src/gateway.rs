//! Asking for a client: what commands ask on a thread of their own is asked here on one of a pool,
//! so many at a time, and ends when the client goes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ask::Target;
use front::args::RateArgs;
use model::OnBehalf;
use model::limit::{ConcurrencyLimit, Slot};
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::problem::Problem;

/// Questions at a time, and of one client: as many as an agent takes of one user, but for some that
/// are left to her other programs.
pub(super) const ASKED_AT_ONCE: usize = 28;
const OF_ONE: usize = 16;

/// A request of a client.
#[derive(Debug, Clone)]
pub(super) struct Who {
    /// The client, by a name that only letters, digits and `-` are in.
    pub(super) client: String,
    /// It sees what readers see.
    pub(super) reader: bool,
    /// The request's number.
    pub(super) request_id: String,
}

impl Who {
    /// What the agent gets to know of it.
    pub(super) fn behalf(&self) -> OnBehalf {
        OnBehalf { request_id: self.request_id.clone(), client: self.client.clone(), reader: self.reader }
    }
}

/// Who is asked, and how much at a time.
pub(super) struct Gateway {
    target: Target,
    running: ConcurrencyLimit,
    longest: Duration,
    rate: RateArgs,
    investigations: PathBuf,
}

impl Gateway {
    pub(super) fn new(target: Target, longest: Duration, rate: RateArgs, investigations: PathBuf) -> Self {
        Self { target, running: ConcurrencyLimit::new(ASKED_AT_ONCE, OF_ONE), longest, rate, investigations }
    }

    /// Who is asked, in words.
    pub(super) fn description(&self) -> String {
        self.target.description()
    }

    /// Who is asked, for a front end that begins its questions by itself.
    #[cfg(feature = "mcp")]
    pub(super) fn target(&self) -> Target {
        self.target.clone()
    }

    /// The time for a question that names none.
    pub(super) fn usual(&self) -> Duration {
        Duration::from_secs(10).min(self.longest)
    }

    /// What a GPU costs.
    pub(super) fn rate(&self) -> &RateArgs {
        &self.rate
    }

    /// The directory of the site's saved investigations.
    pub(super) fn investigations(&self) -> &Path {
        &self.investigations
    }

    /// The time for a question: that which is asked for, ten seconds else.
    ///
    /// # Errors
    /// It is longer than is allowed.
    pub(super) fn timeout(&self, wanted: Option<Duration>) -> Result<Duration, Problem> {
        let timeout = wanted.unwrap_or(self.usual());
        if timeout > self.longest {
            return Err(Problem::wrong(format!("a question may take {:?} here at most", self.longest)));
        }
        Ok(timeout)
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// Too much is asked already; what `work` returned, as a problem.
    pub(super) async fn ask<T: Send + 'static>(
        &self,
        who: &Who,
        work: impl FnOnce(&Target) -> anyhow::Result<T> + Send + 'static,
    ) -> Result<T, Problem> {
        let (asked, _stop_when_dropped) = self.begin(who, work)?;
        match asked.await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(Problem::of(&error)),
            Err(error) => Err(Problem::internal(format!("the question came to no end: {error}"))),
        }
    }

    /// Begins to ask; what is dropped with the guard ends on every node.
    ///
    /// # Errors
    /// Too much is asked already.
    pub(super) fn begin<T: Send + 'static>(
        &self,
        who: &Who,
        work: impl FnOnce(&Target) -> T + Send + 'static,
    ) -> Result<(tokio::task::JoinHandle<T>, DropGuard), Problem> {
        let slot: Slot = self.running.take(&who.client).map_err(|busy| Problem::busy(busy, 1))?;
        let stop = CancellationToken::new();
        let target = self.target.on_behalf(who.behalf(), stop.clone());
        let asked = tokio::task::spawn_blocking(move || {
            let _slot = slot;
            work(&target)
        });
        Ok((asked, stop.drop_guard()))
    }
}

/// Sends something from a thread that asks. (Such a thread runs a runtime of its own, in which
/// tokio's blocking calls are not allowed, and whose share of work that a task may do at once is no
/// matter here.)
///
/// # Errors
/// Nobody takes it any more.
pub(super) fn send_blocking<T>(to: &mpsc::Sender<T>, value: T) -> anyhow::Result<()> {
    let sent = futures::executor::block_on(tokio::task::coop::unconstrained(to.send(value)));
    sent.map_err(|_| anyhow::anyhow!("the client went away"))
}

/// A gateway for handlers.
pub(super) type Shared = Arc<Gateway>;
