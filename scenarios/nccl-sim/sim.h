/* nccl-sim, inside: the shared region of a communicator and what the C files share. Not part of the API (nccl.h). */
#ifndef NCCL_SIM_SIM_H
#define NCCL_SIM_SIM_H

#include <stdatomic.h>
#include <stdint.h>
#include "nccl.h"

/* The text by which tools tell NCCL's versions apart (strings, capture's choice of hash). */
#ifndef NCCL_SIM_VERSION
#define NCCL_SIM_VERSION "2.21.5"
#endif

#define SIM_MAGIC 0x0280028002800280ull /* NCCL's */
#define SIM_MAX_RANKS 128
#define SIM_CHUNK_BYTES (64u * 1024u)
#define SIM_DEFAULT_TIMEOUT_MS 60000

/* What one rank shows the others. */
struct sim_slot {
  _Atomic int pid;
  _Atomic int color, key; /* of the split under way */
  _Atomic uint32_t len;   /* bytes staged in this rank's chunk */
};

/* A one-chunk mailbox from one rank to another. */
struct sim_mail {
  _Atomic uint32_t full; /* futex: 1 while a chunk waits to be taken */
  uint32_t len;
};

/* The start of the shared file. Behind it: nranks chunks, then (on first use) nranks*nranks mail chunks. */
struct sim_region {
  _Atomic int nranks;
  _Atomic uint32_t joined; /* futex */
  _Atomic int error;       /* sticky ncclResult_t: one rank's failure ends the communicator for all */
  _Atomic uint32_t arrived;
  _Atomic uint32_t generation; /* futex of the barrier */
  struct sim_slot slot[SIM_MAX_RANKS];
  struct sim_mail mail[SIM_MAX_RANKS * SIM_MAX_RANKS];
};

/* The names of the first fields are NCCL's own: capture finds them by the debug information. */
struct ncclComm {
  uint64_t startMagic; /* SIM_MAGIC while it lives */
  uint64_t commHash;
  int rank, nRanks, device;
  struct sim_region *region;
  size_t mapped_bytes;
  char name[64];     /* of the shared memory object */
  uint64_t key[2];   /* names the region; a split derives its own */
  uint32_t children; /* splits so far, equal on every rank */
  int pidfd[SIM_MAX_RANKS]; /* opened when a wait gets long; -1 not yet */
};

/* shm.c */
ncclResult_t sim_open(struct ncclComm *comm);          /* creates or opens the region and counts itself in */
ncclResult_t sim_await_all(struct ncclComm *comm);     /* until every rank has joined */
ncclResult_t sim_barrier(struct ncclComm *comm);
ncclResult_t sim_wait(struct ncclComm *comm, _Atomic uint32_t *word, uint32_t while_value, uint64_t deadline_ns);
void sim_wake(_Atomic uint32_t *word);
void sim_fail(struct ncclComm *comm, ncclResult_t error);
void sim_close(struct ncclComm *comm);
uint64_t sim_now_ns(void);
uint64_t sim_deadline_ns(void);
char *sim_chunk(struct ncclComm *comm, int rank);
char *sim_mail_chunk(struct ncclComm *comm, int from, int to);

/* hash.c */
uint64_t sim_id_hash(const ncclUniqueId *id);
uint64_t sim_split_hash(uint64_t parent, int child, int color);

/* reduce.c */
size_t sim_type_bytes(ncclDataType_t type);
/* into = into (op) other, element by element; false when type and op do not go together. */
int sim_reduce(void *into, const void *other, size_t count, ncclDataType_t type, ncclRedOp_t op);
/* into = into / n, for ncclAvg. */
int sim_divide(void *into, size_t count, ncclDataType_t type, int n);

/* run.c */
enum kind { INIT, ALL_REDUCE, BROADCAST, REDUCE, ALL_GATHER, REDUCE_SCATTER, SEND, RECV };

struct op {
  enum kind kind;
  const char *send;
  char *recv;
  size_t count;
  ncclDataType_t type;
  ncclRedOp_t red;
  int root; /* or peer */
  void *stream;
  ncclComm_t *out; /* of INIT: where the handle goes */
  struct ncclComm *comm;
  size_t done_bytes; /* point-to-point progress */
  struct op *next;
};

/* The calls of one communicator in a list that may hold others', too. */
struct sim_batch {
  struct ncclComm *comm;
  struct op *first;
  ncclResult_t rc;
};
void *sim_run(void *batch);

/* enqueue.c */
int sim_enqueues(void);                                             /* as the real library does */
ncclResult_t sim_enqueue(const struct sim_batch *batch, void *stream); /* takes a copy */
void sim_device_wait(void);                                         /* for all that was enqueued; nothing where nothing is */

/* coll.c */
int sim_in_group(void);
void sim_group_add_init(struct ncclComm *comm, ncclComm_t *out);

#define SIM_EXPORT __attribute__((visibility("default")))
#define SIM_ALIAS(name) __attribute__((visibility("default"), alias(#name)))

#endif
