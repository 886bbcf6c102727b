//! Units of work, handed out fairly: every requester has a queue of its own, and the queues take turns, so that who asks much waits
//! behind herself and not before others; and no requester has all of them, however long her work takes. What was first_round and rested
//! meanwhile goes first. How many may wait is `admission`'s.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use tokio::sync::oneshot;

use crate::lock::lock;

/// So many units, and who waits for some.
#[derive(Debug)]
pub(super) struct FairQueue {
    /// What one requester may have at a time, if it is not one piece of work.
    most_of_one: u32,
    state: Mutex<State>,
}

/// Units in use; dropped, they are free again.
#[derive(Debug)]
pub(super) struct Units {
    gate: Arc<FairQueue>,
    requester: Arc<str>,
    count: u32,
}

#[derive(Debug)]
struct State {
    free: u32,
    /// What each requester has.
    held: HashMap<Arc<str>, u32>,
    /// Who has first_round and wants to go on.
    returning: VecDeque<Waiting>,
    /// Those of each requester that wait, the requester who is next first.
    requesters: VecDeque<VecDeque<Waiting>>,
}

#[derive(Debug)]
struct Waiting {
    requester: Arc<str>,
    count: u32,
    to: oneshot::Sender<Units>,
}

/// Where the next one stands: among those who return, or first of an requester's.
#[derive(Clone, Copy)]
enum Next {
    Returning(usize),
    Of(usize),
}

impl State {
    /// Whether an requester may have so many more. One piece of work may be more than her share, if she has nothing else.
    fn may_have(&self, requester: &str, count: u32, most_of_one: u32) -> bool {
        let held = self.held.get(requester).copied().unwrap_or(0);
        held == 0 || held + count <= most_of_one
    }

    /// The next one of all queues whose requester has not her share already, and what it wants.
    fn next(&mut self, most_of_one: u32) -> Option<(Next, u32)> {
        self.returning.retain(|waiting| !waiting.to.is_closed());
        for queue in &mut self.requesters {
            queue.retain(|waiting| !waiting.to.is_closed());
        }
        self.requesters.retain(|queue| !queue.is_empty());
        let may = |waiting: &&Waiting| self.may_have(&waiting.requester, waiting.count, most_of_one);
        let returning = self.returning.iter().enumerate().map(|(at, waiting)| (Next::Returning(at), waiting));
        let firsts = self.requesters.iter().enumerate().filter_map(|(at, queue)| Some((Next::Of(at), queue.front()?)));
        returning.chain(firsts).find(|(_, waiting)| may(waiting)).map(|(next, waiting)| (next, waiting.count))
    }

    /// Takes one out of its queue; its requester's next comes after everybody else's.
    fn take(&mut self, next: Next) -> Option<Waiting> {
        match next {
            Next::Returning(at) => self.returning.remove(at),
            Next::Of(at) => {
                let mut queue = self.requesters.remove(at)?;
                let first = queue.pop_front();
                if !queue.is_empty() {
                    self.requesters.push_back(queue);
                }
                first
            }
        }
    }

    fn hold(&mut self, gate: &Arc<FairQueue>, requester: Arc<str>, count: u32) -> Units {
        self.free -= count;
        *self.held.entry(Arc::clone(&requester)).or_default() += count;
        Units { gate: Arc::clone(gate), requester, count }
    }

    fn give_back(&mut self, requester: &str, count: u32) {
        self.free += count;
        if let Some(held) = self.held.get_mut(requester) {
            *held = held.saturating_sub(count);
            if *held == 0 {
                self.held.remove(requester);
            }
        }
    }
}

impl FairQueue {
    /// So many units; a quarter of them, or one, is left by who asks much.
    pub(super) fn new(units: u32) -> Arc<Self> {
        let most_of_one = (units - (units / 4).max(1).min(units)).max(1);
        let state =
            State { free: units, held: HashMap::new(), returning: VecDeque::new(), requesters: VecDeque::new() };
        Arc::new(Self { most_of_one, state: Mutex::new(state) })
    }

    /// Units that nobody uses.
    pub(super) fn free(&self) -> usize {
        lock(&self.state).free as usize
    }

    /// So many for `requester` at once, or none: nobody is passed by.
    pub(super) fn try_take(self: &Arc<Self>, requester: &str, count: u32) -> Option<Units> {
        let mut state = lock(&self.state);
        if state.next(self.most_of_one).is_some()
            || state.free < count
            || !state.may_have(requester, count, self.most_of_one)
        {
            return None;
        }
        Some(state.hold(self, requester.into(), count))
    }

    /// So many for `requester`, when its turn has come. Who stops waiting is passed over.
    pub(super) async fn take(self: &Arc<Self>, requester: &str, count: u32) -> Option<Units> {
        self.wait(requester, count, |state, waiting| {
            match state
                .requesters
                .iter_mut()
                .find(|queue| queue.front().is_some_and(|first| &*first.requester == requester))
            {
                Some(queue) => queue.push_back(waiting),
                None => state.requesters.push_back([waiting].into()),
            }
        })
        .await
    }

    /// The same for who has first_round before.
    pub(super) async fn take_again(self: &Arc<Self>, requester: &str, count: u32) -> Option<Units> {
        self.wait(requester, count, |state, waiting| state.returning.push_back(waiting)).await
    }

    async fn wait(
        self: &Arc<Self>,
        requester: &str,
        count: u32,
        enqueue: impl FnOnce(&mut State, Waiting),
    ) -> Option<Units> {
        // Dropped after the receiver: who is behind one that waits no more may be next.
        let _hand_on = HandOn(self);
        let (to, units) = oneshot::channel();
        enqueue(&mut lock(&self.state), Waiting { requester: requester.into(), count, to });
        self.hand_on();
        units.await.ok()
    }

    /// Gives free units to those whose turn it is.
    fn hand_on(self: &Arc<Self>) {
        let mut state = lock(&self.state);
        while let Some((next, count)) = state.next(self.most_of_one)
            && count <= state.free
        {
            let Some(Waiting { requester, count, to }) = state.take(next) else { return };
            let units = state.hold(self, requester, count);
            if let Err(mut unwanted) = to.send(units) {
                // Its drop would want the lock that is held here.
                state.give_back(&unwanted.requester, unwanted.count);
                unwanted.count = 0;
            }
        }
    }
}

struct HandOn<'a>(&'a Arc<FairQueue>);

impl Drop for HandOn<'_> {
    fn drop(&mut self) {
        self.0.hand_on();
    }
}

impl Drop for Units {
    fn drop(&mut self) {
        // None were handed over: the gate is locked.
        if self.count > 0 {
            lock(&self.gate.state).give_back(&self.requester, self.count);
            self.gate.hand_on();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::task::JoinHandle;

    use super::*;

    /// Somebody who waits, once she stands in the queue.
    async fn waiting(gate: &Arc<FairQueue>, requester: &'static str, count: u32) -> JoinHandle<Option<Units>> {
        let all = |gate: &FairQueue| lock(&gate.state).requesters.iter().map(VecDeque::len).sum::<usize>();
        let (before, own) = (all(gate), Arc::clone(gate));
        let task = tokio::spawn(async move { own.take(requester, count).await });
        while all(gate) == before {
            tokio::task::yield_now().await;
        }
        task
    }

    async fn got(task: &mut JoinHandle<Option<Units>>) -> Option<Units> {
        tokio::time::timeout(Duration::from_millis(20), task).await.ok()?.expect("no panic")
    }

    #[tokio::test]
    async fn who_asks_much_waits_behind_herself() {
        let gate = FairQueue::new(2);
        let first = gate.take("greedy", 2).await.expect("free");
        let mut greedy = Vec::new();
        for _ in 0..3 {
            greedy.push(waiting(&gate, "greedy", 2).await);
        }
        let mut modest = waiting(&gate, "modest", 1).await;
        assert!(gate.try_take("one", 1).is_none(), "nothing is free");
        drop(first);
        let second = got(&mut greedy[0]).await.expect("she came first");
        assert!(got(&mut modest).await.is_none());
        drop(second);
        let third = got(&mut modest).await.expect("before the rest of hers");
        assert!(got(&mut greedy[1]).await.is_none(), "one unit is not two");
        assert!(gate.try_take("one", 1).is_none(), "nobody is passed by");
        // Who began before goes before all who have not.
        let mut back = tokio::spawn({
            let gate = Arc::clone(&gate);
            async move { gate.take_again("back", 2).await }
        });
        while lock(&gate.state).returning.is_empty() {
            tokio::task::yield_now().await;
        }
        drop(third);
        drop(got(&mut back).await.expect("first"));
        drop(got(&mut greedy[1]).await.expect("then she"));
        drop(got(&mut greedy[2]).await.expect("and again"));
        assert_eq!(gate.free(), 2);
        assert!(lock(&gate.state).requesters.is_empty() && lock(&gate.state).held.is_empty(), "nobody is remembered");
    }

    #[tokio::test]
    async fn nobody_has_all_of_it_however_long_her_work_takes() {
        let gate = FairQueue::new(4);
        let mut endless: Vec<Units> = (0..3).map(|_| gate.try_take("greedy", 1).expect("her share")).collect();
        assert!(gate.try_take("greedy", 1).is_none(), "the last one is for others");
        let mut fourth = waiting(&gate, "greedy", 1).await;
        // Nor by resting and coming back.
        let mut back = tokio::spawn({
            let gate = Arc::clone(&gate);
            async move { gate.take_again("greedy", 1).await }
        });
        while lock(&gate.state).returning.is_empty() {
            tokio::task::yield_now().await;
        }
        for _ in 0..3 {
            drop(gate.try_take("modest", 1).expect("at once"));
        }
        assert!(got(&mut fourth).await.is_none() && got(&mut back).await.is_none());
        drop(endless.pop());
        drop(got(&mut back).await.expect("who has first_round goes first"));
        drop(got(&mut fourth).await.expect("then she"));
        // One piece of work may be more than a share.
        drop(endless);
        assert!(gate.try_take("greedy", 4).is_some());
    }

    #[tokio::test]
    async fn who_gives_up_holds_nobody_up() {
        let gate = FairQueue::new(2);
        let one = gate.try_take("one", 1).expect("free");
        let heavy = waiting(&gate, "heavy", 2).await;
        let mut light = waiting(&gate, "light", 1).await;
        assert!(got(&mut light).await.is_none(), "she waits for her turn");
        heavy.abort();
        let _ = heavy.await;
        let units = got(&mut light).await.expect("there is a unit");
        // Handed over and never taken.
        let never = waiting(&gate, "never", 1).await;
        never.abort();
        let _ = never.await;
        drop((one, units));
        assert_eq!(gate.free(), 2);
        assert!(gate.try_take("one", 2).is_some());
    }
}
