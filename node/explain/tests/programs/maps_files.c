/* Maps the first page of files as code, in ascending order of addresses below all libraries, and waits: maps_files FILE... Prints a line when all are mapped. */
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>
int main(int argc, char **argv) {
  for (int i = 1; i < argc; i++) {
    int fd = open(argv[i], O_RDONLY);
    void *where = (void *)(0x10000000ul + i * 0x10000ul);
    if (fd < 0 || mmap(where, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0) != where) return 1;
    close(fd);
  }
  puts("mapped");
  fflush(stdout);
  for (;;) pause();
}
