/* NCCL_SIM_MODE=enqueue: calls return at once, as NCCL's do, and the work waits in its stream's queue. The queues are
 * cudart-sim's (libcudart.so.12), found by name, because the library works without it in the other mode. One device a
 * process: ranks that share a thread also share the default stream, and would wait for each other in one queue. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "sim.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static int wanted;
static int (*enqueue)(void *stream, void (*run)(void *), void *arg, void (*release)(void *));
static void (*wait_all)(void);

static void look(void) {
  const char *mode = getenv("NCCL_SIM_MODE");
  wanted = mode && !strcmp(mode, "enqueue");
  if (!wanted) return;
  enqueue = (int (*)(void *, void (*)(void *), void *, void (*)(void *)))dlsym(RTLD_DEFAULT, "simcuda_enqueue");
  wait_all = (void (*)(void))dlsym(RTLD_DEFAULT, "simcuda_wait_all");
  if (!enqueue || !wait_all)
    fprintf(stderr, "nccl-sim: NCCL_SIM_MODE=enqueue needs cudart-sim's libcudart.so.12 in the process\n");
}

int sim_enqueues(void) {
  pthread_once(&once, look);
  return wanted;
}

static void run(void *arg) {
  struct sim_batch *batch = arg;
  batch->rc = ncclSuccess;
  sim_run(batch);
  if (batch->rc != ncclSuccess) sim_fail(batch->comm, batch->rc); /* to be had from ncclCommGetAsyncError */
}

static void release(void *arg) {
  struct sim_batch *batch = arg;
  while (batch->first) {
    struct op *op = batch->first;
    batch->first = op->next;
    free(op);
  }
  free(batch);
}

ncclResult_t sim_enqueue(const struct sim_batch *batch, void *stream) {
  if (!enqueue) return ncclInvalidUsage;
  struct sim_batch *kept = calloc(1, sizeof *kept);
  if (!kept) return ncclSystemError;
  kept->comm = batch->comm;
  struct op **last = &kept->first;
  for (const struct op *op = batch->first; op; op = op->next) {
    if (op->comm != batch->comm) continue;
    struct op *copy = malloc(sizeof *copy);
    if (!copy) {
      release(kept);
      return ncclSystemError;
    }
    *copy = *op;
    copy->next = NULL;
    *last = copy;
    last = &copy->next;
  }
  if (enqueue(stream, run, kept, release) == 0) return ncclSuccess;
  release(kept);
  return ncclSystemError;
}

void sim_device_wait(void) {
  if (sim_enqueues() && wait_all) wait_all();
}
