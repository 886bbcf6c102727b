//! The messages between nodes on a question's stream: one [`Request`], then [`Response`]s of which
//! the last ends the answer. How these become bytes is in `frame`; who may send them is decided in
//! `mesh::serve`.
//!
//! The order of variants is part of the format: add at the end, never remove or reorder. A node
//! that reads a kind it does not know answers [`Response::Unsupported`], so a new kind needs no new
//! version; a changed kind does ([`crate::frame::VERSION`]).

use std::net::SocketAddr;

use query_planner::{Batch, Combine, NodeError, NodeStats, NodeTask};
use record::Activity;
use serde::{Deserialize, Serialize};

use crate::board::{Board, Known};
use crate::failure::Failure;
use crate::frame::{self, FrameError};
use crate::local::{LocalRequest, LocalResponse, StacksWanted};
use crate::snapshot::SnapshotUse;

/// One question to a node. All are idempotent: asking again changes nothing.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Request {
    /// What time is it at yours? Answered by [`Response::Pong`].
    Ping,
    /// Which tables do you have? Answered by [`Response::Catalog`].
    Catalog,
    /// Do this task: [`Response::Batch`]es, then [`Response::Done`] or [`Response::Failed`].
    Task {
        /// Time left for it when it was sent, milliseconds. The coordinator stops listening then.
        deadline_ms: u32,
        /// The task.
        task: NodeTask,
    },
    /// Which collective calls are your ranks in right now? Answered by [`Response::OpenCalls`].
    OpenCalls,
    /// Which CAs does the mesh trust, and what is revoked? Answered by [`Response::Trust`].
    Trust,
    /// Sign a new certificate for the name and role that this connection proves. Answered by
    /// [`Response::Renewed`], where the mesh's CA is.
    Renew {
        /// PKCS #10 request, DER; only its key counts.
        csr: Vec<u8>,
    },
    /// What do these processes do, of those that are or were your ranks? Answered by
    /// [`Response::Activities`].
    Activities(Vec<u32>),
    /// Do this task, and have these other nodes do it: [`Response::Leaves`], then
    /// [`Response::Done`] (of the relaying itself) or [`Response::Failed`].
    Relay {
        /// Time left for all of them when it was sent, milliseconds.
        deadline_ms: u32,
        /// The task.
        task: NodeTask,
        /// Who is to do it; may name the node itself.
        leaves: Vec<Leaf>,
    },
    /// As [`Request::Task`], as one round of a question in two.
    RoundTask {
        /// Time left for it when it was sent, milliseconds.
        deadline_ms: u32,
        /// The task.
        task: NodeTask,
        /// What it has to do with the other round.
        snapshot: SnapshotUse,
    },
    /// As [`Request::Relay`], of [`Request::RoundTask`]s.
    RoundRelay {
        /// Time left for all of them when it was sent, milliseconds.
        deadline_ms: u32,
        /// The task.
        task: NodeTask,
        /// Who is to do it; may name the node itself.
        leaves: Vec<Leaf>,
        /// What it has to do with the other round, the same for all of them.
        snapshot: SnapshotUse,
    },
    /// The question with this number will not come again: its snapshot may go. Answered by
    /// [`Response::Done`].
    Release(u128),
    /// As [`Request::Relay`], and combine the leaves' rows: [`Response::Batch`]es with a
    /// [`Response::Combined`] behind them, any number of times, and [`Response::Leaves`] for those
    /// without an answer.
    Combine {
        /// Time left for all of them when it was sent, milliseconds.
        deadline_ms: u32,
        /// The task.
        task: NodeTask,
        /// Who is to do it; may name the node itself.
        leaves: Vec<Leaf>,
        /// How the rows of each fragment combine.
        combine: Vec<Combine>,
        /// What it has to do with the other round of the question, where it has two; the same for
        /// all of them.
        snapshot: Option<SnapshotUse>,
    },
    /// What a person or a program asks an agent, as on its local socket: it plans, asks the mesh
    /// and merges. Answered by [`Response::Local`]s.
    Ask(LocalRequest),
    /// Do this (a task, alone or relayed, open calls or stacks) for a user of the mesh's hosts who
    /// may see her own processes only.
    Own {
        /// Her user id, the same on every host.
        uid: u32,
        /// The request, encoded as a frame is; never another of this kind.
        request: Vec<u8>,
    },
    /// As [`Request::Release`], for these nodes. Answered by [`Response::Done`] when they have been
    /// notified, as far as they can be reached.
    ReleaseBelow {
        /// The question.
        question: u128,
        /// Whom to tell; may name the node itself.
        leaves: Vec<Leaf>,
    },
    /// What time is it at yours, by the clock that is never stepped? Answered by
    /// [`Response::Pong`].
    SteadyPing,
    /// Where are your ranks? Answered by [`Response::Stacks`].
    Stacks {
        /// Time left for it when it was sent, milliseconds.
        deadline_ms: u32,
        /// Of which ranks, and how often.
        wanted: StacksWanted,
    },
    /// What the ranks of one of my jobs did, to one of the job's judges. Answered by
    /// [`Response::WindowsReceived`] or [`Response::Failed`].
    Windows(JobWindows),
    /// What is your verdict on this job, in full? Answered by [`Response::Verdict`].
    Verdict(u64),
    /// What did the ranks of this job do, window by window? To one of its judges; answered by
    /// [`Response::Board`].
    Board {
        /// The job.
        job: u64,
        /// Windows that end after this, Unix nanoseconds; none: all that are kept.
        since_ns: Option<i64>,
        /// What the requester already has of it.
        known: Option<Known>,
    },
    /// How are you, and whom do you reach? Answered by [`Response::Health`].
    Health {
        /// Time left for it when it was sent, milliseconds.
        deadline_ms: u32,
        /// Whom to try to reach, by name.
        reach: Vec<String>,
        /// Ask these nodes instead, which the requester does not reach; empty: the node itself.
        of: Vec<String>,
    },
    /// What do you publish of these jobs, as their judge? For who does not hear your gossip;
    /// answered by [`Response::Verdicts`].
    Verdicts(Vec<u64>),
    /// As [`Request::Windows`], of a host that does not hear the judge's gossip and wants its
    /// verdict. Answered by [`Response::FarWindows`] or [`Response::Unsupported`].
    FarWindows {
        /// The windows.
        windows: JobWindows,
        /// The number of the verdict that the host has ([`Published::number`]); 0 for none.
        has: u64,
    },
}

/// Digests of a host's ranks of one job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobWindows {
    /// The job.
    pub job: u64,
    /// Windows that the judge has not confirmed yet, in order.
    pub windows: Vec<WindowDigest>,
    /// Communicators and functions of calls whose numbers this host does not know.
    pub unnumbered: Vec<(u64, String)>,
    /// Calls of some of its processes are recorded in time slices: no digest tells of these.
    pub in_slices: bool,
}

/// One window of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowDigest {
    /// Its number, on the host's own clock.
    pub window: i64,
    /// The digest, in the encoding of its owner; empty where there is none.
    pub digest: Vec<u8>,
    /// Where processes' time went, likewise.
    pub times: Vec<u8>,
}

/// What a judge has received, and what the host needs from others.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowsReceived {
    /// Nothing of the host was known before: what it confirmed earlier is lost.
    pub anew: bool,
    /// Communicators in which a rank waits.
    pub waited_in: Vec<u64>,
    /// Of the calls without a number: nodes and their digests, in the encoding of their owner.
    pub said: Vec<(String, Vec<String>)>,
}

/// A verdict as its judge publishes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Published {
    /// It, in the encoding of its owner.
    pub text: String,
    /// Tells it from those before it; never 0.
    pub number: u64,
    /// How long it has been published, milliseconds.
    pub for_ms: u32,
}

impl Request {
    fn viewer(&self) -> Option<u32> {
        match self {
            Self::Task { task, .. }
            | Self::RoundTask { task, .. }
            | Self::Relay { task, .. }
            | Self::RoundRelay { task, .. }
            | Self::Combine { task, .. } => task.viewer,
            _ => None,
        }
    }

    /// The task in it.
    fn task_mut(&mut self) -> Option<&mut NodeTask> {
        match self {
            Self::Task { task, .. }
            | Self::RoundTask { task, .. }
            | Self::Relay { task, .. }
            | Self::RoundRelay { task, .. }
            | Self::Combine { task, .. } => Some(task),
            _ => None,
        }
    }

    /// This request with its viewer of its task outside the task, as it goes over the network.
    ///
    /// # Errors
    /// It is too long for a frame.
    pub fn encoded(&self) -> Result<Vec<u8>, FrameError> {
        let Some(uid) = self.viewer() else { return frame::encode(self) };
        let mut request = self.clone();
        if let Some(task) = request.task_mut() {
            task.viewer = None;
        }
        frame::encode(&request.own(uid)?)
    }

    /// This request for one user.
    ///
    /// # Errors
    /// It is too long for a frame.
    pub fn own(&self, uid: u32) -> Result<Self, FrameError> {
        Ok(Self::Own { uid, request: frame::encode(self)? })
    }

    /// What [`Request::Own`] holds, with the user in its task; none where it is nothing that can be
    /// done for one user.
    #[must_use]
    pub fn owned(uid: u32, request: &[u8]) -> Option<Self> {
        let mut request: Self = frame::decode_frame(request).ok()?;
        let takes_viewer = matches!(request, Self::OpenCalls | Self::Stacks { .. });
        match request.task_mut() {
            Some(task) => task.viewer = Some(uid),
            None if takes_viewer => {}
            None => return None,
        }
        Some(request)
    }
}

/// A node that another is to ask.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leaf {
    /// Its name; the certificate that it shows must say the same.
    pub node: String,
    /// Where it listens.
    pub address: SocketAddr,
}

/// Something that a leaf answered, sent on.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FromLeaf {
    /// Index of the leaf in [`Request::Relay`].
    pub leaf: u32,
    /// What it answered.
    pub reply: LeafReply,
}

/// What a leaf answered. All but batches end its answer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum LeafReply {
    /// Rows of one fragment of the task.
    Batch {
        /// Which fragment of the task.
        fragment: u32,
        /// The rows.
        batch: Batch,
    },
    /// The task is done, all its batches were passed on.
    Done(NodeStats),
    /// The task failed, or the leaf was not reached, for which whoever asked may try; batches passed on
    /// before do not count.
    Failed(Failure),
}

/// A collective call that was entered and has not returned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenCall {
    /// Process id on the node.
    pub pid: u32,
    /// Rank in the communicator, when known.
    pub rank: Option<i32>,
    /// Size of the communicator, when known.
    pub nranks: Option<i32>,
    /// The communicator, when known.
    pub comm_hash: Option<u64>,
    /// The call in lower snake case ("all_reduce").
    pub func: String,
    /// Its number in (process, communicator, func), when known.
    pub seq: Option<u64>,
    /// Entry, Unix nanoseconds of the node's own clock.
    pub entry_ns: i64,
    /// Evidence tier of its duration.
    pub tier: u8,
    /// "nccl", "rccl" or "mpi".
    pub library: String,
    /// Root or peer rank, where the call has one; -1 of a receive from any rank.
    pub root: Option<i32>,
    /// The tag of a point-to-point call, where it asks for one that is known.
    pub tag: Option<i32>,
    /// Job, when known.
    pub job_id: Option<String>,
    /// Its position on the communicator over all functions, when it has one that is known.
    pub comm_seq: Option<u64>,
    /// Payload of this rank in bytes, when known.
    pub bytes: Option<u64>,
    /// Datatype by name, when known.
    pub datatype: Option<String>,
    /// Reduction, where the call has one that is known.
    pub reduce_op: Option<String>,
}

/// One piece of an answer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Response {
    /// The node's own clock, for `clock`: Unix time, or the steady one, as was asked.
    Pong {
        /// When the request had been read, nanoseconds.
        recv_unix_ns: i64,
        /// When this answer was written, nanoseconds.
        sent_unix_ns: i64,
    },
    /// The node's table catalogue, in the encoding of its owner.
    Catalog(Vec<u8>),
    /// Rows of one fragment of the task.
    Batch {
        /// Which fragment of the task.
        fragment: u32,
        /// The rows.
        batch: Batch,
    },
    /// The task is done, all its batches were sent.
    Done(NodeStats),
    /// The task failed; batches sent before do not count.
    Failed(Failure),
    /// The node cannot read or does not serve such a request; the text says why.
    Unsupported(String),
    /// The calls that the node's ranks are in; empty where nothing is recorded.
    OpenCalls(Vec<OpenCall>),
    /// The trust list (`certs::TrustList`); empty where there is none.
    Trust(Vec<u8>),
    /// The new certificate chain, DER, leaf first.
    Renewed(Vec<Vec<u8>>),
    /// What processes do, by process id; those that never were ranks of the node are left out.
    Activities(Vec<(u32, Activity)>),
    /// What leaves answered meanwhile; empty as a sign of life.
    Leaves(Vec<FromLeaf>),
    /// The batches since the last such response are the rows of these leaves: each its index and
    /// what it did.
    Combined(Vec<(u32, NodeStats)>),
    /// A piece of the answer to [`Request::Ask`].
    Local(LocalResponse),
    /// The stacks of the node's ranks, in the encoding of their owner.
    Stacks(Vec<u8>),
    /// The windows were received.
    WindowsReceived(WindowsReceived),
    /// The verdict, in the encoding of its owner; empty where there is none.
    Verdict(Vec<u8>),
    /// What ranks did; none where the node does not judge the job.
    Board(Option<Box<Board>>),
    /// A list of [`crate::health::Health`]s, as JSON.
    Health(Vec<u8>),
    /// The verdicts; of jobs of which none is published there is none.
    Verdicts(Vec<Published>),
    /// The windows were received; with the verdict, where the host has another.
    FarWindows {
        /// As in the answer to [`Request::Windows`].
        received: WindowsReceived,
        /// The verdict.
        verdict: Option<Published>,
    },
}

impl Response {
    /// The node could not do what was asked of it.
    #[must_use]
    pub fn failed(why: impl std::fmt::Display) -> Self {
        Self::Failed(NodeError::Failed(why.to_string()).into())
    }

    /// Its text where another kind was expected: short, whatever is in it.
    #[must_use]
    pub fn summary(&self) -> String {
        match self {
            Self::Failed(failure) => failure.message.clone(),
            Self::Unsupported(why) => format!("refused: {why}"),
            _ => "an answer of an unexpected kind".to_owned(),
        }
    }

    /// Whether nothing follows this response.
    #[must_use]
    pub fn is_last(&self) -> bool {
        match self {
            Self::Batch { .. } | Self::Leaves(_) | Self::Combined(_) => false,
            Self::Local(response) => response.is_last(),
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_can_be_done_for_one_user_is_asked_for_one() {
        let wanted = StacksWanted { samples: 1, every_ms: 50, ..StacksWanted::default() };
        let of = |request: &Request| match request.own(1000) {
            Ok(Request::Own { uid, request }) => Request::owned(uid, &request),
            other => panic!("{other:?}"),
        };
        assert!(matches!(
            of(&Request::Stacks { deadline_ms: 9, wanted: wanted.clone() }),
            Some(Request::Stacks { .. })
        ));
        assert!(matches!(of(&Request::OpenCalls), Some(Request::OpenCalls)));
        assert!(of(&Request::Activities(vec![1])).is_none());
        assert!(of(&Request::OpenCalls.own(1).unwrap()).is_none(), "not one within another");
        assert!(Request::owned(1, b"x").is_none());
    }
}
