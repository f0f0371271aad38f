// Sums of all values up to a thread's own, over a warp and over a block: always in the same order.
#pragma once

#include "propolis_reduce.h"

// Of the values of this lane and all before it.
template <class T>
PROPOLIS_FN T warp_scan(T value) {
    const int lane = anew(lane_of_warp());
#pragma unroll
    for (int delta = 1; delta < PROPOLIS_WARP; delta *= 2) {
        const T before = warp_shfl(value, lane < delta ? lane : lane - delta);
        if (lane >= delta) value = before + value;
    }
    return value;
}

template <class T>
struct Scanned {
    T before;  // of all threads before this one
    T total;   // of the block
};

// Of a block of BLOCK threads.
template <class T>
PROPOLIS_FN Scanned<T> block_scan(T value) {
    constexpr int warps = BLOCK / PROPOLIS_WARP;
    __shared__ T of_warp[warps];
    const T upto = warp_scan(value);
    const int lane = anew(lane_of_warp());
    const int warp = anew(warp_of_block());
    // What this thread has is not subtracted again: of floats that would not give what was before.
    const T own = warp_shfl(upto, lane == 0 ? 0 : lane - 1);
    __syncthreads();  // a scan before may still be read
    if (lane == PROPOLIS_WARP - 1) of_warp[warp] = upto;
    __syncthreads();
    Scanned<T> result = {0, 0};
#pragma unroll
    for (int w = 0; w < warps; ++w) {
        if (w == warp) result.before = result.total;
        result.total += of_warp[w];
    }
    if (lane > 0) result.before += own;
    return result;
}
