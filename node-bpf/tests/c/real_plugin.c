/* Has a real libnccl load its profiler plugin without a GPU: calls the function with which every communicator's start does so
 * (ncclProfilerPluginInit), which is no exported symbol, on a structure of zeros with hash, rank and size at the offsets of
 * that version. Arguments: library, distance of the function from ncclGetUniqueId, offsets of hash and rank (size
 * follows). Prints "init RESULT", then waits for the end of its input. The test that starts it is ../real_libs.rs. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv) {
  if (argc != 5) return 2;
  void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  char *known = library ? dlsym(library, "ncclGetUniqueId") : NULL;
  char *comm = calloc(1, 64 << 20), id[128];
  if (!known || !comm) return fprintf(stderr, "real_plugin: %s\n", dlerror()), 1;
  ((int (*)(char *))(uintptr_t)known)(id); /* starts the library */
  uint64_t hash = 0xfeedbeef01020304;
  int ranks[2] = {5, 8};
  memcpy(comm + atol(argv[3]), &hash, sizeof hash);
  memcpy(comm + atol(argv[4]), ranks, sizeof ranks);
  int result = ((int (*)(void *))(uintptr_t)(known + atol(argv[2])))(comm);
  printf("init %d\n", result);
  fflush(stdout);
  while (getchar() != EOF) {}
  return 0;
}
