/* Stands in for NCCL towards its profiler plugin: calls it as NCCL 2.23 to 2.32 do (src/plugin/profiler.cc and
 * profiler/profiler_vN.cc of github.com/NVIDIA/nccl), in the same order, with the structures of the same layout:
 *   init; per operation the API events around each other (version 5 on), the group, the operation's start and end as it is
 *   enqueued; then from another thread the start and end of each channel, with the times of a clock of the device's own.
 * Usage: nccl_host PLUGIN VERSION THREADS OPERATIONS CHANNELS [leave the last one open].
 * Prints "done FIRST_NS" (CLOCK_REALTIME of the first operation's start on the device) and waits for the end of its input. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "nccl_abi.h"

typedef int (*init_v1)(void **, int *);
typedef int (*init_v4)(void **, int *, const char *, uint64_t, int, int, int, void *);
typedef int (*init_v5)(void **, uint64_t, int *, const char *, int, int, int, void *);

/* The device's clock counts from another time than the host's. */
#define AHEAD_NS 1000000000000000ull
#define RUNS_NS 200000

static struct plugin *plugin;
static int version, operations, channels, leave_open;
static uint64_t first_ns;

static uint64_t clock_ns(int clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

/* Big enough for every version; what the plugin may not read is not zero. */
union any_event {
  char room[256];
  struct event_v4 v4;
  struct event_v2 v2;
  struct event_v1 v1;
};

static void event_of(union any_event *event, uint64_t kind, void *parent, int rank) {
  memset(event, 0xa5, sizeof *event);
  if (version >= 5) event->v4.head.kind = kind;
  else *(uint8_t *)event = (uint8_t)kind;
  event->v4.head.parent = parent;
  event->v4.head.rank = rank;
}

static void *start(void *context, union any_event *event) {
  void *handle = (void *)0x5a58;
  if (plugin->start_event(context, &handle, event)) abort();
  if (handle == (void *)0x5a58) abort(); /* not set: NCCL would take what was there */
  return handle;
}

static void stop(void *handle) {
  if (handle && plugin->stop_event(handle)) abort();
}

static void run(void *context, void *operation) {
  void *running[64];
  uint64_t now = clock_ns(CLOCK_MONOTONIC), began = now + AHEAD_NS;
  uint64_t unset = 0;
  __atomic_compare_exchange_n(&first_ns, &unset, clock_ns(CLOCK_REALTIME), 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  union any_event event;
  for (int c = 0; c < channels; c++) {
    event_of(&event, EVENT_KERNEL_CH, operation, 0);
    event.v4.kernel_ch.channel = (uint8_t)c;
    event.v4.kernel_ch.timer = began;
    running[c] = start(context, &event);
  }
  if (leave_open == 2) return;
  while (clock_ns(CLOCK_MONOTONIC) < now + RUNS_NS) {}
  for (int c = 0; c < channels; c++) {
    union state_args args = {.timer = began + RUNS_NS - (uint64_t)(channels - 1 - c)};
    if (!running[c]) continue;
    if (plugin->record_event_state(running[c], STATE_KERNEL_CH_STOP, &args)) abort();
    stop(running[c]);
    if (c + 1 == channels) stop(running[c]); /* the handle of an operation that has ended: nothing */
  }
}

static void *communicator(void *number) {
  void *context = (void *)0x77;
  int mask = -1, rank = (int)(size_t)number;
  uint64_t hash = 0xabcdef00 + (uint64_t)(size_t)number;
  int result = version >= 5 ? ((init_v5)plugin->init)(&context, hash, &mask, "name", 2, 8, rank, NULL)
               : version == 4 ? ((init_v4)plugin->init)(&context, &mask, "name", hash, 2, 8, rank, NULL)
                              : ((init_v1)plugin->init)(&context, &mask);
  if (result || mask < 0) abort();
  for (int i = 0; mask && i < operations; i++) {
    bool is_send = i % 4 == 3;
    union any_event event;
    void *group_api = NULL, *api = NULL, *group;
    if (version >= 5) {
      event_of(&event, 1 << 8, NULL, rank);
      group_api = start(context, &event);
      event_of(&event, is_send ? EVENT_P2P_API : EVENT_COLL_API, group_api, rank);
      if (is_send) event.v4.p2p_api.stream = (void *)0x7f0000001230, event.v4.p2p_api.captured = 0;
      else event.v4.coll_api.stream = (void *)0x7f0000001230, event.v4.coll_api.captured = 0;
      api = start(context, &event);
      stop(api);
    }
    event_of(&event, 1 << 0, NULL, rank);
    group = start(context, &event);
    event_of(&event, is_send ? EVENT_P2P : EVENT_COLL, version >= 5 ? api : group, rank);
    uint64_t seq = (uint64_t)(i - i / 4);
    if (version >= 4 && is_send) {
      event.v4.p2p.func = "Send", event.v4.p2p.count = 100, event.v4.p2p.datatype = "ncclInt8", event.v4.p2p.peer = 1;
      event.v4.p2p.channels = (uint8_t)channels;
    } else if (version >= 4) {
      event.v4.coll.func = "AllReduce", event.v4.coll.count = 100, event.v4.coll.datatype = "ncclBfloat16";
      event.v4.coll.seq = seq, event.v4.coll.root = 0, event.v4.coll.channels = (uint8_t)channels;
    } else if (version >= 2 && is_send) {
      event.v2.p2p.func = "Send", event.v2.p2p.count = 100, event.v2.p2p.datatype = "ncclInt8", event.v2.p2p.peer = 1;
      event.v2.p2p.comm_hash = hash;
    } else if (version >= 2) {
      event.v2.coll.func = "AllReduce", event.v2.coll.count = 100, event.v2.coll.datatype = "ncclBfloat16";
      event.v2.coll.seq = seq, event.v2.coll.root = 0, event.v2.coll.comm_hash = hash;
    } else if (is_send) {
      event.v1.p2p.func = FUNC_V1_SEND, event.v1.p2p.count = 100, event.v1.p2p.datatype = 0, event.v1.p2p.peer = 1;
      event.v1.p2p.comm_hash = hash;
    } else {
      event.v1.coll.func = FUNC_V1_ALL_REDUCE, event.v1.coll.count = 100, event.v1.coll.datatype = 9;
      event.v1.coll.seq = seq, event.v1.coll.root = 0, event.v1.coll.comm_hash = hash;
    }
    void *operation = start(context, &event);
    stop(operation);
    stop(group);
    stop(group_api);
    if (i + 1 == operations && leave_open) leave_open = 2;
    if (mask & EVENT_KERNEL_CH) run(context, operation);
  }
  return context;
}

int main(int argc, char **argv) {
  if (argc < 6) return 2;
  char symbol[32];
  version = atoi(argv[2]);
  int threads = atoi(argv[3]);
  operations = atoi(argv[4]), channels = atoi(argv[5]), leave_open = argc > 6;
  void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  snprintf(symbol, sizeof symbol, "ncclProfiler_v%d", version);
  plugin = library ? dlsym(library, symbol) : NULL;
  if (!plugin || strcmp(plugin->name, "rankmesh")) return fprintf(stderr, "%s: %s\n", symbol, dlerror()), 1;
  pthread_t thread[64];
  void *context[64];
  for (int i = 0; i < threads; i++) pthread_create(&thread[i], NULL, communicator, (void *)(size_t)i);
  for (int i = 0; i < threads; i++) pthread_join(thread[i], &context[i]);
  printf("done %llu\n", (unsigned long long)first_ns);
  fflush(stdout);
  while (getchar() != EOF) {}
  for (int i = 0; i < threads; i++)
    if (context[i]) plugin->finalize(context[i]);
  dlclose(library); /* as NCCL does with its last communicator */
  return 0;
}
