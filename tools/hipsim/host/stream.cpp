#include "stream.h"

#include <unistd.h>

#include <map>

#include "capture.h"

namespace hipsim {

namespace {
std::mutex registry_mutex;
std::map<hipStream_t, std::shared_ptr<Stream>> registry;  // guarded by registry_mutex
std::uint64_t next_id = 1;

// hipStreamLegacy and hipStreamPerThread.
const auto kLegacy = reinterpret_cast<hipStream_t>(1);
const auto kPerThread = reinterpret_cast<hipStream_t>(2);

constexpr int kLeastPriority = 1, kGreatestPriority = -1;

hipError_t create(const char* call, hipStream_t* handle, unsigned flags, int priority) {
  return api(call, kDevice, [&](Runtime& runtime) {
    require(handle && (flags & ~hipStreamNonBlocking) == 0);
    auto stream = std::make_shared<Stream>();
    stream->device = &runtime.current();
    stream->flags = flags;
    stream->priority = std::min(std::max(priority, kGreatestPriority), kLeastPriority);
    std::lock_guard lock(registry_mutex);
    stream->id = next_id++;
    registry[stream.get()] = stream;
    *handle = stream.get();
    return hipSuccess;
  });
}
}  // namespace

std::shared_ptr<Stream> stream_of(hipStream_t handle) {
  if (!handle || handle == kLegacy || handle == kPerThread)
    return Runtime::instance().current().null_stream;
  std::lock_guard lock(registry_mutex);
  const auto found = registry.find(handle);
  if (found == registry.end()) {
    report("a stream handle that was never created or is destroyed: %p",
           static_cast<void*>(handle));
    throw Error{hipErrorInvalidHandle};
  }
  if (const hipError_t lost = found->second->device->lost) throw Error{lost};
  return found->second;
}

std::vector<std::shared_ptr<Stream>> streams_of(const Device& device) {
  std::lock_guard lock(registry_mutex);
  std::vector<std::shared_ptr<Stream>> found{device.null_stream};
  for (const auto& [handle, stream] : registry)
    if (stream->device == &device) found.push_back(stream);
  return found;
}

}  // namespace hipsim

using namespace hipsim;

HIPSIM_API hipError_t hipStreamCreate(hipStream_t* stream) {
  return create("hipStreamCreate", stream, hipStreamDefault, 0);
}

HIPSIM_API hipError_t hipStreamCreateWithFlags(hipStream_t* stream, unsigned flags) {
  return create("hipStreamCreateWithFlags", stream, flags, 0);
}

HIPSIM_API hipError_t hipStreamCreateWithPriority(hipStream_t* stream, unsigned flags,
                                                  int priority) {
  return create("hipStreamCreateWithPriority", stream, flags, priority);
}

HIPSIM_API hipError_t hipDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return api("hipDeviceGetStreamPriorityRange", kDevice, [&](Runtime&) {
    if (least) *least = kLeastPriority;
    if (greatest) *greatest = kGreatestPriority;
    return hipSuccess;
  });
}

HIPSIM_API hipError_t hipStreamDestroy(hipStream_t handle) {
  return api("hipStreamDestroy", kAlways, [&](Runtime& runtime) {
    require(!runtime.forked, hipErrorNotInitialized);
    std::shared_ptr<Stream> stream;
    {
      std::lock_guard lock(registry_mutex);
      const auto found = registry.find(handle);
      require(found != registry.end(), hipErrorInvalidHandle);
      stream = found->second;
    }
    leave_capture(*stream);
    wait_for_stream(stream);
    {
      std::lock_guard lock(scheduler_mutex());
      stream->closing = true;
    }
    wake_scheduler();
    if (stream->worker.joinable()) stream->worker.join();
    if (stream->connection >= 0) close(stream->connection);
    std::lock_guard lock(registry_mutex);
    registry.erase(handle);
    return hipSuccess;
  });
}

HIPSIM_API hipError_t hipStreamSynchronize(hipStream_t handle) {
  return api("hipStreamSynchronize", kDevice, [&](Runtime&) {
    const auto stream = stream_of(handle);
    refuse_captured(*stream, "hipStreamSynchronize");
    wait_for_stream(stream);
    check_guards(*stream->device);
    return stream->device->lost.load();
  });
}

HIPSIM_API hipError_t hipStreamQuery(hipStream_t handle) {
  return api("hipStreamQuery", kDevice, [&](Runtime&) {
    const auto stream = stream_of(handle);
    refuse_captured(*stream, "hipStreamQuery");
    poll_once();
    std::lock_guard lock(scheduler_mutex());
    if (stream->done < stream->submitted) return hipErrorNotReady;
    return stream->device->lost.load();
  });
}

HIPSIM_API hipError_t hipStreamGetFlags(hipStream_t handle, unsigned* flags) {
  return api("hipStreamGetFlags", kDevice, [&](Runtime&) {
    require(flags);
    *flags = stream_of(handle)->flags;
    return hipSuccess;
  });
}

HIPSIM_API hipError_t hipStreamGetPriority(hipStream_t handle, int* priority) {
  return api("hipStreamGetPriority", kDevice, [&](Runtime&) {
    require(priority);
    *priority = stream_of(handle)->priority;
    return hipSuccess;
  });
}

HIPSIM_API hipError_t hipStreamGetDevice(hipStream_t handle, hipDevice_t* device) {
  return api("hipStreamGetDevice", kDevice, [&](Runtime&) {
    require(device);
    *device = stream_of(handle)->device->id;
    return hipSuccess;
  });
}

HIPSIM_API hipError_t hipStreamGetId(hipStream_t handle, unsigned long long* id) {
  return api("hipStreamGetId", kDevice, [&](Runtime&) {
    require(id);
    *id = stream_of(handle)->id;
    return hipSuccess;
  });
}

HIPSIM_API hipError_t hipLaunchHostFunc(hipStream_t handle, hipHostFn_t function, void* user_data) {
  return api("hipLaunchHostFunc", kDevice, [&](Runtime&) {
    require(function);
    enqueue(*stream_of(handle), {hipGraphNodeTypeHost, [=](Stream&) {
                                   function(user_data);
                                   return hipSuccess;
                                 }});
    return hipSuccess;
  });
}
