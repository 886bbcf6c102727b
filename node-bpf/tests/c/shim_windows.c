/* A stand-in for an MPI library (with -DLIBRARY) that ends the program when it is asked for the rank in what is no communicator,
 * and a program that makes, uses and ends more windows and files than the shim keeps; a line "called N", then as shim_mpi.c. */
#include <stdio.h>
#include <stdlib.h>
typedef int handle;
int MPI_Init(int *argc, char ***argv);
int MPI_Win_create(void *base, long size, int unit, handle info, handle comm, handle *window);
int MPI_Win_fence(int assert, handle window);
int MPI_Win_lock(int type, int rank, int assert, handle window);
int MPI_Win_free(handle *window);
int MPI_File_open(handle comm, const char *name, int mode, handle info, handle *file);
int MPI_File_set_size(handle file, long size);
int MPI_File_close(handle *file);
#ifdef LIBRARY
static int next = 0x20000000;
static int place(handle comm, int *answer, int is) {
  if (comm >> 8 != 0x440000) abort(); /* as MPI_ERRORS_ARE_FATAL does */
  *answer = is;
  return 0;
}
int PMPI_Get_library_version(char *text, int *length) { return (*length = sprintf(text, "MPICH Version: 4.2.0")) < 0; }
int PMPI_Comm_rank(handle comm, int *rank) { return place(comm, rank, 0); }
int PMPI_Comm_size(handle comm, int *size) { return place(comm, size, 1); }
int MPI_Init(int *argc, char ***argv) { return !argc || !argv; }
int MPI_Win_create(void *base, long size, int unit, handle info, handle comm, handle *window) {
  *window = next++;
  return !base + !comm + (int)size + unit + info - 3;
}
int MPI_Win_fence(int assert, handle window) { return assert + window / 0x70000000; }
int MPI_Win_lock(int type, int rank, int assert, handle window) { return type + rank + assert + window / 0x70000000; }
int MPI_Win_free(handle *window) { return *window = 0; }
int MPI_File_open(handle comm, const char *name, int mode, handle info, handle *file) {
  *file = next++;
  return !comm + !name + mode + info;
}
int MPI_File_set_size(handle file, long size) { return file / 0x70000000 + (int)size; }
int MPI_File_close(handle *file) { return *file = 0; }
#else
enum { MANY = 3000, WORLD = 0x44000000 };
static handle windows[MANY], files[MANY];
int main(int argc, char **argv) {
  int wrong = MPI_Init(&argc, &argv);
  for (int i = 0; i < MANY; i++) {
    wrong += MPI_Win_create(windows, 1, 1, 1, WORLD, &windows[i]);
    wrong += MPI_File_open(WORLD, "file", 0, 0, &files[i]);
  }
  for (int i = 0; i < MANY; i++)
    wrong += MPI_Win_fence(0, windows[i]) + MPI_Win_lock(0, 0, 0, windows[i]) + MPI_File_set_size(files[i], 0);
  for (int i = 0; i < MANY; i++) wrong += MPI_Win_free(&windows[i]) + MPI_File_close(&files[i]);
  if (wrong) abort();
  printf("called %d\n", 1 + MANY * 7);
  fflush(stdout);
  while (getchar() != EOF) {}
  return 0;
}
#endif
