// What a kernel is like: its attributes, occupancy, and the newer names for modules and kernels.
#include "module.h"

using namespace hipsim;

HIPSIM_API hipError_t hipFuncGetAttribute(int* value, hipFunction_attribute attribute,
                                          hipFunction_t handle) {
  return api("hipFuncGetAttribute", kDevice, [&](Runtime&) {
    require(value);
    const auto function = function_of(handle);
    switch (attribute) {
      case HIP_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; return hipSuccess;
      case HIP_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
        *value = static_cast<int>(function->shared_bytes);
        return hipSuccess;
      case HIP_FUNC_ATTRIBUTE_CONST_SIZE_BYTES:
      case HIP_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
      case HIP_FUNC_ATTRIBUTE_NUM_REGS: *value = 0; return hipSuccess;
      case HIP_FUNC_ATTRIBUTE_BINARY_VERSION: *value = 10; return hipSuccess;
      case HIP_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        *value = static_cast<int>(kMaxSharedBytes - function->shared_bytes);
        return hipSuccess;
    }
    return hipErrorInvalidValue;
  });
}

HIPSIM_API hipError_t hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks,
                                                                         hipFunction_t handle,
                                                                         int block_size,
                                                                         std::size_t shared_bytes) {
  return api("hipModuleOccupancyMaxActiveBlocksPerMultiprocessor", kDevice, [&](Runtime&) {
    require(blocks && block_size > 0);
    const std::size_t shared = shared_bytes + function_of(handle)->shared_bytes;
    const std::size_t by_threads =
        block_size <= 1024 ? 2048 / static_cast<std::size_t>(block_size) : 0;
    const std::size_t by_shared = shared ? kMaxSharedBytes / shared : by_threads;
    *blocks = static_cast<int>(by_threads < by_shared ? by_threads : by_shared);
    return hipSuccess;
  });
}

HIPSIM_API hipError_t hipModuleOccupancyMaxPotentialBlockSize(int* grid_size, int* block_size,
                                                              hipFunction_t handle, std::size_t,
                                                              int limit) {
  return api("hipModuleOccupancyMaxPotentialBlockSize", kDevice, [&](Runtime&) {
    require(grid_size && block_size);
    function_of(handle);
    *block_size = limit > 0 && limit < 1024 ? limit : 1024;
    *grid_size = settings().threads * (2048 / *block_size);
    return hipSuccess;
  });
}

// hipLibrary_t and hipKernel_t are hipModule_t and hipFunction_t by other names.

HIPSIM_API hipError_t hipModuleLoadData(hipModule_t* module, const void* image);
HIPSIM_API hipError_t hipModuleLoad(hipModule_t* module, const char* path);
HIPSIM_API hipError_t hipModuleUnload(hipModule_t module);
HIPSIM_API hipError_t hipModuleGetFunction(hipFunction_t* function, hipModule_t module,
                                           const char* name);
HIPSIM_API hipError_t hipModuleGetFunctionCount(unsigned* count, hipModule_t module);

HIPSIM_API hipError_t hipLibraryLoadData(hipModule_t* library, const void* code, void*, void**,
                                         unsigned, void*, void**, unsigned) {
  return hipModuleLoadData(library, code);
}

HIPSIM_API hipError_t hipLibraryLoadFromFile(hipModule_t* library, const char* path, void*, void**,
                                             unsigned, void*, void**, unsigned) {
  return hipModuleLoad(library, path);
}

HIPSIM_API hipError_t hipLibraryUnload(hipModule_t library) { return hipModuleUnload(library); }

HIPSIM_API hipError_t hipLibraryGetKernel(hipFunction_t* kernel, hipModule_t library,
                                          const char* name) {
  return hipModuleGetFunction(kernel, library, name);
}

HIPSIM_API hipError_t hipLibraryGetKernelCount(unsigned* count, hipModule_t library) {
  return hipModuleGetFunctionCount(count, library);
}

HIPSIM_API hipError_t hipKernelGetFunction(hipFunction_t* function, hipFunction_t kernel) {
  return api("hipKernelGetFunction", kDevice, [&](Runtime&) {
    require(function);
    *function = function_of(kernel).get();
    return hipSuccess;
  });
}

HIPSIM_API hipError_t hipKernelGetName(const char** name, hipFunction_t kernel) {
  return api("hipKernelGetName", kDevice, [&](Runtime&) {
    require(name);
    *name = function_of(kernel)->name.c_str();
    return hipSuccess;
  });
}

HIPSIM_API hipError_t hipKernelGetParamInfo(hipFunction_t kernel, std::size_t index,
                                            std::size_t* offset, std::size_t* size) {
  return api("hipKernelGetParamInfo", kDevice, [&](Runtime&) {
    const auto function = function_of(kernel);
    require(offset && index < function->parameters.size());
    *offset = function->parameters[index].offset;
    if (size) *size = function->parameters[index].size;
    return hipSuccess;
  });
}
