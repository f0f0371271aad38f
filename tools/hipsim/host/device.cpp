// Devices: which there are, what they are like, which one a thread uses, peers.
#include <cstdio>
#include <cstring>

#include "capture.h"
#include "stream.h"

namespace hipsim {

namespace {

const Device& device_of(Runtime& runtime, int id) {
  require(id >= 0 && id < static_cast<int>(runtime.devices.size()), hipErrorInvalidDevice);
  return *runtime.devices[static_cast<std::size_t>(id)];
}

hipDeviceProp_tR0600 properties_of(const Device& device) {
  const Settings& set = settings();
  hipDeviceProp_tR0600 made{};
  std::snprintf(made.name, sizeof made.name, "HIP simulator (host, warp %d)", set.warp);
  std::snprintf(made.uuid.bytes, sizeof made.uuid.bytes, "hipsim-%d", device.id);
  std::snprintf(made.gcnArchName, sizeof made.gcnArchName, "hipsim%d", set.warp);
  made.totalGlobalMem = set.memory;
  made.sharedMemPerBlock = made.sharedMemPerBlockOptin = 64 * 1024;
  made.sharedMemPerMultiprocessor = made.maxSharedMemoryPerMultiProcessor = 64 * 1024;
  made.regsPerBlock = made.regsPerMultiprocessor = 65536;
  made.warpSize = set.warp;
  made.memPitch = 0x7fffffff;
  made.maxThreadsPerBlock = 1024;
  made.maxThreadsDim[0] = made.maxThreadsDim[1] = made.maxThreadsDim[2] = 1024;
  made.maxGridSize[0] = 0x7fffffff;
  made.maxGridSize[1] = made.maxGridSize[2] = 65536;
  made.clockRate = made.clockInstructionRate = 1'000'000;
  made.memoryClockRate = 1'000'000;
  made.memoryBusWidth = 64;
  made.totalConstMem = 0x7fffffff;
  made.major = 1;
  made.textureAlignment = made.texturePitchAlignment = made.surfaceAlignment = 256;
  made.multiProcessorCount = set.threads;
  made.maxThreadsPerMultiProcessor = 2048;
  made.maxBlocksPerMultiProcessor = 2;
  made.l2CacheSize = 1 << 20;
  made.canMapHostMemory = made.unifiedAddressing = made.managedMemory = 1;
  made.concurrentKernels = made.asyncEngineCount = made.streamPrioritiesSupported = 1;
  made.pciDomainID = 0;
  made.pciBusID = device.id + 1;
  made.hostRegisterSupported = made.memoryPoolsSupported = 1;
  made.arch = 0x0ffff;
  return made;
}

// The attributes that are asked for, by HIP's number of each.
bool attribute_of(const hipDeviceProp_tR0600& p, int attribute, int& value) {
  switch (attribute) {
    case 2: value = p.asyncEngineCount; return true;
    case 3: value = p.canMapHostMemory; return true;
    case 5: value = p.clockRate; return true;
    case 6: value = p.computeMode; return true;
    case 8: value = p.concurrentKernels; return true;
    case 9: value = p.concurrentManagedAccess; return true;
    case 10: value = p.cooperativeLaunch; return true;
    case 15: value = p.hostNativeAtomicSupported; return true;
    case 16: value = p.integrated; return true;
    case 19: value = p.l2CacheSize; return true;
    case 23: value = p.major; return true;
    case 24: value = p.managedMemory; return true;
    case 25: value = p.maxBlocksPerMultiProcessor; return true;
    case 26: value = p.maxThreadsDim[0]; return true;
    case 27: value = p.maxThreadsDim[1]; return true;
    case 28: value = p.maxThreadsDim[2]; return true;
    case 29: value = p.maxGridSize[0]; return true;
    case 30: value = p.maxGridSize[1]; return true;
    case 31: value = p.maxGridSize[2]; return true;
    case 56: value = p.maxThreadsPerBlock; return true;
    case 57: value = p.maxThreadsPerMultiProcessor; return true;
    case 59: value = p.memoryBusWidth; return true;
    case 60: value = p.memoryClockRate; return true;
    case 61: value = p.minor; return true;
    case 63: value = p.multiProcessorCount; return true;
    case 65: value = p.pageableMemoryAccess; return true;
    case 67: value = p.pciBusID; return true;
    case 68: value = p.pciDeviceID; return true;
    case 69: value = p.pciDomainID; return true;
    case 71: value = p.regsPerBlock; return true;
    case 72: value = p.regsPerMultiprocessor; return true;
    case 74: value = static_cast<int>(p.sharedMemPerBlock); return true;
    case 75: value = static_cast<int>(p.sharedMemPerBlockOptin); return true;
    case 76: value = static_cast<int>(p.sharedMemPerMultiprocessor); return true;
    case 78: value = p.streamPrioritiesSupported; return true;
    case 85: value = p.unifiedAddressing; return true;
    case 87: value = p.warpSize; return true;
    case 88: value = p.memoryPoolsSupported; return true;
    case 89: value = 0; return true;  // virtual memory management
    case 90: value = p.hostRegisterSupported; return true;
    case 10002: value = static_cast<int>(p.maxSharedMemoryPerMultiProcessor); return true;
    case 10011: value = p.isLargeBar; return true;
    case 10015: value = p.multiProcessorCount; return true;
    case 10017: value = p.clockRate; return true;
    default: return false;
  }
}

hipError_t set_peer(const char* call, int peer, bool enable) {
  return api(call, kDevice, [&](Runtime& runtime) {
    Device& device = runtime.current();
    const Device& other = device_of(runtime, peer);
    require(other.id != device.id, hipErrorInvalidDevice);
    const auto number = static_cast<std::size_t>(peer);
    if (device.peers[number] == enable)
      return enable ? hipErrorPeerAccessAlreadyEnabled : hipErrorPeerAccessNotEnabled;
    device.peers[number] = enable;
    device.start();
    if (enable)
      device.engine.map(*other.memory);
    else
      device.engine.hide(*other.memory);
    return hipSuccess;
  });
}
}  // namespace

}  // namespace hipsim

using namespace hipsim;

HIPSIM_API hipError_t hipInit(unsigned flags) {
  return api("hipInit", kAlways, [&](Runtime& runtime) {
    require(flags == 0);
    return runtime.devices.empty() ? hipErrorNoDevice : hipSuccess;
  });
}

HIPSIM_API hipError_t hipDriverGetVersion(int* version) {
  return api("hipDriverGetVersion", kAlways, [&](Runtime&) {
    require(version);
    *version = settings().hip_version;
    return hipSuccess;
  });
}

HIPSIM_API hipError_t hipRuntimeGetVersion(int* version) { return hipDriverGetVersion(version); }

HIPSIM_API hipError_t hipGetDeviceCount(int* count) {
  return api("hipGetDeviceCount", kAlways, [&](Runtime& runtime) {
    require(count);
    *count = static_cast<int>(runtime.devices.size());
    return *count ? hipSuccess : hipErrorNoDevice;
  });
}

HIPSIM_API hipError_t hipGetDevice(int* device) {
  return api("hipGetDevice", kAlways, [&](Runtime& runtime) {
    require(device);
    require(!runtime.devices.empty(), hipErrorNoDevice);
    *device = current_device;
    return hipSuccess;
  });
}

HIPSIM_API hipError_t hipSetDevice(int device) {
  return api("hipSetDevice", kAlways, [&](Runtime& runtime) {
    device_of(runtime, device);
    current_device = device;
    return hipSuccess;
  });
}

HIPSIM_API hipError_t hipDeviceGet(hipDevice_t* device, int ordinal) {
  return api("hipDeviceGet", kAlways, [&](Runtime& runtime) {
    require(device);
    *device = device_of(runtime, ordinal).id;
    return hipSuccess;
  });
}

HIPSIM_API hipError_t hipGetDevicePropertiesR0600(hipDeviceProp_tR0600* properties, int device) {
  return api("hipGetDeviceProperties", kAlways, [&](Runtime& runtime) {
    require(properties);
    *properties = properties_of(device_of(runtime, device));
    return hipSuccess;
  });
}

HIPSIM_API hipError_t hipDeviceGetAttribute(int* value, int attribute, int device) {
  return api("hipDeviceGetAttribute", kAlways, [&](Runtime& runtime) {
    require(value);
    require(attribute_of(properties_of(device_of(runtime, device)), attribute, *value));
    return hipSuccess;
  });
}

HIPSIM_API hipError_t hipDeviceGetName(char* name, int length, int device) {
  return api("hipDeviceGetName", kAlways, [&](Runtime& runtime) {
    require(name && length > 0);
    std::snprintf(name, static_cast<std::size_t>(length), "%s",
                  properties_of(device_of(runtime, device)).name);
    return hipSuccess;
  });
}

HIPSIM_API hipError_t hipDeviceGetUuid(hipUUID* uuid, int device) {
  return api("hipDeviceGetUuid", kAlways, [&](Runtime& runtime) {
    require(uuid);
    *uuid = properties_of(device_of(runtime, device)).uuid;
    return hipSuccess;
  });
}

HIPSIM_API hipError_t hipDeviceTotalMem(std::size_t* bytes, int device) {
  return api("hipDeviceTotalMem", kAlways, [&](Runtime& runtime) {
    require(bytes);
    device_of(runtime, device);
    *bytes = settings().memory;
    return hipSuccess;
  });
}

HIPSIM_API hipError_t hipDeviceGetPCIBusId(char* text, int length, int device) {
  return api("hipDeviceGetPCIBusId", kAlways, [&](Runtime& runtime) {
    require(text && length >= 13);
    std::snprintf(text, static_cast<std::size_t>(length), "0000:%02x:00.0",
                  device_of(runtime, device).id + 1);
    return hipSuccess;
  });
}

HIPSIM_API hipError_t hipDeviceSynchronize() {
  return api("hipDeviceSynchronize", kDevice | kNotCaptured, [&](Runtime& runtime) {
    Device& device = runtime.current();
    wait_for_device(device);
    check_guards(device);
    return device.lost.load();
  });
}

HIPSIM_API hipError_t hipDeviceReset() {
  return api("hipDeviceReset", kDevice | kNotCaptured, [&](Runtime& runtime) {
    Device& device = runtime.current();
    wait_for_device(device);
    for (const Allocation& allocation : device.memory->live())
      device.memory->release(allocation.begin);
    return hipSuccess;
  });
}

HIPSIM_API hipError_t hipDeviceCanAccessPeer(int* can, int device, int peer) {
  return api("hipDeviceCanAccessPeer", kDevice, [&](Runtime& runtime) {
    require(can);
    *can = device_of(runtime, device).id != device_of(runtime, peer).id;
    return hipSuccess;
  });
}

HIPSIM_API hipError_t hipDeviceEnablePeerAccess(int peer, unsigned flags) {
  if (flags) return remember_error(hipErrorInvalidValue);
  return set_peer("hipDeviceEnablePeerAccess", peer, true);
}

HIPSIM_API hipError_t hipDeviceDisablePeerAccess(int peer) {
  return set_peer("hipDeviceDisablePeerAccess", peer, false);
}
