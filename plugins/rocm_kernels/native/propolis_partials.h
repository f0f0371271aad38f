// What several blocks find of one output, and which of them merges it.
#pragma once

#include "propolis_reduce.h"

// Memory of the device that all kernels of a stream use one after the other: counters, which are
// zero between kernels, and accumulators behind them.  See _scratch.py.
template <class A>
PROPOLIS_FN A* partials(const u32* scratch) {
    static_assert(sizeof(A) <= ACCUMULATOR, "the scratch of _scratch.py has less for each");
    return (A*)(scratch + COUNTERS);
}

PROPOLIS_FN void device_fence() {
#if defined(PROPOLIS_AMD)
    __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "agent");
#else
    __threadfence();
#endif
}

// Whether all other of `blocks` blocks have come here: then what they wrote can be read.
PROPOLIS_FN bool last_to_come(u32* counter, u32 blocks) {
    __shared__ u32 before;
    device_fence();
    __syncthreads();
    if (thread_x() == 0) {
        before = count_up(counter);
        if (before == blocks - 1) *counter = 0;
    }
    __syncthreads();
    const bool last = before == blocks - 1;
    device_fence();
    return last;
}

// Sums of COUNT neighbours over parts that are `size` sums apart, in order.
template <int COUNT>
PROPOLIS_FN Pack<f32, COUNT> sum_of_parts(const f32* parts, i64 size, i64 count) {
    Pack<f32, COUNT> sums = {};
    for (i64 part = 0; part < count; ++part) {
        const Pack<f32, COUNT> own = load_pack<COUNT>(parts + part * size);
#pragma unroll
        for (int k = 0; k < COUNT; ++k) sums.at[k] += own.at[k];
    }
    return sums;
}
