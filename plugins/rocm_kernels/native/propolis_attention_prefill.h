// Attention of many queries at once.
#pragma once

#include "propolis_attention.h"
#include "propolis_tile.h"

// A block has SIDE queries of one head, and looks at as many keys at a time: their scores are a
// product of tiles, the weights go through shared memory, and so do the values, COLUMNS * SIDE.
static_assert(SIDE == 64, "threads share queries and keys in squares of 4 x 4, 16 a side");

// Weights (key, query): queries are mixed with the key, as threads write columns of four.
PROPOLIS_FN int weight_at(int key, int query) { return key * SIDE + (query ^ (key & ~3)); }

template <class C>
struct Rows {  // of the four queries of this thread: their softmax so far
    C top[4];
    C total[4];  // of this thread's own keys
};

// The 16 threads of the same queries are neighbours.
template <class C>
PROPOLIS_FN C row_max(C value) {
#pragma unroll
    for (int mask = 8; mask > 0; mask /= 2) {
        const C other = warp_shfl_xor(value, mask);
        value = value > other ? value : other;
    }
    return value;
}
template <class C>
PROPOLIS_FN C row_sum(C value) {
#pragma unroll
    for (int mask = 8; mask > 0; mask /= 2) value += warp_shfl_xor(value, mask);
    return value;
}

// 64 keys from j0 on, and as many elements of their values from `column` on.
template <class K, class C>
PROPOLIS_FN void put_values(C* tile, const CacheRows<K, true>& v, i32 j0, i32 column) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int key = half * 32 + (int)thread_x() / 8;
        const int element = (int)thread_x() % 8 * RUN;
        C run[RUN];
        v.fetch(j0 + key, column + element, run);
        store_four(tile + key * SIDE + element, run);
        store_four(tile + key * SIDE + element + 4, run + 4);
    }
}

template <class C>
PROPOLIS_FN void weigh(const C* weights, const C* values, C (&sum)[4][4]) {
    const int row = own_row();
    const int column = own_column();
#pragma unroll 1
    for (int four = 0; four < SIDE; four += 4) {
#pragma unroll
        for (int key = 0; key < 4; ++key) {
            C a[4], b[4];
            load_four(weights + weight_at(four, row) + key * SIDE, a);
            load_four(values + (four + key) * SIDE + column, b);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
#pragma unroll
                for (int j = 0; j < 4; ++j) sum[i][j] += a[i] * b[j];
            }
        }
    }
}

// The bias of 4 x 4 scores, of its own type.
template <class B, class C>
PROPOLIS_FN void add_bias(const B* bias, const AttentionShape& s, const Sequence& sequence,
                          i32 head, i32 query, i32 key, C (&score)[4][4]) {
    const B* from = bias + sequence.index * s.bias[0] + head * s.bias[1];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const B* row = from + (query + i < sequence.tokens ? query + i : 0) * s.bias[2];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            score[i][j] += (C)wide(row[(key + j < sequence.valid ? key + j : 0) * s.bias[3]]);
        }
    }
}

// From products of queries and keys to what the softmax is of; -inf where a query sees no key.
template <class T, class K, class C>
PROPOLIS_FN void shape_scores(const Attention<T, K>& a, const AttentionShape& s,
                              const Sequence& sequence, i32 head, i32 i0, i32 j0,
                              C (&score)[4][4]) {
    const i32 query = i0 + own_row();
    const i32 key = j0 + own_column();
    const i32 position = sequence.valid - sequence.tokens + query;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) score[i][j] *= (C)s.scale;
    }
    if (s.softcap != 0) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
            for (int j = 0; j < 4; ++j) score[i][j] = capped(score[i][j], (C)s.softcap);
        }
    }
    if (a.bias) {
        if (sizeof(T) != sizeof(f32) && s.wide_bias) {
            add_bias((const f32*)a.bias, s, sequence, head, query, key, score);
        } else {
            add_bias(a.bias, s, sequence, head, query, key, score);
        }
    }
    if (a.alibi) {
        const C slope = (C)a.alibi[head * s.alibi];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                score[i][j] -= slope * (C)distance(position + i, key + j);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const Range own = seen(s, sequence.valid, position + i, position + i);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const bool visible = key + j >= own.first && key + j < own.end;
            score[i][j] = visible ? score[i][j] : -(C)PROPOLIS_INF;
        }
    }
}

// The first of the values that a block has: where these are divided, each row of blocks has others, and
// computes all scores itself.
template <int COLUMNS, bool divided>
PROPOLIS_FN i32 own_values() {
    return divided ? (i32)block_y() * COLUMNS * SIDE : 0;
}

template <int COLUMNS, bool divided = false, class T, class K>
PROPOLIS_FN void prefill(const Attention<T, K>& a, const AttentionShape& s) {
    typedef Compute<T> C;
    __shared__ __attribute__((aligned(16))) C tiles[2 * SIDE * DEPTH<SIDE>];
    __shared__ __attribute__((aligned(16))) C weights[SIDE * SIDE];

    const QueryTile own = query_tile<SIDE>(a, s);
    if (!own.there) return;
    const Sequence sequence = sequence_at(a, s, own.index);
    const i32 head = own.head;
    const i32 i0 = own.tile * SIDE;
    const i32 origin = sequence.valid - sequence.tokens;  // position of query 0
    const i32 last = i0 + SIDE < sequence.tokens ? i0 + SIDE : sequence.tokens;
    const Range keys = seen(s, sequence.valid, origin + i0, origin + last - 1);

    const T* q = a.q + sequence.row * s.q[0] + sequence.first * s.q[1] + head * s.q[2];
    const PackedRows<T> queries{q, s.q[1], sequence.tokens, s.dim};
    const CacheRows<K, true> k(a, s, a.k, s.k, s.dim, sequence, head / s.group);
    const CacheRows<K, true> v(a, s, a.v + own_values<COLUMNS, divided>(), s.v,
                               s.value_dim - own_values<COLUMNS, divided>(), sequence, head / s.group);

    Rows<C> rows;
    C sum[COLUMNS][4][4] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        rows.top[i] = -(C)PROPOLIS_INF;
        rows.total[i] = 0;
    }
#pragma unroll 1
    for (i32 j0 = keys.first; j0 < keys.end; j0 += SIDE) {
        C score[4][4] = {};
        tile_product<SIDE>(queries, k, i0, j0, s.dim, tiles, tiles + SIDE * DEPTH<SIDE>, score);
        shape_scores(a, s, sequence, head, i0, j0, score);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            C top = rows.top[i];
#pragma unroll
            for (int j = 0; j < 4; ++j) top = score[i][j] > top ? score[i][j] : top;
            top = row_max(top);
            const C less = finite_top(top);
            const C old = math::exp(rows.top[i] - less);
            rows.top[i] = top;
            rows.total[i] *= old;
#pragma unroll
            for (int c = 0; c < COLUMNS; ++c) {
#pragma unroll
                for (int j = 0; j < 4; ++j) sum[c][i][j] *= old;
            }
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                score[i][j] = math::exp(score[i][j] - less);
                rows.total[i] += score[i][j];
            }
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const C column[4] = {score[0][j], score[1][j], score[2][j], score[3][j]};
            store_four(weights + weight_at(own_column() + j, own_row()), column);
        }
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) {
            put_values(tiles, v, j0, c * SIDE);
            __syncthreads();
            weigh(weights, tiles, sum[c]);
            __syncthreads();
        }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const C total = row_sum(rows.total[i]);
        const i32 query = i0 + own_row() + i;
        if (query >= sequence.tokens) continue;
        const i32 token = sequence.first + query;
        T* out = a.out + (((i64)sequence.row * s.total + token) * s.heads + head) * s.value_dim;
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const int column = own_values<COLUMNS, divided>() + c * SIDE + own_column() + j;
                const C value = total == 0 ? (C)0 : sum[c][i][j] / total;
                if (column < s.value_dim) out[column] = narrow<T>(value);
            }
        }
        if (a.lse && own_values<COLUMNS, divided>() == 0 && own_column() == 0) {
            const i64 at = ((i64)sequence.row * s.heads + head) * s.total + token;
            a.lse[at] = math::log(total) + finite_top(rows.top[i]);
        }
    }
}
