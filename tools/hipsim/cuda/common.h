// What the files of the CUDA flavour share: the context of the calling thread and the errors.
//
// HIP took its error numbers from the CUDA driver's, so a CUresult passes through as it is.
#pragma once

#include "../common/hipsim_api.h"

#include <cuda.h>

#include <cstddef>
#include <cstdint>

namespace hipsim {


// Makes the primary context of the thread's device current; every entry point begins with it.
int enter();

// The device that the thread has chosen, 0 at first.
int current_device();

// The context of a device, retained on first use; null when there is no such device.
CUcontext context_of(int device);

// Remembers an error for hipGetLastError and passes it on.
int record(int code);

inline CUdeviceptr address(const void *p) { return reinterpret_cast<CUdeviceptr>(p); }

}  // namespace hipsim

// Enters the thread's context, runs one driver call and passes its error on.
#define HIPSIM_FORWARD(call)                                           \
    do {                                                               \
        if (int entered = hipsim::enter()) return hipsim::record(entered); \
        return hipsim::record(static_cast<int>(call));                 \
    } while (0)
