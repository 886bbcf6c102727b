// A server that nobody sees at a socket: libengine.so.1, and with -DMAIN a program that calls it as told on its standard input.
// The library has C++ functions that return, throw, call themselves, and sleep; one of C; and a pair of USDT points.
namespace ns {
struct Engine {
  int served = 0;
  int step(int us);
  double step(double us);
  int deep(int levels);
  void fail(int us);
};
}  // namespace ns
#ifndef MAIN
#include <csetjmp>
#include <ctime>
#include <pthread.h>
#include <stdexcept>

// As <sys/sdt.h> writes them: a nop, and a note with its address and a semaphore.
extern "C" {
__attribute__((section(".probes"), visibility("hidden"))) volatile unsigned short engine_begin_semaphore;
__attribute__((section(".probes"), visibility("hidden"))) volatile unsigned short engine_end_semaphore;
}
#define POINT(name)                                                                                     \
  asm volatile("990: nop\n"                                                                             \
               ".pushsection .note.stapsdt,\"?\",\"note\"\n"                                            \
               ".balign 4\n.4byte 992f-991f, 994f-993f, 3\n991: .asciz \"stapsdt\"\n992: .balign 4\n"     \
               "993: .8byte 990b\n.8byte _.stapsdt.base\n.8byte engine_" #name "_semaphore\n"           \
               ".asciz \"engine\"\n.asciz \"" #name "\"\n.asciz \"\"\n994: .balign 4\n.popsection\n"     \
               ".ifndef _.stapsdt.base\n"                                                               \
               ".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n"                  \
               ".weak _.stapsdt.base\n.hidden _.stapsdt.base\n_.stapsdt.base: .space 1\n"               \
               ".size _.stapsdt.base, 1\n.popsection\n.endif\n")

static void wait_us(long us) {
  timespec time = {us / 1000000, us % 1000000 * 1000};
  while (nanosleep(&time, &time)) {}
}

namespace ns {
int Engine::step(int us) {
  wait_us(us);
  return ++served;
}
double Engine::step(double us) {
  wait_us(static_cast<long>(us));
  return served + 0.5;
}
int Engine::deep(int levels) {
  int inner = levels > 0 ? deep(levels - 1) : step(10);
  return inner + 1;
}
void Engine::fail(int us) {
  wait_us(us);
  if (us >= 0) throw std::runtime_error("no");
  ++served;
}
}  // namespace ns

extern "C" int engine_plain(jmp_buf *back) {
  wait_us(10);
  if (back) longjmp(*back, 1);
  return 1;
}

// It is left for another stack, and comes back.
extern "C" int engine_yields(void (*yield)()) {
  yield();
  wait_us(10);
  return 1;
}

extern "C" int engine_quick(int n) {
  asm volatile("" : "+r"(n));
  return n + 1;
}

extern "C" int engine_ends_thread(int stays) {
  wait_us(10);
  if (stays) return 1;
  pthread_exit(nullptr);
}

// Whether somebody listens to both.
extern "C" int engine_pair(int us, int ends) {
  bool listened = engine_begin_semaphore > 0 && engine_end_semaphore > 0;
  POINT(begin);
  wait_us(us);
  if (ends) POINT(end);
  return listened;
}
#else
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <stdexcept>
#include <sys/mman.h>
#include <ucontext.h>
#include <thread>
#include <vector>

extern "C" int engine_plain(jmp_buf *back), engine_pair(int us, int ends), engine_ends_thread(int);
extern "C" int engine_yields(void (*yield)()), engine_quick(int n);

// Of this program, and not exported.
static __attribute__((noinline)) int own(int n) {
  asm volatile("" : "+r"(n));
  return n + 1;
}

// So deep on the stack that a call in it is below one that was left before.
static __attribute__((noinline)) int below(ns::Engine &engine) {
  volatile char room[4096];
  memset(const_cast<char *>(room), 1, sizeof room);
  return engine.step(10) + room[7];
}

#ifdef LATER
int ns::Engine::step(int) { return 0; }
double ns::Engine::step(double) { return 0; }
int ns::Engine::deep(int) { return 0; }
void ns::Engine::fail(int) {}
int engine_plain(jmp_buf *) { return 0; }
int engine_pair(int, int) { return 0; }
int engine_ends_thread(int) { return 0; }
int engine_yields(void (*)()) { return 0; }
int engine_quick(int n) { return n; }
#endif

// Two fibers on stacks of their own: each makes a call, in which it goes on to the other.
static ucontext_t whole, fibers[2];
static volatile int running;
static void yield() {
  int from = running;
  running = 1 - from;
  swapcontext(&fibers[from], &fibers[1 - from]);
}
static void fiber() {
  engine_yields(yield);
  if (running == 0) yield();  // the second ends both
}
// Their stacks lie in one mapping, or in two.
static void run_fibers(bool in_one) {
  const size_t bytes = 1 << 16, page = 4096;
  char *both = static_cast<char *>(mmap(nullptr, 2 * bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  for (auto &one : fibers) {
    char *stack = both + (&one - fibers) * bytes;
    if (!in_one) mprotect(stack, page, PROT_NONE);
    getcontext(&one);
    one.uc_stack.ss_sp = stack + page;
    one.uc_stack.ss_size = bytes - page;
    one.uc_link = &whole;
    makecontext(&one, fiber, 0);
  }
  running = 0;
  swapcontext(&whole, &fibers[0]);
  munmap(both, 2 * bytes);
}

int main() {
  char line[256], what[64];
  setvbuf(stdout, nullptr, _IONBF, 0);
  puts("ready");
  while (fgets(line, sizeof line, stdin)) {
    int a = 0, b = 0, c = 0, told = 0;
    ns::Engine engine;
    sscanf(line, "%63s %d %d %d", what, &a, &b, &c);
    if (!strcmp(what, "step")) {  // threads, calls of each, time of each
      std::vector<std::thread> threads;
      for (int n = 0; n < a; n++)
        threads.emplace_back([=] {
          ns::Engine own_engine;
          for (int m = 0; m < b; m++) own_engine.step(c);
        });
      for (auto &thread : threads) thread.join();
    } else if (!strcmp(what, "many")) {  // threads, one after the other
      for (int n = 0; n < a; n++) std::thread([] { ns::Engine().step(0); }).join();
    } else if (!strcmp(what, "double")) {
      for (int n = 0; n < a; n++) engine.step(10.0);
    } else if (!strcmp(what, "deep")) {
      for (int n = 0; n < a; n++) engine.deep(b);
    } else if (!strcmp(what, "fail")) {
      for (int n = 0; n < a; n++) {
        try {
          engine.fail(10);
        } catch (const std::exception &) {
        }
      }
      for (int n = 0; n < b; n++) below(engine);
    } else if (!strcmp(what, "jump")) {
      for (volatile int n = 0; n < a; n = n + 1) {
        jmp_buf back;
        if (!setjmp(back)) engine_plain(&back);
      }
      for (int n = 0; n < b; n++) engine_plain(nullptr);
    } else if (!strcmp(what, "end")) {
      for (int n = 0; n < a; n++) std::thread([] { engine_ends_thread(0); }).join();
    } else if (!strcmp(what, "pair")) {
      for (int n = 0; n < a; n++) told = engine_pair(10, 0);
      for (int n = 0; n < b; n++) told = engine_pair(10, 1);
    } else if (!strcmp(what, "fibers")) {
      for (int n = 0; n < a; n++) run_fibers(b);
    } else if (!strcmp(what, "quick")) {
      for (int n = 0; n < a; n++) told = engine_quick(n);
    } else if (!strcmp(what, "own")) {
      for (int n = 0; n < a; n++) told += own(n) > 0;
    } else if (!strcmp(what, "open")) {
      void *library = dlopen(strchr(line, '/') ? strtok(strchr(line, '/'), "\n") : "", RTLD_NOW);
      if (!library) fputs(dlerror(), stderr);
      told = library != nullptr;
    } else if (!strcmp(what, "opened")) {
      auto step = reinterpret_cast<int (*)(ns::Engine *, int)>(dlsym(RTLD_DEFAULT, "_ZN2ns6Engine4stepEi"));
      void *library = dlopen("libengine.so.1", RTLD_NOLOAD | RTLD_NOW);
      if (library) step = reinterpret_cast<int (*)(ns::Engine *, int)>(dlsym(library, "_ZN2ns6Engine4stepEi"));
      for (int n = 0; n < a && step; n++) told = step(&engine, 10);
    }
    printf("%s %d\n", what, told);
  }
}
#endif
