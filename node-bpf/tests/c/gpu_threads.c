/* Collectives enqueued by one thread and waited for by another, as PyTorch does: its backward pass enqueues from a thread of
 * its own, the main thread synchronises, and a third copies data and knows nothing of collectives. Each synchronisation has a
 * stream of its own number; the test that holds which of them follow a collective is ../cuda.rs. */
#include <pthread.h>
#include <stdio.h>
#include "nccl.h"

int cudaStreamSynchronize(void *);
static void sync(long stream) { cudaStreamSynchronize((void *)stream); }

static ncclComm_t comm;
static void enqueue(void) {
  static float in[4], out[4];
  ncclAllReduce(in, out, 4, ncclFloat32, ncclSum, comm, (void *)0x99);
}

/* One after the other: the steps take turns. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t turned = PTHREAD_COND_INITIALIZER;
static int turn;
static void take_turn(int mine) {
  pthread_mutex_lock(&lock);
  while (turn != mine) pthread_cond_wait(&turned, &lock);
}
static void pass_on(void) {
  turn++;
  pthread_cond_broadcast(&turned);
  pthread_mutex_unlock(&lock);
}

static void *backward(void *unused) {
  take_turn(0), enqueue(), pass_on();
  take_turn(2), enqueue(), pass_on();
  take_turn(5), enqueue(), sync(5), pass_on();
  return unused;
}
static void *copies(void *unused) {
  take_turn(3), sync(3), pass_on();
  return unused;
}

int main(void) {
  pthread_t threads[2];
  ncclUniqueId id;
  char line[8];
  if (!fgets(line, sizeof line, stdin)) return 1;
  if (ncclGetUniqueId(&id) || ncclCommInitRank(&comm, 1, id, 0)) return 1;
  if (pthread_create(&threads[0], NULL, backward, NULL) || pthread_create(&threads[1], NULL, copies, NULL)) return 1;
  take_turn(1), sync(1), sync(2), pass_on();
  take_turn(4), sync(4), pass_on();
  take_turn(6), sync(6), enqueue(), sync(7), sync(8), pass_on();
  pthread_join(threads[0], NULL);
  pthread_join(threads[1], NULL);
  return 0;
}
