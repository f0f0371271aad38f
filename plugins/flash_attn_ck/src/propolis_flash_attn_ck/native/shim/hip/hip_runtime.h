// What Composable Kernel's forward kernels need of HIP, beside clang's own wrapper: HIP's headers need
// not be there, and take twice as long to read.
#pragma once

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

struct dim3 {
    uint32_t x, y, z;
    __host__ __device__ constexpr dim3(uint32_t a = 1, uint32_t b = 1, uint32_t c = 1)
        : x(a), y(b), z(c) {}
};
struct float2 {
    float x, y;
};
struct float4 {
    float x, y, z, w;
};
struct uint2 {
    uint32_t x, y;
};
struct uint4 {
    uint32_t x, y, z, w;
};
__host__ __device__ inline uint2 make_uint2(uint32_t a, uint32_t b) { return {a, b}; }

typedef struct ihipStream_t* hipStream_t;
typedef struct ihipEvent_t* hipEvent_t;
typedef int hipError_t;
enum { hipSuccess = 0 };

// As HIP defines it: without the first, 1024 threads are assumed, half of the registers are out of
// reach, and kernels spill.
#define __launch_bounds__(threads, warps) \
    __attribute__((amdgpu_flat_work_group_size(1, threads), amdgpu_waves_per_eu(warps)))
#ifndef __forceinline__
#define __forceinline__ inline __attribute__((always_inline))
#endif

#if defined(__HIP_DEVICE_COMPILE__)
extern "C" __device__ __attribute__((const)) size_t __ockl_get_num_groups(uint32_t);
#define PROPOLIS_COORDINATES(name, of_x, of_y, of_z)              \
    struct name##_t {                                             \
        __declspec(property(get = get_x)) uint32_t x;             \
        __declspec(property(get = get_y)) uint32_t y;             \
        __declspec(property(get = get_z)) uint32_t z;             \
        __device__ uint32_t get_x() const { return of_x; }        \
        __device__ uint32_t get_y() const { return of_y; }        \
        __device__ uint32_t get_z() const { return of_z; }        \
    };                                                            \
    extern const __device__ __attribute__((weak)) name##_t name;
PROPOLIS_COORDINATES(threadIdx, __builtin_amdgcn_workitem_id_x(), __builtin_amdgcn_workitem_id_y(),
                     __builtin_amdgcn_workitem_id_z())
PROPOLIS_COORDINATES(blockIdx, __builtin_amdgcn_workgroup_id_x(), __builtin_amdgcn_workgroup_id_y(),
                     __builtin_amdgcn_workgroup_id_z())
PROPOLIS_COORDINATES(blockDim, __builtin_amdgcn_workgroup_size_x(),
                     __builtin_amdgcn_workgroup_size_y(), __builtin_amdgcn_workgroup_size_z())
PROPOLIS_COORDINATES(gridDim, (uint32_t)__ockl_get_num_groups(0),
                     (uint32_t)__ockl_get_num_groups(1), (uint32_t)__ockl_get_num_groups(2))
static constexpr __device__ const int warpSize = __AMDGCN_WAVEFRONT_SIZE;
#else
extern const dim3 threadIdx, blockIdx, blockDim, gridDim;
static constexpr int warpSize = 64;
#endif

__device__ inline void __syncthreads() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
__device__ inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
__device__ inline int __lane_id() {
    return __builtin_amdgcn_mbcnt_hi(-1, __builtin_amdgcn_mbcnt_lo(-1, 0));
}
__device__ inline uint32_t __umulhi(uint32_t a, uint32_t b) { return (uint64_t(a) * b) >> 32; }
template <class T>
__device__ inline T atomicCAS(T* p, T expected, T value) {
    __hip_atomic_compare_exchange_strong(p, &expected, value, __ATOMIC_RELAXED, __ATOMIC_RELAXED,
                                         __HIP_MEMORY_SCOPE_AGENT);
    return expected;
}
template <class T, class U>
__device__ inline T atomicAdd(T* p, U value) {
    return __hip_atomic_fetch_add(p, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
