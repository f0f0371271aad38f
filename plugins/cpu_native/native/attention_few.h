// Attention of few queries of a sequence: each is looked at by itself, key by key, and its keys are shared out.
#pragma once

#include <bit>
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

// Sixteens of a key that stay in registers while heads pass by.
constexpr int HELD = std::min(4u, REGISTERS / 2 / PARTS);

// C sixteens of a key, from its i-th number on, times those of G heads, added to sums[head][u].
template <int G, int C, class K>
PROPOLIS_INLINE void score_some(const K* key, i64 i, i64 left, const f32* q, i64 wide_dim, F32s (&sums)[G][LANES], i64 u) {
    F32s own[C];
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) own[c] = kept_at(key, i + c * LANES, left);
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g) {
        const f32* row = q + g * wide_dim + i;
        F32s sum = i ? sums[g][u] : splat(0.0f);
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) sum = fma(own[c], load(row + c * LANES), sum);
        sums[g][u] = sum;
    }
}

// G heads of one query over n keys, of `ready` that will be wanted: scores[g][j], and some beyond the last.  Their
// values are wanted next.
template <int G, class K>
void score(const K* const* keys, const K* const* values, i64 n, i64 ready, const f32* q, i64 dim, i64 value_dim,
           f32* scores) {
    const i64 wide_dim = padded(dim);
    for (i64 j = 0; j < n; j += LANES) {
        F32s sums[G][LANES];
        const i64 some = std::min<i64>(LANES, n - j);
        for (i64 u = 0; u < some; ++u) {
            const K* key = keys[j + u];
            if (j + u + AHEAD < ready) ask_for(keys[j + u + AHEAD], dim);
            ask_for(values[j + u], value_dim);
            i64 i = 0;
            for (; i + HELD * LANES <= dim; i += HELD * LANES) score_some<G, HELD>(key, i, LANES, q, wide_dim, sums, u);
            for (; i + LANES <= dim; i += LANES) score_some<G, 1>(key, i, LANES, q, wide_dim, sums, u);
            if (i < dim) score_some<G, 1>(key, i, dim - i, q, wide_dim, sums, u);
        }
        for (int g = 0; g < G; ++g) {
            for (i64 u = some; u < LANES; ++u) sums[g][u] = splat(0.0f);
            store(scores + g * PART + j, sum_each(sums[g]));
        }
    }
}

// acc[g] += weights[g][j] * values[j], V vectors of each of G heads at a time.
template <int G, int V, class K>
PROPOLIS_INLINE void weigh_some(const K* const* values, i64 n, const f32* weights, i64 i, i64 left, i64 wide_dim, f32* acc) {
    F32s sums[G][V];
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g) {
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) sums[g][v] = splat(0.0f);
    }
    for (i64 j = 0; j < n; ++j) {
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) {
            const F32s row = kept_at(values[j], i + v * LANES, left);
#pragma GCC unroll 4
            for (int g = 0; g < G; ++g) sums[g][v] = fma(splat(weights[g * PART + j]), row, sums[g][v]);
            if constexpr (G > 2) read_again();
        }
    }
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g) {
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) store(acc + g * wide_dim + i + v * LANES, sums[g][v]);
    }
}

// As many vectors at a time as there are registers for their sums.
template <int G, class K>
void weigh(const K* const* values, i64 n, const f32* weights, i64 dim, f32* acc) {
    constexpr int V = std::clamp(int(std::bit_floor(REGISTERS * 3 / 4 / unsigned(G * PARTS))), 1, 4);
    const i64 wide_dim = padded(dim);
    i64 i = 0;
    for (; i + V * LANES <= dim; i += V * LANES) weigh_some<G, V>(values, n, weights, i, LANES, wide_dim, acc);
    for (; i < dim; i += LANES) weigh_some<G, 1>(values, n, weights, i, dim - i, wide_dim, acc);
}

// What a query and head has of some keys: the largest score, the sum of exponentials less it, and weighted values.
struct Partial {
    f32 *top, *total, *values;
    Partial(f32* at, i64 head, i64 group, i64 wide) : top(at + 2 * head), total(top + 1), values(at + 2 * group + head * wide) {}
};

// Keys of a part and their values, n of `ready` that will be wanted: from the first-th of a sequence on.
template <class K>
struct Part {
    const K *const *keys, *const *values;
    i64 first, n, ready;
};

// G heads of a query, from h on, over a part: `to(g)` is where what one has of it goes.
template <int G, class K, class To>
void attend(const Attention& a, const Part<K>& part, const f32* q, i64 h, i64 position, f32* scores, To to) {
    const i64 n = part.n, value_dim = a.out.shape[3];
    score<G>(part.keys, part.values, n, part.ready, q, a.q.shape[3], value_dim, scores);
    for (int g = 0; g < G; ++g) {
        f32* row = scores + g * PART;
        if (a.softcap != 0 || a.alibi) {
            const f32 slope = a.alibi ? a.alibi[h + g] : 0;
            for (i64 j = 0; j < n; ++j) row[j] = bent(a, row[j], slope, position - part.first - j);
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
        const Partial left = to(g);
        *left.top = top;
        *left.total = sum(totals);
    }
    weigh<G>(part.values, n, scores, value_dim, to(0).values);
}

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
        constexpr i64 G = 4;  // heads at a time
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
            const i64 skipped = first - task.first;
            const Part<K> part{keys + skipped, values + skipped, first, end - first, task.end - first};
            for (i64 g0 = 0; g0 < group; g0 += G) {
                const auto run = [&](auto heads) {
                    attend<decltype(heads)::value>(a, part, q + g0 * wide_dim, place.head * group + g0, position, scores,
                                                   [&](i64 g) { return Partial(own, g0 + g, group, wide_values); });
                };
                switch (std::min(G, group - g0)) {
                    case 1: run(std::integral_constant<int, 1>{}); break;
                    case 2: run(std::integral_constant<int, 2>{}); break;
                    case 3: run(std::integral_constant<int, 3>{}); break;
                    case 4: run(std::integral_constant<int, 4>{}); break;
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
