// Messages to the user: violations when they are found, and the report at exit.
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

#include "exit.h"
#include "runtime.h"
#include "stream.h"

namespace hipsim {

namespace {
std::mutex mutex;
std::vector<std::string>& said() {  // guarded by mutex
  static auto* made = new std::vector<std::string>;
  return *made;
}

void list_leaks(std::FILE* out) {
  Runtime& runtime = Runtime::instance();
  const auto list = [out](const char* name, const Arena& arena) {
    const auto live = arena.live();
    if (live.empty()) return;
    std::fprintf(out, "hipsim: leak: %zu allocations of %s, %zu bytes\n", live.size(), name,
                 arena.live_bytes());
    for (const Allocation& allocation : live)
      std::fprintf(out, "hipsim: leak: allocation %llu of %s: %zu bytes at 0x%llx\n",
                   static_cast<unsigned long long>(allocation.id), name, allocation.bytes,
                   static_cast<unsigned long long>(allocation.begin));
  };
  for (const auto& device : runtime.devices)
    if (device->lost == hipSuccess)
      list(("device " + std::to_string(device->id)).c_str(), *device->memory);
  list("pinned host memory", *runtime.pinned);
}

void at_exit() {
  Runtime& runtime = Runtime::instance();
  if (runtime.forked) return;
  for (const auto& device : runtime.devices) {
    if (!device->engine.running()) continue;
    if (device->lost == hipSuccess) {
      wait_for_device(*device);
      check_guards(*device);
    }
    device->engine.stop();
  }
  const std::string& path = settings().report;
  if (path.empty()) return;
  std::FILE* out = path == "stderr" ? stderr : std::fopen(path.c_str(), "a");
  if (!out) {
    std::perror(("hipsim: HIPSIM_REPORT=" + path).c_str());
    return;
  }
  if (out != stderr)  // there they have been said already
    for (const std::string& line : said()) std::fprintf(out, "hipsim: %s\n", line.c_str());
  list_leaks(out);
  if (out != stderr) std::fclose(out);
}
}  // namespace

void report(const char* format, ...) {
  char text[1000];
  va_list values;
  va_start(values, format);
  std::vsnprintf(text, sizeof text, format, values);
  va_end(values);
  std::fprintf(stderr, "hipsim: %s\n", text);
  std::lock_guard lock(mutex);
  said().push_back(text);
}

std::string last_report() {
  std::lock_guard lock(mutex);
  return said().empty() ? std::string() : said().back();
}

void report_at_exit() { std::atexit(at_exit); }

void check_guards(Device& device) {
  if (device.lost != hipSuccess) return;
  for (Arena* arena : {device.memory.get(), Runtime::instance().pinned.get()})
    for (const Allocation& allocation : arena->live()) {
      const std::string damage = arena->damage(allocation);
      if (damage.empty()) continue;
      report("memory was written outside of an allocation: %s", damage.c_str());
      device.lose(hipErrorIllegalAddress);
    }
}

}  // namespace hipsim
