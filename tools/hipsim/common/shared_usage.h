// Which __shared__ variables each function of a compiled module uses, directly or through the
// functions it calls, told from the relocations that the linker was asked to keep.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace hipsim {

struct SharedVariable {
  std::string name;
  std::uint64_t offset;  // in the module's thread-local segment
  std::uint64_t bytes;
};

// Of every function that uses any, by symbol; empty for what is no such object.
std::map<std::string, std::vector<SharedVariable>> shared_usage(const std::string& object);

}  // namespace hipsim
