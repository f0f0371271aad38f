// Attention of many queries of a sequence, in the lanes of one vector or two.
#pragma once

#include <vector>

#include "attention.h"
#include "pool.h"
#include "room.h"

namespace propolis {
namespace {

constexpr int TOGETHER = VECTOR == 64 ? 8 : VECTOR == 32 ? 4 : 2;  // sums of a vector that are in registers
constexpr int ABREAST = VECTOR >= 32 ? 4 : 1;                      // keys whose scores are
constexpr i64 SIDES = 4;                                        // blocks of queries that share keys
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

// Queries of a head in N vectors, a lane each, and what they have of the keys so far.
template <int N>
struct Side {
    static constexpr i64 LANES = propolis::LANES * N, EACH = propolis::LANES;

    i64 head, first, count, origin;  // the token of lane 0, in its sequence; the position of that
    Range range;                     // of the keys that some of them see
    f32 *q = nullptr, *acc = nullptr, *tops = nullptr;  // scaled; sums; largest scores, and totals: [..][lane]

    static i64 size(i64 dim, i64 value_dim) { return LANES * (dim + value_dim + 2); }

    template <class T>
    void open(const Attention& a, const Sequence& s, f32* at) {
        const i64 dim = a.q.shape[3], value_dim = a.out.shape[3];
        q = at;
        acc = q + LANES * dim;
        tops = acc + LANES * value_dim;
        for (i64 lane = 0; lane < LANES; ++lane) {
            const T* from = (const T*)a.q.at + s.row * a.q.strides[0] +
                            (s.first + first + std::min(lane, count - 1)) * a.q.strides[1] + head * a.q.strides[2];
            for (i64 i = 0; i < dim; ++i) q[i * LANES + lane] = wide(from[i]) * a.scale;
        }
        std::fill(acc, tops, 0.0f);
        std::fill(tops, tops + LANES, -INFINITE);
        std::fill(tops + LANES, tops + 2 * LANES, 0.0f);
    }

    // n keys and their values, from the j0-th on, in one part.
    void add(const Attention& a, const f32* const* key, const f32* const* value, i64 j0, i64 n, f32* scores) {
        const i64 dim = a.q.shape[3], value_dim = a.out.shape[3];
        score_lanes<N>(key, n, q, dim, scores);
        bend<N>(a, head, origin, count, j0, n, scores);
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
        for (; e + TOGETHER <= value_dim; e += TOGETHER) weigh_some<N, TOGETHER>(value, n, scores, before, next, e, acc);
        for (; e < value_dim; ++e) weigh_some<N, 1>(value, n, scores, before, next, e, acc);
    }

    template <class T>
    void close(const Attention& a, const Sequence& s) const {
        const i64 heads = a.q.shape[2], value_dim = a.out.shape[3];
        for (i64 lane = 0; lane < count; ++lane) {
            const i64 token = s.first + first + lane;
            const f32 sums = tops[LANES + lane];
            T* out = (T*)a.out.at + ((s.row * a.q.shape[1] + token) * heads + head) * value_dim;
            const f32 inverse = sums == 0 ? 1.0f : 1.0f / sums;
            for (i64 e = 0; e < value_dim; ++e) out[e] = narrow<T>(acc[e * LANES + lane] * inverse);
            if (a.lse) {
                const f32 less = tops[lane] == -INFINITE ? 0 : tops[lane];
                ((f32*)a.lse)[(s.row * heads + head) * a.q.shape[1] + token] = __builtin_logf(sums) + less;
            }
        }
    }
};

template <class T, class K, int N>
void many(const Attention& a, const Tokens& wanted) {
    typedef Side<N> Queries;
    const i64 kv_heads = a.k.shape[2], group = a.q.shape[2] / kv_heads;
    const i64 dim = a.q.shape[3], value_dim = a.out.shape[3];
    // Tasks: heads of keys, which stay in the cache, by blocks of queries of a sequence: SIDES and more of them, of
    // all heads that read these keys, so that keys are fetched and widened once for them; fewer where threads would
    // be left without a task.  The last ones first, they see most.
    i64 sides = (SIDES + group - 1) / group, lanes, total;
    const auto blocks = [&](const Sequence& s) { return wanted(s) ? (s.tokens + lanes - 1) / lanes : 0; };
    for (;; sides /= 2) {
        lanes = sides * Queries::LANES;
        total = 0;
        for (i64 s = 0; s < a.batch; ++s) total += blocks(sequence_at(a, s));
        if (sides == 1 || total * kv_heads >= 4 * a.threads) break;
    }
    parallel(a.threads, total * kv_heads, [&](i64 number) {
        i64 block = total - 1 - number % total, index = 0;
        const i64 kv_head = number / total;
        Sequence s = sequence_at(a, 0);
        while (block >= blocks(s)) {
            block -= blocks(s);
            s = sequence_at(a, ++index);
        }
        const Rows<K> keys(a, a.k, s, kv_head), values(a, a.v, s, kv_head);

        constexpr bool direct = std::is_same_v<K, f32>;
        thread_local Room<> memory;
        thread_local std::vector<Queries> members;
        const i64 score_size = (PART + ABREAST) * Queries::LANES;
        const i64 wide_rows = direct ? 0 : PART * (padded(dim) + padded(value_dim));
        f32* scores = memory.of(score_size + wide_rows + group * sides * Queries::size(dim, value_dim));
        f32 *widened = scores + score_size, *at = widened + wide_rows;
        members.clear();
        Range range{s.valid, 0};
        for (i64 first = block * lanes; first < std::min((block + 1) * lanes, s.tokens); first += Queries::LANES) {
            const i64 count = std::min(Queries::LANES, s.tokens - first), origin = s.valid - s.tokens + first;
            const Range own = seen(a, s.valid, origin, origin + count - 1);
            range = {std::min(range.first, own.first), std::max(range.end, own.end)};
            for (i64 g = 0; g < group; ++g, at += Queries::size(dim, value_dim)) {
                members.push_back({kv_head * group + g, first, count, origin, own});
                members.back().template open<T>(a, s, at);
            }
        }
        for (i64 j0 = range.first, end; j0 < range.end; j0 = end) {
            end = std::min(part_end(j0), range.end);
            const f32 *key[PART], *value[PART];
            for (i64 j = 0; j < end - j0; ++j) {
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
                    for (i64 i = 0; i < dim; i += LANES) store(to + i, kept_at(from, i, dim - i));
                    for (i64 i = 0; i < value_dim; i += LANES) store(to_value + i, kept_at(from_value, i, value_dim - i));
                    key[j] = to;
                    value[j] = to_value;
                }
            }
            for (Queries& own : members) {
                const i64 first = std::max(j0, own.range.first), n = std::min(end, own.range.end) - first;
                if (n > 0) own.add(a, key + (first - j0), value + (first - j0), first, n, scores);
            }
        }
        for (const Queries& own : members) own.template close<T>(a, s);
    });
}

}  // namespace
}  // namespace propolis
