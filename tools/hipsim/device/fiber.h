// Stackful coroutines for a block's threads. A switch saves what the C++ calling convention
// says a call preserves, and nothing else: a few nanoseconds.
#pragma once
#include <cstddef>
#include <vector>

namespace hipsim {

struct Fiber {
  void* stack_pointer = nullptr;
  char* stack = nullptr;  // lowest usable byte
};

// Leave the running context in *save and go on with the one in `next`.
extern "C" void hipsim_switch(void** save, void* next);

// The fibers of one operating-system thread. A fiber runs `body` again each time it is taken
// from the pool after it has finished; `body` must switch away when it is done.
class FiberPool {
 public:
  static constexpr std::size_t kStackBytes = 64 * 1024;

  explicit FiberPool(void (*body)()) : body_(body) {}
  ~FiberPool();
  FiberPool(const FiberPool&) = delete;
  FiberPool& operator=(const FiberPool&) = delete;
  Fiber* take();
  void give_back(Fiber* fiber) { free_.push_back(fiber); }
  // Forget what every fiber was doing: after a fault their stacks hold half-done kernels.
  void reset();
  // Whether the address is in a fiber's guard page: a thread's stack has overflowed.
  bool in_guard(const void* address) const;

 private:
  void grow();
  void prepare(Fiber& fiber) const;

  void (*body_)();
  std::vector<void*> batches_;  // memory of stacks, as mapped
  std::vector<Fiber*> all_, free_;
};

}  // namespace hipsim
