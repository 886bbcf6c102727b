/* What this plugin needs of NCCL's profiler interface, as facts of its binary interface: offsets, bits and numbers, not
 * NCCL's text. Sources: NVIDIA's documentation ext-profiler/README.md and the headers src/include/plugin/nccl_profiler.h
 * and profiler/profiler_v1.h … v7.h (github.com/NVIDIA/nccl); offsets compared with the debug information of the published
 * libraries 2.27.5 (loads versions 1 to 4) and 2.32.3 (1 to 7): `gdb -batch -ex 'ptype /o ncclProfilerEventDescr_v7_t' libnccl.so.2`.
 *
 * A library offers `ncclProfiler_vN` for each version it knows; NCCL takes the highest that it knows, too:
 *   v1 2.23, v2 2.24, v3 2.26, v4 2.27, v5 2.28, v6 2.29, v7 2.31 and later. */
#ifndef RANKMESH_NCCL_ABI_H
#define RANKMESH_NCCL_ABI_H

#include <stddef.h>
#include <stdint.h>

/* Kinds of events, also the bits of the mask that `init` sets. */
enum {
  EVENT_COLL = 1 << 1,       /* a collective of a kernel plan: from its preparation to the end of its enqueuing */
  EVENT_P2P = 1 << 2,        /* a send or receive, likewise */
  EVENT_KERNEL_CH = 1 << 6,  /* one channel of one of these runs on the device; versions 4 and later give device times */
  EVENT_COLL_API = 1 << 9,   /* version 5: the application's call */
  EVENT_P2P_API = 1 << 10,
};
/* A state that recordEventState tells: a kernel channel has ended, with the device's time. */
#define STATE_KERNEL_CH_STOP 22

/* Every version: the event starts with its kind (one byte up to version 4, eight from 5 on), parent and rank. */
struct event_head {
  uint64_t kind;
  void *parent;
  int rank;
};

/* Versions 4 to 7; the fields that follow these differ. */
struct event_v4 {
  struct event_head head;
  union {
    struct {
      uint64_t seq;
      const char *func; /* "AllReduce" */
      const void *send;
      void *receive;
      size_t count;
      int root;
      const char *datatype; /* "ncclFloat32" */
      uint8_t channels;
    } coll;
    struct {
      const char *func;
      void *buffer;
      const char *datatype;
      size_t count;
      int peer;
      uint8_t channels;
    } p2p;
    struct {
      uint8_t channel;
      uint64_t timer; /* the device's global timer, nanoseconds */
    } kernel_ch;
    struct { /* version 5 */
      const char *func;
      size_t count;
      const char *datatype;
      int root;
      void *stream;
      uint8_t captured;
    } coll_api;
    struct { /* version 5 */
      const char *func;
      size_t count;
      const char *datatype;
      void *stream;
      uint8_t captured;
    } p2p_api;
  };
};

/* Versions 2 and 3. */
struct event_v2 {
  struct event_head head;
  union {
    struct {
      const char *name;
      uint64_t comm_hash, seq;
      const char *func;
      const void *send;
      void *receive;
      size_t count;
      int root;
      const char *datatype;
    } coll;
    struct {
      const char *name;
      uint64_t comm_hash;
      const char *func;
      void *buffer;
      const char *datatype;
      size_t count;
      int peer;
    } p2p;
  };
};

/* Version 1: functions and data types as numbers. */
struct event_v1 {
  struct event_head head;
  union {
    struct {
      const char *name;
      uint64_t comm_hash, seq;
      uint8_t func;
      const void *send;
      void *receive;
      size_t count;
      int root;
      uint8_t datatype;
    } coll;
    struct {
      const char *name;
      uint64_t comm_hash;
      uint8_t func;
      void *buffer;
      uint8_t datatype;
      size_t count;
      int peer;
    } p2p;
  };
};

/* Version 1's numbers of functions (ncclFunc_t of 2.23). */
enum { FUNC_V1_BROADCAST, FUNC_V1_REDUCE, FUNC_V1_ALL_GATHER, FUNC_V1_REDUCE_SCATTER, FUNC_V1_ALL_REDUCE, FUNC_V1_SEND_RECV, FUNC_V1_SEND, FUNC_V1_RECV };

union state_args {
  uint64_t timer; /* of STATE_KERNEL_CH_STOP */
};

/* ncclResult_t of all of them: 0. Versions 1 to 3 and 4 and later differ in init alone, version 5 swaps its arguments. */
struct plugin {
  const char *name;
  void *init;
  int (*start_event)(void *context, void **handle, void *event);
  int (*stop_event)(void *handle);
  int (*record_event_state)(void *handle, int state, union state_args *args);
  int (*finalize)(void *context);
};

_Static_assert(offsetof(struct event_v4, coll.count) == 56 && offsetof(struct event_v4, coll.channels) == 80, "v4 to v7");
_Static_assert(offsetof(struct event_v4, p2p.count) == 48 && offsetof(struct event_v4, p2p.channels) == 60, "v4 to v7");
_Static_assert(offsetof(struct event_v4, kernel_ch.timer) == 32, "v4 to v7");
_Static_assert(offsetof(struct event_v4, coll_api.stream) == 56 && offsetof(struct event_v4, p2p_api.stream) == 48, "v5 to v7");
_Static_assert(offsetof(struct event_v2, coll.count) == 72 && offsetof(struct event_v2, coll.datatype) == 88, "v2, v3");
_Static_assert(offsetof(struct event_v2, p2p.count) == 64 && offsetof(struct event_v2, p2p.peer) == 72, "v2, v3");
_Static_assert(offsetof(struct event_v1, coll.count) == 72 && offsetof(struct event_v1, coll.datatype) == 84, "v1");
_Static_assert(offsetof(struct event_v1, p2p.count) == 64 && offsetof(struct event_v1, p2p.peer) == 72, "v1");

#endif
