//! Turns: how many questions are worked on at a time, how many wait, and who is told to come again later.
//!
//! Work has a cost in units. What is over the limit waits for as long as its deadline allows, each requester in a queue of its own, and
//! the queues take turns (`gate`); what is over the limit of those that wait, of all or of one requester, is refused at once with a word
//! on when to come again. The node's own work for the mesh ([`Admission::for_leaf`]) and the questions that an agent puts together
//! ([`Admission::for_coordinator`]) have turns of their own: one waits for the other, so sharing them would lock both up.

mod queue;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use query_planner::{Plan, Strategy};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::lock::lock;
use queue::{FairQueue, Units};

/// Weight of the newest turn in the mean length of turns.
const NEWEST: f64 = 0.2;
/// What a turn is taken to last before one has ended.
const FIRST_GUESS: Duration = Duration::from_millis(500);

/// The limits of one place.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Units worked on at a time.
    pub units: u32,
    /// Turns that wait.
    pub waiting: usize,
    /// Of these, of one requester.
    pub waiting_per_requester: usize,
    /// Of these, of all guests, and of one of them.
    pub waiting_guests: usize,
    /// See `waiting_guests`.
    pub waiting_per_guest: usize,
    /// Turns given up for a while, by work that only waits for others.
    pub resting: usize,
}

/// The turns of one place.
#[derive(Debug)]
pub struct Admission {
    limits: Limits,
    gate: Arc<FairQueue>,
    resting: Arc<Semaphore>,
    waiting: Mutex<HashMap<Requester, usize>>,
    /// Mean time of a turn for each of its units, nanoseconds.
    mean_ns: AtomicU64,
}

/// Who waits for a turn.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Requester {
    name: String,
    guest: bool,
}

impl Requester {
    /// One whom the place is there for: another node, the agent itself, its owner.
    pub fn trusted(name: impl Into<String>) -> Self {
        Self { name: name.into(), guest: false }
    }

    /// One of many that are let in; together they leave room for those of the house.
    pub fn guest(name: impl Into<String>) -> Self {
        Self { name: name.into(), guest: true }
    }
}

/// No turn now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("busy: {waiting} questions wait here{of_one} already; ask again in about {} s", .retry_after.as_secs().max(1))]
pub struct Busy {
    /// How many wait.
    pub waiting: usize,
    /// " of this requester", where that is what they are too many of.
    of_one: &'static str,
    /// When there should be room again.
    pub retry_after: Duration,
}

/// A turn; it ends when dropped.
#[derive(Debug)]
pub struct Permit {
    admission: Arc<Admission>,
    requester: Arc<str>,
    cost: u32,
    began: Instant,
    _units: Units,
}

/// The turn of work on a thread that may block, given up while it only waits for others. It ends when dropped.
#[derive(Debug)]
pub(super) struct SuspendablePermit {
    runtime: Handle,
    admission: Arc<Admission>,
    requester: Arc<str>,
    cost: u32,
    turn: Option<Permit>,
    resting: Option<OwnedSemaphorePermit>,
}

impl SuspendablePermit {
    pub(super) fn new(turn: Permit, runtime: Handle) -> Self {
        let (admission, requester, cost) = (Arc::clone(&turn.admission), Arc::clone(&turn.requester), turn.cost);
        Self { runtime, admission, requester, cost, turn: Some(turn), resting: None }
    }

    /// Somebody else may work meanwhile; unless so many rest already that this one keeps its turn.
    pub(super) fn suspend(&mut self) {
        if self.turn.is_some()
            && let Ok(permit) = Arc::clone(&self.admission.resting).try_acquire_owned()
        {
            (self.turn, self.resting) = (None, Some(permit));
        }
    }

    /// Waits for a turn again, which nobody refuses; false when there was none until then.
    pub(super) fn resume(&mut self, until: Instant) -> bool {
        if self.turn.is_none() {
            let units = self.admission.gate.take_again(&self.requester, self.cost);
            // A timer needs the runtime around it, which this thread has only in here.
            let units = self.runtime.block_on(async { tokio::time::timeout_at(until.into(), units).await });
            let Ok(Some(units)) = units else { return false };
            (self.turn, self.resting) = (Some(self.admission.turn(&self.requester, self.cost, units)), None);
        }
        true
    }

    /// Waits for something; after `patience` without a turn.
    pub(super) fn wait_for<T>(&mut self, patience: Duration, what: impl Future<Output = T>) -> T {
        let mut what = std::pin::pin!(what);
        let soon = self.runtime.block_on(async { tokio::time::timeout(patience, what.as_mut()).await });
        soon.unwrap_or_else(|_| {
            self.suspend();
            self.runtime.block_on(what)
        })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let took = self.began.elapsed().as_nanos() as f64 / f64::from(self.cost);
        let mean = self.admission.mean_ns.load(Ordering::Relaxed) as f64;
        self.admission.mean_ns.store((mean + NEWEST * (took - mean)) as u64, Ordering::Relaxed);
    }
}

/// One that waits, counted while it does.
struct Waiting<'a>(&'a Admission, &'a Requester);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut waiting = lock(&self.0.waiting);
        if let Some(count) = waiting.get_mut(self.1) {
            *count -= 1;
            if *count == 0 {
                waiting.remove(self.1);
            }
        }
    }
}

impl Admission {
    /// Turns with these limits.
    #[must_use]
    pub fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self {
            limits,
            gate: FairQueue::new(limits.units),
            resting: Arc::new(Semaphore::new(limits.resting)),
            waiting: Mutex::default(),
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
            resting: MAX_IN_FLIGHT,
        })
    }

    /// Those of an agent that puts questions together; what a question costs is [`cost`].
    #[must_use]
    pub fn for_coordinator() -> Arc<Self> {
        Self::new(Limits {
            units: UNITS,
            waiting: 64,
            waiting_per_requester: 48,
            waiting_guests: 48,
            waiting_per_guest: 16,
            resting: TASKS_PER_REQUESTER - UNITS as usize,
        })
    }

    /// Units in use.
    #[must_use]
    pub fn used(&self) -> usize {
        self.limits.units as usize - self.gate.free()
    }

    /// A turn for `requester` at once, or none.
    #[must_use]
    pub fn try_enter(self: &Arc<Self>, requester: &Requester, cost: u32) -> Option<Permit> {
        let units = self.gate.try_take(&requester.name, cost)?;
        Some(self.turn(&requester.name, cost, units))
    }

    /// A turn for `requester`, when one is free and it is this requester's turn.
    ///
    /// # Errors
    /// Too many wait already.
    pub async fn enter(self: &Arc<Self>, requester: &Requester, cost: u32) -> Result<Permit, Busy> {
        if let Some(turn) = self.try_enter(requester, cost) {
            return Ok(turn);
        }
        let waiting = self.wait(requester)?;
        let units = self.gate.take(&requester.name, cost).await;
        drop(waiting);
        match units {
            Some(units) => Ok(self.turn(&requester.name, cost, units)),
            // Never closed.
            None => Err(self.busy(0, "")),
        }
    }

    fn turn(self: &Arc<Self>, requester: &str, cost: u32, units: Units) -> Permit {
        let began = Instant::now();
        Permit { admission: Arc::clone(self), requester: requester.into(), cost: cost.max(1), began, _units: units }
    }

    fn wait<'a>(&'a self, requester: &'a Requester) -> Result<Waiting<'a>, Busy> {
        let mut waiting = lock(&self.waiting);
        let all: usize = waiting.values().sum();
        let guests: usize = waiting.iter().filter(|(one, _)| one.guest).map(|(_, count)| count).sum();
        let of_one = waiting.get(requester).copied().unwrap_or(0);
        let most = if requester.guest { self.limits.waiting_per_guest } else { self.limits.waiting_per_requester };
        if all >= self.limits.waiting || requester.guest && guests >= self.limits.waiting_guests {
            return Err(self.busy(all, ""));
        }
        if of_one >= most {
            return Err(self.busy(of_one, " of this requester"));
        }
        *waiting.entry(requester.clone()).or_default() += 1;
        Ok(Waiting(self, requester))
    }

    fn busy(&self, waiting: usize, of_one: &'static str) -> Busy {
        let mean = self.mean_ns.load(Ordering::Relaxed);
        let turns = waiting as u64 + 1;
        let retry_after = Duration::from_nanos(mean.saturating_mul(turns) / u64::from(self.limits.units.max(1)));
        Busy { waiting, of_one, retry_after }
    }
}

/// What a heavy question costs.
const HEAVY: u32 = 4;
/// Units of questions that an agent puts together at a time.
const UNITS: u32 = 4 * HEAVY;
/// Tasks of one requester that a node lets wait: no more questions than that are out from an agent at a time, resting or not.
const TASKS_PER_REQUESTER: usize = 32;
/// Tasks under way at a node at a time: a thread and a connection each, though only those with a turn work.
pub(super) const MAX_IN_FLIGHT: usize = 128;

/// What putting a question together costs the agent that is asked, in units of a cheap one: those that gather rows in its
/// memory are heavy.
#[must_use]
pub fn cost(plan: &Plan) -> u32 {
    match plan.strategy {
        Strategy::Asker | Strategy::Fetch | Strategy::Parts => HEAVY,
        Strategy::Rows | Strategy::Aggregate | Strategy::Push | Strategy::PerNode if plan.flows() => 1,
        Strategy::Rows | Strategy::Aggregate | Strategy::Push | Strategy::PerNode => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits =
        Limits { units: 2, waiting: 3, waiting_per_requester: 2, waiting_guests: 2, waiting_per_guest: 1, resting: 1 };

    fn requester(name: &str) -> Requester {
        Requester::trusted(name)
    }

    #[tokio::test]
    async fn who_is_over_the_limits_is_refused_and_told_when_to_come_again() {
        let admission = Admission::new(LIMITS);
        let heavy = admission.enter(&requester("a"), 2).await.expect("room");
        assert_eq!(admission.used(), 2);
        let wait = |name: &'static str| {
            let admission = Arc::clone(&admission);
            tokio::spawn(async move { admission.enter(&requester(name), 1).await })
        };
        let (first, second) = (wait("a"), wait("a"));
        while lock(&admission.waiting).values().sum::<usize>() < 2 {
            tokio::task::yield_now().await;
        }
        let refused = admission.enter(&requester("a"), 1).await.expect_err("two of this requester wait");
        assert!(
            refused
                .to_string()
                .starts_with("busy: 2 questions wait here of this requester already; ask again in about ")
        );
        assert!(refused.retry_after > Duration::ZERO);
        let third = wait("b");
        while lock(&admission.waiting).values().sum::<usize>() < 3 {
            tokio::task::yield_now().await;
        }
        assert!(
            admission
                .enter(&requester("c"), 1)
                .await
                .expect_err("three wait")
                .to_string()
                .contains("3 questions wait here already")
        );
        // Who gives up waiting waits no more.
        third.abort();
        let _ = third.await;
        drop(heavy);
        // One after the other: the second unit is for others.
        drop((first.await.expect("no panic").expect("room"), admission.try_enter(&requester("b"), 1).expect("room")));
        drop(second.await.expect("no panic").expect("room"));
        assert_eq!((admission.used(), lock(&admission.waiting).len()), (0, 0));
        assert!(admission.try_enter(&requester("a"), 2).is_some());
    }

    #[tokio::test]
    async fn guests_leave_room_for_those_of_the_house_and_for_each_other() {
        let admission = Admission::new(LIMITS);
        let heavy = admission.enter(&requester("a"), 2).await.expect("room");
        let wait = |requester: Requester| {
            let admission = Arc::clone(&admission);
            tokio::spawn(async move { admission.enter(&requester, 1).await })
        };
        let (first, second) = (wait(Requester::guest("x")), wait(Requester::guest("y")));
        while lock(&admission.waiting).values().sum::<usize>() < 2 {
            tokio::task::yield_now().await;
        }
        let refused = admission.enter(&Requester::guest("x"), 1).await.expect_err("guests have no more room");
        assert!(refused.to_string().starts_with("busy: 2 questions wait here already"), "{refused}");
        let third = wait(requester("b"));
        while lock(&admission.waiting).values().sum::<usize>() < 3 {
            tokio::task::yield_now().await;
        }
        first.abort();
        let _ = first.await;
        let refused = admission.enter(&Requester::guest("y"), 1).await.expect_err("one of this guest waits");
        assert!(refused.to_string().contains("of this requester"), "{refused}");
        drop(heavy);
        drop((second.await.expect("no panic").expect("room"), third.await.expect("no panic").expect("room")));
        assert_eq!(admission.used(), 0);
    }

    #[test]
    fn who_only_waits_gives_its_turn_up_and_takes_it_again() {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let admission = Admission::new(LIMITS);
        let place = |name| {
            SuspendablePermit::new(admission.try_enter(&requester(name), 1).expect("room"), runtime.handle().clone())
        };
        let (mut first, mut second) = (place("a"), place("b"));
        assert_eq!(admission.used(), 2);
        first.suspend();
        second.suspend();
        assert_eq!(admission.used(), 1, "one may rest, the other keeps its turn");
        let third = admission.try_enter(&requester("c"), 1).expect("the turn of who rests");
        let soon = || Instant::now() + Duration::from_millis(20);
        assert!(!first.resume(soon()) && second.resume(soon()));
        drop(third);
        assert!(first.resume(Instant::now() + Duration::from_secs(60)));
        second.suspend();
        assert_eq!(admission.used(), 1, "there is room to rest again");
        // What is there soon is waited for with the turn.
        assert_eq!(first.wait_for(Duration::from_secs(60), std::future::ready(7)), 7);
        assert_eq!(admission.used(), 1);
        drop((first, second));
        assert_eq!((admission.used(), admission.resting.available_permits()), (0, 1));
    }

    #[tokio::test]
    async fn a_busy_place_says_how_long_by_how_long_turns_last() {
        let admission = Admission::new(Limits { units: 1, waiting: 0, waiting_per_requester: 0, ..LIMITS });
        admission.mean_ns.store(4_000_000_000_000, Ordering::Relaxed);
        let turn = admission.enter(&requester("a"), 1).await.expect("room");
        let refused = admission.enter(&requester("a"), 1).await.expect_err("nobody may wait");
        assert_eq!(refused.retry_after, Duration::from_secs(4_000));
        drop(turn);
        assert!(admission.mean_ns.load(Ordering::Relaxed) < 4_000_000_000_000);
    }
}
