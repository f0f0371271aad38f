// Device and pinned host memory, copies and fills.
#include "common.h"

#include "../common/hipsim_api.h"

using namespace hipsim;

namespace {

CUdeviceptr *out(void **p) { return reinterpret_cast<CUdeviceptr *>(p); }

}  // namespace

HIPSIM_API int hipMalloc(void **p, size_t bytes) {
    *p = nullptr;
    if (!bytes) return hipSuccess;  // as HIP does; the driver calls it an error
    HIPSIM_FORWARD(cuMemAlloc(out(p), bytes));
}

HIPSIM_API int hipFree(void *p) {
    if (!p) return hipSuccess;
    HIPSIM_FORWARD(cuMemFree(address(p)));
}

HIPSIM_API int hipMallocAsync(void **p, size_t bytes, CUstream stream) {
    *p = nullptr;
    if (!bytes) return hipSuccess;
    HIPSIM_FORWARD(cuMemAllocAsync(out(p), bytes, stream));
}

HIPSIM_API int hipFreeAsync(void *p, CUstream stream) {
    if (!p) return hipSuccess;
    HIPSIM_FORWARD(cuMemFreeAsync(address(p), stream));
}

HIPSIM_API int hipMemGetInfo(size_t *free, size_t *total) {
    HIPSIM_FORWARD(cuMemGetInfo(free, total));
}

HIPSIM_API int hipHostMalloc(void **p, size_t bytes, unsigned) {
    *p = nullptr;
    if (!bytes) return hipSuccess;
    HIPSIM_FORWARD(cuMemHostAlloc(p, bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
}

HIPSIM_API int hipHostFree(void *p) {
    if (!p) return hipSuccess;
    HIPSIM_FORWARD(cuMemFreeHost(p));
}

HIPSIM_API int hipHostRegister(void *p, size_t bytes, unsigned flags) {
    HIPSIM_FORWARD(cuMemHostRegister(p, bytes, flags));
}

HIPSIM_API int hipHostUnregister(void *p) { HIPSIM_FORWARD(cuMemHostUnregister(p)); }

HIPSIM_API int hipHostGetDevicePointer(void **device, void *host, unsigned flags) {
    HIPSIM_FORWARD(cuMemHostGetDevicePointer(out(device), host, flags));
}

// Addresses are unified, so the direction says nothing that the driver does not know.
HIPSIM_API int hipMemcpy(void *to, const void *from, size_t bytes, int) {
    HIPSIM_FORWARD(cuMemcpy(address(to), address(from), bytes));
}

HIPSIM_API int hipMemcpyAsync(void *to, const void *from, size_t bytes, int, CUstream stream) {
    HIPSIM_FORWARD(cuMemcpyAsync(address(to), address(from), bytes, stream));
}

HIPSIM_API int hipMemcpyHtoD(void *to, void *from, size_t bytes) {
    HIPSIM_FORWARD(cuMemcpyHtoD(address(to), from, bytes));
}

HIPSIM_API int hipMemcpyDtoH(void *to, void *from, size_t bytes) {
    HIPSIM_FORWARD(cuMemcpyDtoH(to, address(from), bytes));
}

HIPSIM_API int hipMemcpyDtoD(void *to, void *from, size_t bytes) {
    HIPSIM_FORWARD(cuMemcpyDtoD(address(to), address(from), bytes));
}

HIPSIM_API int hipMemcpyHtoDAsync(void *to, void *from, size_t bytes, CUstream stream) {
    HIPSIM_FORWARD(cuMemcpyHtoDAsync(address(to), from, bytes, stream));
}

HIPSIM_API int hipMemcpyDtoHAsync(void *to, void *from, size_t bytes, CUstream stream) {
    HIPSIM_FORWARD(cuMemcpyDtoHAsync(to, address(from), bytes, stream));
}

HIPSIM_API int hipMemcpyDtoDAsync(void *to, void *from, size_t bytes, CUstream stream) {
    HIPSIM_FORWARD(cuMemcpyDtoDAsync(address(to), address(from), bytes, stream));
}

HIPSIM_API int hipMemcpyPeer(void *to, int to_device, const void *from, int from_device,
                                size_t bytes) {
    HIPSIM_FORWARD(cuMemcpyPeer(address(to), context_of(to_device), address(from),
                                context_of(from_device), bytes));
}

HIPSIM_API int hipMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device,
                                     size_t bytes, CUstream stream) {
    HIPSIM_FORWARD(cuMemcpyPeerAsync(address(to), context_of(to_device), address(from),
                                     context_of(from_device), bytes, stream));
}

HIPSIM_API int hipMemset(void *p, int value, size_t bytes) {
    HIPSIM_FORWARD(cuMemsetD8(address(p), static_cast<unsigned char>(value), bytes));
}

HIPSIM_API int hipMemsetAsync(void *p, int value, size_t bytes, CUstream stream) {
    HIPSIM_FORWARD(cuMemsetD8Async(address(p), static_cast<unsigned char>(value), bytes, stream));
}

HIPSIM_API int hipMemsetD32Async(void *p, int value, size_t count, CUstream stream) {
    HIPSIM_FORWARD(cuMemsetD32Async(address(p), static_cast<unsigned>(value), count, stream));
}
