/* Ways of using NCCL that nccl-ranks does not have: one process with several communicators, splits, communicators that are
 * made smaller and larger, the other init calls, a call left by a jump, and a process that waits between init and its calls.
 * The test that starts it is ../shapes.rs. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "nccl.h"

#define N 3
static float buffer[N][16], result[N][16];
static ncclComm_t comms[N];

static void check(ncclResult_t rc) {
  if (rc != ncclSuccess) {
    fprintf(stderr, "shapes: %s\n", ncclGetErrorString(rc));
    exit(1);
  }
}

static void all_reduce(ncclComm_t comm) {
  check(ncclAllReduce(buffer[0], result[0], 16, ncclFloat32, ncclSum, comm, (cudaStream_t)0x1234));
}

static ncclUniqueId id;

static ncclComm_t alone(void) {
  ncclComm_t comm;
  check(ncclGetUniqueId(&id));
  check(ncclCommInitRank(&comm, 1, id, 0));
  return comm;
}

static void *split_and_reduce(void *arg) {
  long rank = (long)arg;
  ncclComm_t first, second;
  check(ncclCommSplit(comms[rank], 7012, -(int)rank, &first, NULL));
  check(ncclCommSplit(comms[rank], rank == 0 ? NCCL_SPLIT_NOCOLOR : 0, 0, &second, NULL));
  check(ncclAllReduce(buffer[rank], result[rank], 16, ncclFloat32, ncclSum, first, NULL));
  if (second) check(ncclBroadcast(buffer[rank], result[rank], 16, ncclInt8, 1, second, NULL));
  return NULL;
}

/* Rank 0 leaves, and comes back as the last one. */
static ncclUniqueId of_grown;
static void *resize_and_reduce(void *arg) {
  long rank = (long)arg;
  int excluded = 0;
  ncclComm_t fewer = NULL, more;
  if (rank != 0) {
    check(ncclCommShrink(comms[rank], &excluded, 1, &fewer, NULL, 0));
    check(ncclBroadcast(buffer[rank], result[rank], 16, ncclInt8, 1, fewer, NULL));
  }
  check(ncclCommGrow(fewer, N, &of_grown, fewer ? -1 : N - 1, &more, NULL));
  check(ncclAllReduce(buffer[rank], result[rank], 16, ncclFloat32, ncclSum, more, NULL));
  return NULL;
}

static void *naps(void *arg) {
  for (int i = 0; i < 10; i++) usleep(10000);
  return arg;
}

static sigjmp_buf back;
static void jump(int signal) {
  (void)signal;
  siglongjmp(back, 1);
}

/* The call that is to be left has begun when it has made its shared region, and then waits for a rank that never comes. */
static char region[64];
static pthread_t caller;
static void *interrupt(void *arg) {
  int fd;
  while ((fd = shm_open(region, O_RDWR, 0)) < 0) usleep(1000);
  close(fd);
  usleep(20000);
  pthread_kill(caller, SIGALRM);
  return arg;
}

int main(int argc, char **argv) {
  const char *shape = argc > 1 ? argv[1] : "";
  if (!strcmp(shape, "all")) { /* three communicators, one thread */
    check(ncclCommInitAll(comms, N, NULL));
    check(ncclGroupStart());
    for (int i = 0; i < N; i++)
      check(ncclAllReduce(buffer[i], result[i], 16, ncclFloat16, ncclMin, comms[i], NULL));
    check(ncclGroupEnd());
  } else if (!strcmp(shape, "grouped")) { /* the same by hand: the handles come with the end of the group */
    ncclUniqueId shared;
    check(ncclGetUniqueId(&shared));
    check(ncclGroupStart());
    for (int i = 0; i < N; i++) check(ncclCommInitRank(&comms[i], N, shared, i));
    check(ncclGroupEnd());
    check(ncclGroupStart());
    for (int i = 0; i < N; i++)
      check(ncclAllReduce(buffer[i], result[i], 16, ncclFloat16, ncclMin, comms[i], NULL));
    check(ncclGroupEnd());
  } else if (!strcmp(shape, "split") || !strcmp(shape, "resized")) {
    pthread_t thread[N];
    check(ncclGetUniqueId(&of_grown));
    check(ncclCommInitAll(comms, N, NULL));
    check(ncclGroupStart());
    for (int i = 0; i < N; i++) check(ncclReduce(buffer[i], result[i], 16, ncclFloat32, ncclSum, 0, comms[i], NULL));
    check(ncclGroupEnd());
    for (long i = 0; i < N; i++) pthread_create(&thread[i], NULL, *shape == 's' ? split_and_reduce : resize_and_reduce, (void *)i);
    for (int i = 0; i < N; i++) pthread_join(thread[i], NULL);
    while (getchar() != EOF) {} /* its communicators are to be read while they live */
  } else if (!strcmp(shape, "inits")) { /* config, scalable; then a handle used again */
    ncclUniqueId id[2];
    ncclComm_t comm;
    check(ncclGetUniqueId(&id[0]));
    check(ncclGetUniqueId(&id[1]));
    check(ncclCommInitRankConfig(&comm, 1, id[0], 0, NULL));
    all_reduce(comm);
    all_reduce(comm);
    check(ncclCommDestroy(comm));
    check(ncclCommInitRankScalable(&comm, 1, 0, 2, id, NULL));
    all_reduce(comm);
    check(ncclCommDestroy(comm));
    for (int k = 0; k < 2; k++)
      for (int i = 0; i < NCCL_UNIQUE_ID_BYTES; i++) printf("%02x", (unsigned char)id[k].internal[i]);
  } else if (!strcmp(shape, "naps")) { /* a helper thread sleeps, and so does the main one */
    pthread_t thread;
    ncclComm_t comm = alone();
    all_reduce(comm);
    pthread_create(&thread, NULL, naps, NULL);
    naps(NULL);
    pthread_join(thread, NULL);
    all_reduce(comm);
  } else if (!strcmp(shape, "jump")) {
    ncclComm_t comm = alone(), never;
    ncclUniqueId id;
    check(ncclGetUniqueId(&id));
    signal(SIGALRM, jump);
    unsigned long long key[2];
    memcpy(key, id.internal, sizeof key);
    snprintf(region, sizeof region, "/nccl-sim-%016llx%016llx", key[0], key[1]);
    pthread_t thread;
    caller = pthread_self();
    pthread_create(&thread, NULL, interrupt, NULL);
    if (sigsetjmp(back, 1) == 0) ncclCommInitRank(&never, 2, id, 0);
    pthread_join(thread, NULL);
    shm_unlink(region); /* what the abandoned communicator would leave behind */
    for (int i = 0; i < 5; i++) all_reduce(comm);
  } else if (!strcmp(shape, "late")) {
    ncclComm_t comm = alone();
    char line[8];
    signal(SIGPIPE, SIG_IGN);
    printf("ready\n");
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin)) return 1;
    for (int i = 0; i < 3; i++) all_reduce(comm);
    for (int i = 0; i < NCCL_UNIQUE_ID_BYTES; i++) printf("%02x", (unsigned char)id.internal[i]);
    printf("\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {} /* its communicator is to be read while it lives */
  } else {
    return 2;
  }
  return 0;
}
