//! A call that a rank is in, as a node reports it, made into what the analysis takes.

use std::sync::Arc;

use model::wire::OpenCall;
use verdicts::Observation;

/// An open call as the analysis takes it; none when it cannot be matched across ranks.
pub(super) fn observed(node: &Arc<str>, call: OpenCall) -> Option<Observation> {
    Some(Observation {
        node: Arc::clone(node),
        pid: call.pid.into(),
        rank: call.rank?,
        nranks: call.nranks,
        comm_hash: call.comm_hash?,
        func: call.func.into(),
        seq: call.seq?,
        entry_ns: call.entry_ns,
        duration_ns: 0,
        tier: call.tier,
        library: call.library.into(),
        root: call.root,
    })
}
