/* The MPI profiling shim: loaded with LD_PRELOAD it stands before the MPI library, notes when each data-moving call of
 * this process begins and ends, and hands that to the agent through a ring (ring.h). The calls are those that the eBPF
 * probes cover, with the same arguments, so that the agent makes the same rows of them.
 *
 * It needs no mpi.h and no MPI library at build time, and works with any: every argument of these functions is a pointer
 * or an int, which both x86-64 (System V) and arm64 (AAPCS64 on Linux) pass as one word each, in registers and on the stack.
 * Both names of a function are taken, MPI_X and PMPI_X, because Fortran's bindings call the second; each goes on to the
 * next library's function of its own name, so that other profilers between us and MPI see what they did before. */
#include "ring.c"

#include <dlfcn.h>
#include <link.h>

#pragma weak dlsym
#pragma weak dlopen
#pragma weak dlclose

typedef unsigned long long word;
typedef int (*function)(word, word, word, word, word, word, word, word, word, word, word, word);

/* X(name, index of the communicator among the arguments); -1: begins MPI; -2: has none */
#define FUNCTIONS(X)                                                                                                  \
  X(Allreduce, 5) X(Bcast, 4) X(Reduce, 6) X(Allgather, 6) X(Allgatherv, 7) X(Alltoall, 6) X(Alltoallv, 8)             \
  X(Barrier, 0) X(Reduce_scatter, 5) X(Reduce_scatter_block, 5) X(Alltoallw, 8) X(Gather, 7) X(Gatherv, 8)             \
  X(Scatter, 7) X(Scatterv, 8) X(Scan, 5) X(Exscan, 5) X(Send, 5) X(Ssend, 5) X(Recv, 5) X(Sendrecv, 10)               \
  X(Rsend, 5) X(Sendrecv_replace, 7) X(Probe, 2) X(Mprobe, 2) X(Neighbor_allgather, 6) X(Neighbor_allgatherv, 7)       \
  X(Neighbor_alltoall, 6) X(Neighbor_alltoallv, 8) X(Neighbor_alltoallw, 8) X(Wait, -2) X(Waitall, -2) X(Waitany, -2)  \
  X(Waitsome, -2) X(Win_fence, -2) X(Win_complete, -2) X(Win_wait, -2) X(Win_unlock, -2) X(Win_flush, -2)              \
  X(Init, -1) X(Init_thread, -1)

enum {
#define X(name, comm) F_##name,
  FUNCTIONS(X)
#undef X
  F_COUNT
};

static const char *const names[] = {
#define X(name, comm) "MPI_" #name,
  FUNCTIONS(X)
#undef X
};
static const int comm_at[] = {
#define X(name, comm) comm,
  FUNCTIONS(X)
#undef X
};

/* MPI_Init was called through here: sequence numbers are complete. */
static int started;
/* Inside a traced call: what that calls itself is part of it. */
static __thread int depth;

static void make_ring(void) { ring_make(names, F_COUNT, ""); }

struct search {
  const char *symbol;
  void *found;
};

/* In a library that is loaded but not in the global scope (mpi4py, dlopen): the first MPI library that has it. */
static int look_into(struct dl_phdr_info *info, size_t size, void *data) {
  struct search *search = data;
  const char *base = info->dlpi_name ? strrchr(info->dlpi_name, '/') : NULL;
  (void)size;
  if (!base || (strncmp(base, "/libmpi", 7) && strncmp(base, "/libmpich", 9))) return 0;
  void *library = dlopen ? dlopen(info->dlpi_name, RTLD_LAZY | RTLD_NOLOAD) : NULL;
  if (!library) return 0;
  search->found = dlsym(library, search->symbol);
  dlclose(library);
  return search->found != NULL;
}

static function next_of(const char *symbol, function *cached) {
  function known = __atomic_load_n(cached, __ATOMIC_RELAXED);
  if (known) return known;
  void *found = dlsym ? dlsym(RTLD_NEXT, symbol) : NULL;
  if (!found && dlsym) {
    struct search search = {symbol, NULL};
    dl_iterate_phdr(look_into, &search);
    found = search.found;
  }
  if (!found) {
    char message[160];
    int length = snprintf(message, sizeof message,
                          "rankmesh: no MPI library has %s; run this program without LD_PRELOAD=librankmesh_pmpi.so\n", symbol);
    if (write(2, message, (size_t)length) < 0) abort();
    abort();
  }
  __atomic_store_n(cached, (function)found, __ATOMIC_RELAXED);
  return (function)found;
}

/* `site`: where it was called, which is where it returns to. */
static int traced(int func, function call, const word *a, word site) {
  int result;
  if (depth) return call(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11]);
  ring_once(make_ring);
  depth = 1;
  if (comm_at[func] == -1) {
    result = call(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11]);
    if (result == 0) started = 1;
  } else if (!ring) {
    result = call(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11]);
  } else {
    struct rm_ring_thread *thread = ring_own_thread();
    word seq = started && comm_at[func] >= 0 ? ring_seq(a[comm_at[func]], (unsigned int)func) : ~0ull;
    struct rm_call record = {.kind = RM_CALL, .func = (unsigned char)func, .rank = -1, .nranks = -1};
    record.site_high = (unsigned short)(site >> 32);
    record.site_low = (unsigned int)site;
    record.flags = seq == ~0ull ? 0 : RM_HAVE_SEQ;
    record.seq = seq == ~0ull ? 0 : seq;
    record.pid = ring->pid;
    record.tid = ring_tid;
    memcpy(record.args, a, sizeof record.args);
    record.enter_ns = now_ns();
    if (thread) {
      thread->enter_ns = record.enter_ns;
      thread->seq = seq;
      memcpy(thread->args, a, sizeof thread->args);
      __atomic_store_n(&thread->func, (unsigned int)func + 1, __ATOMIC_RELEASE);
    }
    result = call(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11]);
    record.exit_ns = now_ns();
    record.ret = result;
    if (ring) { /* not a child of a fork within the call */
      if (thread) __atomic_store_n(&thread->func, 0, __ATOMIC_RELEASE);
      ring_write(&record);
    }
  }
  depth = 0;
  return result;
}

#define WRAP(symbol, func)                                                                                             \
  __attribute__((visibility("default"))) int symbol(word a, word b, word c, word d, word e, word f, word g, word h,    \
                                                    word i, word j, word k, word l) {                                  \
    static function next;                                                                                              \
    const word args[] = {a, b, c, d, e, f, g, h, i, j, k, l};                                                          \
    return traced(func, next_of(#symbol, &next), args, (word)__builtin_return_address(0));                             \
  }
#define X(name, comm) WRAP(MPI_##name, F_##name) WRAP(PMPI_##name, F_##name)
FUNCTIONS(X)
