/* The ring between a rank and the agent: a file that the rank makes in $RANKMESH_RING_DIR and maps, and the agent reads with
 * pread. src/rings/layout.rs mirrors it; both sides assert the sizes. Many threads write, one agent reads.
 *
 * A writer takes the ticket `head` when fewer than `slots` are taken and not read (`tail`), fills slot `ticket % slots`, and
 * publishes it by setting the slot's `ready` to ticket + 1. The agent reads slots in order as far as they are ready,
 * then moves `tail`. Nobody waits for anybody: without room the writer counts a loss and goes on. */
#ifndef RANKMESH_RING_H
#define RANKMESH_RING_H

#include "../bpf/wire.h"

#define RM_RING_MAGIC 0x31474e4952534d52ULL /* "RMSRING1" */
#define RM_RING_VERSION 2
#define RM_RING_SLOTS 8192
#define RM_RING_NAMES 192
#define RM_RING_NAME_BYTES 32
#define RM_RING_THREADS 32

/* rm_call.flags, in rings alone: the call's arguments from RM_DEVICE_FIRST on are of the device, not the function's: when it
 * began and ended there by the device's clock, and a host time (CLOCK_MONOTONIC) less a device time of about the same moment,
 * too large by as long as it took to be noticed. Of a call that has not ended (struct rm_ring_thread) RM_DEVICE_FIRST. */
#define RM_DEVICE_TIMES 128
#define RM_DEVICE_FIRST 8
#define RM_DEVICE_LAST 9
#define RM_DEVICE_OFFSET 10

/* The call that a thread is in; func is its index plus one, 0: in none. */
struct rm_ring_thread {
  unsigned int tid;
  unsigned int func;
  unsigned long long enter_ns;
  unsigned long long seq; /* all ones: not counted */
  unsigned long long comm_seq; /* RM_NO_POSITION: none */
  unsigned long long comm_hash;
  int rank, nranks;
  unsigned int flags; /* RM_HAVE_HASH, RM_HAVE_RANK */
  unsigned int pad;
  unsigned long long args[RM_MAX_ARGS];
};

struct rm_ring_slot {
  unsigned long long ready;
  struct rm_call call; /* `func` counts in `names`; cgroup_id is 0 */
};

struct rm_ring {
  unsigned long long magic; /* written last */
  unsigned int version, pid;
  unsigned int slots, names_used;
  unsigned char pad0[40];
  unsigned long long head; /* tickets taken */
  unsigned char pad1[56];
  unsigned long long tail; /* tickets read, written by the agent */
  unsigned char pad2[56];
  unsigned long long lost; /* no room, or more different communicators and functions than are counted */
  unsigned char pad3[312];
  char names[RM_RING_NAMES][RM_RING_NAME_BYTES]; /* the functions, as their symbols: "MPI_Allreduce" */
  unsigned char pad4[1536];
  struct rm_ring_thread threads[RM_RING_THREADS];
  unsigned char pad5[3328];
  struct rm_ring_slot slot[RM_RING_SLOTS];
};

_Static_assert(sizeof(struct rm_ring_thread) == 152, "src/rings/layout.rs reads 152 bytes");
_Static_assert(sizeof(struct rm_ring_slot) == 184, "src/rings/layout.rs reads 184 bytes");
_Static_assert(__builtin_offsetof(struct rm_ring, head) == 64, "head");
_Static_assert(__builtin_offsetof(struct rm_ring, tail) == 128, "tail");
_Static_assert(__builtin_offsetof(struct rm_ring, lost) == 192, "lost");
_Static_assert(__builtin_offsetof(struct rm_ring, names) == 512, "names");
_Static_assert(__builtin_offsetof(struct rm_ring, threads) == 8192, "threads");
_Static_assert(__builtin_offsetof(struct rm_ring, slot) == 16384, "slot");

#endif
