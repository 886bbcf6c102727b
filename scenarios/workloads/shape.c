#include "shape.h"
#include "gpu.h"

void check_nccl(ncclResult_t rc, const char *what) {
  if (rc == ncclSuccess) return;
  fprintf(stderr, "nccl-ranks: %s: %s\n", what, ncclGetErrorString(rc));
  exit(1);
}

void shape_open(struct shape *s) {
  /* neighbours in rank share a tensor group; a stage is a run of ranks */
  int place = s->rank % (s->tp * s->dp);
  s->stage = s->rank / (s->tp * s->dp);
  if (s->tp > 1)
    check_nccl(ncclCommSplit(s->world, s->rank / s->tp, s->rank, &s->tensor, NULL), "ncclCommSplit (tensor)");
  if (s->pp > 1) check_nccl(ncclCommSplit(s->world, place, s->rank, &s->pipe, NULL), "ncclCommSplit (pipeline)");
  if (s->dp > 1) {
    ncclUniqueId mine, *all = calloc((size_t)s->ranks, sizeof *all);
    if (!all) exit(1);
    check_nccl(ncclGetUniqueId(&mine), "ncclGetUniqueId");
    check_nccl(ncclAllGather(&mine, all, sizeof mine, ncclInt8, s->world, s->stream), "ncclAllGather");
    s->all_gathers++;
    if (s->stream) gpu_wait(s->stream);
    int first = s->stage * s->tp * s->dp + s->rank % s->tp;
    check_nccl(ncclCommInitRank(&s->data, s->dp, all[first], place / s->tp), "ncclCommInitRank (data)");
    free(all);
  }
}

void shape_close(struct shape *s) {
  if (s->tensor) check_nccl(ncclCommDestroy(s->tensor), "ncclCommDestroy");
  if (s->pipe) check_nccl(ncclCommDestroy(s->pipe), "ncclCommDestroy");
  if (s->data) check_nccl(ncclCommDestroy(s->data), "ncclCommDestroy");
}

static void all_reduce(struct shape *s, ncclComm_t comm) {
  check_nccl(ncclAllReduce(s->send, s->recv, s->count, ncclFloat32, ncclSum, comm, s->stream), "ncclAllReduce");
  s->all_reduces++;
}

void shape_before(struct shape *s) {
  if (!s->pipe || s->stage == 0) return;
  check_nccl(ncclRecv(s->recv, s->count, ncclFloat32, s->stage - 1, s->pipe, s->stream), "ncclRecv");
  s->recvs++;
}

void shape_after(struct shape *s) {
  if (s->tensor) {
    all_reduce(s, s->tensor);
    all_reduce(s, s->tensor);
  }
  if (s->pipe && s->stage < s->pp - 1) {
    check_nccl(ncclSend(s->send, s->count, ncclFloat32, s->stage + 1, s->pipe, s->stream), "ncclSend");
    s->sends++;
  }
  if (s->data) all_reduce(s, s->data);
  if (!s->pairs_only) all_reduce(s, s->world); /* the norm of the gradients, or the only one there is */
}
