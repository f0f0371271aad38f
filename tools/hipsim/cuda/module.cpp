// Modules, functions and launches.
#include "common.h"

#include "../common/hipsim_api.h"

using namespace hipsim;

HIPSIM_API int hipModuleLoadData(CUmodule *module, const void *image) {
    HIPSIM_FORWARD(cuModuleLoadData(module, image));
}

HIPSIM_API int hipModuleLoad(CUmodule *module, const char *path) {
    HIPSIM_FORWARD(cuModuleLoad(module, path));
}

HIPSIM_API int hipModuleUnload(CUmodule module) { HIPSIM_FORWARD(cuModuleUnload(module)); }

HIPSIM_API int hipModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    if (int code = hipsim::enter()) return record(code);
    if (CUresult failed = cuModuleGetFunction(function, module, name)) {
        return record(static_cast<int>(failed));
    }
    // All of the shared memory that a block may have is for the launch to give, as in HIP.
    int most = 0, fixed = 0;
    cuDeviceGetAttribute(&most, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
                         current_device());
    cuFuncGetAttribute(&fixed, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, *function);
    return record(static_cast<int>(cuFuncSetAttribute(
        *function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, most - fixed)));
}

HIPSIM_API int hipModuleGetGlobal(void **p, size_t *bytes, CUmodule module, const char *name) {
    HIPSIM_FORWARD(cuModuleGetGlobal(reinterpret_cast<CUdeviceptr *>(p), bytes, module, name));
}

HIPSIM_API int hipFuncGetAttribute(int *value, int which, CUfunction function) {
    HIPSIM_FORWARD(
        cuFuncGetAttribute(value, static_cast<CUfunction_attribute>(which), function));
}

HIPSIM_API int hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks,
                                                                     CUfunction function,
                                                                     int threads, size_t shared) {
    HIPSIM_FORWARD(cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, threads, shared));
}

HIPSIM_API int hipModuleLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz,
                                        unsigned bx, unsigned by, unsigned bz, unsigned shared,
                                        CUstream stream, void **params, void **extra) {
    if (!extra) HIPSIM_FORWARD(cuLaunchKernel(f, gx, gy, gz, bx, by, bz, shared, stream, params, nullptr));
    // The two drivers mark the end of the list by different numbers: 3 in HIP, 0 here.
    void *config[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, nullptr, CU_LAUNCH_PARAM_BUFFER_SIZE, nullptr,
                      CU_LAUNCH_PARAM_END};
    for (int i = 0; i < 4 && reinterpret_cast<uintptr_t>(extra[i]) != 3; i += 2) {
        switch (reinterpret_cast<uintptr_t>(extra[i])) {
            case 1: config[1] = extra[i + 1]; break;
            case 2: config[3] = extra[i + 1]; break;
            default: return record(hipErrorInvalidValue);
        }
    }
    if (!config[1] || !config[3]) return record(hipErrorInvalidValue);
    HIPSIM_FORWARD(cuLaunchKernel(f, gx, gy, gz, bx, by, bz, shared, stream, nullptr, config));
}
