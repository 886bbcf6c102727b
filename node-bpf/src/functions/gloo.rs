//! gloo's functions (`gloo/allreduce.h` and its like). Their arguments are the words of their
//! options; where else something is in these says `crate::gloo`.

use super::function::{Api, Comm, Function, Role, state};

pub(super) static FUNCTIONS: &[Function] = &[
    collective(&["_ZN4gloo9allreduceERKNS_16AllreduceOptionsE"], "all_reduce", (Some(10), Some(11), None)),
    collective(&["_ZN4gloo9allgatherERNS_16AllgatherOptionsE"], "all_gather", (None, Some(4), None)),
    collective(&["_ZN4gloo10allgathervERNS_17AllgathervOptionsE"], "all_gather_v", (None, Some(7), None)),
    collective(&["_ZN4gloo8alltoallERNS_15AlltoallOptionsE"], "all_to_all", (None, Some(4), None)),
    collective(&["_ZN4gloo9alltoallvERNS_16AlltoallvOptionsE"], "all_to_all_v", (None, None, None)),
    collective(&["_ZN4gloo7barrierERNS_14BarrierOptionsE"], "barrier", (None, None, None)),
    collective(&["_ZN4gloo9broadcastERNS_16BroadcastOptionsE"], "broadcast", (Some(4), Some(5), Some(6))),
    collective(&["_ZN4gloo6gatherERNS_13GatherOptionsE"], "gather", (None, Some(4), Some(5))),
    collective(&["_ZN4gloo7gathervERNS_14GathervOptionsE"], "gather_v", (None, Some(7), Some(8))),
    collective(&["_ZN4gloo6reduceERNS_13ReduceOptionsE"], "reduce", (Some(4), Some(5), Some(6))),
    collective(&["_ZN4gloo7scatterERNS_14ScatterOptionsE"], "scatter", (None, Some(6), Some(7))),
    // The second takes its store by the address of a std::shared_ptr.
    change(&["_ZN4gloo10rendezvous7Context15connectFullMeshERNS0_5StoreERSt10shared_ptrINS_9transport6DeviceEE"]),
    change(&["_ZN4gloo10rendezvous7Context15connectFullMeshESt10shared_ptrINS0_5StoreEERS2_INS_9transport6DeviceEE"]),
    Function {
        role: Role::GlooGone,
        name: "context_gone",
        ..change(&["_ZN4gloo7ContextD2Ev", "_ZN4gloo7ContextD1Ev"])
    },
];

/// A collective: the words of its options with the number of elements, the bytes of one, and the
/// root. The communicator is the first word.
const fn collective(
    symbols: &'static [&'static str],
    name: &'static str,
    (count, datatype, root): (Option<u8>, Option<u8>, Option<u8>),
) -> Function {
    Function { api: Api::Gloo, comm: Comm::At(0), count, datatype, root, ..state(symbols, name, Role::Call, 12) }
}

/// Where a communicator begins.
const fn change(symbols: &'static [&'static str]) -> Function {
    Function { api: Api::Gloo, ..state(symbols, "connect", Role::GlooConnect, 0) }
}
