//! Turns: how many questions are worked on at a time, how many wait, and who is told to come again later.
//!
//! Work has a cost in units. What is over the limit waits for as long as its deadline allows, each asker in a queue of its own, and
//! the queues take turns (`gate`); what is over the limit of those that wait, of all or of one asker, is refused at once with a word
//! on when to come again. The node's own work for the mesh ([`Admission::of_node`]) and the questions that an agent puts together
//! ([`Admission::of_agent`]) have turns of their own: one waits for the other, so sharing them would lock both up.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use query_planner::{Plan, Strategy};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::gate::{Gate, Units};
use crate::lock::lock;

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
    /// Of these, of one asker.
    pub waiting_of_one: usize,
    /// Of these, of all guests, and of one of them.
    pub waiting_guests: usize,
    /// See `waiting_guests`.
    pub waiting_of_guest: usize,
    /// Turns given up for a while, by work that only waits for others.
    pub resting: usize,
}

/// The turns of one place.
#[derive(Debug)]
pub struct Admission {
    limits: Limits,
    gate: Arc<Gate>,
    resting: Arc<Semaphore>,
    waiting: Mutex<HashMap<Asker, usize>>,
    /// Mean time of a turn for each of its units, nanoseconds.
    mean_ns: AtomicU64,
}

/// Who waits for a turn.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Asker {
    name: String,
    guest: bool,
}

impl Asker {
    /// One whom the place is there for: another node, the agent itself, its owner.
    pub fn of_the_house(name: impl Into<String>) -> Self {
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
    /// " of this asker", where that is what they are too many of.
    of_one: &'static str,
    /// When there should be room again.
    pub retry_after: Duration,
}

/// A turn; it ends when dropped.
#[derive(Debug)]
pub struct Turn {
    admission: Arc<Admission>,
    asker: Arc<str>,
    cost: u32,
    began: Instant,
    _units: Units,
}

/// The turn of work on a thread that may block, given up while it only waits for others. It ends when dropped.
#[derive(Debug)]
pub(super) struct Place {
    runtime: Handle,
    admission: Arc<Admission>,
    asker: Arc<str>,
    cost: u32,
    turn: Option<Turn>,
    resting: Option<OwnedSemaphorePermit>,
}

impl Place {
    pub(super) fn new(turn: Turn, runtime: Handle) -> Self {
        let (admission, asker, cost) = (Arc::clone(&turn.admission), Arc::clone(&turn.asker), turn.cost);
        Self { runtime, admission, asker, cost, turn: Some(turn), resting: None }
    }

    /// Somebody else may work meanwhile; unless so many rest already that this one keeps its turn.
    pub(super) fn rest(&mut self) {
        if self.turn.is_some()
            && let Ok(permit) = Arc::clone(&self.admission.resting).try_acquire_owned()
        {
            (self.turn, self.resting) = (None, Some(permit));
        }
    }

    /// Waits for a turn again, which nobody refuses; false when there was none until then.
    pub(super) fn back(&mut self, until: Instant) -> bool {
        if self.turn.is_none() {
            let units = self.admission.gate.take_again(&self.asker, self.cost);
            // A timer needs the runtime around it, which this thread has only in here.
            let units = self.runtime.block_on(async { tokio::time::timeout_at(until.into(), units).await });
            let Ok(Some(units)) = units else { return false };
            (self.turn, self.resting) = (Some(self.admission.turn(&self.asker, self.cost, units)), None);
        }
        true
    }

    /// Waits for something; after `patience` without a turn.
    pub(super) fn wait_for<T>(&mut self, patience: Duration, what: impl Future<Output = T>) -> T {
        let mut what = std::pin::pin!(what);
        let soon = self.runtime.block_on(async { tokio::time::timeout(patience, what.as_mut()).await });
        soon.unwrap_or_else(|_| {
            self.rest();
            self.runtime.block_on(what)
        })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let took = self.began.elapsed().as_nanos() as f64 / f64::from(self.cost);
        let mean = self.admission.mean_ns.load(Ordering::Relaxed) as f64;
        self.admission.mean_ns.store((mean + NEWEST * (took - mean)) as u64, Ordering::Relaxed);
    }
}

/// One that waits, counted while it does.
struct Waiting<'a>(&'a Admission, &'a Asker);

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
            gate: Gate::new(limits.units),
            resting: Arc::new(Semaphore::new(limits.resting)),
            waiting: Mutex::default(),
            mean_ns: AtomicU64::new(u64::try_from(FIRST_GUESS.as_nanos()).unwrap_or(u64::MAX)),
        })
    }

    /// Those of a node that works on tasks for the mesh, `units` at a time.
    #[must_use]
    pub fn of_node(units: u32) -> Arc<Self> {
        Self::new(Limits {
            units,
            waiting: 64,
            waiting_of_one: OF_ONE_AT_A_NODE,
            waiting_guests: 0,
            waiting_of_guest: 0,
            resting: MOST_UNDER_WAY,
        })
    }

    /// Those of an agent that puts questions together; what a question costs is [`cost`].
    #[must_use]
    pub fn of_agent() -> Arc<Self> {
        Self::new(Limits {
            units: UNITS,
            waiting: 64,
            waiting_of_one: 48,
            waiting_guests: 48,
            waiting_of_guest: 16,
            resting: OF_ONE_AT_A_NODE - UNITS as usize,
        })
    }

    /// Units in use.
    #[must_use]
    pub fn used(&self) -> usize {
        self.limits.units as usize - self.gate.free()
    }

    /// A turn for `asker` at once, or none.
    #[must_use]
    pub fn try_enter(self: &Arc<Self>, asker: &Asker, cost: u32) -> Option<Turn> {
        let units = self.gate.try_take(&asker.name, cost)?;
        Some(self.turn(&asker.name, cost, units))
    }

    /// A turn for `asker`, when one is free and it is this asker's turn.
    ///
    /// # Errors
    /// Too many wait already.
    pub async fn enter(self: &Arc<Self>, asker: &Asker, cost: u32) -> Result<Turn, Busy> {
        if let Some(turn) = self.try_enter(asker, cost) {
            return Ok(turn);
        }
        let waiting = self.wait(asker)?;
        let units = self.gate.take(&asker.name, cost).await;
        drop(waiting);
        match units {
            Some(units) => Ok(self.turn(&asker.name, cost, units)),
            // Never closed.
            None => Err(self.busy(0, "")),
        }
    }

    fn turn(self: &Arc<Self>, asker: &str, cost: u32, units: Units) -> Turn {
        let began = Instant::now();
        Turn { admission: Arc::clone(self), asker: asker.into(), cost: cost.max(1), began, _units: units }
    }

    fn wait<'a>(&'a self, asker: &'a Asker) -> Result<Waiting<'a>, Busy> {
        let mut waiting = lock(&self.waiting);
        let all: usize = waiting.values().sum();
        let guests: usize = waiting.iter().filter(|(one, _)| one.guest).map(|(_, count)| count).sum();
        let of_one = waiting.get(asker).copied().unwrap_or(0);
        let most = if asker.guest { self.limits.waiting_of_guest } else { self.limits.waiting_of_one };
        if all >= self.limits.waiting || asker.guest && guests >= self.limits.waiting_guests {
            return Err(self.busy(all, ""));
        }
        if of_one >= most {
            return Err(self.busy(of_one, " of this asker"));
        }
        *waiting.entry(asker.clone()).or_default() += 1;
        Ok(Waiting(self, asker))
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
/// Tasks of one asker that a node lets wait: no more questions than that are out from an agent at a time, resting or not.
const OF_ONE_AT_A_NODE: usize = 32;
/// Tasks under way at a node at a time: a thread and a connection each, though only those with a turn work.
pub(super) const MOST_UNDER_WAY: usize = 128;

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
        Limits { units: 2, waiting: 3, waiting_of_one: 2, waiting_guests: 2, waiting_of_guest: 1, resting: 1 };

    fn asker(name: &str) -> Asker {
        Asker::of_the_house(name)
    }

    #[tokio::test]
    async fn who_is_over_the_limits_is_refused_and_told_when_to_come_again() {
        let admission = Admission::new(LIMITS);
        let heavy = admission.enter(&asker("a"), 2).await.expect("room");
        assert_eq!(admission.used(), 2);
        let wait = |name: &'static str| {
            let admission = Arc::clone(&admission);
            tokio::spawn(async move { admission.enter(&asker(name), 1).await })
        };
        let (first, second) = (wait("a"), wait("a"));
        while lock(&admission.waiting).values().sum::<usize>() < 2 {
            tokio::task::yield_now().await;
        }
        let refused = admission.enter(&asker("a"), 1).await.expect_err("two of this asker wait");
        assert!(
            refused.to_string().starts_with("busy: 2 questions wait here of this asker already; ask again in about ")
        );
        assert!(refused.retry_after > Duration::ZERO);
        let third = wait("b");
        while lock(&admission.waiting).values().sum::<usize>() < 3 {
            tokio::task::yield_now().await;
        }
        assert!(
            admission
                .enter(&asker("c"), 1)
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
        drop((first.await.expect("no panic").expect("room"), admission.try_enter(&asker("b"), 1).expect("room")));
        drop(second.await.expect("no panic").expect("room"));
        assert_eq!((admission.used(), lock(&admission.waiting).len()), (0, 0));
        assert!(admission.try_enter(&asker("a"), 2).is_some());
    }

    #[tokio::test]
    async fn guests_leave_room_for_those_of_the_house_and_for_each_other() {
        let admission = Admission::new(LIMITS);
        let heavy = admission.enter(&asker("a"), 2).await.expect("room");
        let wait = |asker: Asker| {
            let admission = Arc::clone(&admission);
            tokio::spawn(async move { admission.enter(&asker, 1).await })
        };
        let (first, second) = (wait(Asker::guest("x")), wait(Asker::guest("y")));
        while lock(&admission.waiting).values().sum::<usize>() < 2 {
            tokio::task::yield_now().await;
        }
        let refused = admission.enter(&Asker::guest("x"), 1).await.expect_err("guests have no more room");
        assert!(refused.to_string().starts_with("busy: 2 questions wait here already"), "{refused}");
        let third = wait(asker("b"));
        while lock(&admission.waiting).values().sum::<usize>() < 3 {
            tokio::task::yield_now().await;
        }
        first.abort();
        let _ = first.await;
        let refused = admission.enter(&Asker::guest("y"), 1).await.expect_err("one of this guest waits");
        assert!(refused.to_string().contains("of this asker"), "{refused}");
        drop(heavy);
        drop((second.await.expect("no panic").expect("room"), third.await.expect("no panic").expect("room")));
        assert_eq!(admission.used(), 0);
    }

    #[test]
    fn who_only_waits_gives_its_turn_up_and_takes_it_again() {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let admission = Admission::new(LIMITS);
        let place = |name| Place::new(admission.try_enter(&asker(name), 1).expect("room"), runtime.handle().clone());
        let (mut first, mut second) = (place("a"), place("b"));
        assert_eq!(admission.used(), 2);
        first.rest();
        second.rest();
        assert_eq!(admission.used(), 1, "one may rest, the other keeps its turn");
        let third = admission.try_enter(&asker("c"), 1).expect("the turn of who rests");
        let soon = || Instant::now() + Duration::from_millis(20);
        assert!(!first.back(soon()) && second.back(soon()));
        drop(third);
        assert!(first.back(Instant::now() + Duration::from_secs(60)));
        second.rest();
        assert_eq!(admission.used(), 1, "there is room to rest again");
        // What is there soon is waited for with the turn.
        assert_eq!(first.wait_for(Duration::from_secs(60), std::future::ready(7)), 7);
        assert_eq!(admission.used(), 1);
        drop((first, second));
        assert_eq!((admission.used(), admission.resting.available_permits()), (0, 1));
    }

    #[tokio::test]
    async fn a_busy_place_says_how_long_by_how_long_turns_last() {
        let admission = Admission::new(Limits { units: 1, waiting: 0, waiting_of_one: 0, ..LIMITS });
        admission.mean_ns.store(4_000_000_000_000, Ordering::Relaxed);
        let turn = admission.enter(&asker("a"), 1).await.expect("room");
        let refused = admission.enter(&asker("a"), 1).await.expect_err("nobody may wait");
        assert_eq!(refused.retry_after, Duration::from_secs(4_000));
        drop(turn);
        assert!(admission.mean_ns.load(Ordering::Relaxed) < 4_000_000_000_000);
    }
}
