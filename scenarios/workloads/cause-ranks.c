/* One rank of a job whose work is of a chosen kind, for the tests of causes: CPU time, sleep, reads of a file.
 *
 * Each iteration uses C ms of CPU (of the thread, however long that takes), sleeps S ms, reads K KiB of FILE past the page
 * cache, then calls all_reduce. Rank 0 writes the communicator's id to the id file, the others wait for it. With --spin it
 * is no rank but burns its CPU until it is killed, or its parent ends. RANK and WORLD_SIZE are the starter's to set. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "nccl.h"

static long cpu = -1, rank = -1, ranks, iters = 20, cpu_ms, sleep_ms, read_kib, start_ms;
static const char *id_file, *read_file;
static int spin;

static void die(const char *what) {
  fprintf(stderr, "cause-ranks: %s: %s\n", what, strerror(errno));
  exit(1);
}

static void check(ncclResult_t rc, const char *what) {
  if (rc == ncclSuccess) return;
  fprintf(stderr, "cause-ranks: %s: %s\n", what, ncclGetErrorString(rc));
  exit(1);
}

static void usage(void) {
  fprintf(stderr, "usage: cause-ranks --rank r --ranks R --id-file FILE [--iters N] [--cpu-ms C] [--sleep-ms S]\n"
                  "                   [--read FILE --read-kib K] [--cpu CPU] [--start-ms S] | --spin [--cpu CPU]\n");
  exit(2);
}

static void parse(int argc, char **argv) {
  for (int i = 1; i < argc; i++) {
    const char *flag = argv[i];
    if (!strcmp(flag, "--spin")) { spin = 1; continue; }
    if (i + 1 >= argc) usage();
    const char *value = argv[++i];
    if (!strcmp(flag, "--id-file")) { id_file = value; continue; }
    if (!strcmp(flag, "--read")) { read_file = value; continue; }
    char *end;
    long number = strtol(value, &end, 10);
    if (*end || number < 0 || number > 1000000000) usage();
    if (!strcmp(flag, "--rank")) rank = number;
    else if (!strcmp(flag, "--ranks")) ranks = number;
    else if (!strcmp(flag, "--iters")) iters = number;
    else if (!strcmp(flag, "--cpu-ms")) cpu_ms = number;
    else if (!strcmp(flag, "--sleep-ms")) sleep_ms = number;
    else if (!strcmp(flag, "--read-kib")) read_kib = number;
    else if (!strcmp(flag, "--start-ms")) start_ms = number;
    else if (!strcmp(flag, "--cpu")) cpu = number;
    else usage();
  }
  if (!spin && (rank < 0 || ranks < 1 || rank >= ranks || !id_file)) usage();
}

static double thread_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static void use_cpu(double ms) {
  volatile double x = 1.0;
  for (double end = thread_ms() + ms; thread_ms() < end;)
    for (int i = 0; i < 10000; i++) x = x * 1.0000001;
}

static void exchange_id(ncclUniqueId *id) {
  char temporary[4096];
  if (rank == 0) {
    check(ncclGetUniqueId(id), "ncclGetUniqueId");
    snprintf(temporary, sizeof temporary, "%s.%d", id_file, (int)getpid());
    FILE *f = fopen(temporary, "w");
    if (!f || fwrite(id, sizeof *id, 1, f) != 1 || fclose(f) || rename(temporary, id_file)) die(id_file);
    return;
  }
  for (int tries = 0; tries < 12000; tries++) {
    FILE *f = fopen(id_file, "r");
    size_t n = f ? fread(id, sizeof *id, 1, f) : 0;
    if (f) fclose(f);
    if (n == 1) return;
    usleep(5000);
  }
  errno = ETIMEDOUT;
  die(id_file);
}

/* Past the page cache where the file system can, else the pages are dropped before. */
static void read_some(int fd, char *buffer, off_t *at, off_t size) {
  size_t length = (size_t)read_kib * 1024;
  if (*at + (off_t)length > size) *at = 0;
  posix_fadvise(fd, *at, (off_t)length, POSIX_FADV_DONTNEED);
  if (pread(fd, buffer, length, *at) < 0) die(read_file);
  *at += (off_t)length;
}

int main(int argc, char **argv) {
  parse(argc, argv);
  prctl(PR_SET_PDEATHSIG, SIGKILL); /* nothing outlives the test */
  if (cpu >= 0) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set)) die("sched_setaffinity");
  }
  if (spin) (void)setpriority(PRIO_PROCESS, 0, -10); /* so that a loaded machine does not hide it */
  while (spin) use_cpu(1000);
  int fd = -1;
  char *buffer = NULL;
  off_t at = 0;
  struct stat info = {0};
  if (read_file) {
    fd = open(read_file, O_RDONLY | O_DIRECT);
    if (fd < 0) fd = open(read_file, O_RDONLY);
    if (fd < 0 || fstat(fd, &info) || posix_memalign((void **)&buffer, 4096, (size_t)read_kib * 1024)) die(read_file);
  }
  usleep((useconds_t)start_ms * 1000); /* so that a recorder finds the library before the first call */
  ncclUniqueId id;
  exchange_id(&id);
  ncclComm_t comm;
  check(ncclCommInitRank(&comm, (int)ranks, id, (int)rank), "ncclCommInitRank");
  float send[64] = {1}, recv[64];
  struct timespec pause = {.tv_sec = sleep_ms / 1000, .tv_nsec = sleep_ms % 1000 * 1000000};
  for (long i = 0; i < iters; i++) {
    if (cpu_ms) use_cpu((double)cpu_ms);
    if (sleep_ms) nanosleep(&pause, NULL);
    if (read_file) read_some(fd, buffer, &at, info.st_size);
    check(ncclAllReduce(send, recv, 64, ncclFloat32, ncclSum, comm, NULL), "ncclAllReduce");
  }
  check(ncclCommDestroy(comm), "ncclCommDestroy");
  return 0;
}
