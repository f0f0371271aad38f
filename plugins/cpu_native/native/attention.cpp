// Attention: few queries of a sequence, key by key; many, in the lanes of one vector or two.
// Sums and softmax are in f32.  Semantics: core's propolis/ops/attention.py.
//
// Either way the same numbers are added in the same order, so that a query gets the same bits however many
// others its sequence or batch has: what a prompt leaves does not depend on where it was parted.  (Many queries
// multiply by 0 what is hidden from some: an infinity there makes NaN, which it does not beside few.)  A score is
// sixteen sums, of each sixteenth product, put on each other as `sum` does; keys go in parts, of the same
// positions for all queries, with their own largest score, and one part after the other is added to those before.
#include <algorithm>
#include <memory>

#include "attention.h"
#include "pool.h"
#include "room.h"

namespace propolis {
namespace {

constexpr i64 FEW = 4;       // queries of a sequence, up to which each is looked at by itself
constexpr i64 PART = 64;     // keys looked at together, from a multiple of it on
constexpr i64 LINE = 16;      // numbers that memory brings together
constexpr i64 SHARE = 8 * PART;  // keys of a task, where there are few queries
constexpr int TOGETHER = VECTOR == 64 ? 8 : VECTOR == 32 ? 4 : 2;  // sums of a vector that are in registers
constexpr int ABREAST = VECTOR == 64 ? 4 : VECTOR == 32 ? 2 : 1;   // keys whose scores are
constexpr int MOST_VECTORS = VECTOR == 64 ? 2 : 1;                // of queries, for which there are registers

// -- few queries -----------------------------------------------------------------------------------

// The end of the part that a key is in.
PROPOLIS_INLINE i64 part_end(i64 key) { return (key / PART + 1) * PART; }

// A score as a cap and the distance between query and key bend it.
PROPOLIS_INLINE f32 bent(const Attention& a, f32 score, f32 slope, i64 distance) {
    return capped(score, a.softcap) - slope * (f32)std::abs(distance);
}

// Which sequences a call is for.
struct Tokens {
    i64 least, most;
    bool operator()(const Sequence& s) const { return s.tokens >= least && s.tokens <= most; }
};

// Rows asked for before their turn: they lie in pages, and what guesses the next line stops at a page's end.
constexpr i64 AHEAD = 16;

template <class K>
PROPOLIS_INLINE void ask_for(const K* row, i64 dim) {
    for (i64 i = 0; i < extent<K>(dim); i += LINE * 4 / (i64)sizeof(K)) __builtin_prefetch(row + i);
}

// Keys whose scores are summed side by side: where there are registers, as many as are summed up in one go.
constexpr i64 BESIDE = VECTOR == 64 ? LANES : 4;

PROPOLIS_INLINE void store_sums(f32* to, const F32s (&sums)[LANES]) { store(to, sum_each(sums)); }
PROPOLIS_INLINE void store_sums(f32* to, const F32s (&sums)[4]) {
    for (i64 u = 0; u < 4; ++u) to[u] = sum(sums[u]);
}

// Heads of one query over n keys, of `ready` that will be wanted: scores[g][j], and some beyond the last.  Their
// values are wanted next.
template <class K>
void score(const K* const* keys, const K* const* values, i64 n, i64 ready, const f32* q, i64 heads, i64 dim,
           i64 value_dim, f32* scores) {
    const i64 wide_dim = padded(dim);
    for (i64 j = 0; j < n; j += BESIDE) {
        const K* key[BESIDE];
        for (i64 u = 0; u < BESIDE; ++u) key[u] = keys[std::min(j + u, n - 1)];
        for (i64 u = j + AHEAD; u < std::min(j + AHEAD + BESIDE, ready); ++u) ask_for(keys[u], dim);
        for (i64 u = j; u < std::min(j + BESIDE, n); ++u) ask_for(values[u], value_dim);
        for (i64 g = 0; g < heads; ++g) {
            F32s sums[BESIDE];
#pragma GCC unroll 16
            for (i64 u = 0; u < BESIDE; ++u) sums[u] = splat(0.0f);
            i64 i = 0;
            for (; i + LANES <= dim; i += LANES) {
                const F32s own = load(q + g * wide_dim + i);
#pragma GCC unroll 16
                for (i64 u = 0; u < BESIDE; ++u) sums[u] = fma(own, kept_at(key[u], i, LANES), sums[u]);
            }
            if (i < dim) {
                const F32s own = load(q + g * wide_dim + i);
                for (i64 u = 0; u < BESIDE; ++u) sums[u] = fma(own, kept_at(key[u], i, dim - i), sums[u]);
            }
            store_sums(scores + g * PART + j, sums);
        }
    }
}

// acc[g] += weights[g][j] * values[j], four vectors of each of G heads at a time.
template <int G, class K>
void weigh(const K* const* values, i64 n, const f32* weights, i64 dim, f32* acc) {
    constexpr int V = 4;
    const i64 wide_dim = padded(dim);
    i64 i = 0;
    for (; i + V * LANES <= dim; i += V * LANES) {
        F32s sums[G][V];
        for (int g = 0; g < G; ++g)
            for (int v = 0; v < V; ++v) sums[g][v] = splat(0.0f);
        for (i64 j = 0; j < n; ++j) {
            F32s row[V];
#pragma GCC unroll 4
            for (int v = 0; v < V; ++v) row[v] = kept_at(values[j], i + v * LANES, LANES);
#pragma GCC unroll 4
            for (int g = 0; g < G; ++g) {
                const F32s w = splat(weights[g * PART + j]);
#pragma GCC unroll 4
                for (int v = 0; v < V; ++v) sums[g][v] = fma(w, row[v], sums[g][v]);
            }
        }
        for (int g = 0; g < G; ++g) {
            for (int v = 0; v < V; ++v) store(acc + g * wide_dim + i + v * LANES, sums[g][v]);
        }
    }
    for (; i < dim; i += LANES) {
        F32s sums[G];
        for (int g = 0; g < G; ++g) sums[g] = splat(0.0f);
        for (i64 j = 0; j < n; ++j) {
            const F32s row = kept_at(values[j], i, dim - i);
            for (int g = 0; g < G; ++g) sums[g] = fma(splat(weights[g * PART + j]), row, sums[g]);
        }
        for (int g = 0; g < G; ++g) store(acc + g * wide_dim + i, sums[g]);
    }
}

// What a query and head has of some keys: the largest score, the sum of exponentials less it, and weighted values.
struct Partial {
    f32 *top, *total, *values;
    Partial(f32* at, i64 head, i64 group, i64 wide) : top(at + 2 * head), total(top + 1), values(at + 2 * group + head * wide) {}
};

// Parts of one query and head, one added to those before: `each` numbers apart.  The first one has the sum.
void add_parts(f32* at, i64 count, i64 each, i64 head, i64 group, i64 wide) {
    const Partial all(at, head, group, wide);
    f32 top = -INFINITE, total = 0;
    for (i64 first = 0; first < count; first += LANES) {
        const i64 some = std::min<i64>(LANES, count - first);
        f32 before[LANES] = {}, next[LANES] = {};
        for (i64 i = 0; i < some; ++i) {
            const f32 own = *Partial(at + (first + i) * each, head, group, wide).top, larger = std::max(top, own);
            before[i] = larger == -INFINITE ? top : top - larger;
            next[i] = larger == -INFINITE ? own : own - larger;
            top = larger;
        }
        store(before, exp_below(load(before)));
        store(next, exp_below(load(next)));
        for (i64 i = 0; i < some; ++i) {
            const Partial own(at + (first + i) * each, head, group, wide);
            total = *own.total * next[i] + product(total, before[i]);
            for (i64 e = 0; e < wide; e += LANES) {
                const F32s old = first + i ? product(load(all.values + e), splat(before[i])) : splat(0.0f);
                store(all.values + e, fma(load(own.values + e), splat(next[i]), old));
            }
        }
    }
    *all.top = top;
    *all.total = total;
}

template <class T, class K>
void few(const Attention& a, const Tokens& wanted) {
    const i64 heads = a.q.shape[2], kv_heads = a.k.shape[2], group = heads / kv_heads;
    const i64 dim = a.q.shape[3], value_dim = a.out.shape[3];
    const i64 wide_dim = padded(dim), wide_values = padded(value_dim);

    // A task is a query, a head of keys, and some keys: parts from the `part`-th of all on.
    struct Task {
        i64 place, first, end, part;
    };
    struct Place {
        i64 sequence, token, head, part, parts, tasks;
    };
    thread_local std::unique_ptr<Task[]> tasks;
    thread_local std::unique_ptr<Place[]> places;
    thread_local i64 task_room = 0, place_room = 0;
    i64 total_tokens = 0, most = 0;
    for (i64 s = 0; s < a.batch; ++s) {
        const Sequence sequence = sequence_at(a, s);
        if (!wanted(sequence)) continue;
        total_tokens += sequence.tokens;
        most += sequence.tokens * (sequence.valid / SHARE + 2);
    }
    if (place_room < total_tokens * kv_heads) {
        places.reset(new Place[total_tokens * kv_heads]);
        place_room = total_tokens * kv_heads;
    }
    if (task_room < most * kv_heads) {
        tasks.reset(new Task[most * kv_heads]);
        task_room = most * kv_heads;
    }
    i64 count = 0, spots = 0, parts = 0, work = 0;
    for (i64 s = 0; s < a.batch; ++s) {
        const Sequence sequence = sequence_at(a, s);
        if (!wanted(sequence)) continue;
        for (i64 t = 0; t < sequence.tokens; ++t) {
            const i64 position = sequence.valid - sequence.tokens + t;
            const Range keys = seen(a, sequence.valid, position, position);
            for (i64 h = 0; h < kv_heads; ++h) {
                Place& place = places[spots];
                place = {s, t, h, parts, 0, 0};
                for (i64 j = keys.first; j < keys.end;) {
                    const i64 end = std::min(part_end(j) + SHARE - PART, keys.end);
                    tasks[count++] = {spots, j, end, parts};
                    ++place.tasks;
                    parts += (end - 1) / PART - j / PART + 1;
                    work += end - j;
                    j = end;
                }
                place.parts = parts - place.part;
                ++spots;
            }
        }
    }
    // What each part leaves: of each head its largest score, its sum of exponentials, and values.
    thread_local Room<> left;
    const i64 each = group * (2 + wide_values);
    const Task* all = tasks.get();
    const Place* spot = places.get();
    f32* partial = left.of(parts * each);
    work *= group * (dim + value_dim);
    const auto finish = [&](const Place& place) {
        const Sequence s = sequence_at(a, place.sequence);
        for (i64 g = 0; g < group; ++g) {
            const i64 h = place.head * group + g, token = s.first + place.token;
            T* out = (T*)a.out.at + ((s.row * a.q.shape[1] + token) * heads + h) * value_dim;
            const Partial all(partial + place.part * each, g, group, wide_values);
            f32 top = -INFINITE, total = 0;
            if (place.parts > 0) {
                add_parts(partial + place.part * each, place.parts, each, g, group, wide_values);
                top = *all.top;
                total = *all.total;
            }
            const F32s inverse = splat(total == 0 ? 1.0f : 1.0f / total);  // else 0, or NaN by what 0 multiplied
            for (i64 e = 0; e < value_dim; e += LANES) {
                store_some(out + e, place.parts ? load(all.values + e) * inverse : splat(0.0f), value_dim - e);
            }
            if (a.lse) {
                const f32 less = top == -INFINITE ? 0 : top;
                ((f32*)a.lse)[(s.row * heads + h) * a.q.shape[1] + token] = __builtin_logf(total) + less;
            }
        }
    };
    parallel(work < (1 << 16) ? 1 : a.threads, count, [&](i64 number) {
        const Task& task = all[number];
        const Place& place = spot[task.place];
        const Sequence s = sequence_at(a, place.sequence);
        const i64 position = s.valid - s.tokens + place.token;
        const Rows<K> all_keys(a, a.k, s, place.head), all_values(a, a.v, s, place.head);
        const K *keys[SHARE], *values[SHARE];
        for (i64 j = 0; j < task.end - task.first; ++j) {
            keys[j] = all_keys[task.first + j];
            values[j] = all_values[task.first + j];
            if (j < AHEAD) ask_for(keys[j], dim);
        }
        thread_local Room<> memory;
        constexpr i64 G = 4;
        f32 *q = memory.of(group * wide_dim + G * PART), *scores = q + group * wide_dim;
        for (i64 g = 0; g < group; ++g) {
            const T* from = (const T*)a.q.at + s.row * a.q.strides[0] + (s.first + place.token) * a.q.strides[1] +
                            (place.head * group + g) * a.q.strides[2];
            for (i64 i = 0; i < dim; i += LANES) {
                store(q + g * wide_dim + i, load_some(from + i, dim - i) * splat(a.scale));
            }
        }
        f32* own = partial + task.part * each;
        for (i64 first = task.first, end; first < task.end; first = end, own += each) {
            end = std::min(part_end(first), task.end);
            const i64 n = end - first, ready = task.end - first;
            const K *const *key = keys + (first - task.first), *const *value = values + (first - task.first);
            for (i64 g0 = 0; g0 < group; g0 += G) {
                const i64 some = std::min(G, group - g0);
                score(key, value, n, ready, q + g0 * wide_dim, some, dim, value_dim, scores);
                for (i64 g = 0; g < some; ++g) {
                    f32* row = scores + g * PART;
                    const i64 h = place.head * group + g0 + g;
                    if (a.softcap != 0 || a.alibi) {
                        const f32 slope = a.alibi ? a.alibi[h] : 0;
                        for (i64 j = 0; j < n; ++j) row[j] = bent(a, row[j], slope, position - first - j);
                    }
                    for (i64 j = n; j < padded(n); ++j) row[j] = -INFINITE;
                    F32s tops = splat(-INFINITE), totals = splat(0.0f);
                    for (i64 j = 0; j < n; j += LANES) tops = larger(load(row + j), tops);
                    const f32 top = largest(tops);
                    const F32s less = splat(top == -INFINITE ? 0.0f : top);
                    for (i64 j = 0; j < n; j += LANES) {
                        const F32s e = exp_below(load(row + j) - less);
                        store(row + j, e);
                        totals = totals + e;
                    }
                    const Partial left(own, g0 + g, group, wide_values);
                    *left.top = top;
                    *left.total = sum(totals);
                }
                f32* to = Partial(own, g0, group, wide_values).values;
                switch (some) {
                    case 1: weigh<1>(value, n, scores, value_dim, to); break;
                    case 2: weigh<2>(value, n, scores, value_dim, to); break;
                    case 3: weigh<3>(value, n, scores, value_dim, to); break;
                    case 4: weigh<4>(value, n, scores, value_dim, to); break;
                }
            }
        }
        if (place.tasks == 1) finish(place);
    });
    i64 parted = 0;
    for (i64 i = 0; i < spots; ++i) parted += spot[i].tasks == 1 ? 0 : spot[i].parts;
    if (parted == 0 && count == spots) return;
    parallel(parted * group * value_dim < (1 << 15) ? 1 : a.threads, spots, [&](i64 number) {
        if (spot[number].tasks != 1) finish(spot[number]);
    });
}

// -- many queries ----------------------------------------------------------------------------------

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

void attention(const Attention& a) {
    bool some[3] = {};
    constexpr Tokens kinds[3] = {{1, FEW}, {FEW + 1, LANES}, {LANES + 1, INT64_MAX}};
    for (i64 s = 0; s < a.batch; ++s) {
        for (int kind = 0; kind < 3; ++kind) some[kind] |= kinds[kind](sequence_at(a, s));
    }
    const auto run = [&](auto type, auto kept) {
        typedef decltype(type) T;
        typedef decltype(kept) K;
        if (some[0]) few<T, K>(a, kinds[0]);
        if (some[1]) many<T, K, 1>(a, kinds[1]);
        if (some[2]) many<T, K, MOST_VECTORS>(a, kinds[2]);
    };
    switch (a.kept) {
        case Kept::SAME: return with_type(a.kind, [&](auto type) { run(type, type); });
        case Kept::F16: return run(f32{}, f16{});
        case Kept::BF16: return run(f32{}, bf16{});
        case Kept::Q8: return run(f32{}, Q8{});
    }
}

}  // namespace propolis
