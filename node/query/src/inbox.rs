//! What the targets of a round answer, on its way to the thread that merges it.
//!
//! Waking that thread costs more than a small answer does, so it is woken for many of them
//! together: when there is enough to work on, when something went wrong, and when all have
//! answered. Rows that go on to the user as they come ([`LeafEvent::Rows`]) go one by one through a
//! short queue, so that a slow reader slows the nodes down.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};

use super::leaf::LeafEvent;

/// Answers, and bytes of them, for which the merging thread is woken.
const ENOUGH: usize = 64;
const ENOUGH_BYTES: u64 = 256 << 10;

/// The round is over: nobody reads what is sent.
#[derive(Debug)]
pub(super) struct RoundOver;

/// The sending end; the round has ended when every clone is dropped.
#[derive(Debug, Clone)]
pub(super) enum ResponseSender {
    /// One by one; waits while the queue is full.
    Streaming(mpsc::Sender<LeafEvent>),
    /// Together.
    Batched(BatchSender),
}

/// The receiving end.
#[derive(Debug)]
pub(super) enum Inbox {
    Streaming(mpsc::Receiver<LeafEvent>),
    Batched(Arc<Mailbox>, std::vec::IntoIter<LeafEvent>),
}

#[derive(Debug, Default)]
pub(super) struct Mailbox {
    pending: Mutex<Pending>,
    enough: Notify,
}

#[derive(Debug, Default)]
struct Pending {
    events: Vec<LeafEvent>,
    bytes: u64,
    /// Something is wrong, which may end the question.
    urgent: bool,
    senders: usize,
}

impl Pending {
    fn is_enough(&self) -> bool {
        self.urgent || self.senders == 0 || self.events.len() >= ENOUGH || self.bytes >= ENOUGH_BYTES
    }
}

/// One that may still send something.
#[derive(Debug)]
pub(super) struct BatchSender(Arc<Mailbox>);

impl BatchSender {
    fn of(mailbox: &Arc<Mailbox>) -> Self {
        mailbox.pending.lock().senders += 1;
        Self(Arc::clone(mailbox))
    }

    fn send(&self, event: LeafEvent) {
        let mut pending = self.0.pending.lock();
        match &event {
            LeafEvent::Finished(_, Ok((batches, _))) => {
                pending.bytes += batches.iter().map(|(_, batch)| batch.data_bytes()).sum::<u64>();
            }
            LeafEvent::Finished(_, Err(failure)) => pending.urgent |= failure.is_of_question(),
            LeafEvent::Rows(..) => {}
        }
        pending.events.push(event);
        if pending.is_enough() {
            drop(pending);
            self.0.enough.notify_one();
        }
    }
}

impl Clone for BatchSender {
    fn clone(&self) -> Self {
        Self::of(&self.0)
    }
}

impl Drop for BatchSender {
    fn drop(&mut self) {
        let left = {
            let mut pending = self.0.pending.lock();
            pending.senders -= 1;
            pending.senders
        };
        if left == 0 {
            self.0.enough.notify_one();
        }
    }
}

/// Both ends; streaming with room for so many pieces.
pub(super) fn inbox(streaming: Option<usize>) -> (ResponseSender, Inbox) {
    match streaming {
        Some(room) => {
            let (ends, inbox) = mpsc::channel(room.max(1));
            (ResponseSender::Streaming(ends), Inbox::Streaming(inbox))
        }
        None => {
            let mailbox = Arc::new(Mailbox::default());
            (ResponseSender::Batched(BatchSender::of(&mailbox)), Inbox::Batched(mailbox, Vec::new().into_iter()))
        }
    }
}

impl ResponseSender {
    /// Sends an event.
    pub(super) async fn send(&self, event: LeafEvent) -> Result<(), RoundOver> {
        match self {
            Self::Streaming(ends) => ends.send(event).await.map_err(|_| RoundOver),
            Self::Batched(sender) => {
                sender.send(event);
                Ok(())
            }
        }
    }
}

impl Inbox {
    /// An inbox that holds these events, and nobody sends more.
    pub(super) fn of(events: Vec<LeafEvent>) -> Self {
        Self::Batched(Arc::default(), events.into_iter())
    }

    /// Waits until there is enough to work on, which stays in it; where rows flow, not at all.
    /// Cancel-safe.
    pub(super) async fn ready(&self) {
        let Self::Batched(mailbox, _) = self else { return };
        while !mailbox.pending.lock().is_enough() {
            mailbox.enough.notified().await;
        }
    }

    /// All events ever sent, where all senders are gone and nothing has been taken out.
    pub(super) fn take_all(&mut self) -> Option<Vec<LeafEvent>> {
        let Self::Batched(mailbox, taken) = self else { return None };
        let mut pending = mailbox.pending.lock();
        (pending.senders == 0 && taken.len() == 0).then(|| std::mem::take(&mut pending.events))
    }

    /// What has come so far, without waiting.
    pub(super) fn try_next(&mut self) -> Option<LeafEvent> {
        match self {
            Self::Streaming(inbox) => inbox.try_recv().ok(),
            Self::Batched(_, taken) => taken.next(),
        }
    }

    /// The next event; `None` when all senders are gone. Cancel-safe.
    pub(super) async fn next(&mut self) -> Option<LeafEvent> {
        let (mailbox, taken) = match self {
            Self::Streaming(inbox) => return inbox.recv().await,
            Self::Batched(mailbox, taken) => (mailbox, taken),
        };
        loop {
            if let Some(event) = taken.next() {
                return Some(event);
            }
            {
                let mut pending = mailbox.pending.lock();
                if pending.is_enough() {
                    (pending.bytes, pending.urgent) = (0, false);
                    *taken = std::mem::take(&mut pending.events).into_iter();
                    return taken.next();
                }
            }
            mailbox.enough.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use query_planner::{NodeError, NodeStats};

    use super::*;
    use crate::leaf::LeafFailure;

    fn ended(target: usize) -> LeafEvent {
        LeafEvent::Finished(target, Ok((Vec::new(), NodeStats::default())))
    }

    fn target(event: Option<LeafEvent>) -> Option<usize> {
        match event? {
            LeafEvent::Finished(target, _) | LeafEvent::Rows(target, _) => Some(target),
        }
    }

    #[tokio::test]
    async fn every_event_is_received_once_and_the_last_sender_ends_the_round() {
        for streaming in [None, Some(4)] {
            let (ends, mut inbox) = inbox(streaming);
            let senders: Vec<ResponseSender> = (0..200).map(|_| ends.clone()).collect();
            drop(ends);
            let hearing = tokio::spawn(async move {
                let mut taken = Vec::new();
                while let Some(target) = target(inbox.next().await) {
                    taken.push(target);
                }
                taken.sort_unstable();
                taken
            });
            for (index, sender) in senders.into_iter().enumerate() {
                // Every third is dropped without having sent anything.
                if index % 3 != 0 {
                    sender.send(ended(index)).await.expect("somebody listens");
                }
            }
            let all: Vec<usize> = (0..200).filter(|index| index % 3 != 0).collect();
            assert_eq!(hearing.await.expect("no panic"), all);
        }
    }

    #[tokio::test]
    async fn what_ends_the_question_is_received_at_once_and_many_events_before_the_last_sender_is_done() {
        let (ends, mut inbox) = inbox(None);
        ends.send(ended(0)).await.expect("somebody listens");
        ends.send(LeafEvent::Finished(1, Err(LeafFailure::of(NodeError::Sql("no".into())))))
            .await
            .expect("somebody listens");
        assert_eq!(target(inbox.next().await), Some(0));
        assert_eq!(target(inbox.try_next()), Some(1));

        let (ends, mut inbox) = super::inbox(None);
        for index in 0..ENOUGH {
            ends.send(ended(index)).await.expect("somebody listens");
        }
        for index in 0..ENOUGH {
            assert_eq!(target(inbox.next().await), Some(index));
        }
        assert_eq!(target(inbox.try_next()), None);
        drop(ends);
        assert!(inbox.next().await.is_none());
    }

    #[tokio::test]
    async fn all_is_taken_only_when_all_senders_are_done_and_can_be_read_again() {
        let (ends, mut inbox) = inbox(None);
        let other = ends.clone();
        ends.send(ended(0)).await.expect("somebody listens");
        drop(ends);
        assert!(inbox.take_all().is_none(), "one has not spoken");
        assert!(futures::poll!(std::pin::pin!(inbox.ready())).is_pending());
        other.send(ended(1)).await.expect("somebody listens");
        drop(other);
        inbox.ready().await;
        let all = inbox.take_all().expect("all have spoken");
        for _ in 0..2 {
            let mut again = Inbox::of(all.clone());
            assert_eq!((target(again.try_next()), target(again.next().await)), (Some(0), Some(1)));
            assert!(again.try_next().is_none() && again.next().await.is_none());
        }
        let (_flowing, mut inbox) = super::inbox(Some(1));
        inbox.ready().await;
        assert!(inbox.take_all().is_none());
    }
}
