/* A rank to which things happen, a known number of times each, for the self-test of capture on other kernels: calls,
 * sleeps, connections refused and unanswered, children, reads of a disk, memory beyond a limit.
 *
 * usage: host-events [--disk FILE] [--cuda LIBRARY] [--fill MIB]
 * --disk: a block device or a file on one, read past the page cache and through a mapping. --cuda: a CUDA runtime to call. --fill: touch that much memory
 * and end (or be killed by the limit of its cgroup). Prints one JSON line: its pid and what it did, by its own count. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "nccl.h"

enum { CALLS = 500, CUDA_CALLS = 300, SLEEPS = 25, REFUSED = 5, CHILDREN = 7, READS = 12, PAGES = 16, ROUNDS = 8, STRIDE = 1 << 20 };

static void die(const char *what) {
  fprintf(stderr, "host-events: %s: %s\n", what, strerror(errno));
  exit(1);
}

static struct sockaddr_in address(const char *ip, int port) {
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((unsigned short)port)};
  inet_pton(AF_INET, ip, &a.sin_addr);
  return a;
}

/* Connections that are refused at once: each is answered by a reset. */
static void be_refused(void) {
  struct sockaddr_in nobody = address("127.0.0.1", 1);
  for (int i = 0; i < REFUSED; i++) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&nobody, sizeof nobody) == 0 || errno != ECONNREFUSED) die("connect");
    close(fd);
  }
}

static int sent_again(int fd) {
  struct tcp_info info = {0};
  socklen_t size = sizeof info;
  if (fd >= 0 && getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size)) die("TCP_INFO");
  return (int)info.tcpi_total_retrans;
}

/* A connection that is never answered: the kernel sends its first segment again and again. Returns the socket once it has, which
 * stays open, so that it has an owner when that is looked for; -1 when there is no such route and nothing is sent. */
static int be_unanswered(void) {
  struct sockaddr_in nobody = address("10.99.99.99", 1); /* routed to the loopback device by who starts this */
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  if (fd < 0) die("socket");
  if (connect(fd, (struct sockaddr *)&nobody, sizeof nobody) == 0 || errno != EINPROGRESS) {
    close(fd);
    return -1;
  }
  for (int waited = 0; waited < 200 && sent_again(fd) < 1; waited++) {
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    if (poll(&p, 1, 50) != 0) break;
  }
  return fd;
}

static void have_children(void) {
  for (int i = 0; i < CHILDREN; i++) {
    pid_t child = fork();
    if (child == 0) _exit(3);
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child || WEXITSTATUS(status) != 3) die("fork");
  }
}

static void read_past_cache(const char *disk) {
  int fd = open(disk, O_RDONLY | O_DIRECT);
  void *page;
  if (fd < 0 || posix_memalign(&page, 4096, 4096)) die(disk);
  for (int i = 0; i < READS; i++)
    if (pread(fd, page, 4096, (off_t)i * STRIDE) != 4096) die(disk);
  close(fd);
}

/* Pages of the disk, far apart, through a mapping. Returns the major faults that were counted for them. */
static long read_by_faults(const char *disk) {
  int fd = open(disk, O_RDONLY);
  if (fd < 0) die(disk);
  size_t size = (size_t)PAGES * STRIDE;
  volatile const char *map = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
  if (map == MAP_FAILED) die("mmap");
  madvise((void *)map, size, MADV_RANDOM);
  struct rusage before, after;
  getrusage(RUSAGE_SELF, &before);
  for (int round = 0; round < ROUNDS; round++) {
    madvise((void *)map, size, MADV_DONTNEED);
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    for (int i = 0; i < PAGES; i++) (void)map[(size_t)i * STRIDE];
  }
  getrusage(RUSAGE_SELF, &after);
  munmap((void *)map, size);
  close(fd);
  return after.ru_majflt - before.ru_majflt;
}

static void *open_cuda(const char *library) {
  void *cuda = dlopen(library, RTLD_NOW);
  if (cuda) return cuda;
  fprintf(stderr, "host-events: %s\n", dlerror());
  exit(1);
}

/* Waits for an idle device again and again. Returns how often. */
static int call_cuda(void *cuda) {
  int (*wait)(void) = (int (*)(void))dlsym(cuda, "cudaDeviceSynchronize");
  if (!wait) die("cudaDeviceSynchronize");
  struct timespec t = {.tv_nsec = 1500000000 / 2};
  nanosleep(&t, NULL); /* for the library to be found */
  nanosleep(&t, NULL);
  for (int i = 0; i < CUDA_CALLS; i++)
    if (wait()) exit(1);
  return CUDA_CALLS;
}

int main(int argc, char **argv) {
  const char *disk = NULL, *cuda = NULL;
  long fill_mib = 0;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (!strcmp(argv[i], "--disk")) disk = argv[i + 1];
    if (!strcmp(argv[i], "--cuda")) cuda = argv[i + 1];
    if (!strcmp(argv[i], "--fill")) fill_mib = atol(argv[i + 1]);
  }
  if (!getenv("RANK")) { /* who it is must stand in /proc/PID/environ: start over with it set */
    setenv("RANK", "0", 1);
    setenv("WORLD_SIZE", "1", 1);
    execv("/proc/self/exe", argv);
    die("exec");
  }
  void *opened = cuda ? open_cuda(cuda) : NULL; /* first: an emulated machine takes seconds to attach its probes */
  ncclUniqueId id;
  ncclComm_t comm;
  float in = 1, out = 0;
  if (ncclGetUniqueId(&id) || ncclCommInitRank(&comm, 1, id, 0)) die("ncclCommInitRank");
  for (int i = 0; i < CALLS; i++)
    if (ncclAllReduce(&in, &out, 1, ncclFloat32, ncclSum, comm, NULL)) die("ncclAllReduce");
  if (fill_mib > 0) {
    volatile char *memory = malloc((size_t)fill_mib << 20);
    for (size_t at = 0; memory && at < (size_t)fill_mib << 20; at += 4096) memory[at] = 1;
    printf("{\"filled_mib\":%ld}\n", fill_mib);
    return 0;
  }
  for (int i = 0; i < SLEEPS; i++) {
    struct timespec t = {.tv_nsec = 5000000};
    nanosleep(&t, NULL);
  }
  be_refused();
  have_children();
  long faults = 0;
  int reads = 0;
  if (disk) {
    read_past_cache(disk);
    reads = READS;
    faults = read_by_faults(disk);
  }
  int unanswered = be_unanswered(), cuda_calls = opened ? call_cuda(opened) : 0;
  if (ncclCommDestroy(comm)) die("ncclCommDestroy");
  int retransmits = sent_again(unanswered);
  if (unanswered >= 0) close(unanswered);
  struct rusage all;
  getrusage(RUSAGE_SELF, &all);
  printf("{\"pid\":%d,\"calls\":%d,\"cuda_calls\":%d,\"sleeps\":%d,\"refused\":%d,\"children\":%d,\"reads\":%d,\"faults\":%ld,\"all_faults\":%ld,\"retransmits\":%d}\n",
         (int)getpid(), CALLS, cuda_calls, SLEEPS, REFUSED, CHILDREN, reads, faults, all.ru_majflt, retransmits);
  return 0;
}
