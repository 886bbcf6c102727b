/* The MPI profiling shim: loaded with LD_PRELOAD it stands before the MPI library, notes when each data-moving call of
 * this process begins and ends, and hands that to the agent through a ring (ring.h). The calls are those that the eBPF
 * probes cover, with the same arguments, so that the agent makes the same rows of them.
 *
 * It needs no mpi.h and no MPI library at build time, and works with Open MPI, MPICH and their kin (comms.c): every argument
 * of these functions is a pointer or an int, which both x86-64 (System V) and arm64 (AAPCS64 on Linux) pass as one word each, in registers and on the stack.
 * Both names of a function are taken, MPI_X and PMPI_X, because Fortran's bindings call the second; each goes on to the
 * next library's function of its own name, so that other profilers between us and MPI see what they did before. */
#include "ring.c"

#include "../bpf/identity.h"

typedef unsigned long long word;
typedef int (*function)(word, word, word, word, word, word, word, word, word, word, word, word);

/* X(name, role, index of the communicator among the arguments or WORLD or NONE, what more is to be known of the role, index of
 * the argument with the address of what is made). Roles: of calls that are numbered by communicator and function, COLLECTIVE
 * and BEGINS (nonblocking) also by position, MESSAGE not; LOCAL calls have no numbers; MAKES: enum rm_makes; GROUP: enum
 * rm_groups; PERSISTS: the nonblocking collective that
 * each start is (of all that make a persistent collective, one with the communicator in that place). */
enum role { COLLECTIVE, MESSAGE, LOCAL, BEGINS, MAKES, FREES, GROUP, INIT, PERSISTS, STARTS, REQUEST_FREE };
enum { NONE = -1, WORLD = -2 };
#define FUNCTIONS(X)                                                                                                   \
  X(Allreduce, COLLECTIVE, 5, 0, NONE) X(Bcast, COLLECTIVE, 4, 0, NONE) X(Reduce, COLLECTIVE, 6, 0, NONE)               \
  X(Allgather, COLLECTIVE, 6, 0, NONE) X(Allgatherv, COLLECTIVE, 7, 0, NONE) X(Alltoall, COLLECTIVE, 6, 0, NONE)        \
  X(Alltoallv, COLLECTIVE, 8, 0, NONE) X(Barrier, COLLECTIVE, 0, 0, NONE) X(Reduce_scatter, COLLECTIVE, 5, 0, NONE)     \
  X(Reduce_scatter_block, COLLECTIVE, 5, 0, NONE) X(Alltoallw, COLLECTIVE, 8, 0, NONE) X(Gather, COLLECTIVE, 7, 0, NONE) \
  X(Gatherv, COLLECTIVE, 8, 0, NONE) X(Scatter, COLLECTIVE, 7, 0, NONE) X(Scatterv, COLLECTIVE, 8, 0, NONE)             \
  X(Scan, COLLECTIVE, 5, 0, NONE) X(Exscan, COLLECTIVE, 5, 0, NONE) X(Neighbor_allgather, COLLECTIVE, 6, 0, NONE)       \
  X(Neighbor_allgatherv, COLLECTIVE, 7, 0, NONE) X(Neighbor_alltoall, COLLECTIVE, 6, 0, NONE)                           \
  X(Neighbor_alltoallv, COLLECTIVE, 8, 0, NONE) X(Neighbor_alltoallw, COLLECTIVE, 8, 0, NONE)                           \
  X(Iallreduce, BEGINS, 5, 0, 6) X(Ibcast, BEGINS, 4, 0, 5) X(Ireduce, BEGINS, 6, 0, 7) X(Iallgather, BEGINS, 6, 0, 7)  \
  X(Iallgatherv, BEGINS, 7, 0, 8) X(Ialltoall, BEGINS, 6, 0, 7) X(Ialltoallv, BEGINS, 8, 0, 9)                          \
  X(Ialltoallw, BEGINS, 8, 0, 9) X(Ibarrier, BEGINS, 0, 0, 1) X(Ireduce_scatter, BEGINS, 5, 0, 6)                       \
  X(Ireduce_scatter_block, BEGINS, 5, 0, 6) X(Igather, BEGINS, 7, 0, 8) X(Igatherv, BEGINS, 8, 0, 9)                    \
  X(Iscatter, BEGINS, 7, 0, 8) X(Iscatterv, BEGINS, 8, 0, 9) X(Iscan, BEGINS, 5, 0, 6) X(Iexscan, BEGINS, 5, 0, 6)      \
  X(Ineighbor_allgather, BEGINS, 6, 0, 7) X(Ineighbor_allgatherv, BEGINS, 7, 0, 8) X(Ineighbor_alltoall, BEGINS, 6, 0, 7) \
  X(Ineighbor_alltoallv, BEGINS, 8, 0, 9) X(Ineighbor_alltoallw, BEGINS, 8, 0, 9)                                       \
  X(Send, MESSAGE, 5, 0, NONE) X(Ssend, MESSAGE, 5, 0, NONE) X(Recv, MESSAGE, 5, 0, NONE) X(Sendrecv, MESSAGE, 10, 0, NONE) \
  X(Rsend, MESSAGE, 5, 0, NONE) X(Sendrecv_replace, MESSAGE, 7, 0, NONE) X(Probe, MESSAGE, 2, 0, NONE)                  \
  X(Mprobe, MESSAGE, 2, 0, NONE) X(Mrecv, LOCAL, NONE, 0, NONE) X(Wait, LOCAL, NONE, 0, NONE)                           \
  X(Waitall, LOCAL, NONE, 1, NONE) X(Waitany, LOCAL, NONE, 1, NONE) X(Waitsome, LOCAL, NONE, 1, NONE)                   \
  X(Comm_dup, MAKES, 0, RM_MAKES_COPY, 1) X(Comm_idup, MAKES, 0, RM_MAKES_COPY, 1)                                      \
  X(Comm_dup_with_info, MAKES, 0, RM_MAKES_COPY, 2) X(Comm_idup_with_info, MAKES, 0, RM_MAKES_COPY, 2)                  \
  X(Comm_split, MAKES, 0, RM_MAKES_BY_COLOUR, 3) X(Comm_split_type, MAKES, 0, RM_MAKES_BY_HOST, 4)                      \
  X(Comm_create, MAKES, 0, RM_MAKES_BY_GROUP, 2) X(Comm_create_group, MAKES, 0, RM_MAKES_ALONE, 3)                      \
  X(Comm_create_from_group, MAKES, NONE, RM_MAKES_OF_GROUP, 4) X(Cart_create, MAKES, 0, RM_MAKES_CART, 5)               \
  X(Cart_sub, MAKES, 0, RM_MAKES_CART_PART, 2) X(Graph_create, MAKES, 0, RM_MAKES_ONE, 5)                               \
  X(Dist_graph_create, MAKES, 0, RM_MAKES_ONE, 8) X(Dist_graph_create_adjacent, MAKES, 0, RM_MAKES_ONE, 9)              \
  X(Intercomm_create, MAKES, 0, RM_MAKES_INTER, 5) X(Intercomm_merge, MAKES, 0, RM_MAKES_ONE, 2)                        \
  X(Comm_spawn, MAKES, 5, RM_MAKES_NAMELESS, 6) X(Comm_spawn_multiple, MAKES, 6, RM_MAKES_NAMELESS, 7)                  \
  X(Comm_accept, MAKES, 3, RM_MAKES_NAMELESS, 4) X(Comm_connect, MAKES, 3, RM_MAKES_NAMELESS, 4)                        \
  X(Barrier_init, PERSISTS, 0, F_Ibarrier, 2) X(Bcast_init, PERSISTS, 4, F_Ibcast, 6)                                  \
  X(Allreduce_init, PERSISTS, 5, F_Iallreduce, 7) X(Allgather_init, PERSISTS, 6, F_Iallgather, 8)                      \
  X(Gather_init, PERSISTS, 7, F_Igather, 9) X(Gatherv_init, PERSISTS, 8, F_Igatherv, 10)                               \
  X(Start, STARTS, NONE, 0, NONE) X(Startall, STARTS, NONE, 1, NONE) X(Request_free, REQUEST_FREE, NONE, 0, NONE)       \
  X(Comm_free, FREES, 0, 0, NONE) X(Comm_disconnect, FREES, 0, 0, NONE)                                                 \
  X(Win_create, MAKES, 4, RM_MAKES_COPY, 5) X(Win_allocate, MAKES, 3, RM_MAKES_COPY, 5)                                 \
  X(Win_allocate_shared, MAKES, 3, RM_MAKES_COPY, 5) X(Win_create_dynamic, MAKES, 1, RM_MAKES_COPY, 2)                  \
  X(Win_free, FREES, 0, 0, NONE) X(Win_fence, COLLECTIVE, 1, 0, NONE) X(Win_post, LOCAL, 2, 0, NONE)                    \
  X(Win_start, LOCAL, 2, 0, NONE) X(Win_complete, LOCAL, 0, 0, NONE) X(Win_wait, LOCAL, 0, 0, NONE)                     \
  X(Win_lock, LOCAL, 3, 0, NONE) X(Win_lock_all, LOCAL, 1, 0, NONE) X(Win_unlock, LOCAL, 1, 0, NONE)                    \
  X(Win_unlock_all, LOCAL, 0, 0, NONE) X(Win_flush, LOCAL, 1, 0, NONE) X(Win_flush_all, LOCAL, 0, 0, NONE)              \
  X(File_open, MAKES, 0, RM_MAKES_COPY, 4) X(File_close, FREES, 0, 0, NONE) X(File_set_view, COLLECTIVE, 0, 0, NONE)    \
  X(File_set_size, COLLECTIVE, 0, 0, NONE) X(File_preallocate, COLLECTIVE, 0, 0, NONE)                                  \
  X(File_set_atomicity, COLLECTIVE, 0, 0, NONE) X(File_sync, COLLECTIVE, 0, 0, NONE)                                    \
  X(File_read_all, COLLECTIVE, 0, 0, NONE) X(File_write_all, COLLECTIVE, 0, 0, NONE)                                    \
  X(File_read_at_all, COLLECTIVE, 0, 0, NONE) X(File_write_at_all, COLLECTIVE, 0, 0, NONE)                              \
  X(File_read_ordered, COLLECTIVE, 0, 0, NONE) X(File_write_ordered, COLLECTIVE, 0, 0, NONE)                            \
  X(Comm_group, GROUP, 0, RM_GROUP_OF_COMM, 1) X(Comm_remote_group, GROUP, 0, RM_GROUP_OF_REMOTE, 1)                    \
  X(Group_incl, GROUP, NONE, RM_GROUP_INCL, 3) X(Group_excl, GROUP, NONE, RM_GROUP_EXCL, 3)                             \
  X(Group_range_incl, GROUP, NONE, RM_GROUP_RANGE_INCL, 3) X(Group_range_excl, GROUP, NONE, RM_GROUP_RANGE_EXCL, 3)     \
  X(Group_union, GROUP, NONE, RM_GROUP_UNION, 2) X(Group_intersection, GROUP, NONE, RM_GROUP_INTERSECTION, 2)           \
  X(Group_difference, GROUP, NONE, RM_GROUP_DIFFERENCE, 2)                                                              \
  X(Group_from_session_pset, GROUP, NONE, RM_GROUP_OF_SET, 2) X(Group_free, GROUP, NONE, RM_GROUP_FREE, 0)              \
  X(Init, INIT, WORLD, 0, NONE) X(Init_thread, INIT, WORLD, 0, NONE) X(Finalize, COLLECTIVE, WORLD, 0, NONE)

/* X(name, the one above that is alike, the nonblocking collective that each start is): all that make a persistent collective of
 * elements; there is also MPI_Barrier_init. */
#define PERSISTENT_ALIKE(X)                                                                                            \
  X(Reduce_scatter, Allreduce, Ireduce_scatter) X(Reduce_scatter_block, Allreduce, Ireduce_scatter_block)              \
  X(Scan, Allreduce, Iscan) X(Exscan, Allreduce, Iexscan) X(Reduce, Allgather, Ireduce)                                \
  X(Alltoall, Allgather, Ialltoall) X(Neighbor_allgather, Allgather, Ineighbor_allgather)                              \
  X(Neighbor_alltoall, Allgather, Ineighbor_alltoall) X(Scatter, Gather, Iscatter)                                     \
  X(Allgatherv, Gather, Iallgatherv) X(Neighbor_allgatherv, Gather, Ineighbor_allgatherv)                              \
  X(Scatterv, Gatherv, Iscatterv) X(Alltoallv, Gatherv, Ialltoallv) X(Alltoallw, Gatherv, Ialltoallw)                  \
  X(Neighbor_alltoallv, Gatherv, Ineighbor_alltoallv) X(Neighbor_alltoallw, Gatherv, Ineighbor_alltoallw)
#define PERSISTENT(X)                                                                                                  \
  X(Bcast, Bcast, Ibcast) X(Allreduce, Allreduce, Iallreduce) X(Allgather, Allgather, Iallgather)                      \
  X(Gather, Gather, Igather) X(Gatherv, Gatherv, Igatherv)                                                             \
  PERSISTENT_ALIKE(X)

/* Those that also have a form with 64-bit counts (MPI 4), with the same arguments. */
#define LARGE(X)                                                                                                       \
  X(Allreduce) X(Bcast) X(Reduce) X(Allgather) X(Allgatherv) X(Alltoall) X(Alltoallv) X(Reduce_scatter)                 \
  X(Reduce_scatter_block) X(Alltoallw) X(Gather) X(Gatherv) X(Scatter) X(Scatterv) X(Scan) X(Exscan)                    \
  X(Neighbor_allgather) X(Neighbor_allgatherv) X(Neighbor_alltoall) X(Neighbor_alltoallv) X(Neighbor_alltoallw)         \
  X(Iallreduce) X(Ibcast) X(Ireduce) X(Iallgather) X(Iallgatherv) X(Ialltoall) X(Ialltoallv) X(Ialltoallw)              \
  X(Ireduce_scatter) X(Ireduce_scatter_block) X(Igather) X(Igatherv) X(Iscatter) X(Iscatterv) X(Iscan) X(Iexscan)       \
  X(Ineighbor_allgather) X(Ineighbor_allgatherv) X(Ineighbor_alltoall) X(Ineighbor_alltoallv) X(Ineighbor_alltoallw)    \
  X(Send) X(Ssend) X(Rsend) X(Recv) X(Sendrecv) X(Sendrecv_replace) X(Mrecv)                                            \
  X(Win_create) X(Win_allocate) X(Win_allocate_shared)

enum {
#define X(name, role, comm, kind, made) F_##name,
  FUNCTIONS(X)
#undef X
  F_COUNT
};

static const char *const names[] = {
#define X(name, role, comm, kind, made) "MPI_" #name,
  FUNCTIONS(X)
#undef X
};
static const struct {
  signed char role, comm, kind, made;
} known[] = {
#define X(name, role, comm, kind, made) {role, comm, kind, made},
  FUNCTIONS(X)
#undef X
};

/* Whether what a function works on, or makes, is a communicator: not a window and not a file. */
static int is_comm(int func) { return strncmp(names[func], "MPI_Win_", 8) && strncmp(names[func], "MPI_File_", 9); }

/* Inside a traced call: what that calls itself is part of it. An error handler that jumps out of the call leaves it so:
 * that thread's calls are not recorded from then on. */
static __thread int depth;

#include "libraries.c"
#include "comms.c"

static void make_ring(void) {
  if (look_at_library()) ring_make(names, F_COUNT, "");
}

/* Collectives that have begun, by request; only Open MPI's requests, which are of collectives or of messages for good. */
#define BEGUN 256
static struct {
  word request, hash, comm_seq;
  int rank, nranks;
} begun[BEGUN];
static int any_begun;

static void request_begins(word request, const struct rm_call *call) {
  if (!request || int_handles || !(call->flags & RM_HAVE_HASH)) return;
  unsigned int at = first_step(request) % BEGUN;
  begun[at].request = 0;
  begun[at].hash = call->comm_hash;
  begun[at].comm_seq = call->comm_seq;
  begun[at].rank = call->rank;
  begun[at].nranks = call->nranks;
  __atomic_store_n(&begun[at].request, request, __ATOMIC_RELEASE);
  any_begun = 1;
}

#define MOST_REQUESTS 16
static word request_at(word where, int i) { return handle_at(where ? where + (word)i * (int_handles ? 4 : 8) : 0); }

/* Persistent collectives, by request. Starts are counted on what is a copy of the communicator; `func`: the nonblocking
 * collective that each is. Looked up as communicators are (comms.c). */
#define PERSISTENTS 1024
static struct persistent {
  word request;
  word hash, started;
  int rank, nranks;
  unsigned char func, large;
  word args[RM_MAX_ARGS];
} persistents[PERSISTENTS];

static struct persistent *persistent_of(word request) {
  for (unsigned int step = 0, at = first_step(request); request > ENDED && step < MOST_STEPS; step++) {
    struct persistent *of = &persistents[(at + step) % PERSISTENTS];
    word found = __atomic_load_n(&of->request, __ATOMIC_ACQUIRE);
    if (found == request) return of;
    if (!found) return NULL;
  }
  return NULL;
}

static void persistent_made(int starts, word request, const struct rm_call *maker) {
  if (!request || !(maker->flags & RM_HAVE_HASH) || maker->comm_seq == RM_NO_POSITION) return;
  word hash = rm_mix(maker->comm_hash, maker->comm_seq);
  lock_comms();
  struct persistent *of = persistent_of(request); /* its end was not seen */
  for (unsigned int step = 0, at = first_step(request); !of && step < MOST_STEPS; step++)
    if (persistents[(at + step) % PERSISTENTS].request <= ENDED) of = &persistents[(at + step) % PERSISTENTS];
  if (of) {
    __atomic_store_n(&of->request, ENDED, __ATOMIC_RELEASE);
    of->hash = hash;
    of->started = 0;
    of->rank = maker->rank;
    of->nranks = maker->nranks;
    of->func = (unsigned char)starts;
    of->large = maker->flags & RM_LARGE_COUNTS;
    memcpy(of->args, maker->args, sizeof of->args);
    __atomic_store_n(&of->request, request, __ATOMIC_RELEASE);
  }
  unlock_comms();
  any_begun = 1;
  if (of) say_member(hash, maker->rank, maker->nranks, maker, request);
}

static void persistent_ends(word request) {
  lock_comms();
  struct persistent *of = persistent_of(request);
  if (of) __atomic_store_n(&of->request, ENDED, __ATOMIC_RELEASE);
  unlock_comms();
}

/* MPI_Start, MPI_Startall: a record of each persistent collective among the first requests. */
static void persistent_start(int many, const word *a, word site) {
  int n = many ? (int)a[0] : 1;
  for (int i = 0; i < n && i < MOST_REQUESTS; i++) {
    struct persistent *of = persistent_of(request_at(many ? a[1] : a[0], i));
    if (!of) continue;
    struct rm_call start = {.kind = RM_CALL, .func = of->func, .rank = of->rank, .nranks = of->nranks};
    ring_own_thread();
    start.flags = RM_HAVE_HASH | RM_HAVE_SEQ | (of->rank >= 0 ? RM_HAVE_RANK : 0) | of->large;
    start.site_high = (unsigned short)(site >> 32);
    start.site_low = (unsigned int)site;
    start.pid = ring->pid;
    start.tid = ring_tid;
    start.enter_ns = start.exit_ns = now_ns();
    start.comm_hash = of->hash;
    start.seq = start.comm_seq = __atomic_fetch_add(&of->started, 1, __ATOMIC_RELAXED);
    memcpy(start.args, of->args, sizeof start.args);
    ring_write(&start);
  }
}

/* For whom is waited, when one of the first requests is a collective's. */
static void show_awaited(struct rm_ring_thread *thread, word many, const word *a) {
  int n = many ? (int)a[0] : 1;
  for (int i = 0; i < n && i < MOST_REQUESTS; i++) {
    word request = request_at(many ? a[1] : a[0], i);
    struct persistent *of = persistent_of(request);
    if (of && of->started) { /* the last time */
      thread->comm_hash = of->hash;
      thread->comm_seq = of->started - 1;
      thread->rank = of->rank;
      thread->nranks = of->nranks;
      thread->flags = RM_HAVE_HASH | (of->rank >= 0 ? RM_HAVE_RANK : 0);
      return;
    }
    unsigned int at = first_step(request) % BEGUN;
    if (!request || __atomic_load_n(&begun[at].request, __ATOMIC_ACQUIRE) != request) continue;
    thread->comm_hash = begun[at].hash;
    thread->comm_seq = begun[at].comm_seq;
    thread->rank = begun[at].rank;
    thread->nranks = begun[at].nranks;
    thread->flags = RM_HAVE_HASH | (begun[at].rank >= 0 ? RM_HAVE_RANK : 0);
    return;
  }
}

/* The communicator of a call, and its numbers there. NULL when it has none, or none that is known. */
static struct comm *identify(int func, const word *a, struct rm_call *record) {
  int role = known[func].role, at = known[func].comm;
  word handle = at == WORLD ? world : at == NONE ? 0 : role == FREES ? handle_at(a[0]) : handle_of(a[at]);
  struct comm *comm = role == INIT ? NULL : comm_named(handle, func);
  if (!comm) return NULL;
  record->rank = comm->rank;
  record->nranks = comm->nranks;
  record->comm_hash = comm->hash;
  if (comm->hash) record->flags |= RM_HAVE_HASH;
  if (comm->rank >= 0) record->flags |= RM_HAVE_RANK;
  if (!comm->counted || role == LOCAL || role == GROUP || known[func].kind == RM_MAKES_ALONE) return comm;
  int counts_as = role == PERSISTS ? F_Barrier_init : func; /* these have one name */
  record->seq = __atomic_fetch_add(&comm->seqs[counts_as], 1, __ATOMIC_RELAXED);
  record->flags |= RM_HAVE_SEQ;
  if (role != MESSAGE) record->comm_seq = __atomic_fetch_add(&comm->position, 1, __ATOMIC_RELAXED);
  return comm;
}

/* `site`: where it was called, which is where it returns to. `large`: RM_LARGE_COUNTS or 0. `starts`: of a
 * persistent collective. */
static int traced(int func, function call, const word *a, word site, unsigned char large, int starts) {
  int result, role = known[func].role;
  if (depth) return call(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11]);
  ring_once(make_ring);
  if (!ring) return call(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11]);
  depth = 1;
  if (role == STARTS || role == REQUEST_FREE) {
    if (role == REQUEST_FREE) persistent_ends(request_at(a[0], 0));
    else persistent_start(known[func].kind, a, site);
    result = call(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11]);
    depth = 0;
    return result;
  }
  struct rm_ring_thread *thread = ring_own_thread();
  struct rm_call record = {.kind = RM_CALL, .func = (unsigned char)func, .rank = -1, .nranks = -1, .comm_seq = RM_NO_POSITION};
  record.flags = large;
  struct comm *comm = identify(func, a, &record);
  record.site_high = (unsigned short)(site >> 32);
  record.site_low = (unsigned int)site;
  record.pid = ring->pid;
  record.tid = ring_tid;
  memcpy(record.args, a, sizeof record.args);
  record.enter_ns = now_ns();
  if (thread && role != GROUP) {
    thread->enter_ns = record.enter_ns;
    thread->seq = record.flags & RM_HAVE_SEQ ? record.seq : ~0ull;
    thread->comm_seq = record.comm_seq;
    thread->comm_hash = record.comm_hash;
    thread->rank = record.rank;
    thread->nranks = record.nranks;
    thread->flags = record.flags & (RM_HAVE_HASH | RM_HAVE_RANK | RM_LARGE_COUNTS);
    memcpy(thread->args, a, sizeof thread->args);
    if (any_begun && role == LOCAL && func >= F_Wait && func <= F_Waitsome) show_awaited(thread, (word)known[func].kind, a);
    __atomic_store_n(&thread->func, (unsigned int)func + 1, __ATOMIC_RELEASE);
  }
  if (role == FREES && comm) comm_ends(comm);
  if (role == GROUP && known[func].kind == RM_GROUP_FREE) group_ends(handle_at(a[0]));
  result = call(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11]);
  record.exit_ns = now_ns();
  record.ret = result;
  if (ring) { /* not a child of a fork within the call */
    word made = result == 0 && known[func].made >= 0 ? handle_at(a[known[func].made]) : 0;
    if (thread) __atomic_store_n(&thread->func, 0, __ATOMIC_RELEASE);
    if (role == INIT && result == 0) comms_begin();
    if (role == MAKES) comm_made(func, comm, &record, a, made);
    if (role == BEGINS) request_begins(made, &record);
    if (role == PERSISTS) persistent_made(starts, made, &record);
    if (role == GROUP && made && known[func].kind != RM_GROUP_FREE) group_made(known[func].kind, comm, a, made);
    if (role != GROUP) ring_write(&record);
  }
  depth = 0;
  return result;
}

#define WRAP(symbol, func, large, starts)                                                                              \
  __attribute__((visibility("default"))) int symbol(word a, word b, word c, word d, word e, word f, word g, word h,    \
                                                    word i, word j, word k, word l) {                                  \
    static function next;                                                                                              \
    const word args[] = {a, b, c, d, e, f, g, h, i, j, k, l};                                                          \
    return traced(func, next_of(#symbol, &next), args, (word)__builtin_return_address(0), large, starts);              \
  }
#define WRAP_BOTH(name, func, large, starts) WRAP(MPI_##name, func, large, starts) WRAP(PMPI_##name, func, large, starts)
#define X(name, role, comm, kind, made) WRAP_BOTH(name, F_##name, 0, kind)
FUNCTIONS(X)
#undef X
#define X(name) WRAP_BOTH(name##_c, F_##name, RM_LARGE_COUNTS, 0)
LARGE(X)
#undef X
#define X(name, like, starts) WRAP_BOTH(name##_init, F_##like##_init, 0, F_##starts)
PERSISTENT_ALIKE(X)
#undef X
#define X(name, like, starts) WRAP_BOTH(name##_init_c, F_##like##_init, RM_LARGE_COUNTS, F_##starts)
PERSISTENT(X)
#undef X
/* Open MPI 4 has them by other names. */
#define X(name, like, starts)                                                                                          \
  WRAP(MPIX_##name##_init, F_##like##_init, 0, F_##starts) WRAP(PMPIX_##name##_init, F_##like##_init, 0, F_##starts)
PERSISTENT(X)
X(Barrier, Barrier, Ibarrier)
