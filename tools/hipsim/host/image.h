// What a code object is, told from its bytes before anything of it is loaded.
#pragma once
#include <cstddef>
#include <string>

#include "../common/hipsim_api.h"

namespace hipsim {

// hipSuccess and the object's size, when it is a module that this simulator can run; else the
// error that HIP gives, with the reason.
hipError_t inspect_image(const void* image, std::size_t& bytes, std::string& reason);

}  // namespace hipsim
