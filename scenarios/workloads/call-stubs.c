/* Functions that do nothing, under the names that are probed: what is left of a call's time is the probe's. Built with
 * -DNCCL as libnccl.so.2 and without as libcudart.so.12. */
#include <stddef.h>

/* Makes the function begin by saving a register, as real ones do: the kernel emulates x86's push, where it would have to
 * step over most other instructions, which costs more than all the rest. */
#if defined(__x86_64__)
#define BEGIN __asm__ volatile("" ::: "rbx")
#else
#define BEGIN __asm__ volatile("" ::: "x19")
#endif

#ifdef NCCL
struct id { char bytes[128]; };
static int communicator;
int ncclCommInitRank(void **comm, int ranks, struct id id, int rank) {
  (void)ranks, (void)id, (void)rank;
  *comm = &communicator;
  return 0;
}
int ncclAllReduce(const void *send, void *recv, size_t count, int type, int op, void *comm, void *stream) {
  (void)send, (void)recv, (void)count, (void)type, (void)op, (void)comm, (void)stream;
  BEGIN;
  return 0;
}
#else
int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *stream) {
  (void)to, (void)from, (void)bytes, (void)kind, (void)stream;
  BEGIN;
  return 0;
}
#endif
