/* Communicators: unique ids, init in its four forms, split, destroy, and the small enquiries.
 * Collectives and groups are in coll.c, the shared region in shm.c. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include "sim.h"

__attribute__((used)) static const char version_text[] = "NCCL version " NCCL_SIM_VERSION "+sim";

SIM_EXPORT ncclResult_t ncclGetVersion(int *version) {
  if (!version) return ncclInvalidArgument;
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
SIM_ALIAS(ncclGetVersion) ncclResult_t pncclGetVersion(int *version);

SIM_EXPORT const char *ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "unhandled cuda error";
    case ncclSystemError: return "unhandled system error";
    case ncclInternalError: return "internal error";
    case ncclInvalidArgument: return "invalid argument";
    case ncclInvalidUsage: return "invalid usage";
    case ncclRemoteError: return "a peer died or did not come in time";
    case ncclInProgress: return "operation in progress";
  }
  return "unknown result code";
}
SIM_ALIAS(ncclGetErrorString) const char *pncclGetErrorString(ncclResult_t result);

SIM_EXPORT const char *ncclGetLastError(ncclComm_t comm) {
  (void)comm;
  return "";
}
SIM_ALIAS(ncclGetLastError) const char *pncclGetLastError(ncclComm_t comm);

/* 128 random bytes: high bits set and zero bytes occur, as in real ids. */
SIM_EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
  if (!id) return ncclInvalidArgument;
  return getrandom(id, sizeof *id, 0) == (ssize_t)sizeof *id ? ncclSuccess : ncclSystemError;
}
SIM_ALIAS(ncclGetUniqueId) ncclResult_t pncclGetUniqueId(ncclUniqueId *id);

static ncclResult_t init_with_key(ncclComm_t *out, int nranks, const uint64_t key[2], uint64_t hash, int rank,
                                  int device) {
  *out = NULL;
  if (nranks < 1 || nranks > SIM_MAX_RANKS || rank < 0 || rank >= nranks) return ncclInvalidArgument;
  struct ncclComm *comm = calloc(1, sizeof *comm);
  if (!comm) return ncclSystemError;
  comm->startMagic = SIM_MAGIC;
  comm->commHash = hash;
  comm->rank = rank;
  comm->nRanks = nranks;
  comm->device = device;
  comm->key[0] = key[0];
  comm->key[1] = key[1];
  ncclResult_t rc = sim_open(comm);
  if (rc != ncclSuccess) {
    free(comm);
    return rc;
  }
  if (sim_in_group()) { /* several ranks of one thread: wait for the others at ncclGroupEnd, which also writes the handle */
    sim_group_add_init(comm, out);
    return ncclSuccess;
  }
  *out = comm;
  rc = sim_await_all(comm);
  if (rc != ncclSuccess) {
    sim_close(comm);
    free(comm);
    *out = NULL;
  }
  return rc;
}

static int local_rank(int rank) {
  const char *text = getenv("LOCAL_RANK");
  return text ? atoi(text) : rank;
}

static ncclResult_t init_with_id(ncclComm_t *out, int nranks, const ncclUniqueId *id, int rank, int device) {
  if (!out || !id) return ncclInvalidArgument;
  uint64_t key[2];
  memcpy(key, id->internal, sizeof key);
  return init_with_key(out, nranks, key, sim_id_hash(id), rank, device);
}

SIM_EXPORT ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank) {
  return init_with_id(comm, nranks, &id, rank, local_rank(rank));
}
SIM_ALIAS(ncclCommInitRank) ncclResult_t pncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank);

SIM_EXPORT ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank,
                                               ncclConfig_t *config) {
  (void)config;
  return init_with_id(comm, nranks, &id, rank, local_rank(rank));
}
SIM_ALIAS(ncclCommInitRankConfig)
ncclResult_t pncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t *config);

SIM_EXPORT ncclResult_t ncclCommInitRankScalable(ncclComm_t *comm, int nranks, int rank, int nid, ncclUniqueId *ids,
                                                 ncclConfig_t *config) {
  (void)config;
  if (nid < 1) return ncclInvalidArgument;
  return init_with_id(comm, nranks, ids, rank, local_rank(rank));
}
SIM_ALIAS(ncclCommInitRankScalable)
ncclResult_t pncclCommInitRankScalable(ncclComm_t *comm, int nranks, int rank, int nid, ncclUniqueId *ids,
                                       ncclConfig_t *config);

SIM_EXPORT ncclResult_t ncclCommInitAll(ncclComm_t *comms, int ndev, const int *devices) {
  if (!comms || ndev < 1) return ncclInvalidArgument;
  ncclUniqueId id;
  ncclResult_t rc = ncclGetUniqueId(&id);
  if (rc != ncclSuccess) return rc;
  ncclGroupStart();
  for (int i = 0; i < ndev && rc == ncclSuccess; i++)
    rc = init_with_id(&comms[i], ndev, &id, i, devices ? devices[i] : i);
  ncclResult_t end = ncclGroupEnd();
  return rc != ncclSuccess ? rc : end;
}
SIM_ALIAS(ncclCommInitAll) ncclResult_t pncclCommInitAll(ncclComm_t *comms, int ndev, const int *devices);

/* Every rank of the parent calls it; ranks of one color become a communicator, ordered by key, then parent rank. */
SIM_EXPORT ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config) {
  (void)config;
  if (!comm || !newcomm) return ncclInvalidArgument;
  *newcomm = NULL;
  if (sim_in_group()) return ncclInvalidUsage;
  sim_device_wait(); /* the region's barrier serves one at a time */
  struct sim_slot *slot = comm->region->slot;
  uint32_t child = ++comm->children;
  atomic_store(&slot[comm->rank].color, color);
  atomic_store(&slot[comm->rank].key, key);
  ncclResult_t rc = sim_barrier(comm);
  if (rc != ncclSuccess) return rc;
  int rank = 0, nranks = 0;
  for (int r = 0; r < comm->nRanks; r++) {
    if (atomic_load(&slot[r].color) != color) continue;
    nranks++;
    int other = atomic_load(&slot[r].key);
    if (other < key || (other == key && r < comm->rank)) rank++;
  }
  rc = sim_barrier(comm); /* the slots are free again */
  if (rc != ncclSuccess || color < 0) return rc;
  uint64_t derived[2] = {comm->key[0] ^ (0x9e3779b97f4a7c15ull * child), comm->key[1] + (uint64_t)(unsigned)color + 1};
  uint64_t hash = sim_split_hash(comm->commHash, (int)child, color);
  return init_with_key(newcomm, nranks, derived, hash, rank, comm->device);
}
SIM_ALIAS(ncclCommSplit)
ncclResult_t pncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config);

/* Every rank but the excluded ones calls it; those that stay keep their order. */
SIM_EXPORT ncclResult_t ncclCommShrink(ncclComm_t comm, int *excluded, int count, ncclComm_t *newcomm, ncclConfig_t *config,
                                       int flags) {
  (void)config, (void)flags;
  if (!comm || !newcomm || count < 0 || (count && !excluded)) return ncclInvalidArgument;
  *newcomm = NULL;
  if (sim_in_group()) return ncclInvalidUsage;
  sim_device_wait();
  int rank = comm->rank;
  for (int i = 0; i < count; i++) {
    if (excluded[i] == comm->rank) return ncclInvalidUsage;
    rank -= excluded[i] < comm->rank;
  }
  uint32_t child = ++comm->children;
  uint64_t derived[2] = {comm->key[0] ^ (0x9e3779b97f4a7c15ull * child), comm->key[1] - 1};
  uint64_t hash = sim_split_hash(comm->commHash, (int)child, 0);
  return init_with_key(newcomm, comm->nRanks - count, derived, hash, rank, comm->device);
}
SIM_ALIAS(ncclCommShrink)
ncclResult_t pncclCommShrink(ncclComm_t comm, int *excluded, int count, ncclComm_t *newcomm, ncclConfig_t *config, int flags);

/* Ranks of a communicator keep theirs and say -1; those that come say which they are, and have no communicator. */
SIM_EXPORT ncclResult_t ncclCommGrow(ncclComm_t comm, int nranks, const ncclUniqueId *id, int rank, ncclComm_t *newcomm,
                                     ncclConfig_t *config) {
  (void)config;
  if (!comm == (rank < 0)) return ncclInvalidArgument;
  return init_with_id(newcomm, nranks, id, comm ? comm->rank : rank, comm ? comm->device : local_rank(rank));
}
SIM_ALIAS(ncclCommGrow)
ncclResult_t pncclCommGrow(ncclComm_t comm, int nranks, const ncclUniqueId *id, int rank, ncclComm_t *newcomm,
                           ncclConfig_t *config);

SIM_EXPORT ncclResult_t ncclCommFinalize(ncclComm_t comm) { return comm ? ncclSuccess : ncclInvalidArgument; }
SIM_ALIAS(ncclCommFinalize) ncclResult_t pncclCommFinalize(ncclComm_t comm);

SIM_EXPORT ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (!comm) return ncclSuccess;
  sim_device_wait();
  sim_close(comm);
  comm->startMagic = 0;
  free(comm);
  return ncclSuccess;
}
SIM_ALIAS(ncclCommDestroy) ncclResult_t pncclCommDestroy(ncclComm_t comm);

SIM_EXPORT ncclResult_t ncclCommAbort(ncclComm_t comm) {
  if (!comm) return ncclSuccess;
  sim_fail(comm, ncclRemoteError);
  return ncclCommDestroy(comm);
}
SIM_ALIAS(ncclCommAbort) ncclResult_t pncclCommAbort(ncclComm_t comm);

SIM_EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error) {
  if (!comm || !error) return ncclInvalidArgument;
  *error = (ncclResult_t)atomic_load(&comm->region->error);
  return ncclSuccess;
}
SIM_ALIAS(ncclCommGetAsyncError) ncclResult_t pncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error);

#define ENQUIRY(name, field)                                        \
  SIM_EXPORT ncclResult_t name(const ncclComm_t comm, int *value) { \
    if (!comm || !value) return ncclInvalidArgument;                \
    *value = comm->field;                                           \
    return ncclSuccess;                                             \
  }                                                                 \
  SIM_ALIAS(name) ncclResult_t p##name(const ncclComm_t comm, int *value);
ENQUIRY(ncclCommCount, nRanks)
ENQUIRY(ncclCommUserRank, rank)
ENQUIRY(ncclCommCuDevice, device)
