// The simulator's state in the using process, and how every exported call is wrapped.
#pragma once
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <vector>

#include "../common/hipsim_api.h"
#include "../common/settings.h"
#include "arena.h"
#include "engine.h"

namespace hipsim {

struct Device {
  int id = 0;
  std::unique_ptr<Arena> memory;
  Engine engine;
  // An error that no later call gets past: the device is lost to this process.
  std::atomic<hipError_t> lost{hipSuccess};
  std::shared_ptr<Stream> null_stream;
  std::array<std::atomic<bool>, kMaxDevices> peers{};  // whose memory it may touch

  // Start the device process if it does not run yet.
  void start();
  void lose(hipError_t error);
};

class Runtime {
 public:
  static Runtime& instance();

  std::vector<std::unique_ptr<Device>> devices;
  std::unique_ptr<Arena> pinned;
  bool forked = false;  // in a child of fork(): the devices belong to the parent

  Device& current();
  // The device whose memory holds the address, or null.
  Device* owner(const void* address);

 private:
  Runtime();
};

extern thread_local int current_device;

// ---- errors -----------------------------------------------------------------------------

// Thrown inside of the simulator; becomes the result of the call.
struct Error {
  hipError_t code;
};

// Tell the user what went wrong: on stderr at once, and in the report at exit.
void report(const char* format, ...) __attribute__((format(printf, 1, 2)));
// What report() has said last; for tests.
std::string last_report();

hipError_t remember_error(hipError_t error);

enum Checks : unsigned {
  kAlways = 0,       // works without a device and after it is lost
  kDevice = 1,       // refused once the device is lost
  kNotCaptured = 2,  // refused while a capture forbids it
};

// Throws when a capture in progress forbids the call to this thread, and ends that capture.
void refuse_in_capture(const char* call);

template <class F>
hipError_t api(const char* name, unsigned checks, F body) {
  hipError_t error = hipSuccess;
  try {
    Runtime& runtime = Runtime::instance();
    if (checks & kDevice) {
      if (runtime.forked) throw Error{hipErrorNotInitialized};
      if (runtime.devices.empty()) throw Error{hipErrorNoDevice};
      if (const hipError_t lost = runtime.current().lost) throw Error{lost};
    }
    if (checks & kNotCaptured) refuse_in_capture(name);
    error = body(runtime);
  } catch (const Error& thrown) {
    error = thrown.code;
  } catch (const std::bad_alloc&) {
    error = hipErrorOutOfMemory;
  } catch (const EngineError& thrown) {
    report("%s: %s", name, thrown.what());
    Runtime::instance().current().lose(hipErrorUnknown);
    error = hipErrorUnknown;
  }
  return remember_error(error);
}

inline void require(bool condition, hipError_t error = hipErrorInvalidValue) {
  if (!condition) throw Error{error};
}

inline std::uintptr_t address_of(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer);
}

}  // namespace hipsim
