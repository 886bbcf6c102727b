/* Calls the stand-ins of gpu_stub.c (and nccl-sim) a known number of times. Usage: gpu_calls LOOPS [PAUSE_MS]; waits
 * for a line on its standard input first, and for another one after the loops, with a pause after each hundred. The test that starts it, and holds the numbers, is ../cuda.rs. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "nccl.h"

typedef struct { unsigned x, y, z; } dim3;
struct launch { dim3 grid, block; size_t shared; void *stream; void *attributes; unsigned n; };
int cudaMalloc(void **, size_t);
int cudaMemcpyAsync(void *, const void *, size_t, int, void *);
int cudaMemcpyAsync_ptsz(void *, const void *, size_t, int, void *);
int cudaMemcpy2D(void *, size_t, const void *, size_t, size_t, size_t, int);
int cudaLaunchKernel(const void *, dim3, dim3, void **, size_t, void *);
int cudaLaunchKernelExC(const struct launch *, const void *, void **);
int cudaStreamSynchronize(void *);
int cudaEventQuery(void *);
int cuMemsetD32_v2(unsigned long long, unsigned, size_t);
int hipMemcpy(void *, const void *, size_t, int);
int hipLaunchKernel(const void *, dim3, dim3, void **, size_t, void *);
int hipDeviceSynchronize(void);

int main(int argc, char **argv) {
  int loops = argc > 1 ? atoi(argv[1]) : 100;
  struct timespec pause = {.tv_nsec = argc > 2 ? atoi(argv[2]) * 1000000l : 0};
  dim3 one = {1, 2, 3};
  struct launch config = {.grid = one, .block = one, .stream = (void *)0x7777};
  void *p;
  ncclUniqueId id;
  ncclComm_t comm;
  float x[4] = {0}, y[4];
  char line[8];
  if (!fgets(line, sizeof line, stdin)) return 1;
  if (ncclGetUniqueId(&id) || ncclCommInitRank(&comm, 1, id, 0)) return 1;
  cudaMalloc(&p, 4096);
  for (int i = 0; i < loops; i++) {
    cudaMemcpyAsync(NULL, NULL, 1000, 1, (void *)0x1111);
    cudaMemcpyAsync_ptsz(NULL, NULL, 24, 2, (void *)0x2222);
    cudaMemcpy2D(NULL, 64, NULL, 64, 10, 3, 3);
    cudaLaunchKernel(NULL, one, one, NULL, 0, (void *)0x3333);
    cudaLaunchKernelExC(&config, NULL, NULL);
    cudaEventQuery(NULL); /* not counted */
    cuMemsetD32_v2(0, 0, 5);
    hipMemcpy(NULL, NULL, 7, 4);
    hipLaunchKernel(NULL, one, one, NULL, 0, (void *)0x4444);
    if (pause.tv_nsec && i % 100 == 99) nanosleep(&pause, NULL);
  }
  if (!fgets(line, sizeof line, stdin)) return 1;
  cudaStreamSynchronize((void *)0x5555);
  if (ncclAllReduce(x, y, 4, ncclFloat32, ncclSum, comm, (void *)0x6666)) return 1;
  cudaStreamSynchronize((void *)0x6666);
  hipDeviceSynchronize();
  return 0;
}
