#include "fiber.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace hipsim {

#if defined(__x86_64__) && !defined(HIPSIM_UCONTEXT)
// System V: rbx, rbp, r12-r15 and the stack pointer survive a call. Leaving by a
// return keeps the processor's return predictions right: a lane that goes on after another
// has stopped at the same place returns through the same calls.
asm(R"(
.text
.globl hipsim_switch
.type hipsim_switch, @function
.align 16
hipsim_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size hipsim_switch, .-hipsim_switch
)");

void FiberPool::prepare(Fiber& fiber) const {
  auto** top = reinterpret_cast<void**>(fiber.stack_pointer);
  *--top = nullptr;  // where body would return to: it never does
  *--top = reinterpret_cast<void*>(body_);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  fiber.stack_pointer = top;
}

#elif defined(__aarch64__) && !defined(HIPSIM_UCONTEXT)
// AAPCS64: x19-x30, the stack pointer and the low halves of v8-v15 survive a call.
asm(R"(
.text
.globl hipsim_switch
.type hipsim_switch, %function
.align 4
hipsim_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size hipsim_switch, .-hipsim_switch
)");

void FiberPool::prepare(Fiber& fiber) const {
  auto** top = reinterpret_cast<void**>(fiber.stack_pointer) - 20;
  for (int i = 0; i < 20; ++i) top[i] = nullptr;
  top[11] = reinterpret_cast<void*>(body_);  // x30
  fiber.stack_pointer = top;
}

#else
// Elsewhere the C library does it, at the price of a system call a switch. A stopped context
// lies on its own stack.
extern "C" void hipsim_switch(void** save, void* next) {
  ucontext_t here;
  *save = &here;
  swapcontext(&here, static_cast<ucontext_t*>(next));
}

void FiberPool::prepare(Fiber& fiber) const {
  auto* context = reinterpret_cast<ucontext_t*>(fiber.stack_pointer) - 1;
  getcontext(context);
  context->uc_stack.ss_sp = fiber.stack;
  context->uc_stack.ss_size =
      static_cast<std::size_t>(reinterpret_cast<char*>(context) - fiber.stack);
  context->uc_link = nullptr;
  makecontext(context, body_, 0);
  fiber.stack_pointer = context;
}
#endif

namespace {
constexpr std::size_t kPage = 4096;
constexpr std::size_t kBatch = 64;
constexpr std::size_t kStride = FiberPool::kStackBytes + kPage;

// Stacks at equal distances would put every fiber's hot lines into the same cache set.
std::size_t colour(std::size_t i) { return i % 31 * 128; }
}  // namespace

FiberPool::~FiberPool() {
  for (Fiber* fiber : all_) delete fiber;
  for (void* batch : batches_) munmap(batch, kBatch * kStride);
}

void FiberPool::grow() {
  void* memory = mmap(nullptr, kBatch * kStride, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    std::perror("hipsim: no memory for fiber stacks");
    std::abort();
  }
  batches_.push_back(memory);
  for (std::size_t i = 0; i < kBatch; ++i) {
    char* guard = static_cast<char*>(memory) + i * kStride;
    mprotect(guard, kPage, PROT_NONE);
    auto* fiber = new Fiber;
    fiber->stack = guard + kPage;
    fiber->stack_pointer = fiber->stack + kStackBytes - colour(all_.size());
    prepare(*fiber);
    all_.push_back(fiber);
    free_.push_back(fiber);
  }
}

Fiber* FiberPool::take() {
  if (free_.empty()) grow();
  Fiber* fiber = free_.back();
  free_.pop_back();
  return fiber;
}

void FiberPool::reset() {
  free_.clear();
  for (std::size_t i = 0; i < all_.size(); ++i) {
    all_[i]->stack_pointer = all_[i]->stack + kStackBytes - colour(i);
    prepare(*all_[i]);
    free_.push_back(all_[i]);
  }
}

bool FiberPool::in_guard(const void* address) const {
  auto at = reinterpret_cast<std::uintptr_t>(address);
  for (const Fiber* fiber : all_) {
    auto stack = reinterpret_cast<std::uintptr_t>(fiber->stack);
    if (at >= stack - kPage && at < stack) return true;
  }
  return false;
}

}  // namespace hipsim
