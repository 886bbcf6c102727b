/* libany.so: functions to be named with --probe, some C++ (one left by an exception), one recursive, and a
 * USDT point made by hand, in the form of sys/sdt.h, so that no package is needed to build it. */
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <thread>
#include <unistd.h>

namespace demo {
struct Options {
  int work_us;
};
__attribute__((noinline)) long reduce(const Options &options) {
  if (options.work_us) usleep(options.work_us);
  return -options.work_us;
}
__attribute__((noinline)) void throws(int really) {
  if (really) throw std::runtime_error("on purpose");
}
__attribute__((noinline)) int twice(int x) {
  asm volatile("" : "+r"(x));
  return 2 * x;
}
__attribute__((noinline)) double twice(double x) {
  asm volatile("" : "+x"(x));
  return 2 * x;
}
}

extern "C" {
/* Counts the listeners: a program may skip what it does for a point when it is 0. */
__attribute__((section(".probes"))) volatile unsigned short demo_step_semaphore;

__attribute__((noinline)) unsigned any_depth(unsigned n) {
  if (n == 0) return 0;
  unsigned rest = any_depth(n - 1);
  asm volatile("" : "+r"(rest));
  return rest + 1;
}
/* Says when `all` threads are in it, and does not return. */
__attribute__((noinline)) int any_waits(int all) {
  static std::atomic<int> inside;
  if (++inside == all) puts("all"), fflush(stdout);
  int got = pause();
  asm volatile("" : "+r"(got)); /* else it would go on in pause at its end */
  return got;
}
__attribute__((noinline)) int any_steps(int n) {
  int heard = 0;
  for (int i = 0; i < n; i++) {
    if (demo_step_semaphore) heard++;
    asm volatile(
        "990: nop\n"
        ".pushsection .note.stapsdt,\"\",\"note\"\n"
        ".balign 4\n"
        ".4byte 992f-991f,994f-993f,3\n"
        "991: .asciz \"stapsdt\"\n"
        "992: .balign 4\n"
        "993: .8byte 990b\n"
        ".8byte _.stapsdt.base\n"
        ".8byte demo_step_semaphore\n"
        ".asciz \"demo\"\n.asciz \"step\"\n.asciz \"\"\n"
        "994: .balign 4\n"
        ".popsection\n"
        ".ifndef _.stapsdt.base\n"
        ".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n"
        ".weak _.stapsdt.base\n.hidden _.stapsdt.base\n_.stapsdt.base: .space 1\n.size _.stapsdt.base,1\n"
        ".popsection\n"
        ".endif\n");
  }
  return heard;
}
}

#ifdef MAIN
/* Waits for a line, then makes known numbers of calls, prints how many points somebody listened to, and ends with its input.
 * With a number: as many threads that wait in a call until the process is killed. With a negative one: a call, and after a line
 * as many threads that make none, each ended before the next begins; says what numbers they had, and ends with its input. */
int main(int argc, char **argv) {
  char line[8];
  int threads = argc > 1 ? atoi(argv[1]) : 0;
  for (int i = 1; i < threads; i++) std::thread(any_waits, threads).detach();
  if (threads > 0) return any_waits(threads);
  if (threads < 0) any_depth(0);
  if (!fgets(line, sizeof line, stdin)) return 1;
  if (threads < 0) {
    for (int i = threads; i < 0; i++) std::thread([] { printf("%d\n", gettid()); }).join();
    puts("done"), fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
    }
    return 0;
  }
  demo::Options quick = {0}, slow = {3000};
  for (int i = 0; i < 5000; i++) demo::reduce(quick);
  for (int i = 0; i < 5; i++) demo::reduce(slow);
  for (int i = 0; i < 7; i++) demo::twice(1.5);
  for (int i = 0; i < 3; i++) demo::twice(i);
  any_depth(5);
  any_depth(5);
  for (int i = 0; i < 9; i++) try {
      demo::throws(i % 3 == 0);
    } catch (const std::exception &) {
    }
  printf("%d\n", any_steps(400));
  while (fgets(line, sizeof line, stdin)) {
  }
  return 0;
}
#endif
