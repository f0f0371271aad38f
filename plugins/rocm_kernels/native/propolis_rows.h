// Rows that fit the registers of a group of threads, a warp or a block: read once, kept, written.
#pragma once

#include "propolis_elementwise.h"
#include "propolis_reduce.h"

// Values of a row that a thread keeps.  Warps take long rows, for more bytes in flight.
template <int threads, class T>
constexpr int HELD =
    (threads == PROPOLIS_WARP ? HELD_BY_WARP : HELD_BY_BLOCK) / (sizeof(T) == 8 ? 2 : 1);

// This thread within its group, and the row of its group: a block holds one or several groups.
template <int threads>
PROPOLIS_FN int lane_of_group() {
    return (int)(thread_x() % threads);
}
template <int threads>
PROPOLIS_FN i64 row_of_group() {
    constexpr int groups = threads == PROPOLIS_WARP ? BLOCK / PROPOLIS_WARP : 1;
    return (i64)block_x() * groups + thread_x() / threads;
}
template <int threads>
PROPOLIS_FN i64 rows_at_once() {
    constexpr int groups = threads == PROPOLIS_WARP ? BLOCK / PROPOLIS_WARP : 1;
    return (i64)blocks_x() * groups;
}

template <int threads, class T>
PROPOLIS_FN T group_sum(T value) {
    if constexpr (threads == PROPOLIS_WARP) {
        return warp_reduce(value, [](T a, T b) { return a + b; });
    } else {
        return block_sum<threads>(value);
    }
}

// The largest number, whatever NaN there is.
template <int threads, class T>
PROPOLIS_FN T group_max(T value) {
    const auto larger_of = [](T a, T b) { return b > a ? b : a; };
    if constexpr (threads == PROPOLIS_WARP) {
        return warp_reduce(value, larger_of);
    } else {
        return block_reduce<threads>(value, (T)-PROPOLIS_INF, larger_of);
    }
}

// f(place, p) for the p-th pack of PACK_BYTES that this thread keeps of its row.
template <int threads, class T, class F>
PROPOLIS_FN void each_held(int width, F f) {
    constexpr int N = PACK_BYTES / sizeof(T);
#pragma unroll
    for (int p = 0; p < HELD<threads, T> / N; ++p) {
        const int i = (p * threads + lane_of_group<threads>()) * N;
        if (i < width) f(i, p);
    }
}

// f(place) for each pack of N of a row of any width.
template <int threads, int N, class F>
PROPOLIS_FN void along_row(i64 width, F f) {
#pragma unroll 1
    for (i64 i = (i64)lane_of_group<threads>() * N; i < width; i += threads * N) f(i);
}

// N neighbours, or one element `stride` away from the others.
template <int N, class T>
PROPOLIS_FN Pack<T, N> load_at(const T* row, i64 i, i64 stride) {
    if constexpr (N > 1) {
        return load_pack<N>(row + i);
    } else {
        return Pack<T, 1>{{row[i * stride]}};
    }
}

// Whether packs of N neighbours may be loaded.
template <int N, class T>
PROPOLIS_FN bool packed_row(const T* row, i64 width, i64 stride) {
    return stride == 1 && width % N == 0 && aligned<N>(row);
}
