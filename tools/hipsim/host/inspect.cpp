// What tests ask the simulator itself, beside HIP: hipsim_* are no part of HIP's interface.
#include <cstring>

#include "runtime.h"
#include "stream.h"

using namespace hipsim;

// How often "malloc" or "launch" has happened, or how many bytes are "live" on all devices.
HIPSIM_API long long hipsim_count(const char* what) {
  const std::string name = what ? what : "";
  if (name == "malloc") return settings().fail_malloc.count();
  if (name == "launch") return settings().fail_launch.count();
  if (name != "live") return -1;
  long long bytes = 0;
  for (const auto& device : Runtime::instance().devices)
    bytes += static_cast<long long>(device->memory->live_bytes());
  return bytes;
}

// Inject a fault from now on: "malloc", "launch" or "lost", and "n" or "n:code".
HIPSIM_API int hipsim_inject(const char* what, const char* when) {
  const std::string name = what ? what : "";
  if (!when) return -1;
  if (name == "malloc") return settings().fail_malloc.set(when, hipErrorOutOfMemory), 0;
  if (name == "launch") return settings().fail_launch.set(when, hipErrorLaunchOutOfResources), 0;
  if (name == "lost") return settings().device_lost.set(when, hipErrorLaunchFailure), 0;
  return -1;
}

// The last violation that was reported, or "".
HIPSIM_API const char* hipsim_last_report() {
  static thread_local std::string text;
  text = last_report();
  return text.c_str();
}
