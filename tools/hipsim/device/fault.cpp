// Turns a kernel's processor exceptions into the launch's fault. An exception outside of a
// kernel is the simulator's own bug: it takes the default action, and the host side reports
// that the device process died.
#include <csignal>
#include <cstdint>
#include <memory>

#include "block.h"

namespace hipsim {

namespace {
void on_fault(int signal, siginfo_t* info, void*) {
  Worker* running = running_worker();
  if (!running) {
    ::signal(signal, SIG_DFL);
    return;
  }
  Worker& worker = *running;
  const auto address = reinterpret_cast<std::uint64_t>(info->si_addr);
  if (signal == SIGFPE) worker.fail(Outcome::trap, "an integer division by zero or overflow");
  if (signal == SIGILL) worker.fail(Outcome::trap, "an illegal instruction (__builtin_trap?)");
  if (signal == SIGABRT) worker.fail(Outcome::trap, "abort() or a failed assert");
  if (worker.in_guard(info->si_addr))
    worker.fail(Outcome::trap, "stack overflow: a thread's local variables exceed 64 KiB", address);
  worker.fail(Outcome::illegal_address, "", address);
}

// A fiber that has overflowed its stack leaves none to handle the fault on.
class SignalStack {
 public:
  SignalStack() : memory_(new char[kBytes]) {
    stack_t stack{};
    stack.ss_size = kBytes;
    stack.ss_sp = memory_.get();
    sigaltstack(&stack, nullptr);
  }
  ~SignalStack() {
    stack_t none{};
    none.ss_flags = SS_DISABLE;
    sigaltstack(&none, nullptr);
  }

 private:
  static constexpr std::size_t kBytes = 64 * 1024;
  std::unique_ptr<char[]> memory_;
};
}  // namespace

void install_fault_handlers() {
  static thread_local SignalStack stack;
  struct sigaction action{};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  for (int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) sigaction(signal, &action, nullptr);
}

}  // namespace hipsim
