#include "runtime.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "exit.h"
#include "stream.h"

namespace hipsim {

thread_local int current_device = 0;

namespace {
constexpr std::uintptr_t kBase = std::uintptr_t{0x2000} << 32;  // clear of what Linux maps itself
constexpr std::uintptr_t kApart = std::uintptr_t{0x200} << 32;

struct sigaction previous_handler;

// Host code touched device memory: say so, then let happen what would have happened.
void on_host_fault(int, siginfo_t* info, void*) {
  Runtime& runtime = Runtime::instance();
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  const Device* device = runtime.owner(info->si_addr);
  const bool pinned = runtime.pinned->owns(address);
  if (device || pinned) {
    char text[400];
    const std::string where =
        device ? device->memory->describe(address) : runtime.pinned->describe(address);
    const int length =
        std::snprintf(text, sizeof text, "hipsim: host code touched %s memory at %p: %s\n",
                      device ? "device" : "pinned", info->si_addr, where.c_str());
    [[maybe_unused]] const ssize_t written =
        write(STDERR_FILENO, text, static_cast<std::size_t>(length));
  }
  sigaction(SIGSEGV, &previous_handler, nullptr);  // the access is tried again and takes this
}
}  // namespace

Runtime& Runtime::instance() {
  static auto* made = new Runtime;  // never destroyed: threads and exit handlers still use it
  return *made;
}

Runtime::Runtime() {
  for (int id = 0; id < settings().devices; ++id) {
    auto device = std::make_unique<Device>();
    device->id = id;
    device->memory =
        std::make_unique<Arena>("device " + std::to_string(id),
                                kBase + static_cast<std::uintptr_t>(id + 1) * kApart, false);
    device->memory->on_change = [this, id](std::uintptr_t begin, std::size_t bytes,
                                           bool accessible) {
      for (const auto& each : devices)
        if (each->id == id || each->peers[static_cast<std::size_t>(id)])
          each->engine.protect(begin, bytes, accessible);
    };
    device->null_stream = std::make_shared<Stream>();
    device->null_stream->device = device.get();
    device->null_stream->is_null = true;
    device->peers.resize(static_cast<std::size_t>(settings().devices));
    devices.push_back(std::move(device));
  }
  pinned = std::make_unique<Arena>("pinned host memory", kBase, true);
  pinned->on_change = [this](std::uintptr_t begin, std::size_t bytes, bool accessible) {
    for (const auto& device : devices) device->engine.protect(begin, bytes, accessible);
  };
  pthread_atfork(nullptr, nullptr, [] { Runtime::instance().forked = true; });
  struct sigaction action{};
  action.sa_sigaction = on_host_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  sigaction(SIGSEGV, &action, &previous_handler);
  report_at_exit();
}

Device& Runtime::current() { return *devices.at(static_cast<std::size_t>(current_device)); }

Device* Runtime::owner(const void* address) {
  for (const auto& device : devices)
    if (device->memory->owns(address_of(address))) return device.get();
  return nullptr;
}

void Device::start() {
  if (!engine.running()) engine.start({memory.get(), Runtime::instance().pinned.get()});
}

void Device::lose(hipError_t error) {
  hipError_t none = hipSuccess;
  lost.compare_exchange_strong(none, error);
}

}  // namespace hipsim
