/* Collectives, point-to-point calls and groups. Buffers are host memory and streams are ignored: a call returns when
 * the operation is done (in a group: ncclGroupEnd does). Every collective is a barrier among its ranks, so a late rank
 * holds the others up, as on real GPUs the kernels would. Communicators are in comm.c, the region in shm.c. */
#define _GNU_SOURCE
#include <pthread.h>
#include <time.h>
#include <stdlib.h>
#include <string.h>
#include "sim.h"

enum kind { INIT, ALL_REDUCE, BROADCAST, REDUCE, ALL_GATHER, REDUCE_SCATTER, SEND, RECV };

struct op {
  enum kind kind;
  const char *send;
  char *recv;
  size_t count;
  ncclDataType_t type;
  ncclRedOp_t red;
  int root; /* or peer */
  struct ncclComm *comm;
  size_t done_bytes; /* point-to-point progress */
  struct op *next;
};

static __thread int group_depth;
static __thread struct op *group_first, **group_last;

int sim_in_group(void) { return group_depth > 0; }

static ncclResult_t reduce_chunks(struct ncclComm *c, char *into, size_t bytes, ncclDataType_t type, ncclRedOp_t red) {
  size_t count = bytes / sim_type_bytes(type);
  memcpy(into, sim_chunk(c, 0), bytes);
  for (int r = 1; r < c->nRanks; r++)
    if (!sim_reduce(into, sim_chunk(c, r), count, type, red)) return ncclInvalidArgument;
  if (red == ncclAvg && !sim_divide(into, count, type, c->nRanks)) return ncclInvalidArgument;
  return ncclSuccess;
}

/* One chunk after another: stage own bytes, barrier, take what this kind needs from the others, barrier. */
static ncclResult_t run_collective(struct op *op) {
  struct ncclComm *c = op->comm;
  size_t element = sim_type_bytes(op->type), total = op->count * element;
  int parts = op->kind == REDUCE_SCATTER ? c->nRanks : 1; /* the send buffer holds one part per rank */
  ncclResult_t rc = ncclSuccess;
  size_t offset = 0;
  do {
    size_t bytes = total - offset < SIM_CHUNK_BYTES ? total - offset : SIM_CHUNK_BYTES;
    for (int part = 0; part < parts; part++) {
      int stages = op->kind != BROADCAST || c->rank == op->root;
      if (stages && bytes) memcpy(sim_chunk(c, c->rank), op->send + (size_t)part * total + offset, bytes);
      if ((rc = sim_barrier(c)) != ncclSuccess) return rc;
      if (bytes) switch (op->kind) {
        case ALL_REDUCE: rc = reduce_chunks(c, op->recv + offset, bytes, op->type, op->red); break;
        case REDUCE:
          if (c->rank == op->root) rc = reduce_chunks(c, op->recv + offset, bytes, op->type, op->red);
          break;
        case REDUCE_SCATTER:
          if (part == c->rank) rc = reduce_chunks(c, op->recv + offset, bytes, op->type, op->red);
          break;
        case BROADCAST: memcpy(op->recv + offset, sim_chunk(c, op->root), bytes); break;
        case ALL_GATHER:
          for (int r = 0; r < c->nRanks; r++) memcpy(op->recv + (size_t)r * total + offset, sim_chunk(c, r), bytes);
          break;
        default: rc = ncclInternalError;
      }
      if (rc != ncclSuccess) {
        sim_fail(c, rc);
        return rc;
      }
      if ((rc = sim_barrier(c)) != ncclSuccess) return rc; /* the chunks may be written again */
    }
    offset += bytes;
  } while (offset < total);
  return ncclSuccess;
}

/* Moves what can be moved now. A message of no bytes still needs its receiver. */
static int progress_p2p(struct op *op, int *moved) {
  struct ncclComm *c = op->comm;
  int from = op->kind == SEND ? c->rank : op->root, to = op->kind == SEND ? op->root : c->rank;
  struct sim_mail *mail = &c->region->mail[from * c->nRanks + to];
  char *chunk = sim_mail_chunk(c, from, to);
  size_t total = op->count * sim_type_bytes(op->type), left = total - op->done_bytes;
  if (op->kind == SEND) {
    if (atomic_load(&mail->full)) return 0;
    mail->len = (uint32_t)(left < SIM_CHUNK_BYTES ? left : SIM_CHUNK_BYTES);
    memcpy(chunk, op->send + op->done_bytes, mail->len);
    op->done_bytes += mail->len;
    atomic_store(&mail->full, 1);
  } else {
    if (!atomic_load(&mail->full)) return 0;
    size_t take = mail->len < left ? mail->len : left;
    memcpy(op->recv + op->done_bytes, chunk, take);
    op->done_bytes += take;
    atomic_store(&mail->full, 0);
  }
  sim_wake(&mail->full);
  *moved = 1;
  return op->done_bytes >= total;
}

/* All point-to-point calls of one communicator together, so that a ring of send+recv cannot block itself. */
static ncclResult_t run_p2p(struct op **ops, size_t n) {
  uint64_t deadline = sim_deadline_ns();
  size_t left = n;
  while (left > 0) {
    int moved = 0;
    struct op *waiting = NULL;
    for (size_t i = 0; i < n; i++) {
      if (!ops[i]) continue;
      if (progress_p2p(ops[i], &moved)) {
        ops[i] = NULL;
        left--;
      } else {
        waiting = ops[i];
      }
    }
    if (left == 0 || moved || !waiting) continue;
    struct ncclComm *c = waiting->comm;
    int sends = waiting->kind == SEND;
    int from = sends ? c->rank : waiting->root, to = sends ? waiting->root : c->rank;
    uint64_t now = sim_now_ns();
    /* Several mailboxes may be awaited: look at each again soon rather than sleep on one for long. */
    uint64_t soon = left > 1 && now + 500000 < deadline ? now + 500000 : deadline;
    _Atomic uint32_t *word = &c->region->mail[from * c->nRanks + to].full;
    if (soon < deadline) {
      int error = atomic_load(&c->region->error);
      if (error) return (ncclResult_t)error;
      struct timespec nap = {.tv_nsec = 200000};
      nanosleep(&nap, NULL);
      continue;
    }
    ncclResult_t rc = sim_wait(c, word, sends ? 1 : 0, deadline);
    if (rc != ncclSuccess) return rc;
  }
  return ncclSuccess;
}

struct batch {
  struct ncclComm *comm;
  struct op *first;
  ncclResult_t rc;
};

/* The calls of one communicator, in order; point-to-point calls together at the end. */
static void *run_batch(void *arg) {
  struct batch *batch = arg;
  struct op *p2p[1024];
  size_t n = 0;
  for (struct op *op = batch->first; op && batch->rc == ncclSuccess; op = op->next) {
    if (op->comm != batch->comm) continue;
    if (op->kind == INIT) batch->rc = sim_await_all(op->comm);
    else if (op->kind != SEND && op->kind != RECV) batch->rc = run_collective(op);
    else if (n < sizeof p2p / sizeof *p2p) p2p[n++] = op;
    else batch->rc = ncclInvalidUsage;
  }
  if (batch->rc == ncclSuccess && n > 0) batch->rc = run_p2p(p2p, n);
  return NULL;
}

static ncclResult_t submit(struct op op) {
  struct ncclComm *c = op.comm;
  if (op.kind != INIT) {
    if (!c || sim_type_bytes(op.type) == 0) return ncclInvalidArgument;
    if (op.root < 0 || op.root >= c->nRanks) return ncclInvalidArgument;
    int error = atomic_load(&c->region->error);
    if (error) return (ncclResult_t)error;
  }
  if (group_depth == 0) {
    struct batch batch = {.comm = c, .first = &op};
    op.next = NULL;
    run_batch(&batch);
    return batch.rc;
  }
  struct op *kept = malloc(sizeof *kept);
  if (!kept) return ncclSystemError;
  *kept = op;
  kept->next = NULL;
  *group_last = kept;
  group_last = &kept->next;
  return ncclSuccess;
}

void sim_group_add_init(struct ncclComm *comm) { submit((struct op){.kind = INIT, .comm = comm}); }

SIM_EXPORT ncclResult_t ncclGroupStart(void) {
  if (group_depth++ == 0) {
    group_first = NULL;
    group_last = &group_first;
  }
  return ncclSuccess;
}
SIM_ALIAS(ncclGroupStart) ncclResult_t pncclGroupStart(void);

SIM_EXPORT ncclResult_t ncclGroupEnd(void) {
  if (group_depth == 0) return ncclInvalidUsage;
  if (--group_depth > 0) return ncclSuccess;
  struct batch batch[SIM_MAX_RANKS];
  pthread_t thread[SIM_MAX_RANKS];
  size_t n = 0;
  ncclResult_t rc = ncclSuccess;
  for (struct op *op = group_first; op; op = op->next) {
    size_t i = 0;
    while (i < n && batch[i].comm != op->comm) i++;
    if (i < n) continue;
    if (n == SIM_MAX_RANKS) {
      rc = ncclInvalidUsage;
      break;
    }
    batch[n++] = (struct batch){.comm = op->comm, .first = group_first};
  }
  /* Ranks that share this thread wait for each other, so each communicator runs on a thread of its own. */
  size_t started = 0;
  if (n == 1) run_batch(&batch[0]);
  else
    while (started < n && pthread_create(&thread[started], NULL, run_batch, &batch[started]) == 0) started++;
  if (n > 1 && started < n) rc = ncclSystemError;
  for (size_t i = 0; i < started; i++) pthread_join(thread[i], NULL);
  for (size_t i = 0; i < n; i++)
    if (rc == ncclSuccess) rc = batch[i].rc;
  while (group_first) {
    struct op *op = group_first;
    group_first = op->next;
    free(op);
  }
  return rc;
}
SIM_ALIAS(ncclGroupEnd) ncclResult_t pncclGroupEnd(void);

SIM_EXPORT ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                      ncclComm_t comm, cudaStream_t stream) {
  (void)stream;
  return submit((struct op){.kind = ALL_REDUCE, .send = send, .recv = recv, .count = count, .type = type, .red = op, .comm = comm});
}
SIM_ALIAS(ncclAllReduce)
ncclResult_t pncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                            ncclComm_t comm, cudaStream_t stream);

SIM_EXPORT ncclResult_t ncclBroadcast(const void *send, void *recv, size_t count, ncclDataType_t type, int root,
                                      ncclComm_t comm, cudaStream_t stream) {
  (void)stream;
  return submit((struct op){.kind = BROADCAST, .send = send, .recv = recv, .count = count, .type = type, .root = root, .comm = comm});
}
SIM_ALIAS(ncclBroadcast)
ncclResult_t pncclBroadcast(const void *send, void *recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                            cudaStream_t stream);

/* As in NCCL, the old name calls the new one: a tracer must count one call, not two. */
SIM_EXPORT ncclResult_t ncclBcast(void *buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                                  cudaStream_t stream) {
  return ncclBroadcast(buffer, buffer, count, type, root, comm, stream);
}
SIM_ALIAS(ncclBcast)
ncclResult_t pncclBcast(void *buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream);

SIM_EXPORT ncclResult_t ncclReduce(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                   int root, ncclComm_t comm, cudaStream_t stream) {
  (void)stream;
  return submit((struct op){.kind = REDUCE, .send = send, .recv = recv, .count = count, .type = type, .red = op, .root = root, .comm = comm});
}
SIM_ALIAS(ncclReduce)
ncclResult_t pncclReduce(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                         ncclComm_t comm, cudaStream_t stream);

SIM_EXPORT ncclResult_t ncclAllGather(const void *send, void *recv, size_t sendcount, ncclDataType_t type,
                                      ncclComm_t comm, cudaStream_t stream) {
  (void)stream;
  return submit((struct op){.kind = ALL_GATHER, .send = send, .recv = recv, .count = sendcount, .type = type, .comm = comm});
}
SIM_ALIAS(ncclAllGather)
ncclResult_t pncclAllGather(const void *send, void *recv, size_t sendcount, ncclDataType_t type, ncclComm_t comm,
                            cudaStream_t stream);

SIM_EXPORT ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t recvcount, ncclDataType_t type,
                                          ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  (void)stream;
  return submit((struct op){.kind = REDUCE_SCATTER, .send = send, .recv = recv, .count = recvcount, .type = type, .red = op, .comm = comm});
}
SIM_ALIAS(ncclReduceScatter)
ncclResult_t pncclReduceScatter(const void *send, void *recv, size_t recvcount, ncclDataType_t type, ncclRedOp_t op,
                                ncclComm_t comm, cudaStream_t stream);

SIM_EXPORT ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                                 cudaStream_t stream) {
  (void)stream;
  return submit((struct op){.kind = SEND, .send = send, .count = count, .type = type, .root = peer, .comm = comm});
}
SIM_ALIAS(ncclSend)
ncclResult_t pncclSend(const void *send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                       cudaStream_t stream);

SIM_EXPORT ncclResult_t ncclRecv(void *recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                                 cudaStream_t stream) {
  (void)stream;
  return submit((struct op){.kind = RECV, .recv = recv, .count = count, .type = type, .root = peer, .comm = comm});
}
SIM_ALIAS(ncclRecv)
ncclResult_t pncclRecv(void *recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream);
