/* nccl-ranks.c on MPI: each rank works, then all meet in MPI_Allreduce; one is late. Started by mpirun or srun, which
 * set the ranks; --ranks, --rank, --id-file and --cgroups mean nothing here. One JSON line a rank. Flags: common.h. */
#define _GNU_SOURCE
#include <mpi.h>
#include "common.h"

static int failed;

static void expect(const double *got, int count, double want, const char *what) {
  for (int i = 0; i < count; i++)
    if (got[i] != want) {
      fprintf(stderr, "mpi-ranks: %s: element %d is %g, not %g\n", what, i, got[i], want);
      failed = 1;
      return;
    }
}

/* Every traced function a different, known number of times. */
static void call_everything(int rank, int ranks, int count, double *send, double *recv, char *counts) {
  MPI_Comm w = MPI_COMM_WORLD;
  double total = ranks * (ranks + 1) / 2;
  int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
  int *each = calloc((size_t)ranks, sizeof *each), *at = calloc((size_t)ranks, sizeof *at);
  if (!each || !at) exit(1);
  for (int r = 0; r < ranks; r++) {
    each[r] = count;
    at[r] = r * count;
  }
  for (int i = 0; i < count * ranks; i++) send[i] = rank + 1;
  for (int i = 0; i < 3; i++) MPI_Allreduce(send, recv, count, MPI_DOUBLE, MPI_SUM, w);
  expect(recv, count, total, "all_reduce");
  for (int i = 0; i < 4; i++) MPI_Bcast(recv, count, MPI_DOUBLE, 0, w);
  for (int i = 0; i < 5; i++) MPI_Reduce(send, recv, count, MPI_DOUBLE, MPI_MAX, 0, w);
  if (rank == 0) expect(recv, count, ranks, "reduce");
  for (int i = 0; i < 6; i++) MPI_Allgather(send, count, MPI_DOUBLE, recv, count, MPI_DOUBLE, w);
  for (int i = 0; i < 7; i++) MPI_Allgatherv(send, count, MPI_DOUBLE, recv, each, at, MPI_DOUBLE, w);
  for (int r = 0; r < ranks; r++) expect(recv + r * count, count, r + 1, "all_gather");
  for (int i = 0; i < 8; i++) MPI_Alltoall(send, count, MPI_DOUBLE, recv, count, MPI_DOUBLE, w);
  for (int i = 0; i < 9; i++) MPI_Alltoallv(send, each, at, MPI_DOUBLE, recv, each, at, MPI_DOUBLE, w);
  for (int r = 0; r < ranks; r++) expect(recv + r * count, count, r + 1, "all_to_all");
  for (int i = 0; i < 10; i++) MPI_Barrier(w);
  for (int i = 0; i < 11; i++) MPI_Reduce_scatter(send, recv, each, MPI_DOUBLE, MPI_SUM, w);
  for (int i = 0; i < 12; i++) MPI_Reduce_scatter_block(send, recv, count, MPI_DOUBLE, MPI_SUM, w);
  expect(recv, count, total, "reduce_scatter");
  for (int i = 0; i < 13; i++) { /* even ranks send first; an odd last rank meets rank 0, which sends first too */
    if (rank % 2 == 0 && rank != ranks - 1) {
      MPI_Send(send, count, MPI_DOUBLE, next, 1, w);
      MPI_Recv(recv, count, MPI_DOUBLE, previous, 1, w, MPI_STATUS_IGNORE);
    } else {
      MPI_Recv(recv, count, MPI_DOUBLE, previous, 1, w, MPI_STATUS_IGNORE);
      MPI_Send(send, count, MPI_DOUBLE, next, 1, w);
    }
  }
  expect(recv, count, previous + 1, "recv");
  for (int i = 0; i < 14; i++)
    MPI_Sendrecv(send, count, MPI_DOUBLE, next, 2, recv, count, MPI_DOUBLE, previous, 2, w, MPI_STATUS_IGNORE);
  expect(recv, count, previous + 1, "sendrecv");
  MPI_Datatype *types = calloc((size_t)ranks, sizeof(MPI_Datatype));
  int *at_bytes = calloc((size_t)ranks, sizeof *at_bytes);
  if (!types || !at_bytes) exit(1);
  for (int r = 0; r < ranks; r++) {
    types[r] = MPI_DOUBLE;
    at_bytes[r] = at[r] * (int)sizeof(double);
  }
  for (int i = 0; i < count * ranks; i++) send[i] = rank + 1;
  for (int i = 0; i < 15; i++) MPI_Alltoallw(send, each, at_bytes, types, recv, each, at_bytes, types, w);
  for (int r = 0; r < ranks; r++) expect(recv + r * count, count, r + 1, "all_to_all_w");
  for (int i = 0; i < 16; i++) MPI_Gather(send, count, MPI_DOUBLE, recv, count, MPI_DOUBLE, 0, w);
  for (int i = 0; i < 17; i++) MPI_Gatherv(send, count, MPI_DOUBLE, recv, each, at, MPI_DOUBLE, 0, w);
  if (rank == 0) expect(recv + (ranks - 1) * count, count, ranks, "gather");
  for (int i = 0; i < 18; i++) MPI_Scatter(send, count, MPI_DOUBLE, recv, count, MPI_DOUBLE, 0, w);
  for (int i = 0; i < 19; i++) MPI_Scatterv(send, each, at, MPI_DOUBLE, recv, count, MPI_DOUBLE, 0, w);
  expect(recv, count, 1, "scatter");
  for (int i = 0; i < 20; i++) MPI_Exscan(send, recv, count, MPI_DOUBLE, MPI_SUM, w);
  if (rank > 0) expect(recv, count, rank * (rank + 1) / 2, "exscan");
  for (int i = 0; i < 21; i++) MPI_Scan(send, recv, count, MPI_DOUBLE, MPI_SUM, w);
  expect(recv, count, (rank + 1) * (rank + 2) / 2, "scan");
  free(types);
  free(at_bytes);
  sprintf(counts, "\"all_to_all_w\":15,\"gather\":16,\"gather_v\":17,\"scatter\":18,\"scatter_v\":19,\"exscan\":20,\"scan\":21,"
                  "\"all_reduce\":3,\"broadcast\":4,\"reduce\":5,\"all_gather\":6,\"all_gather_v\":7,\"all_to_all\":8,"
                  "\"all_to_all_v\":9,\"barrier\":10,\"reduce_scatter\":11,\"reduce_scatter_block\":12,\"send\":13,"
                  "\"recv\":13,\"send_recv\":14");
  free(each);
  free(at);
}

int main(int argc, char **argv) {
  struct options o = parse_options(argc, argv);
  work(o.start_ms, 0);
  wait_for_file(o.start_file);
  MPI_Init(&argc, &argv);
  int rank, ranks;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  size_t elements = (size_t)o.count * (size_t)ranks;
  double *send = calloc(elements, sizeof *send), *recv = calloc(elements, sizeof *recv), waited = 0;
  char counts[512];
  if (!send || !recv) return 1;
  if (o.all_functions) {
    call_everything(rank, ranks, o.count, send, recv, counts);
  } else {
    for (int i = 0; i < o.count; i++) send[i] = rank + 1;
    for (int i = 0; i < o.iters; i++) {
      work(o.work_ms + late_now(&o, rank), o.burn);
      double start = now_ms();
      MPI_Allreduce(send, recv, o.count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
      waited += now_ms() - start;
    }
    if (o.iters) expect(recv, o.count, ranks * (ranks + 1) / 2, "all_reduce");
    sprintf(counts, "\"all_reduce\":%d", o.iters);
  }
  char line[1024];
  int n = snprintf(line, sizeof line, "{\"rank\":%d,\"pid\":%d,\"ok\":%s,\"calls\":{%s},\"waited_ms\":%.3f,\"bytes\":%zu}\n",
                   rank, (int)getpid(), failed ? "false" : "true", counts, waited, (size_t)o.count * sizeof *send);
  if (write(STDOUT_FILENO, line, (size_t)n) != n) failed = 1;
  wait_for_file(o.hold_file);
  MPI_Finalize();
  free(send);
  free(recv);
  return failed;
}
