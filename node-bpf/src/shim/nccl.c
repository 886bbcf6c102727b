/* The NCCL profiler plugin: NCCL loads it when NCCL_PROFILER_PLUGIN names it, and tells it of every collective and
 * point-to-point operation that it puts on the device, and when each channel of it starts and ends there. What is known of
 * an operation goes to the agent through a ring (ring.h) as one record, once its last channel has ended: as if it were the
 * call that NCCL's function of that name takes, so that the agent makes the same rows of it, with the device's times beside.
 *
 * No thread of NCCL ever waits here: operations under way lie in a fixed table whose entries are taken and given back with
 * atomic operations; where there is no room the operation is counted as lost. What NCCL is given as a handle is a number,
 * never an address: a handle of an entry that has been given to another operation since is recognised and ignored. */
#include "ring.c"

#include <dlfcn.h>
#include <stdbool.h>

#include "nccl_abi.h"

#pragma weak dladdr

typedef unsigned long long word;

/* X(name, index of count, of root, of the communicator); the data type follows the count, the stream the communicator. */
#define FUNCTIONS(X)                                                                                                   \
  X(AllReduce, 2, -1, 5) X(Broadcast, 2, 4, 5) X(Reduce, 2, 5, 6) X(AllGather, 2, -1, 4) X(ReduceScatter, 2, -1, 5)     \
  X(Send, 1, 3, 4) X(Recv, 1, 3, 4) X(AlltoAll, 2, -1, 4) X(Gather, 2, 4, 5) X(Scatter, 2, 4, 5)

enum {
#define X(name, count, root, comm) F_##name,
  FUNCTIONS(X)
#undef X
  F_COUNT
};
static const char *const names[] = {
#define X(name, count, root, comm) "nccl" #name,
  FUNCTIONS(X)
#undef X
};
static const struct {
  int count, root, comm;
} at[] = {
#define X(name, count, root, comm) {count, root, comm},
  FUNCTIONS(X)
#undef X
};

/* A communicator. */
struct context {
  word id; /* stands for its handle, which NCCL does not tell */
  word hash;
  int rank, nranks; /* nranks 0: not told (versions 1 to 3), nor are rank and hash; events carry these */
  bool of_rccl;
  bool device; /* its kernels' channels are told of, with the device's times */
};
static word contexts;

/* An operation under way. */
#define OPS 4096
enum { FREE, FILLING, OPEN, CLOSING };
static struct op {
  word state;      /* generation << 2 | one of the above */
  int refs;        /* ends that are awaited: its own and each channel's */
  int running;     /* channels that are on the device */
  int entry;       /* which of ring->threads shows it; -1: none */
  word stopped_ns; /* end of its enqueuing */
  word first, last; /* device times; first all ones: none */
  word offset;     /* smallest host time less device time, as signed numbers */
  struct rm_call call;
} ops[OPS];
static word next_op;
static unsigned int entries; /* which of ring->threads are taken */

/* Handles: the low two bits say of what. */
enum { OF_API = 1, OF_OP = 2, OF_CHANNEL = 3 };
static word handle_of(int kind, word index, word state) { return (state >> 2) << 14 | index << 2 | (word)kind; }
static struct op *op_of(word handle, word *open) {
  struct op *op = &ops[handle >> 2 & (OPS - 1)];
  *open = (handle >> 14) << 2 | OPEN;
  return __atomic_load_n(&op->state, __ATOMIC_ACQUIRE) == *open ? op : NULL;
}

/* Counts of calls by (communicator, function), from 0: as the agent's eBPF programs count them. */
#define SEQ_SLOTS 4096
static struct {
  unsigned long long key, next;
} seqs[SEQ_SLOTS];

/* All ones when there is no room left. */
static unsigned long long ring_seq(unsigned long long comm, unsigned int func) {
  unsigned long long key = (comm << 7 | comm >> 57) ^ ((unsigned long long)(func + 1) << 1 | 1);
  unsigned long long at = key * 0x9e3779b97f4a7c15ull >> 52;
  for (unsigned int step = 0; step < 64; step++) {
    unsigned int i = (unsigned int)(at + step) % SEQ_SLOTS;
    unsigned long long found = __atomic_load_n(&seqs[i].key, __ATOMIC_ACQUIRE);
    if (!found && __atomic_compare_exchange_n(&seqs[i].key, &found, key, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) found = key;
    if (found == key) return __atomic_fetch_add(&seqs[i].next, 1, __ATOMIC_RELAXED);
  }
  return ~0ull;
}

static void make_ring(void) { ring_make(names, F_COUNT, "-nccl"); }

static void lose(void) { __atomic_fetch_add(&ring->lost, 1, __ATOMIC_RELAXED); }

/* Ends an operation; by whom of several is settled here. */
static void finish(struct op *op, word open) {
  word expected = open;
  if (!__atomic_compare_exchange_n(&op->state, &expected, (open & ~3ull) | CLOSING, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) return;
  struct rm_call *call = &op->call;
  word stopped = __atomic_load_n(&op->stopped_ns, __ATOMIC_RELAXED);
  word first = __atomic_load_n(&op->first, __ATOMIC_RELAXED), last = __atomic_load_n(&op->last, __ATOMIC_RELAXED);
  call->exit_ns = stopped ? stopped : now_ns();
  if (first != ~0ull && last >= first) {
    call->flags = (unsigned char)((call->flags & ~RM_CAPTURED) | RM_CAPTURE_KNOWN | RM_DEVICE_TIMES); /* it ran */
    call->args[RM_DEVICE_FIRST] = first;
    call->args[RM_DEVICE_LAST] = last;
    call->args[RM_DEVICE_OFFSET] = __atomic_load_n(&op->offset, __ATOMIC_RELAXED);
  }
  if (ring) {
    if (op->entry >= 0) {
      __atomic_store_n(&ring->threads[op->entry].func, 0, __ATOMIC_RELEASE);
      __atomic_fetch_and(&entries, ~(1u << op->entry), __ATOMIC_RELEASE);
    }
    ring_write(call);
  }
  __atomic_store_n(&op->state, ((open >> 2) + 1) << 2 | FREE, __ATOMIC_RELEASE);
}

/* NCCL may tell of fewer channels than it said there would be: what is on the device no longer, and ended a while ago, has ended. */
#define AGE_NS 1000000000ull
static void end_old(word ticket, word now) {
  static const word before[] = {16, 64, 256, 1024};
  for (unsigned int i = 0; i < sizeof before / sizeof *before; i++) {
    struct op *op = &ops[(ticket - before[i]) & (OPS - 1)];
    word state = __atomic_load_n(&op->state, __ATOMIC_ACQUIRE), stopped = __atomic_load_n(&op->stopped_ns, __ATOMIC_RELAXED);
    if ((state & 3) == OPEN && stopped && stopped + AGE_NS < now && __atomic_load_n(&op->running, __ATOMIC_ACQUIRE) == 0 &&
        __atomic_load_n(&op->last, __ATOMIC_RELAXED))
      finish(op, state);
  }
}

struct told {
  int func, root;
  word hash, seq, count;
  int rank, datatype, channels;
  word stream; /* all ones: not told */
  unsigned char flags;
};

static void start_op(struct context *context, void **handle, const struct told *told) {
  word now = now_ns(), ticket = __atomic_fetch_add(&next_op, 1, __ATOMIC_RELAXED), index = ticket & (OPS - 1);
  struct op *op = &ops[index];
  end_old(ticket, now);
  word state = __atomic_load_n(&op->state, __ATOMIC_ACQUIRE);
  if ((state & 3) == OPEN) { /* so old that it will not end */
    finish(op, state);
    state = __atomic_load_n(&op->state, __ATOMIC_ACQUIRE);
  }
  if ((state & 3) != FREE ||
      !__atomic_compare_exchange_n(&op->state, &state, state | FILLING, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
    lose();
    return;
  }
  if (!ring_tid) ring_tid = (unsigned int)syscall(SYS_gettid);
  op->refs = 1 + told->channels;
  op->running = 0;
  op->entry = -1;
  op->stopped_ns = 0;
  op->first = ~0ull;
  op->last = 0;
  op->offset = ~0ull >> 1;
  struct rm_call *call = &op->call;
  memset(call, 0, sizeof *call);
  call->kind = RM_CALL;
  call->func = (unsigned char)told->func;
  call->flags = (unsigned char)(told->flags | RM_HAVE_HASH | RM_HAVE_SEQ | (context->of_rccl ? RM_FROM_RCCL : 0));
  call->pid = ring->pid;
  call->tid = ring_tid;
  call->comm_hash = told->hash;
  call->comm_seq = RM_NO_POSITION; /* NCCL tells of operations in the order of its plans */
  call->seq = told->seq;
  if (told->seq == ~0ull) {
    call->seq = ring_seq(context->id ^ told->hash, (unsigned int)told->func);
    if (call->seq == ~0ull) call->flags &= (unsigned char)~RM_HAVE_SEQ;
  }
  call->rank = told->rank;
  call->nranks = context->nranks ? context->nranks : -1;
  for (int i = 0; i < RM_MAX_ARGS; i++) call->args[i] = ~0ull;
  call->args[at[told->func].count] = told->count;
  call->args[at[told->func].count + 1] = (word)told->datatype;
  if (at[told->func].root >= 0) call->args[at[told->func].root] = (word)told->root;
  call->args[at[told->func].comm] = context->id;
  call->args[at[told->func].comm + 1] = told->stream;
  call->flags |= RM_HAVE_RANK;
  call->enter_ns = now;
  __atomic_store_n(&op->state, (state & ~3ull) | OPEN, __ATOMIC_RELEASE);
  *handle = (void *)(uintptr_t)handle_of(OF_OP, index, state);
}

/* The first channel of an operation is on the device: from now on its rank is in it, until the last one has ended. */
static void show(struct op *op, word first) {
  unsigned int taken = __atomic_load_n(&entries, __ATOMIC_RELAXED), bit;
  do {
    if (taken == ~0u) return; /* the 32 that came first are shown */
    bit = ~taken & (taken + 1);
  } while (!__atomic_compare_exchange_n(&entries, &taken, taken | bit, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED));
  op->entry = __builtin_ctz(bit);
  struct rm_ring_thread *thread = &ring->threads[op->entry];
  thread->tid = op->call.tid;
  thread->enter_ns = now_ns();
  thread->seq = op->call.flags & RM_HAVE_SEQ ? op->call.seq : ~0ull;
  memcpy(thread->args, op->call.args, sizeof thread->args);
  thread->args[RM_DEVICE_FIRST] = first;
  thread->comm_seq = RM_NO_POSITION;
  thread->comm_hash = op->call.comm_hash;
  thread->rank = op->call.rank;
  thread->nranks = op->call.nranks;
  thread->flags = RM_HAVE_HASH | RM_HAVE_RANK;
  __atomic_store_n(&thread->func, (unsigned int)op->call.func + 1, __ATOMIC_RELEASE);
}

/* A pair of clocks read at about the same time. */
static void see(struct op *op, word timer) {
  long long offset = (long long)(now_ns() - timer), before = (long long)__atomic_load_n(&op->offset, __ATOMIC_RELAXED);
  while (offset < before && !__atomic_compare_exchange_n(&op->offset, (word *)&before, (word)offset, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
}

static void start_channel(void **handle, word parent, word timer) {
  word open;
  if ((parent & 3) != OF_OP) return;
  struct op *op = op_of(parent, &open);
  if (!op) return;
  bool is_first = __atomic_fetch_add(&op->running, 1, __ATOMIC_ACQ_REL) == 0;
  if (timer) {
    word first = __atomic_load_n(&op->first, __ATOMIC_RELAXED);
    is_first = is_first && first == ~0ull;
    while (timer < first && !__atomic_compare_exchange_n(&op->first, &first, timer, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
    see(op, timer);
    if (is_first) show(op, timer);
  }
  *handle = (void *)(uintptr_t)((parent & ~3ull) | OF_CHANNEL);
}

static void end_channel(word handle, word timer) {
  word open;
  struct op *op = op_of(handle, &open);
  if (!op || !timer) return;
  word last = __atomic_load_n(&op->last, __ATOMIC_RELAXED);
  while (timer > last && !__atomic_compare_exchange_n(&op->last, &last, timer, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
  see(op, timer);
}

static int stop_event(void *handle_) {
  word handle = (word)(uintptr_t)handle_, open;
  if (!ring || !handle || (handle & 3) == OF_API) return 0;
  struct op *op = op_of(handle, &open);
  if (!op) return 0;
  if ((handle & 3) == OF_OP) {
    __atomic_store_n(&op->stopped_ns, now_ns(), __ATOMIC_RELEASE);
  } else {
    __atomic_fetch_sub(&op->running, 1, __ATOMIC_ACQ_REL);
  }
  if (__atomic_sub_fetch(&op->refs, 1, __ATOMIC_ACQ_REL) == 0) finish(op, open);
  return 0;
}

static int record_event_state(void *handle_, int state, union state_args *args) {
  word handle = (word)(uintptr_t)handle_;
  if (ring && args && (handle & 3) == OF_CHANNEL && state == STATE_KERNEL_CH_STOP) end_channel(handle, args->timer);
  return 0;
}

/* "AllReduce"; -1: one that is not followed. */
static int function_named(const char *name) {
  if (!name) return -1;
  for (int i = 0; i < F_COUNT; i++)
    if (!strcmp(names[i] + 4, name)) return i;
  return -1;
}

/* NCCL's number of a data type by its name, or one that is none. */
static int datatype_named(const char *name) {
  static const char *const known[] = {"Int8",    "Uint8",   "Int32",    "Uint32",     "Int64",     "Uint64",
                                      "Float16", "Float32", "Float64",  "Bfloat16",   "Float8e4m3", "Float8e5m2"};
  if (!name || strncmp(name, "nccl", 4)) return -1;
  for (unsigned int i = 0; i < sizeof known / sizeof *known; i++)
    if (!strcmp(known[i], name + 4)) return (int)i;
  return -1;
}

static int open_context(void **context_, int *mask, word hash, int nranks, int rank, void *logger) {
  *context_ = NULL;
  *mask = 0;
  ring_once(make_ring);
  struct context *context = ring ? calloc(1, sizeof *context) : NULL;
  if (!context) return 0; /* NCCL goes on as if there were no plugin: nothing is asked for */
  const char *host_only = getenv("RANKMESH_NCCL_DEVICE_TIMES");
  Dl_info library;
  context->id = __atomic_add_fetch(&contexts, 1, __ATOMIC_RELAXED) << 48 | 1;
  context->hash = hash;
  context->rank = rank;
  context->nranks = nranks;
  context->of_rccl = logger && dladdr && dladdr(logger, &library) && library.dli_fname && strstr(library.dli_fname, "librccl");
  *context_ = context;
  *mask = EVENT_COLL | EVENT_P2P;
  /* versions 1 to 3 give no device times; of RCCL's timer it is not documented what it counts in */
  context->device = nranks && !context->of_rccl && !(host_only && !strcmp(host_only, "0"));
  if (context->device) *mask |= EVENT_KERNEL_CH;
  return 0;
}

static int init_v1(void **context, int *mask) { return open_context(context, mask, 0, 0, -1, NULL); }

static int init_v4(void **context, int *mask, const char *name, uint64_t hash, int nodes, int nranks, int rank, void *logger) {
  (void)name, (void)nodes;
  return open_context(context, mask, hash, nranks, rank, logger);
}

static int init_v5(void **context, uint64_t hash, int *mask, const char *name, int nodes, int nranks, int rank, void *logger) {
  (void)name, (void)nodes;
  return open_context(context, mask, hash, nranks, rank, logger);
}

static int finalize(void *context) {
  free(context);
  return 0;
}

/* The application's call: all that is wanted of it fits into the handle. */
static void *api_handle(void *stream, bool captured) {
  return (void *)(uintptr_t)((word)(uintptr_t)stream << 3 | (word)captured << 2 | OF_API);
}

static void start_v4(struct context *context, void **handle, const struct event_v4 *event, word kind) {
  struct told told = {.hash = context->hash, .rank = context->rank, .seq = ~0ull, .stream = ~0ull};
  word parent = (word)(uintptr_t)event->head.parent;
  switch (kind) {
  case EVENT_KERNEL_CH:
    start_channel(handle, parent, event->kernel_ch.timer);
    return;
  case EVENT_COLL_API:
    *handle = api_handle(event->coll_api.stream, event->coll_api.captured);
    return;
  case EVENT_P2P_API:
    *handle = api_handle(event->p2p_api.stream, event->p2p_api.captured);
    return;
  case EVENT_COLL:
    told.func = function_named(event->coll.func);
    told.root = event->coll.root;
    told.seq = event->coll.seq;
    told.count = event->coll.count;
    told.datatype = datatype_named(event->coll.datatype);
    told.channels = event->coll.channels;
    break;
  case EVENT_P2P:
    told.func = function_named(event->p2p.func);
    told.root = event->p2p.peer;
    told.count = event->p2p.count;
    told.datatype = datatype_named(event->p2p.datatype);
    told.channels = event->p2p.channels;
    break;
  default:
    return;
  }
  if (told.func < 0) {
    lose();
    return;
  }
  if ((parent & 3) == OF_API) {
    told.stream = parent >> 3;
    told.flags = (unsigned char)(RM_CAPTURE_KNOWN | (parent & 4 ? RM_CAPTURED : 0));
  }
  if (!context->device) told.channels = 0;
  start_op(context, handle, &told);
}

static int start_event_v5(void *context, void **handle, void *event_) {
  struct event_v4 *event = event_;
  *handle = NULL;
  if (ring && context) start_v4(context, handle, event, event->head.kind);
  return 0;
}

static int start_event_v4(void *context, void **handle, void *event_) {
  struct event_v4 *event = event_;
  *handle = NULL;
  /* its kinds are one byte: what follows is anything */
  if (ring && context) start_v4(context, handle, event, event->head.kind & 0xff);
  return 0;
}

static int start_event_v2(void *context, void **handle, void *event_) {
  struct event_v2 *event = event_;
  *handle = NULL;
  if (!ring || !context) return 0;
  struct told told = {.rank = event->head.rank, .seq = ~0ull, .stream = ~0ull};
  switch (event->head.kind & 0xff) {
  case EVENT_COLL:
    told.func = function_named(event->coll.func);
    told.root = event->coll.root;
    told.hash = event->coll.comm_hash;
    told.seq = event->coll.seq;
    told.count = event->coll.count;
    told.datatype = datatype_named(event->coll.datatype);
    break;
  case EVENT_P2P:
    told.func = function_named(event->p2p.func);
    told.root = event->p2p.peer;
    told.hash = event->p2p.comm_hash;
    told.count = event->p2p.count;
    told.datatype = datatype_named(event->p2p.datatype);
    break;
  default:
    return 0;
  }
  if (told.func < 0) lose();
  else start_op(context, handle, &told);
  return 0;
}

static int start_event_v1(void *context, void **handle, void *event_) {
  static const signed char functions[] = {F_Broadcast, F_Reduce, F_AllGather, F_ReduceScatter, F_AllReduce, -1, F_Send, F_Recv};
  struct event_v1 *event = event_;
  *handle = NULL;
  if (!ring || !context) return 0;
  struct told told = {.rank = event->head.rank, .seq = ~0ull, .stream = ~0ull};
  unsigned int func;
  switch (event->head.kind & 0xff) {
  case EVENT_COLL:
    func = event->coll.func;
    told.root = event->coll.root;
    told.hash = event->coll.comm_hash;
    told.seq = event->coll.seq;
    told.count = event->coll.count;
    told.datatype = event->coll.datatype;
    break;
  case EVENT_P2P:
    func = event->p2p.func;
    told.root = event->p2p.peer;
    told.hash = event->p2p.comm_hash;
    told.count = event->p2p.count;
    told.datatype = event->p2p.datatype;
    break;
  default:
    return 0;
  }
  told.func = func < sizeof functions ? functions[func] : -1;
  if (told.func < 0) lose();
  else start_op(context, handle, &told);
  return 0;
}

#define OFFER(version, init_, start)                                                                                   \
  __attribute__((visibility("default"))) const struct plugin ncclProfiler_##version = {                                \
      "rankmesh", (void *)init_, start, stop_event, record_event_state, finalize}
OFFER(v1, init_v1, start_event_v1);
OFFER(v2, init_v1, start_event_v2);
OFFER(v3, init_v1, start_event_v2);
OFFER(v4, init_v4, start_event_v4);
OFFER(v5, init_v5, start_event_v5);
OFFER(v6, init_v5, start_event_v5);
OFFER(v7, init_v5, start_event_v5);
