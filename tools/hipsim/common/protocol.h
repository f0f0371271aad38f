// The messages between a process that uses the simulated device and the device process, over
// SOCK_SEQPACKET sockets: one control connection for modules and memory, one per stream for
// launches. A request is answered by one Reply; a module's description by as many as it needs.
#pragma once
#include <cstddef>
#include <cstdint>

namespace hipsim {

constexpr std::size_t kMaxParameterBytes = 4096;
constexpr std::uint64_t kMaxSharedBytes = 64 * 1024;  // of a block, static and dynamic together
constexpr std::size_t kPacketBytes = 32768;
constexpr int kControlDescriptor = 3;  // in the device process

enum class Request : std::uint32_t { attach, map, protect, load, unload, launch };

struct Dim {
  std::uint32_t x, y, z;
};

struct MapRequest {  // with the memory's file descriptor
  Request request = Request::map;
  std::uint32_t reserved = 0;
  std::uint64_t base, bytes;
};

struct ProtectRequest {
  Request request = Request::protect;
  std::uint32_t accessible;
  std::uint64_t base, bytes;
};

struct LoadRequest {  // with the object's file descriptor
  Request request = Request::load;
};

struct UnloadRequest {
  Request request = Request::unload;
  std::uint32_t reserved = 0;
  std::uint64_t module;
};

struct AttachRequest {  // with the stream's end of a new connection
  Request request = Request::attach;
};

struct LaunchRequest {
  Request request = Request::launch;
  std::uint32_t parameter_bytes;
  std::uint64_t kernel;
  Dim grid, block;
  std::uint32_t shared_bytes;
  std::uint32_t number;  // of the launch in its process: turns the order of threads around
  char parameters[kMaxParameterBytes];
};

enum class Outcome : std::int32_t {
  ok,
  failed,           // the request could not be done; text says why
  illegal_address,  // a thread touched memory that it may not
  divergence,       // a barrier or shuffle that not every thread reached
  trap,             // abort, a failed assert, a division by zero, an illegal instruction
  shared_overflow,  // a write behind dynamic shared memory
};

struct Reply {
  Outcome outcome = Outcome::ok;
  std::uint32_t more = 0;  // bytes of the description that follow in further packets
  std::uint64_t address = 0;
  Dim block{}, thread{};
  char text[256] = {};
};

// A module's description: a count of kernels, then for each KernelRecord, its parameters, its name.
struct ModuleRecord {
  std::uint64_t module;
  std::uint32_t kernel_count;
  std::uint32_t reserved;
};
struct KernelRecord {
  std::uint64_t kernel;
  std::uint32_t parameter_count, name_bytes;
  std::uint32_t shared_bytes, reserved;  // of its __shared__ variables
};
struct ParameterRecord {
  std::uint32_t offset, size;
};

}  // namespace hipsim
