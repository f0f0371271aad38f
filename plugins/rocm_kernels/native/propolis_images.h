// Images made of images, element by element: each thread has neighbours of a row, finds the first and
// walks on to the others.
#pragma once

#include "propolis_elementwise.h"

// out[i] = f(at) for i < n.  `s` has the last dimension, of `width` elements, as its last tensor:
// at.at[K - 1] is the place in it.  Of the other tensors no stride of that dimension counts.
template <int N, int K, class T, class F>
PROPOLIS_FN void each_element(T* out, i64 n, i64 width, const StridedOf<K>& s, F f) {
    const bool packed = aligned<N>(out);
    const Span span = span_of(1);
    for (i64 i = span.first * N; i < n; i += span.step * N) {
        Offsets<K> at = locate(again(s), i);
        Pack<T, N> pack;
#pragma unroll
        for (int k = 0; k < N; ++k) {
            pack.at[k] = f(at);
            if (k + 1 < N && ++at.at[K - 1] == width) {
                at = locate(again(s), i + k + 1 < n ? i + k + 1 : n - 1);  // at the end that again
            }
        }
        if (packed && i + N <= n) {
            store_pack<N>(out + i, pack);
        } else {
#pragma unroll
            for (int k = 0; k < N; ++k) {
                if (i + k < n) out[i + k] = pack.at[k];
            }
        }
    }
}

// i / size, exactly, for 63-bit i: see reciprocal() of _layouts.py.  1 has no magic.
PROPOLIS_FN i64 divided(i64 i, u64 magic, i32 shift) {
    return magic ? (i64)(high_product((u64)i, magic) >> shift) : i;
}
