#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include "gpu.h"

static cudaError_t (*create)(cudaStream_t *);
static cudaError_t (*launch_kernel)(const void *, struct dim3, struct dim3, void **, size_t, cudaStream_t);
static cudaError_t (*synchronize)(cudaStream_t);
static cudaError_t (*begin)(cudaStream_t, int);
static cudaError_t (*end)(cudaStream_t, cudaGraph_t *);
static cudaError_t (*instantiate)(cudaGraphExec_t *, cudaGraph_t, unsigned long long);
static cudaError_t (*launch)(cudaGraphExec_t, cudaStream_t);

static void check(cudaError_t error, const char *what) {
  if (error == cudaSuccess) return;
  fprintf(stderr, "nccl-ranks: %s: error %d\n", what, (int)error);
  exit(1);
}

void gpu_open(void) {
  setenv("NCCL_SIM_MODE", "enqueue", 1);
  void *library = dlopen("libcudart.so.12", RTLD_NOW | RTLD_GLOBAL);
  if (!library) {
    fprintf(stderr, "nccl-ranks: %s\n", dlerror());
    exit(1);
  }
  *(void **)&create = dlsym(library, "cudaStreamCreate");
  *(void **)&launch_kernel = dlsym(library, "cudaLaunchKernel");
  *(void **)&synchronize = dlsym(library, "cudaStreamSynchronize");
  *(void **)&begin = dlsym(library, "cudaStreamBeginCapture");
  *(void **)&end = dlsym(library, "cudaStreamEndCapture");
  *(void **)&instantiate = dlsym(library, "cudaGraphInstantiate");
  *(void **)&launch = dlsym(library, "cudaGraphLaunch");
}

cudaStream_t gpu_stream(void) {
  cudaStream_t stream;
  check(create(&stream), "cudaStreamCreate");
  return stream;
}

void gpu_kernel(int ms, cudaStream_t stream) {
  if (ms <= 0) return;
  long ns = ms * 1000000l;
  void *args[] = {&ns};
  check(launch_kernel((const void *)gpu_kernel, (struct dim3){1, 1, 1}, (struct dim3){1, 1, 1}, args, 0, stream),
        "cudaLaunchKernel");
}

void gpu_wait(cudaStream_t stream) { check(synchronize(stream), "cudaStreamSynchronize"); }

void gpu_capture(cudaStream_t stream) { check(begin(stream, 0), "cudaStreamBeginCapture"); }

cudaGraphExec_t gpu_captured(cudaStream_t stream) {
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  check(end(stream, &graph), "cudaStreamEndCapture");
  check(instantiate(&exec, graph, 0), "cudaGraphInstantiate");
  return exec;
}

void gpu_launch(cudaGraphExec_t graph, cudaStream_t stream) { check(launch(graph, stream), "cudaGraphLaunch"); }
