/* Makes communicators in every way and calls MPI_Allreduce on each, with a number of elements that names the communicator;
 * prints what MPI itself says of each: the rank, the size, and a number that its rank 0 made and told the others. With a file as
 * argument its rank 0 waits at its end until that is there, and the others wait for rank 0; with another
 * one all wait for that after MPI_Init. Run on four ranks. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static double in[4096], out[4096];
static int world_rank, made;

static void use(const char *name, int label, MPI_Comm comm, long id) {
  int rank, size;
  if (comm == MPI_COMM_NULL) return;
  for (int i = 0; i < 5; i++) {
    MPI_Allreduce(in, out, label, MPI_DOUBLE, MPI_SUM, comm);
    if (i == 2) MPI_Barrier(comm);
  }
  PMPI_Comm_rank(comm, &rank);
  PMPI_Comm_size(comm, &size);
  if (id < 0) {
    id = world_rank * 1000l + made;
    PMPI_Bcast(&id, 1, MPI_LONG, 0, comm);
  }
  made++;
  printf("{\"pid\":%d,\"name\":\"%s\",\"label\":%d,\"rank\":%d,\"size\":%d,\"id\":%ld}\n", (int)getpid(), name, label, rank, size, id);
  fflush(stdout);
}

int main(int argc, char **argv) {
  MPI_Comm w = MPI_COMM_WORLD, dup, info, idup, split, of_split, create, disjoint, alone, host, cart, row, column, graph, near, dist, inter, merged;
  MPI_Group all, part;
  MPI_Request request;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(w, &world_rank);
  int r = world_rank;
  /* at once, by the first calls on the world */
  int early_dims[] = {2, 2}, kept[] = {1, 0};
  MPI_Comm early_dup, early_split, early_cart, early_part;
  MPI_Comm_dup(w, &early_dup);
  MPI_Comm_split(w, r % 2, r, &early_split);
  MPI_Cart_create(w, 2, early_dims, early_dims, 0, &early_cart);
  MPI_Cart_sub(early_cart, kept, &early_part);
  while (argc > 2 && access(argv[2], F_OK)) usleep(1000);
  use("world", 100, w, -1);
  use("self", 101, MPI_COMM_SELF, -1);
  use("dup at once", 124, early_dup, -1);
  use("split at once", 125, early_split, -1);
  use("cart at once", 126, early_cart, -1);
  use("cart_sub at once", 127, early_part, -1);
  MPI_Comm_dup(w, &dup);
  use("dup", 102, dup, -1);
  MPI_Comm_dup_with_info(dup, MPI_INFO_NULL, &info);
  use("dup_with_info", 103, info, -1);
  MPI_Comm_idup(w, &idup, &request);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  use("idup", 104, idup, -1);
  MPI_Comm_split(w, r % 2, -r, &split);
  use("split", 105, split, -1);
  MPI_Comm_split(split, 0, 0, &of_split);
  use("split of split", 106, of_split, -1);
  MPI_Comm_split(w, r == 3 ? MPI_UNDEFINED : 7, 0, &row);
  use("split without the last", 107, row, -1);
  MPI_Comm_split_type(w, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
  use("split_type", 108, host, -1);
  MPI_Comm_group(w, &all);
  int first[] = {0, 1}, halves[2][2] = {{0, 3}, {2, 1}};
  MPI_Group_incl(all, 2, first, &part);
  MPI_Comm_create(w, part, &create);
  use("create", 109, create, -1);
  MPI_Group_free(&part);
  MPI_Group_incl(all, 2, halves[r == 1 || r == 2], &part);
  MPI_Comm_create(w, part, &disjoint);
  use("create, disjoint", 110, disjoint, -1);
  for (int i = 0; i < 2; i++) {
    MPI_Comm_create_group(w, part, 5, &alone);
    use("create_group", 111 + i, alone, -1);
    MPI_Comm_free(&alone);
  }
  MPI_Group_free(&part);
  int range[1][3] = {{0, 2, 1}};
  MPI_Group_range_incl(all, 1, range, &part);
  if (r < 3) {
    MPI_Comm_create_group(w, part, 6, &alone);
    use("create_group of a range", 113, alone, -1);
  }
  int dims[] = {2, 2}, periods[] = {0, 1}, rows[] = {0, 1}, columns[] = {1, 0};
  MPI_Cart_create(w, 2, dims, periods, 0, &cart);
  use("cart", 114, cart, -1);
  MPI_Cart_sub(cart, rows, &row);
  use("cart_sub rows", 115, row, -1);
  MPI_Cart_sub(cart, columns, &column);
  use("cart_sub columns", 116, column, -1);
  MPI_Comm_dup(cart, &dup);
  MPI_Cart_sub(dup, rows, &row);
  use("cart_sub of a dup", 117, row, -1);
  int index[] = {1, 2, 3, 4}, edges[] = {1, 0, 3, 2};
  MPI_Graph_create(w, 4, index, edges, 0, &graph);
  use("graph", 118, graph, -1);
  int left = (r + 3) % 4, right = (r + 1) % 4, one = 1;
  MPI_Dist_graph_create_adjacent(w, 1, &left, MPI_UNWEIGHTED, 1, &right, MPI_UNWEIGHTED, MPI_INFO_NULL, 0, &near);
  use("dist_graph_create_adjacent", 119, near, -1);
  MPI_Dist_graph_create(w, 1, &r, &one, &right, MPI_UNWEIGHTED, MPI_INFO_NULL, 0, &dist);
  use("dist_graph_create", 120, dist, -1);
  MPI_Intercomm_create(split, 0, w, r % 2 ? 2 : 3, 9, &inter);
  use("intercomm_create", 121, inter, 1);
  MPI_Intercomm_merge(inter, r % 2, &merged);
  use("intercomm_merge", 122, merged, -1);
  MPI_Ibarrier(w, &request);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  MPI_Iallreduce(in, out, 123, MPI_DOUBLE, MPI_SUM, split, &request);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  for (int i = 0; i < 30; i++) { /* handles are used again */
    MPI_Comm_split(i % 2 ? w : split, i % 3 ? 0 : r, r, &dup);
    use("again", 200 + i, dup, -1);
    MPI_Comm_free(&dup);
  }
  MPI_Barrier(w);
  printf("done %d\n", (int)getpid());
  fflush(stdout);
  /* the others wait for rank 0 */
  while (argc > 1 && r == 0 && access(argv[1], F_OK)) usleep(10000);
  MPI_Ibarrier(w, &request);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  MPI_Finalize();
  return 0;
}
