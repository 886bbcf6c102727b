/* Writing into the ring: see ring.h. Included by the library that has something to write. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "ring.h"

/* The libraries are linked against nothing: they name no library and no version of a symbol, so that they load wherever
 * the program does, with glibc from 2.17 on and with musl. What is not in libc itself everywhere is weak: where it is
 * missing it is not called. (glibc resolves a symbol without a version to its oldest one, or its only one.) */
extern int __register_atfork(void (*)(void), void (*)(void), void (*)(void), void *) __attribute__((weak));
extern int pthread_atfork(void (*)(void), void (*)(void), void (*)(void)) __attribute__((weak));

static struct rm_ring *ring; /* NULL: not wanted, not made yet, or could not be made */
static int ring_looked; /* 1: is being made, 2: that is over */
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

/* Opens a directory that this user alone may enter, and makes it where it is missing; -1: there is none. */
static int ring_directory(int at, const char *name) {
  struct stat found;
  mkdirat(at, name, 0700);
  int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  /* the system call itself: before glibc 2.33 there is no function of this name in it */
  if (fd >= 0 && (syscall(SYS_fstat, fd, &found) || found.st_uid != geteuid() || (found.st_mode & 077))) {
    close(fd);
    fd = -1;
  }
  return fd;
}

static int ring_file(const char *suffix) {
  const char *dir = getenv("RANKMESH_RING_DIR");
  const char *node = getenv("SLURMD_NODENAME");
  char name[64];
  if (!dir || dir[0] != '/') return -1;
  /* several nodes may share one host; the agent of a node looks in its own directory first */
  if (!node || !*node || strchr(node, '/') || node[0] == '.') node = "host";
  int top = ring_directory(AT_FDCWD, dir);
  int own = top < 0 ? -1 : ring_directory(top, node);
  if (top >= 0) close(top);
  if (own < 0) return -1;
  snprintf(name, sizeof name, "ring-%d%s", (int)getpid(), suffix);
  int flags = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  int fd = openat(own, name, flags, 0600);
  if (fd < 0 && errno == EEXIST) { /* of an earlier process with this pid, which no agent has read */
    unlinkat(own, name, 0);
    fd = openat(own, name, flags, 0600);
  }
  /* Reserved now: a full file system must not become a SIGBUS later. */
  if (fd >= 0 && posix_fallocate(fd, 0, sizeof(struct rm_ring))) {
    unlinkat(own, name, 0);
    close(fd);
    fd = -1;
  }
  close(own);
  return fd;
}

/* Errors are not reported: a rank has nobody to report to, and its coverage says that nothing came from it. */
/* `suffix` tells the rings of several libraries in one process apart. */
static void ring_make(const char *const *names, unsigned int count, const char *suffix) {
  int saved = errno;
  int fd = count > RM_RING_NAMES ? -1 : ring_file(suffix);
  struct rm_ring *made = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof *made, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (made == MAP_FAILED) {
    if (fd >= 0) close(fd); /* the file has no header: it is taken away once the process has ended */
    goto out;
  }
  /* fd stays open: an agent that is started later finds the ring through /proc when the file's name is gone */
  made->version = RM_RING_VERSION;
  made->pid = (unsigned int)getpid();
  made->slots = RM_RING_SLOTS;
  made->names_used = count;
  for (unsigned int i = 0; i < count; i++) snprintf(made->names[i], RM_RING_NAME_BYTES, "%s", names[i]);
  __atomic_store_n(&made->magic, RM_RING_MAGIC, __ATOMIC_RELEASE);
  if (__register_atfork) __register_atfork(NULL, NULL, ring_in_child, NULL);
  else if (pthread_atfork) pthread_atfork(NULL, NULL, ring_in_child);
  __atomic_store_n(&ring, made, __ATOMIC_RELEASE);
out:
  errno = saved;
}

/* Once in a process. Who comes meanwhile waits for it, in a child of a fork in that moment in vain: a second at most. */
static void ring_once(void (*make)(void)) {
  int looked = __atomic_load_n(&ring_looked, __ATOMIC_ACQUIRE);
  if (looked == 2) return;
  if (!looked && __atomic_compare_exchange_n(&ring_looked, &looked, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_ACQUIRE)) {
    make();
  } else {
    unsigned long long until = now_ns() + 1000000000ull;
    while (__atomic_load_n(&ring_looked, __ATOMIC_ACQUIRE) != 2 && now_ns() < until) sched_yield();
  }
  __atomic_store_n(&ring_looked, 2, __ATOMIC_RELEASE);
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
