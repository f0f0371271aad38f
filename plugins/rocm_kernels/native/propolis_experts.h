// Products of tokens with the weights of the experts that they chose.  Pairs of a token and one of its
// experts are first put in the order of experts; a tile of the product then has pairs of one expert
// alone, so its weights are read once for all of them.  How many tiles there are depends on what was
// chosen, so blocks ask which is theirs, and those beyond the last have nothing to do.
#pragma once

#include "propolis_product.h"
#include "propolis_scan.h"

struct ExpertShape {
    i64 pairs, choices;  // experts of a token
    i64 experts;
    i64 n, depth;
    i64 x_token, x_choice, x_step;
    i64 w_expert, w_row, w_step;  // of block formats in bytes, and no step
    i64 tiles;  // at most, of one row of tiles
    i64 first;  // block of this launch
};

// Pairs in the order of experts, those of no expert behind: of expert e from starts[e] on.
struct Grouped {
    const i32* order;
    const i32* starts;
};

// Pairs order[first] and following, of one expert; none where count is 0.
struct ExpertTile {
    i32 expert, first, count;
};

// The tile of that number, where tiles have up to SIDE pairs.
template <int SIDE>
PROPOLIS_FN ExpertTile expert_tile(const Grouped& g, i64 experts, i64 tile) {
    __shared__ ExpertTile found;
    if (thread_x() == 0) found = ExpertTile{0, 0, 0};
    i64 before = 0;
    for (i64 base = 0; base <= experts; base += BLOCK) {
        const i64 expert = base + thread_x();
        const i32 start = expert <= experts ? g.starts[expert] : 0;
        const i32 count = expert <= experts ? g.starts[expert + 1] - start : 0;
        const u32 tiles = (u32)(count + SIDE - 1) / SIDE;
        const Scanned<u32> scanned = block_scan(tiles);
        const i64 number = tile - before - scanned.before;
        if (number >= 0 && number < tiles) {
            const i32 done = (i32)number * SIDE;
            found = ExpertTile{(i32)expert, start + done, smaller(count - done, SIDE)};
        }
        before += scanned.total;
    }
    __syncthreads();
    return found;
}

// Where the pair's activations begin.
PROPOLIS_FN i64 activations_of(const ExpertShape& p, i32 pair) {
    const i32 token = pair / (i32)p.choices;
    return token * p.x_token + (pair - token * (i32)p.choices) * p.x_choice;
}

// Rows of an operand that begin where a table says.
template <class T>
struct GatheredRows {
    const T* x;
    const i64* starts;
    i64 rows, depth, step;
    bool packed;

    typedef Compute<T> C;
    PROPOLIS_METHOD bool across() const { return false; }
    PROPOLIS_METHOD void fetch(i64 i, i64 k, C (&run)[RUN]) const {
        const bool inside = i < rows && k < depth;
        const i64 there = inside ? depth - k : 0;
        const T* from = x + (inside ? starts[i] + k * step : 0);
        if (packed && there >= RUN) {
            load_run(from, run);
        } else {
            load_some(from, step, there, run);
        }
    }
};

// Where the results of a tile's pairs go: rows of n columns, each where its pair has it.
template <class T>
struct PairRows {
    T* out;
    const i32* pairs;
    i64 count, n;
};

template <class T>
PROPOLIS_FN void store_sums(const PairRows<T>& to, i64 row, i64 column, const Compute<T>* sums) {
    if (row < to.count) {
        T* at = to.out + to.pairs[row] * to.n;
        store_sums(Target<T>{at, nullptr, 0, 0, 1, to.n, to.n}, 0, column, sums);
    }
}

// weights(expert) is the operand that the expert's weights are.
template <int SIDE, class T, class W>
PROPOLIS_FN void experts_in_tiles(T* out, const T* x, const Grouped& g, const ExpertShape& p,
                                  const W& weights) {
    typedef Compute<T> C;
    __shared__ __attribute__((aligned(16))) C left[SIDE * DEPTH<SIDE>];
    __shared__ __attribute__((aligned(16))) C right[SIDE * DEPTH<SIDE>];
    __shared__ i64 starts[SIDE];
    __shared__ i32 pairs[SIDE];
    const i64 block = p.first + block_x();
    const i64 j0 = block / p.tiles * SIDE;
    const ExpertTile own = expert_tile<SIDE>(g, p.experts, block % p.tiles);
    if (own.count == 0) return;
    for (int i = (int)thread_x(); i < own.count; i += BLOCK) {
        pairs[i] = g.order[own.first + i];
        starts[i] = activations_of(p, pairs[i]);
    }
    __syncthreads();
    const bool packed = p.x_step == 1 && in_packs(x, p.x_token) && in_packs(x, p.x_choice);
    C sum[SIDE / 16][SIDE / 16] = {};
    if (own.expert < p.experts) {
        const GatheredRows<T> a{x, starts, own.count, p.depth, p.x_step, packed};
        const auto w = weights(own.expert);
        tile_product<SIDE>(a, w, 0, j0, p.depth, left, right, sum, own.count);
    }
    store_tile<SIDE, STORED<T>>(PairRows<T>{out, pairs, own.count, p.n}, 0, j0, sum);
}

// Few pairs an expert: load(start, k, run) gives a run of activations, store(place, value) takes a
// result.  Runs of weights may be loaded in packs, and depth is a multiple of RUN.
template <int M, int R, class C, class W, class Load, class Store>
PROPOLIS_FN void expert_rows(const Grouped& g, const ExpertShape& p, const ExpertTile& own,
                             const W& weights, i64 column, int lanes, const Load& load,
                             const Store& store) {
    i32 pairs[M];
    i64 starts[M];
#pragma unroll
    for (int i = 0; i < M; ++i) {
        pairs[i] = g.order[own.first + smaller(i, own.count - 1)];
        starts[i] = activations_of(p, pairs[i]);
    }
    C sum[R][M] = {};
    if (own.expert < p.experts) {
        const auto load_row = [&](int i, i64 k, C(&run)[RUN]) { load(starts[i] + k, run); };
        sums_of_rows<M, R>(weights(own.expert), load_row, p.n, p.depth, column, lanes, sum);
    }
    if (((int)thread_x() & (lanes - 1)) != 0) return;
#pragma unroll
    for (int i = 0; i < M; ++i) {
#pragma unroll
        for (int r = 0; r < R; ++r) {
            if (i < own.count && column + r < p.n) store(pairs[i] * p.n + column + r, sum[r][i]);
        }
    }
}

// One pair is what a tile has most often when decoding, and needs fewest registers.
template <class C, class W, class Load, class Store>
PROPOLIS_FN void experts_of_rows(const Grouped& g, const ExpertShape& p, const W& weights, int lanes,
                                 const Load& load, const Store& store) {
    constexpr int M = 4, R = ROWS_OF_4;
    const i64 block = p.first + block_x();
    const i64 along = block / p.tiles;
    const i64 column = (along * (BLOCK / lanes) + (int)thread_x() / lanes) * R;
    const ExpertTile own = expert_tile<M>(g, p.experts, block % p.tiles);
    if (own.count == 0) return;
    if (own.count == 1) {
        expert_rows<1, R, C>(g, p, own, weights, column, lanes, load, store);
    } else {
        expert_rows<M, R, C>(g, p, own, weights, column, lanes, load, store);
    }
}
