// One kernel launch in the device process: what is run, how far it is, what went wrong first.
#pragma once
#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "../common/protocol.h"

struct hipsim_kernel;

namespace hipsim {

struct LoadedModule {
  void* handle = nullptr;
  int descriptor = -1;
  std::uint32_t warp = 32;
  std::size_t tls_module = 0;  // its __shared__ variables: the module's thread-local segment
  std::size_t tls_bytes = 0;
};

struct SharedRange {
  std::size_t offset, bytes;
};

struct LoadedKernel {
  const LoadedModule* module;
  void (*run)(const char* parameters);
  std::vector<SharedRange> shared;  // its __shared__ variables in the module's segment
};

struct Launch {
  const LoadedKernel* kernel = nullptr;
  LaunchRequest request;
  std::uint64_t blocks = 0;
  std::atomic<std::uint64_t> next{0};
  std::uint64_t chunk = 1;
  std::atomic<bool> stopped{false};
  int helpers = 0;  // threads of the pool at work on it; guarded by the pool

  // The first fault of the launch is the one that is reported.
  void fail(const Reply& fault) {
    std::lock_guard lock(mutex_);
    if (reply.outcome == Outcome::ok) reply = fault;
    stopped = true;
  }
  Reply reply;

 private:
  std::mutex mutex_;
};

// Run blocks of the launch on the calling thread until none is left.
void run_blocks(Launch& launch);

// Called once a thread that will run blocks: signal handlers need their own stack.
void install_fault_handlers();

}  // namespace hipsim
