/* A stand-in for an MPI library (with -DLIBRARY), and a program that calls it: THREADS times CALLS MPI_Allreduce after
 * MPI_Init, a line "called", and its end when its standard input ends. An MPI_Bcast that MPI_Allreduce calls is the library's own. */
typedef void *handle;
int MPI_Init(int *argc, char ***argv);
int MPI_Allreduce(const void *in, void *out, int count, handle type, handle op, handle comm);
int PMPI_Bcast(void *data, int count, handle type, int root, handle comm);
int MPI_Sendrecv(const void *a, int b, handle c, int d, int e, void *f, int g, handle h, int i, int j, handle k, void *l);
#ifdef LIBRARY
#ifndef VERSION
#define VERSION "MPICH Version:      4.2.0"
#endif
int PMPI_Get_library_version(char *text, int *length) { return (*length = __builtin_sprintf(text, "%s", VERSION)) < 0; }
int MPI_Init(int *argc, char ***argv) { return !argc || !argv; }
int PMPI_Init(int *argc, char ***argv) { return MPI_Init(argc, argv); }
int PMPI_Bcast(void *data, int count, handle type, int root, handle comm) { return !data + !type + !comm + count + root - 3; }
int MPI_Allreduce(const void *in, void *out, int count, handle type, handle op, handle comm) {
  if (PMPI_Bcast(0, 0, 0, 0, 0)) return 1;
  return in && out && type && op && comm ? count : -1;
}
int MPI_Sendrecv(const void *a, int b, handle c, int d, int e, void *f, int g, handle h, int i, int j, handle k, void *l) {
  return a && b == 1 && c && d == 2 && e == 3 && f && g == 4 && h && i == 5 && j == 6 && k && l ? 77 : -1;
}
#else
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#define WORLD ((handle)0x44000000) /* MPI_COMM_WORLD, a number as in MPICH */
static int calls;
static char x[8];
static void *caller(void *arg) {
  for (int i = 0; i < calls; i++)
    if (MPI_Allreduce(x, x + 1, 16, x + 2, x + 3, WORLD) != 16) abort();
  return arg;
}
int main(int argc, char **argv) {
  int threads = atoi(argv[1]);
  pthread_t all[64];
  struct timespec from, to;
  calls = atoi(argv[2]);
  MPI_Init(&argc, &argv);
  if (MPI_Sendrecv(x, 1, x, 2, 3, x, 4, x, 5, 6, WORLD, x) != 77) abort();
  clock_gettime(CLOCK_MONOTONIC, &from);
  for (int t = 0; t < threads; t++) pthread_create(&all[t], 0, caller, 0);
  for (int t = 0; t < threads; t++) pthread_join(all[t], 0);
  clock_gettime(CLOCK_MONOTONIC, &to);
  printf("called %lld\n", (to.tv_sec - from.tv_sec) * 1000000000ll + to.tv_nsec - from.tv_nsec);
  fflush(stdout);
  while (getchar() != EOF) {}
  return 0;
}
#endif
