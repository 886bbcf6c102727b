/* made_up_ring DIRECTORY FIFO: in a mount namespace of its own, the FIFO is the file "DIRECTORY/host/ring-7 (deleted)", which this
 * program has found and not opened. A line "found 1"; "found 0" where that is not allowed. Then as shim_mpi.c. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>
static int make_up(const char *directory, const char *fifo) {
  char path[4096];
  if (unshare(geteuid() ? CLONE_NEWUSER | CLONE_NEWNS : CLONE_NEWNS)) return 0;
  if (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL)) return 0;
  int original = open(fifo, O_PATH);
  snprintf(path, sizeof path, "/proc/self/fd/%d", original);
  if (original < 0 || mount("tmpfs", directory, "tmpfs", 0, NULL) || chdir(directory) || mkdir("host", 0700)) return 0;
  close(open("host/ring-7 (deleted)", O_CREAT | O_WRONLY, 0600));
  if (mount(path, "host/ring-7 (deleted)", NULL, MS_BIND, NULL)) return 0;
  return open("host/ring-7 (deleted)", O_PATH) >= 0;
}
int main(int argc, char **argv) {
  printf("found %d\n", argc == 3 && make_up(argv[1], argv[2]));
  fflush(stdout);
  while (getchar() != EOF) {}
  return 0;
}
