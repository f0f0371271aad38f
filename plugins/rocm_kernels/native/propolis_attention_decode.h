// Attention of one query at a time, as when decoding.
#pragma once

#include "propolis_attention.h"
#include "propolis_partials.h"

// A block has a query of G heads, or fewer, that share keys and values, and a part of these.  LANES
// neighbours hold the queries, eight elements each, and look at AHEAD keys at a time, which keeps
// memory busy; every such group has softmaxes of its own, over every so many keys.  They are merged
// at the end: of the block first, then of the blocks that have the other parts, by the last of them.

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

// How much each of several softmaxes of a head counts when they are one.
template <class C>
struct Merged {
    C top, total;
    C weights[MOST_PARTS];

    // Of all lanes of a warp; the softmaxes' tops and totals lie `apart`.
    PROPOLIS_METHOD void weigh(const C* tops, const C* totals, int apart, int count) {
        constexpr int EACH = (MOST_PARTS + PROPOLIS_WARP - 1) / PROPOLIS_WARP;
        C own[EACH], part[EACH], largest = -(C)PROPOLIS_INF, sum = 0;
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const int which = lane_of_warp() + i * PROPOLIS_WARP;
            own[i] = which < count ? tops[which * apart] : -(C)PROPOLIS_INF;
            part[i] = which < count ? totals[which * apart] : (C)0;
            largest = own[i] > largest ? own[i] : largest;
        }
        largest = warp_reduce(largest, [](C a, C b) { return a > b ? a : b; });
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const int which = lane_of_warp() + i * PROPOLIS_WARP;
            const C weight = share(own[i], largest);
            if (which < count) weights[which] = weight;
            sum += part[i] * weight;
        }
        sum = warp_reduce(sum, [](C a, C b) { return a + b; });
        if (lane_of_warp() == 0) top = largest, total = sum;
    }
};

// What this block is of: the queries `query` of heads `head` and so many on, and of their keys a part.
struct Share {
    i32 query, head, heads, part;
    u32 output;  // the first of those that the blocks of all parts share
};

template <int G>
PROPOLIS_FN Share share_of_block(const AttentionShape& s, i32 parts) {
    const u32 sets = (u32)(s.group + G - 1) / G;  // of the heads of one head of keys
    const u32 all = sets * (u32)(s.heads / s.group);
    const u32 output = block_x() / (u32)parts;
    const u32 set = output % all;
    const i32 within = (i32)(set % sets) * G;
    return Share{(i32)(output / all), (i32)(set / sets) * s.group + within,
                 s.group - within < G ? s.group - within : G, (i32)(block_x() % (u32)parts),
                 output};
}

// Of queries and keys a group holds DEEP times what its lanes have; where that is more than once, of
// values what the lanes have, and each row of blocks others.
template <int LANES, int AHEAD, int G, bool packed, int DEEP = 1, class T, class K>
PROPOLIS_FN void decode(const Attention<T, K>& a, const AttentionShape& s) {
    typedef Compute<T> C;
    constexpr int MOST_WARPS = DECODE_THREADS / PROPOLIS_WARP;
    __shared__ C tops[MOST_WARPS][G], totals[MOST_WARPS][G];
    __shared__ C values[MOST_WARPS][G][LANES * RUN];
    __shared__ Merged<C> merged[G];
    static_assert(MOST_WARPS <= MOST_PARTS, "decode: warps of a block have no room to be weighed");
    const int threads = packed ? DECODE_THREADS : s.threads;
    const int groups = threads / LANES;
    const int warps = threads / PROPOLIS_WARP;
    const i32 parts = packed ? (i32)s.parts : 1;  // one, where strides leave no registers for more
    constexpr int HELD = LANES * RUN;
    const int element = (int)thread_x() % LANES * RUN;
    const int column0 = DEEP > 1 ? (int)block_y() * HELD : 0;
    const int group = (int)thread_x() / LANES;

    const Share own = share_of_block<G>(s, parts);
    i32 index = (i32)((u32)own.query / (u32)s.total);
    if (a.q_start) {
        index = 0;
        while (index + 1 < s.batch && start_at(a, s, index + 1) <= own.query) ++index;
    }
    const Sequence sequence = sequence_at(a, s, index);
    const i32 token = a.q_start ? own.query : own.query - index * s.total;
    const i32 position = sequence.valid - sequence.tokens + token - sequence.first;
    Range keys = seen(s, sequence.valid, position, position);
    if (parts > 1) {
        const i32 step = groups * AHEAD;
        const i32 each = (keys.end - keys.first + parts * step - 1) / (parts * step) * step;
        keys.first += own.part * each;
        keys.end = keys.end - keys.first < each ? keys.end : keys.first + each;
    }

    C q[G][DEEP][RUN];
#pragma unroll
    for (int g = 0; g < G; ++g) {  // beyond the last head, that once more
        const i32 head = own.head + (g < own.heads ? g : own.heads - 1);
        const T* from = a.q + sequence.row * s.q[0] + token * s.q[1] + head * s.q[2];
#pragma unroll
        for (int d = 0; d < DEEP; ++d) {
            const int at = d * HELD + element;
            load_some(from + (at < s.dim ? at * s.q[3] : 0), s.q[3], s.dim - at, q[g][d]);
#pragma unroll
            for (int e = 0; e < RUN; ++e) q[g][d][e] *= (C)s.scale;
        }
    }
    const i32 kept = own.head / s.group;
    const CacheRows<K, packed> k(a, s, a.k, s.k, s.dim, sequence, kept);
    const CacheRows<K, packed> v(a, s, a.v, s.v, s.value_dim, sequence, kept);
    const i64 bias = sequence.index * s.bias[0] + own.head * s.bias[1] + token * s.bias[2];
    const C slope = G == 1 && a.alibi ? (C)a.alibi[own.head * s.alibi] : (C)0;
    const C cap = (C)s.softcap;

    Partial<C> p[G];
#pragma unroll
    for (int g = 0; g < G; ++g) p[g] = Partial<C>{-(C)PROPOLIS_INF, 0, {}};
    for (i32 next = keys.first; next < keys.end; next += groups * AHEAD) {
        C key[AHEAD][DEEP][RUN], value[AHEAD][RUN], score[G][AHEAD];
        const i32 first = next + group;
        if constexpr (packed) {
            i32 asked[AHEAD], which[AHEAD];
#pragma unroll
            for (int u = 0; u < AHEAD; ++u) asked[u] = first + u * groups < keys.end ? first + u * groups : keys.first;
            k.pages.ask(asked, which);
#pragma unroll
            for (int u = 0; u < AHEAD; ++u) {
                const bool there = first + u * groups < keys.end;
                const Spot spot = k.pages.spot(asked[u], which[u]);
#pragma unroll
                for (int d = 0; d < DEEP; ++d) k.fetch(spot, there, d * HELD + element, key[u][d]);
                v.fetch(spot, there, column0 + element, value[u]);
            }
        } else {
#pragma unroll
            for (int u = 0; u < AHEAD; ++u) {
                const i32 there = first + u * groups < keys.end ? first + u * groups : sequence.valid;
#pragma unroll
                for (int d = 0; d < DEEP; ++d) k.fetch(there, d * HELD + element, key[u][d]);
                v.fetch(there, column0 + element, value[u]);
            }
        }
#pragma unroll
        for (int g = 0; g < G; ++g) {
#pragma unroll
            for (int u = 0; u < AHEAD; ++u) {
                C sum = 0;
#pragma unroll
                for (int d = 0; d < DEEP; ++d) {
#pragma unroll
                    for (int e = 0; e < RUN; ++e) sum += q[g][d][e] * key[u][d][e];
                }
                score[g][u] = sum;
            }
        }
#pragma unroll
        for (int mask = LANES / 2; mask > 0; mask /= 2) {
#pragma unroll
            for (int g = 0; g < G; ++g) {
#pragma unroll
                for (int u = 0; u < AHEAD; ++u) score[g][u] += warp_shfl_xor(score[g][u], mask);
            }
        }
#pragma unroll
        for (int g = 0; g < G; ++g) {
            C top = p[g].top;
#pragma unroll
            for (int u = 0; u < AHEAD; ++u) {
                const i32 j = first + u * groups;
                if (cap != 0) score[g][u] = capped(score[g][u], cap);
                if constexpr (G == 1) {  // others are given neither
                    if (a.bias) {
                        score[g][u] += bias_at(a, s, bias + (j < keys.end ? j : keys.first) * s.bias[3]);
                    }
                    score[g][u] -= slope * (C)distance(position, j);
                }
                score[g][u] = j < keys.end ? score[g][u] : -(C)PROPOLIS_INF;
                top = score[g][u] > top ? score[g][u] : top;
            }
            const C less = share(p[g].top, top);
            p[g].top = top;
            p[g].total *= less;
#pragma unroll
            for (int e = 0; e < RUN; ++e) p[g].values[e] *= less;
#pragma unroll
            for (int u = 0; u < AHEAD; ++u) {
                const C weight = share(score[g][u], top);
                p[g].total += weight;
#pragma unroll
                for (int e = 0; e < RUN; ++e) p[g].values[e] += weight * value[u][e];
            }
        }
    }

    const int warp = warp_of_block();
#pragma unroll
    for (int g = 0; g < G; ++g) {
        merge_warp<LANES>(p[g]);
        if (lane_of_warp() < LANES) {
#pragma unroll
            for (int e = 0; e < RUN; ++e) values[warp][g][element + e] = p[g].values[e];
            if (lane_of_warp() == 0) {
                tops[warp][g] = p[g].top;
                totals[warp][g] = p[g].total;
            }
        }
    }
    __syncthreads();
    for (int g = warp; g < own.heads; g += warps) merged[g].weigh(&tops[0][g], &totals[0][g], G, warps);
    __syncthreads();
    const auto value_of_block = [&](int g, int e) {
        C sum = 0;
#pragma unroll
        for (int i = 0; i < MOST_WARPS; ++i) {
            if (i < warps) sum += values[i][g][e] * merged[g].weights[i];
        }
        return sum;
    };
    T* out = a.out + ((i64)own.query * s.heads + own.head) * s.value_dim + column0;
    const int rest = s.value_dim - column0;
    const int width = DEEP > 1 && rest > HELD ? HELD : rest;
    const auto put = [&](int g, int e, C value) {
        out[g * s.value_dim + e] = narrow<T>(merged[g].total == 0 ? (C)0 : value / merged[g].total);
    };
    if (parts == 1) {
        for (int i = (int)thread_x(); i < own.heads * width; i += threads) {
            put(i / width, i % width, value_of_block(i / width, i % width));
        }
    } else {
        // Of each head of each part its values, then of each head all tops, and all totals.
        C* shared = partials<C>(a.scratch) + (i64)own.output * parts * G * (width + 2);
        C* found = shared + parts * G * width;
        for (int i = (int)thread_x(); i < own.heads * width; i += threads) {
            shared[own.part * G * width + i] = value_of_block(i / width, i % width);
        }
        if ((int)thread_x() < own.heads) {
            const int g = (int)thread_x();
            found[g * parts + own.part] = merged[g].top;
            found[(G + g) * parts + own.part] = merged[g].total;
        }
        if (!last_to_come(a.scratch + own.output, (u32)parts)) return;
        // Loads of as many parts as registers hold are on their way together, with tops and totals.
        constexpr int AT_ONCE = 16;
        C some[AT_ONCE];
        const auto load = [&](int i, i32 first) {
            first = anew(first);  // of each thread: there are no scalar registers for as many places
#pragma unroll
            for (int k = 0; k < AT_ONCE; ++k) {
                some[k] = shared[(first + k < parts ? first + k : 0) * (G * width) + i];
            }
        };
        const int mine = (int)thread_x();
        if (mine < own.heads * width) load(mine, 0);
        for (int g = warp; g < own.heads; g += warps) {
            merged[g].weigh(found + g * parts, found + (G + g) * parts, 1, parts);
        }
        __syncthreads();
        for (int i = mine; i < own.heads * width; i += threads) {
            const int g = i / width;
            C sum = 0;
            for (int first = 0; first < parts; first += AT_ONCE) {
                if (first > 0 || i != mine) load(i, first);
#pragma unroll
                for (int k = 0; k < AT_ONCE; ++k) {
                    if (first + k < parts) sum += some[k] * merged[g].weights[first + k];
                }
            }
            put(g, i - g * width, sum);
        }
    }
    if (a.lse && column0 == 0 && (int)thread_x() < own.heads) {
        const int g = (int)thread_x();
        const i64 at = (i64)sequence.row * s.heads + own.head + g;
        a.lse[at * s.total + token] = math::log(merged[g].total) + finite_top(merged[g].top);
    }
}
