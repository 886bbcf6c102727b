/* The part of the CUDA runtime's C API that a training loop needs, on host memory: names, arguments and meaning as in
 * NVIDIA's reference ("CUDA Runtime API", version 12). Own code; what runs the work is device.c. Enough for a tracer to
 * see what it would see of a job on GPUs: calls that only enqueue, and calls that wait. A kernel is a wait: its first
 * argument is taken for nanoseconds. */
#define _GNU_SOURCE
#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "cudart.h"
#include "device.h"

#define EXPORT __attribute__((visibility("default")))

/* nccl-sim's way in; 0, or no memory */
EXPORT int simcuda_enqueue(void *stream, simcuda_run run, void *arg, simcuda_run release);
int simcuda_enqueue(void *stream, simcuda_run run, void *arg, simcuda_run release) {
  return device_enqueue(device_stream(stream), run, arg, release);
}

EXPORT void simcuda_wait_all(void);
void simcuda_wait_all(void) { device_wait_all(); }

EXPORT cudaError_t cudaGetDeviceCount(int *count) { return *count = 1, cudaSuccess; }
EXPORT cudaError_t cudaSetDevice(int device) { return device < 0 ? cudaErrorInvalidValue : cudaSuccess; }
EXPORT cudaError_t cudaRuntimeGetVersion(int *version) { return *version = 12000, cudaSuccess; }
EXPORT const char *cudaGetErrorString(cudaError_t error) { return error == cudaSuccess ? "no error" : "an error"; }

EXPORT cudaError_t cudaMalloc(void **pointer, size_t bytes) {
  *pointer = calloc(1, bytes ? bytes : 1);
  return *pointer ? cudaSuccess : cudaErrorMemoryAllocation;
}
EXPORT cudaError_t cudaFree(void *pointer) { return free(pointer), cudaSuccess; }

struct copy {
  void *to;
  const void *from;
  size_t bytes;
  int value; /* of a fill: no source */
};

static void run_copy(void *arg) {
  struct copy *copy = arg;
  if (copy->from) memcpy(copy->to, copy->from, copy->bytes);
  else memset(copy->to, copy->value, copy->bytes);
}

static cudaError_t queue_copy(struct copy copy, struct stream *stream) {
  struct copy *kept = malloc(sizeof *kept);
  if (!kept) return cudaErrorMemoryAllocation;
  *kept = copy;
  if (device_enqueue(stream, run_copy, kept, free) == 0) return cudaSuccess;
  free(kept);
  return cudaErrorMemoryAllocation;
}

EXPORT cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, cudaStream_t stream) {
  (void)kind;
  return queue_copy((struct copy){.to = to, .from = from, .bytes = bytes}, device_stream(stream));
}
EXPORT cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, int kind) {
  cudaError_t error = cudaMemcpyAsync(to, from, bytes, kind, NULL);
  device_wait(device_stream(NULL));
  return error;
}
EXPORT cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
  return queue_copy((struct copy){.to = to, .value = value, .bytes = bytes}, device_stream(stream));
}

static void run_kernel(void *arg) {
  long ns = *(long *)arg;
  struct timespec t = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
  nanosleep(&t, NULL);
}

EXPORT cudaError_t cudaLaunchKernel(const void *func, struct dim3 grid, struct dim3 block, void **args, size_t shared,
                                    cudaStream_t stream) {
  (void)func, (void)grid, (void)block, (void)shared;
  long *ns = malloc(sizeof *ns);
  if (!ns) return cudaErrorMemoryAllocation;
  *ns = args && args[0] ? *(long *)args[0] : 0;
  if (device_enqueue(device_stream(stream), run_kernel, ns, free) == 0) return cudaSuccess;
  free(ns);
  return cudaErrorMemoryAllocation;
}

EXPORT cudaError_t cudaStreamCreate(cudaStream_t *stream) {
  *stream = (cudaStream_t)device_stream_create();
  return *stream ? cudaSuccess : cudaErrorMemoryAllocation;
}
EXPORT cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
  (void)flags;
  return cudaStreamCreate(stream);
}
EXPORT cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  device_stream_destroy(device_stream(stream));
  return cudaSuccess;
}
EXPORT cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  struct stream *queue = device_stream(stream);
  if (device_capturing(queue)) return cudaErrorStreamCaptureUnsupported;
  device_wait(queue);
  return cudaSuccess;
}
EXPORT cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return device_idle(device_stream(stream)) ? cudaSuccess : cudaErrorNotReady;
}
EXPORT cudaError_t cudaDeviceSynchronize(void) { return device_wait_all(), cudaSuccess; }

/* Events: a count of records, and how far the device has come. */
struct mark {
  struct event *event;
  uint32_t number;
};

static void run_mark(void *arg) {
  struct mark *mark = arg;
  atomic_store(&mark->event->done, mark->number);
  syscall(SYS_futex, &mark->event->done, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}
static void run_await(void *arg) {
  struct mark *mark = arg;
  device_wait_event(mark->event, mark->number);
}
static cudaError_t queue_mark(simcuda_run run, struct event *event, uint32_t number, cudaStream_t stream) {
  struct mark *mark = malloc(sizeof *mark);
  if (!mark) return cudaErrorMemoryAllocation;
  *mark = (struct mark){.event = event, .number = number};
  if (device_enqueue(device_stream(stream), run, mark, free) == 0) return cudaSuccess;
  free(mark);
  return cudaErrorMemoryAllocation;
}

EXPORT cudaError_t cudaEventCreate(cudaEvent_t *event) {
  *event = calloc(1, sizeof(struct event));
  return *event ? cudaSuccess : cudaErrorMemoryAllocation;
}
EXPORT cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
  (void)flags;
  return cudaEventCreate(event);
}
EXPORT cudaError_t cudaEventDestroy(cudaEvent_t event) { return free(event), cudaSuccess; }
EXPORT cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  struct event *e = event;
  return queue_mark(run_mark, e, atomic_fetch_add(&e->recorded, 1) + 1, stream);
}
EXPORT cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  struct event *e = event;
  device_wait_event(e, atomic_load(&e->recorded));
  return cudaSuccess;
}
EXPORT cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  (void)flags;
  struct event *e = event;
  return queue_mark(run_await, e, atomic_load(&e->recorded), stream);
}

EXPORT cudaError_t cudaStreamBeginCapture(cudaStream_t stream, int mode) {
  (void)mode;
  return device_capture_begin(device_stream(stream)) ? cudaErrorIllegalState : cudaSuccess;
}
EXPORT cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
  *graph = device_capture_end(device_stream(stream));
  return *graph ? cudaSuccess : cudaErrorIllegalState;
}
/* An executable graph is the graph itself, used once more. */
EXPORT cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags) {
  (void)flags;
  atomic_fetch_add(&((struct graph *)graph)->uses, 1);
  *exec = graph;
  return cudaSuccess;
}
EXPORT cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  return device_launch(exec, device_stream(stream)) ? cudaErrorMemoryAllocation : cudaSuccess;
}
EXPORT cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) { return device_graph_drop(exec), cudaSuccess; }
EXPORT cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return device_graph_drop(graph), cudaSuccess; }
