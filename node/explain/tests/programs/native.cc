// A thread that sleeps in functions with known names, one that never sleeps, and the first thread that waits for both.
#include <alloca.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

namespace job {
struct Exchange {
    // The compiler must keep each call: the buffer is used after it, and its size is not known, so rbp is needed.
    __attribute__((noinline)) void wait_for_halo(int bytes) {
        char *buffer = (char *)alloca(bytes);
        memset(buffer, 1, bytes);
        sleep(3600);
        putchar(buffer[0]);
    }
};
__attribute__((noinline)) void step(int bytes) {
    Exchange().wait_for_halo(bytes);
    putchar('.');
}
}  // namespace job

static void *sleeper(void *bytes) {
    job::step(*(int *)bytes);
    putchar('.');
    return nullptr;
}

static void *runner(void *) {
    for (volatile unsigned long count = 0;; count = count + 1) {
    }
}

int main(int argc, char **) {
    pthread_t threads[2];
    int bytes = 64 * argc;
    pthread_create(&threads[0], nullptr, sleeper, &bytes);
    pthread_create(&threads[1], nullptr, runner, nullptr);
    pthread_join(threads[0], nullptr);
    putchar('.');
    return 0;
}
