/* A training-like job on NCCL: R rank processes that work and then meet in all_reduce, one of them late; with groups as in
 * large models (shape.c), with calls that wait, only enqueue, or are replayed from a graph (gpu.c).
 *
 * The parent makes the communicator's id and re-executes itself once per rank, so that RANK, LOCAL_RANK and WORLD_SIZE
 * stand in /proc/PID/environ as under a real launcher. Each rank prints one JSON line: its pid, the id, how often it
 * called each function (the tests' truth), how long it waited, and whether the results were right.
 * Exit code 0 only when every rank's results were right. Flags: common.h. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include "common.h"
#include "gpu.h"
#include "nccl.h"
#include "shape.h"

static int failed; /* a call failed or a result was wrong */

static void to_hex(const ncclUniqueId *id, char *hex) {
  for (int i = 0; i < NCCL_UNIQUE_ID_BYTES; i++) sprintf(hex + 2 * i, "%02x", (unsigned char)id->internal[i]);
}

static int from_hex(const char *hex, ncclUniqueId *id) {
  if (strlen(hex) < 2 * NCCL_UNIQUE_ID_BYTES) return 0;
  for (int i = 0; i < NCCL_UNIQUE_ID_BYTES; i++) {
    unsigned byte;
    if (sscanf(hex + 2 * i, "%2x", &byte) != 1) return 0;
    id->internal[i] = (char)byte;
  }
  return 1;
}

/* Rank 0 writes the id under another name and renames it; the others wait for the file. */
static void exchange_id(const struct options *o, ncclUniqueId *id) {
  char hex[2 * NCCL_UNIQUE_ID_BYTES + 1] = {0}, temporary[4096];
  if (o->rank == 0) {
    check_nccl(ncclGetUniqueId(id), "ncclGetUniqueId");
    to_hex(id, hex);
    snprintf(temporary, sizeof temporary, "%s.%d", o->id_file, (int)getpid());
    FILE *f = fopen(temporary, "w");
    if (!f || fputs(hex, f) < 0 || fclose(f) || rename(temporary, o->id_file)) {
      perror(o->id_file);
      exit(1);
    }
    return;
  }
  for (double end = now_ms() + 60000; now_ms() < end; usleep(5000)) {
    FILE *f = fopen(o->id_file, "r");
    if (!f) continue;
    size_t n = fread(hex, 1, sizeof hex - 1, f);
    fclose(f);
    if (n == sizeof hex - 1 && from_hex(hex, id)) return;
  }
  fprintf(stderr, "nccl-ranks: %s did not appear within 60 s: is rank 0 running?\n", o->id_file);
  exit(1);
}

static void expect(const float *got, int count, float want, const char *what) {
  for (int i = 0; i < count; i++)
    if (got[i] != want) {
      fprintf(stderr, "nccl-ranks: %s: element %d is %g, not %g\n", what, i, got[i], want);
      failed = 1;
      return;
    }
}

/* Every function a different, known number of times, so that a mix-up shows. */
static void call_everything(ncclComm_t comm, int rank, int ranks, int count, float *send, float *recv, char *counts) {
  float total = (float)(ranks * (ranks + 1) / 2);
  int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
  for (int i = 0; i < count * ranks; i++) send[i] = (float)(rank + 1);
  for (int i = 0; i < 3; i++) check_nccl(ncclAllReduce(send, recv, count, ncclFloat32, ncclSum, comm, NULL), "ncclAllReduce");
  expect(recv, count, total, "all_reduce");
  for (int i = 0; i < 4; i++) check_nccl(ncclBroadcast(send, recv, count, ncclFloat32, 0, comm, NULL), "ncclBroadcast");
  expect(recv, count, 1, "broadcast");
  for (int i = 0; i < 5; i++) check_nccl(ncclBcast(recv, count, ncclFloat32, ranks - 1, comm, NULL), "ncclBcast");
  expect(recv, count, 1, "bcast");
  for (int i = 0; i < 6; i++) check_nccl(ncclReduce(send, recv, count, ncclFloat32, ncclMax, 0, comm, NULL), "ncclReduce");
  if (rank == 0) expect(recv, count, (float)ranks, "reduce");
  for (int i = 0; i < 7; i++) check_nccl(ncclAllGather(send, recv, count, ncclFloat32, comm, NULL), "ncclAllGather");
  for (int r = 0; r < ranks; r++) expect(recv + r * count, count, (float)(r + 1), "all_gather");
  for (int i = 0; i < 8; i++) check_nccl(ncclReduceScatter(send, recv, count, ncclFloat32, ncclSum, comm, NULL), "ncclReduceScatter");
  expect(recv, count, total, "reduce_scatter");
  for (int i = 0; i < 9; i++) { /* a ring, in a group: without one it would block itself */
    check_nccl(ncclGroupStart(), "ncclGroupStart");
    check_nccl(ncclSend(send, count, ncclFloat32, next, comm, NULL), "ncclSend");
    check_nccl(ncclRecv(recv, count, ncclFloat32, previous, comm, NULL), "ncclRecv");
    check_nccl(ncclGroupEnd(), "ncclGroupEnd");
  }
  expect(recv, count, (float)(previous + 1), "recv");
  sprintf(counts, "\"all_reduce\":3,\"broadcast\":9,\"reduce\":6,\"all_gather\":7,\"reduce_scatter\":8,\"send\":9,\"recv\":9,"
                  "\"group_end\":9");
}

#define EAGER_STEPS 3 /* before a graph is captured */

/* The steps of a rank. Returns how long it waited for others: in the calls, or in the synchronisations. */
static double train(const struct options *o, struct shape *s, int *launches) {
  double waited = 0;
  cudaGraphExec_t graph = NULL;
  for (int i = 0; i < o->iters; i++) {
    int ms = o->work_ms + late_now(o, o->rank);
    double start = now_ms();
    if (o->mode == GRAPH && i >= EAGER_STEPS) {
      if (!graph) {
        gpu_capture(s->stream);
        shape_before(s);
        gpu_kernel(o->gpu_ms, s->stream);
        shape_after(s);
        graph = gpu_captured(s->stream);
      }
      work(ms, o->burn);
      start = now_ms();
      gpu_launch(graph, s->stream);
      ++*launches;
    } else {
      shape_before(s);
      waited += now_ms() - start;
      work(ms, o->burn);
      start = now_ms();
      gpu_kernel(o->gpu_ms, s->stream);
      shape_after(s);
    }
    if (o->mode != BLOCKING && (i + 1) % o->wait_every == 0) gpu_wait(s->stream);
    waited += now_ms() - start;
  }
  return waited;
}

static int run_rank(const struct options *o) {
  ncclUniqueId id;
  if (o->id_hex) {
    if (!from_hex(o->id_hex, &id)) usage("nccl-ranks");
  } else {
    exchange_id(o, &id);
  }
  size_t elements = (size_t)o->count * (size_t)o->ranks;
  float *send = calloc(elements, sizeof *send), *recv = calloc(elements, sizeof *recv);
  if (!send || !recv) return 1;
  ncclComm_t comm;
  check_nccl(ncclCommInitRank(&comm, o->ranks, id, o->rank), "ncclCommInitRank");
  char counts[512];
  double waited = 0;
  int launches = 0;
  struct shape s = {.rank = o->rank, .ranks = o->ranks, .tp = o->tp, .pp = o->pp, .dp = o->dp, .world = comm,
                    .pairs_only = o->pairs_only};
  if (o->all_functions) {
    call_everything(comm, o->rank, o->ranks, o->count, send, recv, counts);
  } else {
    s.send = send, s.recv = recv, s.count = (size_t)o->count;
    for (int i = 0; i < o->count; i++) send[i] = (float)(o->rank + 1);
    if (o->mode != BLOCKING) s.stream = gpu_stream();
    shape_open(&s);
    waited = train(o, &s, &launches);
    if (o->iters && !o->pairs_only) expect(recv, o->count, (float)(o->ranks * (o->ranks + 1) / 2), "all_reduce");
    sprintf(counts, "\"all_reduce\":%d,\"all_gather\":%d,\"send\":%d,\"recv\":%d", s.all_reduces, s.all_gathers, s.sends, s.recvs);
  }
  char hex[2 * NCCL_UNIQUE_ID_BYTES + 1], line[2048];
  to_hex(&id, hex);
  int n = snprintf(line, sizeof line,
                   "{\"rank\":%d,\"pid\":%d,\"ok\":%s,\"id\":\"%s\",\"calls\":{%s},\"waited_ms\":%.3f,\"bytes\":%zu,"
                   "\"launches\":%d}\n",
                   o->rank, (int)getpid(), failed ? "false" : "true", hex, counts, waited,
                   (size_t)o->count * sizeof *send, launches);
  if (write(STDOUT_FILENO, line, (size_t)n) != n) return 1; /* one write: lines of ranks do not mix */
  wait_for_file(o->hold_file);
  shape_close(&s);
  check_nccl(ncclCommDestroy(comm), "ncclCommDestroy");
  return failed;
}

/* The cgroup directory of a rank: the ranks are dealt to the directories evenly and in order. */
static void enter_cgroup(const char *list, int rank, int ranks) {
  int n = 1;
  for (const char *c = list; *c; c++) n += *c == ',';
  int index = rank / ((ranks + n - 1) / n);
  while (index-- > 0) list = strchr(list, ',') + 1;
  char path[4096];
  snprintf(path, sizeof path, "%.*s/cgroup.procs", (int)strcspn(list, ","), list);
  FILE *f = fopen(path, "w");
  if (!f || fprintf(f, "%d", (int)getpid()) < 0 || fclose(f)) {
    fprintf(stderr, "nccl-ranks: %s: %s\n", path, strerror(errno));
    exit(1);
  }
}

static void set_number(const char *name, int value) {
  char text[16];
  snprintf(text, sizeof text, "%d", value);
  setenv(name, text, 1);
}

/* By its path rather than as /proc/self/exe, which would make the task's name "exe". */
static void start_over(char **args) {
  char path[4096];
  ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
  if (n > 0) {
    path[n] = 0;
    execv(path, args);
  }
  perror("nccl-ranks: exec");
  _exit(1);
}

static int run_all(struct options *o, int argc, char **argv) {
  ncclUniqueId id;
  check_nccl(ncclGetUniqueId(&id), "ncclGetUniqueId");
  char hex[2 * NCCL_UNIQUE_ID_BYTES + 1], rank_text[16];
  to_hex(&id, hex);
  char **args = calloc((size_t)argc + 5, sizeof *args);
  if (!args) return 1;
  memcpy(args, argv, (size_t)argc * sizeof *args);
  args[argc] = "--rank";
  args[argc + 1] = rank_text;
  args[argc + 2] = "--id-hex";
  args[argc + 3] = hex;
  pid_t parent = getpid();
  for (int r = 0; r < o->ranks; r++) {
    pid_t pid = fork();
    if (pid < 0) {
      perror("nccl-ranks: fork");
      return 1;
    }
    if (pid > 0) continue;
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* no rank outlives the job */
    if (getppid() != parent) _exit(1);
    if (o->cgroups) enter_cgroup(o->cgroups, r, o->ranks);
    set_number("RANK", r);
    set_number("LOCAL_RANK", r);
    set_number("WORLD_SIZE", o->ranks);
    snprintf(rank_text, sizeof rank_text, "%d", r);
    start_over(args);
  }
  int bad = 0, status;
  while (wait(&status) > 0) bad |= !WIFEXITED(status) || WEXITSTATUS(status) != 0;
  free(args);
  return bad;
}

int main(int argc, char **argv) {
  struct options o = parse_options(argc, argv);
  if (o.rank < 0) return run_all(&o, argc, argv);
  if (!o.id_file && !o.id_hex) usage(argv[0]);
  if (!getenv("RANK")) { /* started by hand with --rank: the environment must show it, so start over with it set */
    set_number("RANK", o.rank);
    set_number("LOCAL_RANK", o.rank);
    set_number("WORLD_SIZE", o.ranks);
    start_over(argv);
  }
  if (o.mode != BLOCKING) gpu_open(); /* before the wait: whoever looks for libraries finds all of them */
  work(o.start_ms, 0);
  wait_for_file(o.start_file);
  return run_rank(&o);
}
