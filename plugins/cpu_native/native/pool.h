// Threads that share the work of one call at a time.  The caller works too, and waits for nobody who has
// not begun: beside other programs a helper that has no core costs nothing.  Helpers look for work for a
// short while after each call, then sleep.
#pragma once

#include <cstdint>
#include <type_traits>

namespace propolis {

class Pool {
public:
    typedef void (*Work)(void* context, std::int64_t task);

    // Calls work(context, 0 .. tasks - 1), each once, from up to `threads` threads; returns when all are done.
    // From several threads at once, or from within a task, one call has the helpers; others do their own work.
    static void run(int threads, std::int64_t tasks, Work work, void* context);
};

template <class F>
void parallel(int threads, std::int64_t tasks, F&& each) {
    if (threads < 2 || tasks < 2) {
        for (std::int64_t task = 0; task < tasks; ++task) each(task);
        return;
    }
    typedef std::remove_reference_t<F> Function;
    Pool::run(
        threads, tasks, [](void* f, std::int64_t task) { (*(Function*)f)(task); },
        const_cast<void*>(static_cast<const void*>(&each)));
}

}  // namespace propolis
