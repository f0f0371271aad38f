// Kernel modules in the device process: shared objects that hipRTC has made.
#pragma once
#include <cstdint>
#include <string>

#include "launch.h"

namespace hipsim {

// Load the object in the file descriptor, which the module then owns. Gives the description
// that common/protocol.h lays out; on failure it is empty and `error` says why.
std::string load_module(int descriptor, std::string& error);
void unload_module(std::uint64_t module);

}  // namespace hipsim
