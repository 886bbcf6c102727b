/* Calls a real libcudart, loaded from the path given, without a GPU: the i-th function i+1 times. Prints one line a function:
 * its name, how often it was called, what it returned. The test that starts it is ../real_libs.rs. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

static char memory[64];

int main(int argc, char **argv) {
  void *library = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
  if (!library) {
    fprintf(stderr, "real_cuda: %s\n", argc == 2 ? dlerror() : "one argument: the library");
    return 1;
  }
  /* more arguments than a function takes do no harm: all are words in registers */
  struct { const char *name; void *args[5]; } calls[] = {
      {"cudaMalloc", {memory, (void *)4096}},
      {"cudaMemcpy", {memory, memory + 32, (void *)8, (void *)1}},
      {"cudaMemcpyAsync", {memory, memory + 32, (void *)8, (void *)1}},
      {"cudaMemset", {memory, 0, (void *)8}},
      {"cudaDeviceSynchronize", {0}},
      {"cudaStreamSynchronize", {0}},
      {"cudaMallocHost", {memory, (void *)4096}},
  };
  for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
    int (*call)(void *, void *, void *, void *, void *) = dlsym(library, calls[i].name);
    if (!call) return 2;
    int ret = 0;
    for (size_t k = 0; k <= i; k++)
      ret = call(calls[i].args[0], calls[i].args[1], calls[i].args[2], calls[i].args[3], calls[i].args[4]);
    printf("%s %zu %d\n", calls[i].name, i + 1, ret);
  }
  printf("done\n");
  fflush(stdout);
  while (getchar() != EOF) {}
  return 0;
}
