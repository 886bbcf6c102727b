//! Asks targets for clients: questions that block run on a pool of threads, a bounded number at a
//! time, and end when the client goes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ask::Target;
use front::args::RateArgs;
use model::OnBehalf;
use model::limit::{ConcurrencyLimit, Slot};
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::problem::Problem;

/// Questions at a time, and of one client: as many as an agent accepts from one user, less some
/// that are left to the user's other programs.
pub(super) const ASKED_AT_ONCE: usize = 28;
const OF_ONE: usize = 16;

/// A request of a client.
#[derive(Debug, Clone)]
pub(super) struct Who {
    /// The client, by a name of letters, digits and `-` only.
    pub(super) client: String,
    /// It has a reader's rights.
    pub(super) reader: bool,
    /// The request's number.
    pub(super) request_id: String,
}

impl Who {
    /// Its description for the agent.
    pub(super) fn behalf(&self) -> OnBehalf {
        OnBehalf { request_id: self.request_id.clone(), client: self.client.clone(), reader: self.reader }
    }
}

/// The target, and the limits.
pub(super) struct Gateway {
    target: Target,
    running: ConcurrencyLimit,
    /// A question has ended.
    ended: Arc<Notify>,
    longest: Duration,
    rate: RateArgs,
    investigations: PathBuf,
}

impl Gateway {
    pub(super) fn new(target: Target, longest: Duration, rate: RateArgs, investigations: PathBuf) -> Self {
        let running = ConcurrencyLimit::new(ASKED_AT_ONCE, OF_ONE);
        Self { target, running, ended: Arc::default(), longest, rate, investigations }
    }

    /// Description of the target.
    pub(super) fn description(&self) -> String {
        self.target.description()
    }

    /// The target, for a part of this program that asks by itself.
    #[cfg(feature = "mcp")]
    pub(super) fn target(&self) -> Target {
        self.target.clone()
    }

    /// The default time limit of a question.
    pub(super) fn usual(&self) -> Duration {
        Duration::from_secs(10).min(self.longest)
    }

    /// The longest time limit of a question.
    #[cfg(feature = "postgres")]
    pub(super) fn longest(&self) -> Duration {
        self.longest
    }

    /// What a GPU costs.
    pub(super) fn rate(&self) -> &RateArgs {
        &self.rate
    }

    /// The directory of the site's saved investigations.
    pub(super) fn investigations(&self) -> &Path {
        &self.investigations
    }

    /// The time limit of a question: the given one, else ten seconds.
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
    /// Too many questions run already; the error of `work`, as a problem.
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

    /// Starts a question; it ends on every node when the guard is dropped.
    ///
    /// # Errors
    /// Too many questions run already.
    pub(super) fn begin<T: Send + 'static>(
        &self,
        who: &Who,
        work: impl FnOnce(&Target) -> T + Send + 'static,
    ) -> Result<(tokio::task::JoinHandle<T>, DropGuard), Problem> {
        let slot = self.running.take(&who.client).map_err(|busy| Problem::busy(busy, 1))?;
        Ok(self.run(who, slot, work))
    }

    /// As [`Gateway::begin`]; waits for its turn.
    ///
    /// # Errors
    /// So many questions ran all the time.
    pub(super) async fn begin_within<T: Send + 'static>(
        &self,
        who: &Who,
        longest: Duration,
        work: impl FnOnce(&Target) -> T + Send + 'static,
    ) -> Result<(tokio::task::JoinHandle<T>, DropGuard), Problem> {
        let until = tokio::time::Instant::now() + longest;
        loop {
            let mut ended = std::pin::pin!(self.ended.notified());
            // What ends from here on wakes it.
            ended.as_mut().enable();
            match self.running.take(&who.client) {
                Ok(slot) => return Ok(self.run(who, slot, work)),
                Err(busy) if tokio::time::timeout_at(until, ended).await.is_err() => {
                    return Err(Problem::busy(busy, 1));
                }
                Err(_) => {}
            }
        }
    }

    fn run<T: Send + 'static>(
        &self,
        who: &Who,
        slot: Slot,
        work: impl FnOnce(&Target) -> T + Send + 'static,
    ) -> (tokio::task::JoinHandle<T>, DropGuard) {
        let stop = CancellationToken::new();
        let target = self.target.on_behalf(who.behalf(), stop.clone());
        let ended = Ended { slot: Some(slot), told: Arc::clone(&self.ended) };
        let asked = tokio::task::spawn_blocking(move || {
            let _ended = ended;
            work(&target)
        });
        (asked, stop.drop_guard())
    }
}

/// Gives a slot back, and tells those who wait for one.
struct Ended {
    slot: Option<Slot>,
    told: Arc<Notify>,
}

impl Drop for Ended {
    fn drop(&mut self) {
        self.slot.take();
        self.told.notify_waiters();
    }
}

/// Sends something from a thread that asks. (Such a thread runs a runtime of its own, in which
/// tokio's blocking calls are not allowed; tokio's cooperative budget does not matter there.)
///
/// # Errors
/// The receiver was dropped.
pub(super) fn send_blocking<T>(to: &mpsc::Sender<T>, value: T) -> anyhow::Result<()> {
    let sent = futures::executor::block_on(tokio::task::coop::unconstrained(to.send(value)));
    sent.map_err(|_| anyhow::anyhow!("the client went away"))
}

/// A gateway for handlers.
pub(super) type Shared = Arc<Gateway>;
