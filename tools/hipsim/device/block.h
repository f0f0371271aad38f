// The threads of one block: fibers on the operating-system thread that owns the Worker.
#pragma once
#include <csetjmp>
#include <cstdint>

#include "fiber.h"
#include "launch.h"

namespace hipsim {

constexpr unsigned kMaxThreads = 1024;

struct Site {
  const char* file;
  int line;
  bool operator==(const Site& other) const;
};

struct Warp {
  std::uint64_t at_barrier = 0;   // lanes that wait for the block
  std::uint64_t at_exchange = 0;  // lanes that wait for their warp in a shuffle
  std::uint64_t at_ballot = 0;    // or in a vote
};

// What a lane left behind when it stopped at a barrier or warp operation.
struct Lane {
  Fiber* fiber;
  std::uint64_t value;
  std::uint64_t result;
  int source;
  Site site;
};

class Worker {
 public:
  Worker();
  void run(Launch& launch);

  // Called by a running kernel's fiber.
  void barrier(Site site);
  std::uint64_t exchange(std::uint64_t value, int source, Site site);
  std::uint64_t ballot(int value, std::uint64_t* active, Site site);
  [[noreturn]] void fail(Outcome outcome, const char* text, std::uint64_t address = 0);

  Launch* launch = nullptr;  // null outside kernels: a fault is then the simulator's own
  bool in_guard(const void* address) const { return fibers_.in_guard(address); }

 private:
  friend void fiber_body();
  void run_block(std::uint64_t index);
  void poison_shared();
  void check_shared();
  void start_warp(unsigned warp);
  void settle_warp(unsigned warp);
  void finish_exchange(unsigned warp);
  void release_barrier();
  [[noreturn]] void report_absent();
  void finish_warp(unsigned warp);
  void enter(Fiber* fiber);
  void leave(void** save);
  unsigned take_pending();
  void suspend(Site site);
  unsigned lanes_of(unsigned warp) const;
  [[noreturn]] void fail_at(unsigned thread, Outcome outcome, const char* text);

  FiberPool fibers_;
  void* scheduler_ = nullptr;
  Fiber* running_ = nullptr;
  std::uint64_t pending_ = 0;  // lanes of pending_warp_ that can go on
  unsigned pending_warp_ = 0;
  unsigned waiting_ = 0;  // threads at the barrier
  Site barrier_{};        // which one
  sigjmp_buf escape_;
  unsigned warp_size_ = 32, warp_shift_ = 5, threads_ = 0, warps_ = 0;
  bool backwards_ = false;
  char* shared_ = nullptr;  // dynamic shared memory ends where an unreadable page begins
  char* shared_end_ = nullptr;
  Warp warps_state_[kMaxThreads / 32];
  Lane lanes_[kMaxThreads];
};

// The calling thread's worker while it runs a kernel, else null.
Worker* running_worker();

}  // namespace hipsim
