/* A libnccl.so.2 whose calls do nothing: for loads, where the work of nccl-sim would be in the way. Built without
 * optimisation, so that its functions begin with a push as NCCL's do (what a uprobe costs depends on the first instruction:
 * a push is emulated by the kernel, most others are single-stepped). */
#include <string.h>
#include "nccl.h"

#define EXPORT __attribute__((visibility("default"), noinline))
struct ncclComm { int rank; };
static struct ncclComm the_comm;

EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
  memset(id, 7, sizeof *id);
  return ncclSuccess;
}
EXPORT ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank) {
  (void)nranks, (void)id;
  the_comm.rank = rank;
  *comm = &the_comm;
  return ncclSuccess;
}
EXPORT ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                  ncclComm_t comm, cudaStream_t stream) {
  (void)count, (void)type, (void)op, (void)comm, (void)stream;
  *(float *)recv = *(const float *)send;
  return ncclSuccess;
}
EXPORT ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  (void)comm;
  return ncclSuccess;
}
