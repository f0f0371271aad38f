#include "library.h"

#include <dlfcn.h>

#include <algorithm>
#include <climits>
#include <filesystem>
#include <mutex>
#include <set>

namespace hipsim {

namespace {
constexpr std::int64_t kScribbled = 1024;  // words at each end of a workspace

std::mutex mutex;
std::set<const LibraryHandle*> handles;
}  // namespace

hipError_t admit(LibraryHandle& handle) {
  hipDeviceProp_tR0600 properties;
  hipError_t error = hipGetDevice(&handle.device);
  if (error == hipSuccess) error = hipGetDevicePropertiesR0600(&properties, handle.device);
  if (error != hipSuccess) return error;
  handle.arch = properties.gcnArchName;
  const std::lock_guard lock(mutex);
  handles.insert(&handle);
  return hipSuccess;
}

void dismiss(LibraryHandle& handle) {
  if (handle.module) hipModuleUnload(handle.module);
  const std::lock_guard lock(mutex);
  handles.erase(&handle);
}

InUse::InUse(LibraryHandle* handle) {
  const std::lock_guard lock(mutex);
  unknown = !handles.count(handle);
  if (unknown)
    refusal = "no handle, or one that was destroyed";
  else if (handle->busy.exchange(true))
    refusal = "another thread is using this handle";
  else
    handle_ = handle;
}

InUse::~InUse() {
  const std::lock_guard lock(mutex);
  if (handles.count(handle_)) handle_->busy = false;
}

std::string folder_of(void (*function)()) {
  Dl_info info;
  dladdr(reinterpret_cast<void*>(function), &info);
  return std::filesystem::canonical(info.dli_fname).parent_path();
}

hipError_t queue(LibraryHandle& handle, const char* name, std::int64_t threads, void** parameters) {
  hipFunction_t& function = handle.functions[name];
  if (!function)
    if (const hipError_t error = hipModuleGetFunction(&function, handle.module, name)) return error;
  const std::int64_t blocks = (threads + kThreads - 1) / kThreads;
  if (blocks * kThreads > UINT_MAX) return hipErrorInvalidConfiguration;
  return hipModuleLaunchKernel(function, static_cast<unsigned>(blocks), 1, 1, kThreads, 1, 1, 0,
                               handle.stream, parameters, nullptr);
}

hipError_t scribble(LibraryHandle& handle, void* workspace, std::size_t bytes) {
  const auto words = static_cast<std::int64_t>(bytes / 4);
  const std::int64_t threads = std::min(kScribbled, (words + 1) / 2);
  return threads ? launch(handle, "scribble", threads, workspace, words, threads) : hipSuccess;
}

}  // namespace hipsim
