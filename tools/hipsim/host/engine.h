// The using process's side of a device process: starts it, and speaks common/protocol.h.
#pragma once
#include <sys/types.h>

#include <atomic>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "../common/protocol.h"

namespace hipsim {

class Arena;

// The device process cannot be started, has died, or takes too long.
struct EngineError : std::runtime_error {
  using std::runtime_error::runtime_error;
  bool timed_out = false;
};

struct KernelDescription {
  std::string name;
  std::uint64_t kernel;
  std::uint32_t shared_bytes;
  std::vector<ParameterRecord> parameters;
};

struct ModuleDescription {
  std::uint64_t module;
  std::vector<KernelDescription> kernels;
};

class Engine {
 public:
  // Start the process with the arenas mapped; does nothing when it runs.
  void start(const std::vector<Arena*>& arenas);
  bool running() const { return process_ > 0; }

  // Let the device reach an arena, which is its own, pinned memory or a peer's; or no longer.
  void map(const Arena& arena);
  void hide(const Arena& arena);
  void protect(std::uintptr_t base, std::size_t bytes, bool accessible);
  // An object that is no module of ours: an empty description and the reason in `error`.
  ModuleDescription load(int descriptor, std::string& error);
  void unload(std::uint64_t module);
  // A connection for one stream's launches; close() it.
  int connect();
  // Run a launch to its end over a stream's connection.
  Reply launch(int connection, const LaunchRequest& request);

  // End the process now.
  void stop();

 private:
  template <class R>
  Reply ask(const R& request, int descriptor = -1);
  [[noreturn]] void dead(const char* doing);

  std::mutex mutex_;
  std::vector<const Arena*> mapped_;
  pid_t process_ = -1;
  std::atomic<bool> reaped_{false};
  int control_ = -1;
};

}  // namespace hipsim
