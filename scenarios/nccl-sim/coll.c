/* The collective and point-to-point calls, and groups. Buffers are host memory. A call returns when the operation is done
 * (in a group: ncclGroupEnd does), or, with NCCL_SIM_MODE=enqueue, when it is in its stream's queue (enqueue.c). Every
 * collective is a barrier among its ranks, so a late rank holds the others up, as on real GPUs the kernels would. What is
 * done is in run.c, communicators are in comm.c. */
#define _GNU_SOURCE
#include <pthread.h>
#include <time.h>
#include <stdlib.h>
#include <string.h>
#include "sim.h"

static __thread int group_depth;
static __thread struct op *group_first, **group_last;

int sim_in_group(void) { return group_depth > 0; }

static ncclResult_t submit(struct op op) {
  struct ncclComm *c = op.comm;
  if (op.kind != INIT) {
    if (!c || sim_type_bytes(op.type) == 0) return ncclInvalidArgument;
    if (op.root < 0 || op.root >= c->nRanks) return ncclInvalidArgument;
    int error = atomic_load(&c->region->error);
    if (error) return (ncclResult_t)error;
  }
  if (group_depth == 0) {
    struct sim_batch batch = {.comm = c, .first = &op};
    op.next = NULL;
    if (op.kind != INIT && sim_enqueues()) return sim_enqueue(&batch, op.stream);
    sim_run(&batch);
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

void sim_group_add_init(struct ncclComm *comm, ncclComm_t *out) { submit((struct op){.kind = INIT, .comm = comm, .out = out}); }

SIM_EXPORT ncclResult_t ncclGroupStart(void) {
  if (group_depth++ == 0) {
    group_first = NULL;
    group_last = &group_first;
  }
  return ncclSuccess;
}
SIM_ALIAS(ncclGroupStart) ncclResult_t pncclGroupStart(void);

/* Of its first call. */
static void *stream_of(const struct sim_batch *batch) {
  const struct op *op = batch->first;
  while (op->comm != batch->comm) op = op->next;
  return op->stream;
}

SIM_EXPORT ncclResult_t ncclGroupEnd(void) {
  if (group_depth == 0) return ncclInvalidUsage;
  if (--group_depth > 0) return ncclSuccess;
  struct sim_batch batch[SIM_MAX_RANKS];
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
    batch[n++] = (struct sim_batch){.comm = op->comm, .first = group_first};
  }
  if (n > 0 && group_first->kind != INIT && sim_enqueues()) {
    for (size_t i = 0; i < n && rc == ncclSuccess; i++) rc = sim_enqueue(&batch[i], stream_of(&batch[i]));
    n = 0;
  }
  /* Ranks that share this thread wait for each other, so each communicator runs on a thread of its own. */
  size_t started = 0;
  if (n == 1) sim_run(&batch[0]);
  else
    while (started < n && pthread_create(&thread[started], NULL, sim_run, &batch[started]) == 0) started++;
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
  return submit((struct op){.kind = ALL_REDUCE, .send = send, .recv = recv, .count = count, .type = type, .red = op, .comm = comm, .stream = stream});
}
SIM_ALIAS(ncclAllReduce)
ncclResult_t pncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                            ncclComm_t comm, cudaStream_t stream);

SIM_EXPORT ncclResult_t ncclBroadcast(const void *send, void *recv, size_t count, ncclDataType_t type, int root,
                                      ncclComm_t comm, cudaStream_t stream) {
  return submit((struct op){.kind = BROADCAST, .send = send, .recv = recv, .count = count, .type = type, .root = root, .comm = comm, .stream = stream});
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
  return submit((struct op){.kind = REDUCE, .send = send, .recv = recv, .count = count, .type = type, .red = op, .root = root, .comm = comm, .stream = stream});
}
SIM_ALIAS(ncclReduce)
ncclResult_t pncclReduce(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                         ncclComm_t comm, cudaStream_t stream);

SIM_EXPORT ncclResult_t ncclAllGather(const void *send, void *recv, size_t sendcount, ncclDataType_t type,
                                      ncclComm_t comm, cudaStream_t stream) {
  return submit((struct op){.kind = ALL_GATHER, .send = send, .recv = recv, .count = sendcount, .type = type, .comm = comm, .stream = stream});
}
SIM_ALIAS(ncclAllGather)
ncclResult_t pncclAllGather(const void *send, void *recv, size_t sendcount, ncclDataType_t type, ncclComm_t comm,
                            cudaStream_t stream);

SIM_EXPORT ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t recvcount, ncclDataType_t type,
                                          ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return submit((struct op){.kind = REDUCE_SCATTER, .send = send, .recv = recv, .count = recvcount, .type = type, .red = op, .comm = comm, .stream = stream});
}
SIM_ALIAS(ncclReduceScatter)
ncclResult_t pncclReduceScatter(const void *send, void *recv, size_t recvcount, ncclDataType_t type, ncclRedOp_t op,
                                ncclComm_t comm, cudaStream_t stream);

SIM_EXPORT ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                                 cudaStream_t stream) {
  return submit((struct op){.kind = SEND, .send = send, .count = count, .type = type, .root = peer, .comm = comm, .stream = stream});
}
SIM_ALIAS(ncclSend)
ncclResult_t pncclSend(const void *send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                       cudaStream_t stream);

SIM_EXPORT ncclResult_t ncclRecv(void *recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                                 cudaStream_t stream) {
  return submit((struct op){.kind = RECV, .recv = recv, .count = count, .type = type, .root = peer, .comm = comm, .stream = stream});
}
SIM_ALIAS(ncclRecv)
ncclResult_t pncclRecv(void *recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream);
