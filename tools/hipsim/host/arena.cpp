#include "arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "../common/poison.h"
#include "../common/settings.h"

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

namespace hipsim {

namespace {
std::size_t page() {
  static const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

std::size_t round_up(std::size_t value, std::size_t to) { return (value + to - 1) / to * to; }

[[noreturn]] void give_up(const char* what) {
  std::fprintf(stderr, "hipsim: %s: %s\n", what, std::strerror(errno));
  std::_Exit(2);
}
}  // namespace

Arena::Arena(std::string name, std::uintptr_t preferred_base, bool host_visible)
    : name_(std::move(name)), host_visible_(host_visible), base_(preferred_base) {
  descriptor_ = memfd_create(name_.c_str(), MFD_CLOEXEC);
  if (descriptor_ < 0) give_up("memfd_create");
  // Addresses are plenty and make freed ones unlikely to come back; a limit of the process or
  // a small address space may allow fewer.
  for (bytes_ = std::size_t{1} << 40; bytes_ >= std::size_t{1} << 34; bytes_ /= 4) {
    if (ftruncate(descriptor_, static_cast<off_t>(bytes_)) != 0) continue;
    void* at = reinterpret_cast<void*>(base_);
    void* reserved =
        host_visible
            ? mmap(at, bytes_, PROT_NONE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED_NOREPLACE,
                   descriptor_, 0)
            : mmap(at, bytes_, PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (reserved == MAP_FAILED) continue;
    if (reserved != at) give_up("the addresses of device memory are in use");
    if (host_visible) {
      view_ = static_cast<char*>(reserved);
      return;
    }
    void* view =
        mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, descriptor_, 0);
    if (view != MAP_FAILED) {
      view_ = static_cast<char*>(view);
      return;
    }
    munmap(reserved, bytes_);
  }
  give_up("no addresses for device memory");
}

// Addresses for `bytes` with an unreadable page on either side: fresh ones, or when those are
// used up the ones that have been free for longest.
std::uintptr_t Arena::place(std::size_t bytes) {
  if (used_ + bytes + 2 * page() <= bytes_) {
    const std::uintptr_t at = base_ + used_ + page();
    used_ += bytes + page();
    return at;
  }
  auto oldest = allocations_.end();
  for (auto i = allocations_.begin(); i != allocations_.end(); ++i)
    if (i->second.freed && i->second.span_end - i->second.span_begin >= bytes &&
        (oldest == allocations_.end() || i->second.id < oldest->second.id))
      oldest = i;
  if (oldest == allocations_.end()) throw std::bad_alloc();
  const std::uintptr_t at = oldest->first;
  allocations_.erase(oldest);
  return at;
}

Allocation Arena::allocate(std::size_t bytes, unsigned flags, bool managed) {
  const std::size_t alignment = settings().alignment;
  Allocation made;
  {
    std::lock_guard lock(mutex_);
    // The end touches the unreadable page as closely as the alignment of the start allows; at
    // least one canary lies before the start.
    const std::size_t body = round_up(bytes, alignment);
    const std::size_t span = round_up(body + alignment, page());
    made.id = next_id_++;
    made.span_begin = place(span);
    made.span_end = made.span_begin + span;
    made.begin = made.span_end - body;
    made.bytes = bytes;
    made.flags = flags;
    made.managed = managed;
    allocations_[made.span_begin] = made;
    live_bytes_ += bytes;
  }
  const std::size_t span = made.span_end - made.span_begin;
  if (host_visible_ && mprotect(host_view(made.span_begin), span, PROT_READ | PROT_WRITE) != 0)
    throw std::bad_alloc();
  write_canary(host_view(made.span_begin), host_view(made.begin));
  poison(host_view(made.begin), bytes, kFresh);
  write_canary(host_view(made.begin + bytes), host_view(made.span_end));
  if (on_change) on_change(made.span_begin, span, true);
  std::lock_guard lock(mutex_);
  allocations_[made.span_begin].guarded = true;
  return made;
}

bool Arena::release(std::uintptr_t begin) {
  std::unique_lock lock(mutex_);
  auto found = allocations_.upper_bound(begin);
  if (found == allocations_.begin()) return false;
  --found;
  Allocation& allocation = found->second;
  if (allocation.freed || allocation.begin != begin) return false;
  allocation.freed = true;
  live_bytes_ -= allocation.bytes;
  const std::uintptr_t at = allocation.span_begin;
  const std::size_t span = allocation.span_end - at;
  lock.unlock();
  if (on_change) on_change(at, span, false);
  if (host_visible_) mprotect(host_view(at), span, PROT_NONE);
  fallocate(descriptor_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(at - base_),
            static_cast<off_t>(span));
  return true;
}

std::optional<Allocation> Arena::find(std::uintptr_t address) const {
  std::lock_guard lock(mutex_);
  auto found = allocations_.upper_bound(address);
  if (found == allocations_.begin()) return {};
  const Allocation& allocation = std::prev(found)->second;
  if (allocation.freed || address < allocation.begin ||
      address > allocation.begin + allocation.bytes)
    return {};
  return allocation;
}

std::optional<Allocation> Arena::find_freed(std::uintptr_t begin) const {
  std::lock_guard lock(mutex_);
  auto found = allocations_.upper_bound(begin);
  if (found == allocations_.begin()) return {};
  const Allocation& allocation = std::prev(found)->second;
  if (!allocation.freed || allocation.begin != begin) return {};
  return allocation;
}

std::string Arena::describe(std::uintptr_t address) const {
  std::lock_guard lock(mutex_);
  auto after = allocations_.upper_bound(address);
  const Allocation* near = nullptr;
  if (after != allocations_.begin()) near = &std::prev(after)->second;
  // In the gap between two allocations the nearer edge names the one that was meant.
  if (after != allocations_.end() &&
      (!near ||
       after->second.begin - address < address - std::min(address, near->begin + near->bytes)))
    near = &after->second;
  char text[200];
  if (!near) {
    std::snprintf(text, sizeof text, "in %s, where nothing was ever allocated", name_.c_str());
    return text;
  }
  char where[80];
  if (address < near->begin)
    std::snprintf(where, sizeof where, "%zu bytes before",
                  static_cast<std::size_t>(near->begin - address));
  else if (address >= near->begin + near->bytes)
    std::snprintf(where, sizeof where, "%zu bytes past the end of",
                  static_cast<std::size_t>(address - near->begin - near->bytes));
  else
    std::snprintf(where, sizeof where, "at byte %zu of",
                  static_cast<std::size_t>(address - near->begin));
  std::snprintf(text, sizeof text, "%s %sallocation %llu of %s (%zu bytes at 0x%llx)", where,
                near->freed ? "the freed " : "", static_cast<unsigned long long>(near->id),
                name_.c_str(), near->bytes, static_cast<unsigned long long>(near->begin));
  return text;
}

std::string Arena::damage(const Allocation& allocation) {
  std::unique_lock lock(mutex_);
  const auto found = allocations_.find(allocation.span_begin);
  if (found == allocations_.end() || found->second.id != allocation.id || found->second.freed ||
      !found->second.guarded)
    return {};
  const std::uintptr_t end = allocation.begin + allocation.bytes;
  const char* at = damaged_canary(host_view(allocation.span_begin), host_view(allocation.begin));
  if (!at) at = damaged_canary(host_view(end), host_view(allocation.span_end));
  if (!at) return {};
  const std::uintptr_t address = base_ + static_cast<std::size_t>(at - view_);
  write_canary(host_view(allocation.span_begin), host_view(allocation.begin));
  write_canary(host_view(end), host_view(allocation.span_end));
  lock.unlock();
  return describe(address);
}

std::vector<Allocation> Arena::live() const {
  std::lock_guard lock(mutex_);
  std::vector<Allocation> found;
  for (const auto& [at, allocation] : allocations_)
    if (!allocation.freed) found.push_back(allocation);
  return found;
}

std::size_t Arena::live_bytes() const {
  std::lock_guard lock(mutex_);
  return live_bytes_;
}

}  // namespace hipsim
