/* The shared region: creation, joining, barrier, waiting with a deadline, and noticing that a peer died.
 * The API on top is in comm.c and coll.c. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "sim.h"

static const uint64_t SLICE_NS = 100000000ull; /* a long wait looks for dead peers this often */

uint64_t sim_now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

/* NCCL_SIM_TIMEOUT_MS bounds every wait; nothing hangs for ever. */
uint64_t sim_deadline_ns(void) {
  const char *text = getenv("NCCL_SIM_TIMEOUT_MS");
  long ms = text ? strtol(text, NULL, 10) : SIM_DEFAULT_TIMEOUT_MS;
  if (ms <= 0) ms = SIM_DEFAULT_TIMEOUT_MS;
  return sim_now_ns() + (uint64_t)ms * 1000000ull;
}

static size_t page_up(size_t n) { return (n + 4095) & ~(size_t)4095; }

char *sim_chunk(struct ncclComm *comm, int rank) {
  return (char *)comm->region + page_up(sizeof(struct sim_region)) + (size_t)rank * SIM_CHUNK_BYTES;
}

char *sim_mail_chunk(struct ncclComm *comm, int from, int to) {
  size_t slot = (size_t)comm->nRanks + (size_t)from * (size_t)comm->nRanks + (size_t)to;
  return (char *)comm->region + page_up(sizeof(struct sim_region)) + slot * SIM_CHUNK_BYTES;
}

ncclResult_t sim_open(struct ncclComm *comm) {
  size_t n = (size_t)comm->nRanks;
  comm->mapped_bytes = page_up(sizeof(struct sim_region)) + (n + n * n) * SIM_CHUNK_BYTES;
  for (int i = 0; i < SIM_MAX_RANKS; i++) comm->pidfd[i] = -1;
  snprintf(comm->name, sizeof comm->name, "/nccl-sim-%016llx%016llx", (unsigned long long)comm->key[0],
           (unsigned long long)comm->key[1]);
  int fd = shm_open(comm->name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return ncclSystemError;
  /* Every rank sets the same size, so the order does not matter; the file is sparse. */
  if (ftruncate(fd, (off_t)comm->mapped_bytes) != 0) {
    close(fd);
    return ncclSystemError;
  }
  void *map = mmap(NULL, comm->mapped_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (map == MAP_FAILED) return ncclSystemError;
  comm->region = map;
  int unset = 0;
  if (!atomic_compare_exchange_strong(&comm->region->nranks, &unset, comm->nRanks) && unset != comm->nRanks) {
    munmap(map, comm->mapped_bytes);
    return ncclInvalidArgument;
  }
  atomic_store(&comm->region->slot[comm->rank].pid, (int)getpid());
  uint32_t joined = atomic_fetch_add(&comm->region->joined, 1) + 1;
  if (joined == (uint32_t)comm->nRanks) shm_unlink(comm->name); /* all have it mapped; the name is no longer needed */
  sim_wake(&comm->region->joined);
  return ncclSuccess;
}

void sim_wake(_Atomic uint32_t *word) { syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0); }

void sim_fail(struct ncclComm *comm, ncclResult_t error) {
  int none = 0;
  atomic_compare_exchange_strong(&comm->region->error, &none, (int)error);
  sim_wake(&comm->region->joined);
  sim_wake(&comm->region->generation);
  for (int i = 0; i < comm->nRanks * comm->nRanks; i++) sim_wake(&comm->region->mail[i].full);
}

/* True when a rank that had joined no longer runs. A pidfd also shows a zombie nobody has reaped yet. With
 * NCCL_SIM_IGNORE_DEAD set it is never noticed, as the real library does not. */
static int peer_died(struct ncclComm *comm) {
  if (getenv("NCCL_SIM_IGNORE_DEAD")) return 0;
  for (int r = 0; r < comm->nRanks; r++) {
    int pid = atomic_load(&comm->region->slot[r].pid);
    if (pid <= 0 || r == comm->rank) continue;
    if (comm->pidfd[r] < 0) {
      comm->pidfd[r] = (int)syscall(SYS_pidfd_open, pid, 0);
      if (comm->pidfd[r] < 0 && errno == ESRCH) return 1;
      if (comm->pidfd[r] < 0) continue;
    }
    struct pollfd p = {.fd = comm->pidfd[r], .events = POLLIN};
    if (poll(&p, 1, 0) == 1) return 1;
  }
  return 0;
}

/* Sleeps while *word is while_value. Ends early, with an error, when the communicator failed, a peer died or the
 * deadline passed; the two latter fail the communicator for everyone. */
ncclResult_t sim_wait(struct ncclComm *comm, _Atomic uint32_t *word, uint32_t while_value, uint64_t deadline_ns) {
  while (atomic_load(word) == while_value) {
    int error = atomic_load(&comm->region->error);
    if (error) return (ncclResult_t)error;
    uint64_t now = sim_now_ns();
    if (now >= deadline_ns) {
      sim_fail(comm, ncclRemoteError);
      return ncclRemoteError;
    }
    uint64_t slice = deadline_ns - now < SLICE_NS ? deadline_ns - now : SLICE_NS;
    struct timespec t = {.tv_sec = (time_t)(slice / 1000000000ull), .tv_nsec = (long)(slice % 1000000000ull)};
    long rc = syscall(SYS_futex, word, FUTEX_WAIT, while_value, &t, NULL, 0);
    if (rc != 0 && errno == ETIMEDOUT && atomic_load(word) == while_value && peer_died(comm)) {
      sim_fail(comm, ncclRemoteError);
      return ncclRemoteError;
    }
  }
  return ncclSuccess;
}

ncclResult_t sim_await_all(struct ncclComm *comm) {
  uint64_t deadline = sim_deadline_ns();
  uint32_t joined;
  while ((joined = atomic_load(&comm->region->joined)) < (uint32_t)comm->nRanks) {
    ncclResult_t rc = sim_wait(comm, &comm->region->joined, joined, deadline);
    if (rc != ncclSuccess) {
      shm_unlink(comm->name);
      return rc;
    }
  }
  return ncclSuccess;
}

ncclResult_t sim_barrier(struct ncclComm *comm) {
  struct sim_region *region = comm->region;
  int error = atomic_load(&region->error);
  if (error) return (ncclResult_t)error;
  uint32_t generation = atomic_load(&region->generation);
  if (atomic_fetch_add(&region->arrived, 1) + 1 == (uint32_t)comm->nRanks) {
    atomic_store(&region->arrived, 0);
    atomic_fetch_add(&region->generation, 1);
    sim_wake(&region->generation);
    return ncclSuccess;
  }
  return sim_wait(comm, &region->generation, generation, sim_deadline_ns());
}

void sim_close(struct ncclComm *comm) {
  for (int r = 0; r < comm->nRanks; r++)
    if (comm->pidfd[r] >= 0) close(comm->pidfd[r]);
  /* A rank that leaves in good order must not look dead to the slower ones. */
  atomic_store(&comm->region->slot[comm->rank].pid, 0);
  munmap(comm->region, comm->mapped_bytes);
}
