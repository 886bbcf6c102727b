// An engine behind no socket: each call of ns::Engine::answer is a request. Some wait for a lock that a thread of the name
// "holder" has while it sleeps 60 ms. Told on standard input how many calls, and after how many of them one waits.
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <pthread.h>
#include <thread>
#include <unistd.h>

namespace ns {
class Engine {
  std::mutex lock, told;
  std::condition_variable changed;
  bool wanted = false, held = false;

 public:
  void hold() {
    pthread_setname_np(pthread_self(), "holder");
    for (;;) {
      std::unique_lock<std::mutex> by_us(told);
      changed.wait(by_us, [this] { return wanted; });
      wanted = false;
      std::lock_guard<std::mutex> have(lock);
      held = true;
      changed.notify_all();
      by_us.unlock();
      usleep(60000);
    }
  }
  __attribute__((noinline)) int answer(int n) {
    std::lock_guard<std::mutex> have(lock);
    return n + 1;
  }
  void make_slow() {
    std::unique_lock<std::mutex> by_us(told);
    wanted = true;
    held = false;
    changed.notify_all();
    changed.wait(by_us, [this] { return held; });
  }
};
}  // namespace ns

int main() {
  static ns::Engine engine;
  std::thread([] { engine.hold(); }).detach();
  setvbuf(stdout, nullptr, _IONBF, 0);
  puts("0");
  int calls, every;
  while (scanf("%d %d", &calls, &every) == 2) {
    for (int n = 0; n < calls; n++) {
      if (n > calls / 5 && n % every == 0) engine.make_slow();
      engine.answer(n);
      usleep(3000);
    }
    puts("1");
  }
}
