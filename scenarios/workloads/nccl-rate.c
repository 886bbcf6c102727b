/* Calls ncclAllReduce on a communicator of its own at a stated rate, and says how many calls it made: the load for
 * `bench load`. Paced by absolute time in steps of a millisecond: a step that came late is made up for, never left out.
 * One JSON line: {"pid":N,"calls":N,"seconds":S,"longest_step_ms":M}. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "nccl.h"

static int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void sleep_until(int64_t ns) {
  struct timespec t = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR) {
  }
}

static int64_t number(int argc, char **argv, int at) {
  char *end;
  if (at >= argc) return -1;
  int64_t value = strtoll(argv[at], &end, 10);
  return *end || value < 1 ? -1 : value;
}

int main(int argc, char **argv) {
  int64_t rate = -1, total = -1;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (!strcmp(argv[i], "--rate")) rate = number(argc, argv, i + 1);
    else if (!strcmp(argv[i], "--calls")) total = number(argc, argv, i + 1);
  }
  if (argc != 5 || rate < 0 || total < 0) {
    fprintf(stderr, "usage: %s --rate CALLS_PER_SECOND --calls TOTAL\n", argv[0]);
    return 2;
  }
  if (!getenv("RANK")) { /* who it is must stand in /proc/PID/environ: start over with it set */
    setenv("RANK", "0", 1);
    setenv("WORLD_SIZE", "1", 1);
    setenv("LOCAL_RANK", "0", 1);
    execv("/proc/self/exe", argv);
    perror("nccl-rate: exec");
    return 1;
  }
  ncclUniqueId id;
  ncclComm_t comm;
  float in = 1, out = 0;
  if (ncclGetUniqueId(&id) || ncclCommInitRank(&comm, 1, id, 0)) return 1;
  int64_t start = now_ns(), done = 0, longest = 0;
  for (int64_t step = 0; done < total; step++) {
    sleep_until(start + step * 1000000);
    int64_t began = now_ns();
    int64_t due = (int64_t)((double)(began - start) * 1e-9 * (double)rate);
    if (due > total) due = total;
    for (; done < due; done++)
      if (ncclAllReduce(&in, &out, 1, ncclFloat32, ncclSum, comm, NULL) || out != 1) return 1;
    int64_t took = now_ns() - began;
    if (took > longest) longest = took;
    if (took > 1000000) step = (now_ns() - start) / 1000000;
  }
  double seconds = (double)(now_ns() - start) * 1e-9;
  if (ncclCommDestroy(comm)) return 1;
  printf("{\"pid\":%d,\"calls\":%lld,\"seconds\":%.3f,\"longest_step_ms\":%.3f}\n", (int)getpid(), (long long)done, seconds,
         (double)longest * 1e-6);
  return 0;
}
