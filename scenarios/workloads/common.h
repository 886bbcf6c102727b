/* What nccl-ranks.c and mpi-ranks.c share: flags, and working for a while without calling the library. */
#ifndef WORKLOADS_COMMON_H
#define WORKLOADS_COMMON_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum mode { BLOCKING, ENQUEUE, GRAPH };

struct options {
  int ranks, iters, late_rank, work_ms, late_ms, start_ms, count, rank;
  int burn;          /* work on the CPU instead of sleeping */
  int all_functions; /* every traced function a known number of times, instead of the loop of all_reduce */
  const char *id_file, *id_hex, *cgroups, *late_file, *start_file, *hold_file;
  int tp, pp, dp;  /* 1: no such groups */
  int mode, gpu_ms; /* a kernel of this length in each step */
  int wait_every;   /* hosts wait for what they enqueued in every so manyth step */
  int pairs_only;   /* no collective ends a step */
};

static inline void usage(const char *name) {
  fprintf(stderr,
          "usage: %s [--ranks R] [--iters N] [--work-ms W] [--late-rank K --late-ms M] [--count ELEMENTS]\n"
          "       [--start-ms S] [--burn] [--all-functions] [--rank r --id-file FILE] [--cgroups DIR,DIR,...] [--late-file FILE]\n"
          "       [--start-file FILE] [--hold-file FILE]\n"
          "       [--mode blocking|enqueue|graph] [--gpu-ms G] [--tp T] [--pp P] [--dp D]\n"
          "       [--wait-every N] [--pairs-only]\n"
          "Each rank works W ms, then calls all_reduce, N times; rank K works M ms more.\n"
          "--start-ms: wait that long before the first call. --burn: work on the CPU instead of sleeping.\n"
          "--rank/--id-file: be one rank; rank 0 writes the communicator's id to FILE, the others wait for it.\n"
          "--mode: NCCL's calls wait (blocking), or enqueue and cudaStreamSynchronize at the end of each step waits; graph:\n"
          "the first steps do that, then one is captured, and the others replay it. --gpu-ms: a kernel in each step.\n"
          "--tp, --pp, --dp: tensor, pipeline, data parallel groups; their product is the number of ranks.\n"
          "--wait-every: hosts wait for what they enqueued in every Nth step, and run ahead in between.\n"
          "--pairs-only: stages of a pipeline (--pp) meet in sends and receives alone.\n"
          "--late-file FILE: while the file exists and holds 'K M', rank K works M ms more.\n"
          "--start-file FILE: wait before the first call until the file exists.\n"
          "--hold-file FILE: when a rank has told what it did, it waits until the file exists, its communicators still alive.\n"
          "--cgroups: consecutive ranks are put into these cgroup directories, evenly.\n",
          name);
  exit(2);
}

static inline struct options parse_options(int argc, char **argv) {
  struct options o = {.ranks = 8, .iters = 20, .late_rank = -1, .work_ms = 20, .count = 1024, .rank = -1, .tp = 1, .pp = 1, .dp = 1,
                      .wait_every = 1};
  for (int i = 1; i < argc; i++) {
    const char *flag = argv[i];
    if (!strcmp(flag, "--burn")) { o.burn = 1; continue; }
    if (!strcmp(flag, "--pairs-only")) { o.pairs_only = 1; continue; }
    if (!strcmp(flag, "--all-functions")) { o.all_functions = 1; continue; }
    if (i + 1 >= argc) usage(argv[0]);
    const char *value = argv[++i];
    if (!strcmp(flag, "--id-file")) { o.id_file = value; continue; }
    if (!strcmp(flag, "--id-hex")) { o.id_hex = value; continue; }
    if (!strcmp(flag, "--cgroups")) { o.cgroups = value; continue; }
    if (!strcmp(flag, "--late-file")) { o.late_file = value; continue; }
    if (!strcmp(flag, "--start-file")) { o.start_file = value; continue; }
    if (!strcmp(flag, "--hold-file")) { o.hold_file = value; continue; }
    if (!strcmp(flag, "--mode")) {
      o.mode = !strcmp(value, "blocking") ? BLOCKING : !strcmp(value, "enqueue") ? ENQUEUE : !strcmp(value, "graph") ? GRAPH : -1;
      if (o.mode < 0) usage(argv[0]);
      continue;
    }
    char *end;
    long number = strtol(value, &end, 10);
    if (*end || number < -1 || number > 1000000000) usage(argv[0]);
    if (!strcmp(flag, "--ranks")) o.ranks = (int)number;
    else if (!strcmp(flag, "--iters")) o.iters = (int)number;
    else if (!strcmp(flag, "--work-ms")) o.work_ms = (int)number;
    else if (!strcmp(flag, "--late-rank")) o.late_rank = (int)number;
    else if (!strcmp(flag, "--late-ms")) o.late_ms = (int)number;
    else if (!strcmp(flag, "--start-ms")) o.start_ms = (int)number;
    else if (!strcmp(flag, "--count")) o.count = (int)number;
    else if (!strcmp(flag, "--rank")) o.rank = (int)number;
    else if (!strcmp(flag, "--gpu-ms")) o.gpu_ms = (int)number;
    else if (!strcmp(flag, "--wait-every")) o.wait_every = (int)number;
    else if (!strcmp(flag, "--tp")) o.tp = (int)number;
    else if (!strcmp(flag, "--pp")) o.pp = (int)number;
    else if (!strcmp(flag, "--dp")) o.dp = (int)number;
    else usage(argv[0]);
  }
  if (o.tp < 1 || o.pp < 1 || o.dp < 1 || o.tp > 128 || o.pp > 128 || o.dp > 128) usage(argv[0]);
  if (o.tp * o.pp * o.dp > 1) o.ranks = o.tp * o.pp * o.dp;
  if ((o.gpu_ms > 0 && o.mode == BLOCKING) || (o.all_functions && o.mode != BLOCKING)) usage(argv[0]);
  if (o.wait_every < 1 || (o.pairs_only && (o.pp < 2 || o.tp > 1 || o.dp > 1))) usage(argv[0]);
  if (o.ranks < 1 || o.ranks > 128 || o.iters < 0 || o.count < 1 || o.rank >= o.ranks) usage(argv[0]);
  return o;
}

static inline double now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static inline void work(int ms, int burn) {
  if (ms <= 0) return;
  if (burn) {
    volatile double x = 1.0;
    for (double end = now_ms() + ms; now_ms() < end;)
      for (int i = 0; i < 10000; i++) x = x * 1.0000001;
    return;
  }
  struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
  nanosleep(&t, NULL);
}

/* So that whoever watches finds the process before its first call, and its memory as long as it is needed. */
static inline void wait_for_file(const char *path) {
  while (path && access(path, F_OK)) work(5, 0);
}

/* How much longer this rank works in this step. */
static inline int late_now(const struct options *o, int rank) {
  int late = rank == o->late_rank ? o->late_ms : 0, who, ms;
  FILE *f = o->late_file ? fopen(o->late_file, "r") : NULL;
  if (f) {
    if (fscanf(f, "%d %d", &who, &ms) == 2 && who == rank && ms > 0 && ms <= 60000) late += ms;
    fclose(f);
  }
  return late;
}

#endif
