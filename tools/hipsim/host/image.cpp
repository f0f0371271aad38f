#include "image.h"

#include <elf.h>

#include <algorithm>
#include <cstring>

#include "../common/hipsim_execution.h"
#include "../common/settings.h"

namespace hipsim {

namespace {
constexpr Elf64_Half kAmdGpu = 224;  // EM_AMDGPU

bool cpu_runs(std::uint32_t isa) {
#if defined(__x86_64__)
  return isa != 3 || (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                      __builtin_cpu_supports("f16c"));
#else
  return isa == 0;
#endif
}
}  // namespace

hipError_t inspect_image(const void* image, std::size_t& bytes, std::string& reason) {
  const char* at = static_cast<const char*>(image);
  if (std::memcmp(at, "CCOB", 4) == 0 || std::memcmp(at, "__CLANG_OFFLOAD_BUNDLE__", 24) == 0) {
    reason =
        "an offload bundle of AMD code objects; the simulator runs what its own hipRTC compiles";
    return hipErrorNoBinaryForGpu;
  }
  if (std::memcmp(at, ELFMAG, SELFMAG) != 0 || at[EI_CLASS] != ELFCLASS64) {
    reason = "no ELF object";
    return hipErrorInvalidImage;
  }
  Elf64_Ehdr header;
  std::memcpy(&header, at, sizeof header);
  if (header.e_machine == kAmdGpu) {
    reason = "an AMD code object; the simulator runs what its own hipRTC compiles";
    return hipErrorNoBinaryForGpu;
  }
  if (header.e_type != ET_DYN || header.e_shentsize != sizeof(Elf64_Shdr) || header.e_shnum == 0 ||
      header.e_shstrndx >= header.e_shnum) {
    reason = "an ELF object, but no shared one with sections";
    return hipErrorInvalidImage;
  }
  bytes = header.e_shoff + std::size_t{header.e_shnum} * sizeof(Elf64_Shdr);
  const auto section = [&](std::size_t i) {
    Elf64_Shdr found;
    std::memcpy(&found, at + header.e_shoff + i * sizeof found, sizeof found);
    return found;
  };
  const Elf64_Shdr names = section(header.e_shstrndx);
  hipsim_mark mark{};
  for (std::size_t i = 0; i < header.e_shnum; ++i) {
    const Elf64_Shdr each = section(i);
    if (each.sh_type != SHT_NOBITS)
      bytes = std::max<std::size_t>(bytes, each.sh_offset + each.sh_size);
    if (std::strcmp(at + names.sh_offset + each.sh_name, ".hipsim") == 0 &&
        each.sh_size >= sizeof mark)
      std::memcpy(&mark, at + each.sh_offset, sizeof mark);
  }
  if (std::memcmp(mark.magic, kHipsimMagic, sizeof kHipsimMagic) != 0) {
    reason = "a shared object, but no kernel module of the simulator's hipRTC";
    return hipErrorInvalidImage;
  }
  if (mark.version != 1 || static_cast<int>(mark.warp) != settings().warp) {
    reason = "compiled for hipsim" + std::to_string(mark.warp) + ", the device is hipsim" +
             std::to_string(settings().warp);
    return hipErrorNoBinaryForGpu;
  }
  if (!cpu_runs(mark.isa)) {
    reason =
        "compiled for a processor with AVX2, FMA and F16C, which this one lacks: compile it again "
        "here";
    return hipErrorNoBinaryForGpu;
  }
  return hipSuccess;
}

}  // namespace hipsim
