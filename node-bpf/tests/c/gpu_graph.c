/* Collectives on several streams while graphs are captured from some of them. Every call's element count tells what is to be
 * recorded of it: 1 it goes into a graph, 2 it runs. The test that reads them is ../cuda.rs. */
#include <stdio.h>
#include "nccl.h"

int cudaStreamBeginCapture(void *, int), cudaStreamEndCapture(void *, void **);
int cudaEventRecord(void *, void *), cudaStreamWaitEvent(void *, void *, unsigned);

static ncclComm_t comm;
static void enqueue(int count, void *stream) {
  static float in[4], out[4];
  if (ncclAllReduce(in, out, (size_t)count, ncclFloat32, ncclSum, comm, stream)) _Exit(1);
}
static void captured(void *stream) { enqueue(1, stream); }
static void runs(void *stream) { enqueue(2, stream); }

int main(void) {
  void *const a = (void *)0xa0, *const b = (void *)0xb0, *const c = (void *)0xc0, *const d = (void *)0xd0;
  void *const fork = (void *)0xe1, *const join = (void *)0xe2, *const other = (void *)0xe3;
  void *graph;
  ncclUniqueId id;
  char line[8];
  if (!fgets(line, sizeof line, stdin)) return 1;
  if (ncclGetUniqueId(&id) || ncclCommInitRank(&comm, 1, id, 0)) return 1;
  cudaEventRecord(other, d); /* the first call of CUDA: from here on its streams are known */
  runs(a);
  if (cudaStreamBeginCapture(a, 0)) return 1;
  captured(a);
  runs(b); /* nothing joins it to the capture */
  cudaEventRecord(other, b);
  cudaStreamWaitEvent(d, other, 0); /* an event of a stream that is not captured */
  runs(d);
  cudaEventRecord(fork, a);
  cudaStreamWaitEvent(d, fork, 1); /* fails */
  runs(d);
  cudaStreamWaitEvent(b, fork, 0);
  captured(b);
  cudaEventRecord(join, b);
  cudaStreamWaitEvent(c, join, 0); /* by way of b */
  captured(c);
  if (cudaStreamBeginCapture(d, 0)) return 1; /* a second capture beside it */
  captured(d);
  if (cudaStreamEndCapture(d, &graph)) return 1;
  runs(d);
  captured(a);
  captured(c);
  cudaEventRecord(fork, d); /* the event marks another place now */
  cudaStreamWaitEvent(d, fork, 0);
  runs(d);
  if (cudaStreamEndCapture(a, &graph)) return 1;
  runs(a);
  runs(b);
  runs(c);
  if (!cudaStreamBeginCapture(b, 900)) return 1; /* fails */
  runs(b);
  if (cudaStreamBeginCapture(a, 0)) return 1; /* the first stream anew: what had joined it has not joined this */
  captured(a);
  runs(b);
  cudaStreamWaitEvent(b, join, 0); /* an event of the capture that is over */
  runs(b);
  if (!cudaStreamEndCapture(a, NULL)) return 1; /* fails, and ends it */
  runs(a);
  return 0;
}
