// A row that is a sum of two, normed and kept as propolis_decode.h or propolis_plain_row.h says: each block does it
// for itself.
#pragma once

#include "propolis_activations.h"
#include "propolis_decode.h"

constexpr int HELD_PACKS = 2;  // of a row, by a thread: what is beyond is read again

template <class T>
struct NormedRow {
    T* total;
    const T* x;
    const T* residual;
    const T* weight;
    f32 eps;

    // As its dtype has it.
    PROPOLIS_METHOD Pack<f32, 4> sum_at(int pack) const {
        const Pack<T, 4> one = load_pack<4>(x + pack * 4), other = load_pack<4>(residual + pack * 4);
        Pack<f32, 4> sum;
#pragma unroll
        for (int i = 0; i < 4; ++i) sum.at[i] = wide(narrow<T>(wide(one.at[i]) + wide(other.at[i])));
        return sum;
    }

    // Of all threads of the block, whose number divides by eight; the first block writes `total`.
    template <class Held>
    PROPOLIS_METHOD void fill(const Held& to, int depth, int threads) const {
        const int packs = depth / 4, me = (int)thread_x();
        Pack<f32, 4> held[HELD_PACKS] = {};
        Pack<T, 4> factors[HELD_PACKS] = {};
#pragma unroll
        for (int e = 0; e < HELD_PACKS; ++e) {
            const int pack = me + e * threads;
            if (pack >= packs) continue;
            held[e] = sum_at(pack);
            factors[e] = load_pack<4>(weight + pack * 4);
        }
        f32 squares = 0;
#pragma unroll
        for (int e = 0; e < HELD_PACKS; ++e) {
            if (me + e * threads < packs) squares += seen(held[e], me + e * threads);
        }
        for (int pack = me + HELD_PACKS * threads; pack < packs; pack += threads) {
            squares += seen(sum_at(pack), pack);
        }
        const f32 scale = 1 / math::sqrt(sum_of_block(squares, threads) / (f32)depth + eps);
        // Of all lanes together, as they shuffle: beyond the last pack too.
#pragma unroll
        for (int e = 0; e < HELD_PACKS; ++e) {
            if (e * threads < packs) to.take(scaled(held[e], factors[e], scale), me + e * threads);
        }
        for (int first = HELD_PACKS * threads; first < packs; first += threads) {
            const int pack = first + me, some = pack < packs ? pack : packs - 1;
            to.take(scaled(sum_at(some), load_pack<4>(weight + some * 4), scale), pack);
        }
        to.end(threads);
        __syncthreads();
    }

private:
    // Written, and its squares.
    PROPOLIS_METHOD f32 seen(const Pack<f32, 4>& sum, int pack) const {
        f32 squares = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (block_x() == 0) total[pack * 4 + i] = narrow<T>(sum.at[i]);
            squares += sum.at[i] * sum.at[i];
        }
        return squares;
    }

    PROPOLIS_FN f32 sum_of_block(f32 value, int threads) {
        __shared__ f32 partial[THREADS / 32];
        value = warp_reduce(value, [](f32 a, f32 b) { return a + b; });
        if (lane_of_warp() == 0) partial[warp_of_block()] = value;
        __syncthreads();
        f32 sum = 0;
        for (int warp = 0; warp < threads / PROPOLIS_WARP; ++warp) sum += partial[warp];
        return sum;
    }

    PROPOLIS_FN Pack<f32, 4> scaled(Pack<f32, 4> sum, const Pack<T, 4>& factor, f32 scale) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sum.at[i] *= scale * wide(factor.at[i]);
        return sum;
    }
};

// GATED: rows of weights are halves, and results silu of the first half's products times the second's.
template <class Held, bool GATED, class T>
PROPOLIS_FN void product_of_normed(const NormedRow<T>& x, T* out, const u8* w, i64 n, i64 depth, i64 row_bytes,
                                   int lanes, int threads) {
    PROPOLIS_DYNAMIC_SHARED(u32, shared);
    constexpr int HALVES = GATED ? 2 : 1;
    const Held held(shared, (int)depth);
    products_of_one<HALVES>(
        held, w, n / HALVES, row_bytes, lanes, threads, Halves{n / HALVES},
        [&] { x.fill(held, (int)depth, threads); },
        [&](bool mine, i64 row, const f32(&sum)[HALVES]) {
            if (!mine) return;
            if constexpr (GATED) out[row] = narrow<T>(math::gated(sum[0], sum[0], sum[1]));
            else out[row] = narrow<T>(sum[0]);
        });
}

// How heads of a product are rotated; semantics: core's propolis/ops/rope.py.  A position outside the
// tables gives zeros.
struct Turn {
    const i32* position;
    const f32* cos;
    const f32* sin;
    i64 rows, cos_row, sin_row;  // of the tables: how many, and from one to the next
    i32 pairs, dim;              // of a head: what is rotated, and elements
    i32 heads;                   // that are rotated
    bool interleaved;

    // Of a pair: what it is, and the angle where it is rotated.
    enum Kind { PLAIN, ROTATED, NOWHERE };
    struct Angle {
        Kind kind;
        f32 cosine, sine;
    };

    // Items are rows in such an order that two neighbours are a pair of a head, of those that are not rotated any.
    struct Place {
        u32 head, pair, half;
    };
    PROPOLIS_METHOD Place place(i64 item) const {
        const u32 each = (u32)dim / 2, both = (u32)item / 2;
        return {both / each, both % each, (u32)item % 2};
    }
    PROPOLIS_METHOD i64 operator()(i64 item, int = 0) const {
        const Place at = place(item);
        const bool apart = !interleaved && at.pair < (u32)pairs;
        return (i64)at.head * dim + (apart ? at.pair + at.half * (u32)pairs : 2 * at.pair + at.half);
    }
    PROPOLIS_METHOD Angle angle(i64 item, i64 position) const {
        const Place at = place(item);
        if (at.head >= (u32)heads || at.pair >= (u32)pairs) return {PLAIN, 1, 0};
        if (position < 0 || position >= rows) return {NOWHERE, 0, 0};
        return {ROTATED, cos[position * cos_row + at.pair], sin[position * sin_row + at.pair]};
    }
};

// Where heads go: those of queries to `out`, others into a cache, if there is one.  A slot outside of it is not
// written.
struct Kept {
    void* cache;
    const i32* slot;
    i64 slot_stride, head_stride, capacity;  // in elements
    i32 queries;
    i32 bits;  // of an element: 32, 16 or, of bf16, -16

    template <class T>
    PROPOLIS_METHOD void put(T* out, i64 row, i32 dim, f32 value) const {
        if (!cache || row < (i64)queries * dim) {
            out[row] = narrow<T>(value);
            return;
        }
        const i64 to = *slot, head = (u32)row / (u32)dim;
        if (to < 0 || to >= capacity) return;
        const i64 at = to * slot_stride + (head - queries) * head_stride + (row - head * dim);
        if (bits == 32) ((f32*)cache)[at] = value;
        else if (bits == 16) ((f16*)cache)[at] = narrow<f16>(value);
        else ((bf16*)cache)[at] = narrow<bf16>(value);
    }
};

// A block has an even number of items at a time, as the product has rows: both of a pair.
template <class Held, class T>
PROPOLIS_FN void product_of_turned(const NormedRow<T>& x, T* out, const u8* w, i64 n, i64 depth, i64 row_bytes,
                                   const Turn& turn, const Kept& kept, int lanes, int threads) {
    PROPOLIS_DYNAMIC_SHARED(u32, shared);
    __shared__ f32 sums[2][THREADS / RUN];  // of the items of a block, of RUN lanes at least, and of those after them
    const Held held(shared, (int)depth);
    const int own = (int)thread_x() / lanes;
    const i64 first = block_x() * (threads / lanes) + own, position = *turn.position;
    Turn::Angle angle = {};
    int turns = 0;
    products_of_one<1>(
        held, w, n, row_bytes, lanes, threads, turn,
        [&] {
            x.fill(held, (int)depth, threads);
            angle = turn.angle(first < n ? first : 0, position);  // on its way while rows are multiplied
        },
        [&](bool mine, i64 item, const f32(&sum)[1]) {
            f32* found = sums[turns++ % 2];
            if (mine) found[own] = sum[0];
            __syncthreads();
            if (!mine) return;
            if (item != first) angle = turn.angle(item, position);
            const f32 other = found[own ^ 1];
            const f32 turned = item % 2 ? other * angle.sine + sum[0] * angle.cosine
                                        : sum[0] * angle.cosine - other * angle.sine;
            const f32 value = angle.kind == Turn::ROTATED ? turned : angle.kind == Turn::PLAIN ? sum[0] : 0;
            kept.put(out, turn(item), turn.dim, value);
        });
}
