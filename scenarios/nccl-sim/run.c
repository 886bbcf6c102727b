/* Running collectives and point-to-point calls: what moves the data and waits for the others. Called by the thread that
 * makes the call, or by a stream's (enqueue.c). Which calls there are is coll.c's business, the region shm.c's. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "sim.h"

static ncclResult_t reduce_chunks(struct ncclComm *c, char *into, size_t bytes, ncclDataType_t type, ncclRedOp_t red) {
  size_t count = bytes / sim_type_bytes(type);
  memcpy(into, sim_chunk(c, 0), bytes);
  for (int r = 1; r < c->nRanks; r++)
    if (!sim_reduce(into, sim_chunk(c, r), count, type, red)) return ncclInvalidArgument;
  if (red == ncclAvg && !sim_divide(into, count, type, c->nRanks)) return ncclInvalidArgument;
  return ncclSuccess;
}

/* While the file that NCCL_SIM_STOP names exists and holds a rank of the communicator, that rank stops itself once, in the
 * middle of a collective: everybody has entered it, and nobody gets out. */
static void stop_here(const struct ncclComm *c) {
  const char *path = getenv("NCCL_SIM_STOP");
  FILE *f = path ? fopen(path, "r") : NULL;
  if (!f) return;
  int rank, read = fscanf(f, "%d", &rank);
  fclose(f);
  if (read == 1 && rank == c->rank && unlink(path) == 0) raise(SIGSTOP);
}

/* One chunk after another: stage own bytes, barrier, take what this kind needs from the others, barrier. */
static ncclResult_t run_collective(struct op *op) {
  struct ncclComm *c = op->comm;
  size_t element = sim_type_bytes(op->type), total = op->count * element;
  int parts = op->kind == REDUCE_SCATTER ? c->nRanks : 1; /* the send buffer holds one part per rank */
  ncclResult_t rc = ncclSuccess;
  size_t offset = 0;
  do {
    size_t bytes = total - offset < SIM_CHUNK_BYTES ? total - offset : SIM_CHUNK_BYTES;
    for (int part = 0; part < parts; part++) {
      int stages = op->kind != BROADCAST || c->rank == op->root;
      if (stages && bytes) memcpy(sim_chunk(c, c->rank), op->send + (size_t)part * total + offset, bytes);
      if ((rc = sim_barrier(c)) != ncclSuccess) return rc;
      stop_here(c);
      if (bytes) switch (op->kind) {
        case ALL_REDUCE: rc = reduce_chunks(c, op->recv + offset, bytes, op->type, op->red); break;
        case REDUCE:
          if (c->rank == op->root) rc = reduce_chunks(c, op->recv + offset, bytes, op->type, op->red);
          break;
        case REDUCE_SCATTER:
          if (part == c->rank) rc = reduce_chunks(c, op->recv + offset, bytes, op->type, op->red);
          break;
        case BROADCAST: memcpy(op->recv + offset, sim_chunk(c, op->root), bytes); break;
        case ALL_GATHER:
          for (int r = 0; r < c->nRanks; r++) memcpy(op->recv + (size_t)r * total + offset, sim_chunk(c, r), bytes);
          break;
        default: rc = ncclInternalError;
      }
      if (rc != ncclSuccess) {
        sim_fail(c, rc);
        return rc;
      }
      if ((rc = sim_barrier(c)) != ncclSuccess) return rc; /* the chunks may be written again */
    }
    offset += bytes;
  } while (offset < total);
  return ncclSuccess;
}

/* Moves what can be moved now. A message of no bytes still needs its receiver. */
static int progress_p2p(struct op *op, int *moved) {
  struct ncclComm *c = op->comm;
  int from = op->kind == SEND ? c->rank : op->root, to = op->kind == SEND ? op->root : c->rank;
  struct sim_mail *mail = &c->region->mail[from * c->nRanks + to];
  char *chunk = sim_mail_chunk(c, from, to);
  size_t total = op->count * sim_type_bytes(op->type), left = total - op->done_bytes;
  if (op->kind == SEND) {
    if (atomic_load(&mail->full)) return 0;
    mail->len = (uint32_t)(left < SIM_CHUNK_BYTES ? left : SIM_CHUNK_BYTES);
    memcpy(chunk, op->send + op->done_bytes, mail->len);
    op->done_bytes += mail->len;
    atomic_store(&mail->full, 1);
  } else {
    if (!atomic_load(&mail->full)) return 0;
    size_t take = mail->len < left ? mail->len : left;
    memcpy(op->recv + op->done_bytes, chunk, take);
    op->done_bytes += take;
    atomic_store(&mail->full, 0);
  }
  sim_wake(&mail->full);
  *moved = 1;
  return op->done_bytes >= total;
}

/* All point-to-point calls of one communicator together, so that a ring of send+recv cannot block itself. */
static ncclResult_t run_p2p(struct op **ops, size_t n) {
  uint64_t deadline = sim_deadline_ns();
  size_t left = n;
  while (left > 0) {
    int moved = 0;
    struct op *waiting = NULL;
    for (size_t i = 0; i < n; i++) {
      if (!ops[i]) continue;
      if (progress_p2p(ops[i], &moved)) {
        ops[i] = NULL;
        left--;
      } else {
        waiting = ops[i];
      }
    }
    if (left == 0 || moved || !waiting) continue;
    struct ncclComm *c = waiting->comm;
    int sends = waiting->kind == SEND;
    int from = sends ? c->rank : waiting->root, to = sends ? waiting->root : c->rank;
    uint64_t now = sim_now_ns();
    /* Several mailboxes may be awaited: look at each again soon rather than sleep on one for long. */
    uint64_t soon = left > 1 && now + 500000 < deadline ? now + 500000 : deadline;
    _Atomic uint32_t *word = &c->region->mail[from * c->nRanks + to].full;
    if (soon < deadline) {
      int error = atomic_load(&c->region->error);
      if (error) return (ncclResult_t)error;
      struct timespec nap = {.tv_nsec = 200000};
      nanosleep(&nap, NULL);
      continue;
    }
    ncclResult_t rc = sim_wait(c, word, sends ? 1 : 0, deadline);
    if (rc != ncclSuccess) return rc;
  }
  return ncclSuccess;
}

/* The calls of one communicator, in order; point-to-point calls together at the end. They may be run again (graphs). */
void *sim_run(void *arg) {
  struct sim_batch *batch = arg;
  struct op *p2p[1024];
  size_t n = 0;
  for (struct op *op = batch->first; op && batch->rc == ncclSuccess; op = op->next) {
    if (op->comm != batch->comm) continue;
    if (op->kind == INIT) {
      batch->rc = sim_await_all(op->comm);
      if (batch->rc == ncclSuccess) *op->out = op->comm;
    } else if (op->kind != SEND && op->kind != RECV) batch->rc = run_collective(op);
    else if (n < sizeof p2p / sizeof *p2p) {
      op->done_bytes = 0;
      p2p[n++] = op;
    }
    else batch->rc = ncclInvalidUsage;
  }
  if (batch->rc == ncclSuccess && n > 0) batch->rc = run_p2p(p2p, n);
  return NULL;
}
