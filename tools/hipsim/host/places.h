// What kind of memory an address of the using process is, and where to reach its bytes.
#pragma once
#include <cstddef>
#include <optional>

#include "runtime.h"

namespace hipsim {

enum class Kind { pageable, pinned, device };

struct Place {
  Kind kind;
  Device* device = nullptr;  // of device memory
  char* bytes = nullptr;     // where the host side reads and writes them
};

// The place of `bytes` bytes at the address. Throws hipErrorInvalidValue, with a report that
// names `what`, when it is device or pinned memory that is not (any more) allocated there.
Place place_of(const void* address, std::size_t bytes, const char* what);

// Host memory that hipHostRegister has pinned, as (begin, bytes), when it holds the address.
std::optional<std::pair<std::uintptr_t, std::size_t>> registered(std::uintptr_t address);

}  // namespace hipsim
