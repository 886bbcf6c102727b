/* An MPI_Allreduce loop for measuring what recording costs it: for each line "N WORK_US" that rank 0 reads, every rank
 * works WORK_US on the CPU and calls MPI_Allreduce, N times; rank 0 prints the nanoseconds that took. */
#include <mpi.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static long long now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (long long)t.tv_sec * 1000000000 + t.tv_nsec;
}

static long long cpu_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (long long)t.tv_sec * 1000000000 + t.tv_nsec;
}

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  int rank;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  for (;;) {
    long order[2] = {0, 0};
    char line[64];
    if (rank == 0 && fgets(line, sizeof line, stdin)) sscanf(line, "%ld %ld", &order[0], &order[1]);
    MPI_Bcast(order, 2, MPI_LONG, 0, MPI_COMM_WORLD);
    if (order[0] <= 0) break;
    MPI_Barrier(MPI_COMM_WORLD);
    long long start = now_ns();
    double mine = rank, sum;
    for (long i = 0; i < order[0]; i++) {
      for (long long end = cpu_ns() + order[1] * 1000; cpu_ns() < end;) {
      }
      MPI_Allreduce(&mine, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
      printf("%lld\n", now_ns() - start);
      fflush(stdout);
    }
  }
  MPI_Finalize();
  return 0;
}
