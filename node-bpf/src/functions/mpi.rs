//! MPI's functions. Signatures: the MPI standard's C bindings. What is known of the communicators
//! that they make: `bpf/identity.h`, whose numbers are repeated here.

use super::function::{Api, Comm, Function, Numbered, Role, op, point_to_point, root, state};

/// `enum rm_makes`.
const ONE: u8 = 0;
const COPY: u8 = 1;
pub(super) const BY_COLOUR: u8 = 2;
const BY_HOST: u8 = 3;
const BY_GROUP: u8 = 4;
const CART: u8 = 5;
const CART_PART: u8 = 6;
const ALONE: u8 = 7;
const OF_GROUP: u8 = 8;
const INTER: u8 = 9;
const NAMELESS: u8 = 10;

/// `enum rm_groups`.
const GROUP_OF_COMM: u8 = 0;
const GROUP_OF_REMOTE: u8 = 1;
const GROUP_INCL: u8 = 2;
const GROUP_EXCL: u8 = 3;
const GROUP_RANGE_INCL: u8 = 4;
const GROUP_RANGE_EXCL: u8 = 5;
const GROUP_UNION: u8 = 6;
const GROUP_INTERSECTION: u8 = 7;
const GROUP_DIFFERENCE: u8 = 8;
const GROUP_OF_SET: u8 = 9;
const GROUP_FREE: u8 = 10;

/// How requests are passed: argument 0 is the address of one; or their number, and argument 1 the
/// address of the first.
pub(crate) const REQUEST: u8 = 0;
pub(crate) const REQUESTS: u8 = 1;
/// So many, of which not all have ended when the call returns (`RM_REQUESTS_SOME`).
pub(crate) const REQUESTS_SOME: u8 = 2;

/// The two names of a function.
macro_rules! named {
    ($name:literal) => {
        &[concat!("MPI_", $name), concat!("PMPI_", $name)]
    };
}

/// Those of a function that also has a form with 64-bit counts (MPI 4): the same arguments, each in a
/// word (`symbols` notes it in the cookie).
macro_rules! counted {
    ($name:literal) => {
        &[concat!("MPI_", $name), concat!("PMPI_", $name), concat!("MPI_", $name, "_c"), concat!("PMPI_", $name, "_c")]
    };
}

/// The names of a call that makes a persistent collective: MPI 4's, and before these Open MPI's.
macro_rules! persistent {
    ($name:literal) => {
        &[
            concat!("MPI_", $name, "_init"),
            concat!("PMPI_", $name, "_init"),
            concat!("MPI_", $name, "_init_c"),
            concat!("PMPI_", $name, "_init_c"),
            concat!("MPIX_", $name, "_init"),
            concat!("PMPIX_", $name, "_init"),
        ]
    };
}

/// A call; `count` 0 means it has none (position 0 is always a buffer).
const fn mpi(symbols: &'static [&'static str], name: &'static str, count: u8, datatype: u8, comm: u8) -> Function {
    Function {
        api: Api::Mpi,
        comm: Comm::At(comm),
        count: if count == 0 { None } else { Some(count) },
        datatype: if datatype == 0 { None } else { Some(datatype) },
        ..state(symbols, name, Role::Call, comm + 1)
    }
}

/// A point-to-point call; its tag follows its peer, `root`.
const fn message(
    symbols: &'static [&'static str],
    name: &'static str,
    (count, datatype): (u8, u8),
    peer: u8,
    comm: u8,
) -> Function {
    let call = root(peer, point_to_point(mpi(symbols, name, count, datatype, comm)));
    Function { tag: Some(peer + 1), ..call }
}

/// A nonblocking collective: its request follows the communicator.
const fn begins(symbols: &'static [&'static str], name: &'static str, count: u8, datatype: u8, comm: u8) -> Function {
    Function {
        role: Role::MpiBegins,
        args: comm + 2,
        made_at: Some(comm + 1),
        ..mpi(symbols, name, count, datatype, comm)
    }
}

/// A call that waits for operations begun before; it names no communicator.
const fn wait(symbols: &'static [&'static str], name: &'static str) -> Function {
    point_to_point(Function { api: Api::Mpi, ..state(symbols, name, Role::Call, 0) })
}

const fn requests(kind: u8, function: Function) -> Function {
    Function { kind: Some(kind), args: if kind == REQUEST { 1 } else { 2 }, ..function }
}

/// A collective that makes a communicator (or a window) of communicator `comm` and puts its handle
/// where argument `made_at` says.
const fn makes(symbols: &'static [&'static str], name: &'static str, kind: u8, comm: u8, made_at: u8) -> Function {
    let last = if made_at > comm { made_at } else { comm };
    Function {
        api: Api::Mpi,
        comm: Comm::At(comm),
        kind: Some(kind),
        made_at: Some(made_at),
        ..state(symbols, name, Role::MpiMakes, last + 1)
    }
}

/// A persistent collective is made, which is a collective itself: `begins` is the nonblocking one that
/// each start is. Its request follows an info object behind the communicator.
const fn persists(symbols: &'static [&'static str], begins: &'static str, comm: u8) -> Function {
    let role = Role::MpiPersists;
    Function {
        role,
        args: comm + 3,
        made_at: Some(comm + 2),
        starts: Some(begins),
        ..mpi(symbols, PERSISTS, 0, 0, comm)
    }
}

/// Starts what is persistent.
const fn starts(symbols: &'static [&'static str], kind: u8) -> Function {
    unnumbered(requests(kind, Function { api: Api::Mpi, ..state(symbols, "start", Role::MpiStarts, 0) }))
}

/// A collective on an open file, argument 0.
const fn on_file(symbols: &'static [&'static str], name: &'static str, count: u8, datatype: u8) -> Function {
    Function { args: if datatype == 0 { 1 } else { datatype + 1 }, ..mpi(symbols, name, count, datatype, 0) }
}

const fn frees(symbols: &'static [&'static str], name: &'static str) -> Function {
    // its argument is the address of the handle
    Function { api: Api::Mpi, comm: Comm::At(0), ..state(symbols, name, Role::MpiFree, 1) }
}

const fn group(symbols: &'static [&'static str], kind: u8, made_at: u8) -> Function {
    let comm = if kind == GROUP_OF_COMM || kind == GROUP_OF_REMOTE { Comm::At(0) } else { Comm::None };
    let of_mpi = state(symbols, "group", Role::MpiGroup, made_at + 1);
    Function { api: Api::Mpi, comm, kind: Some(kind), made_at: Some(made_at), numbered: Numbered::No, ..of_mpi }
}

/// One that only some ranks of the communicator make, or that is not matched by numbers.
const fn unnumbered(function: Function) -> Function {
    Function { numbered: Numbered::No, ..function }
}

/// One name for all calls that make a persistent collective: they are counted together.
const PERSISTS: &str = "collective_init";

/// No function: a row that says that a process is a member of a communicator it has just made
/// (`RM_COMM_BEGINS`).
pub(super) const COMM_BEGIN: &str = "comm_begin";

/// No functions either: the messages that the requests of a wait are for (`crate::mpi::structures`).
pub(crate) const IRECV: &str = "irecv";
pub(crate) const ISEND: &str = "isend";

pub(super) const FUNCTIONS: &[Function] = &[
    unnumbered(mpi(&[], COMM_BEGIN, 0, 0, 0)),
    message(&[], IRECV, (1, 2), 3, 5),
    message(&[], ISEND, (1, 2), 3, 5),
    op(4, mpi(counted!("Allreduce"), "all_reduce", 2, 3, 5)),
    root(3, mpi(counted!("Bcast"), "broadcast", 1, 2, 4)),
    op(4, root(5, mpi(counted!("Reduce"), "reduce", 2, 3, 6))),
    mpi(counted!("Allgather"), "all_gather", 1, 2, 6),
    mpi(counted!("Allgatherv"), "all_gather_v", 1, 2, 7),
    mpi(counted!("Alltoall"), "all_to_all", 1, 2, 6),
    mpi(counted!("Alltoallv"), "all_to_all_v", 0, 3, 8),
    mpi(named!("Barrier"), "barrier", 0, 0, 0),
    op(4, mpi(counted!("Reduce_scatter"), "reduce_scatter", 0, 3, 5)),
    op(4, mpi(counted!("Reduce_scatter_block"), "reduce_scatter_block", 2, 3, 5)),
    mpi(counted!("Alltoallw"), "all_to_all_w", 0, 0, 8),
    root(6, mpi(counted!("Gather"), "gather", 1, 2, 7)),
    root(7, mpi(counted!("Gatherv"), "gather_v", 1, 2, 8)),
    root(6, mpi(counted!("Scatter"), "scatter", 4, 5, 7)),
    root(7, mpi(counted!("Scatterv"), "scatter_v", 5, 6, 8)),
    op(4, mpi(counted!("Scan"), "scan", 2, 3, 5)),
    op(4, mpi(counted!("Exscan"), "exscan", 2, 3, 5)),
    mpi(counted!("Neighbor_allgather"), "neighbor_all_gather", 1, 2, 6),
    mpi(counted!("Neighbor_allgatherv"), "neighbor_all_gather_v", 1, 2, 7),
    mpi(counted!("Neighbor_alltoall"), "neighbor_all_to_all", 1, 2, 6),
    mpi(counted!("Neighbor_alltoallv"), "neighbor_all_to_all_v", 0, 3, 8),
    mpi(counted!("Neighbor_alltoallw"), "neighbor_all_to_all_w", 0, 0, 8),
    op(4, begins(counted!("Iallreduce"), "iall_reduce", 2, 3, 5)),
    root(3, begins(counted!("Ibcast"), "ibroadcast", 1, 2, 4)),
    op(4, root(5, begins(counted!("Ireduce"), "ireduce", 2, 3, 6))),
    begins(counted!("Iallgather"), "iall_gather", 1, 2, 6),
    begins(counted!("Iallgatherv"), "iall_gather_v", 1, 2, 7),
    begins(counted!("Ialltoall"), "iall_to_all", 1, 2, 6),
    begins(counted!("Ialltoallv"), "iall_to_all_v", 0, 3, 8),
    begins(counted!("Ialltoallw"), "iall_to_all_w", 0, 0, 8),
    begins(named!("Ibarrier"), "ibarrier", 0, 0, 0),
    op(4, begins(counted!("Ireduce_scatter"), "ireduce_scatter", 0, 3, 5)),
    op(4, begins(counted!("Ireduce_scatter_block"), "ireduce_scatter_block", 2, 3, 5)),
    root(6, begins(counted!("Igather"), "igather", 1, 2, 7)),
    root(7, begins(counted!("Igatherv"), "igather_v", 1, 2, 8)),
    root(6, begins(counted!("Iscatter"), "iscatter", 4, 5, 7)),
    root(7, begins(counted!("Iscatterv"), "iscatter_v", 5, 6, 8)),
    op(4, begins(counted!("Iscan"), "iscan", 2, 3, 5)),
    op(4, begins(counted!("Iexscan"), "iexscan", 2, 3, 5)),
    begins(counted!("Ineighbor_allgather"), "ineighbor_all_gather", 1, 2, 6),
    begins(counted!("Ineighbor_allgatherv"), "ineighbor_all_gather_v", 1, 2, 7),
    begins(counted!("Ineighbor_alltoall"), "ineighbor_all_to_all", 1, 2, 6),
    begins(counted!("Ineighbor_alltoallv"), "ineighbor_all_to_all_v", 0, 3, 8),
    begins(counted!("Ineighbor_alltoallw"), "ineighbor_all_to_all_w", 0, 0, 8),
    message(counted!("Send"), "send", (1, 2), 3, 5),
    message(counted!("Ssend"), "ssend", (1, 2), 3, 5),
    message(counted!("Recv"), "recv", (1, 2), 3, 5),
    message(counted!("Sendrecv"), "send_recv", (1, 2), 8, 10),
    message(counted!("Rsend"), "rsend", (1, 2), 3, 5),
    message(counted!("Sendrecv_replace"), "send_recv_replace", (1, 2), 5, 7),
    message(named!("Probe"), "probe", (0, 0), 0, 2),
    message(named!("Mprobe"), "mprobe", (0, 0), 0, 2),
    wait(counted!("Mrecv"), "mrecv"),
    requests(REQUEST, wait(named!("Wait"), "wait")),
    requests(REQUESTS, wait(named!("Waitall"), "wait_all")),
    requests(REQUESTS_SOME, wait(named!("Waitany"), "wait_any")),
    requests(REQUESTS_SOME, wait(named!("Waitsome"), "wait_some")),
    makes(named!("Comm_dup"), "comm_dup", COPY, 0, 1),
    makes(named!("Comm_idup"), "comm_idup", COPY, 0, 1),
    makes(named!("Comm_dup_with_info"), "comm_dup_with_info", COPY, 0, 2),
    makes(named!("Comm_idup_with_info"), "comm_idup_with_info", COPY, 0, 2),
    makes(named!("Comm_split"), "comm_split", BY_COLOUR, 0, 3),
    makes(named!("Comm_split_type"), "comm_split_type", BY_HOST, 0, 4),
    makes(named!("Comm_create"), "comm_create", BY_GROUP, 0, 2),
    unnumbered(makes(named!("Comm_create_group"), "comm_create_group", ALONE, 0, 3)),
    unnumbered(Function {
        comm: Comm::None,
        ..makes(named!("Comm_create_from_group"), "comm_create_from_group", OF_GROUP, 0, 4)
    }),
    makes(named!("Cart_create"), "cart_create", CART, 0, 5),
    makes(named!("Cart_sub"), "cart_sub", CART_PART, 0, 2),
    makes(named!("Graph_create"), "graph_create", ONE, 0, 5),
    makes(named!("Dist_graph_create"), "dist_graph_create", ONE, 0, 8),
    makes(named!("Dist_graph_create_adjacent"), "dist_graph_create_adjacent", ONE, 0, 9),
    makes(named!("Intercomm_create"), "intercomm_create", INTER, 0, 5),
    makes(named!("Intercomm_merge"), "intercomm_merge", ONE, 0, 2),
    makes(named!("Comm_spawn"), "comm_spawn", NAMELESS, 5, 6),
    makes(named!("Comm_spawn_multiple"), "comm_spawn_multiple", NAMELESS, 6, 7),
    makes(named!("Comm_accept"), "comm_accept", NAMELESS, 3, 4),
    makes(named!("Comm_connect"), "comm_connect", NAMELESS, 3, 4),
    persists(persistent!("Allreduce"), "iall_reduce", 5),
    persists(persistent!("Bcast"), "ibroadcast", 4),
    persists(persistent!("Reduce"), "ireduce", 6),
    persists(persistent!("Allgather"), "iall_gather", 6),
    persists(persistent!("Allgatherv"), "iall_gather_v", 7),
    persists(persistent!("Alltoall"), "iall_to_all", 6),
    persists(persistent!("Alltoallv"), "iall_to_all_v", 8),
    persists(persistent!("Alltoallw"), "iall_to_all_w", 8),
    persists(persistent!("Barrier"), "ibarrier", 0),
    persists(persistent!("Reduce_scatter"), "ireduce_scatter", 5),
    persists(persistent!("Reduce_scatter_block"), "ireduce_scatter_block", 5),
    persists(persistent!("Gather"), "igather", 7),
    persists(persistent!("Gatherv"), "igather_v", 8),
    persists(persistent!("Scatter"), "iscatter", 7),
    persists(persistent!("Scatterv"), "iscatter_v", 8),
    persists(persistent!("Scan"), "iscan", 5),
    persists(persistent!("Exscan"), "iexscan", 5),
    persists(persistent!("Neighbor_allgather"), "ineighbor_all_gather", 6),
    persists(persistent!("Neighbor_allgatherv"), "ineighbor_all_gather_v", 7),
    persists(persistent!("Neighbor_alltoall"), "ineighbor_all_to_all", 6),
    persists(persistent!("Neighbor_alltoallv"), "ineighbor_all_to_all_v", 8),
    persists(persistent!("Neighbor_alltoallw"), "ineighbor_all_to_all_w", 8),
    starts(named!("Start"), REQUEST),
    starts(named!("Startall"), REQUESTS),
    unnumbered(Function { api: Api::Mpi, ..state(named!("Request_free"), "request_free", Role::MpiRequestFree, 1) }),
    frees(named!("Comm_free"), "comm_free"),
    frees(named!("Comm_disconnect"), "comm_disconnect"),
    makes(counted!("Win_create"), "win_create", COPY, 4, 5),
    makes(counted!("Win_allocate"), "win_allocate", COPY, 3, 5),
    makes(counted!("Win_allocate_shared"), "win_allocate_shared", COPY, 3, 5),
    makes(named!("Win_create_dynamic"), "win_create_dynamic", COPY, 1, 2),
    frees(named!("Win_free"), "win_free"),
    mpi(named!("Win_fence"), "win_fence", 0, 0, 1),
    unnumbered(mpi(named!("Win_post"), "win_post", 0, 0, 2)),
    unnumbered(mpi(named!("Win_start"), "win_start", 0, 0, 2)),
    unnumbered(mpi(named!("Win_complete"), "win_complete", 0, 0, 0)),
    unnumbered(mpi(named!("Win_wait"), "win_wait", 0, 0, 0)),
    root(1, unnumbered(mpi(named!("Win_lock"), "win_lock", 0, 0, 3))),
    unnumbered(mpi(named!("Win_lock_all"), "win_lock_all", 0, 0, 1)),
    root(0, unnumbered(mpi(named!("Win_unlock"), "win_unlock", 0, 0, 1))),
    unnumbered(mpi(named!("Win_unlock_all"), "win_unlock_all", 0, 0, 0)),
    root(0, unnumbered(mpi(named!("Win_flush"), "win_flush", 0, 0, 1))),
    unnumbered(mpi(named!("Win_flush_all"), "win_flush_all", 0, 0, 0)),
    makes(named!("File_open"), "file_open", COPY, 0, 4),
    frees(named!("File_close"), "file_close"),
    on_file(named!("File_set_view"), "file_set_view", 0, 0),
    on_file(named!("File_set_size"), "file_set_size", 0, 0),
    on_file(named!("File_preallocate"), "file_preallocate", 0, 0),
    on_file(named!("File_set_atomicity"), "file_set_atomicity", 0, 0),
    on_file(named!("File_sync"), "file_sync", 0, 0),
    on_file(named!("File_read_all"), "file_read_all", 2, 3),
    on_file(named!("File_write_all"), "file_write_all", 2, 3),
    on_file(named!("File_read_at_all"), "file_read_at_all", 3, 4),
    on_file(named!("File_write_at_all"), "file_write_at_all", 3, 4),
    on_file(named!("File_read_ordered"), "file_read_ordered", 2, 3),
    on_file(named!("File_write_ordered"), "file_write_ordered", 2, 3),
    group(named!("Comm_group"), GROUP_OF_COMM, 1),
    group(named!("Comm_remote_group"), GROUP_OF_REMOTE, 1),
    group(named!("Group_incl"), GROUP_INCL, 3),
    group(named!("Group_excl"), GROUP_EXCL, 3),
    group(named!("Group_range_incl"), GROUP_RANGE_INCL, 3),
    group(named!("Group_range_excl"), GROUP_RANGE_EXCL, 3),
    group(named!("Group_union"), GROUP_UNION, 2),
    group(named!("Group_intersection"), GROUP_INTERSECTION, 2),
    group(named!("Group_difference"), GROUP_DIFFERENCE, 2),
    group(named!("Group_from_session_pset"), GROUP_OF_SET, 2),
    group(named!("Group_free"), GROUP_FREE, 0),
    Function { api: Api::Mpi, ..state(named!("Init"), "init", Role::MpiInit, 2) },
    Function { api: Api::Mpi, ..state(named!("Init_thread"), "init", Role::MpiInit, 4) },
    Function { api: Api::Mpi, comm: Comm::World, ..state(named!("Finalize"), "finalize", Role::Call, 0) },
];
