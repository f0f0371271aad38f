// Memory pools: each device has its default one, and further ones only count.
#include <map>

#include "capture.h"
#include "stream.h"

namespace hipsim {

struct MemPool {
  Device* device = nullptr;
  std::uint64_t release_threshold = 0;
};

namespace {
std::mutex mutex;
std::map<hipMemPool_t, std::unique_ptr<MemPool>> pools;
std::map<const Device*, hipMemPool_t> defaults, chosen;

Device& device_of(Runtime& runtime, int id) {
  require(id >= 0 && id < static_cast<int>(runtime.devices.size()), hipErrorInvalidDevice);
  return *runtime.devices[static_cast<std::size_t>(id)];
}

hipMemPool_t add(Device& device) {
  auto made = std::make_unique<MemPool>();
  made->device = &device;
  const hipMemPool_t handle = made.get();
  pools[handle] = std::move(made);
  return handle;
}

hipMemPool_t default_of(Device& device) {
  hipMemPool_t& handle = defaults[&device];
  if (!handle) handle = add(device);
  return handle;
}
}  // namespace

}  // namespace hipsim

using namespace hipsim;

HIPSIM_API hipError_t hipDeviceGetDefaultMemPool(hipMemPool_t* pool, int device) {
  return api("hipDeviceGetDefaultMemPool", kDevice, [&](Runtime& runtime) {
    require(pool);
    std::lock_guard lock(mutex);
    *pool = default_of(device_of(runtime, device));
    return hipSuccess;
  });
}

HIPSIM_API hipError_t hipDeviceGetMemPool(hipMemPool_t* pool, int device) {
  return api("hipDeviceGetMemPool", kDevice, [&](Runtime& runtime) {
    require(pool);
    std::lock_guard lock(mutex);
    Device& found = device_of(runtime, device);
    *pool = chosen.count(&found) ? chosen[&found] : default_of(found);
    return hipSuccess;
  });
}

HIPSIM_API hipError_t hipDeviceSetMemPool(int device, hipMemPool_t pool) {
  return api("hipDeviceSetMemPool", kDevice, [&](Runtime& runtime) {
    std::lock_guard lock(mutex);
    Device& found = device_of(runtime, device);
    require(pools.count(pool) == 1 && pool->device == &found);
    chosen[&found] = pool;
    return hipSuccess;
  });
}

HIPSIM_API hipError_t hipMemPoolCreate(hipMemPool_t* pool, const hipMemPoolProps* properties) {
  return api("hipMemPoolCreate", kDevice, [&](Runtime& runtime) {
    require(pool && properties);
    std::lock_guard lock(mutex);
    *pool = add(runtime.current());
    return hipSuccess;
  });
}

HIPSIM_API hipError_t hipMemPoolDestroy(hipMemPool_t pool) {
  return api("hipMemPoolDestroy", kAlways, [&](Runtime&) {
    std::lock_guard lock(mutex);
    require(pools.count(pool) == 1);
    for (const auto& [device, handle] : defaults) require(handle != pool);
    std::erase_if(chosen, [pool](const auto& each) { return each.second == pool; });
    pools.erase(pool);
    return hipSuccess;
  });
}

HIPSIM_API hipError_t hipMemPoolTrimTo(hipMemPool_t pool, std::size_t) {
  return api("hipMemPoolTrimTo", kDevice, [&](Runtime&) {
    std::lock_guard lock(mutex);
    require(pools.count(pool) == 1);  // it never holds what is free
    return hipSuccess;
  });
}

HIPSIM_API hipError_t hipMemPoolGetAttribute(hipMemPool_t pool, hipMemPoolAttr attribute,
                                             void* value) {
  return api("hipMemPoolGetAttribute", kDevice, [&](Runtime&) {
    std::lock_guard lock(mutex);
    require(pools.count(pool) == 1 && value);
    switch (attribute) {
      case hipMemPoolReuseFollowEventDependencies:
      case hipMemPoolReuseAllowOpportunistic:
      case hipMemPoolReuseAllowInternalDependencies:
        *static_cast<int*>(value) = 0;
        return hipSuccess;
      case hipMemPoolAttrReleaseThreshold:
        *static_cast<std::uint64_t*>(value) = pool->release_threshold;
        return hipSuccess;
      case hipMemPoolAttrReservedMemCurrent:
      case hipMemPoolAttrUsedMemCurrent:
        *static_cast<std::uint64_t*>(value) = pool->device->memory->live_bytes();
        return hipSuccess;
      case hipMemPoolAttrReservedMemHigh:
      case hipMemPoolAttrUsedMemHigh: return hipErrorNotSupported;
    }
    return hipErrorInvalidValue;
  });
}

HIPSIM_API hipError_t hipMemPoolSetAttribute(hipMemPool_t pool, hipMemPoolAttr attribute,
                                             void* value) {
  return api("hipMemPoolSetAttribute", kDevice, [&](Runtime&) {
    std::lock_guard lock(mutex);
    require(pools.count(pool) == 1 && value);
    if (attribute == hipMemPoolAttrReleaseThreshold)
      pool->release_threshold = *static_cast<const std::uint64_t*>(value);
    return hipSuccess;
  });
}
