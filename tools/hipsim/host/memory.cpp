// Allocation: device memory, pinned host memory, stream-ordered pools; and what pointers are.
#include <cstring>
#include <map>

#include "capture.h"
#include "places.h"
#include "stream.h"

namespace hipsim {

namespace {
std::mutex registered_mutex;
std::map<std::uintptr_t, std::pair<std::size_t, unsigned>> registered_ranges;  // bytes, flags

void* allocate_device(Device& device, std::size_t bytes) {
  if (const int code = settings().fail_malloc.next()) throw Error{static_cast<hipError_t>(code)};
  if (bytes == 0) return nullptr;
  if (bytes > settings().memory || device.memory->live_bytes() > settings().memory - bytes)
    throw Error{hipErrorOutOfMemory};
  device.start();
  return reinterpret_cast<void*>(device.memory->allocate(bytes, 0, false).begin);
}

void* allocate_pinned(Runtime& runtime, std::size_t bytes, unsigned flags, bool managed) {
  if (const int code = settings().fail_malloc.next()) throw Error{static_cast<hipError_t>(code)};
  if (bytes == 0) return nullptr;
  return reinterpret_cast<void*>(runtime.pinned->allocate(bytes, flags, managed).begin);
}

// Free after checking the canaries. Throws for what is not the start of a live allocation.
void release(Arena& arena, const void* pointer, Device& device) {
  const std::uintptr_t address = address_of(pointer);
  const auto found = arena.find(address);
  if (!found || found->begin != address) {
    const bool twice = arena.find_freed(address).has_value();
    report("%s of %p: %s", twice ? "double free" : "invalid free", pointer,
           arena.describe(address).c_str());
    throw Error{hipErrorInvalidValue};
  }
  const std::string damage = arena.damage(*found);
  arena.release(address);
  if (damage.empty()) return;
  report("memory was written outside of an allocation, found when it was freed: %s",
         damage.c_str());
  device.lose(hipErrorIllegalAddress);
  throw Error{hipErrorIllegalAddress};
}

hipError_t free_device(const char* call, void* pointer) {
  return api(call, kDevice | kNotCaptured, [&](Runtime& runtime) {
    if (!pointer) return hipSuccess;
    Device* device = runtime.owner(pointer);
    if (device) {
      wait_for_device(*device);
      if (const hipError_t lost = device->lost) return lost;
      release(*device->memory, pointer, *device);
      return hipSuccess;
    }
    if (runtime.pinned->owns(address_of(pointer))) {
      wait_for_device(runtime.current());
      release(*runtime.pinned, pointer, runtime.current());
      return hipSuccess;
    }
    report("invalid free of %p: no memory of the device", pointer);
    return hipErrorInvalidValue;
  });
}

hipError_t allocate_host(const char* call, void** pointer, std::size_t bytes, unsigned flags) {
  return api(call, kDevice | kNotCaptured, [&](Runtime& runtime) {
    require(pointer);
    *pointer = nullptr;
    *pointer = allocate_pinned(runtime, bytes, flags, false);
    return hipSuccess;
  });
}

}  // namespace

std::optional<std::pair<std::uintptr_t, std::size_t>> registered(std::uintptr_t address) {
  std::lock_guard lock(registered_mutex);
  auto found = registered_ranges.upper_bound(address);
  if (found == registered_ranges.begin()) return {};
  --found;
  if (address >= found->first + found->second.first) return {};
  return std::pair{found->first, found->second.first};
}

Place place_of(const void* pointer, std::size_t bytes, const char* what) {
  Runtime& runtime = Runtime::instance();
  const std::uintptr_t address = address_of(pointer);
  Device* device = runtime.owner(pointer);
  const bool pinned = runtime.pinned->owns(address);
  if (!device && !pinned) {
    const auto range = registered(address);
    const bool whole = range && address + bytes <= range->first + range->second;
    return {whole ? Kind::pinned : Kind::pageable, nullptr,
            const_cast<char*>(static_cast<const char*>(pointer))};
  }
  Arena& arena = device ? *device->memory : *runtime.pinned;
  const auto found = arena.find(address);
  if (!found || address + bytes > found->begin + found->bytes) {
    report("%s of %zu bytes at %p: %s", what, bytes, pointer,
           found ? "goes past the end of its allocation" : arena.describe(address).c_str());
    throw Error{hipErrorInvalidValue};
  }
  return {device ? Kind::device : Kind::pinned, device, arena.host_view(address)};
}

}  // namespace hipsim

using namespace hipsim;

HIPSIM_API hipError_t hipMalloc(void** pointer, std::size_t bytes) {
  return api("hipMalloc", kDevice | kNotCaptured, [&](Runtime& runtime) {
    require(pointer);
    *pointer = nullptr;
    *pointer = allocate_device(runtime.current(), bytes);
    return hipSuccess;
  });
}

HIPSIM_API hipError_t hipExtMallocWithFlags(void** pointer, std::size_t bytes, unsigned) {
  return hipMalloc(pointer, bytes);
}

HIPSIM_API hipError_t hipFree(void* pointer) { return free_device("hipFree", pointer); }

HIPSIM_API hipError_t hipMallocAsync(void** pointer, std::size_t bytes, hipStream_t handle) {
  return api("hipMallocAsync", kDevice, [&](Runtime&) {
    require(pointer);
    *pointer = nullptr;
    const auto stream = stream_of(handle);
    refuse_captured(*stream, "hipMallocAsync");
    *pointer = allocate_device(*stream->device, bytes);
    return hipSuccess;
  });
}

HIPSIM_API hipError_t hipFreeAsync(void* pointer, hipStream_t handle) {
  return api("hipFreeAsync", kDevice, [&](Runtime& runtime) {
    if (!pointer) return hipSuccess;
    const auto stream = stream_of(handle);
    refuse_captured(*stream, "hipFreeAsync");
    Device* device = runtime.owner(pointer);
    require(device && device->memory->find(address_of(pointer)));
    enqueue(*stream, {hipGraphNodeTypeEmpty, [device, pointer](Stream&) {
                        release(*device->memory, pointer, *device);
                        return hipSuccess;
                      }});
    return hipSuccess;
  });
}

HIPSIM_API hipError_t hipHostMalloc(void** pointer, std::size_t bytes, unsigned flags) {
  return allocate_host("hipHostMalloc", pointer, bytes, flags);
}
HIPSIM_API hipError_t hipHostAlloc(void** pointer, std::size_t bytes, unsigned flags) {
  return allocate_host("hipHostAlloc", pointer, bytes, flags);
}
HIPSIM_API hipError_t hipMallocHost(void** pointer, std::size_t bytes) {
  return allocate_host("hipMallocHost", pointer, bytes, 0);
}

HIPSIM_API hipError_t hipMallocManaged(void** pointer, std::size_t bytes, unsigned flags) {
  return api("hipMallocManaged", kDevice | kNotCaptured, [&](Runtime& runtime) {
    require(pointer && bytes);
    *pointer = allocate_pinned(runtime, bytes, flags, true);
    return hipSuccess;
  });
}

HIPSIM_API hipError_t hipHostFree(void* pointer) { return free_device("hipHostFree", pointer); }
HIPSIM_API hipError_t hipFreeHost(void* pointer) { return free_device("hipFreeHost", pointer); }

HIPSIM_API hipError_t hipHostRegister(void* pointer, std::size_t bytes, unsigned flags) {
  return api("hipHostRegister", kDevice | kNotCaptured, [&](Runtime& runtime) {
    require(pointer && bytes);
    const std::uintptr_t address = address_of(pointer);
    require(!runtime.owner(pointer));
    require(!runtime.pinned->owns(address), hipErrorHostMemoryAlreadyRegistered);
    require(!registered(address) && !registered(address + bytes - 1),
            hipErrorHostMemoryAlreadyRegistered);
    std::lock_guard lock(registered_mutex);
    registered_ranges[address] = {bytes, flags};
    return hipSuccess;
  });
}

HIPSIM_API hipError_t hipHostUnregister(void* pointer) {
  return api("hipHostUnregister", kDevice | kNotCaptured, [&](Runtime& runtime) {
    wait_for_device(runtime.current());
    std::lock_guard lock(registered_mutex);
    require(registered_ranges.erase(address_of(pointer)) == 1, hipErrorHostMemoryNotRegistered);
    return hipSuccess;
  });
}

HIPSIM_API hipError_t hipHostGetDevicePointer(void** device_pointer, void* pointer,
                                              unsigned flags) {
  return api("hipHostGetDevicePointer", kDevice, [&](Runtime& runtime) {
    require(device_pointer && flags == 0);
    // Registered memory would be the other process's own: kernels cannot reach it here.
    require(runtime.pinned->find(address_of(pointer)).has_value());
    *device_pointer = pointer;
    return hipSuccess;
  });
}

HIPSIM_API hipError_t hipHostGetFlags(unsigned* flags, void* pointer) {
  return api("hipHostGetFlags", kDevice, [&](Runtime& runtime) {
    require(flags);
    const auto found = runtime.pinned->find(address_of(pointer));
    require(found.has_value());
    *flags = found->flags;
    return hipSuccess;
  });
}

HIPSIM_API hipError_t hipMemGetInfo(std::size_t* free, std::size_t* total) {
  return api("hipMemGetInfo", kDevice, [&](Runtime& runtime) {
    if (total) *total = settings().memory;
    if (free) *free = settings().memory - runtime.current().memory->live_bytes();
    return hipSuccess;
  });
}

HIPSIM_API hipError_t hipMemGetAddressRange(void** base, std::size_t* bytes, void* pointer) {
  return api("hipMemGetAddressRange", kDevice, [&](Runtime& runtime) {
    Device* device = runtime.owner(pointer);
    require(device, hipErrorInvalidValue);
    const auto found = device->memory->find(address_of(pointer));
    require(found.has_value(), hipErrorInvalidValue);
    if (base) *base = reinterpret_cast<void*>(found->begin);
    if (bytes) *bytes = found->bytes;
    return hipSuccess;
  });
}

HIPSIM_API hipError_t hipMemPtrGetInfo(void* pointer, std::size_t* bytes) {
  return hipMemGetAddressRange(nullptr, bytes, pointer);
}

HIPSIM_API hipError_t hipPointerGetAttributes(hipPointerAttribute_t* attributes,
                                              const void* pointer) {
  return api("hipPointerGetAttributes", kDevice, [&](Runtime& runtime) {
    require(attributes && pointer);
    *attributes = {};
    const std::uintptr_t address = address_of(pointer);
    if (Device* device = runtime.owner(pointer)) {
      require(device->memory->find(address).has_value());
      attributes->type = hipMemoryTypeDevice;
      attributes->device = device->id;
      attributes->devicePointer = const_cast<void*>(pointer);
      return hipSuccess;
    }
    attributes->device = current_device;
    attributes->hostPointer = const_cast<void*>(pointer);
    if (runtime.pinned->owns(address)) {
      const auto found = runtime.pinned->find(address);
      require(found.has_value());
      attributes->type = found->managed ? hipMemoryTypeManaged : hipMemoryTypeHost;
      attributes->isManaged = found->managed;
      attributes->devicePointer = const_cast<void*>(pointer);
      attributes->allocationFlags = found->flags;
      return hipSuccess;
    }
    attributes->type = registered(address) ? hipMemoryTypeHost : hipMemoryTypeUnregistered;
    if (attributes->type == hipMemoryTypeUnregistered)
      attributes->device = -2;  // hipInvalidDeviceId
    return hipSuccess;
  });
}
