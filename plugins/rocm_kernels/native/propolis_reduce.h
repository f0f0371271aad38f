// Threads that work together: shuffles within a warp of 32 or 64, reductions of warps and blocks.
#pragma once

#include "propolis_device.h"

PROPOLIS_FN int lane_of_warp() { return (int)(thread_x() % PROPOLIS_WARP); }
PROPOLIS_FN int warp_of_block() {
    const int warp = (int)(thread_x() / PROPOLIS_WARP);
#if defined(PROPOLIS_AMD)
    return __builtin_amdgcn_readfirstlane(warp);  // else loops over it would be each thread's own
#else
    return warp;
#endif
}

// The value of another lane; every lane of the warp takes part.  T has 4 or 8 bytes.
template <class T>
PROPOLIS_FN T warp_shfl(T value, int lane) {
#if defined(PROPOLIS_AMD)
    if constexpr (sizeof(T) == 4) {
        return bits_as<T>(__builtin_amdgcn_ds_bpermute(lane * 4, bits_as<i32>(value)));
    } else {
        const u64 bits = bits_as<u64>(value);
        const u32 low = (u32)__builtin_amdgcn_ds_bpermute(lane * 4, (i32)(u32)bits);
        const u32 high = (u32)__builtin_amdgcn_ds_bpermute(lane * 4, (i32)(u32)(bits >> 32));
        return bits_as<T>((u64)high << 32 | low);
    }
#elif defined(__CUDACC__)
    return __shfl_sync(0xffffffffu, value, lane);
#else
    return __shfl(value, lane);
#endif
}

template <class T>
PROPOLIS_FN T warp_shfl_xor(T value, int mask) {
#if defined(__CUDACC__)
    return __shfl_xor_sync(0xffffffffu, value, mask);
#else
    return warp_shfl(value, lane_of_warp() ^ mask);
#endif
}

// The same of anything that is whole words.
template <class A>
PROPOLIS_FN A shuffle_xor(A value, int mask) {
    struct Words {
        u32 at[sizeof(A) / 4];
    };
    Words words = bits_as<Words>(value);
#pragma unroll
    for (int i = 0; i < (int)(sizeof(A) / 4); ++i) words.at[i] = warp_shfl_xor(words.at[i], mask);
    return bits_as<A>(words);
}

// Of the lane `delta` further on; the last lanes get their own.
template <class T>
PROPOLIS_FN T warp_shfl_down(T value, int delta) {
#if defined(__CUDACC__)
    return __shfl_down_sync(0xffffffffu, value, delta);
#else
    const int lane = lane_of_warp() + delta;
    return warp_shfl(value, lane < PROPOLIS_WARP ? lane : lane_of_warp());
#endif
}

// f over all lanes, the same bits in each; f must be commutative.
template <class T, class F>
PROPOLIS_FN T warp_reduce(T value, F f) {
#pragma unroll
    for (int mask = PROPOLIS_WARP / 2; mask > 0; mask >>= 1) {
        value = f(value, warp_shfl_xor(value, mask));
    }
    return value;
}

// f over all threads of a block of `threads` along x, the same bits in each.
template <int threads = BLOCK, class T, class F>
PROPOLIS_FN T block_reduce(T value, T identity, F f) {
    constexpr int warps = threads / PROPOLIS_WARP;
    static_assert(warps <= PROPOLIS_WARP && threads % PROPOLIS_WARP == 0, "block_reduce: threads");
    value = warp_reduce(value, f);
    if constexpr (warps > 1) {
        __shared__ T partial[warps];
        __syncthreads();  // a reduction before may still be read
        if (lane_of_warp() == 0) partial[warp_of_block()] = value;
        __syncthreads();
        value = warp_reduce(lane_of_warp() < warps ? partial[lane_of_warp()] : identity, f);
    }
    return value;
}

template <int threads = BLOCK, class T>
PROPOLIS_FN T block_sum(T value) {
    return block_reduce<threads>(value, (T)0, [](T a, T b) { return a + b; });
}

// The larger; NaN where either is.
template <int threads = BLOCK, class T>
PROPOLIS_FN T block_max(T value) {
    return block_reduce<threads>(value, value,
                                 [](T a, T b) { return a > b || math::is_nan(a) ? a : b; });
}

// One more, in memory of the device or of the block; what it was.
PROPOLIS_FN u32 count_up(u32* counter) {
#if defined(PROPOLIS_AMD)
    return __hip_atomic_fetch_add(counter, 1u, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
#else
    return atomicAdd(counter, 1u);
#endif
}

// So much more.
PROPOLIS_FN void add_up(u64* sum, u64 value) {
#if defined(PROPOLIS_AMD)
    __hip_atomic_fetch_add(sum, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
#else
    atomicAdd((unsigned long long*)sum, (unsigned long long)value);
#endif
}
