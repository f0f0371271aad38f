#include "settings.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "hipsim_api.h"

namespace hipsim {

namespace {
[[noreturn]] void refuse(const char* name, const char* value, const char* wanted) {
  std::fprintf(stderr, "hipsim: %s=%s: expected %s\n", name, value, wanted);
  std::_Exit(2);
}

std::int64_t number(const char* name, std::int64_t default_value, std::int64_t least,
                    std::int64_t most) {
  const char* text = std::getenv(name);
  if (!text || !*text) return default_value;
  char* end;
  errno = 0;
  const long long value = std::strtoll(text, &end, 0);
  if (*end || errno || value < least || value > most) {
    char wanted[80];
    std::snprintf(wanted, sizeof wanted, "a number from %lld to %lld",
                  static_cast<long long>(least), static_cast<long long>(most));
    refuse(name, text, wanted);
  }
  return value;
}

// "7.2" as HIP counts; both numbers have two digits at most.
int version(const char* name, int default_value) {
  const char* text = std::getenv(name);
  if (!text || !*text) return default_value;
  char* end;
  const long major = std::strtol(text, &end, 10);
  const long minor = *end == '.' ? std::strtol(end + 1, &end, 10) : -1;
  if (*end || major < 1 || major > 99 || minor < 0 || minor > 99)
    refuse(name, text, "a version such as 5.7");
  return static_cast<int>(major * 10'000'000 + minor * 100'000);
}

int cores() {
  const unsigned count = std::thread::hardware_concurrency();
  return count ? static_cast<int>(count) : 1;
}
}  // namespace

void Fault::set(const char* text, int default_code) {
  char* end;
  const long long at = std::strtoll(text, &end, 10);
  const bool lasting = *end == '+';
  end += lasting;
  const int code = *end == ':' ? static_cast<int>(std::strtol(end + 1, &end, 10)) : default_code;
  if (*end || at < 0 || code < 0) refuse("a HIPSIM fault", text, "n, n+, n:code or n+:code");
  count_ = 0;
  code_ = code;
  lasting_ = lasting;
  at_ = at;
}

int Fault::next() {
  const std::int64_t now = ++count_;
  return at_ && (now == at_ || (lasting_ && now > at_)) ? code_.load() : 0;
}

Settings::Settings()
    : warp(static_cast<int>(number("HIPSIM_WARP", 32, 32, 64))),
      devices(static_cast<int>(number("HIPSIM_DEVICES", 1, 0, kMaxDevices))),
      memory(static_cast<std::size_t>(
          number("HIPSIM_MEMORY", std::int64_t{8} << 30, 1 << 20, std::int64_t{1} << 40))),
      threads(static_cast<int>(number("HIPSIM_THREADS", cores(), 1, 1024))),
      alignment(static_cast<std::size_t>(number("HIPSIM_ALIGNMENT", 256, 16, 4096))),
      slow_copies_us(static_cast<int>(number("HIPSIM_SLOW_COPIES", 0, 0, 60'000'000))),
      timeout_s(static_cast<int>(number("HIPSIM_TIMEOUT", 300, 0, 86'400))),
      hip_version(version("HIPSIM_HIP_VERSION", 70'200'000)) {
  if (warp != 32 && warp != 64) refuse("HIPSIM_WARP", std::getenv("HIPSIM_WARP"), "32 or 64");
  if (alignment & (alignment - 1))
    refuse("HIPSIM_ALIGNMENT", std::getenv("HIPSIM_ALIGNMENT"), "a power of two");
  if (const char* seed = std::getenv("HIPSIM_SHUFFLE"); seed && *seed)
    shuffle = static_cast<std::uint64_t>(number("HIPSIM_SHUFFLE", 0, 0, INT64_MAX));
  if (const char* path = std::getenv("HIPSIM_REPORT")) report = path;
  if (const char* text = std::getenv("HIPSIM_FAIL_MALLOC"))
    fail_malloc.set(text, hipErrorOutOfMemory);
  if (const char* text = std::getenv("HIPSIM_FAIL_LAUNCH"))
    fail_launch.set(text, hipErrorLaunchOutOfResources);
  if (const char* text = std::getenv("HIPSIM_DEVICE_LOST"))
    device_lost.set(text, hipErrorLaunchFailure);
}

Settings& settings() {
  static auto* instance = new Settings;  // never destroyed: exit handlers still read it
  return *instance;
}

}  // namespace hipsim
