/* Calls a real libnccl, loaded from the path given, without a GPU: every call fails, none crashes, and each is to be
 * recorded. Prints one line a call: its name as rows have it, the count passed, the return code. Then puts a
 * structure into memory that looks like a communicator where that version has its fields (offsets as arguments), makes
 * a call with it, and waits for the end of its input. The test that starts it is ../real_libs.rs. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { char internal[128]; } unique_id;
static void *library;
static float buffer[64];
#define STREAM(i) ((void *)(uintptr_t)(0x1000 + (i)))

static void *find(const char *name) { return dlsym(library, name); }
static void told(const char *row, size_t count, int ret) { printf("%s %zu %d\n", row, count, ret); }

/* sendbuff, recvbuff, count, type, op, comm, stream[, config] */
static void reducing(const char *symbol, const char *row, size_t count, void *comm) {
  int (*call)(void *, void *, size_t, int, int, void *, void *, void *) = find(symbol);
  if (call) told(row, count, call(buffer, buffer, count, (int)(count % 12), 4, comm, STREAM(count), NULL));
}
/* sendbuff, recvbuff, count, type, comm, stream[, config] */
static void plain(const char *symbol, const char *row, size_t count) {
  int (*call)(void *, void *, size_t, int, void *, void *, void *) = find(symbol);
  if (call) told(row, count, call(buffer, buffer, count, (int)(count % 12), NULL, STREAM(count), NULL));
}
/* sendbuff, recvbuff, count, type, root, comm, stream[, config] */
static void rooted(const char *symbol, const char *row, size_t count) {
  int (*call)(void *, void *, size_t, int, int, void *, void *, void *) = find(symbol);
  if (call) told(row, count, call(buffer, buffer, count, (int)(count % 12), 3, NULL, STREAM(count), NULL));
}
/* buffer, count, type, root or peer, comm, stream */
static void one_buffer(const char *symbol, const char *row, size_t count) {
  int (*call)(void *, size_t, int, int, void *, void *) = find(symbol);
  if (call) told(row, count, call(buffer, count, (int)(count % 12), 3, NULL, STREAM(count)));
}

int main(int argc, char **argv) {
  if (argc != 8) return 2;
  library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    fprintf(stderr, "real: %s\n", dlerror());
    return 1;
  }
  unique_id id;
  int (*unique)(unique_id *) = find("ncclGetUniqueId");
  int (*init)(void **, int, unique_id, int) = find("ncclCommInitRank");
  memset(&id, 0, sizeof id);
  void *comm = NULL;
  told("=unique_id", 0, unique(&id));
  told("=init_rank", 0, init(&comm, 1, id, 0));
  reducing("ncclAllReduce", "all_reduce", 1001, NULL);
  reducing("ncclReduceScatter", "reduce_scatter", 1002, NULL);
  plain("ncclAllGather", "all_gather", 1003);
  rooted("ncclBroadcast", "broadcast", 1004);
  one_buffer("ncclBcast", "broadcast", 1005);
  int (*reduce)(void *, void *, size_t, int, int, int, void *, void *, void *) = find("ncclReduce");
  told("reduce", 1006, reduce(buffer, buffer, 1006, 1006 % 12, 4, 3, NULL, STREAM(1006), NULL));
  one_buffer("ncclSend", "send", 1007);
  one_buffer("ncclRecv", "recv", 1008);
  plain("ncclAlltoAll", "all_to_all", 1009);
  rooted("ncclGather", "gather", 1010);
  rooted("ncclScatter", "scatter", 1011);
  reducing("ncclAllReduceConfig", "all_reduce", 1012, NULL);
  reducing("ncclReduceScatterConfig", "reduce_scatter", 1013, NULL);
  plain("ncclAllGatherConfig", "all_gather", 1014);
  rooted("ncclBroadcastConfig", "broadcast", 1015);
  reduce = find("ncclReduceConfig");
  if (reduce) told("reduce", 1016, reduce(buffer, buffer, 1016, 1016 % 12, 4, 3, NULL, STREAM(1016), NULL));
  plain("ncclAlltoAllConfig", "all_to_all", 1017);
  rooted("ncclGatherConfig", "gather", 1018);
  rooted("ncclScatterConfig", "scatter", 1019);

  size_t rank_at = strtoull(argv[2], NULL, 0), hash_at = strtoull(argv[3], NULL, 0);
  char *made = calloc(1, 8 << 20);
  uint64_t magic = 0x0280028002800280, hash = strtoull(argv[4], NULL, 0);
  int rank = atoi(argv[5]), ranks = atoi(argv[6]);
  memcpy(made, &magic, sizeof magic);
  memcpy(made + hash_at, &hash, sizeof hash);
  memcpy(made + rank_at, &rank, sizeof rank);
  memcpy(made + rank_at + 4, &ranks, sizeof ranks);
  /* without the mark at its start the library takes anything for a communicator, and crashes on ours */
  if (atoi(argv[7])) reducing("ncclAllReduce", "all_reduce", 1100, made);
  printf("done\n");
  fflush(stdout);
  while (getchar() != EOF) {}
  return 0;
}
