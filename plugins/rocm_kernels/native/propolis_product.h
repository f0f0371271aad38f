// Whole products out = a @ b.T + bias, a of (m, depth) and b of (n, depth): large ones in tiles,
// those of few rows of `a` with each weight read once, as fast as memory gives it.
#pragma once

#include "propolis_elementwise.h"
#include "propolis_reduce.h"
#include "propolis_tile.h"

// Everything about a product but the weights.  Batches are walked by a Strided2: a, b.  Sums are
// computed as those of Out are.
template <class T, class Out = T>
struct Product {
    Out* out;  // (batch, m, n), contiguous
    const T* a;
    const Out* bias;  // or null
    i64 m, n, depth;
    i64 a_row, a_step;
    i64 bias_row;  // of tiles alone: neither rows nor batches of others have a bias of their own
    i64 bias_step;
    i64 first;  // block of this launch
};

// W has at(offset): the same weights, the start moved.
template <int SIDE, class T, class Out, class W>
PROPOLIS_FN void product_in_tiles(const Product<T, Out>& p, const W& weights,
                                  const Strided2& batches) {
    typedef Compute<Out> C;
    __shared__ __attribute__((aligned(16))) C left[SIDE * DEPTH<SIDE>];
    __shared__ __attribute__((aligned(16))) C right[SIDE * DEPTH<SIDE>];
    const i64 down = (p.m + SIDE - 1) / SIDE;
    const i64 along = (p.n + SIDE - 1) / SIDE;
    // Neighbours share weights: those are more.
    const i64 tile = p.first + block_x();
    const i64 batch = tile / (down * along);
    const i64 within = tile - batch * (down * along);
    const i64 i0 = within % down * SIDE;
    const i64 j0 = within / down * SIDE;
    const Offsets<2> at = locate(batches, batch);
    const PlainRows<T, C> a(p.a + at.at[0], p.m, p.depth, p.a_row, p.a_step);
    C sum[SIDE / 16][SIDE / 16] = {};
    tile_product<SIDE>(a, weights.at(at.at[1]), i0, j0, p.depth, left, right, sum);
    Out* out = p.out + batch * p.m * p.n;
    const Target<Out> to{out, p.bias, p.bias_row, p.bias_step, p.m, p.n, p.n};
    store_tile<SIDE, STORED<Out>>(to, i0, j0, sum);
}

// Rows of plain numbers as weights.
template <class T, class C = Compute<T>>
struct PlainWeights : PlainRows<T, C> {
    typedef PlainRows<T, C> Base;
    static constexpr bool scaled = false;
    static constexpr bool shifted = false;
    using Base::Base;
    PROPOLIS_METHOD PlainWeights at(i64 offset) const {
        return PlainWeights(Base::at + offset, this->rows, this->depth, this->row,
                            this->step);
    }
    PROPOLIS_METHOD void weights(i64 i, i64 k, Weights<C>& own) const {
        load_run(Base::at + i * this->row + k, own.q);
    }
};

// `lanes` neighbours (a power of two) of a warp work on R rows of weights, of which there are n, from
// `column` on, and on M rows of `a`: load(i, k, run) gives the run of row i from its element k on.
// Depth is a multiple of RUN.  Each of the lanes has the sums.
template <int M, int R, class C, class W, class Load>
PROPOLIS_FN void sums_of_rows(const W& w, const Load& load, i64 n, i64 depth, i64 column, int lanes,
                              C (&sum)[R][M]) {
    const int lane = (int)thread_x() & (lanes - 1);
#pragma unroll 2
    for (i64 k = (i64)lane * RUN; k < depth; k += (i64)lanes * RUN) {
        Weights<C> own[R];
#pragma unroll
        for (int r = 0; r < R; ++r) {  // beyond the last row, that row once more
            w.weights(column + r < n ? column + r : n - 1, k, own[r]);
        }
#pragma unroll
        for (int i = 0; i < M; ++i) {
            C x[RUN];
            load(i, k, x);
            C total = 0;
            if constexpr (W::shifted) {
#pragma unroll
                for (int e = 0; e < RUN; ++e) total += x[e];
            }
#pragma unroll
            for (int r = 0; r < R; ++r) {
                C dot = 0;
#pragma unroll
                for (int e = 0; e < RUN; ++e) dot += own[r].q[e] * x[e];
                if constexpr (W::scaled) dot *= own[r].scale;
                if constexpr (W::shifted) dot += own[r].shift * total;
                sum[r][i] += dot;
            }
        }
    }
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
        for (int i = 0; i < M; ++i) {
            for (int mask = lanes / 2; mask > 0; mask >>= 1) {
                sum[r][i] += warp_shfl_xor(sum[r][i], mask);
            }
        }
    }
}

// Of up to M rows of `a`; runs of these and of weights may be loaded in packs.
template <int M, int R, class T, class Out, class W>
PROPOLIS_FN void product_of_rows(const Product<T, Out>& p, const W& weights,
                                 const Strided2& batches, int lanes) {
    typedef Compute<Out> C;
    const int lane = (int)thread_x() & (lanes - 1);
    const int group = (int)thread_x() / lanes;
    const i64 rows = (i64)(BLOCK / lanes) * R;  // of a block
    const i64 along = (p.n + rows - 1) / rows;
    const i64 tile = p.first + block_x();
    const i64 batch = tile / along;
    const i64 column = (tile - batch * along) * rows + (i64)group * R;
    const Offsets<2> at = locate(batches, batch);
    const T* a = p.a + at.at[0];
    const auto load = [&](int i, i64 k, C(&x)[RUN]) {
        load_run(a + (i < p.m ? i : p.m - 1) * p.a_row + k, x);
    };
    C sum[R][M] = {};
    sums_of_rows<M, R>(weights.at(at.at[1]), load, p.n, p.depth, column, lanes, sum);
    Out* out = p.out + batch * p.m * p.n + column;
#pragma unroll
    for (int r = 0; r < R; ++r) {
        if (lane == 0 && column + r < p.n) {
            const C bias = p.bias ? wide(p.bias[(column + r) * p.bias_step]) : (C)0;
#pragma unroll
            for (int i = 0; i < M; ++i) {
                if (i < p.m) out[i * p.n + r] = narrow<Out>(sum[r][i] + bias);
            }
        }
    }
}
