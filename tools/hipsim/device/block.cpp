#include "block.h"

#include <sys/mman.h>

#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "../common/hipsim_execution.h"
#include "../common/poison.h"

extern "C" {
__thread hipsim_thread hipsim_self;
void* __tls_get_addr(std::size_t*);
}

namespace hipsim {

namespace {
constexpr std::size_t kPage = 4096;
// Dynamic shared memory ends at a multiple of this; what lies between is a canary.
constexpr std::size_t kSharedAlignment = 16;

template <class F>
void for_each_lane(std::uint64_t lanes, bool backwards, F f) {
  while (lanes) {
    const unsigned lane = backwards ? 63 - std::countl_zero(lanes) : std::countr_zero(lanes);
    lanes &= ~(std::uint64_t{1} << lane);
    f(lane);
  }
}

void set_thread(unsigned index) {
  hipsim_thread& self = hipsim_self;
  self.index = index;
  self.thread.x = index % self.block_dim.x;
  self.thread.y = index / self.block_dim.x % self.block_dim.y;
  self.thread.z = index / self.block_dim.x / self.block_dim.y;
}

Reply fault_here(Outcome outcome, const char* text) {
  Reply fault;
  fault.outcome = outcome;
  fault.block = {hipsim_self.block.x, hipsim_self.block.y, hipsim_self.block.z};
  fault.thread = {hipsim_self.thread.x, hipsim_self.thread.y, hipsim_self.thread.z};
  std::snprintf(fault.text, sizeof fault.text, "%s", text);
  return fault;
}
}  // namespace

bool Site::operator==(const Site& other) const {
  return line == other.line && (file == other.file || std::strcmp(file, other.file) == 0);
}

namespace {
thread_local Worker* current = nullptr;  // a plain pointer: barriers read it

struct Owner {
  std::unique_ptr<Worker> worker;
  ~Owner() { current = nullptr; }
};
thread_local Owner owner;
}  // namespace

Worker* running_worker() { return current && current->launch ? current : nullptr; }

// What every fiber does, over and over: start the next thread of the warp and, as long as
// none of them stops at a barrier, the ones after it.
void fiber_body() {
  Worker& worker = *current;
  for (;;) {
    worker.launch->kernel->run(worker.launch->request.parameters);
    Fiber* self = worker.running_;
    worker.fibers_.give_back(self);
    worker.leave(&self->stack_pointer);
  }
}

Worker::Worker() : fibers_(fiber_body) {
  // Two pages that nothing may touch around what a block may have, and the canary before that.
  void* memory = mmap(nullptr, kMaxSharedBytes + 3 * kPage, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    std::perror("hipsim: no memory for shared memory");
    std::abort();
  }
  shared_end_ = static_cast<char*>(memory) + 2 * kPage + kMaxSharedBytes;
  mprotect(memory, kPage, PROT_NONE);
  mprotect(shared_end_, kPage, PROT_NONE);
}

Worker::~Worker() { munmap(shared_end_ - kMaxSharedBytes - 2 * kPage, kMaxSharedBytes + 3 * kPage); }

unsigned Worker::lanes_of(unsigned warp) const {
  const unsigned left = threads_ - warp * warp_size_;
  return left < warp_size_ ? left : warp_size_;
}

void Worker::run(Launch& work) {
  launch = &work;
  const LaunchRequest& request = work.request;
  warp_size_ = work.kernel->module->warp;
  warp_shift_ = std::countr_zero(warp_size_);
  threads_ = request.block.x * request.block.y * request.block.z;
  warps_ = (threads_ + warp_size_ - 1) / warp_size_;
  hipsim_self.block_dim = {request.block.x, request.block.y, request.block.z};
  hipsim_self.grid_dim = {request.grid.x, request.grid.y, request.grid.z};
  shared_ = shared_end_ -
            (request.shared_bytes + kSharedAlignment - 1) / kSharedAlignment * kSharedAlignment;
  hipsim_self.dynamic_shared = shared_;
  if (sigsetjmp(escape_, 1) != 0) {  // a fault left the kernel in the middle
    fibers_.reset();
    pending_ = 0;
    waiting_ = 0;
    launch = nullptr;
    return;
  }
  while (!work.stopped.load(std::memory_order_relaxed)) {
    const std::uint64_t first = work.next.fetch_add(work.chunk, std::memory_order_relaxed);
    if (first >= work.blocks) break;
    const std::uint64_t end = first + work.chunk < work.blocks ? first + work.chunk : work.blocks;
    for (std::uint64_t i = first; i < end && !work.stopped.load(std::memory_order_relaxed); ++i)
      run_block(i);
  }
  launch = nullptr;
}

void Worker::run_block(std::uint64_t index) {
  const Dim& grid = launch->request.grid;
  hipsim_self.block = {static_cast<unsigned>(index % grid.x),
                       static_cast<unsigned>(index / grid.x % grid.y),
                       static_cast<unsigned>(index / grid.x / grid.y)};
  // A kernel that forgets a barrier must not be right by the luck of one order.
  backwards_ = (index + launch->request.number) & 1;
  poison_shared();
  for (unsigned i = 0; i < warps_; ++i) {
    const unsigned warp = backwards_ ? warps_ - 1 - i : i;
    start_warp(warp);
    finish_warp(warp);
  }
  while (waiting_) release_barrier();
  check_shared();
}

void Worker::poison_shared() {
  const LoadedKernel& kernel = *launch->kernel;
  if (!kernel.shared.empty()) {
    std::size_t index[2] = {kernel.module->tls_module, 0};
    char* segment = static_cast<char*>(__tls_get_addr(index));
    for (const SharedRange& range : kernel.shared)
      poison(segment + range.offset, range.bytes, kFresh);
  }
  if (shared_ != shared_end_) {
    poison(shared_, static_cast<std::size_t>(shared_end_ - shared_), kFresh);
    const std::size_t bytes = launch->request.shared_bytes;
    write_canary(shared_ + bytes, shared_end_);
    write_canary(shared_ - kSharedAlignment, shared_);
  }
}

void Worker::check_shared() {
  if (shared_ == shared_end_) return;
  const char* end = shared_ + launch->request.shared_bytes;
  const char* damaged = damaged_canary(end, shared_end_);
  if (!damaged) damaged = damaged_canary(shared_ - kSharedAlignment, shared_);
  if (!damaged) return;
  char text[160];
  std::snprintf(text, sizeof text, "wrote outside dynamic shared memory: byte %td of %u",
                damaged - shared_, launch->request.shared_bytes);
  fail(Outcome::shared_overflow, text);
}

void Worker::enter(Fiber* fiber) {
  running_ = fiber;
  hipsim_switch(&scheduler_, fiber->stack_pointer);
}

// Leave the running fiber: for the next lane that can go on, else for the scheduler.
void Worker::leave(void** save) {
  if (!pending_) {
    hipsim_switch(save, scheduler_);
    return;
  }
  running_ = lanes_[(pending_warp_ << warp_shift_) + take_pending()].fiber;
  if (save != &running_->stack_pointer) hipsim_switch(save, running_->stack_pointer);
}

unsigned Worker::take_pending() {
  const unsigned lane = backwards_ ? 63 - std::countl_zero(pending_) : std::countr_zero(pending_);
  pending_ &= ~(std::uint64_t{1} << lane);
  return lane;
}

void Worker::start_warp(unsigned warp) {
  warps_state_[warp] = {};
  hipsim_thread& self = hipsim_self;
  const unsigned lanes = lanes_of(warp);
  set_thread(warp * warp_size_ + (backwards_ ? lanes - 1 : 0));
  self.step = backwards_ ? -1u : 1u;
  self.remaining = lanes - 1;
  do {
    enter(fibers_.take());
  } while (hipsim_next());
}

// When every lane of the warp that has not finished waits, and some for their warp, give those
// what they asked for.
void Worker::settle_warp(unsigned warp) {
  Warp& state = warps_state_[warp];
  const std::uint64_t lanes = state.at_exchange | state.at_ballot;
  if (!lanes) return;
  finish_exchange(warp);
  state.at_exchange = state.at_ballot = 0;
  pending_ = lanes;
  pending_warp_ = warp;
}

// Run the warp's pending lanes, and again those that an exchange sets free, until each lane
// has finished or waits for the block.
void Worker::finish_warp(unsigned warp) {
  do {
    while (pending_) enter(lanes_[warp * warp_size_ + take_pending()].fiber);
    settle_warp(warp);
  } while (pending_);
}

void Worker::finish_exchange(unsigned warp) {
  const Warp& state = warps_state_[warp];
  Lane* lanes = lanes_ + warp * warp_size_;
  for_each_lane(state.at_exchange, false, [&](unsigned i) {
    const int source = lanes[i].source;
    if (source < 0 || source >= static_cast<int>(warp_size_) ||
        !(state.at_exchange >> source & 1)) {
      char text[256];
      std::snprintf(
          text, sizeof text,
          "the shuffle at %s:%d takes the value of lane %d, which is not in it: it has %s",
          lanes[i].site.file, lanes[i].site.line, source,
          source >= 0 && source < static_cast<int>(warp_size_) && state.at_barrier >> source & 1
              ? "gone to a barrier"
              : "returned, or does not exist");
      fail_at(warp * warp_size_ + i, Outcome::divergence, text);
    }
    lanes[i].result = lanes[source].value;
  });
  std::uint64_t votes = 0;
  for_each_lane(state.at_ballot, false, [&](unsigned i) { votes |= (lanes[i].value & 1) << i; });
  for_each_lane(state.at_ballot, false, [&](unsigned i) {
    lanes[i].result = votes;
    lanes[i].value = state.at_ballot;
  });
}

// Every thread that has not finished waits at a barrier: let them on if every thread of the
// block is there. That it is the same barrier, barrier() has seen.
void Worker::release_barrier() {
  if (waiting_ != threads_) report_absent();
  waiting_ = 0;
  for (unsigned i = 0; i < warps_; ++i) {
    const unsigned warp = backwards_ ? warps_ - 1 - i : i;
    pending_ = warps_state_[warp].at_barrier;
    pending_warp_ = warp;
    warps_state_[warp].at_barrier = 0;
    finish_warp(warp);
  }
}

void Worker::report_absent() {
  unsigned absent = 0;
  while (warps_state_[absent >> warp_shift_].at_barrier >> (absent & (warp_size_ - 1)) & 1)
    ++absent;
  char text[256];
  std::snprintf(text, sizeof text, "returned, while %u of %u threads wait at the barrier at %s:%d",
                waiting_, threads_, barrier_.file, barrier_.line);
  fail_at(absent, Outcome::divergence, text);
}

void Worker::suspend(Site site) {
  const uint3 thread = hipsim_self.thread;
  const unsigned index = hipsim_self.index;
  Lane& lane = lanes_[index];
  lane.fiber = running_;
  lane.site = site;
  // The last lane of its warp to arrive settles the exchange without asking the scheduler.
  if (!pending_ && hipsim_self.remaining == 0) settle_warp(index >> warp_shift_);
  leave(&lane.fiber->stack_pointer);
  hipsim_self.thread = thread;
  hipsim_self.index = index;
}

void Worker::barrier(Site site) {
  const unsigned index = hipsim_self.index;
  if (waiting_++ == 0) barrier_ = site;
  if (!(site == barrier_)) {
    char text[256];
    std::snprintf(text, sizeof text, "waits at the barrier at %s:%d while others wait at %s:%d",
                  site.file, site.line, barrier_.file, barrier_.line);
    fail(Outcome::divergence, text);
  }
  warps_state_[index >> warp_shift_].at_barrier |= std::uint64_t{1} << (index & (warp_size_ - 1));
  suspend(site);
}

std::uint64_t Worker::exchange(std::uint64_t value, int source, Site site) {
  const unsigned index = hipsim_self.index;
  warps_state_[index >> warp_shift_].at_exchange |= std::uint64_t{1} << (index & (warp_size_ - 1));
  lanes_[index].value = value;
  lanes_[index].source = source;
  suspend(site);
  return lanes_[index].result;
}

std::uint64_t Worker::ballot(int value, std::uint64_t* active, Site site) {
  const unsigned index = hipsim_self.index;
  warps_state_[index >> warp_shift_].at_ballot |= std::uint64_t{1} << (index & (warp_size_ - 1));
  lanes_[index].value = static_cast<std::uint64_t>(value);
  suspend(site);
  *active = lanes_[index].value;
  return lanes_[index].result;
}

void Worker::fail_at(unsigned thread, Outcome outcome, const char* text) {
  set_thread(thread);
  fail(outcome, text);
}

void Worker::fail(Outcome outcome, const char* text, std::uint64_t address) {
  Reply fault = fault_here(outcome, text);
  fault.address = address;
  launch->fail(fault);
  siglongjmp(escape_, 1);
}

void run_blocks(Launch& launch) {
  if (!current) {
    owner.worker = std::make_unique<Worker>();
    current = owner.worker.get();
  }
  current->run(launch);
}

}  // namespace hipsim

extern "C" {
// threadIdx.x has left the block's width on either side: carry into y and z.
void hipsim_wrap() { hipsim::set_thread(hipsim_self.index); }
void hipsim_barrier(int line, const char* file) { (*hipsim::current).barrier({file, line}); }
std::uint64_t hipsim_exchange(std::uint64_t value, int source, int line, const char* file) {
  return (*hipsim::current).exchange(value, source, {file, line});
}
std::uint64_t hipsim_ballot(int value, std::uint64_t* active, int line, const char* file) {
  return (*hipsim::current).ballot(value, active, {file, line});
}
// What -fsanitize=alignment calls, with the layout that compilers have agreed on.
struct hipsim_misaligned {
  const char* file;
  unsigned line;
  unsigned column;
  const char* type;  // two 16-bit numbers, then its name
  unsigned char log_alignment;
  unsigned char kind;  // 0: load, 1: store, 2: reference, 3: member access
};

void __ubsan_handle_type_mismatch_v1_abort(hipsim_misaligned* access, std::uintptr_t address) {
  char text[sizeof(hipsim::Reply::text)];
  std::snprintf(text, sizeof text, "a misaligned %s of %s at %p, which is no multiple of %u",
                access->kind == 1 ? "store" : "load", access->type + 4,
                reinterpret_cast<void*>(address), 1u << access->log_alignment);
  (*hipsim::current).fail(hipsim::Outcome::trap, text);
}

void hipsim_trap(const char* what) { (*hipsim::current).fail(hipsim::Outcome::trap, what); }
}
