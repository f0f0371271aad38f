// Products of few rows of activations with weights in blocks, on matrix instructions: as fast as memory
// gives the weights, each of which is read once.  These become numbers of 16 bits in registers, where
// the instructions want them; sums are in f32.
#pragma once

#include "propolis_blocks.h"
#include "propolis_matrix.h"

#if PROPOLIS_FRAGMENTS

template <class T>
PROPOLIS_FN Pack<u16, RUN> rounded_run(const f32 (&values)[RUN]) {
    Pack<u16, RUN> made;
#pragma unroll
    for (int e = 0; e < RUN; ++e) made.at[e] = narrow<T>(values[e]).bits;
    return made;
}

// The warps' sums of TALL fragments of rows of weights by WIDE of `x`, added up by way of shared memory.
template <int TALL, int WIDE>
PROPOLIS_FN void add_warps(f32* out, const Sums (&sums)[TALL][WIDE], i64 first, i64 m, i64 n) {
    constexpr int ROWS = TALL * FRAGMENT;
    __shared__ f32 shared[BLOCK / PROPOLIS_WARP][FRAGMENT][ROWS + 1];
#pragma unroll
    for (int c = 0; c < WIDE; ++c) {
        if (c > 0) __syncthreads();
#pragma unroll
        for (int f = 0; f < TALL; ++f) {
#pragma unroll
            for (int i = 0; i < Sums::COUNT; ++i) {
                shared[warp_of_block()][Sums::column(i)][f * FRAGMENT + Sums::row(i)] = sums[f][c].at[i];
            }
        }
        __syncthreads();
        for (int i = (int)thread_x(); i < ROWS * FRAGMENT; i += BLOCK) {
            const int row = i % ROWS, column = i / ROWS;
            f32 sum = 0;
#pragma unroll
            for (int k = 0; k < BLOCK / PROPOLIS_WARP; ++k) sum += shared[k][column][row];
            const i64 to = c * FRAGMENT + column;
            if (first + row < n && to < m) out[to * n + first + row] = sum;
        }
    }
}

// A block has TALL fragments of rows of weights, and up to 16 WIDE rows of `x`; its warps share the depth.
// Where `few`, there are no more than 8 of them.  Rows of `x` begin at multiples of 16 bytes.
template <class Format, int TALL, int WIDE, bool few, class T>
PROPOLIS_FN void product_of_few(f32* out, const T* x, const u8* w, i64 m, i64 n, i64 depth, i64 x_row,
                                i64 row_bytes) {
    constexpr int WARPS = BLOCK / PROPOLIS_WARP;
    constexpr int CHUNK = Format::SIZE;  // of a row, for one warp at a time
    constexpr int AHEAD = WIDE * TALL == 1 ? 4 : 2;  // spans of which loads are on their way
    [[maybe_unused]] constexpr int CHUNKS_AHEAD = AHEAD * SPAN > CHUNK ? AHEAD * SPAN / CHUNK : 1;
    constexpr int ROWS = TALL * FRAGMENT;
    const int warp = warp_of_block();
    const i64 first = block_x() * ROWS;
    const u8* weights[TALL][RUNS_HELD];
    const T* activations[WIDE][RUNS_HELD];
#pragma unroll
    for (int i = 0; i < RUNS_HELD; ++i) {  // beyond the last row, that once more
#pragma unroll
        for (int f = 0; f < TALL; ++f) {
            const i64 row = first + f * FRAGMENT + Held<T>::row(i);
            weights[f][i] = w + (row < n ? row : n - 1) * row_bytes;
        }
#pragma unroll
        for (int c = 0; c < WIDE; ++c) {
            const i64 row = c * FRAGMENT + Held<T>::row(i);
            activations[c][i] = x + (row < m ? row : m - 1) * x_row + Held<T>::depth(i);
        }
    }
    Sums sums[TALL][WIDE] = {};
#if defined(PROPOLIS_MMA)  // AMD's compiler repeats no matrix instructions of which it cannot tell how many
#pragma unroll CHUNKS_AHEAD
#endif
    for (i32 chunk = warp; chunk < (i32)(depth / CHUNK); chunk += WARPS) {
#pragma unroll AHEAD
        for (int at = 0; at < CHUNK; at += SPAN) {
            Held<T> left[TALL];
#pragma unroll
            for (int f = 0; f < TALL; ++f) {
#pragma unroll
                for (int i = 0; i < RUNS_HELD; ++i) {
                    Weights<f32> own;
                    f32 values[RUN];
                    Format::load(weights[f][i] + (i64)chunk * Format::BYTES,
                                 (at + Held<T>::depth(i)) / RUN, own);
                    dequantized<Format>(own, values);
                    left[f].runs[i] = rounded_run<T>(values);
                }
            }
#pragma unroll
            for (int c = 0; c < WIDE; ++c) {
                Held<T> right;
#pragma unroll
                for (int i = 0; i < RUNS_HELD; ++i) {
                    right.runs[i] = bits_as<Pack<u16, RUN>>(
                        load_pack<RUN>(activations[c][i] + (i64)chunk * CHUNK + at));
                }
#pragma unroll
                for (int f = 0; f < TALL; ++f) sums[f][c].template add<few>(left[f], right);
            }
        }
    }
    add_warps(out, sums, first, m, n);
}

#endif
