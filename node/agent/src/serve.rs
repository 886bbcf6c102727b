//! Answers to other nodes: ping, catalogue, tasks. And to people who come over the mesh with a
//! certificate of their own (`rankmesh query --via`): a reader's certificate permits what a reader
//! on the socket may ask, any other everything.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use certs::Role;
use certs::tls::Peer;
use mesh::{Handler, Mesh, Responder};
use model::limit::ConcurrencyLimit;
use model::wire::{Leaf, Request, Response};
use model::{FailureKind, LocalRequest, LocalResponse, SnapshotUse, StacksWanted, frame};
use query::access::{Access, Caller};
use query::aggregator::Aggregator;
use query::exec::Executor;
use query::leaf::LeafRequest;
use query::{Way, release};
use query_planner::{Combine, NodeStats, NodeTask};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::answer::{self, AnswerSink};
use super::audit::{Asking, Auditor, Outcome};
use super::recording::Recording;
use super::stacks::Stacks;
use super::trust::Keeper;
use super::{Shared, standing};

/// No task runs longer than this here, whatever deadline the coordinator sends.
const LONGEST_TASK: Duration = Duration::from_secs(600);

/// Questions of people over the mesh that are answered at a time, and of one of them; each may
/// gather much.
const PEOPLE: usize = 16;
const OF_ONE: usize = 8;

/// Serves requests that arrive over the mesh.
#[derive(Debug)]
pub(super) struct NodeHandler {
    executor: Arc<Executor>,
    recording: Arc<Recording>,
    stacks: Arc<Stacks>,
    /// None in a light agent, which keeps no identity fresh.
    trust: Option<Arc<Keeper>>,
    /// None in a light agent, which has no store of its own.
    auditor: Option<Arc<Auditor>>,
    aggregator: Aggregator,
    /// The agent as a coordinator for people, once it runs. Never set in a light agent.
    people: OnceLock<People>,
    limit: ConcurrencyLimit,
}

struct People {
    shared: Weak<Shared>,
    readers_see_processes: bool,
}

impl std::fmt::Debug for People {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("People").finish_non_exhaustive()
    }
}

impl People {
    fn access(&self, role: Role) -> Access {
        if role == Role::Reader && !self.readers_see_processes { Access::Reader } else { Access::Owner }
    }
}

/// Answers people over the mesh.
struct MeshSink<'a>(&'a mut Responder);

#[async_trait]
impl AnswerSink for MeshSink<'_> {
    async fn send(&mut self, response: LocalResponse) -> anyhow::Result<()> {
        Ok(self.0.send(Response::Local(response)).await?)
    }
}

impl NodeHandler {
    pub(super) fn new(
        executor: Arc<Executor>,
        recording: Arc<Recording>,
        stacks: Arc<Stacks>,
        trust: Option<Arc<Keeper>>,
        auditor: Option<Arc<Auditor>>,
    ) -> Self {
        let (people, limit) = (OnceLock::new(), ConcurrencyLimit::new(PEOPLE, OF_ONE));
        Self { executor, recording, stacks, trust, auditor, aggregator: Aggregator::default(), people, limit }
    }

    /// From now on people are answered, too.
    pub(super) fn answers_people(&self, shared: &Arc<Shared>, readers_see_processes: bool) {
        let _ = self.people.set(People { shared: Arc::downgrade(shared), readers_see_processes });
    }

    /// This agent, once it runs.
    fn agent(&self) -> Option<Arc<Shared>> {
        self.people.get()?.shared.upgrade()
    }

    async fn person(&self, peer: &Peer, request: LocalRequest, out: &mut Responder, cancelled: CancellationToken) {
        let asking = |kind| Asking::new("mesh", peer.name.to_string(), peer.role.as_str(), kind);
        let agent = self.people.get().and_then(|people| Some((people.shared.upgrade()?, people.access(peer.role))));
        let refusal = match (agent, self.limit.take(peer.name.as_str())) {
            (Some((shared, access)), Ok(_slot)) => {
                let caller = Caller::guest(access, peer.name.to_string());
                let answered =
                    answer::answer(&shared, request, &caller, None, asking, &mut MeshSink(out), cancelled).await;
                if let Err(error) = answered {
                    tracing::debug!("answering {}: {error:#}", peer.name);
                }
                return;
            }
            (None, _) => "this agent answers nobody yet; try again".to_owned(),
            (_, Err(crowded)) => crowded,
        };
        if let Some(auditor) = &self.auditor {
            auditor.done(asking("connect"), Outcome::Refused(refusal.clone()));
        }
        let _ = MeshSink(out).send(LocalResponse::failed(refusal)).await;
    }

    fn note(&self, asking: Asking, response: &Response) {
        if let Some(auditor) = &self.auditor {
            auditor.done(asking, outcome(response));
        }
    }

    async fn noted_task(
        &self,
        peer: &Peer,
        deadline: Instant,
        task: NodeTask,
        snapshot: Option<SnapshotUse>,
        out: &mut Responder,
        cancelled: CancellationToken,
    ) -> Response {
        let asking = asking(peer, "task", &task);
        let response = self.task(deadline, peer.name.as_str(), task, snapshot, out, cancelled).await;
        self.note(asking, &response);
        response
    }

    async fn noted_stacks(
        &self,
        peer: &Peer,
        deadline: Instant,
        wanted: StacksWanted,
        viewer: Option<u32>,
        cancelled: &CancellationToken,
    ) -> Response {
        let asking = Asking::new("mesh", for_user(peer, viewer), peer.role.as_str(), "stacks");
        let response = self.stacks.answer(wanted, viewer, deadline, cancelled).await;
        self.note(asking, &response);
        response
    }

    async fn aggregated(
        &self,
        peer: &Peer,
        request: LeafRequest,
        leaves: Vec<Leaf>,
        combine: Option<Vec<Combine>>,
        out: &mut Responder,
        cancelled: CancellationToken,
    ) -> Response {
        let asking = asking(peer, "relay", &request.task);
        if let Some(stranger) = self.agent().and_then(|agent| stranger(&agent.coordinator.gossip.list(), &leaves)) {
            // The coordinator then asks them itself.
            let refusal = Response::Unsupported(format!("{stranger} is no member that is known here"));
            self.note(asking, &refusal);
            return refusal;
        }
        let response = self.aggregator.run(request, leaves, combine, out, cancelled).await;
        self.note(asking, &response);
        response
    }

    async fn task(
        &self,
        deadline: Instant,
        coordinator: &str,
        task: NodeTask,
        snapshot: Option<SnapshotUse>,
        out: &mut Responder,
        cancelled: CancellationToken,
    ) -> Response {
        match self.executor.run_inline(&task, snapshot) {
            Some(Ok(small)) => {
                for (fragment, batch) in small.batches {
                    if let Err(error) = out.buffer(u32::try_from(fragment).unwrap_or(u32::MAX), batch).await {
                        tracing::debug!("sending rows: {error}");
                    }
                }
                return Response::Done(small.stats);
            }
            Some(Err(error)) => return Response::Failed(error.into()),
            None => {}
        }
        // Boxed, so that small requests do not carry its size.
        Box::pin(self.task_on_a_thread(deadline, coordinator, task, snapshot, out, cancelled)).await
    }

    async fn task_on_a_thread(
        &self,
        deadline: Instant,
        coordinator: &str,
        task: NodeTask,
        snapshot: Option<SnapshotUse>,
        out: &mut Responder,
        cancelled: CancellationToken,
    ) -> Response {
        let (batches, mut produced) = mpsc::channel(4);
        // When the stream to the coordinator breaks, the work stops.
        let stop = cancelled.child_token();
        let running = Arc::clone(&self.executor).run(coordinator, task, snapshot, deadline, stop.clone(), batches);
        let forward = async {
            while let Some((fragment, batch, _counted)) = produced.recv().await {
                let fragment = u32::try_from(fragment).unwrap_or(u32::MAX);
                // A coordinator that neither reads nor goes away delays the work no longer than its
                // own deadline.
                let sent = tokio::time::timeout_at(deadline.into(), out.batch(fragment, batch)).await;
                if !matches!(sent, Ok(Ok(()))) {
                    tracing::debug!("sending rows: {sent:?}");
                    stop.cancel();
                    produced.close();
                    break;
                }
            }
        };
        let (outcome, ()) = tokio::join!(running, forward);
        match outcome {
            Ok(stats) => Response::Done(stats),
            Err(error) => Response::Failed(error.into()),
        }
    }
}

/// The instant until which a task may run here that has so much time left.
fn until(deadline_ms: u32) -> Instant {
    Instant::now() + Duration::from_millis(deadline_ms.into()).min(LONGEST_TASK)
}

/// A task asked for by `peer`, as the audit has it.
fn asking(peer: &Peer, kind: &'static str, task: &NodeTask) -> Asking {
    let sql = task.fragments.first().map_or("", |fragment| fragment.sql.as_str());
    Asking::new("mesh", for_user(peer, task.viewer), peer.role.as_str(), kind).question(sql)
}

/// The requester, and for which of her host's users.
fn for_user(peer: &Peer, viewer: Option<u32>) -> String {
    match viewer {
        Some(uid) => format!("{} for uid {uid}", peer.name),
        None => peer.name.to_string(),
    }
}

/// The outcome of a question, for the audit.
fn outcome(response: &Response) -> Outcome {
    match response {
        Response::Done(stats) => Outcome::Answered { rows: Some(stats.rows), bytes: Some(stats.bytes) },
        Response::Failed(failure) => match failure.kind {
            FailureKind::OverBudget | FailureKind::Sql => Outcome::Refused(failure.message.clone()),
            _ => Outcome::Failed(failure.message.clone()),
        },
        Response::Unsupported(reason) => Outcome::Refused(reason.clone()),
        _ => Outcome::Answered { rows: None, bytes: None },
    }
}

#[async_trait]
impl Handler for NodeHandler {
    async fn handle(
        &self,
        mesh: &Mesh,
        peer: Peer,
        request: Request,
        out: &mut Responder,
        cancelled: CancellationToken,
    ) {
        let leaf_request = |deadline_ms, task, snapshot| LeafRequest {
            way: Way::Mesh { mesh: mesh.clone(), own: Arc::clone(&self.executor) },
            task,
            snapshot,
            deadline: until(deadline_ms),
        };
        let response = match request {
            // The endpoint answers pings itself, next to the socket, to keep the clock bound small.
            Request::Ping | Request::SteadyPing => return,
            Request::Ask(request) => return Box::pin(self.person(&peer, request, out, cancelled)).await,
            Request::Catalog => match self.executor.catalog() {
                Ok(catalog) => match frame::encode(&*catalog) {
                    Ok(bytes) => Response::Catalog(bytes),
                    Err(error) => Response::failed(error),
                },
                Err(error) => Response::Failed(error.into()),
            },
            Request::Activities(pids) => {
                let recording = Arc::clone(&self.recording);
                let looked = tokio::task::spawn_blocking(move || recording.feed().activities(&pids)).await;
                Response::Activities(looked.unwrap_or_default())
            }
            Request::Stacks { deadline_ms, wanted } => {
                Box::pin(self.noted_stacks(&peer, until(deadline_ms), wanted, None, &cancelled)).await
            }
            Request::OpenCalls => Response::OpenCalls(self.recording.open_calls()),
            Request::Windows(windows) => match self.agent().filter(|_| peer.role == Role::Node) {
                Some(shared) => shared.standing.answer(peer.name.as_str(), &windows),
                None => Response::Unsupported("this node judges no jobs".into()),
            },
            Request::Verdict(job) => match self.agent().filter(|_| peer.role == Role::Node) {
                Some(shared) => Response::Verdict(standing::full_report(&shared, job)),
                None => Response::Unsupported("this node judges no jobs".into()),
            },
            Request::FarWindows { windows, has } => match self.agent().filter(|_| peer.role == Role::Node) {
                Some(shared) => shared.standing.answer_far(peer.name.as_str(), &windows, has),
                None => Response::Unsupported("this node judges no jobs".into()),
            },
            Request::Verdicts(jobs) => match self.agent().filter(|_| peer.role == Role::Node) {
                Some(shared) => Response::Verdicts(shared.standing.published(&jobs)),
                None => Response::Unsupported("this node judges no jobs".into()),
            },
            Request::Board { job, since_ns, known } => match self.agent().filter(|_| peer.role == Role::Node) {
                Some(shared) => Response::Board(standing::page(&shared, job, since_ns, known).map(Box::new)),
                None => Response::Unsupported("this node judges no jobs".into()),
            },
            Request::Health { deadline_ms, reach, of } => match self.agent().filter(|_| peer.role == Role::Node) {
                Some(shared) => Box::pin(super::health::answer(&shared, &reach, &of, until(deadline_ms).into())).await,
                None => Response::Unsupported("this node examines no others".into()),
            },
            Request::Trust => Response::Trust(self.trust.as_ref().map(|trust| trust.list()).unwrap_or_default()),
            Request::Renew { csr } => {
                let asking = Asking::new("mesh", peer.name.to_string(), peer.role.as_str(), "renew");
                let response = match &self.trust {
                    Some(trust) => Box::pin(trust.renew(peer.clone(), csr)).await,
                    None => Response::Unsupported("this node does not hold the mesh's CA".into()),
                };
                self.note(asking, &response);
                response
            }
            Request::Task { deadline_ms, task } => {
                self.noted_task(&peer, until(deadline_ms), task, None, out, cancelled).await
            }
            Request::RoundTask { deadline_ms, task, snapshot } => {
                self.noted_task(&peer, until(deadline_ms), task, Some(snapshot), out, cancelled).await
            }
            Request::Relay { deadline_ms, task, leaves } => {
                let request = leaf_request(deadline_ms, task, None);
                Box::pin(self.aggregated(&peer, request, leaves, None, out, cancelled)).await
            }
            Request::RoundRelay { deadline_ms, task, leaves, snapshot } => {
                let request = leaf_request(deadline_ms, task, Some(snapshot));
                Box::pin(self.aggregated(&peer, request, leaves, None, out, cancelled)).await
            }
            Request::Combine { deadline_ms, task, leaves, combine, snapshot } => {
                let request = leaf_request(deadline_ms, task, snapshot);
                Box::pin(self.aggregated(&peer, request, leaves, Some(combine), out, cancelled)).await
            }
            Request::Own { uid, request } => match Request::owned(uid, &request) {
                Some(Request::OpenCalls) => Response::OpenCalls(self.recording.open_calls_of(Some(uid))),
                Some(Request::Stacks { deadline_ms, wanted }) => {
                    Box::pin(self.noted_stacks(&peer, until(deadline_ms), wanted, Some(uid), &cancelled)).await
                }
                Some(task) => return Box::pin(self.handle(mesh, peer, task, out, cancelled)).await,
                None => Response::Unsupported("this cannot be asked for one user".into()),
            },
            Request::Release(question) => {
                self.executor.release(question);
                Response::Done(NodeStats::default())
            }
            Request::ReleaseBelow { question, leaves } => {
                Box::pin(release::to_leaves(mesh, &self.executor, question, leaves)).await;
                Response::Done(NodeStats::default())
            }
        };
        if let Err(error) = out.send(response).await {
            tracing::debug!("answering {}: {error}", peer.name);
        }
    }
}

/// A leaf that is no member, or not at the address that the member has, or named twice: whoever asks
/// does not choose whom this node calls, nor how often.
fn stranger(members: &[gossip::Member], leaves: &[Leaf]) -> Option<String> {
    if leaves.len() > members.len() {
        return Some(format!("one of {} leaves", leaves.len()));
    }
    let mut open: HashMap<&str, &gossip::Member> =
        members.iter().map(|member| (member.name.as_str(), member)).collect();
    let mut is_member = |leaf: &&Leaf| {
        let member = open.remove(leaf.node.as_str());
        member.is_some_and(|member| member.is_self || member.address == leaf.address)
    };
    leaves.iter().find(|leaf| !is_member(leaf)).map(|leaf| format!("{} at {}", leaf.node, leaf.address))
}

#[cfg(test)]
mod tests {
    use gossip::{Member, MemberState, NodeFacts};

    use super::*;

    #[test]
    fn an_aggregator_calls_members_only() {
        let address = |port| std::net::SocketAddr::from(([10, 0, 0, 1], port));
        let member = |name: &str, port, is_self| Member {
            name: name.to_owned(),
            address: address(port),
            generation: 1,
            state: MemberState::Live,
            facts: Arc::new(NodeFacts::default()),
            is_self,
            double: None,
            seat: gossip::Seat::default(),
        };
        let leaf = |node: &str, port| Leaf { node: node.to_owned(), address: address(port) };
        let members = [member("me", 1, true), member("a", 2, false)];
        assert_eq!(stranger(&members, &[leaf("a", 2), leaf("me", 9)]), None);
        let often = vec![leaf("a", 2); 100_000];
        for leaves in [vec![leaf("a", 2), leaf("a", 53)], vec![leaf("victim", 2)], vec![leaf("a", 2); 2], often] {
            assert!(stranger(&members, &leaves).is_some());
        }
    }
}
