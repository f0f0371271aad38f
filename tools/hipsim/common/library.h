// What the libraries above HIP share: handles that one thread at a time may be in, each with its
// stream and with kernels that were compiled ahead.
#pragma once
#include <atomic>
#include <map>
#include <string>

#include "hip_calls.h"

namespace hipsim {

struct LibraryHandle {
  int device = 0;
  std::string arch;
  hipStream_t stream = nullptr;
  hipModule_t module = nullptr;
  std::map<std::string, hipFunction_t> functions;
  std::atomic<bool> busy{false};
};

// Of the calling thread's device, and known from now on.
hipError_t admit(LibraryHandle& handle);
// Unload the kernels and know the handle no longer.
void dismiss(LibraryHandle& handle);

// Keeps a handle for one call: none that is unknown, and none that another thread is in.
class InUse {
 public:
  explicit InUse(LibraryHandle* handle);
  ~InUse();
  InUse(const InUse&) = delete;
  InUse& operator=(const InUse&) = delete;
  bool unknown = false;
  const char* refusal = nullptr;  // why it may not be used

 private:
  LibraryHandle* handle_ = nullptr;
};

// Where the shared library lies that has this function, links followed.
std::string folder_of(void (*function)());

constexpr unsigned kThreads = 256;  // of a block

// Queue a kernel of the handle's module for at least so many threads.
hipError_t queue(LibraryHandle& handle, const char* name, std::int64_t threads, void** parameters);

template <class... Values>
hipError_t launch(LibraryHandle& handle, const char* name, std::int64_t threads, Values... values) {
  void* parameters[] = {&values...};
  return queue(handle, name, threads, parameters);
}

// Queue the overwriting of words at both ends of a workspace: nothing in it outlives the call that
// it was given for.
hipError_t scribble(LibraryHandle& handle, void* workspace, std::size_t bytes);

}  // namespace hipsim
