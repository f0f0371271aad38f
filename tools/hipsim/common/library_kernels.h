// What the kernels of the libraries above HIP share: 16-bit floats as they are stored, and the
// overwriting of workspaces.
#pragma once
#include "hipsim_device.h"
#include "poison.h"

namespace hipsim {

// Looked up: without instructions for it a conversion takes longer than what is done with it.
struct Table {
  float values[65536];
  Table() {
    for (unsigned bits = 0; bits < 65536; ++bits)
      values[bits] = hipsim_half_to_float(static_cast<std::uint16_t>(bits));
  }
};
inline const Table halves;

struct Half {
  std::uint16_t bits;
  explicit operator float() const { return halves.values[bits]; }
  explicit Half(float value) : bits(hipsim_float_to_half(value)) {}
};

struct Brain {
  std::uint16_t bits;
  explicit operator float() const {
    return __builtin_bit_cast(float, static_cast<std::uint32_t>(bits) << 16);
  }
  explicit Brain(float value) {
    const auto wide = __builtin_bit_cast(std::uint32_t, value);
    bits = static_cast<std::uint16_t>(
        std::isnan(value) ? 0x7FC0 : (wide + 0x7FFF + (wide >> 16 & 1)) >> 16);
  }
};

inline std::int64_t thread_number() {
  return threadIdx.x + blockIdx.x * static_cast<std::int64_t>(blockDim.x);
}

// Called `scribble` by the libraries: so many words at each end of a workspace.
inline void scribble(std::uint32_t* workspace, std::int64_t words, std::int64_t ends) {
  const std::int64_t i = thread_number();
  if (i < ends) workspace[i] = workspace[words - 1 - i] = kFresh;
}

}  // namespace hipsim
