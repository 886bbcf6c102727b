/* Stand-ins for libcudart (-DRUNTIME), libcuda (-DDRIVER) and libamdhip64 (-DHIP): the exported names and the calling
 * conventions of the functions that gpu_calls.c calls, and nothing behind them. The runtime calls the driver, as the
 * real one does. */
#define _GNU_SOURCE
#include <stddef.h>
#include <time.h>

typedef struct { unsigned x, y, z; } dim3;
#define EXPORT __attribute__((visibility("default"), noinline))

static void nap(long ns) {
  struct timespec t = {.tv_nsec = ns};
  nanosleep(&t, NULL);
}

#ifdef DRIVER
EXPORT int cuMemcpyHtoDAsync_v2(unsigned long long dst, const void *src, size_t bytes, void *stream) {
  (void)dst, (void)src, (void)bytes, (void)stream;
  return 0;
}
EXPORT int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                          unsigned shared, void *stream, void **params, void **extra) {
  (void)f, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)stream, (void)params, (void)extra;
  return 0;
}
EXPORT int cuStreamSynchronize(void *stream) {
  (void)stream;
  nap(2000000);
  return 0;
}
EXPORT int cuStreamBeginCapture_v2(void *stream, int mode) {
  (void)stream;
  return mode; /* so that a test can let it fail */
}
EXPORT int cuStreamEndCapture(void *stream, void **graph) {
  (void)stream;
  return graph ? 0 : 1;
}
EXPORT int cuEventRecord(void *event, void *stream) {
  (void)event, (void)stream;
  return 0;
}
EXPORT int cuStreamWaitEvent(void *stream, void *event, unsigned flags) {
  (void)stream, (void)event;
  return (int)flags; /* likewise */
}
EXPORT int cuMemsetD32_v2(unsigned long long dst, unsigned value, size_t n) {
  (void)dst, (void)value, (void)n;
  return 0;
}
#endif

#ifdef RUNTIME
extern int cuMemcpyHtoDAsync_v2(unsigned long long, const void *, size_t, void *);
extern int cuStreamSynchronize(void *);
extern int cuStreamBeginCapture_v2(void *, int);
extern int cuStreamEndCapture(void *, void **);
extern int cuEventRecord(void *, void *);
extern int cuStreamWaitEvent(void *, void *, unsigned);
extern int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
EXPORT int cudaMalloc(void **p, size_t bytes) {
  (void)bytes;
  *p = NULL;
  return 2; /* out of memory */
}
EXPORT int cudaMemcpyAsync(void *dst, const void *src, size_t bytes, int kind, void *stream) {
  (void)kind;
  return cuMemcpyHtoDAsync_v2((unsigned long long)dst, src, bytes, stream) + 0;
}
EXPORT int cudaMemcpyAsync_ptsz(void *dst, const void *src, size_t bytes, int kind, void *stream) {
  return cudaMemcpyAsync(dst, src, bytes, kind, stream) + 0; /* inside: one call */
}
EXPORT int cudaMemcpy2D(void *dst, size_t dpitch, const void *src, size_t spitch, size_t width, size_t height, int kind) {
  (void)dst, (void)dpitch, (void)src, (void)spitch, (void)width, (void)height, (void)kind;
  return 0;
}
EXPORT int cudaLaunchKernel(const void *f, dim3 grid, dim3 block, void **args, size_t shared, void *stream) {
  return cuLaunchKernel((void *)f, grid.x, grid.y, grid.z, block.x, block.y, block.z, (unsigned)shared, stream, args, NULL) + 0;
}
struct launch { dim3 grid, block; size_t shared; void *stream; void *attributes; unsigned n; };
EXPORT int cudaLaunchKernelExC(const struct launch *config, const void *f, void **args) {
  (void)config, (void)f, (void)args;
  return 0;
}
EXPORT int cudaStreamSynchronize(void *stream) { return cuStreamSynchronize(stream) + 0; }
EXPORT int cudaStreamBeginCapture(void *stream, int mode) { return cuStreamBeginCapture_v2(stream, mode) + 0; }
EXPORT int cudaStreamEndCapture(void *stream, void **graph) { return cuStreamEndCapture(stream, graph) + 0; }
EXPORT int cudaEventRecord(void *event, void *stream) { return cuEventRecord(event, stream) + 0; }
EXPORT int cudaStreamWaitEvent(void *stream, void *event, unsigned flags) { return cuStreamWaitEvent(stream, event, flags) + 0; }
EXPORT int cudaEventQuery(void *event) {
  (void)event;
  return 0;
}
#endif

#ifdef HIP
EXPORT int hipMemcpy(void *dst, const void *src, size_t bytes, int kind) {
  (void)dst, (void)src, (void)bytes, (void)kind;
  return 0;
}
EXPORT int hipLaunchKernel(const void *f, dim3 grid, dim3 block, void **args, size_t shared, void *stream) {
  (void)f, (void)grid, (void)block, (void)args, (void)shared, (void)stream;
  return 0;
}
EXPORT int hipDeviceSynchronize(void) {
  nap(1000000);
  return 0;
}
#endif
