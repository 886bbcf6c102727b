//! Finds the first calls of a communicator that do not belong together.
//!
//! All ranks make the collectives of a communicator in one order (MPI and NCCL require it), so the
//! calls of one position are one collective: of one function, with one root and one reduction, and,
//! where the function gives every rank as much, of one size.

use std::collections::BTreeMap;

use observed::{Coupling, Payload, hex};

use super::meeting::Meeting;
use super::people::{Comm, People, Who};
use super::{Difference, DifferentCall, Differing};

/// A call of a rank as it is compared.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Compared<'a> {
    func: &'a str,
    root: Option<i32>,
    payload: &'a Payload,
}

/// The first position of a communicator at which calls do not belong together; `inside` says at
/// which positions ranks still are.
pub(super) fn first(hash: u64, comm: &Comm<'_>, people: &People<'_>) -> Option<(Differing, u64)> {
    let mut made: BTreeMap<u64, BTreeMap<Who, Compared<'_>>> = BTreeMap::new();
    let mut inside: Vec<u64> = Vec::new();
    for member in &comm.members {
        for call in member.progress.into_iter().flat_map(|p| &p.recent) {
            let compared = Compared { func: &call.func, root: call.root, payload: &call.payload };
            made.entry(call.position).or_default().insert(member.who, compared);
        }
        for call in people.calls.get(&member.who).into_iter().flatten().filter(|call| call.comm_hash == Some(hash)) {
            let Some(position) = call.comm_seq else { continue };
            inside.push(position);
            // Who waits for a request has left the call that began it.
            if Meeting::of(&call.func) == Meeting::Wait {
                continue;
            }
            let compared = Compared { func: &call.func, root: call.root, payload: &call.payload };
            made.entry(position).or_default().insert(member.who, compared);
        }
        if people.syncing.contains_key(&member.who) {
            inside.extend(member.entered.and_then(|entered| entered.checked_sub(1)));
        }
    }
    // What all have left did them no harm, but for what is never allowed.
    let open = inside.into_iter().min()?;
    made.into_iter().find_map(|(position, calls)| {
        let difference = difference(&calls, position >= open)?;
        Some((differing(hash, position, difference, &calls, people), position))
    })
}

fn difference(calls: &BTreeMap<Who, Compared<'_>>, is_open: bool) -> Option<Difference> {
    let mut all = calls.values();
    let first = all.next()?;
    all.filter_map(|other| between(first, other, is_open)).min()
}

/// In what two calls of one position differ, where they may not.
fn between(a: &Compared<'_>, b: &Compared<'_>, is_open: bool) -> Option<Difference> {
    if a.func != b.func {
        return Some(Difference::Function);
    }
    let func = a.func.strip_prefix('i').filter(|of| Coupling::of(of) != Coupling::Other).unwrap_or(a.func);
    let rooted = matches!(Coupling::of(func), Coupling::RootSends | Coupling::RootReceives);
    // Below 0 are roots of communicators between two groups.
    if let (Some(a), Some(b)) = (a.root, b.root)
        && rooted
        && a != b
        && a >= 0
        && b >= 0
    {
        return Some(Difference::Root);
    }
    let reduces = func.contains("reduce");
    let differ = |a: &Option<std::sync::Arc<str>>, b: &Option<std::sync::Arc<str>>| {
        a.as_ref().zip(b.as_ref()).is_some_and(|(a, b)| a != b)
    };
    if reduces && differ(&a.payload.reduce_op, &b.payload.reduce_op) {
        return Some(Difference::ReduceOp);
    }
    if !is_open {
        return None;
    }
    if reduces && differ(&a.payload.datatype, &b.payload.datatype) {
        return Some(Difference::Datatype);
    }
    let sizes = a.payload.bytes.zip(b.payload.bytes).filter(|(a, b)| a != b)?;
    let alike = match func {
        "all_reduce" | "allreduce" | "reduce" | "broadcast" | "bcast" | "reduce_scatter_block" => true,
        "reduce_scatter" => false,
        // In place a rank may give any size, mostly 0.
        "gather" | "all_gather" | "allgather" | "all_to_all" | "alltoall" => sizes.0 > 0 && sizes.1 > 0,
        _ => false,
    };
    alike.then_some(Difference::Size)
}

fn differing(
    hash: u64,
    position: u64,
    difference: Difference,
    calls: &BTreeMap<Who, Compared<'_>>,
    people: &People<'_>,
) -> Differing {
    // Calls that are alike in what does not matter are one.
    let key = |call: &Compared<'_>| {
        let text = |text: &Option<std::sync::Arc<str>>| text.as_ref().map(ToString::to_string);
        let (op, datatype) = (text(&call.payload.reduce_op), text(&call.payload.datatype));
        match difference {
            Difference::Function => (call.func.to_owned(), None, None, None, None),
            Difference::Root => (call.func.to_owned(), call.root, None, None, None),
            Difference::ReduceOp => (call.func.to_owned(), call.root, op, None, None),
            Difference::Datatype => (call.func.to_owned(), call.root, None, datatype, None),
            Difference::Size => (call.func.to_owned(), call.root, None, datatype, call.payload.bytes),
        }
    };
    let mut by_call: BTreeMap<_, Vec<Who>> = BTreeMap::new();
    calls.iter().for_each(|(who, call)| by_call.entry(key(call)).or_default().push(*who));
    let mut found: Vec<DifferentCall> = by_call
        .into_iter()
        .map(|((func, root, reduce_op, datatype, bytes), who)| DifferentCall {
            func,
            root,
            reduce_op,
            datatype,
            bytes,
            ranks: {
                let mut ranks: Vec<_> = who.into_iter().map(|who| people.refs[who].clone()).collect();
                ranks.sort();
                ranks
            },
            site: None,
        })
        .collect();
    found.sort_by_key(|call| (call.ranks.len(), call.ranks.first().cloned()));
    Differing { comm_hash: hex(hash), position, difference, calls: found }
}
