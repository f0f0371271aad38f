// What the libraries above HIP call of it; libamdhip64.so has it.
#pragma once
#include "hipsim_api.h"

HIPSIM_API hipError_t hipGetDevice(int* device);
HIPSIM_API hipError_t hipGetDevicePropertiesR0600(hipDeviceProp_tR0600* properties, int device);
HIPSIM_API hipError_t hipMalloc(void** pointer, std::size_t bytes);
HIPSIM_API hipError_t hipFree(void* pointer);
HIPSIM_API hipError_t hipRuntimeGetVersion(int* version);
HIPSIM_API hipError_t hipModuleLoad(hipModule_t* module, const char* path);
HIPSIM_API hipError_t hipModuleUnload(hipModule_t module);
HIPSIM_API hipError_t hipModuleGetFunction(hipFunction_t* function, hipModule_t module,
                                           const char* name);
HIPSIM_API hipError_t hipModuleLaunchKernel(hipFunction_t function, unsigned grid_x,
                                            unsigned grid_y, unsigned grid_z, unsigned block_x,
                                            unsigned block_y, unsigned block_z,
                                            unsigned shared_bytes, hipStream_t stream,
                                            void** parameters, void** extra);
HIPSIM_API hipError_t hipStreamIsCapturing(hipStream_t stream, hipStreamCaptureStatus* status);
