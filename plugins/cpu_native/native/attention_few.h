// Attention of few queries of a sequence: each is looked at by itself, key by key, and its keys are shared out.
#pragma once

#include <memory>

#include "attention.h"
#include "pool.h"
#include "room.h"

namespace propolis {
namespace {

constexpr i64 SHARE = 8 * PART;  // keys of a task

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

}  // namespace
}  // namespace propolis
