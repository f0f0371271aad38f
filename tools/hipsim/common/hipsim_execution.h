// What a compiled kernel module and the device process agree on: the running thread's state,
// the calls a kernel makes while it runs, and how a module describes its kernels.
#pragma once
#include <cstdint>

struct uint3 {
  unsigned x, y, z;
};

// The running thread as the device process keeps it, one per operating-system thread.
struct hipsim_thread {
  uint3 thread;
  uint3 block;
  uint3 block_dim;
  uint3 grid_dim;
  char* dynamic_shared;
  unsigned index;      // of the thread in its block
  unsigned remaining;  // threads of this warp that have not started
  unsigned step;       // 1, or -1 when the warp is run from its last lane to its first
};

extern "C" {
extern __thread hipsim_thread hipsim_self __attribute__((tls_model("initial-exec")));
// Recompute threadIdx after its x has left the block on either side.
void hipsim_wrap(void);
void hipsim_barrier(int line, const char* file);
// Give `value` to the warp and take the value of lane `source`.
std::uint64_t hipsim_exchange(std::uint64_t value, int source, int line, const char* file);
// The lanes that voted with 1, and in *active those that voted at all.
std::uint64_t hipsim_ballot(int value, std::uint64_t* active, int line, const char* file);
void hipsim_trap(const char* what);
}

// Go on with the next thread of the warp; false when none is left for the running fiber.
inline bool hipsim_next() {
  hipsim_thread& self = hipsim_self;
  if (self.remaining == 0) return false;
  --self.remaining;
  self.index += self.step;
  self.thread.x += self.step;
  if (self.thread.x >= self.block_dim.x) hipsim_wrap();
  return true;
}

struct hipsim_parameter {
  std::uint32_t offset, size;
};

// A module's kernels are a linked list that its static constructors make.
struct hipsim_kernel {
  const hipsim_kernel* next;
  const char* name;
  void (*function)();                   // the kernel itself: its symbol is its name
  void (*run)(const char* parameters);  // every not yet started thread of the warp
  const hipsim_parameter* parameters;
  std::uint32_t parameter_count;
  bool by_expression;  // `name` is a name expression of hipRTC
};

// In section .hipsim of a module: which object this is. hipModuleLoadData reads it from the
// file before anything of it runs.
struct hipsim_mark {
  char magic[16];
  std::uint32_t version, warp, isa, reserved;
};
constexpr char kHipsimMagic[] = "HIPSIM-MODULE-1";
