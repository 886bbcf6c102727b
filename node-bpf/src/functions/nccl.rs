//! NCCL's and RCCL's functions, and their datatypes and reductions. Signatures: NCCL's user guide
//! ("NCCL API").

use super::function::{Comm, Function, NONE, Role, op, point_to_point, root, state};

/// A NCCL collective whose positions are count, datatype and comm; its stream follows the
/// communicator.
const fn nccl(symbols: &'static [&'static str], name: &'static str, count: u8, comm: u8) -> Function {
    Function {
        symbols,
        name,
        args: comm + 2,
        comm: Comm::At(comm),
        count: Some(count),
        datatype: Some(count + 1),
        stream: Some(comm + 1),
        ..NONE
    }
}

/// One that makes a communicator of another; `at` is the argument with its address.
const fn child(symbols: &'static [&'static str], name: &'static str, at: u8) -> Function {
    Function { comm: Comm::At(at), ..state(symbols, name, Role::Child, 6) }
}

/// One-sided: count and datatype where it moves data.
const fn one_sided(symbols: &'static [&'static str], name: &'static str, count: Option<u8>, comm: u8) -> Function {
    let datatype = match count {
        Some(at) => Some(at + 1),
        None => None,
    };
    point_to_point(Function { count, datatype, ..nccl(symbols, name, 0, comm) })
}

pub(super) const FUNCTIONS: &[Function] = &[
    op(4, nccl(&["ncclAllReduce", "pncclAllReduce"], "all_reduce", 2, 5)),
    root(4, nccl(&["ncclBroadcast", "pncclBroadcast"], "broadcast", 2, 5)),
    root(3, nccl(&["ncclBcast", "pncclBcast"], "broadcast", 1, 4)),
    op(4, root(5, nccl(&["ncclReduce", "pncclReduce"], "reduce", 2, 6))),
    nccl(&["ncclAllGather", "pncclAllGather"], "all_gather", 2, 4),
    op(4, nccl(&["ncclReduceScatter", "pncclReduceScatter"], "reduce_scatter", 2, 5)),
    root(3, point_to_point(nccl(&["ncclSend", "pncclSend"], "send", 1, 4))),
    root(3, point_to_point(nccl(&["ncclRecv", "pncclRecv"], "recv", 1, 4))),
    // NCCL 2.28 spells it AlltoAll, RCCL AllToAll
    nccl(&["ncclAlltoAll", "pncclAlltoAll", "ncclAllToAll", "pncclAllToAll"], "all_to_all", 2, 4),
    root(4, nccl(&["ncclGather", "pncclGather"], "gather", 2, 5)),
    root(4, nccl(&["ncclScatter", "pncclScatter"], "scatter", 2, 5)),
    // NCCL 2.31: a configuration follows the stream
    op(4, nccl(&["ncclAllReduceConfig", "pncclAllReduceConfig"], "all_reduce", 2, 5)),
    root(4, nccl(&["ncclBroadcastConfig", "pncclBroadcastConfig"], "broadcast", 2, 5)),
    op(4, root(5, nccl(&["ncclReduceConfig", "pncclReduceConfig"], "reduce", 2, 6))),
    nccl(&["ncclAllGatherConfig", "pncclAllGatherConfig"], "all_gather", 2, 4),
    op(4, nccl(&["ncclReduceScatterConfig", "pncclReduceScatterConfig"], "reduce_scatter", 2, 5)),
    nccl(&["ncclAlltoAllConfig", "pncclAlltoAllConfig"], "all_to_all", 2, 4),
    root(4, nccl(&["ncclGatherConfig", "pncclGatherConfig"], "gather", 2, 5)),
    root(4, nccl(&["ncclScatterConfig", "pncclScatterConfig"], "scatter", 2, 5)),
    // RCCL's own: counts are arrays; a bias is added after the reduction
    Function {
        comm: Comm::At(7),
        datatype: Some(6),
        stream: Some(8),
        ..state(&["ncclAllToAllv", "pncclAllToAllv"], "all_to_all_v", Role::Call, 9)
    },
    op(4, nccl(&["ncclAllReduceWithBias", "pncclAllReduceWithBias"], "all_reduce", 2, 5)),
    root(3, one_sided(&["ncclPutSignal", "pncclPutSignal"], "put_signal", Some(1), 9)),
    root(0, one_sided(&["ncclSignal", "pncclSignal"], "signal", None, 4)),
    one_sided(&["ncclWaitSignal", "pncclWaitSignal"], "wait_signal", None, 2),
    state(&["ncclCommInitRank", "pncclCommInitRank"], "init_rank", Role::InitRank, 6),
    state(&["ncclCommInitRankConfig", "pncclCommInitRankConfig"], "init_rank_config", Role::InitRank, 6),
    state(&["ncclCommInitRankScalable", "pncclCommInitRankScalable"], "init_scalable", Role::InitScalable, 6),
    state(&["ncclCommInitAll", "pncclCommInitAll"], "init_all", Role::InitAll, 3),
    state(&["ncclGetUniqueId", "pncclGetUniqueId"], "unique_id", Role::UniqueId, 1),
    state(&["ncclCommSplit", "pncclCommSplit"], "comm_split", Role::Split, 5),
    state(&["ncclGroupStart", "pncclGroupStart"], "group_start", Role::GroupStart, 0),
    state(&["ncclGroupEnd", "pncclGroupEnd"], "group_end", Role::GroupEnd, 0),
    child(&["ncclCommShrink", "pncclCommShrink"], "comm_shrink", 3),
    child(&["ncclCommGrow", "pncclCommGrow"], "comm_grow", 4),
    state(&["ncclCommDestroy", "pncclCommDestroy"], "comm_destroy", Role::Destroy, 1),
    state(&["ncclCommAbort", "pncclCommAbort"], "comm_abort", Role::Destroy, 1),
];

/// NCCL's datatypes: name and bytes.
pub(crate) fn datatype(value: i32) -> Option<(&'static str, u64)> {
    Some(match value {
        0 => ("int8", 1),
        1 => ("uint8", 1),
        2 => ("int32", 4),
        3 => ("uint32", 4),
        4 => ("int64", 8),
        5 => ("uint64", 8),
        6 => ("float16", 2),
        7 => ("float32", 4),
        8 => ("float64", 8),
        9 => ("bfloat16", 2),
        10 => ("float8_e4m3", 1),
        11 => ("float8_e5m2", 1),
        _ => return None,
    })
}

/// NCCL's reductions; values from 5 on are made by the application (ncclRedOpCreatePreMulSum).
pub(crate) fn reduction(value: i32) -> Option<&'static str> {
    Some(match value {
        0 => "sum",
        1 => "prod",
        2 => "max",
        3 => "min",
        4 => "avg",
        5.. => "custom",
        _ => return None,
    })
}
