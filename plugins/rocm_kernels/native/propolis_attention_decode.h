// Attention of one query at a time, as when decoding.
#pragma once

#include "propolis_attention.h"

// A block has one query of one head.  LANES neighbours hold it, eight elements each, and look at
// AHEAD keys at a time, which keeps memory busy; every such group has a softmax of its own, over
// every so many keys.  They are merged at the end.

template <class C>
struct Partial {
    C top;    // the largest score so far
    C total;  // of exponentials of scores less that
    C values[RUN];
};

// Two softmaxes as one: how much the one's exponentials count, of largest scores a and b.
template <class C>
PROPOLIS_FN C share(C a, C top) {
    return math::exp(a - finite_top(top));
}

template <int LANES, class C>
PROPOLIS_FN void merge_warp(Partial<C>& p) {
#pragma unroll
    for (int mask = LANES; mask < PROPOLIS_WARP; mask *= 2) {
        const C other = warp_shfl_xor(p.top, mask);
        const C top = p.top > other ? p.top : other;
        const C own = share(p.top, top);
        p.top = top;
        p.total *= own;
        p.total += warp_shfl_xor(p.total, mask);
#pragma unroll
        for (int e = 0; e < RUN; ++e) {
            p.values[e] *= own;
            p.values[e] += warp_shfl_xor(p.values[e], mask);
        }
    }
}

template <int LANES, int AHEAD, bool packed, class T, class K>
PROPOLIS_FN void decode(const Attention<T, K>& a, const AttentionShape& s) {
    typedef Compute<T> C;
    constexpr int MOST_WARPS = DECODE_THREADS / PROPOLIS_WARP;
    __shared__ C tops[MOST_WARPS], totals[MOST_WARPS];
    __shared__ C values[MOST_WARPS][LANES * RUN];
    const int threads = packed ? DECODE_THREADS : s.threads;
    const int groups = threads / LANES;
    const int warps = threads / PROPOLIS_WARP;
    const int element = (int)thread_x() % LANES * RUN;
    const int group = (int)thread_x() / LANES;

    const i32 row = (i32)(block_x() / (u32)s.heads);  // of all queries of the batch
    const i32 head = (i32)(block_x() % (u32)s.heads);
    i32 index = (i32)((u32)row / (u32)s.total);
    if (a.q_start) {
        index = 0;
        while (index + 1 < s.batch && start_at(a, s, index + 1) <= row) ++index;
    }
    const Sequence sequence = sequence_at(a, s, index);
    const i32 token = a.q_start ? row : row - index * s.total;
    const i32 position = sequence.valid - sequence.tokens + token - sequence.first;
    const Range keys = seen(s, sequence.valid, position, position);

    C q[RUN];
    load_some(a.q + sequence.row * s.q[0] + token * s.q[1] + head * s.q[2] +
                  (element < s.dim ? element * s.q[3] : 0),
              s.q[3], s.dim - element, q);
#pragma unroll
    for (int e = 0; e < RUN; ++e) q[e] *= (C)s.scale;
    const CacheRows<K, packed> k(a, s, a.k, s.k, s.dim, sequence, head / s.group);
    const CacheRows<K, packed> v(a, s, a.v, s.v, s.value_dim, sequence, head / s.group);
    const i64 bias = sequence.index * s.bias[0] + head * s.bias[1] + token * s.bias[2];
    const C slope = a.alibi ? (C)a.alibi[head * s.alibi] : (C)0;
    const C cap = (C)s.softcap;

    Partial<C> p{-(C)PROPOLIS_INF, 0, {}};
    for (i32 next = keys.first; next < keys.end; next += groups * AHEAD) {
        C key[AHEAD][RUN], value[AHEAD][RUN], score[AHEAD];
        const i32 first = next + group;
#pragma unroll
        for (int u = 0; u < AHEAD; ++u) {
            const i32 j = first + u * groups;
            k.fetch(j < keys.end ? j : sequence.valid, element, key[u]);
            v.fetch(j < keys.end ? j : sequence.valid, element, value[u]);
        }
#pragma unroll
        for (int u = 0; u < AHEAD; ++u) {
            score[u] = 0;
#pragma unroll
            for (int e = 0; e < RUN; ++e) score[u] += q[e] * key[u][e];
#pragma unroll
            for (int mask = LANES / 2; mask > 0; mask /= 2) score[u] += warp_shfl_xor(score[u], mask);
            if (cap != 0) score[u] = capped(score[u], cap);
            const i32 j = first + u * groups;
            if (a.bias) {
                score[u] += bias_at(a, s, bias + (j < keys.end ? j : keys.first) * s.bias[3]);
            }
            score[u] -= slope * (C)distance(position, j);
            score[u] = j < keys.end ? score[u] : -(C)PROPOLIS_INF;
        }
        C top = p.top;
#pragma unroll
        for (int u = 0; u < AHEAD; ++u) top = score[u] > top ? score[u] : top;
        const C own = share(p.top, top);
        p.top = top;
        p.total *= own;
#pragma unroll
        for (int e = 0; e < RUN; ++e) p.values[e] *= own;
#pragma unroll
        for (int u = 0; u < AHEAD; ++u) {
            const C weight = share(score[u], top);
            p.total += weight;
#pragma unroll
            for (int e = 0; e < RUN; ++e) p.values[e] += weight * value[u][e];
        }
    }

    merge_warp<LANES>(p);
    const int warp = warp_of_block();
    if (lane_of_warp() < LANES) {
#pragma unroll
        for (int e = 0; e < RUN; ++e) values[warp][element + e] = p.values[e];
        if (lane_of_warp() == 0) {
            tops[warp] = p.top;
            totals[warp] = p.total;
        }
    }
    __syncthreads();
    C top = tops[0];
    for (int w = 1; w < warps; ++w) top = tops[w] > top ? tops[w] : top;
    C total = 0;
    for (int w = 0; w < warps; ++w) total += totals[w] * share(tops[w], top);
    T* out = a.out + (i64)block_x() * s.value_dim;
    for (int e = (int)thread_x(); e < s.value_dim; e += threads) {
        C sum = 0;
        for (int w = 0; w < warps; ++w) sum += values[w][e] * share(tops[w], top);
        out[e] = narrow<T>(total == 0 ? (C)0 : sum / total);
    }
    if (a.lse && thread_x() == 0) {
        const i64 at = ((i64)sequence.row * s.heads + head) * s.total + token;
        a.lse[at] = math::log(total) + finite_top(top);
    }
}
