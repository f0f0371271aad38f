// Copies of matrices whose rows become columns: through shared memory, so that both sides are read and
// written as they lie.
#pragma once

#include "propolis_elementwise.h"

// out[r * out_row + c] = x[c * x_row + r] for r < rows and c < columns, of each of the matrices that
// `matrices` locates in `out` and in `x`.  `packs_in`: whether a multiple of 16 bytes of `x`'s rows may be
// loaded at once wherever one begins, and of `out`'s stored.  A block turns a square.
template <int SIDE, class T>
PROPOLIS_FN void copy_turned(T* out, const T* x, i64 rows, i64 columns, i64 out_row, i64 x_row,
                             bool packs_in, bool packs_out, i64 first, const Strided2& matrices) {
    constexpr int N = PACK_BYTES / sizeof(T);
    constexpr int WIDE = SIDE / N;  // packs of a row of the square
    constexpr int APART = 4 / sizeof(T) > 1 ? 4 / sizeof(T) : 1;  // rows are an odd number of words apart
    __shared__ T square[SIDE][SIDE + APART];
    const i64 along = (columns + SIDE - 1) / SIDE;
    const i64 each = along * ((rows + SIDE - 1) / SIDE);
    const i64 block = first + block_x();
    const i64 matrix = block / each;
    const i64 tile = block - matrix * each;
    const i64 down = tile / along;
    const i64 r0 = down * SIDE, c0 = (tile - down * along) * SIDE;
    const Offsets<2> at = locate(matrices, matrix);
    x += at.at[1];
    out += at.at[0];
#pragma unroll
    for (int t = (int)thread_x(); t < SIDE * WIDE; t += BLOCK) {
        const i64 r = r0 + t % WIDE * N, c = c0 + t / WIDE;
        if (r >= rows || c >= columns) continue;
        const T* from = x + c * x_row + r;
        Pack<T, N> pack = {};
        if (packs_in) {
            pack = load_pack<N>(from);
        } else {
#pragma unroll
            for (int k = 0; k < N; ++k) {
                if (r + k < rows) pack.at[k] = from[k];
            }
        }
#pragma unroll
        for (int k = 0; k < N; ++k) square[t / WIDE][t % WIDE * N + k] = pack.at[k];
    }
    __syncthreads();
#pragma unroll
    for (int t = (int)thread_x(); t < SIDE * WIDE; t += BLOCK) {
        const int column = t % WIDE * N;
        const i64 r = r0 + t / WIDE, c = c0 + column;
        if (r >= rows || c >= columns) continue;
        T* to = out + r * out_row + c;
        Pack<T, N> pack;
#pragma unroll
        for (int k = 0; k < N; ++k) pack.at[k] = square[column + k][t / WIDE];
        if (packs_out) {
            store_pack<N>(to, pack);
        } else {
#pragma unroll
            for (int k = 0; k < N; ++k) {
                if (c + k < columns) to[k] = pack.at[k];
            }
        }
    }
}
