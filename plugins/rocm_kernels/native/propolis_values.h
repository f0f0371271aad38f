// Values of weights in the GGUF block formats, written to a tensor of any float: they are f32, other
// dtypes are rounded from that, once.
#pragma once

#include "propolis_blocks.h"
#include "propolis_convert.h"

template <class T>
PROPOLIS_FN void store_values(T* to, const f32 (&run)[RUN], bool packed) {
    constexpr int N = RUN_PACK<T>;
#pragma unroll
    for (int first = 0; first < RUN; first += N) {
        Pack<T, N> pack;
#pragma unroll
        for (int k = 0; k < N; ++k) pack.at[k] = convert<T>(run[first + k]);
        if (packed) {
            store_pack<N>(to + first, pack);
        } else {
#pragma unroll
            for (int k = 0; k < N; ++k) to[first + k] = pack.at[k];
        }
    }
}
