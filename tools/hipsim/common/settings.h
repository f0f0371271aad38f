// What the environment asks of the simulator, read once when the library is first used, and
// the faults it is to inject. tools/hipsim/README.md lists the variables.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace hipsim {

// Lets the n-th occurrence of something fail, counted from 1; "n+" also those after it.
class Fault {
 public:
  // "n", "n+", "n:code" or "n+:code"
  void set(const char* text, int default_code);
  // Count one occurrence; the error code to fail with, or 0.
  int next();
  std::int64_t count() const { return count_; }

 private:
  std::atomic<std::int64_t> count_{0}, at_{0};
  std::atomic<int> code_{0};
  std::atomic<bool> lasting_{false};
};

constexpr int kMaxDevices = 16;

struct Settings {
  int warp;                              // HIPSIM_WARP
  int devices;                           // HIPSIM_DEVICES
  std::size_t memory;                    // HIPSIM_MEMORY: bytes of each device
  int threads;                           // HIPSIM_THREADS
  std::size_t alignment;                 // HIPSIM_ALIGNMENT: of allocations
  int slow_copies_us;                    // HIPSIM_SLOW_COPIES
  int timeout_s;                         // HIPSIM_TIMEOUT: of one launch
  std::optional<std::uint64_t> shuffle;  // HIPSIM_SHUFFLE: seed of the random order of streams
  int hip_version;                       // HIPSIM_HIP_VERSION: as HIP counts
  std::string report;                    // HIPSIM_REPORT
  Fault fail_malloc, fail_launch, device_lost;

  Settings();
};

Settings& settings();

}  // namespace hipsim
