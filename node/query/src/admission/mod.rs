//! Admission: how many questions are worked on at a time, how many wait, and which are asked to try
//! again later.
//!
//! Work has a cost in units. What is over the limit waits for as long as its deadline allows, in a
//! fair order (`queue`); what is over the limit of those that wait, of all or of one requester, is
//! refused at once, with a time after which to try again. What a node does for the mesh
//! ([`Admission::for_leaf`]) and the questions that an agent coordinates
//! ([`Admission::for_coordinator`]) have permits of their own: one waits for the other, so sharing
//! them would deadlock.
//!
//! `permit`: the right to work, and how it is given up for a while.

mod permit;
mod queue;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use query_planner::{Plan, Strategy};
use tokio::sync::Semaphore;

pub use permit::Permit;
pub(super) use permit::SuspendablePermit;
use queue::{FairQueue, Full};

/// What a permit is taken to last before one has ended.
const FIRST_GUESS: Duration = Duration::from_millis(500);

/// The limits of an [`Admission`].
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Units worked on at a time.
    pub units: u32,
    /// Questions that wait for a permit.
    pub waiting: usize,
    /// Of these, of one requester.
    pub waiting_per_requester: usize,
    /// Of these, of all guests.
    pub waiting_guests: usize,
    /// Of these, of one guest.
    pub waiting_per_guest: usize,
    /// Permits given up for a while, by work that only waits for others.
    pub suspended: usize,
}

/// The permits of a leaf or of a coordinator.
#[derive(Debug)]
pub struct Admission {
    limits: Limits,
    queue: Arc<FairQueue>,
    suspended: Arc<Semaphore>,
    /// Mean time that a permit lasts, for each of its units, nanoseconds.
    mean_ns: AtomicU64,
}

/// The requester of a permit.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Requester {
    name: Arc<str>,
    /// The user for whom it asks, where it names one.
    user: Option<u32>,
    guest: bool,
}

impl Requester {
    /// Another node, the agent itself, or its owner.
    pub fn trusted(name: impl Into<Arc<str>>) -> Self {
        Self { name: name.into(), user: None, guest: false }
    }

    /// One of many others; together they leave room for trusted requesters.
    pub fn guest(name: impl Into<Arc<str>>) -> Self {
        Self { name: name.into(), user: None, guest: true }
    }

    /// The same for one user, who has a queue of her own and leaves some of the requester's share
    /// to its other users.
    #[must_use]
    pub fn for_user(self, user: Option<u32>) -> Self {
        Self { user, ..self }
    }
}

/// No permit now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("busy: {waiting} questions wait here{of_whom} already; ask again in about {} s", .retry_after.as_secs().max(1))]
pub struct Busy {
    /// How many wait.
    pub waiting: usize,
    /// " of this requester", where that is what they are too many of.
    of_whom: &'static str,
    /// When there should be room again.
    pub retry_after: Duration,
}

impl Admission {
    /// Permits within these limits.
    #[must_use]
    pub fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self {
            limits,
            queue: FairQueue::new(limits),
            suspended: Arc::new(Semaphore::new(limits.suspended)),
            mean_ns: AtomicU64::new(u64::try_from(FIRST_GUESS.as_nanos()).unwrap_or(u64::MAX)),
        })
    }

    /// Those of a node that works on tasks for the mesh, `units` at a time.
    #[must_use]
    pub fn for_leaf(units: u32) -> Arc<Self> {
        Self::new(Limits {
            units,
            waiting: 64,
            waiting_per_requester: TASKS_PER_REQUESTER,
            waiting_guests: 0,
            waiting_per_guest: 0,
            suspended: MAX_IN_FLIGHT,
        })
    }

    /// Those of an agent that coordinates questions; what a question costs is [`cost`].
    #[must_use]
    pub fn for_coordinator() -> Arc<Self> {
        Self::new(Limits {
            units: UNITS,
            waiting: 64,
            waiting_per_requester: 48,
            waiting_guests: 48,
            waiting_per_guest: 16,
            suspended: TASKS_PER_REQUESTER - UNITS as usize,
        })
    }

    /// Units in use.
    #[must_use]
    pub fn used(&self) -> usize {
        self.limits.units as usize - self.queue.free()
    }

    /// A permit for `requester` at once, or none.
    #[must_use]
    pub fn try_enter(self: &Arc<Self>, requester: &Requester, cost: u32) -> Option<Permit> {
        let units = self.queue.try_take(requester, cost)?;
        Some(Permit::new(self, requester, cost, units))
    }

    /// A permit for `requester`, when it is next in the queue.
    ///
    /// # Errors
    /// Too many wait already.
    pub async fn enter(self: &Arc<Self>, requester: &Requester, cost: u32) -> Result<Permit, Busy> {
        if let Some(permit) = self.try_enter(requester, cost) {
            return Ok(permit);
        }
        let units = self.queue.take(requester, cost).await.map_err(|full| self.busy(&full))?;
        Ok(Permit::new(self, requester, cost, units))
    }

    fn busy(&self, full: &Full) -> Busy {
        let (waiting, mean) = (full.waiting, self.mean_ns.load(Ordering::Relaxed));
        let before = mean.saturating_mul(waiting as u64 + 1);
        let retry_after = Duration::from_nanos(before / u64::from(self.limits.units.max(1)));
        Busy { waiting, of_whom: if full.of_one { " of this requester" } else { "" }, retry_after }
    }
}

/// What a heavy question costs.
const HEAVY: u32 = 4;
/// Units of questions that an agent coordinates at a time.
const UNITS: u32 = 4 * HEAVY;
/// Tasks of one requester that may wait at a node: an agent never has more questions in flight,
/// suspended or not.
const TASKS_PER_REQUESTER: usize = 32;
/// Tasks in flight at a node at a time: a thread and a connection each, though only those with a
/// permit work.
pub(super) const MAX_IN_FLIGHT: usize = 128;

/// Cost of a question for its coordinator, in units of a cheap one: those that gather rows in its
/// memory are heavy.
#[must_use]
pub fn cost(plan: &Plan) -> u32 {
    match plan.strategy {
        Strategy::Coordinator | Strategy::Fetch | Strategy::Parts => HEAVY,
        Strategy::Rows | Strategy::Aggregate | Strategy::Push | Strategy::PerNode if plan.flows() => 1,
        Strategy::Rows | Strategy::Aggregate | Strategy::Push | Strategy::PerNode => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) const LIMITS: Limits = Limits {
        units: 2,
        waiting: 3,
        waiting_per_requester: 2,
        waiting_guests: 2,
        waiting_per_guest: 1,
        suspended: 1,
    };

    fn requester(name: &str) -> Requester {
        Requester::trusted(name)
    }

    async fn waiting(admission: &Admission, count: usize) {
        while admission.queue.waiting() < count {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn what_is_over_the_limits_is_refused_with_a_time_to_try_again() {
        let admission = Admission::new(LIMITS);
        let heavy = admission.enter(&requester("a"), 2).await.expect("room");
        assert_eq!(admission.used(), 2);
        let wait = |name: &'static str| {
            let admission = Arc::clone(&admission);
            tokio::spawn(async move { admission.enter(&requester(name), 1).await })
        };
        let (first, second) = (wait("a"), wait("a"));
        waiting(&admission, 2).await;
        let refused = admission.enter(&requester("a"), 1).await.expect_err("two of this requester wait").to_string();
        assert!(
            refused.starts_with("busy: 2 questions wait here of this requester already; ask again in about "),
            "{refused}"
        );
        let third = wait("b");
        waiting(&admission, 3).await;
        let refused = admission.enter(&requester("c"), 1).await.expect_err("three wait");
        assert!(refused.to_string().contains("3 questions wait here already"), "{refused}");
        assert!(refused.retry_after > Duration::ZERO);
        // A request that gives up leaves the queue.
        third.abort();
        let _ = third.await;
        drop(heavy);
        // One after the other: the second unit is for others.
        drop((first.await.expect("no panic").expect("room"), admission.try_enter(&requester("b"), 1).expect("room")));
        drop(second.await.expect("no panic").expect("room"));
        assert_eq!((admission.used(), admission.queue.waiting()), (0, 0));
        assert!(admission.try_enter(&requester("a"), 2).is_some());
    }

    #[tokio::test]
    async fn guests_leave_room_for_the_trusted_and_for_each_other() {
        let admission = Admission::new(LIMITS);
        let heavy = admission.enter(&requester("a"), 2).await.expect("room");
        let wait = |requester: Requester| {
            let admission = Arc::clone(&admission);
            tokio::spawn(async move { admission.enter(&requester, 1).await })
        };
        let (first, second) = (wait(Requester::guest("x")), wait(Requester::guest("y")));
        waiting(&admission, 2).await;
        let refused = admission.enter(&Requester::guest("x"), 1).await.expect_err("guests have no more room");
        assert!(refused.to_string().starts_with("busy: 2 questions wait here already"), "{refused}");
        let third = wait(requester("b"));
        waiting(&admission, 3).await;
        first.abort();
        let _ = first.await;
        let refused = admission.enter(&Requester::guest("y"), 1).await.expect_err("one of this guest waits");
        assert!(refused.to_string().contains("of this requester"), "{refused}");
        drop(heavy);
        drop((second.await.expect("no panic").expect("room"), third.await.expect("no panic").expect("room")));
        assert_eq!(admission.used(), 0);
    }

    #[tokio::test]
    async fn a_busy_node_says_how_long_by_how_long_permits_last() {
        let admission = Admission::new(Limits { units: 1, waiting: 0, waiting_per_requester: 0, ..LIMITS });
        admission.mean_ns.store(4_000_000_000_000, Ordering::Relaxed);
        let permit = admission.enter(&requester("a"), 1).await.expect("room");
        let refused = admission.enter(&requester("a"), 1).await.expect_err("nobody may wait");
        assert_eq!(refused.retry_after, Duration::from_secs(4_000));
        drop(permit);
        assert!(admission.mean_ns.load(Ordering::Relaxed) < 4_000_000_000_000);
    }
}
