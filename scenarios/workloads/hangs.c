/* Programs that hang, one mode each: `mpirun -n 4 hangs MODE DIRECTORY`. After healthy collectives on MPI_COMM_WORLD each rank
 * does what the mode says. Before every step in which a rank may stay it notes in DIRECTORY/at.RANK what it is about to do, the
 * line of this file and its pid: the last note is where the rank is, in this program's own words.
 *
 * The truth of each mode, as node/tests/hangs reads it:
 *   cause=R,…   these ranks hold the others up by not being where those wait (they are elsewhere, as their notes say)
 *   differs=R,… these call something else than the others at the same place of a communicator's order
 *   circle=A>B>…  each waits for the next, and the last for the first; nobody outside is to blame (A>B|C>D: in several circles)
 * ranks=N where it is not 4. By what MPI says of matching, blocking and the order of collectives; of an implementation only that
 * a small message is sent before its receiver is there, and a message of megabytes not (both MPIs here).
 *
 * truth: order            differs=1        collectives in another order
 * truth: mixed            differs=1        another function at the same place, others go on to the next
 * truth: gather-barrier   differs=0        the root gathers, the others are in a barrier
 * truth: one-more         differs=2        one barrier more than the others
 * truth: root             differs=3        another root
 * truth: size             differs=3        another size
 * truth: two-comms        circle=0>2|0>3|1>2|1>3  two communicators of all, in another order by half of the ranks
 * truth: first-barrier    cause=1          asleep; nobody has called the function before
 * truth: first-gather     cause=2          computes; the root of a first gather waits for it
 * truth: first-allgather  cause=0,2        two of them asleep
 * truth: pipe             cause=3          reads a pipe that nobody writes
 * truth: busy             cause=0          computes; the root of a broadcast
 * truth: finalize         cause=2          in MPI_Finalize
 * truth: nobody-sends     circle=0>1       a receive whose sender waits for the receiver elsewhere
 * truth: split            cause=3          asleep; its partner of a split communicator waits, and the others for both
 * truth: dup              circle=1>0|1>2|1>3  one skips a barrier of a duplicate
 * truth: cart             cause=2          computes; rows of a grid
 * truth: create           cause=2          reads a pipe; a communicator of three
 * truth: rings            circle=0>1>2 ranks=3  barriers of pairs in an order that closes a circle, their first calls
 * truth: used-rings       circle=0>1>2 ranks=3  likewise, after others
 * truth: split-making     cause=3          asleep, where the others make a communicator
 * truth: dup-making       cause=0          computes, where the others make one
 * truth: wrong-tag        circle=0>1       a receive with another tag than what is sent
 * truth: ssend-ring       circle=0>1>2>3   everybody sends, synchronously, and nobody receives
 * truth: sendrecv         circle=3>2       one sends to another rank than the one that waits for it
 * truth: irecv            cause=3          asleep; a receive that was begun waits for its message
 * truth: isend-big        circle=0>1       a large message that was begun and nobody receives
 * truth: halo             cause=1          asleep before its part of an exchange of neighbours
 * truth: iallreduce       cause=3          asleep; a nonblocking reduction
 * truth: persistent       cause=2          asleep; a persistent reduction that the others have started once more
 * truth: ibarrier         differs=0        a nonblocking barrier where the others are in a blocking one
 * truth: exit             cause=2          its process has ended
 * truth: killed           cause=1          its process was killed
 * truth: stopped          cause=1          its process is stopped
 * truth: fence            cause=1          asleep; the others are in a fence
 * truth: post             cause=1          asleep, and does not open its window for the one that starts
 * truth: win-making       cause=3          asleep, where the others make a window
 * truth: self-send        circle=2         a synchronous send to itself
 * truth: file-open        cause=3          asleep, where the others open a file
 * truth: file-write       cause=1          asleep, where the others write to one
 */
#define _GNU_SOURCE
#include <mpi.h>
#if defined OMPI_MAJOR_VERSION && OMPI_MAJOR_VERSION < 5
#include <mpi-ext.h>
#define MPI_Allreduce_init MPIX_Allreduce_init
#endif
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SMALL = 64, LARGE = 1 << 20 };

static const char *directory;
static int rank, size;
static MPI_Comm world = MPI_COMM_WORLD;
static double a[LARGE], b[LARGE];
static volatile double sum;

/* `what` is the call, as the collectives table names it, or what the rank does instead of one. */
static void note(const char *what, int line) {
  char path[4096], new[4100];
  snprintf(path, sizeof path, "%s/at.%d", directory, rank);
  snprintf(new, sizeof new, "%s.new", path);
  FILE *f = fopen(new, "w");
  if (!f || fprintf(f, "%s hangs.c:%d %d\n", what, line, (int)getpid()) < 0 || fclose(f) || rename(new, path)) {
    perror(path);
    exit(1);
  }
}
#define AT(what) note(what, __LINE__)

/* Not inlined: the line of the call is where the rank is. */
__attribute__((noinline)) static void sleep_on(void) {
  for (AT("asleep");;) pause();
}

__attribute__((noinline)) static void compute(void) {
  for (AT("running");;) sum += 1e-9 * sum;
}

__attribute__((noinline)) static void read_pipe(void) {
  int ends[2];
  char c;
  if (pipe(ends)) exit(1);
  AT("io"); if (read(ends[0], &c, 1)) exit(1);
}

static void reduce_all(MPI_Comm c) { AT("all_reduce"); MPI_Allreduce(a, b, SMALL, MPI_DOUBLE, MPI_SUM, c); }

static MPI_File open_file(void) {
  char path[4096];
  MPI_File file;
  snprintf(path, sizeof path, "%s/data", directory);
  AT("file_open"); MPI_File_open(world, path, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file);
  return file;
}

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(world, &rank);
  MPI_Comm_size(world, &size);
  if (argc < 3) {
    fprintf(stderr, "hangs MODE DIRECTORY\n");
    return 2;
  }
  directory = argv[2];
  int next = (rank + 1) % size, previous = (rank + size - 1) % size, known = 0;
  struct timespec a_little = {0, 10000000};
  AT("begins");
  for (int i = 0; i < 40; i++) {
    MPI_Allreduce(a, b, SMALL, MPI_DOUBLE, MPI_SUM, world);
    nanosleep(&a_little, NULL);
  }
#define MODE(name) if (!strcmp(argv[1], name) && (known = 1))

  MODE("order") {
    if (rank == 1) {
      AT("all_gather"); MPI_Allgather(a, SMALL, MPI_DOUBLE, b, SMALL, MPI_DOUBLE, world);
      AT("barrier"); MPI_Barrier(world);
    } else {
      AT("barrier"); MPI_Barrier(world);
      AT("all_gather"); MPI_Allgather(a, SMALL, MPI_DOUBLE, b, SMALL, MPI_DOUBLE, world);
    }
  }
  MODE("mixed") {
    if (rank == 1) {
      AT("all_reduce"); MPI_Allreduce(a, b, SMALL, MPI_DOUBLE, MPI_SUM, world);
    } else {
      AT("broadcast"); MPI_Bcast(b, SMALL, MPI_DOUBLE, 0, world);
    }
    AT("barrier"); MPI_Barrier(world);
  }
  MODE("gather-barrier") {
    if (rank == 0) {
      AT("gather"); MPI_Gather(a, SMALL, MPI_DOUBLE, b, SMALL, MPI_DOUBLE, 0, world);
    }
    AT("barrier"); MPI_Barrier(world);
  }
  MODE("one-more") {
    for (int i = 0; i < (rank == 2 ? 6 : 5); i++) { AT("barrier"); MPI_Barrier(world); }
    AT("all_reduce"); MPI_Allreduce(a, b, SMALL, MPI_DOUBLE, MPI_SUM, world);
  }
  MODE("root") {
    AT("broadcast"); MPI_Bcast(b, LARGE, MPI_DOUBLE, rank == 3 ? 3 : 0, world);
    AT("barrier"); MPI_Barrier(world);
  }
  MODE("size") {
    AT("reduce"); MPI_Reduce(a, b, rank == 3 ? 1 : LARGE, MPI_DOUBLE, MPI_SUM, 0, world);
    AT("barrier"); MPI_Barrier(world);
  }
  MODE("two-comms") {
    MPI_Comm other;
    MPI_Comm_dup(world, &other);
    AT("barrier"); MPI_Barrier(rank < 2 ? world : other);
    AT("barrier"); MPI_Barrier(rank < 2 ? other : world);
  }
  MODE("first-barrier") {
    if (rank == 1) sleep_on();
    AT("barrier"); MPI_Barrier(world);
  }
  MODE("first-gather") {
    if (rank == 2) compute();
    AT("gather"); MPI_Gather(a, SMALL, MPI_DOUBLE, b, SMALL, MPI_DOUBLE, 0, world);
    AT("barrier"); MPI_Barrier(world);
  }
  MODE("first-allgather") {
    if (rank % 2 == 0) sleep_on();
    AT("all_gather"); MPI_Allgather(a, SMALL, MPI_DOUBLE, b, SMALL, MPI_DOUBLE, world);
  }
  MODE("pipe") {
    if (rank == 3) read_pipe();
    reduce_all(world);
  }
  MODE("busy") {
    if (rank == 0) compute();
    AT("broadcast"); MPI_Bcast(b, SMALL, MPI_DOUBLE, 0, world);
  }
  MODE("finalize") {
    if (rank == 2) { AT("finalize"); MPI_Finalize(); return 0; }
    AT("barrier"); MPI_Barrier(world);
  }
  MODE("nobody-sends") {
    if (rank == 0) { AT("recv"); MPI_Recv(b, SMALL, MPI_DOUBLE, 1, 7, world, MPI_STATUS_IGNORE); }
    AT("barrier"); MPI_Barrier(world);
  }
  MODE("split") {
    MPI_Comm half;
    MPI_Comm_split(world, rank / 2, rank, &half);
    for (int i = 0; i < 20; i++) MPI_Allreduce(a, b, SMALL, MPI_DOUBLE, MPI_SUM, half);
    if (rank == 3) sleep_on();
    reduce_all(half);
    AT("barrier"); MPI_Barrier(world);
  }
  MODE("dup") {
    MPI_Comm other;
    MPI_Comm_dup(world, &other);
    for (int i = 0; i < 20; i++) MPI_Barrier(other);
    if (rank != 1) { AT("barrier"); MPI_Barrier(other); }
    reduce_all(world);
  }
  MODE("cart") {
    MPI_Comm grid, row;
    int two[2] = {2, 2}, none[2] = {0, 0}, along[2] = {0, 1};
    MPI_Cart_create(world, 2, two, none, 0, &grid);
    MPI_Cart_sub(grid, along, &row);
    for (int i = 0; i < 20; i++) MPI_Allreduce(a, b, SMALL, MPI_DOUBLE, MPI_SUM, row);
    if (rank == 2) compute();
    AT("barrier"); MPI_Barrier(row);
    AT("barrier"); MPI_Barrier(grid);
  }
  MODE("create") {
    MPI_Group all, three;
    MPI_Comm some;
    int members[3] = {0, 1, 2};
    MPI_Comm_group(world, &all);
    MPI_Group_incl(all, 3, members, &three);
    MPI_Comm_create(world, three, &some);
    if (rank == 2) read_pipe();
    if (rank < 2) { AT("barrier"); MPI_Barrier(some); }
    AT("barrier"); MPI_Barrier(world);
  }
  if (!strcmp(argv[1], "rings") || !strcmp(argv[1], "used-rings")) {
    known = 1;
    MPI_Group all, two;
    MPI_Comm pair[3];
    MPI_Comm_group(world, &all);
    for (int i = 0; i < 3; i++) { /* of i and i + 1 */
      int members[2] = {i, (i + 1) % 3};
      MPI_Group_incl(all, 2, members, &two);
      MPI_Comm_create(world, two, &pair[i]);
    }
    for (int i = 0; i < 3; i++)
      if (argv[1][0] == 'u' && pair[i] != MPI_COMM_NULL) MPI_Barrier(pair[i]);
    AT("barrier"); MPI_Barrier(pair[rank]);
    AT("barrier"); MPI_Barrier(pair[previous]);
  }
  MODE("split-making") {
    MPI_Comm half;
    if (rank == 3) sleep_on();
    AT("comm_split"); MPI_Comm_split(world, rank / 2, rank, &half);
  }
  MODE("dup-making") {
    MPI_Comm other;
    if (rank == 0) compute();
    AT("comm_dup"); MPI_Comm_dup(world, &other);
  }
  MODE("wrong-tag") {
    if (rank == 1) MPI_Send(a, SMALL, MPI_DOUBLE, 0, 8, world);
    if (rank == 0) { AT("recv"); MPI_Recv(b, SMALL, MPI_DOUBLE, 1, 7, world, MPI_STATUS_IGNORE); }
    AT("barrier"); MPI_Barrier(world);
  }
  MODE("ssend-ring") {
    AT("ssend"); MPI_Ssend(a, SMALL, MPI_DOUBLE, next, 0, world);
    AT("recv"); MPI_Recv(b, SMALL, MPI_DOUBLE, previous, 0, world, MPI_STATUS_IGNORE);
  }
  MODE("sendrecv") {
    int to = rank == 2 ? 0 : next;
    AT("sendrecv"); MPI_Sendrecv(a, SMALL, MPI_DOUBLE, to, 0, b, SMALL, MPI_DOUBLE, previous, 0, world, MPI_STATUS_IGNORE);
    AT("barrier"); MPI_Barrier(world);
  }
  MODE("irecv") {
    MPI_Request request;
    if (rank == 3) sleep_on();
    if (rank == 2) {
      MPI_Irecv(b, SMALL, MPI_DOUBLE, 3, 0, world, &request);
      AT("wait"); MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
    AT("barrier"); MPI_Barrier(world);
  }
  MODE("isend-big") {
    MPI_Request request;
    if (rank == 0) {
      MPI_Isend(a, LARGE, MPI_DOUBLE, 1, 0, world, &request);
      AT("wait"); MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
    AT("barrier"); MPI_Barrier(world);
  }
  MODE("halo") {
    MPI_Request requests[4];
    MPI_Status statuses[4];
    for (int i = 0; i < 30; i++) {
      if (rank == 1 && i == 20) sleep_on();
      MPI_Irecv(b, SMALL, MPI_DOUBLE, previous, 0, world, &requests[0]);
      MPI_Irecv(b + SMALL, SMALL, MPI_DOUBLE, next, 1, world, &requests[1]);
      MPI_Isend(a, SMALL, MPI_DOUBLE, next, 0, world, &requests[2]);
      MPI_Isend(a, SMALL, MPI_DOUBLE, previous, 1, world, &requests[3]);
      AT("wait_all"); MPI_Waitall(4, requests, statuses);
    }
  }
  MODE("iallreduce") {
    MPI_Request request;
    if (rank == 3) sleep_on();
    MPI_Iallreduce(a, b, SMALL, MPI_DOUBLE, MPI_SUM, world, &request);
    AT("wait"); MPI_Wait(&request, MPI_STATUS_IGNORE);
  }
  MODE("persistent") {
    MPI_Request request;
    MPI_Allreduce_init(a, b, SMALL, MPI_DOUBLE, MPI_SUM, world, MPI_INFO_NULL, &request);
    for (int i = 0; i < 20; i++) {
      MPI_Start(&request);
      MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
    if (rank == 2) sleep_on();
    MPI_Start(&request);
    AT("wait"); MPI_Wait(&request, MPI_STATUS_IGNORE);
  }
  MODE("ibarrier") {
    MPI_Request request;
    if (rank == 0) {
      MPI_Ibarrier(world, &request);
      AT("wait"); MPI_Wait(&request, MPI_STATUS_IGNORE);
    } else {
      AT("barrier"); MPI_Barrier(world);
    }
  }
  MODE("exit") {
    if (rank == 2) { AT("ended"); _exit(0); }
    AT("barrier"); MPI_Barrier(world);
  }
  MODE("killed") {
    if (rank == 1) { AT("ended"); raise(SIGKILL); }
    reduce_all(world);
  }
  MODE("stopped") {
    if (rank == 1) { AT("stopped"); raise(SIGSTOP); }
    reduce_all(world);
  }
  MODE("fence") {
    MPI_Win window;
    MPI_Win_create(a, sizeof a, sizeof *a, MPI_INFO_NULL, world, &window);
    AT("win_fence"); MPI_Win_fence(0, window);
    if (rank == 1) sleep_on();
    AT("win_fence"); MPI_Win_fence(0, window);
  }
  MODE("post") {
    MPI_Win window;
    MPI_Group all, one;
    int member = 1;
    MPI_Comm_group(world, &all);
    MPI_Group_incl(all, 1, &member, &one);
    MPI_Win_create(a, sizeof a, sizeof *a, MPI_INFO_NULL, world, &window);
    if (rank == 1) sleep_on();
    if (rank == 0) {
      AT("win_start"); MPI_Win_start(one, 0, window);
      MPI_Put(b, SMALL, MPI_DOUBLE, 1, 0, SMALL, MPI_DOUBLE, window);
      AT("win_complete"); MPI_Win_complete(window);
    }
    AT("barrier"); MPI_Barrier(world);
  }
  MODE("win-making") {
    MPI_Win window;
    if (rank == 3) sleep_on();
    AT("win_create"); MPI_Win_create(a, sizeof a, sizeof *a, MPI_INFO_NULL, world, &window);
  }
  MODE("self-send") {
    if (rank == 2) { AT("ssend"); MPI_Ssend(a, SMALL, MPI_DOUBLE, 2, 5, world); }
    AT("barrier"); MPI_Barrier(world);
  }
  MODE("file-open") {
    if (rank == 3) sleep_on();
    open_file();
  }
  MODE("file-write") {
    MPI_File file = open_file();
    if (rank == 1) sleep_on();
    AT("file_write_at_all"); MPI_File_write_at_all(file, rank * SMALL, a, SMALL, MPI_DOUBLE, MPI_STATUS_IGNORE);
    AT("file_close"); MPI_File_close(&file);
  }
  if (!known) {
    fprintf(stderr, "hangs: no mode %s\n", argv[1]);
    return 2;
  }
  AT("through"); /* it did not hang */
  MPI_Finalize();
  return 0;
}
