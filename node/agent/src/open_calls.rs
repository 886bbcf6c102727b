//! A call that a rank is in, as a node reports it, made into what the analysis takes.

use std::sync::Arc;

use model::wire::OpenCall;
use verdicts::{InCall, Payload};

use super::device;

/// An open call as the analysis takes it; none of a wait for a device.
pub(super) fn in_call(node: &Arc<str>, call: &OpenCall) -> Option<InCall> {
    (call.library != device::LIBRARY).then(|| InCall {
        node: Arc::clone(node),
        pid: call.pid.into(),
        func: call.func.as_str().into(),
        comm_hash: call.comm_hash,
        rank: call.rank,
        nranks: call.nranks,
        comm_seq: call.comm_seq,
        root: call.root,
        tag: call.tag,
        payload: Payload {
            bytes: call.bytes,
            datatype: call.datatype.as_deref().map(Arc::from),
            reduce_op: call.reduce_op.as_deref().map(Arc::from),
        },
        since_ns: call.entry_ns,
    })
}
