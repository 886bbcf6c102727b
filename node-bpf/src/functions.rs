//! The functions that are probed: their symbols, the positions of their arguments, and the cookie
//! for the BPF programs. The index in [`FUNCTIONS`] is the statistics slot. Signatures: NCCL's user
//! guide ("NCCL API") and the MPI standard's C bindings. `symbols` finds the symbols in a file.

/// The effect of a function on the state in the kernel (`enum rm_role`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Call = 0,
    InitRank = 1,
    InitScalable = 2,
    InitAll = 3,
    Split = 4,
    Destroy = 5,
    UniqueId = 6,
    MpiInit = 7,
    Child = 8,
    GroupStart = 9,
    GroupEnd = 10,
    GlooConnect = 20,
    GlooGone = 21,
}

/// Whose API a function belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Api {
    Nccl,
    Mpi,
    /// Its functions' arguments are the words of their options (`gloo`).
    Gloo,
}

/// One probed function. Argument positions count from 0.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Function {
    pub(crate) api: Api,
    /// Its names; those that share an address are attached once.
    pub(crate) symbols: &'static [&'static str],
    /// `Collective::func`; of functions that make no records, a name for the statistics.
    pub(crate) name: &'static str,
    pub(crate) role: Role,
    /// How many arguments are recorded.
    pub(crate) args: u8,
    pub(crate) comm: Option<u8>,
    pub(crate) count: Option<u8>,
    pub(crate) datatype: Option<u8>,
    pub(crate) op: Option<u8>,
    pub(crate) root: Option<u8>,
    pub(crate) stream: Option<u8>,
}

const NONE: Function = Function {
    api: Api::Nccl,
    symbols: &[],
    name: "",
    role: Role::Call,
    args: 0,
    comm: None,
    count: None,
    datatype: None,
    op: None,
    root: None,
    stream: None,
};

/// A NCCL collective whose positions are count, datatype and comm; its stream follows the
/// communicator.
const fn nccl(symbols: &'static [&'static str], name: &'static str, count: u8, comm: u8) -> Function {
    Function {
        symbols,
        name,
        args: comm + 2,
        comm: Some(comm),
        count: Some(count),
        datatype: Some(count + 1),
        stream: Some(comm + 1),
        ..NONE
    }
}

const fn state(symbols: &'static [&'static str], name: &'static str, role: Role, args: u8) -> Function {
    Function { symbols, name, role, args, ..NONE }
}

/// An MPI call; `count` 0 means it has none (position 0 is always a buffer).
const fn mpi(symbols: &'static [&'static str], name: &'static str, count: u8, datatype: u8, comm: u8) -> Function {
    Function {
        api: Api::Mpi,
        symbols,
        name,
        args: comm + 1,
        comm: Some(comm),
        count: if count == 0 { None } else { Some(count) },
        datatype: if datatype == 0 { None } else { Some(datatype) },
        ..NONE
    }
}

/// An MPI call that waits for operations begun before; it names no communicator.
const fn wait(symbols: &'static [&'static str], name: &'static str) -> Function {
    Function { api: Api::Mpi, ..state(symbols, name, Role::Call, 0) }
}

/// One that makes a communicator of another; `at` is the argument with its address.
const fn child(symbols: &'static [&'static str], name: &'static str, at: u8) -> Function {
    Function { comm: Some(at), ..state(symbols, name, Role::Child, 6) }
}

/// A collective of gloo: the words of its options with the number of elements, the bytes of one,
/// and the root. The communicator is the first word.
const fn gloo(
    symbols: &'static [&'static str],
    name: &'static str,
    (count, datatype, root): (Option<u8>, Option<u8>, Option<u8>),
) -> Function {
    Function { api: Api::Gloo, comm: Some(0), count, datatype, root, ..state(symbols, name, Role::Call, 12) }
}

/// Where a communicator of gloo begins.
const fn gloo_change(symbols: &'static [&'static str]) -> Function {
    Function { api: Api::Gloo, ..state(symbols, "connect", Role::GlooConnect, 0) }
}

/// One-sided: count and datatype where it moves data.
const fn one_sided(symbols: &'static [&'static str], name: &'static str, count: Option<u8>, comm: u8) -> Function {
    let datatype = match count {
        Some(at) => Some(at + 1),
        None => None,
    };
    Function { count, datatype, ..nccl(symbols, name, 0, comm) }
}

const fn op(at: u8, function: Function) -> Function {
    Function { op: Some(at), ..function }
}

const fn root(at: u8, function: Function) -> Function {
    Function { root: Some(at), ..function }
}

/// All of them. At most `RM_SLOT_OFFCPU`. Those of one name in one API count their calls together.
pub(crate) static FUNCTIONS: &[Function] = &[
    op(4, nccl(&["ncclAllReduce", "pncclAllReduce"], "all_reduce", 2, 5)),
    root(4, nccl(&["ncclBroadcast", "pncclBroadcast"], "broadcast", 2, 5)),
    root(3, nccl(&["ncclBcast", "pncclBcast"], "broadcast", 1, 4)),
    op(4, root(5, nccl(&["ncclReduce", "pncclReduce"], "reduce", 2, 6))),
    nccl(&["ncclAllGather", "pncclAllGather"], "all_gather", 2, 4),
    op(4, nccl(&["ncclReduceScatter", "pncclReduceScatter"], "reduce_scatter", 2, 5)),
    root(3, nccl(&["ncclSend", "pncclSend"], "send", 1, 4)),
    root(3, nccl(&["ncclRecv", "pncclRecv"], "recv", 1, 4)),
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
        comm: Some(7),
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
    op(4, mpi(&["MPI_Allreduce", "PMPI_Allreduce"], "all_reduce", 2, 3, 5)),
    root(3, mpi(&["MPI_Bcast", "PMPI_Bcast"], "broadcast", 1, 2, 4)),
    op(4, root(5, mpi(&["MPI_Reduce", "PMPI_Reduce"], "reduce", 2, 3, 6))),
    mpi(&["MPI_Allgather", "PMPI_Allgather"], "all_gather", 1, 2, 6),
    mpi(&["MPI_Allgatherv", "PMPI_Allgatherv"], "all_gather_v", 1, 2, 7),
    mpi(&["MPI_Alltoall", "PMPI_Alltoall"], "all_to_all", 1, 2, 6),
    mpi(&["MPI_Alltoallv", "PMPI_Alltoallv"], "all_to_all_v", 0, 3, 8),
    mpi(&["MPI_Barrier", "PMPI_Barrier"], "barrier", 0, 0, 0),
    op(4, mpi(&["MPI_Reduce_scatter", "PMPI_Reduce_scatter"], "reduce_scatter", 0, 3, 5)),
    op(4, mpi(&["MPI_Reduce_scatter_block", "PMPI_Reduce_scatter_block"], "reduce_scatter_block", 2, 3, 5)),
    mpi(&["MPI_Alltoallw", "PMPI_Alltoallw"], "all_to_all_w", 0, 0, 8),
    root(6, mpi(&["MPI_Gather", "PMPI_Gather"], "gather", 1, 2, 7)),
    root(7, mpi(&["MPI_Gatherv", "PMPI_Gatherv"], "gather_v", 1, 2, 8)),
    root(6, mpi(&["MPI_Scatter", "PMPI_Scatter"], "scatter", 4, 5, 7)),
    root(7, mpi(&["MPI_Scatterv", "PMPI_Scatterv"], "scatter_v", 5, 6, 8)),
    op(4, mpi(&["MPI_Scan", "PMPI_Scan"], "scan", 2, 3, 5)),
    op(4, mpi(&["MPI_Exscan", "PMPI_Exscan"], "exscan", 2, 3, 5)),
    root(3, mpi(&["MPI_Send", "PMPI_Send"], "send", 1, 2, 5)),
    root(3, mpi(&["MPI_Ssend", "PMPI_Ssend"], "ssend", 1, 2, 5)),
    root(3, mpi(&["MPI_Recv", "PMPI_Recv"], "recv", 1, 2, 5)),
    root(3, mpi(&["MPI_Sendrecv", "PMPI_Sendrecv"], "send_recv", 1, 2, 10)),
    root(3, mpi(&["MPI_Rsend", "PMPI_Rsend"], "rsend", 1, 2, 5)),
    root(3, mpi(&["MPI_Sendrecv_replace", "PMPI_Sendrecv_replace"], "send_recv_replace", 1, 2, 7)),
    root(0, mpi(&["MPI_Probe", "PMPI_Probe"], "probe", 0, 0, 2)),
    root(0, mpi(&["MPI_Mprobe", "PMPI_Mprobe"], "mprobe", 0, 0, 2)),
    mpi(&["MPI_Neighbor_allgather", "PMPI_Neighbor_allgather"], "neighbor_all_gather", 1, 2, 6),
    mpi(&["MPI_Neighbor_allgatherv", "PMPI_Neighbor_allgatherv"], "neighbor_all_gather_v", 1, 2, 7),
    mpi(&["MPI_Neighbor_alltoall", "PMPI_Neighbor_alltoall"], "neighbor_all_to_all", 1, 2, 6),
    mpi(&["MPI_Neighbor_alltoallv", "PMPI_Neighbor_alltoallv"], "neighbor_all_to_all_v", 0, 3, 8),
    mpi(&["MPI_Neighbor_alltoallw", "PMPI_Neighbor_alltoallw"], "neighbor_all_to_all_w", 0, 0, 8),
    wait(&["MPI_Wait", "PMPI_Wait"], "wait"),
    wait(&["MPI_Waitall", "PMPI_Waitall"], "wait_all"),
    wait(&["MPI_Waitany", "PMPI_Waitany"], "wait_any"),
    wait(&["MPI_Waitsome", "PMPI_Waitsome"], "wait_some"),
    wait(&["MPI_Win_fence", "PMPI_Win_fence"], "win_fence"),
    wait(&["MPI_Win_complete", "PMPI_Win_complete"], "win_complete"),
    wait(&["MPI_Win_wait", "PMPI_Win_wait"], "win_wait"),
    wait(&["MPI_Win_unlock", "PMPI_Win_unlock"], "win_unlock"),
    wait(&["MPI_Win_flush", "PMPI_Win_flush"], "win_flush"),
    gloo(&["_ZN4gloo9allreduceERKNS_16AllreduceOptionsE"], "all_reduce", (Some(10), Some(11), None)),
    gloo(&["_ZN4gloo9allgatherERNS_16AllgatherOptionsE"], "all_gather", (None, Some(4), None)),
    gloo(&["_ZN4gloo10allgathervERNS_17AllgathervOptionsE"], "all_gather_v", (None, Some(7), None)),
    gloo(&["_ZN4gloo8alltoallERNS_15AlltoallOptionsE"], "all_to_all", (None, Some(4), None)),
    gloo(&["_ZN4gloo9alltoallvERNS_16AlltoallvOptionsE"], "all_to_all_v", (None, None, None)),
    gloo(&["_ZN4gloo7barrierERNS_14BarrierOptionsE"], "barrier", (None, None, None)),
    gloo(&["_ZN4gloo9broadcastERNS_16BroadcastOptionsE"], "broadcast", (Some(4), Some(5), Some(6))),
    gloo(&["_ZN4gloo6gatherERNS_13GatherOptionsE"], "gather", (None, Some(4), Some(5))),
    gloo(&["_ZN4gloo7gathervERNS_14GathervOptionsE"], "gather_v", (None, Some(7), Some(8))),
    gloo(&["_ZN4gloo6reduceERNS_13ReduceOptionsE"], "reduce", (Some(4), Some(5), Some(6))),
    gloo(&["_ZN4gloo7scatterERNS_14ScatterOptionsE"], "scatter", (None, Some(6), Some(7))),
    // The second takes its store by the address of a std::shared_ptr.
    gloo_change(&["_ZN4gloo10rendezvous7Context15connectFullMeshERNS0_5StoreERSt10shared_ptrINS_9transport6DeviceEE"]),
    gloo_change(&[
        "_ZN4gloo10rendezvous7Context15connectFullMeshESt10shared_ptrINS0_5StoreEERS2_INS_9transport6DeviceEE",
    ]),
    Function {
        role: Role::GlooGone,
        name: "context_gone",
        ..gloo_change(&["_ZN4gloo7ContextD2Ev", "_ZN4gloo7ContextD1Ev"])
    },
    Function { api: Api::Mpi, ..state(&["MPI_Init", "PMPI_Init"], "init", Role::MpiInit, 2) },
    Function { api: Api::Mpi, ..state(&["MPI_Init_thread", "PMPI_Init_thread"], "init_thread", Role::MpiInit, 4) },
];

/// The flag of the cookie of gloo's functions, `RM_COOKIE_GLOO`; the others (`RM_COOKIE_…`):
pub(crate) const COOKIE_GLOO: u8 = 0x80;
pub(crate) const COOKIE_HASH_MIX: u8 = 1;
pub(crate) const COOKIE_MPI: u8 = 2;
pub(crate) const COOKIE_RCCL: u8 = 4;
pub(crate) const COOKIE_SPLIT_TEXT: u8 = 8;
pub(crate) const COOKIE_P2P: u8 = 0x40;

/// Calls between two ranks, by name: under load their rows are left out first (`shedding`).
const POINT_TO_POINT: &[&str] = &[
    "send",
    "ssend",
    "rsend",
    "recv",
    "send_recv",
    "send_recv_replace",
    "probe",
    "mprobe",
    "wait",
    "wait_all",
    "wait_any",
    "wait_some",
    "put_signal",
    "signal",
    "wait_signal",
];

pub(crate) const NO_ARG: u8 = 0xff;

/// The cookie of a function's probe for the BPF programs.
pub(crate) fn cookie(index: usize, file_flags: u8) -> u64 {
    let Some(function) = FUNCTIONS.get(index) else {
        return 0;
    };
    let p2p = function.role as u8 == Role::Call as u8 && POINT_TO_POINT.contains(&function.name);
    let of_api = match function.api {
        Api::Nccl => 0,
        Api::Mpi => COOKIE_MPI,
        Api::Gloo => COOKIE_GLOO,
    };
    let flags = file_flags | of_api | if p2p { COOKIE_P2P } else { 0 };
    let comm = function.comm.unwrap_or(NO_ARG);
    let stream = function.stream.unwrap_or(NO_ARG);
    u64::from_le_bytes([index as u8, function.role as u8, function.args, comm, flags, counter(function), stream, 0])
}

/// Which of a communicator's counters counts a function: those of one name share one. Other than
/// calls, and calls without a communicator, have none.
fn counter(function: &Function) -> u8 {
    let mut names: Vec<&str> = vec![];
    let counted = |f: &&Function| f.api == function.api && f.role as u8 == Role::Call as u8 && f.comm.is_some();
    for other in FUNCTIONS.iter().filter(counted) {
        if !names.contains(&other.name) {
            names.push(other.name);
        }
    }
    names.iter().position(|name| *name == function.name).map_or(NO_ARG, |at| at as u8)
}

/// NCCL's datatypes: name and bytes.
pub(crate) fn nccl_datatype(value: i32) -> Option<(&'static str, u64)> {
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
pub(crate) fn nccl_op(value: i32) -> Option<&'static str> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{MAX_ARGS, SLOT_OFFCPU};

    #[test]
    fn every_position_is_among_the_recorded_arguments() {
        assert!(FUNCTIONS.len() <= usize::from(SLOT_OFFCPU));
        for f in FUNCTIONS {
            assert!(!f.symbols.is_empty() && usize::from(f.args) <= MAX_ARGS, "{}", f.name);
            for at in [f.comm, f.count, f.datatype, f.op, f.root, f.stream].into_iter().flatten() {
                assert!(at < f.args, "{}: argument {at} of {}", f.name, f.args);
            }
        }
    }

    #[test]
    fn the_cookie_of_nccl_all_reduce() {
        assert_eq!(cookie(0, COOKIE_HASH_MIX), 0x06_00_01_05_07_00_00);
    }

    #[test]
    fn names_of_one_operation_count_together() {
        let counts_as = |symbol: &str| {
            let index = FUNCTIONS.iter().position(|f| f.symbols.contains(&symbol)).unwrap();
            cookie(index, 0).to_le_bytes()[5]
        };
        assert_eq!(counts_as("ncclBcast"), counts_as("ncclBroadcast"));
        assert_eq!(counts_as("ncclAllReduceConfig"), counts_as("ncclAllReduce"));
        assert_ne!(counts_as("MPI_Allreduce"), counts_as("MPI_Bcast"));
        assert_eq!(counts_as("ncclCommDestroy"), NO_ARG);
        assert_eq!(counts_as("MPI_Wait"), NO_ARG, "it has no communicator that could count it");
        let calls = FUNCTIONS.iter().filter(|f| f.role as u8 == Role::Call as u8 && f.comm.is_some());
        assert!(calls.map(counter).all(|counter| counter < 32), "RM_COUNTERS is 32");
    }

    #[test]
    fn no_symbol_twice() {
        let mut all: Vec<&str> = FUNCTIONS.iter().flat_map(|f| f.symbols).copied().collect();
        let n = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), n);
    }
}
