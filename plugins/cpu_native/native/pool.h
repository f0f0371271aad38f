// Threads that share the work of one call at a time.  The caller works too, and waits for nobody who has
// not begun: beside other programs a helper that has no core costs nothing.  Helpers look for work for a
// short while after each call, then sleep.
#pragma once

#include <atomic>
#include <cstdint>
#include <new>
#include <type_traits>

namespace propolis {

class Pool {
public:
    typedef void (*Work)(void* context, std::int64_t task);

    // Calls work(context, 0 .. tasks - 1), each once, from up to `threads` threads; returns when all are done.
    // From several threads at once, or from within a task, one call has the helpers; others do their own work.
    static void run(int threads, std::int64_t tasks, Work work, void* context);
};

// each(0 .. tasks - 1).  Tasks may lack memory to work in: then so does the call, once all that began have ended.
template <class F>
void parallel(int threads, std::int64_t tasks, F&& each) {
    if (threads < 2 || tasks < 2) {
        for (std::int64_t task = 0; task < tasks; ++task) each(task);
        return;
    }
    struct Call {
        std::remove_reference_t<F>& each;
        std::atomic<bool> lacking{false};
    } call{each};
    Pool::run(
        threads, tasks,
        [](void* context, std::int64_t task) {
            Call& call = *(Call*)context;
            try {
                if (!call.lacking.load(std::memory_order_relaxed)) call.each(task);
            } catch (const std::bad_alloc&) {
                call.lacking.store(true, std::memory_order_relaxed);
            }
        },
        &call);
    if (call.lacking.load(std::memory_order_relaxed)) throw std::bad_alloc();
}

}  // namespace propolis
