/* How the ranks of a job are grouped, and the communication of one step: tensor, data and pipeline parallel groups, as
 * large models have them. */
#ifndef WORKLOADS_SHAPE_H
#define WORKLOADS_SHAPE_H

#include "common.h"
#include "nccl.h"

struct shape {
  int rank, ranks, tp, pp, dp, stage;
  int pairs_only; /* no collective ends a step */
  ncclComm_t world, tensor, pipe, data; /* those of one rank are NULL */
  float *send, *recv;
  size_t count;
  cudaStream_t stream;
  int all_reduces, all_gathers, sends, recvs; /* calls made */
};

/* Groups by split (tensor, pipe) and by an id of their own (data). Every rank of the world calls it. */
void shape_open(struct shape *s);
void shape_close(struct shape *s);
/* What comes before a rank's own work in a step, and what comes after it. */
void shape_before(struct shape *s);
void shape_after(struct shape *s);
/* Ends the program where a call failed. */
void check_nccl(ncclResult_t rc, const char *what);

#endif
