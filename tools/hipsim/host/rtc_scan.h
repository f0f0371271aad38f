// Finds the kernels of a preprocessed source and registers each behind its definition.
#pragma once
#include <string>

namespace hipsim {

// The source with every `__hipsim_global__` removed and a registration behind each kernel's
// body. Kernels made by macros are ordinary text by now; templates are left alone.
std::string register_kernels(std::string source);

}  // namespace hipsim
