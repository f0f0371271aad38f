// Products of blocks of matrices in f32, whose sums stay in registers.
#pragma once

#include "simd.h"

namespace propolis {

// Rows of a block, and vectors of sixteen columns: as many sums as there are registers for.
constexpr int ROWS = VECTOR == 64 ? 8 : VECTOR == 32 ? 6 : 2;
constexpr int MOST_ACROSS = VECTOR == 64 ? 3 : 1;

// m (ROWS, ACROSS * 16) = a (ROWS, depth) @ b (depth, ACROSS * 16), added to m where it is `onto`.
template <int ACROSS>
PROPOLIS_INLINE void multiply_block(f32* m, i64 m_row, const f32* a, i64 a_row, const f32* b, i64 depth,
                                    bool onto) {
    F32s sums[ROWS][ACROSS];
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; ++i) {
#pragma GCC unroll 3
        for (int v = 0; v < ACROSS; ++v) sums[i][v] = splat(0.0f);
    }
    for (i64 c = 0; c < depth; ++c, b += ACROSS * LANES) {
        F32s row[ACROSS];
#pragma GCC unroll 3
        for (int v = 0; v < ACROSS; ++v) row[v] = load(b + v * LANES);
#pragma GCC unroll 8
        for (int i = 0; i < ROWS; ++i) {
            const F32s factor = splat(a[i * a_row + c]);
#pragma GCC unroll 3
            for (int v = 0; v < ACROSS; ++v) sums[i][v] = fma(factor, row[v], sums[i][v]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; ++i) {
#pragma GCC unroll 3
        for (int v = 0; v < ACROSS; ++v) {
            f32* at = m + i * m_row + v * LANES;
            store(at, onto ? load(at) + sums[i][v] : sums[i][v]);
        }
    }
}

}  // namespace propolis
