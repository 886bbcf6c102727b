//! Notices to nodes that a question is over, so that the snapshots they keep for it may go:
//! directly, or, where the question went through a tree, through its intermediate aggregators. A
//! node that does not get it gives its snapshot up when the question's time is over.

use std::time::{Duration, Instant};

use gossip::Seat;
use mesh::Mesh;
use model::wire::{Leaf, Request};

use super::exec::Executor;
use super::leaf::Target;
use super::tree::{aggregator_of, groups, leaves_of};

/// How long notices may take, and how many are sent at a time.
const PATIENCE: Duration = Duration::from_secs(10);
const AT_ONCE: usize = 32;

/// Sends it to `nodes`, none of which is this one; more than `tree_above` through some of them.
pub(super) async fn send(mesh: &Mesh, question: u128, nodes: Vec<Target>, tree_above: usize) {
    let until = Instant::now() + PATIENCE;
    let requests: Vec<(Target, Request)> = if nodes.len() > tree_above {
        let nodes: Vec<(usize, Target)> = nodes.into_iter().enumerate().collect();
        let groups = groups(&nodes.iter().map(|(at, to)| (*at, to.seat.cell)).collect::<Vec<_>>());
        let of_group = |group: Vec<usize>| {
            let group: Vec<_> = group.into_iter().filter_map(|at| nodes.get(at).cloned()).collect();
            let aggregator = aggregator_of(mesh.identity().node(), &group)?.clone();
            Some((aggregator, Request::ReleaseBelow { question, leaves: leaves_of(&group) }))
        };
        groups.into_iter().filter_map(of_group).collect()
    } else {
        nodes.into_iter().map(|to| (to, Request::Release(question))).collect()
    };
    send_all(mesh, requests, until).await;
}

/// Sends it to the leaves of an intermediate aggregator, which may be this node.
pub async fn to_leaves(mesh: &Mesh, executor: &Executor, question: u128, leaves: Vec<Leaf>) {
    let identity = mesh.identity();
    let until = Instant::now() + PATIENCE;
    let mut others = Vec::new();
    for Leaf { node, address } in leaves {
        match node.parse() {
            Ok(name) if name == *identity.node() => executor.release(question),
            Ok(name) => {
                others.push((Target { name, address, local: false, seat: Seat::default() }, Request::Release(question)))
            }
            Err(error) => tracing::debug!(%node, %error, "no name of a node"),
        }
    }
    send_all(mesh, others, until).await;
}

async fn send_all(mesh: &Mesh, requests: Vec<(Target, Request)>, until: Instant) {
    let requests = requests.into_iter().map(|(to, request)| async move {
        if let Ok(mut answer) = mesh.ask(&to.name, to.address, request, until.into()).await {
            let _ = answer.next().await;
        }
    });
    futures::StreamExt::for_each_concurrent(futures::stream::iter(requests), AT_ONCE, |request| request).await;
}
