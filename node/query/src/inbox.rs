//! What the targets of a round say, on its way to the thread that merges it.
//!
//! Waking that thread costs more than a small answer does, so it is woken for many of them together: when there is enough to work on,
//! when something went wrong, and when all have spoken. Rows that go on to the user as they come ([`Said::Rows`]) go one by one
//! through a short queue, so that who reads slowly holds the nodes up.

use std::sync::{Arc, Mutex};

use tokio::sync::{Notify, mpsc};

use super::leaf::{Lost, Said};
use crate::lock::lock;

/// Answers, and bytes of them, for which the merging thread is woken.
const ENOUGH: usize = 64;
const ENOUGH_BYTES: u64 = 256 << 10;

/// The round is over: nobody hears what is said.
#[derive(Debug)]
pub(super) struct Over;

/// The end at which things are said; the round has ended when every clone is dropped.
#[derive(Debug, Clone)]
pub(super) enum Ends {
    /// One by one; waits while the queue is full.
    Flowing(mpsc::Sender<Said>),
    /// Together.
    Together(Speaker),
}

/// The end at which they are heard.
#[derive(Debug)]
pub(super) enum Inbox {
    Flowing(mpsc::Receiver<Said>),
    Together(Arc<Gathering>, std::vec::IntoIter<Said>),
}

#[derive(Debug, Default)]
pub(super) struct Gathering {
    heap: Mutex<Heap>,
    enough: Notify,
}

#[derive(Debug, Default)]
struct Heap {
    said: Vec<Said>,
    bytes: u64,
    /// Something is wrong, which may end the question.
    urgent: bool,
    speakers: usize,
}

impl Heap {
    fn is_enough(&self) -> bool {
        self.urgent || self.speakers == 0 || self.said.len() >= ENOUGH || self.bytes >= ENOUGH_BYTES
    }
}

/// One who may still say something.
#[derive(Debug)]
pub(super) struct Speaker(Arc<Gathering>);

impl Speaker {
    fn of(gathering: &Arc<Gathering>) -> Self {
        lock(&gathering.heap).speakers += 1;
        Self(Arc::clone(gathering))
    }

    fn say(&self, said: Said) {
        let mut heap = lock(&self.0.heap);
        match &said {
            Said::Ended(_, Ok((batches, _))) => {
                heap.bytes += batches.iter().map(|(_, batch)| batch.data_bytes()).sum::<u64>();
            }
            Said::Ended(_, Err(Lost::Sql(_) | Lost::OverBudget(_) | Lost::BrokeOff { .. })) => heap.urgent = true,
            Said::Ended(_, Err(Lost::Unreached(_) | Lost::Missing(_))) | Said::Rows(..) => {}
        }
        heap.said.push(said);
        if heap.is_enough() {
            drop(heap);
            self.0.enough.notify_one();
        }
    }
}

impl Clone for Speaker {
    fn clone(&self) -> Self {
        Self::of(&self.0)
    }
}

impl Drop for Speaker {
    fn drop(&mut self) {
        let left = {
            let mut heap = lock(&self.0.heap);
            heap.speakers -= 1;
            heap.speakers
        };
        if left == 0 {
            self.0.enough.notify_one();
        }
    }
}

/// Both ends; flowing with room for so many pieces.
pub(super) fn inbox(flowing: Option<usize>) -> (Ends, Inbox) {
    match flowing {
        Some(room) => {
            let (ends, inbox) = mpsc::channel(room.max(1));
            (Ends::Flowing(ends), Inbox::Flowing(inbox))
        }
        None => {
            let gathering = Arc::new(Gathering::default());
            (Ends::Together(Speaker::of(&gathering)), Inbox::Together(gathering, Vec::new().into_iter()))
        }
    }
}

impl Ends {
    /// Says something.
    pub(super) async fn send(&self, said: Said) -> Result<(), Over> {
        match self {
            Self::Flowing(ends) => ends.send(said).await.map_err(|_| Over),
            Self::Together(speaker) => {
                speaker.say(said);
                Ok(())
            }
        }
    }
}

impl Inbox {
    /// An inbox in which this has been said, and nobody says more.
    pub(super) fn of(said: Vec<Said>) -> Self {
        Self::Together(Arc::default(), said.into_iter())
    }

    /// Waits until there is enough to work on, which stays in it; where rows flow, not at all. Cancel-safe.
    pub(super) async fn ready(&self) {
        let Self::Together(gathering, _) = self else { return };
        while !lock(&gathering.heap).is_enough() {
            gathering.enough.notified().await;
        }
    }

    /// All that was ever said, where all have spoken and nothing has been taken out.
    pub(super) fn take_all(&mut self) -> Option<Vec<Said>> {
        let Self::Together(gathering, heard) = self else { return None };
        let mut heap = lock(&gathering.heap);
        (heap.speakers == 0 && heard.len() == 0).then(|| std::mem::take(&mut heap.said))
    }

    /// What is at hand, without waiting.
    pub(super) fn heard(&mut self) -> Option<Said> {
        match self {
            Self::Flowing(inbox) => inbox.try_recv().ok(),
            Self::Together(_, heard) => heard.next(),
        }
    }

    /// What is said next; `None` when all have spoken. Cancel-safe.
    pub(super) async fn next(&mut self) -> Option<Said> {
        let (gathering, heard) = match self {
            Self::Flowing(inbox) => return inbox.recv().await,
            Self::Together(gathering, heard) => (gathering, heard),
        };
        loop {
            if let Some(said) = heard.next() {
                return Some(said);
            }
            {
                let mut heap = lock(&gathering.heap);
                if heap.is_enough() {
                    (heap.bytes, heap.urgent) = (0, false);
                    *heard = std::mem::take(&mut heap.said).into_iter();
                    return heard.next();
                }
            }
            gathering.enough.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use query_planner::NodeStats;

    use super::*;

    fn ended(target: usize) -> Said {
        Said::Ended(target, Ok((Vec::new(), NodeStats::default())))
    }

    fn target(said: Option<Said>) -> Option<usize> {
        match said? {
            Said::Ended(target, _) | Said::Rows(target, _) => Some(target),
        }
    }

    #[tokio::test]
    async fn all_that_is_said_is_heard_once_and_the_last_speaker_ends_it() {
        for flowing in [None, Some(4)] {
            let (ends, mut inbox) = inbox(flowing);
            let speakers: Vec<Ends> = (0..200).map(|_| ends.clone()).collect();
            drop(ends);
            let hearing = tokio::spawn(async move {
                let mut heard = Vec::new();
                while let Some(target) = target(inbox.next().await) {
                    heard.push(target);
                }
                heard.sort_unstable();
                heard
            });
            for (index, speaker) in speakers.into_iter().enumerate() {
                // Every third goes without a word.
                if index % 3 != 0 {
                    speaker.send(ended(index)).await.expect("somebody listens");
                }
            }
            let all: Vec<usize> = (0..200).filter(|index| index % 3 != 0).collect();
            assert_eq!(hearing.await.expect("no panic"), all);
        }
    }

    #[tokio::test]
    async fn what_ends_the_question_is_heard_at_once_and_a_heap_before_the_last_has_spoken() {
        let (ends, mut inbox) = inbox(None);
        ends.send(ended(0)).await.expect("somebody listens");
        ends.send(Said::Ended(1, Err(Lost::Sql("no".into())))).await.expect("somebody listens");
        assert_eq!(target(inbox.next().await), Some(0));
        assert_eq!(target(inbox.heard()), Some(1));

        let (ends, mut inbox) = super::inbox(None);
        for index in 0..ENOUGH {
            ends.send(ended(index)).await.expect("somebody listens");
        }
        for index in 0..ENOUGH {
            assert_eq!(target(inbox.next().await), Some(index));
        }
        assert_eq!(target(inbox.heard()), None);
        drop(ends);
        assert!(inbox.next().await.is_none());
    }

    #[tokio::test]
    async fn all_is_taken_only_when_all_have_spoken_and_can_be_heard_again() {
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
            assert_eq!((target(again.heard()), target(again.next().await)), (Some(0), Some(1)));
            assert!(again.heard().is_none() && again.next().await.is_none());
        }
        let (_flowing, mut inbox) = super::inbox(Some(1));
        inbox.ready().await;
        assert!(inbox.take_all().is_none());
    }
}
