//! Telling nodes that a question is over, so that the snapshots they keep for it may go: directly, or, where the question went
//! through a tree, through its intermediate aggregators. Who does not hear it gives its snapshot up when the question's time is over.

use std::time::{Duration, Instant};

use mesh::Mesh;
use model::wire::{Leaf, Request};

use super::exec::Executor;
use super::leaf::Target;
use super::tree::{aggregator_of, groups, leaves_of};

/// How long nodes are told, and how many at a time.
const PATIENCE: Duration = Duration::from_secs(10);
const AT_ONCE: usize = 32;

/// Tells `nodes`, none of which is this one; more than `tree_above` through some of them.
pub(super) async fn tell(mesh: &Mesh, question: u128, nodes: Vec<Target>, tree_above: usize) {
    let until = Instant::now() + PATIENCE;
    let told: Vec<(Target, Request)> = if nodes.len() > tree_above {
        let nodes: Vec<(usize, Target)> = nodes.into_iter().enumerate().collect();
        let groups = groups((0..nodes.len()).collect());
        let of_group = |group: Vec<usize>| {
            let group: Vec<_> = group.into_iter().filter_map(|at| nodes.get(at).cloned()).collect();
            let inner = aggregator_of(mesh.identity().node(), &group)?.clone();
            Some((inner, Request::ReleaseBelow { question, leaves: leaves_of(&group) }))
        };
        groups.into_iter().filter_map(of_group).collect()
    } else {
        nodes.into_iter().map(|to| (to, Request::Release(question))).collect()
    };
    tell_all(mesh, told, until).await;
}

/// Tells the leaves of an intermediate aggregator, which may be this node.
pub async fn below(mesh: &Mesh, executor: &Executor, question: u128, leaves: Vec<Leaf>) {
    let identity = mesh.identity();
    let until = Instant::now() + PATIENCE;
    let mut others = Vec::new();
    for Leaf { node, address } in leaves {
        match node.parse() {
            Ok(name) if name == *identity.node() => executor.release(question),
            Ok(name) => others.push((Target { name, address, local: false }, Request::Release(question))),
            Err(error) => tracing::debug!(%node, %error, "no name of a node"),
        }
    }
    tell_all(mesh, others, until).await;
}

async fn tell_all(mesh: &Mesh, told: Vec<(Target, Request)>, until: Instant) {
    let told = told.into_iter().map(|(to, request)| async move {
        if let Ok(mut answer) = mesh.ask(&to.name, to.address, request, until.into()).await {
            let _ = answer.next().await;
        }
    });
    futures::StreamExt::for_each_concurrent(futures::stream::iter(told), AT_ONCE, |told| told).await;
}
