/* Programs that hang on NCCL: nccl-hangs MODE DIRECTORY, once a rank, with RANK and WORLD_SIZE set. As hangs.c, which says what the
 * table and the notes mean. Calls only enqueue, and the host waits for its device: a note names the call that the device is in.
 *
 * truth: first-gather     cause=0          asleep; nobody has called the function before
 * truth: nobody-sends     circle=0>1       a receive whose sender waits for the receiver elsewhere
 * truth: split            cause=3          computes; its partner of a split communicator waits, and the others for both
 * truth: stopped          cause=2          its process is stopped
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "gpu.h"
#include "nccl.h"

static const char *directory;
static int rank, size;
static volatile double sum;

static void note(const char *what, int line) {
  char path[4096], new[4100];
  snprintf(path, sizeof path, "%s/at.%d", directory, rank);
  snprintf(new, sizeof new, "%s.new", path);
  FILE *f = fopen(new, "w");
  if (!f || fprintf(f, "%s nccl-hangs.c:%d %d\n", what, line, (int)getpid()) < 0 || fclose(f) || rename(new, path)) {
    perror(path);
    exit(1);
  }
}
#define AT(what) note(what, __LINE__)

static void check(ncclResult_t result, const char *what) {
  if (result == ncclSuccess) return;
  fprintf(stderr, "nccl-hangs: %s: error %d\n", what, (int)result);
  exit(1);
}
#define NCCL(call) check(call, #call)

static void pause_ms(int ms) {
  struct timespec t = {ms / 1000, ms % 1000 * 1000000l};
  nanosleep(&t, NULL);
}

__attribute__((noinline)) static void sleep_on(void) {
  for (AT("asleep");;) pause();
}

__attribute__((noinline)) static void compute(void) {
  for (AT("running");;) sum += 1e-9 * sum;
}

/* Rank 0 makes the id; the others wait for its file. */
static ncclUniqueId exchange_id(void) {
  ncclUniqueId id;
  char path[4096], new[4100];
  snprintf(path, sizeof path, "%s/id", directory);
  snprintf(new, sizeof new, "%s.new", path);
  if (rank == 0) {
    NCCL(ncclGetUniqueId(&id));
    FILE *f = fopen(new, "w");
    if (!f || fwrite(&id, sizeof id, 1, f) != 1 || fclose(f) || rename(new, path)) exit(1);
    return id;
  }
  for (;; pause_ms(5)) {
    FILE *f = fopen(path, "r");
    if (!f) continue;
    size_t read = fread(&id, sizeof id, 1, f);
    fclose(f);
    if (read == 1) return id;
  }
}

int main(int argc, char **argv) {
  if (argc < 3 || !getenv("RANK") || !getenv("WORLD_SIZE")) {
    fprintf(stderr, "RANK=… WORLD_SIZE=… nccl-hangs MODE DIRECTORY\n");
    return 2;
  }
  directory = argv[2], rank = atoi(getenv("RANK")), size = atoi(getenv("WORLD_SIZE"));
  enum { MOST = 64 };
  static float a[MOST], b[8 * MOST];
  gpu_open();
  pause_ms(2500); /* whoever looks for libraries finds them before the first call */
  ncclComm_t world, half;
  ncclUniqueId id = exchange_id();
  NCCL(ncclCommInitRank(&world, size, id, rank));
  cudaStream_t stream = gpu_stream();
  int known = 0;
  AT("begins");
  for (int i = 0; i < 40; i++) {
    NCCL(ncclAllReduce(a, b, 64, ncclFloat32, ncclSum, world, stream));
    gpu_wait(stream);
    pause_ms(10);
  }
#define MODE(name) if (!strcmp(argv[1], name) && (known = 1))

  MODE("first-gather") {
    if (rank == 0) sleep_on();
    AT("all_gather"); NCCL(ncclAllGather(a, b, 64, ncclFloat32, world, stream));
    gpu_wait(stream);
  }
  MODE("nobody-sends") {
    if (rank == 0) {
      AT("recv"); NCCL(ncclRecv(b, 64, ncclFloat32, 1, world, stream));
      gpu_wait(stream);
    }
    AT("all_reduce"); NCCL(ncclAllReduce(a, b, 64, ncclFloat32, ncclSum, world, stream));
    gpu_wait(stream);
  }
  MODE("split") {
    NCCL(ncclCommSplit(world, rank / 2, rank, &half, NULL));
    for (int i = 0; i < 20; i++) {
      NCCL(ncclAllReduce(a, b, 64, ncclFloat32, ncclSum, half, stream));
      gpu_wait(stream);
    }
    if (rank == 3) compute();
    AT("all_reduce"); NCCL(ncclAllReduce(a, b, 64, ncclFloat32, ncclSum, half, stream));
    gpu_wait(stream);
    AT("all_gather"); NCCL(ncclAllGather(a, b, 64, ncclFloat32, world, stream));
    gpu_wait(stream);
  }
  MODE("stopped") {
    if (rank == 2) { AT("stopped"); raise(SIGSTOP); }
    AT("all_reduce"); NCCL(ncclAllReduce(a, b, 64, ncclFloat32, ncclSum, world, stream));
    gpu_wait(stream);
  }
  if (!known) {
    fprintf(stderr, "nccl-hangs: no mode %s\n", argv[1]);
    return 2;
  }
  AT("through");
  return 0;
}
