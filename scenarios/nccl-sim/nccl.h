/* The part of NCCL's public C API that nccl-sim offers: names, types, enum values and calling convention as NCCL
 * documents them (docs.nvidia.com/deeplearning/nccl, "NCCL API"). Own header; no line of it comes from NCCL's.
 * What runs behind it lives in comm.c (communicators), coll.c (collectives and groups), shm.c (the shared region). */
#ifndef NCCL_SIM_NCCL_H
#define NCCL_SIM_NCCL_H

#include <stddef.h>

#define NCCL_MAJOR 2
#define NCCL_MINOR 21
#define NCCL_PATCH 5
#define NCCL_VERSION_CODE 22105
#define NCCL_UNIQUE_ID_BYTES 128
#define NCCL_SPLIT_NOCOLOR (-1)

typedef struct ncclComm *ncclComm_t;
typedef void *cudaStream_t;
/* Passed by value: 128 bytes on the stack (x86-64), by reference to a copy (aarch64). */
typedef struct { char internal[NCCL_UNIQUE_ID_BYTES]; } ncclUniqueId;
/* Opaque here: the simulator reads nothing from it. */
typedef struct ncclConfig_v21700 ncclConfig_t;

typedef enum {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7
} ncclResult_t;

typedef enum { ncclSum = 0, ncclProd = 1, ncclMax = 2, ncclMin = 3, ncclAvg = 4 } ncclRedOp_t;

typedef enum {
  ncclInt8 = 0,
  ncclUint8 = 1,
  ncclInt32 = 2,
  ncclUint32 = 3,
  ncclInt64 = 4,
  ncclUint64 = 5,
  ncclFloat16 = 6,
  ncclFloat32 = 7,
  ncclFloat64 = 8,
  ncclBfloat16 = 9,
  ncclFloat8e4m3 = 10,
  ncclFloat8e5m2 = 11
} ncclDataType_t;

/* Every entry point twice, as NCCL exports it: ncclXxx and pncclXxx at one address. */
#define NCCL_SIM_API(ret, name, ...) ret name(__VA_ARGS__); ret p##name(__VA_ARGS__)

NCCL_SIM_API(ncclResult_t, ncclGetVersion, int *version);
NCCL_SIM_API(const char *, ncclGetErrorString, ncclResult_t result);
NCCL_SIM_API(const char *, ncclGetLastError, ncclComm_t comm);
NCCL_SIM_API(ncclResult_t, ncclGetUniqueId, ncclUniqueId *id);
NCCL_SIM_API(ncclResult_t, ncclCommInitRank, ncclComm_t *comm, int nranks, ncclUniqueId id, int rank);
NCCL_SIM_API(ncclResult_t, ncclCommInitRankConfig, ncclComm_t *comm, int nranks, ncclUniqueId id, int rank,
             ncclConfig_t *config);
NCCL_SIM_API(ncclResult_t, ncclCommInitRankScalable, ncclComm_t *comm, int nranks, int rank, int nid,
             ncclUniqueId *ids, ncclConfig_t *config);
NCCL_SIM_API(ncclResult_t, ncclCommInitAll, ncclComm_t *comms, int ndev, const int *devices);
NCCL_SIM_API(ncclResult_t, ncclCommSplit, ncclComm_t comm, int color, int key, ncclComm_t *newcomm,
             ncclConfig_t *config);
NCCL_SIM_API(ncclResult_t, ncclCommShrink, ncclComm_t comm, int *excludeRanksList, int excludeRanksCount,
             ncclComm_t *newcomm, ncclConfig_t *config, int shrinkFlags);
NCCL_SIM_API(ncclResult_t, ncclCommGrow, ncclComm_t comm, int nRanks, const ncclUniqueId *uniqueId, int rank,
             ncclComm_t *newcomm, ncclConfig_t *config);
NCCL_SIM_API(ncclResult_t, ncclCommFinalize, ncclComm_t comm);
NCCL_SIM_API(ncclResult_t, ncclCommDestroy, ncclComm_t comm);
NCCL_SIM_API(ncclResult_t, ncclCommAbort, ncclComm_t comm);
NCCL_SIM_API(ncclResult_t, ncclCommGetAsyncError, ncclComm_t comm, ncclResult_t *error);
NCCL_SIM_API(ncclResult_t, ncclCommCount, const ncclComm_t comm, int *count);
NCCL_SIM_API(ncclResult_t, ncclCommUserRank, const ncclComm_t comm, int *rank);
NCCL_SIM_API(ncclResult_t, ncclCommCuDevice, const ncclComm_t comm, int *device);
NCCL_SIM_API(ncclResult_t, ncclGroupStart, void);
NCCL_SIM_API(ncclResult_t, ncclGroupEnd, void);
NCCL_SIM_API(ncclResult_t, ncclAllReduce, const void *send, void *recv, size_t count, ncclDataType_t type,
             ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
NCCL_SIM_API(ncclResult_t, ncclBroadcast, const void *send, void *recv, size_t count, ncclDataType_t type, int root,
             ncclComm_t comm, cudaStream_t stream);
NCCL_SIM_API(ncclResult_t, ncclBcast, void *buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
             cudaStream_t stream);
NCCL_SIM_API(ncclResult_t, ncclReduce, const void *send, void *recv, size_t count, ncclDataType_t type,
             ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream);
NCCL_SIM_API(ncclResult_t, ncclAllGather, const void *send, void *recv, size_t sendcount, ncclDataType_t type,
             ncclComm_t comm, cudaStream_t stream);
NCCL_SIM_API(ncclResult_t, ncclReduceScatter, const void *send, void *recv, size_t recvcount, ncclDataType_t type,
             ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
NCCL_SIM_API(ncclResult_t, ncclSend, const void *send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
             cudaStream_t stream);
NCCL_SIM_API(ncclResult_t, ncclRecv, void *recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
             cudaStream_t stream);

#endif
