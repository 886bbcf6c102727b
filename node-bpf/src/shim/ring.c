/* Writing into the ring: see ring.h. Included by the library that has something to write. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "ring.h"

static struct rm_ring *ring; /* NULL: not wanted, or could not be made */
static pthread_once_t ring_once = PTHREAD_ONCE_INIT;
static unsigned int ring_threads;

/* The thread's own entry in ring->threads; -1: none left. */
static __thread int ring_thread = -2;
static __thread unsigned int ring_tid;

static unsigned long long now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (unsigned long long)t.tv_sec * 1000000000ull + (unsigned long long)t.tv_nsec;
}

/* A child that goes on without exec is another process: its calls are not the parent's. */
static void ring_in_child(void) { ring = NULL; }

/* Errors are not reported: a rank has nobody to report to, and its coverage says that nothing came from it. */
/* `suffix` tells the rings of several libraries in one process apart. */
static void ring_make(const char *const *names, unsigned int count, const char *suffix) {
  const char *dir = getenv("RANKMESH_RING_DIR");
  const char *node = getenv("SLURMD_NODENAME");
  char path[4096];
  if (!dir || dir[0] != '/' || count > RM_RING_NAMES) return;
  int saved = errno;
  /* several nodes may share one host; the agent of a node looks in its own directory first */
  if (!node || !*node || strchr(node, '/') || node[0] == '.') node = "host";
  mkdir(dir, 0700);
  if (snprintf(path, sizeof path, "%s/%s", dir, node) >= (int)sizeof path) return;
  mkdir(path, 0700);
  if (snprintf(path, sizeof path, "%s/%s/ring-%d%s", dir, node, (int)getpid(), suffix) >= (int)sizeof path) return;
  int flags = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  int fd = open(path, flags, 0600);
  if (fd < 0 && errno == EEXIST) { /* of an earlier process with this pid, which no agent has read */
    unlink(path);
    fd = open(path, flags, 0600);
  }
  if (fd < 0) goto out;
  /* Reserved now: a full file system must not become a SIGBUS later. */
  if (posix_fallocate(fd, 0, sizeof(struct rm_ring))) {
    unlink(path);
    close(fd);
    goto out;
  }
  struct rm_ring *made = mmap(NULL, sizeof *made, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (made == MAP_FAILED) {
    unlink(path);
    close(fd);
    goto out;
  }
  /* fd stays open: an agent that is started later finds the ring through /proc when the file's name is gone */
  made->version = RM_RING_VERSION;
  made->pid = (unsigned int)getpid();
  made->slots = RM_RING_SLOTS;
  made->names_used = count;
  for (unsigned int i = 0; i < count; i++) snprintf(made->names[i], RM_RING_NAME_BYTES, "%s", names[i]);
  __atomic_store_n(&made->magic, RM_RING_MAGIC, __ATOMIC_RELEASE);
  pthread_atfork(NULL, NULL, ring_in_child);
  ring = made;
out:
  errno = saved;
}

__attribute__((unused)) static struct rm_ring_thread *ring_own_thread(void) {
  if (ring_thread == -2) {
    unsigned int taken = __atomic_fetch_add(&ring_threads, 1, __ATOMIC_RELAXED);
    ring_tid = (unsigned int)syscall(SYS_gettid);
    ring_thread = taken < RM_RING_THREADS ? (int)taken : -1;
    if (ring_thread >= 0) ring->threads[ring_thread].tid = ring_tid;
  }
  return ring_thread >= 0 ? &ring->threads[ring_thread] : NULL;
}

static void ring_write(const struct rm_call *call) {
  unsigned long long ticket = __atomic_load_n(&ring->head, __ATOMIC_RELAXED);
  do {
    if (ticket - __atomic_load_n(&ring->tail, __ATOMIC_ACQUIRE) >= RM_RING_SLOTS) {
      __atomic_fetch_add(&ring->lost, 1, __ATOMIC_RELAXED);
      return;
    }
  } while (!__atomic_compare_exchange_n(&ring->head, &ticket, ticket + 1, 1, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED));
  struct rm_ring_slot *slot = &ring->slot[ticket % RM_RING_SLOTS];
  memcpy(&slot->call, call, sizeof *call);
  __atomic_store_n(&slot->ready, ticket + 1, __ATOMIC_RELEASE);
}
