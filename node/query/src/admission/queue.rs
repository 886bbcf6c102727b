//! Units of work, handed out fairly: every requester has a queue of its own, and they are served
//! round robin, so that a requester with many requests waits behind its own and not before others';
//! and no requester gets all of the units, however long its work takes. Work that was suspended
//! goes first.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::{Limits, Requester};

/// Units, and the requests that wait for some.
#[derive(Debug)]
pub(super) struct FairQueue {
    limits: Limits,
    state: Mutex<State>,
}

/// Units in use; dropped, they are free again.
#[derive(Debug)]
pub(super) struct Units {
    queue: Arc<FairQueue>,
    requester: Requester,
    count: u32,
}

/// The queue is full, or this requester's part of it.
#[derive(Debug)]
pub(super) struct Full {
    /// How many wait.
    pub(super) waiting: usize,
    /// Whether it is this requester's part that is full.
    pub(super) of_one: bool,
}

#[derive(Debug)]
struct State {
    /// Units that one requester may have at a time, except for a single piece of work.
    share: u32,
    free: u32,
    /// Units of each requester.
    in_use: HashMap<Requester, u32>,
    /// Suspended work that wants to go on.
    resuming: VecDeque<Waiting>,
    /// The waiting requests of each requester, the next requester first.
    queues: VecDeque<VecDeque<Waiting>>,
}

#[derive(Debug)]
struct Waiting {
    requester: Requester,
    count: u32,
    to: oneshot::Sender<Units>,
}

/// Where the next request is: among those that resume, or first of a requester's.
#[derive(Clone, Copy)]
enum Next {
    Resuming(usize),
    Of(usize),
}

impl Requester {
    /// Whether both are of one node or person, for any user.
    fn is_like(&self, other: &Self) -> bool {
        (&self.name, self.guest) == (&other.name, other.guest)
    }
}

impl State {
    /// Whether a requester may have so many more. One piece of work may be more than its share, if
    /// it has nothing else. Of several users of one requester none has all of its share.
    fn may_have(&self, requester: &Requester, count: u32) -> bool {
        let of_all =
            self.in_use.iter().filter(|(one, _)| one.is_like(requester)).map(|(_, in_use)| in_use).sum::<u32>();
        let of_user = self.in_use.get(requester).copied().unwrap_or(0);
        let share_of_user = if requester.user.is_some() { self.share.div_ceil(2) } else { self.share };
        of_all == 0 || of_all + count <= self.share && (of_user == 0 || of_user + count <= share_of_user)
    }

    /// The next request of all queues whose requester is below its share, and its units.
    fn next(&mut self) -> Option<(Next, u32)> {
        self.resuming.retain(|waiting| !waiting.to.is_closed());
        for queue in &mut self.queues {
            queue.retain(|waiting| !waiting.to.is_closed());
        }
        self.queues.retain(|queue| !queue.is_empty());
        let may = |waiting: &&Waiting| self.may_have(&waiting.requester, waiting.count);
        let resuming = self.resuming.iter().enumerate().map(|(at, waiting)| (Next::Resuming(at), waiting));
        let firsts = self.queues.iter().enumerate().filter_map(|(at, queue)| Some((Next::Of(at), queue.front()?)));
        resuming.chain(firsts).find(|(_, waiting)| may(waiting)).map(|(next, waiting)| (next, waiting.count))
    }

    /// Takes a request out of its queue; its requester then comes after all others.
    fn take(&mut self, next: Next) -> Option<Waiting> {
        match next {
            Next::Resuming(at) => self.resuming.remove(at),
            Next::Of(at) => {
                let mut queue = self.queues.remove(at)?;
                let first = queue.pop_front();
                if !queue.is_empty() {
                    self.queues.push_back(queue);
                }
                first
            }
        }
    }

    /// Puts a request into its requester's queue.
    fn enqueue(&mut self, waiting: Waiting, limits: &Limits) -> Result<(), Full> {
        let counts = |wanted: &dyn Fn(&Requester) -> bool| {
            let open = self.queues.iter().flatten().filter(|waiting| !waiting.to.is_closed());
            open.filter(|waiting| wanted(&waiting.requester)).count()
        };
        let requester = &waiting.requester;
        let all = counts(&|_| true);
        if all >= limits.waiting || requester.guest && counts(&|one| one.guest) >= limits.waiting_guests {
            return Err(Full { waiting: all, of_one: false });
        }
        let most = if requester.guest { limits.waiting_per_guest } else { limits.waiting_per_requester };
        let of_one = counts(&|one| one.is_like(requester));
        if of_one >= most {
            return Err(Full { waiting: of_one, of_one: true });
        }
        let is_own = |queue: &&mut VecDeque<Waiting>| queue.front().is_some_and(|first| first.requester == *requester);
        match self.queues.iter_mut().find(is_own) {
            Some(queue) => queue.push_back(waiting),
            None => self.queues.push_back([waiting].into()),
        }
        Ok(())
    }

    fn grant_to(&mut self, queue: &Arc<FairQueue>, requester: Requester, count: u32) -> Units {
        self.free -= count;
        *self.in_use.entry(requester.clone()).or_default() += count;
        Units { queue: Arc::clone(queue), requester, count }
    }

    fn release(&mut self, requester: &Requester, count: u32) {
        self.free += count;
        if let Some(in_use) = self.in_use.get_mut(requester) {
            *in_use = in_use.saturating_sub(count);
            if *in_use == 0 {
                self.in_use.remove(requester);
            }
        }
    }
}

impl FairQueue {
    /// Units as the limits say; a requester with many requests leaves a quarter of them, or one.
    pub(super) fn new(limits: Limits) -> Arc<Self> {
        let units = limits.units;
        let share = (units - (units / 4).max(1).min(units)).max(1);
        let (in_use, resuming, queues) = (HashMap::new(), VecDeque::new(), VecDeque::new());
        Arc::new(Self { limits, state: Mutex::new(State { share, free: units, in_use, resuming, queues }) })
    }

    /// Free units.
    pub(super) fn free(&self) -> usize {
        self.state.lock().free as usize
    }

    /// How many wait, those not counted that were suspended.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.state.lock().queues.iter().flatten().filter(|waiting| !waiting.to.is_closed()).count()
    }

    /// So many for `requester` at once, or none: it does not pass others that wait.
    pub(super) fn try_take(self: &Arc<Self>, requester: &Requester, count: u32) -> Option<Units> {
        let mut state = self.state.lock();
        if state.next().is_some() || state.free < count || !state.may_have(requester, count) {
            return None;
        }
        Some(state.grant_to(self, requester.clone(), count))
    }

    /// So many for `requester`, when it is next. A request that stops waiting is skipped.
    pub(super) async fn take(self: &Arc<Self>, requester: &Requester, count: u32) -> Result<Units, Full> {
        self.wait(requester, count, |state, waiting| state.enqueue(waiting, &self.limits)).await
    }

    /// The same for work that was suspended, of which as much may wait as there is.
    pub(super) async fn take_again(self: &Arc<Self>, requester: &Requester, count: u32) -> Units {
        let enqueue = |state: &mut State, waiting| {
            state.resuming.push_back(waiting);
            Ok::<_, std::convert::Infallible>(())
        };
        let Ok(units) = self.wait(requester, count, enqueue).await;
        units
    }

    async fn wait<E>(
        self: &Arc<Self>,
        requester: &Requester,
        count: u32,
        enqueue: impl FnOnce(&mut State, Waiting) -> Result<(), E>,
    ) -> Result<Units, E> {
        // Dropped after the receiver: the request behind one that stopped waiting may be next.
        let _grant = GrantOnDrop(self);
        let (to, units) = oneshot::channel();
        enqueue(&mut self.state.lock(), Waiting { requester: requester.clone(), count, to })?;
        self.grant();
        match units.await {
            Ok(units) => Ok(units),
            // The queue keeps the sender until it sends, and lives as long as `self`.
            Err(_) => std::future::pending().await,
        }
    }

    /// Gives free units to the next requests.
    fn grant(self: &Arc<Self>) {
        let mut state = self.state.lock();
        while let Some((next, count)) = state.next()
            && count <= state.free
        {
            let Some(Waiting { requester, count, to }) = state.take(next) else { return };
            let units = state.grant_to(self, requester, count);
            if let Err(mut unwanted) = to.send(units) {
                // Its drop would take the lock, which is locked here.
                state.release(&unwanted.requester, unwanted.count);
                unwanted.count = 0;
            }
        }
    }
}

struct GrantOnDrop<'a>(&'a Arc<FairQueue>);

impl Drop for GrantOnDrop<'_> {
    fn drop(&mut self) {
        self.0.grant();
    }
}

impl Drop for Units {
    fn drop(&mut self) {
        // None were handed over: the queue is locked.
        if self.count > 0 {
            self.queue.state.lock().release(&self.requester, self.count);
            self.queue.grant();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::task::JoinHandle;

    use super::*;

    fn queue(units: u32) -> Arc<FairQueue> {
        FairQueue::new(Limits {
            units,
            waiting: 64,
            waiting_per_requester: 4,
            waiting_guests: 0,
            waiting_per_guest: 0,
            suspended: 64,
        })
    }

    fn requester(name: &str) -> Requester {
        Requester::trusted(name)
    }

    /// A request that waits, once it is in the queue.
    async fn waiting(queue: &Arc<FairQueue>, name: &'static str, count: u32) -> JoinHandle<Option<Units>> {
        waiting_as(queue, requester(name), count).await
    }

    async fn waiting_as(queue: &Arc<FairQueue>, requester: Requester, count: u32) -> JoinHandle<Option<Units>> {
        let (before, own) = (queue.waiting(), Arc::clone(queue));
        let task = tokio::spawn(async move { own.take(&requester, count).await.ok() });
        while queue.waiting() == before {
            tokio::task::yield_now().await;
        }
        task
    }

    async fn got(task: &mut JoinHandle<Option<Units>>) -> Option<Units> {
        tokio::time::timeout(Duration::from_millis(20), task).await.ok()?.expect("no panic")
    }

    #[tokio::test]
    async fn a_requester_with_many_requests_waits_behind_its_own() {
        let queue = queue(2);
        let first = queue.take(&requester("greedy"), 2).await.expect("free");
        let mut greedy = Vec::new();
        for _ in 0..3 {
            greedy.push(waiting(&queue, "greedy", 2).await);
        }
        let mut modest = waiting(&queue, "modest", 1).await;
        assert!(queue.try_take(&requester("one"), 1).is_none(), "nothing is free");
        drop(first);
        let second = got(&mut greedy[0]).await.expect("she came first");
        assert!(got(&mut modest).await.is_none());
        drop(second);
        let third = got(&mut modest).await.expect("before the rest of hers");
        assert!(got(&mut greedy[1]).await.is_none(), "one unit is not two");
        assert!(queue.try_take(&requester("one"), 1).is_none(), "nobody is passed by");
        // Work that had started goes before all that has not.
        let mut back = tokio::spawn({
            let queue = Arc::clone(&queue);
            async move { Some(queue.take_again(&requester("back"), 2).await) }
        });
        while queue.state.lock().resuming.is_empty() {
            tokio::task::yield_now().await;
        }
        drop(third);
        drop(got(&mut back).await.expect("first"));
        drop(got(&mut greedy[1]).await.expect("then she"));
        drop(got(&mut greedy[2]).await.expect("and again"));
        assert_eq!(queue.free(), 2);
        assert!(queue.state.lock().queues.is_empty() && queue.state.lock().in_use.is_empty(), "nobody is remembered");
    }

    #[tokio::test]
    async fn no_requester_gets_all_units_however_long_its_work_takes() {
        let queue = queue(4);
        let mut endless: Vec<Units> =
            (0..3).map(|_| queue.try_take(&requester("greedy"), 1).expect("her share")).collect();
        assert!(queue.try_take(&requester("greedy"), 1).is_none(), "the last one is for others");
        let mut fourth = waiting(&queue, "greedy", 1).await;
        // Nor by suspending and resuming.
        let mut back = tokio::spawn({
            let queue = Arc::clone(&queue);
            async move { Some(queue.take_again(&requester("greedy"), 1).await) }
        });
        while queue.state.lock().resuming.is_empty() {
            tokio::task::yield_now().await;
        }
        for _ in 0..3 {
            drop(queue.try_take(&requester("modest"), 1).expect("at once"));
        }
        assert!(got(&mut fourth).await.is_none() && got(&mut back).await.is_none());
        drop(endless.pop());
        drop(got(&mut back).await.expect("who has begun goes first"));
        drop(got(&mut fourth).await.expect("then she"));
        // One piece of work may be more than a share.
        drop(endless);
        assert!(queue.try_take(&requester("greedy"), 4).is_some());
    }

    #[tokio::test]
    async fn users_of_one_requester_leave_each_other_room_and_others_theirs() {
        let queue = queue(4);
        let user = |uid| requester("node").for_user(Some(uid));
        let _greedy: Vec<Units> = (0..2).map(|_| queue.try_take(&user(7), 1).expect("her share")).collect();
        assert!(queue.try_take(&user(7), 1).is_none(), "the third is for other users");
        let modest = queue.try_take(&user(8), 1).expect("she has nothing yet");
        assert!(queue.try_take(&user(9), 1).is_none(), "the node has its share");
        let other = queue.try_take(&requester("other"), 1).expect("another node has nothing yet");
        // Their queues are served in turn.
        let mut greedy = [waiting_as(&queue, user(7), 1).await, waiting_as(&queue, user(7), 1).await];
        let mut late = waiting_as(&queue, user(9), 1).await;
        drop(modest);
        drop(got(&mut late).await.expect("one unit is free, and user 7 has her share"));
        assert!(got(&mut greedy[0]).await.is_none());
        drop(other);
        assert!(got(&mut greedy[0]).await.is_none(), "still");
    }

    #[tokio::test]
    async fn a_request_that_gives_up_blocks_no_other() {
        let queue = queue(2);
        let one = queue.try_take(&requester("one"), 1).expect("free");
        let heavy = waiting(&queue, "heavy", 2).await;
        let mut light = waiting(&queue, "light", 1).await;
        assert!(got(&mut light).await.is_none(), "she waits for her turn");
        heavy.abort();
        let _ = heavy.await;
        let units = got(&mut light).await.expect("there is a unit");
        // Given and never received.
        let never = waiting(&queue, "never", 1).await;
        never.abort();
        let _ = never.await;
        drop((one, units));
        assert_eq!(queue.free(), 2);
        assert!(queue.try_take(&requester("one"), 2).is_some());
    }
}
