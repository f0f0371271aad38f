// What memory holds that nobody has written, and what lies beside it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace hipsim {

// Both are NaN as float, half, bfloat16 and (in one byte of two) float8, and as an integer an
// index far outside of any tensor. kFresh is NaN as double too.
constexpr std::uint32_t kFresh = 0x7FFAFFFA;
constexpr std::uint32_t kCanary = 0x7FC0FFEE;

// Byte `address` of an endless run of the pattern: canaries may begin anywhere.
inline unsigned char pattern_byte(std::uint32_t pattern, std::uintptr_t address) {
  return static_cast<unsigned char>(pattern >> (address % 4 * 8));
}

inline void poison(void* memory, std::size_t bytes, std::uint32_t pattern) {
  auto* at = static_cast<unsigned char*>(memory);
  std::size_t i = 0;
  for (; i < bytes && reinterpret_cast<std::uintptr_t>(at + i) % 8; ++i)
    at[i] = pattern_byte(pattern, reinterpret_cast<std::uintptr_t>(at + i));
  const std::uint64_t wide = pattern | static_cast<std::uint64_t>(pattern) << 32;
  for (; i + 8 <= bytes; i += 8) std::memcpy(at + i, &wide, 8);
  for (; i < bytes; ++i) at[i] = pattern_byte(pattern, reinterpret_cast<std::uintptr_t>(at + i));
}

inline void write_canary(char* begin, const char* end) {
  poison(begin, static_cast<std::size_t>(end - begin), kCanary);
}

// The first byte of [begin, end) that is no longer canary, or null.
inline const char* damaged_canary(const char* begin, const char* end) {
  constexpr std::uint64_t wide = kCanary | std::uint64_t{kCanary} << 32;
  while (end - begin >= 8 && reinterpret_cast<std::uintptr_t>(begin) % 8 == 0 &&
         std::memcmp(begin, &wide, 8) == 0)
    begin += 8;
  for (const char* at = begin; at < end; ++at)
    if (static_cast<unsigned char>(*at) !=
        pattern_byte(kCanary, reinterpret_cast<std::uintptr_t>(at)))
      return at;
  return nullptr;
}

}  // namespace hipsim
