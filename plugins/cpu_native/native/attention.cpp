// Attention: few queries of a sequence, key by key; many, in the lanes of one vector or two.
// Sums and softmax are in f32.  Semantics: core's propolis/ops/attention.py.
#include <algorithm>
#include <memory>

#include "attention.h"
#include "pool.h"
#include "room.h"

namespace propolis {
namespace {

constexpr i64 FEW = 4;       // queries of a sequence, up to which each is looked at by itself
constexpr i64 KEYS = 64;     // looked at together
constexpr i64 LINE = 16;      // numbers that memory brings together
constexpr i64 PART = 512;    // keys of a task, where there are few queries
constexpr int TOGETHER = VECTOR == 64 ? 8 : VECTOR == 32 ? 4 : 2;  // sums of a vector that are in registers
constexpr int MOST_VECTORS = VECTOR == 64 ? 2 : 1;                // of queries, for which there are registers

// -- few queries -----------------------------------------------------------------------------------

// What a task knows of one query and head: the largest score, the sum of exponentials less it, and the
// weighted values.
struct Partial {
    f32 top, total;
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

// Heads of one query over n keys: scores[g][j], and some beyond the last.  Their values are wanted next.
template <class K>
void score(const K* const* keys, const K* const* values, i64 n, const f32* q, i64 heads, i64 dim, i64 value_dim,
           f32* scores) {
    const i64 wide_dim = padded(dim);
    for (i64 j = 0; j < n; j += BESIDE) {
        const K* key[BESIDE];
        for (i64 u = 0; u < BESIDE; ++u) key[u] = keys[std::min(j + u, n - 1)];
        for (i64 u = j + AHEAD; u < std::min(j + AHEAD + BESIDE, n); ++u) ask_for(keys[u], dim);
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

template <class T, class K>
void few(const Attention& a) {
    const i64 heads = a.q.shape[2], kv_heads = a.k.shape[2], group = heads / kv_heads;
    const i64 dim = a.q.shape[3], value_dim = a.out.shape[3];
    const i64 wide_dim = padded(dim), wide_values = padded(value_dim);

    // A task is a query, a head of keys, and some keys.
    struct Task {
        i64 sequence, token, head, first, end, part;
    };
    struct Place {
        i64 sequence, token, head, tasks, at;
    };
    thread_local std::unique_ptr<Task[]> tasks;
    thread_local std::unique_ptr<Place[]> places;
    thread_local i64 task_room = 0, place_room = 0;
    i64 total_tokens = 0, most = 0;
    for (i64 s = 0; s < a.batch; ++s) {
        const Sequence sequence = sequence_at(a, s);
        total_tokens += sequence.tokens;
        most += sequence.tokens * (sequence.valid / PART + 1);
    }
    if (place_room < total_tokens * kv_heads) {
        place_room = total_tokens * kv_heads;
        places.reset(new Place[place_room]);
    }
    if (task_room < most * kv_heads) {
        task_room = most * kv_heads;
        tasks.reset(new Task[task_room]);
    }
    i64 count = 0, spots = 0;
    for (i64 s = 0; s < a.batch; ++s) {
        const Sequence sequence = sequence_at(a, s);
        for (i64 t = 0; t < sequence.tokens; ++t) {
            const i64 position = sequence.valid - sequence.tokens + t;
            const Range keys = seen(a, sequence.valid, position, position);
            for (i64 h = 0; h < kv_heads; ++h) {
                Place& place = places[spots++];
                place = {s, t, h, 0, count};
                i64 j = keys.first;
                do {
                    const i64 end = std::min(j + PART, keys.end);
                    tasks[count] = {s, t, h, j, end, count};
                    ++count;
                    ++place.tasks;
                    j = end;
                } while (j < keys.end);
            }
        }
    }
    // What each task leaves: of each head a Partial and values.
    thread_local Room<> left;
    const i64 each = group * (2 + wide_values);
    const Task* all = tasks.get();
    const Place* spot = places.get();
    f32* partial = left.of(count * each);
    i64 work = 0;
    for (i64 i = 0; i < count; ++i) work += (all[i].end - all[i].first) * group * (dim + value_dim);
    parallel(work < (1 << 16) ? 1 : a.threads, count, [&](i64 number) {
        const Task& task = all[number];
        const Sequence s = sequence_at(a, task.sequence);
        const i64 position = s.valid - s.tokens + task.token, n = task.end - task.first;
        f32* own = partial + number * each;
        f32* acc = own + 2 * group;
        const Rows<K> all_keys(a, a.k, s, task.head), all_values(a, a.v, s, task.head);
        const K *keys[PART], *values[PART];
        for (i64 j = 0; j < n; ++j) {
            keys[j] = all_keys[task.first + j];
            values[j] = all_values[task.first + j];
            if (j < AHEAD) ask_for(keys[j], dim);
        }
        thread_local Room<> memory;
        constexpr i64 G = 4;
        f32 *q = memory.of(G * (wide_dim + PART)), *scores = q + G * wide_dim;
        for (i64 g0 = 0; g0 < group; g0 += G) {
            const i64 some = std::min(G, group - g0);
            for (i64 g = 0; g < some; ++g) {
                const i64 h = task.head * group + g0 + g;
                const T* from = (const T*)a.q.at + s.row * a.q.strides[0] +
                                (s.first + task.token) * a.q.strides[1] + h * a.q.strides[2];
                for (i64 i = 0; i < dim; i += LANES) {
                    store(q + g * wide_dim + i, load_some(from + i, dim - i) * splat(a.scale));
                }
            }
            score(keys, values, n, q, some, dim, value_dim, scores);
            for (i64 g = 0; g < some; ++g) {
                f32* row = scores + g * PART;
                const i64 h = task.head * group + g0 + g;
                if (a.softcap != 0) {
                    for (i64 j = 0; j < n; ++j) row[j] = capped(row[j], a.softcap);
                }
                if (a.alibi) {
                    for (i64 j = 0; j < n; ++j) {
                        row[j] -= a.alibi[h] * (f32)std::abs(position - task.first - j);
                    }
                }
                for (i64 j = n; j < padded(n); ++j) row[j] = -INFINITE;
                F32s tops = splat(-INFINITE), totals = splat(0.0f);
                for (i64 j = 0; j < n; j += LANES) tops = larger(load(row + j), tops);
                const f32 top = largest(tops);
                const F32s less = splat(top == -INFINITE ? 0.0f : top);
                for (i64 j = 0; j < n; j += LANES) {
                    const F32s e = exp(load(row + j) - less);
                    store(row + j, e);
                    totals = totals + e;
                }
                const f32 total = sum(totals);
                own[2 * (g0 + g)] = top;
                own[2 * (g0 + g) + 1] = total;
            }
            f32* to = acc + g0 * wide_values;
            switch (some) {
                case 1: weigh<1>(values, n, scores, value_dim, to); break;
                case 2: weigh<2>(values, n, scores, value_dim, to); break;
                case 3: weigh<3>(values, n, scores, value_dim, to); break;
                case 4: weigh<4>(values, n, scores, value_dim, to); break;
            }
        }
    });
    for (i64 p = 0; p < spots; ++p) {
        const Place& place = spot[p];
        const Sequence s = sequence_at(a, place.sequence);
        for (i64 g = 0; g < group; ++g) {
            const i64 h = place.head * group + g, token = s.first + place.token;
            f32 top = -INFINITE, total = 0;
            for (i64 i = place.at; i < place.at + place.tasks; ++i) top = std::max(top, partial[i * each + 2 * g]);
            const f32 less = top == -INFINITE ? 0 : top;
            T* out = (T*)a.out.at + ((s.row * a.q.shape[1] + token) * heads + h) * value_dim;
            for (i64 i = place.at; i < place.at + place.tasks; ++i) {
                total += partial[i * each + 2 * g + 1] * __builtin_expf(partial[i * each + 2 * g] - less);
            }
            for (i64 e = 0; e < value_dim; e += LANES) {
                F32s sums = splat(0.0f);
                for (i64 i = place.at; i < place.at + place.tasks; ++i) {
                    const f32* own = partial + i * each;
                    const f32 share = __builtin_expf(own[2 * g] - less);
                    sums = fma(splat(share), load(own + 2 * group + g * wide_values + e), sums);
                }
                if (total != 0) sums = sums * splat(1.0f / total);  // else 0, or NaN by what 0 multiplied
                store_some(out + e, sums, value_dim - e);
            }
            if (a.lse) {
                ((f32*)a.lse)[(s.row * heads + h) * a.q.shape[1] + token] = __builtin_logf(total) + less;
            }
        }
    }
}

// -- many queries ----------------------------------------------------------------------------------

// Scores of queries, one a lane: of each key the sum of its elements times those of the queries.
template <int N>
PROPOLIS_INLINE void score_lanes(const f32* const* keys, i64 count, const f32* q, i64 dim, f32* scores) {
    for (i64 j = 0; j < count; j += TOGETHER) {
        const f32* key[TOGETHER];
        for (int u = 0; u < TOGETHER; ++u) key[u] = keys[std::min(j + u, count - 1)];
        F32s sums[TOGETHER][N];
#pragma GCC unroll 8
        for (int u = 0; u < TOGETHER; ++u) {
#pragma GCC unroll 2
            for (int n = 0; n < N; ++n) sums[u][n] = splat(0.0f);
        }
        for (i64 i = 0; i < dim; ++i) {
            F32s lanes[N];
#pragma GCC unroll 2
            for (int n = 0; n < N; ++n) lanes[n] = load(q + (i * N + n) * LANES);
#pragma GCC unroll 8
            for (int u = 0; u < TOGETHER; ++u) {
                const F32s element = splat(key[u][i]);
#pragma GCC unroll 2
                for (int n = 0; n < N; ++n) sums[u][n] = fma(element, lanes[n], sums[u][n]);
            }
        }
#pragma GCC unroll 8
        for (int u = 0; u < TOGETHER; ++u) {
#pragma GCC unroll 2
            for (int n = 0; n < N; ++n) store(scores + ((j + u) * N + n) * LANES, sums[u][n]);
        }
    }
}

// Elements [e, e + U) of acc = acc * old + weights[j] * values[j].
template <int N, int U>
PROPOLIS_INLINE void weigh_some(const f32* const* values, i64 count, const f32* weights, const F32s (&old)[N],
                                i64 e, f32* acc) {
    F32s sums[U][N];
#pragma GCC unroll 8
    for (int u = 0; u < U; ++u) {
#pragma GCC unroll 2
        for (int n = 0; n < N; ++n) sums[u][n] = load(acc + ((e + u) * N + n) * LANES) * old[n];
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
        for (int n = 0; n < N; ++n) store(acc + ((e + u) * N + n) * LANES, sums[u][n]);
    }
}

template <class T, class K, int N>
void many(const Attention& a) {
    constexpr i64 LANES = propolis::LANES * N;  // queries of a task
    constexpr i64 EACH = propolis::LANES;
    const i64 heads = a.q.shape[2], kv_heads = a.k.shape[2], group = heads / kv_heads;
    const i64 dim = a.q.shape[3], value_dim = a.out.shape[3];
    // Tasks: heads of keys, which stay in the cache, by blocks of queries of a sequence; the last ones first,
    // they see most.
    i64 total = 0;
    for (i64 s = 0; s < a.batch; ++s) total += (sequence_at(a, s).tokens + LANES - 1) / LANES;
    parallel(a.threads, total * kv_heads, [&](i64 number) {
        i64 block = total - 1 - number % total, index = 0;
        const i64 kv_head = number / total;
        Sequence s = sequence_at(a, 0);
        while (block >= (s.tokens + LANES - 1) / LANES) {
            block -= (s.tokens + LANES - 1) / LANES;
            s = sequence_at(a, ++index);
        }
        const i64 t0 = block * LANES, count = std::min<i64>(LANES, s.tokens - t0);
        const i64 origin = s.valid - s.tokens + t0;  // position of lane 0
        const Range range = seen(a, s.valid, origin, origin + count - 1);
        const Rows<K> keys(a, a.k, s, kv_head), values(a, a.v, s, kv_head);

        constexpr bool direct = std::is_same_v<K, f32>;
        thread_local Room<> memory;
        const i64 per_head = LANES * (dim + value_dim + 2);
        const i64 wide_rows = direct ? 0 : KEYS * (padded(dim) + padded(value_dim));
        f32* scores = memory.of(group * per_head + (KEYS + TOGETHER) * LANES + wide_rows);
        f32* head_memory = scores + (KEYS + TOGETHER) * LANES;
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
        for (i64 j0 = range.first; j0 < range.end; j0 += KEYS) {
            const i64 n = std::min(KEYS, range.end - j0);
            const f32 *key[KEYS], *value[KEYS];
            for (i64 j = 0; j < n; ++j) {
                if constexpr (direct) {
                    key[j] = keys[j0 + j];
                    value[j] = values[j0 + j];
                    if (j0 + KEYS + j < range.end) {  // their distances are too long for the machine to guess
                        const f32 *next = keys[j0 + KEYS + j], *next_value = values[j0 + KEYS + j];
                        for (i64 i = 0; i < dim; i += LINE) __builtin_prefetch(next + i);
                        for (i64 i = 0; i < value_dim; i += LINE) __builtin_prefetch(next_value + i);
                    }
                } else {
                    f32* to = widened + j * padded(dim);
                    f32* to_value = widened + KEYS * padded(dim) + j * padded(value_dim);
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
                            f32 v = capped(row[lane], a.softcap);
                            if (a.alibi) v -= slope * (f32)std::abs(position - at);
                            const bool hidden = (a.right >= 0 && at > position + a.right) ||
                                                (a.left >= 0 && at < position - a.left);
                            row[lane] = hidden ? -INFINITE : v;
                        }
                    }
                }
                F32s less[N], old[N], sums[N];
                for (int v = 0; v < N; ++v) {
                    const F32s before = load(tops + v * EACH);
                    F32s top = before;
                    for (i64 j = 0; j < n; ++j) top = larger(load(scores + j * LANES + v * EACH), top);
                    PROPOLIS_EACH less[v].part[p] = top.part[p] == -INFINITE ? f32v{} : top.part[p];
                    old[v] = exp(before - less[v]);
                    sums[v] = load(tops + LANES + v * EACH) * old[v];
                    store(tops + v * EACH, top);
                }
                for (i64 j = 0; j < n; ++j) {
#pragma GCC unroll 2
                    for (int v = 0; v < N; ++v) {
                        f32* at = scores + j * LANES + v * EACH;
                        const F32s e = exp_below(load(at) - less[v]);
                        store(at, e);
                        sums[v] = sums[v] + e;
                    }
                }
                for (int v = 0; v < N; ++v) store(tops + LANES + v * EACH, sums[v]);
                i64 e = 0;
                for (; e + TOGETHER <= value_dim; e += TOGETHER) weigh_some<N, TOGETHER>(value, n, scores, old, e, acc);
                for (; e < value_dim; ++e) weigh_some<N, 1>(value, n, scores, old, e, acc);
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
                for (i64 e = 0; e < value_dim; ++e) {
                    out[e] = narrow<T>(sums == 0 ? 0.0f : acc[e * LANES + lane] / sums);
                }
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
    i64 most = 0;
    for (i64 s = 0; s < a.batch; ++s) most = std::max(most, sequence_at(a, s).tokens);
    const auto run = [&](auto type, auto kept) {
        typedef decltype(type) T;
        typedef decltype(kept) K;
        most <= FEW ? few<T, K>(a) : most <= LANES ? many<T, K, 1>(a) : many<T, K, MOST_VECTORS>(a);
    };
    switch (a.kept) {
        case Kept::SAME: return with_type(a.kind, [&](auto type) { run(type, type); });
        case Kept::F16: return run(f32{}, f16{});
        case Kept::BF16: return run(f32{}, bf16{});
        case Kept::Q8: return run(f32{}, Q8{});
    }
}

}  // namespace propolis
