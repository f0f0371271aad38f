// The pool under the thread sanitizer: callers, nested calls, changing counts of threads, and tasks that lack memory.
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <new>
#include <thread>
#include <vector>

#include "pool.h"

using propolis::parallel;

int main() {
    std::atomic<int> wrong{0};
    auto caller = [&](int seed) {
        for (int round = 0; round < 300; ++round) {
            const std::int64_t tasks = (seed * 7 + round) % 40 + (round % 50 == 7 ? 60 : 0);
            std::vector<int> done(tasks);  // no atomics: each task is one thread's, and then the caller's
            parallel(round % 50 == 7 ? 70 : 1 + round % 4, tasks, [&](std::int64_t task) {
                done[task] += 1;
                parallel(2, 3, [&](std::int64_t) {});
            });
            for (int count : done) wrong += count != 1;
            std::vector<int> begun(tasks);
            bool told = false;
            try {
                parallel(1 + round % 4, tasks, [&](std::int64_t task) {
                    begun[task] += 1;
                    if (task % 10 == 9) throw std::bad_alloc();
                });
            } catch (const std::bad_alloc&) {
                told = true;
            }
            wrong += told != (tasks > 9);
            for (int count : begun) wrong += count > 1;
            if (round % 100 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
        }
    };
    std::vector<std::thread> callers;
    for (int seed = 0; seed < 3; ++seed) callers.emplace_back(caller, seed);
    for (std::thread& one : callers) one.join();
    std::printf("%d wrong\n", wrong.load());
    return wrong != 0;
}
