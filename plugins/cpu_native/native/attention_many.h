// Attention of many queries of a sequence, in the lanes of one vector or two.
#pragma once

#include "attention.h"
#include "pool.h"
#include "room.h"

namespace propolis {
namespace {

constexpr int TOGETHER = VECTOR == 64 ? 8 : VECTOR == 32 ? 4 : 2;  // sums of a vector that are in registers
constexpr int ABREAST = VECTOR == 64 ? 4 : VECTOR == 32 ? 2 : 1;   // keys whose scores are
constexpr int MOST_VECTORS = VECTOR == 64 ? 2 : 1;                 // of queries, for which there are registers

// One of the sixteen sums that `score` has in a vector's lanes: of every sixteenth element, from the r-th on.
template <int N>
using Scores = F32s[ABREAST][N];
template <int N>
PROPOLIS_INLINE void score_every(const f32* const (&key)[ABREAST], const f32* q, i64 r, i64 dim, Scores<N>& sums) {
#pragma GCC unroll 8
    for (int u = 0; u < ABREAST; ++u) {
#pragma GCC unroll 2
        for (int n = 0; n < N; ++n) sums[u][n] = splat(0.0f);
    }
    for (i64 i = r; i < dim; i += propolis::LANES) {
#pragma GCC unroll 8
        for (int u = 0; u < ABREAST; ++u) {
            const F32s element = splat(key[u][i]);
#pragma GCC unroll 2
            for (int n = 0; n < N; ++n) sums[u][n] = fma(element, load(q + (i * N + n) * LANES), sums[u][n]);
        }
    }
}
// Those from the r-th on, `apart` from each other, put on each other by halves.
template <int N, int apart>
PROPOLIS_INLINE void score_tree(const f32* const (&key)[ABREAST], const f32* q, i64 r, i64 dim, Scores<N>& sums) {
    if constexpr (apart == LANES) {
        score_every<N>(key, q, r, dim, sums);
    } else {
        Scores<N> others;
        score_tree<N, 2 * apart>(key, q, r, dim, sums);
        score_tree<N, 2 * apart>(key, q, r + apart, dim, others);
#pragma GCC unroll 8
        for (int u = 0; u < ABREAST; ++u) {
#pragma GCC unroll 2
            for (int n = 0; n < N; ++n) sums[u][n] = sums[u][n] + others[u][n];
        }
    }
}

// Scores of queries, one a lane: of each key the sum of its elements times those of the queries.
template <int N>
PROPOLIS_INLINE void score_lanes(const f32* const* keys, i64 count, const f32* q, i64 dim, f32* scores) {
    for (i64 j = 0; j < count; j += ABREAST) {
        const f32* key[ABREAST];
        for (int u = 0; u < ABREAST; ++u) key[u] = keys[std::min(j + u, count - 1)];
        Scores<N> sums;
        score_tree<N, 1>(key, q, 0, dim, sums);
#pragma GCC unroll 8
        for (int u = 0; u < ABREAST; ++u) {
#pragma GCC unroll 2
            for (int n = 0; n < N; ++n) store(scores + ((j + u) * N + n) * LANES, sums[u][n]);
        }
    }
}

PROPOLIS_INLINE F32s or_zero(F32s x) {
    PROPOLIS_EACH x.part[p] = x.part[p] == -INFINITE ? f32v{} : x.part[p];
    return x;
}

// Elements [e, e + U) of acc = acc * before + next * (the sum of weights[j] * values[j]).
template <int N, int U>
PROPOLIS_INLINE void weigh_some(const f32* const* values, i64 count, const f32* weights, const F32s (&before)[N],
                                const F32s (&next)[N], i64 e, f32* acc) {
    F32s sums[U][N];
#pragma GCC unroll 8
    for (int u = 0; u < U; ++u) {
#pragma GCC unroll 2
        for (int n = 0; n < N; ++n) sums[u][n] = splat(0.0f);
    }
    for (i64 j = 0; j < count; ++j) {
        const f32* value = values[j] + e;
        F32s w[N];
#pragma GCC unroll 2
        for (int n = 0; n < N; ++n) w[n] = load(weights + (j * N + n) * LANES);
#pragma GCC unroll 8
        for (int u = 0; u < U; ++u) {
            const F32s element = splat(value[u]);
#pragma GCC unroll 2
            for (int n = 0; n < N; ++n) sums[u][n] = fma(element, w[n], sums[u][n]);
        }
    }
#pragma GCC unroll 8
    for (int u = 0; u < U; ++u) {
#pragma GCC unroll 2
        for (int n = 0; n < N; ++n) {
            f32* at = acc + ((e + u) * N + n) * LANES;
            store(at, fma(sums[u][n], next[n], product(load(at), before[n])));
        }
    }
}

// Of scores of `count` keys the sums of each lane, in the order of `sum` of a vector of sixteen keys.
template <int N, int apart>
PROPOLIS_INLINE F32s total_tree(const f32* weights, i64 r, i64 count) {
    if constexpr (apart < LANES) {
        return total_tree<N, 2 * apart>(weights, r, count) + total_tree<N, 2 * apart>(weights, r + apart, count);
    } else {
        F32s sums = splat(0.0f);
        for (i64 j = r; j < count; j += LANES) sums = sums + load(weights + j * N * LANES);
        return sums;
    }
}

template <class T, class K, int N>
void many(const Attention& a, const Tokens& wanted) {
    constexpr i64 LANES = propolis::LANES * N;  // queries of a task
    constexpr i64 EACH = propolis::LANES;
    const i64 heads = a.q.shape[2], kv_heads = a.k.shape[2], group = heads / kv_heads;
    const i64 dim = a.q.shape[3], value_dim = a.out.shape[3];
    // Tasks: heads of keys, which stay in the cache, by blocks of queries of a sequence; the last ones first,
    // they see most.
    i64 total = 0;
    const auto blocks = [&](const Sequence& s) { return wanted(s) ? (s.tokens + LANES - 1) / LANES : 0; };
    for (i64 s = 0; s < a.batch; ++s) total += blocks(sequence_at(a, s));
    parallel(a.threads, total * kv_heads, [&](i64 number) {
        i64 block = total - 1 - number % total, index = 0;
        const i64 kv_head = number / total;
        Sequence s = sequence_at(a, 0);
        while (block >= blocks(s)) {
            block -= blocks(s);
            s = sequence_at(a, ++index);
        }
        const i64 t0 = block * LANES, count = std::min<i64>(LANES, s.tokens - t0);
        const i64 origin = s.valid - s.tokens + t0;  // position of lane 0
        const Range range = seen(a, s.valid, origin, origin + count - 1);
        const Rows<K> keys(a, a.k, s, kv_head), values(a, a.v, s, kv_head);

        constexpr bool direct = std::is_same_v<K, f32>;
        thread_local Room<> memory;
        const i64 per_head = LANES * (dim + value_dim + 2);
        const i64 wide_rows = direct ? 0 : PART * (padded(dim) + padded(value_dim));
        f32* scores = memory.of(group * per_head + (PART + TOGETHER) * LANES + wide_rows);
        f32* head_memory = scores + (PART + TOGETHER) * LANES;
        f32* widened = head_memory + group * per_head;
        for (i64 g = 0; g < group; ++g) {
            f32 *q = head_memory + g * per_head, *acc = q + LANES * dim, *tops = acc + LANES * value_dim;
            const i64 h = kv_head * group + g;
            for (i64 lane = 0; lane < LANES; ++lane) {
                const T* from = (const T*)a.q.at + s.row * a.q.strides[0] +
                                (s.first + t0 + std::min(lane, count - 1)) * a.q.strides[1] +
                                h * a.q.strides[2];
                for (i64 i = 0; i < dim; ++i) q[i * LANES + lane] = wide(from[i]) * a.scale;
            }
            std::fill(acc, acc + LANES * value_dim, 0.0f);
            std::fill(tops, tops + LANES, -INFINITE);
            std::fill(tops + LANES, tops + 2 * LANES, 0.0f);
        }
        for (i64 j0 = range.first, end; j0 < range.end; j0 = end) {
            end = std::min(part_end(j0), range.end);
            const i64 n = end - j0;
            const f32 *key[PART], *value[PART];
            for (i64 j = 0; j < n; ++j) {
                if constexpr (direct) {
                    key[j] = keys[j0 + j];
                    value[j] = values[j0 + j];
                    if (end + j < range.end) {  // their distances are too long for the machine to guess
                        const f32 *next = keys[end + j], *next_value = values[end + j];
                        for (i64 i = 0; i < dim; i += LINE) __builtin_prefetch(next + i);
                        for (i64 i = 0; i < value_dim; i += LINE) __builtin_prefetch(next_value + i);
                    }
                } else {
                    f32* to = widened + j * padded(dim);
                    f32* to_value = widened + PART * padded(dim) + j * padded(value_dim);
                    const K *from = keys[j0 + j], *from_value = values[j0 + j];
                    for (i64 i = 0; i < dim; i += EACH) store(to + i, kept_at(from, i, dim - i));
                    for (i64 i = 0; i < value_dim; i += EACH) {
                        store(to_value + i, kept_at(from_value, i, value_dim - i));
                    }
                    key[j] = to;
                    value[j] = to_value;
                }
            }
            // Whether some of these keys are hidden from some of these queries.
            const bool edges = (a.right >= 0 && j0 + n - 1 > origin + a.right) ||
                               (a.left >= 0 && j0 < origin + count - 1 - a.left);
            for (i64 g = 0; g < group; ++g) {
                f32 *q = head_memory + g * per_head, *acc = q + LANES * dim;
                f32* tops = acc + LANES * value_dim;
                score_lanes<N>(key, n, q, dim, scores);
                if (a.softcap != 0 || a.alibi || edges) {
                    const f32 slope = a.alibi ? a.alibi[kv_head * group + g] : 0;
                    for (i64 j = 0; j < n; ++j) {
                        f32* row = scores + j * LANES;
                        for (i64 lane = 0; lane < LANES; ++lane) {
                            const i64 position = origin + lane, at = j0 + j;
                            const f32 v = bent(a, row[lane], slope, position - at);
                            const bool hidden = (a.right >= 0 && at > position + a.right) ||
                                                (a.left >= 0 && at < position - a.left);
                            row[lane] = hidden ? -INFINITE : v;
                        }
                    }
                }
                F32s before[N], next[N];
                for (int v = 0; v < N; ++v) {
                    f32* lanes = scores + v * EACH;
                    F32s top = splat(-INFINITE);
                    for (i64 j = 0; j < n; ++j) top = larger(load(lanes + j * LANES), top);
                    const F32s less = or_zero(top);
                    for (i64 j = 0; j < n; ++j) store(lanes + j * LANES, exp_below(load(lanes + j * LANES) - less));
                    const F32s old = load(tops + v * EACH), all = larger(old, top);
                    before[v] = exp_below(old - or_zero(all));
                    next[v] = exp_below(top - or_zero(all));
                    f32* total = tops + LANES + v * EACH;
                    store(total, fma(total_tree<N, 1>(lanes, 0, n), next[v], product(load(total), before[v])));
                    store(tops + v * EACH, all);
                }
                i64 e = 0;
                for (; e + TOGETHER <= value_dim; e += TOGETHER) {
                    weigh_some<N, TOGETHER>(value, n, scores, before, next, e, acc);
                }
                for (; e < value_dim; ++e) weigh_some<N, 1>(value, n, scores, before, next, e, acc);
            }
        }
        for (i64 g = 0; g < group; ++g) {
            const f32* acc = head_memory + g * per_head + LANES * dim;
            const f32* tops = acc + LANES * value_dim;
            const i64 h = kv_head * group + g;
            for (i64 lane = 0; lane < count; ++lane) {
                const i64 token = s.first + t0 + lane;
                const f32 sums = tops[LANES + lane];
                T* out = (T*)a.out.at + ((s.row * a.q.shape[1] + token) * heads + h) * value_dim;
                const f32 inverse = sums == 0 ? 1.0f : 1.0f / sums;
                for (i64 e = 0; e < value_dim; ++e) out[e] = narrow<T>(acc[e * LANES + lane] * inverse);
                if (a.lse) {
                    const f32 less = tops[lane] == -INFINITE ? 0 : tops[lane];
                    ((f32*)a.lse)[(s.row * heads + h) * a.q.shape[1] + token] = __builtin_logf(sums) + less;
                }
            }
        }
    });
}

}  // namespace
}  // namespace propolis
