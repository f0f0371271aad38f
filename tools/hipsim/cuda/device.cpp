// Devices, contexts, properties and errors.
#include "common.h"


#include <cstdio>
#include <cstring>
#include <mutex>
#include <vector>

namespace hipsim {
namespace {

thread_local int chosen = 0;
thread_local CUcontext entered = nullptr;

std::mutex guard;
std::vector<CUcontext> contexts;

int initialise() {
    static const int code = static_cast<int>(cuInit(0));
    return code;
}

int attribute(CUdevice_attribute which, int device) {
    int value = 0;
    cuDeviceGetAttribute(&value, which, device);
    return value;
}

}  // namespace

int current_device() { return chosen; }

CUcontext context_of(int device) {
    int count = 0;
    if (initialise() || cuDeviceGetCount(&count) || device < 0 || device >= count) return nullptr;
    std::lock_guard lock(guard);
    contexts.resize(static_cast<size_t>(count));
    auto &context = contexts[static_cast<size_t>(device)];
    if (!context) cuDevicePrimaryCtxRetain(&context, device);
    return context;
}

int enter() {
    if (entered) return hipSuccess;
    if (int code = initialise()) return code;
    CUcontext context = context_of(chosen);
    if (!context) return hipErrorNoDevice;
    int code = static_cast<int>(cuCtxSetCurrent(context));
    if (!code) entered = context;
    return code;
}

int record(int code) { return remember_error(static_cast<hipError_t>(code)); }

}  // namespace hipsim

using namespace hipsim;

HIPSIM_API int hipInit(unsigned) { return record(initialise()); }

HIPSIM_API int hipGetDeviceCount(int *count) {
    *count = 0;
    if (initialise()) return record(hipErrorNoDevice);
    int code = static_cast<int>(cuDeviceGetCount(count));
    return record(code ? code : (*count ? hipSuccess : hipErrorNoDevice));
}

HIPSIM_API int hipGetDevice(int *device) {
    *device = chosen;
    return hipSuccess;
}

HIPSIM_API int hipSetDevice(int device) {
    CUcontext context = context_of(device);
    if (!context) return record(hipErrorInvalidDevice);
    chosen = device;
    entered = context;
    return record(static_cast<int>(cuCtxSetCurrent(context)));
}

HIPSIM_API int hipDeviceGet(int *handle, int ordinal) {
    if (int code = initialise()) return record(code);
    return record(static_cast<int>(cuDeviceGet(handle, ordinal)));
}

HIPSIM_API int hipDeviceSynchronize() { HIPSIM_FORWARD(cuCtxSynchronize()); }

HIPSIM_API int hipDriverGetVersion(int *version) {
    return record(static_cast<int>(cuDriverGetVersion(version)));
}

HIPSIM_API int hipRuntimeGetVersion(int *version) {
    *version = 60000000;  // the ABI that hip-python loads
    return hipSuccess;
}

HIPSIM_API int hipDeviceGetName(char *name, int length, int device) {
    if (int code = initialise()) return record(code);
    return record(static_cast<int>(cuDeviceGetName(name, length, device)));
}

HIPSIM_API int hipDeviceGetPCIBusId(char *id, int length, int device) {
    if (int code = initialise()) return record(code);
    return record(static_cast<int>(cuDeviceGetPCIBusId(id, length, device)));
}

HIPSIM_API int hipDeviceTotalMem(size_t *bytes, int device) {
    if (int code = initialise()) return record(code);
    return record(static_cast<int>(cuDeviceTotalMem(bytes, device)));
}

HIPSIM_API int hipGetDevicePropertiesR0600(hipDeviceProp_tR0600 *p, int device) {
    int count = 0;
    if (initialise() || cuDeviceGetCount(&count) || device < 0 || device >= count)
        return record(hipErrorInvalidDevice);
    std::memset(p, 0, sizeof *p);
    cuDeviceGetName(p->name, sizeof p->name, device);
    cuDeviceTotalMem(&p->totalGlobalMem, device);
    p->major = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
    p->minor = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
    p->warpSize = attribute(CU_DEVICE_ATTRIBUTE_WARP_SIZE, device);
    p->multiProcessorCount = attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
    p->maxThreadsPerBlock = attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, device);
    p->maxThreadsPerMultiProcessor =
        attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, device);
    // HIP has no second limit that a function must ask for: module.cpp asks, for every one.
    p->sharedMemPerBlock = static_cast<size_t>(
        attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, device));
    p->regsPerBlock = attribute(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, device);
    p->clockRate = attribute(CU_DEVICE_ATTRIBUTE_CLOCK_RATE, device);
    p->memoryClockRate = attribute(CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, device);
    p->memoryBusWidth = attribute(CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, device);
    p->l2CacheSize = attribute(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, device);
    p->integrated = attribute(CU_DEVICE_ATTRIBUTE_INTEGRATED, device);
    p->pciBusID = attribute(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, device);
    p->pciDeviceID = attribute(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, device);
    p->pciDomainID = attribute(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, device);
    p->maxThreadsDim[0] = attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, device);
    p->maxThreadsDim[1] = attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, device);
    p->maxThreadsDim[2] = attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, device);
    p->maxGridSize[0] = attribute(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, device);
    p->maxGridSize[1] = attribute(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, device);
    p->maxGridSize[2] = attribute(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, device);
    p->canMapHostMemory = 1;
    p->concurrentKernels = 1;
    p->unifiedAddressing = 1;
    p->streamPrioritiesSupported = 1;
    p->memoryPoolsSupported = 1;
    // The honest name: no AMD code object is for this device, so plugins compile for it.
    std::snprintf(p->gcnArchName, sizeof p->gcnArchName, "sm_%d%d", p->major, p->minor);
    return hipSuccess;
}

HIPSIM_API int hipDeviceCanAccessPeer(int *can, int device, int peer) {
    if (int code = initialise()) return record(code);
    return record(static_cast<int>(cuDeviceCanAccessPeer(can, device, peer)));
}

HIPSIM_API int hipDeviceEnablePeerAccess(int peer, unsigned flags) {
    CUcontext context = context_of(peer);
    if (!context) return record(hipErrorInvalidDevice);
    HIPSIM_FORWARD(cuCtxEnablePeerAccess(context, flags));
}

HIPSIM_API int hipDeviceDisablePeerAccess(int peer) {
    CUcontext context = context_of(peer);
    if (!context) return record(hipErrorInvalidDevice);
    HIPSIM_FORWARD(cuCtxDisablePeerAccess(context));
}
