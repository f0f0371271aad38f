// A range of addresses that a device can use, made of one memory file. The using process sees
// a device's memory only through a second mapping, the host view; at the addresses themselves
// it finds nothing it may touch. Every allocation lies between canaries and unreadable pages,
// begins poisoned, and when freed becomes unreadable and is not used again for a long time.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace hipsim {

struct Allocation {
  std::uint64_t id = 0;
  std::uintptr_t begin = 0;                     // what the user holds
  std::size_t bytes = 0;                        // what the user asked for
  std::uintptr_t span_begin = 0, span_end = 0;  // the pages that hold it and its canaries
  unsigned flags = 0;
  bool managed = false;
  bool freed = false;
  bool guarded = false;  // its canaries are written
};

class Arena {
 public:
  // `host_visible`: the using process works on the same addresses (pinned memory).
  Arena(std::string name, std::uintptr_t preferred_base, bool host_visible);

  // Throws std::bad_alloc when the machine has no memory or addresses left.
  Allocation allocate(std::size_t bytes, unsigned flags, bool managed);
  // Make a live allocation unreadable and return its pages; false when `begin` begins none.
  bool release(std::uintptr_t begin);

  bool owns(std::uintptr_t address) const { return address >= base_ && address < base_ + bytes_; }
  // The live allocation that holds the address; its end counts for a range of no bytes.
  std::optional<Allocation> find(std::uintptr_t address) const;
  std::optional<Allocation> find_freed(std::uintptr_t begin) const;
  // Where an address lies, in words: "4 bytes past the end of allocation 3 (64 bytes at 0x...)".
  std::string describe(std::uintptr_t address) const;
  // What a write beside the allocation has damaged, in words, or nothing; nothing too when it has
  // been freed since. Repaired on return.
  std::string damage(const Allocation& allocation);
  std::vector<Allocation> live() const;
  std::size_t live_bytes() const;

  char* host_view(std::uintptr_t address) const { return view_ + (address - base_); }
  int descriptor() const { return descriptor_; }
  std::uintptr_t base() const { return base_; }
  std::size_t bytes() const { return bytes_; }

  // Told of each change of what a device may touch, before allocate and release return.
  std::function<void(std::uintptr_t begin, std::size_t bytes, bool accessible)> on_change;

 private:
  std::uintptr_t place(std::size_t bytes);

  std::string name_;
  bool host_visible_;
  int descriptor_ = -1;
  std::uintptr_t base_ = 0;
  std::size_t bytes_ = 0;
  char* view_ = nullptr;
  mutable std::mutex mutex_;
  std::uint64_t next_id_ = 1;
  std::size_t used_ = 0;  // addresses handed out so far
  std::size_t live_bytes_ = 0;
  std::map<std::uintptr_t, Allocation> allocations_;  // by span_begin, live and freed
};

}  // namespace hipsim
