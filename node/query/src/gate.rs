//! Units of work, handed out fairly: every asker has a queue of its own, and the queues take turns, so that who asks much waits
//! behind herself and not before others. What was begun and rested meanwhile goes first. How many may wait is `admission`'s.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use tokio::sync::oneshot;

use crate::lock::lock;

/// So many units, and who waits for some.
#[derive(Debug)]
pub(super) struct Gate {
    state: Mutex<State>,
}

/// Units in use; dropped, they are free again.
#[derive(Debug)]
pub(super) struct Units {
    gate: Arc<Gate>,
    count: u32,
}

#[derive(Debug)]
struct State {
    free: u32,
    /// Who has begun and wants to go on.
    returning: Queue,
    /// Askers that have somebody waiting, the next one first.
    askers: VecDeque<(String, Queue)>,
}

#[derive(Debug, Default)]
struct Queue(VecDeque<(u32, oneshot::Sender<Units>)>);

impl Queue {
    /// What the first one who still waits wants.
    fn wants(&mut self) -> Option<u32> {
        while self.0.front().is_some_and(|(_, to)| to.is_closed()) {
            self.0.pop_front();
        }
        self.0.front().map(|(count, _)| *count)
    }
}

impl State {
    /// What the next one wants, of all queues.
    fn next_wants(&mut self) -> Option<u32> {
        if let Some(count) = self.returning.wants() {
            return Some(count);
        }
        loop {
            if let Some(count) = self.askers.front_mut()?.1.wants() {
                return Some(count);
            }
            self.askers.pop_front();
        }
    }

    /// Takes the next one out of its queue; its asker's next comes after everybody else's.
    fn next(&mut self) -> Option<oneshot::Sender<Units>> {
        if let Some((_, to)) = self.returning.0.pop_front() {
            return Some(to);
        }
        let (asker, mut queue) = self.askers.pop_front()?;
        let (_, to) = queue.0.pop_front()?;
        if !queue.0.is_empty() {
            self.askers.push_back((asker, queue));
        }
        Some(to)
    }
}

impl Gate {
    pub(super) fn new(units: u32) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State { free: units, returning: Queue::default(), askers: VecDeque::new() }),
        })
    }

    /// Units that nobody uses.
    pub(super) fn free(&self) -> usize {
        lock(&self.state).free as usize
    }

    /// So many at once, or none: nobody is passed by.
    pub(super) fn try_take(self: &Arc<Self>, count: u32) -> Option<Units> {
        let mut state = lock(&self.state);
        if state.next_wants().is_some() || state.free < count {
            return None;
        }
        state.free -= count;
        Some(Units { gate: Arc::clone(self), count })
    }

    /// So many for `asker`, when its turn has come. Who stops waiting is passed over.
    pub(super) async fn take(self: &Arc<Self>, asker: &str, count: u32) -> Option<Units> {
        self.wait(count, |state, waiting| match state.askers.iter_mut().find(|(name, _)| name == asker) {
            Some((_, queue)) => queue.0.push_back(waiting),
            None => state.askers.push_back((asker.to_owned(), Queue([waiting].into()))),
        })
        .await
    }

    /// The same for who has begun before.
    pub(super) async fn take_again(self: &Arc<Self>, count: u32) -> Option<Units> {
        self.wait(count, |state, waiting| state.returning.0.push_back(waiting)).await
    }

    async fn wait(
        self: &Arc<Self>,
        count: u32,
        enqueue: impl FnOnce(&mut State, (u32, oneshot::Sender<Units>)),
    ) -> Option<Units> {
        // Dropped after the receiver: who is behind one that waits no more may be next.
        let _hand_on = HandOn(self);
        let (to, units) = oneshot::channel();
        enqueue(&mut lock(&self.state), (count, to));
        self.hand_on();
        units.await.ok()
    }

    /// Gives free units to those whose turn it is.
    fn hand_on(self: &Arc<Self>) {
        let mut state = lock(&self.state);
        while let Some(count) = state.next_wants().filter(|count| *count <= state.free) {
            let Some(to) = state.next() else { return };
            if let Err(mut unwanted) = to.send(Units { gate: Arc::clone(self), count }) {
                unwanted.count = 0;
            } else {
                state.free -= count;
            }
        }
    }
}

struct HandOn<'a>(&'a Arc<Gate>);

impl Drop for HandOn<'_> {
    fn drop(&mut self) {
        self.0.hand_on();
    }
}

impl Drop for Units {
    fn drop(&mut self) {
        // None were handed over: the gate is locked.
        if self.count > 0 {
            lock(&self.gate.state).free += self.count;
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
    async fn waiting(gate: &Arc<Gate>, asker: &'static str, count: u32) -> JoinHandle<Option<Units>> {
        let all = |gate: &Gate| lock(&gate.state).askers.iter().map(|(_, queue)| queue.0.len()).sum::<usize>();
        let (before, own) = (all(gate), Arc::clone(gate));
        let task = tokio::spawn(async move { own.take(asker, count).await });
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
        let gate = Gate::new(2);
        let first = gate.take("greedy", 2).await.expect("free");
        let mut greedy = Vec::new();
        for _ in 0..3 {
            greedy.push(waiting(&gate, "greedy", 2).await);
        }
        let mut modest = waiting(&gate, "modest", 1).await;
        assert!(gate.try_take(1).is_none(), "nothing is free");
        drop(first);
        let second = got(&mut greedy[0]).await.expect("she came first");
        assert!(got(&mut modest).await.is_none());
        drop(second);
        let third = got(&mut modest).await.expect("before the rest of hers");
        assert!(got(&mut greedy[1]).await.is_none(), "one unit is not two");
        assert!(gate.try_take(1).is_none(), "nobody is passed by");
        // Who began before goes before all who have not.
        let mut back = tokio::spawn({
            let gate = Arc::clone(&gate);
            async move { gate.take_again(2).await }
        });
        while lock(&gate.state).returning.0.is_empty() {
            tokio::task::yield_now().await;
        }
        drop(third);
        drop(got(&mut back).await.expect("first"));
        drop(got(&mut greedy[1]).await.expect("then she"));
        drop(got(&mut greedy[2]).await.expect("and again"));
        assert_eq!(gate.free(), 2);
        assert!(lock(&gate.state).askers.is_empty(), "nobody is remembered");
    }

    #[tokio::test]
    async fn who_gives_up_holds_nobody_up() {
        let gate = Gate::new(2);
        let one = gate.try_take(1).expect("free");
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
        assert!(gate.try_take(2).is_some());
    }
}
