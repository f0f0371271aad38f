#include "pool.h"

#include "crowd.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <mutex>
#include <system_error>
#include <thread>

namespace propolis {
namespace {

typedef std::atomic<std::uint32_t> Word;
static_assert(sizeof(Word) == 4 && Word::is_always_lock_free);

void sleep_while(Word& word, std::uint32_t value) {
    syscall(SYS_futex, (std::uint32_t*)&word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}
void wake(Word& word, int most = INT_MAX) {
    syscall(SYS_futex, (std::uint32_t*)&word, FUTEX_WAKE_PRIVATE, most, nullptr, nullptr, 0);
}
void pause_a_little() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// How long a helper looks for the next call before it sleeps: the calls of a decode step follow each other
// within some microseconds, and waking a sleeper costs the caller more than that.
constexpr std::chrono::microseconds PATIENCE{40};
// After so many looks it lets others have the core, if any wait for it.
constexpr int LOOKS = 64;

// A call, and who is at it.  `state` counts calls in its upper half, has OPEN while helpers may join, and
// counts those who did.
constexpr std::uint64_t CALL = std::uint64_t{1} << 32;
constexpr std::uint64_t OPEN = std::uint64_t{1} << 31;
constexpr std::uint64_t HELPERS = OPEN - 1;

// Tasks that are neighbours, of which the next is whose who takes it.
struct alignas(64) Run {
    std::atomic<std::int64_t> next{0};
    std::int64_t end = 0;
};
constexpr std::int64_t RUNS = 64;

struct Shared {
    alignas(64) std::atomic<std::uint64_t> state{0};
    alignas(64) Word bell{0};  // rung at each call
    Word sleepers{0};
    std::atomic<std::uint64_t> most{0};  // helpers that the call asked for
    Word finished{0};  // rung when the last helper leaves a closed call
    std::atomic<bool> waited{false};
    Run runs[RUNS];
    // Written before a call opens, read by those who joined it.
    Pool::Work work = nullptr;
    void* context = nullptr;
    int count = 0;  // of runs

    std::mutex owner;  // of the helpers
    int helpers = 0;
    Crowd crowd;
};

// Who comes as the `number`-th begins with a run of his own, and helps others with theirs when it is done.
// Neighbours mostly read neighbouring memory, and two who take it by turns get less of it: weights of 8192 x 2048 in
// Q8_0 at 40 GB/s on two cores of Zen 5, and at 47 to 70 by runs.
void work_on(Shared& s, int number) {
    for (int i = 0; i < s.count; ++i) {
        Run& run = s.runs[(number + i) % s.count];
        while (run.next.load(std::memory_order_relaxed) < run.end) {  // a look costs those at it nothing
            const std::int64_t task = run.next.fetch_add(1, std::memory_order_relaxed);
            if (task < run.end) s.work(s.context, task);
        }
    }
}

// Whether there is a call to help with that has not been, and as which of those who are at it.
bool join(Shared& s, std::uint64_t& done, int& number) {
    std::uint64_t state = s.state.load(std::memory_order_acquire);
    while ((state & OPEN) && state / CALL != done) {
        if ((state & HELPERS) >= s.most.load(std::memory_order_relaxed)) return false;
        if (s.state.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel)) {
            done = state / CALL;
            number = (int)(state & HELPERS) + 1;
            return true;
        }
    }
    return false;
}

void leave(Shared& s) {
    const std::uint64_t before = s.state.fetch_sub(1, std::memory_order_acq_rel);
    if (!(before & OPEN) && (before & HELPERS) == 1 && s.waited.load(std::memory_order_seq_cst)) {
        s.finished.fetch_add(1, std::memory_order_seq_cst);
        wake(s.finished);
    }
}

void help(Shared* shared) {
    Shared& s = *shared;
    std::uint64_t done = ~std::uint64_t{0};
    while (true) {
        const auto until = std::chrono::steady_clock::now() + PATIENCE;
        bool joined = false;
        int number = 0;
        for (int look = 1; !(joined = join(s, done, number)); ++look) {
            pause_a_little();
            if (look % LOOKS) continue;
            if (std::chrono::steady_clock::now() > until) break;
            sched_yield();
        }
        if (joined) {
            work_on(s, number);
            leave(s);
            continue;
        }
        const std::uint32_t heard = s.bell.load(std::memory_order_seq_cst);
        s.sleepers.fetch_add(1, std::memory_order_seq_cst);
        if (join(s, done, number)) {  // it came meanwhile
            s.sleepers.fetch_sub(1, std::memory_order_relaxed);
            work_on(s, number);
            leave(s);
            continue;
        }
        sleep_while(s.bell, heard);
        s.sleepers.fetch_sub(1, std::memory_order_relaxed);
    }
}

// A fork has none of the threads: it begins anew, and what the parent had stays where it is.
Shared* the_pool = new Shared;

void start_helpers(Shared& s, int wanted) {
    while (s.helpers < wanted) {
        try {
            std::thread(help, &s).detach();
        } catch (const std::system_error&) {  // no more threads are allowed: there are fewer helpers
            return;
        }
        ++s.helpers;
    }
}

struct AtFork {
    AtFork() {
        pthread_atfork(nullptr, nullptr, [] { the_pool = new Shared; });
    }
} at_fork;

// Let the crowd know, from time to time, how often this thread lost its core to others.
void look_around(Crowd& crowd, int helpers) {
    if (!crowd.looks()) return;
    const Crowd::Point now = Crowd::Clock::now();
    rusage usage{};
    if (!crowd.looks(now) || getrusage(RUSAGE_THREAD, &usage)) return;
    crowd.look((std::uint64_t)pthread_self(), usage.ru_nivcsw, helpers, now);
}

// As Pool::run, by the owner of the helpers.
void run_with_helpers(Shared& s, int threads, std::int64_t tasks, Pool::Work work, void* context) {
    start_helpers(s, threads - 1);
    s.work = work;
    s.context = context;
    s.count = (int)std::min({(std::int64_t)threads, tasks, RUNS});
    for (int i = 0; i < s.count; ++i) {
        s.runs[i].next.store(tasks * i / s.count, std::memory_order_relaxed);
        s.runs[i].end = tasks * (i + 1) / s.count;
    }
    s.most.store(threads - 1, std::memory_order_relaxed);
    s.waited.store(false, std::memory_order_relaxed);
    const std::uint64_t call = (s.state.load(std::memory_order_relaxed) / CALL + 1) * CALL;
    s.state.store(call | OPEN, std::memory_order_seq_cst);
    s.bell.fetch_add(1, std::memory_order_seq_cst);
    // As many as are wanted beside those who look for calls: others would look for nothing.
    const int asleep = (int)s.sleepers.load(std::memory_order_seq_cst), missing = threads - 1 - (s.helpers - asleep);
    if (asleep && missing > 0) wake(s.bell, missing);

    work_on(s, 0);

    std::uint64_t state = s.state.fetch_and(~OPEN, std::memory_order_acq_rel) & ~OPEN;
    for (int look = 0; state & HELPERS; ++look) {
        if (look < 2000) {
            pause_a_little();
        } else {
            const std::uint32_t heard = s.finished.load(std::memory_order_seq_cst);
            s.waited.store(true, std::memory_order_seq_cst);
            if (s.state.load(std::memory_order_seq_cst) & HELPERS) sleep_while(s.finished, heard);
        }
        state = s.state.load(std::memory_order_acquire);
    }
}

}  // namespace

void Pool::run(int threads, std::int64_t tasks, Work work, void* context) {
    Shared& s = *the_pool;
    std::unique_lock<std::mutex> owner(s.owner, std::try_to_lock);
    const bool watching = owner && s.crowd.watching();
    const Crowd::Point begun = watching ? Crowd::Clock::now() : Crowd::Point();
    const int helpers = owner ? s.crowd.allowed(threads - 1) : 0;
    if (helpers > 0) {
        run_with_helpers(s, helpers + 1, tasks, work, context);
    } else {
        for (std::int64_t task = 0; task < tasks; ++task) work(context, task);
    }
    if (!owner || threads < 2) return;
    if (watching) {
        const Crowd::Point now = Crowd::Clock::now();
        s.crowd.took((const void*)work, tasks, now - begun, now);
    }
    look_around(s.crowd, threads - 1);
}

}  // namespace propolis
