/* Persistent collectives and large counts: prints what MPI itself says of the communicator that they are on. Run on four ranks;
 * with a file as argument its rank 0 waits at its end until that is there, and the others wait for it in a collective that was
 * started; with another one all wait for that after the first calls. */
#include <mpi.h>
#include <stdio.h>
#include <unistd.h>

#if defined OMPI_MAJOR_VERSION && OMPI_MAJOR_VERSION < 5
#include <mpi-ext.h>
#define MPI_Allreduce_init MPIX_Allreduce_init
#define MPI_Bcast_init MPIX_Bcast_init
#endif

static double in[4096], out[4096], message[4096];

int main(int argc, char **argv) {
  MPI_Comm w = MPI_COMM_WORLD, half;
  MPI_Request requests[3], once, all;
  MPI_Init(&argc, &argv);
  int r, rank, size, large = 0;
  MPI_Comm_rank(w, &r);
  MPI_Allreduce_init(in, out, 408, MPI_DOUBLE, MPI_SUM, w, MPI_INFO_NULL, &all); /* at once */
  while (argc > 2 && access(argv[2], F_OK)) usleep(1000);
  MPI_Comm_split(w, r / 2, -r, &half);
  MPI_Comm_rank(half, &rank);
  MPI_Comm_size(half, &size);
  MPI_Allreduce(in, out, 400, MPI_DOUBLE, MPI_SUM, half);
  MPI_Allreduce_init(in, out, 401, MPI_DOUBLE, MPI_SUM, half, MPI_INFO_NULL, &requests[0]);
  MPI_Bcast_init(in, 402, MPI_DOUBLE, 0, half, MPI_INFO_NULL, &requests[1]);
  /* and a message, which is none of them */
  if (rank) MPI_Send_init(in, 403, MPI_DOUBLE, 0, 7, half, &requests[2]);
  else MPI_Recv_init(message, 403, MPI_DOUBLE, 1, 7, half, &requests[2]);
  MPI_Allreduce(in, out, 404, MPI_DOUBLE, MPI_SUM, half);
  for (int i = 0; i < 5; i++) {
    for (int k = 0; k < 3; k++) MPI_Start(&requests[k]);
    MPI_Waitall(3, requests, MPI_STATUSES_IGNORE);
    MPI_Startall(3, requests);
    for (int k = 0; k < 3; k++) MPI_Wait(&requests[k], MPI_STATUS_IGNORE);
  }
  for (int k = 0; k < 3; k++) MPI_Request_free(&requests[k]);
  /* the handles are free for others */
  for (int i = 0; i < 20; i++) {
    MPI_Iallreduce(in, out, 405, MPI_DOUBLE, MPI_SUM, half, &once);
    MPI_Wait(&once, MPI_STATUS_IGNORE);
  }
#if MPI_VERSION >= 4
  large = 1;
  MPI_Allreduce_c(in, out, 406, MPI_DOUBLE, MPI_SUM, half);
  MPI_Send_c(in, 3ll << 30, MPI_DOUBLE, MPI_PROC_NULL, 0, half);
#endif
  MPI_Allreduce(in, out, 407, MPI_DOUBLE, MPI_SUM, half);
  for (int i = 0; i < 3; i++) {
    MPI_Start(&all);
    MPI_Wait(&all, MPI_STATUS_IGNORE);
  }
  printf("{\"pid\":%d,\"world\":%d,\"half\":%d,\"rank\":%d,\"size\":%d,\"large\":%d}\n", (int)getpid(), r, r / 2, rank, size, large);
  fflush(stdout);
  while (argc > 1 && r == 0 && access(argv[1], F_OK)) usleep(10000);
  MPI_Start(&all);
  MPI_Wait(&all, MPI_STATUS_IGNORE);
  MPI_Request_free(&all);
  MPI_Finalize();
  return 0;
}
