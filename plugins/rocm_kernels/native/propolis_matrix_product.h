// Whole products out = a @ b.T + bias of 16-bit numbers on matrix instructions, rounded once to what
// the output is of.  A block of 256
// threads has a tile of M x N sums; operands pass through shared memory, K deep at a time, in `stages`
// that are filled while earlier ones are multiplied.  Where a GPU has products by groups of warps, tiles go by them.
#pragma once

#include "propolis_copy.h"
#include "propolis_groups.h"
#include "propolis_matrix.h"
#include "propolis_partials.h"
#include "propolis_product.h"

#if PROPOLIS_FRAGMENTS

// Whether stages so deep go by groups of warps (propolis_groups.h), whose rows have no gaps.
template <int K>
constexpr bool GROUPED = PROPOLIS_WGMMA && K == DEPTHS;

// Elements of a stage: rows of M + N, either way round.
template <int M, int N, int K>
constexpr int STAGE = (M + N) * (GROUPED<K> ? K : K + GAP);

// One operand's part of a tile: SIDE rows from row `first` on, of which a thread copies some packs.
// Neighbours in memory are neighbours in depth, or `across` rows; `apart` is the other stride.
template <class T, int SIDE, int K, bool across>
struct Panel {
    static constexpr int PACKS = SIDE * K / COPIED / BLOCK;
    static constexpr int APART = GROUPED<K> ? DEPTHS : across ? SIDE + GAP : K + GAP;
    static_assert(SIDE * K % (COPIED * BLOCK) == 0, "Panel: threads have unequal shares");
    static constexpr int WIDE = (across ? SIDE : K) / COPIED;  // packs side by side
    static constexpr int BELOW = BLOCK / WIDE;  // from a pack of a thread to its next
    static_assert(BLOCK % WIDE == 0, "Panel: packs of a thread are not below each other");
    const T* at;   // its first pack, of the next stage
    i64 apart;     // in memory, of what lies below each other
    i64 rows;      // that are left from that of the first pack on
    i64 depth;     // likewise
    i32 place;     // in shared memory
#if !defined(PROPOLIS_MMA)
    Coming<T> coming[PACKS];
#endif

    PROPOLIS_METHOD Panel(const T* from, i64 first, i64 rows, i64 depth, i64 apart) : apart(apart) {
        const int down = (int)thread_x() / WIDE, along = (int)thread_x() % WIDE * COPIED;
        const int row = across ? along : down, k = across ? down : along;
        at = from + (across ? first + row + k * apart : (first + row) * apart + k);
        this->rows = rows - first - row;
        this->depth = depth - k;
        if constexpr (GROUPED<K>) {
            place = along / DEPTHS * (DEPTHS * K) + place_of_pack(down, along % DEPTHS / COPIED);
        } else {
            place = down * APART + along;
        }
    }
    PROPOLIS_METHOD bool exists(int p) const {
        return rows > (across ? 0 : p * BELOW) && depth > (across ? p * BELOW : 0);
    }
    PROPOLIS_METHOD void next() {
        depth -= K;
        at += across ? K * apart : K;
    }
#if defined(PROPOLIS_MMA)
    PROPOLIS_METHOD void copy(T* to, const T* any) {
#pragma unroll
        for (int p = 0; p < PACKS; ++p) {
            const bool there = exists(p);
            copy_async(to + place + p * BELOW * APART, there ? at + p * BELOW * apart : any, there ? 16 : 0);
        }
        next();
    }
#else
    PROPOLIS_METHOD void fetch(const T* any) {
#pragma unroll
        for (int p = 0; p < PACKS; ++p) {
            const bool there = exists(p);
            coming[p].load(there ? at + p * BELOW * apart : any, there);
        }
        next();
    }
    PROPOLIS_METHOD void put(T* to) const {
#pragma unroll
        for (int p = 0; p < PACKS; ++p) coming[p].store(to + place + p * BELOW * APART);
    }
#endif
};

constexpr int WARPS = BLOCK / PROPOLIS_WARP;

// What a warp has of a tile, in fragments.  DOWN warps share its rows, the others its columns; of those of a group
// each has 16 of 64 rows.
template <int M, int N, bool grouped>
struct WarpTile {
    static constexpr int DOWN = grouped ? M / FRAGMENT : 2;
    static constexpr int ROWS = M / DOWN / FRAGMENT;
    static constexpr int COLUMNS = N / (WARPS / DOWN) / FRAGMENT;
    static_assert(ROWS > 0 && COLUMNS > 0, "WarpTile: less than a fragment for each warp");
    Sums sums[ROWS][COLUMNS] = {};

    // Its operands of one depth of fragments.
    template <class T>
    struct Operands {
        Left<T> left[ROWS];
        Right<T> right[COLUMNS];
    };

    PROPOLIS_METHOD static int row() {
        return (grouped ? warp_of_block() % DOWN : warp_of_block() / (WARPS / DOWN)) * (M / DOWN);
    }
    PROPOLIS_METHOD static int column() {
        return (grouped ? warp_of_block() / DOWN : warp_of_block() % (WARPS / DOWN)) * (N / (WARPS / DOWN));
    }
    // From k on: the left operand lies along, the right as it is said.
    template <bool across, class T>
    PROPOLIS_METHOD static void load(Operands<T>& to, const T* a, int a_apart, const T* b, int b_apart, int k) {
        a += row() * a_apart + k;
        b += column() * (across ? 1 : b_apart) + k * (across ? b_apart : 1);
#pragma unroll
        for (int i = 0; i < ROWS; ++i) to.left[i].template load<false>(a + i * FRAGMENT * a_apart, a_apart);
#pragma unroll
        for (int j = 0; j < COLUMNS; ++j) {
            to.right[j].template load<across>(b + j * FRAGMENT * (across ? 1 : b_apart), b_apart);
        }
    }
    template <class T>
    PROPOLIS_METHOD void multiply(const Operands<T>& by) {
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
#pragma unroll
            for (int j = 0; j < COLUMNS; ++j) sums[i][j].add(by.left[i], by.right[j]);
        }
    }
    // add(row, column): what a sum has more.
    template <class Add>
    PROPOLIS_METHOD void raise(const Add& add) {
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
#pragma unroll
            for (int j = 0; j < COLUMNS; ++j) {
#pragma unroll
                for (int e = 0; e < Sums::COUNT; ++e) {
                    sums[i][j].at[e] += add(row() + i * FRAGMENT + Sums::row(e), column() + j * FRAGMENT + Sums::column(e));
                }
            }
        }
    }
    // use(row, column, pack): sums as 16 bytes of neighbours in a row, by way of the operands' shared memory, so that
    // threads which are neighbours have what follows in memory.
    template <class Out, class T, class Use>
    PROPOLIS_METHOD void each_pack(T* shared, const Use& use) const {
        constexpr int WIDE = COLUMNS < 4 ? COLUMNS : 4, WIDTH = WIDE * FRAGMENT;  // at a time
        constexpr int COUNT = 16 / sizeof(Out), APART = WIDTH + COUNT;
        static_assert(COLUMNS % WIDE == 0, "WarpTile: columns are not whole runs");
        static_assert(WARPS * FRAGMENT * APART * sizeof(Out) <= 2 * (M + N) * (32 + GAP) * sizeof(T),
                      "WarpTile: two stages of operands are less than sums need");
        Out* own = (Out*)(void*)shared + warp_of_block() * FRAGMENT * APART;
        __syncthreads();  // operands are no longer read
#pragma unroll
        for (int run = 0; run < ROWS * COLUMNS; run += WIDE) {
            const int i = run / COLUMNS, first = run % COLUMNS;
#pragma unroll
            for (int j = 0; j < WIDE; ++j) {
#pragma unroll
                for (int e = 0; e < Sums::COUNT; e += Sums::RUNS) {
                    Pack<Out, Sums::RUNS> pack;
#pragma unroll
                    for (int k = 0; k < Sums::RUNS; ++k) pack.at[k] = narrow<Out>(sums[i][first + j].at[e + k]);
                    store_pack<Sums::RUNS>(own + Sums::row(e) * APART + j * FRAGMENT + Sums::column(e), pack);
                }
            }
            sync_warp();
#pragma unroll
            for (int n = 0; n < FRAGMENT * WIDTH / COUNT; n += PROPOLIS_WARP) {
                const int which = n + lane_of_warp(), down = which / (WIDTH / COUNT), along = which % (WIDTH / COUNT) * COUNT;
                if (FRAGMENT * WIDTH / COUNT % PROPOLIS_WARP == 0 || down < FRAGMENT) {
                    use(row() + i * FRAGMENT + down, column() + first * FRAGMENT + along,
                        load_pack<COUNT>(own + down * APART + along));
                }
            }
            sync_warp();
        }
    }
};

// Adds so many steps of K: `left` and `right` bring them to shared memory, of `a` and `b`, which may be read
// where there is nothing.  Rows of the left one lie along, those of the right as it is said.
template <int M, int N, int K, bool across, class T, class LeftPanel, class RightPanel>
PROPOLIS_FN void multiply_panels(WarpTile<M, N, false>& own, LeftPanel& left, RightPanel& right, T* shared,
                                 i32 steps, int stages, const T* a, const T* b) {
    constexpr int RIGHT = M * (K + GAP);  // where it begins in a stage
    const auto stage_at = [&](int s) { return shared + s * STAGE<M, N, K>; };
    int filled = 0, used = 0;  // stages that are next
    const auto after = [&](int s) { return s + 1 == stages ? 0 : s + 1; };
#if defined(PROPOLIS_MMA)
    const auto copy = [&] {
        left.copy(stage_at(filled), a);
        right.copy(stage_at(filled) + RIGHT, b);
        filled = after(filled);
    };
    for (int s = 0; s < stages - 1; ++s) {
        if (s < steps) copy();
        end_of_stage();
    }
    // Operands are loaded while those before are multiplied, the next stage's first ones with this one's last.
    constexpr int DEEP = K / FRAGMENT;
    static_assert(DEEP % 2 == 0, "multiply_panels: a stage ends in the other operands than it begins with");
    typename WarpTile<M, N, false>::template Operands<T> operands[2];
    const auto load = [&](int which, int k) {
        const T* stage = stage_at(used);
        own.template load<across>(operands[which], stage, left.APART, stage + RIGHT, right.APART, k);
    };
    wait_for_stage(stages);
    __syncthreads();
    load(0, 0);
    for (i32 t = 0; t < steps; ++t) {
#pragma unroll
        for (int d = 0; d < DEEP; ++d) {
            if (d == DEEP - 1) {
                wait_for_stage(stages);
                __syncthreads();  // nobody reads this stage any more
                used = after(used);
            }
            load((d + 1) % 2, (d + 1) % DEEP * FRAGMENT);
            if (d == 0) {
                if (t + stages - 1 < steps) copy();
                end_of_stage();
            }
            own.multiply(operands[d % 2]);
        }
    }
#else
    const auto fetch = [&] {
        left.fetch(a);
        right.fetch(b);
    };
    const auto put = [&] {
        left.put(stage_at(filled));
        right.put(stage_at(filled) + RIGHT);
        filled = after(filled);
    };
    fetch();
    put();
    for (i32 t = 0; t < steps; ++t) {
        __syncthreads();
        const bool more = t + 1 < steps;
        if (more) fetch();
        const T* stage = stage_at(used);
#pragma unroll
        for (int k = 0; k < K; k += FRAGMENT) {
            typename WarpTile<M, N, false>::template Operands<T> operands;
            own.template load<across>(operands, stage, left.APART, stage + RIGHT, right.APART, k);
            own.multiply(operands);
        }
        used = after(used);
        if (more) put();
    }
#endif
}

#if PROPOLIS_WGMMA
// The same by groups of warps.  Products of a stage go on while those of the next are queued, so what is filled
// meanwhile is the stage before, which all are done with: stages on their way are two fewer than there are.
template <int M, int N, int K, bool across, class T, class LeftPanel, class RightPanel>
PROPOLIS_FN void multiply_panels(WarpTile<M, N, true>& own, LeftPanel& left, RightPanel& right, T* shared,
                                 i32 steps, int stages, const T* a, const T* b) {
    constexpr int RIGHT = M * K, BYTES = STAGE<M, N, K> * (int)sizeof(T);
    static_assert(M % DEPTHS == 0 && BYTES % ALIGNED_TO == 0, "multiply_panels: operands begin anywhere");
    constexpr int BLOCK_OF_ROWS = DEPTHS * K;
    if (stages < 3) __trap();  // nothing would be on its way
    int filled = 0, used = 0;  // stages that are next
    const auto after = [&](int s) { return s + 1 == stages ? 0 : s + 1; };
    const auto copy = [&] {
        T* stage = shared + filled * STAGE<M, N, K>;
        left.copy(stage, a);
        right.copy(stage + RIGHT, b);
        filled = after(filled);
    };
    for (int s = 0; s < stages - 2; ++s) {
        if (s < steps) copy();
        end_of_stage();
    }
    const int column = own.column(), within = column % DEPTHS * (across ? 1 : K);
    const u64 rows = operand_at<false>(shared + own.row() / DEPTHS * BLOCK_OF_ROWS);
    const u64 columns = operand_at<across>(shared + RIGHT + column / DEPTHS * BLOCK_OF_ROWS + within);
    for (i32 t = 0; t < steps; ++t) {
        wait_for_stage(stages - 1);
        show_to_products();
        __syncthreads();
        begin_products();
        const u32 stage = (u32)(used * (BYTES / 16));
#pragma unroll
        for (int d = 0; d < K / FRAGMENT; ++d) {
            multiply_group<across>(own.sums[0], rows + stage + d * DEPTHS_APART<false>,
                                   columns + stage + d * DEPTHS_APART<across>, T());
        }
        end_of_products();
        used = after(used);
        if (t + stages - 2 < steps) copy();
        end_of_stage();
        wait_for_products<1>();
    }
    wait_for_products<0>();
}
#endif

// So many of a pack as there are; where `whole` all of them, at once, or none.
template <class T, int COUNT>
PROPOLIS_FN void store_run(T* to, const Pack<T, COUNT>& pack, i64 left, bool whole) {
    if (whole) {
        if (left > 0) store_pack<COUNT>(to, pack);
    } else {
#pragma unroll
        for (int k = 0; k < COUNT; ++k) {
            if (k < left) to[k] = pack.at[k];
        }
    }
}

// The sums of a tile, whose first is that of row i0 and column j0 of (m, n), to rows that lie `apart`.
template <int M, int N, bool grouped, class T, class Out>
PROPOLIS_FN void store_rows(const WarpTile<M, N, grouped>& own, T* shared, Out* to, i64 apart, i64 i0, i64 j0, i64 m, i64 n) {
    constexpr int COUNT = 16 / sizeof(Out);
    const bool whole = n % COUNT == 0 && apart % COUNT == 0 && aligned<COUNT>(to);
    own.template each_pack<Out>(shared, [&](i64 row, i64 column, const Pack<Out, COUNT>& pack) {
        row += i0, column += j0;
        if (row < m) store_run(to + row * apart + column, pack, n - column, whole);
    });
}

// Where the first stage begins: groups of warps have theirs aligned, in room that gaps would have taken.
template <int K, class T>
PROPOLIS_FN T* operands_at(T* shared) {
    if constexpr (GROUPED<K>) {
#if PROPOLIS_WGMMA
        return aligned_operands(shared);
#endif
    }
    return shared;
}

// Tiles of a product in an order in which those that run at a time share operands: GROUP columns wide.
constexpr int GROUP = 8;
struct TilePlace {
    i64 i, j;
};
PROPOLIS_FN TilePlace tile_place(i64 which, i64 down, i64 along) {
    const i64 first = which / (GROUP * down) * GROUP;
    const i64 within = which - first * down;
    const i64 width = along - first < GROUP ? along - first : GROUP;
    return {within / width, first + within % width};
}

// All rows of both operands begin at multiples of 16 bytes, and are multiples of eight elements; of
// b `across`, rows of depth.  Those of the output are `out_row` apart.  `parts` are sums in f32 by (part, m, n),
// where blocks share the depth of a product, so many `steps` each; else null.
template <int M, int N, int K, bool across, class T, class Out>
PROPOLIS_FN void product_of_fragments(const Product<T, Out>& p, f32* parts, const T* b, i64 b_apart,
                                      i64 out_row, const Strided2& batches, i32 steps, int stages) {
    PROPOLIS_DYNAMIC_SHARED(T, bytes);
    T* shared = operands_at<K>(bytes);
    const i64 down = (p.m + M - 1) / M;
    const i64 along = (p.n + N - 1) / N;
    const i64 tile = p.first + block_x();
    const i64 which = tile / (down * along);  // batch, or part
    const TilePlace place = tile_place(tile - which * (down * along), down, along);
    const i64 i0 = place.i * M, j0 = place.j * N;
    const Offsets<2> at = locate(batches, parts ? 0 : which);
    const i64 start = parts ? which * steps * K : 0;
    const i64 rest = p.depth - start;
    Panel<T, M, K, false> left(p.a + at.at[0] + start, i0, p.m, rest, p.a_row);
    Panel<T, N, K, across> right(b + at.at[1] + start * (across ? b_apart : 1), j0, p.n, rest, b_apart);
    const i32 there = (i32)((rest + K - 1) / K);
    WarpTile<M, N, GROUPED<K>> own;
    multiply_panels<M, N, K, across>(own, left, right, shared, there < steps ? there : steps, stages, p.a, b);
    if (parts) {
        store_rows(own, shared, parts + which * p.m * p.n, p.n, i0, j0, p.m, p.n);
        return;
    }
    // Loaded before anything is stored, lest each wait for the one before.
    const auto add_bias = [&](bool of_rows) {
        const i32 rows = (i32)(p.m - i0 < M ? p.m - i0 : M), columns = (i32)(p.n - j0 < N ? p.n - j0 : N);
        const Out* bias = p.bias + (of_rows ? i0 * p.bias_row : 0) + j0 * p.bias_step;
        own.raise([&](i32 row, i32 column) {
            row = row < rows ? row : rows - 1, column = column < columns ? column : columns - 1;
            return (f32)wide(bias[(of_rows ? row * p.bias_row : 0) + column * p.bias_step]);
        });
    };
    if (p.bias && p.bias_row) add_bias(true);
    if (p.bias && !p.bias_row) add_bias(false);
    store_rows(own, shared, p.out + which * p.m * out_row, out_row, i0, j0, p.m, p.n);
}

#endif

// The sums of all parts, COUNT neighbours of a row a thread.
template <int COUNT, class Out>
PROPOLIS_FN void join_products(Out* out, const f32* parts, const Out* bias, i64 bias_row, i64 bias_step, i64 m,
                               i64 n, i64 out_row, i64 count, i64 first) {
    const i64 at = ((first + block_x()) * BLOCK + thread_x()) * COUNT;
    if (at >= m * n) return;
    const i64 row = at / n, column = at - row * n;
    const Pack<f32, COUNT> sums = sum_of_parts<COUNT>(parts + at, m * n, count);
    Pack<Out, COUNT> pack;
#pragma unroll
    for (int k = 0; k < COUNT; ++k) {
        const f32 more = bias ? (f32)wide(bias[row * bias_row + (column + k) * bias_step]) : 0.0f;
        pack.at[k] = narrow<Out>(sums.at[k] + more);
    }
    store_pack<COUNT>(out + row * out_row + column, pack);
}
