/* A program that is not linked with MPI and loads it, as mpi4py does. While the shim looks through the libraries for it, another
 * thread loads a library (-DOTHER): that one has the loader's first lock and waits for the second, which who looks through has.
 * A line "called 1", then as shim_mpi.c. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#ifdef OTHER
int other;
#else
typedef int (*callback)(struct dl_phdr_info *, size_t, void *);
struct wrapped {
  callback called;
  void *data;
};
static int (*iterate)(callback, void *);
static int looking; /* 1: under the lock */
static int wrapper(struct dl_phdr_info *info, size_t size, void *data) {
  struct wrapped *wrapped = data;
  if (!__atomic_exchange_n(&looking, 1, __ATOMIC_ACQ_REL)) usleep(500000); /* until the other thread has the other lock */
  return wrapped->called(info, size, wrapped->data);
}
/* In place of libc's, for the shim too. */
int dl_iterate_phdr(callback called, void *data) {
  struct wrapped wrapped = {called, data};
  return iterate(wrapper, &wrapped);
}
static void *load(void *arg) {
  while (!__atomic_load_n(&looking, __ATOMIC_ACQUIRE)) usleep(1000);
  if (!dlopen("./libother.so", RTLD_NOW)) abort();
  return arg;
}
int main(int argc, char **argv) {
  pthread_t loader;
  iterate = (int (*)(callback, void *))dlsym(RTLD_NEXT, "dl_iterate_phdr");
  if (!iterate || !dlopen("./libmpi.so", RTLD_NOW | RTLD_LOCAL)) abort();
  int (*init)(int *, char ***) = (int (*)(int *, char ***))dlsym(RTLD_DEFAULT, "MPI_Init"); /* the shim's */
  if (!init || pthread_create(&loader, 0, load, 0)) abort();
  if (init(&argc, &argv)) abort();
  pthread_join(loader, 0);
  if (!looking) abort();
  puts("called 1");
  fflush(stdout);
  while (getchar() != EOF) {}
  return 0;
}
#endif
