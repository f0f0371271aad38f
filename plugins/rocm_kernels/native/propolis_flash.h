// Attention of many queries of 16-bit numbers on matrix instructions.  Scores, weights and sums stay in
// registers; keys and values pass through shared memory, a tile of them at a time.  Each warp has 16
// queries, or 32, and looks at the keys that its block does.  After Dao, "FlashAttention-2" (2023).
//
// Products become operands without a way through memory, as a thread's sums are of the row that it has
// of an operand: on NVIDIA's of a left one, so that queries are rows of scores and of sums; elsewhere of
// a right one, so that they are columns.
#pragma once

#include "propolis_attention.h"
#include "propolis_copy.h"
#include "propolis_matrix.h"

#if PROPOLIS_FRAGMENTS

constexpr int WARPS = BLOCK / PROPOLIS_WARP;

#if defined(PROPOLIS_MMA)
constexpr int KEYS = 64;  // of a tile; AMD's registers hold less
template <class T>
using Asking = Left<T>;  // an operand whose rows are queries
template <class T>
using Asked = Right<T>;
constexpr int LINES = 2;            // queries of which a thread has sums
constexpr int FIRST_OF_LINE = 1;    // lanes that have those of the same queries differ in the bits from
constexpr int AFTER_LINE = 4;       // here to here
constexpr int FLASH_STAGES = 2;     // tiles in shared memory: one is filled while one is multiplied
constexpr bool TURNED = false;      // whether neighbours in a tile of values belong to different keys
#else
constexpr int KEYS = 32;
template <class T>
using Asking = Right<T>;
template <class T>
using Asked = Left<T>;
constexpr int LINES = 1;
constexpr int FIRST_OF_LINE = FRAGMENT;
constexpr int AFTER_LINE = PROPOLIS_WARP;
constexpr int FLASH_STAGES = 1;
constexpr bool TURNED = true;
#endif

// Of element i of a fragment of sums: which of the thread's queries, that query in the fragment, and
// the key or the element of the values.
PROPOLIS_FN int line_of(int i) { return LINES == 1 ? 0 : i / 2 % 2; }
PROPOLIS_FN int query_of(int i) { return LINES == 1 ? Sums::column(i) : Sums::row(i); }
PROPOLIS_FN int other_of(int i) { return LINES == 1 ? Sums::row(i) : Sums::column(i); }

template <class T>
PROPOLIS_FN void multiply(Sums& sums, const Asking<T>& queries, const Asked<T>& others) {
#if defined(PROPOLIS_MMA)
    sums.add(queries, others);
#else
    sums.add(others, queries);
#endif
}

template <class F>
PROPOLIS_FN f32 over_line(f32 value, F f) {
#pragma unroll
    for (int mask = FIRST_OF_LINE; mask < AFTER_LINE; mask *= 2) {
        value = f(value, warp_shfl_xor(value, mask));
    }
    return value;
}

// Scores are in base 2: what an exponential is taken of is multiplied once, with the scale.
constexpr f32 LOG2_E = 1.44269504088896341f, LN_2 = 0.693147180559945309f;

// 2**x of what is rounded to 16 bits next; its error is 2**-20 of it where that counts.
PROPOLIS_FN f32 power_of_2(f32 x) {
#if defined(__CUDACC__)
    f32 y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#elif defined(PROPOLIS_AMD) && __has_builtin(__builtin_amdgcn_exp2f)
    return __builtin_amdgcn_exp2f(x);
#elif defined(PROPOLIS_AMD)  // ROCm 5's compiler has none
    return __builtin_exp2f(x);
#else
    return exp2f(x);
#endif
}

// The larger, or what is a number: an instruction, where a comparison and a choice are two.
PROPOLIS_FN f32 larger(f32 a, f32 b) {
#if defined(PROPOLIS_AMD)
    return __builtin_fmaxf(a, b);
#else
    return fmaxf(a, b);
#endif
}

// Sums stay as they are until a score is above what they were made less by so much: weights are up to 2**LAG
// then, which f16 has room for, and after the first keys nearly all tiles leave their sums alone.
constexpr f32 LAG = 8;

#if defined(PROPOLIS_MMA)
PROPOLIS_FN u32 two_of(f16, f32 low, f32 high) {
    u32 both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
PROPOLIS_FN u32 two_of(bf16, f32 low, f32 high) {
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
#else
template <class T>
PROPOLIS_FN u32 two_of(T, f32 low, f32 high) {
    return (u32)narrow<T>(low).bits | (u32)narrow<T>(high).bits << 16;
}
#endif

// Sums as an operand whose rows are queries, rounded to T; of those that are used at a time each is
// another `which`.
template <int MOST, class T>
PROPOLIS_FN Asking<T> rounded(const Sums& sums, [[maybe_unused]] int which) {
    Asking<T> made;
#if defined(PROPOLIS_MMA)
#pragma unroll
    for (int w = 0; w < 4; ++w) made.words[w] = two_of(T{}, sums.at[2 * w], sums.at[2 * w + 1]);
#elif defined(PROPOLIS_WMMA) && PROPOLIS_WMMA == 11
    // Half of the keys are the other half warp's.
    const bool upper = lane_of_warp() >= FRAGMENT;
#pragma unroll
    for (int i = 0; i < Sums::COUNT; i += 2) {
        const u32 own = two_of(T{}, sums.at[i], sums.at[i + 1]);
        const u32 other = warp_shfl_xor(own, FRAGMENT);
        const u32 even = upper ? other : own, odd = upper ? own : other;
        made.held.at[2 * i] = (u16)even;
        made.held.at[2 * i + 1] = (u16)odd;
        made.held.at[2 * i + 2] = (u16)(even >> 16);
        made.held.at[2 * i + 3] = (u16)(odd >> 16);
    }
#elif defined(PROPOLIS_AMD)
#pragma unroll
    for (int i = 0; i < Sums::COUNT; ++i) made.held.at[i] = narrow<T>(sums.at[i]).bits;
#else
    __shared__ T held[BLOCK / PROPOLIS_WARP][MOST][FRAGMENT][FRAGMENT];
    auto& own = held[warp_of_block()][which];
#pragma unroll
    for (int i = 0; i < Sums::COUNT; ++i) own[query_of(i)][other_of(i)] = narrow<T>(sums.at[i]);
    sync_warp();
    made.template load<false>(&own[0][0], FRAGMENT);
#endif
    return made;
}

// Tiles of keys, or of values: a thread copies some packs of each.
template <int DIMS, bool turned, class T, int threads>
struct KeptTile {
    static constexpr int WIDE = DIMS / COPIED;  // packs of a key
    static constexpr int ALL = KEYS * WIDE;
    static constexpr int PACKS = (ALL + threads - 1) / threads;
    static constexpr int APART = (turned ? KEYS : DIMS) + GAP;  // in shared memory
    static constexpr int SIZE = (turned ? DIMS : KEYS) * APART;
    const CacheRows<T, true>& rows;
#if !defined(PROPOLIS_MMA)
    Coming<T> coming[PACKS];
#endif

    PROPOLIS_METHOD KeptTile(const CacheRows<T, true>& rows) : rows(rows) {}
    PROPOLIS_METHOD static int item(int p) { return (int)thread_x() + p * threads; }
    PROPOLIS_METHOD static bool mine(int p) { return ALL % threads == 0 || item(p) < ALL; }
    PROPOLIS_METHOD static int key(int p) { return item(p) / WIDE; }
    PROPOLIS_METHOD static int element(int p) { return item(p) % WIDE * COPIED; }

    // Of a tile that begins with key j0: whether a pack is there, and where; else where any is.
    PROPOLIS_METHOD bool exists(int p, i32 j0) const {
        return mine(p) && j0 + key(p) < rows.rows && element(p) < rows.depth;
    }
    // Which pages the packs' keys are in, of keys that there are.
    PROPOLIS_METHOD i32 asked(int p, i32 j0) const { return mine(p) && j0 + key(p) < rows.rows ? j0 + key(p) : 0; }
    PROPOLIS_METHOD void ask(i32 j0, i32 (&which)[PACKS]) const {
        i32 keys[PACKS];
#pragma unroll
        for (int p = 0; p < PACKS; ++p) keys[p] = asked(p, j0);
        rows.pages.ask(keys, which);
    }
    PROPOLIS_METHOD const T* place(int p, i32 j0, i32 which) const {
        return rows.place(rows.pages.spot(asked(p, j0), which)) + (exists(p, j0) ? element(p) : 0);
    }
#if defined(PROPOLIS_MMA)
    PROPOLIS_METHOD void copy(T* to, i32 j0) const {
        i32 which[PACKS];
        ask(j0, which);
#pragma unroll
        for (int p = 0; p < PACKS; ++p) {
            if (mine(p)) copy_async(to + key(p) * APART + element(p), place(p, j0, which[p]), exists(p, j0) ? 16 : 0);
        }
    }
#else
    PROPOLIS_METHOD void fetch(i32 j0, const i32 (&which)[PACKS]) {
#pragma unroll
        for (int p = 0; p < PACKS; ++p) coming[p].load(place(p, j0, which[p]), exists(p, j0));
    }
    PROPOLIS_METHOD void put(T* to) const {
#pragma unroll
        for (int p = 0; p < PACKS; ++p) {
            if (!mine(p)) continue;
            if constexpr (turned) {
#pragma unroll
                for (int e = 0; e < COPIED; ++e) {
                    const u32 word = coming[p].word(e / 2);
                    to[(element(p) + e) * APART + key(p)].bits = (u16)(e % 2 ? word >> 16 : word);
                }
            } else {
                coming[p].store(to + key(p) * APART + element(p));
            }
        }
    }
#endif
};

// Whether queries stay in registers.
template <int DIMS>
#if defined(PROPOLIS_WMMA)
constexpr bool KEPT_QUERIES = DIMS <= 128;
#else
constexpr bool KEPT_QUERIES = true;
#endif

// Of wider heads, blocks have so many elements of the values each, and all have the same scores.
template <int DIMS>
constexpr int WIDTH = DIMS < VALUES ? DIMS : VALUES;

// What a warp has: M fragments of queries, and for each the softmax and the sums so far.  What it loads of keys and
// values is multiplied by each fragment.
template <int DIMS, class T, int M, int warps>
struct FlashWarp {
    static constexpr int DEEP = DIMS / FRAGMENT;
    static constexpr int WIDE = WIDTH<DIMS> / FRAGMENT;
    static constexpr int ALONG = KEYS / FRAGMENT;
    typedef KeptTile<DIMS, false, T, warps * PROPOLIS_WARP> KeyTile;
    typedef KeptTile<WIDTH<DIMS>, TURNED, T, warps * PROPOLIS_WARP> ValueTile;
    const T* from;  // its first query
    i64 apart;      // from one to the next
    i32 rows;       // that there are
    Asking<T> queries[M][KEPT_QUERIES<DIMS> ? DEEP : 1];
    Sums sums[M][WIDE] = {};
    f32 top[M][LINES];
    f32 total[M][LINES] = {};  // of this thread's own keys
    i32 position;           // of the warp's first query
    Range some, all;        // keys that any of its queries sees, and those that each does

    PROPOLIS_METHOD FlashWarp() {
#pragma unroll
        for (int m = 0; m < M; ++m) {
#pragma unroll
            for (int l = 0; l < LINES; ++l) top[m][l] = -PROPOLIS_INF;
        }
    }
    PROPOLIS_METHOD void ask(const AttentionShape& s) {
        if constexpr (KEPT_QUERIES<DIMS>) {
#pragma unroll
            for (int m = 0; m < M; ++m) {
                // A fragment without queries loads the first.
                const i32 first = m * FRAGMENT < rows ? m * FRAGMENT : 0;
#pragma unroll
                for (int k = 0; k < DEEP; ++k) {
                    queries[m][k].from_memory(from + first * apart + k * FRAGMENT, apart, rows - first,
                                              s.dim - k * FRAGMENT);
                }
            }
        }
    }

    // The keys from j0 on, as they lie in shared memory, and their values.
    PROPOLIS_METHOD void look(const AttentionShape& s, i32 valid, i32 j0, const T* keys, const T* values) {
        Sums scores[M][ALONG] = {};
#if defined(PROPOLIS_WMMA)
        const T* own = queries[0][0].from_lane(from, apart, rows);
#endif
#pragma unroll
        for (int k = 0; k < DEEP; ++k) {
#if defined(PROPOLIS_WMMA)
            if (!KEPT_QUERIES<DIMS>) {
                if (k * FRAGMENT >= s.dim) break;  // they are of whole fragments
                queries[0][0].bring(own + k * FRAGMENT);
            }
#endif
#pragma unroll
            for (int c = 0; c < ALONG; ++c) {
                Asked<T> asked;
                constexpr int APART = KeyTile::APART;
                asked.template load<false>(keys + c * FRAGMENT * APART + k * FRAGMENT, APART);
#pragma unroll
                for (int m = 0; m < M; ++m) {
                    multiply<T>(scores[m][c], queries[m][KEPT_QUERIES<DIMS> ? k : 0], asked);
                }
            }
            in_order();
        }
#pragma unroll
        for (int m = 0; m < M; ++m) {
            shape(s, valid, j0, position + m * FRAGMENT, scores[m]);
            in_order();
            weigh(m, scores[m]);
            in_order();
        }
#pragma unroll
        for (int c = 0; c < ALONG; ++c) {
            Asking<T> weights[M];
#pragma unroll
            for (int m = 0; m < M; ++m) weights[m] = rounded<ALONG, T>(scores[m][c], c);
            in_order();
#pragma unroll
            for (int k = 0; k < WIDE; ++k) {
                Asked<T> asked;
                constexpr int APART = ValueTile::APART;
                const int at = TURNED ? k * FRAGMENT * APART + c * FRAGMENT
                                      : c * FRAGMENT * APART + k * FRAGMENT;
                asked.template load<!TURNED>(values + at, APART);
#pragma unroll
                for (int m = 0; m < M; ++m) multiply<T>(sums[m][k], weights[m], asked);
                if (k % 4 == 3) in_order();
            }
        }
    }

  private:
    // From products to what the softmax is of; -inf where a query sees no key.
    PROPOLIS_METHOD void shape(const AttentionShape& s, i32 valid, i32 j0, i32 first,
                               Sums (&scores)[ALONG]) const {
        const f32 cap = (f32)s.softcap, scale = cap != 0 ? (f32)s.scale : (f32)s.scale * LOG2_E;
#pragma unroll
        for (int c = 0; c < ALONG; ++c) {
#pragma unroll
            for (int i = 0; i < Sums::COUNT; ++i) scores[c].at[i] *= scale;
        }
        if (cap != 0) {
#pragma unroll
            for (int c = 0; c < ALONG; ++c) {
#pragma unroll
                for (int i = 0; i < Sums::COUNT; ++i) scores[c].at[i] = capped(scores[c].at[i], cap) * LOG2_E;
            }
        }
        if (j0 >= all.first && j0 + KEYS <= all.end) return;
        Range own[LINES];
#pragma unroll
        for (int i = 0; i < Sums::COUNT; ++i) {
            own[line_of(i)] = seen(s, valid, first + query_of(i), first + query_of(i));
        }
#pragma unroll
        for (int c = 0; c < ALONG; ++c) {
#pragma unroll
            for (int i = 0; i < Sums::COUNT; ++i) {
                const i32 key = j0 + c * FRAGMENT + other_of(i);
                const Range keys = own[line_of(i)];
                if (key < keys.first || key >= keys.end) scores[c].at[i] = -PROPOLIS_INF;
            }
        }
    }
    // From scores to weights, less the largest so far; earlier sums become less by as much.
    PROPOLIS_METHOD void weigh(int m, Sums (&scores)[ALONG]) {
        f32 old[LINES], less[LINES];
        bool higher = false;
#pragma unroll
        for (int l = 0; l < LINES; ++l) {
            f32 high = -PROPOLIS_INF;
#pragma unroll
            for (int c = 0; c < ALONG; ++c) {
#pragma unroll
                for (int i = 0; i < Sums::COUNT; ++i) {
                    if (line_of(i) == l) high = larger(high, scores[c].at[i]);
                }
            }
            high = over_line(high, [](f32 a, f32 b) { return larger(a, b); });
            high = high > top[m][l] + LAG ? high : top[m][l];
            less[l] = finite_top(high);
            higher |= high != top[m][l];
            old[l] = power_of_2(top[m][l] - less[l]);
            top[m][l] = high;
        }
#if defined(__CUDACC__)
        higher = __any_sync(~0u, higher);  // products follow, which all threads of a warp make together
#endif
        if (higher) {
#pragma unroll
            for (int l = 0; l < LINES; ++l) total[m][l] *= old[l];
#pragma unroll
            for (int k = 0; k < WIDE; ++k) {
#pragma unroll
                for (int i = 0; i < Sums::COUNT; ++i) sums[m][k].at[i] *= old[line_of(i)];
            }
        }
#pragma unroll
        for (int c = 0; c < ALONG; ++c) {
#pragma unroll
            for (int i = 0; i < Sums::COUNT; ++i) {
                f32& score = scores[c].at[i];
                score = power_of_2(score - less[line_of(i)]);
                total[m][line_of(i)] += score;
            }
        }
    }
};

template <int DIMS, int M, int warps, class T>
PROPOLIS_FN void flash(const Attention<T>& a, const AttentionShape& s) {
    typedef FlashWarp<DIMS, T, M, warps> Warp;
    typedef typename Warp::KeyTile KeyTile;
    typedef typename Warp::ValueTile ValueTile;
    constexpr int QUERIES = warps * M * FRAGMENT;
    PROPOLIS_DYNAMIC_SHARED(T, shared);
    const QueryTile own = query_tile<QUERIES>(a, s);
    const i32 column = (i32)block_y() * VALUES;
    if (!own.there) return;
    const Sequence sequence = sequence_at(a, s, own.index);
    // The last queries see the most keys, where they see none behind them: they begin.
    const i32 tiles = (sequence.tokens + QUERIES - 1) / QUERIES;
    const i32 first = (tiles - 1 - own.tile) * QUERIES;
    const i32 after = first + QUERIES < sequence.tokens ? first + QUERIES : sequence.tokens;
    const i32 origin = sequence.valid - sequence.tokens;  // position of query 0
    const Range range = seen(s, sequence.valid, origin + first, origin + after - 1);

    Warp warp;
    const i32 query = first + warp_of_block() * M * FRAGMENT;
    const i32 rows = sequence.tokens - query;
    const i32 last = rows < M * FRAGMENT ? sequence.tokens - 1 : query + M * FRAGMENT - 1;
    warp.position = origin + query;
    warp.some = rows > 0 ? seen(s, sequence.valid, warp.position, origin + last) : Range{0, 0};
    warp.all = Range{seen(s, sequence.valid, origin + last, origin + last).first,
                     seen(s, sequence.valid, warp.position, warp.position).end};
    // A warp without queries loads the sequence's first: what lies behind its last may be no memory.
    const i32 own_first = sequence.first + (rows > 0 ? query : 0);
    warp.from = a.q + sequence.row * s.q[0] + own.head * s.q[2] + own_first * s.q[1];
    warp.apart = s.q[1];
    warp.rows = rows;
    warp.ask(s);
    const CacheRows<T, true> k(a, s, a.k, s.k, s.dim, sequence, own.head / s.group);
    CacheRows<T, true> v(a, s, a.v, s.v, s.value_dim, sequence, own.head / s.group);
    v.at += column;
    v.depth -= column;
    KeyTile keys(k);
    ValueTile values(v);
    const auto look = [&](i32 j0, const T* stage) {
        if (j0 < warp.some.end && j0 + KEYS > warp.some.first) {
            warp.look(s, sequence.valid, j0, stage, stage + KeyTile::SIZE);
        }
    };
#if defined(PROPOLIS_MMA)
    const auto copy = [&](T* stage, i32 j0) {
        if (j0 < range.end) {
            keys.copy(stage, j0);
            values.copy(stage + KeyTile::SIZE, j0);
        }
        end_of_stage();
    };
    T *used = shared, *next = shared + KeyTile::SIZE + ValueTile::SIZE;
    copy(used, range.first);
    for (i32 j0 = range.first; j0 < range.end; j0 += KEYS) {
        wait_for_stage(FLASH_STAGES);
        __syncthreads();  // all have looked at what is filled next
        copy(next, j0 + KEYS);
        look(j0, used);
        T* const before = used;
        used = next;
        next = before;
    }
#else
    // The next tile is on its way while one is looked at, where there are registers for it.
    constexpr bool AHEAD = DIMS <= 128;
    // Pages are asked for a tile before: what is asked for after others arrives after them.
    constexpr bool SAME = KeyTile::WIDE == ValueTile::WIDE;
    i32 of_keys[KeyTile::PACKS], of_values[SAME ? 1 : ValueTile::PACKS];
    const auto ask = [&](i32 j0) {
        if (j0 >= range.end) return;  // of no keys there may be no page either
        keys.ask(j0, of_keys);
        if constexpr (!SAME) values.ask(j0, of_values);
    };
    const auto fetch = [&](i32 j0) {
        if (j0 >= range.end) return;
        keys.fetch(j0, of_keys);
        if constexpr (SAME) {
            values.fetch(j0, of_keys);
        } else {
            values.fetch(j0, of_values);
        }
        ask(j0 + KEYS);
    };
    ask(range.first);
    if (AHEAD) fetch(range.first);
    for (i32 j0 = range.first; j0 < range.end; j0 += KEYS) {
        if (!AHEAD) fetch(j0);
        __syncthreads();
        keys.put(shared);
        values.put(shared + KeyTile::SIZE);
        __syncthreads();
        if (AHEAD) fetch(j0 + KEYS);
        look(j0, shared);
    }
#endif
    const bool paired = Sums::RUNS == 2 && aligned<2>(a.out);  // rows of it are of whole runs
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
        for (int l = 0; l < LINES; ++l) {
            warp.total[m][l] = over_line(warp.total[m][l], [](f32 x, f32 y) { return x + y; });
        }
#pragma unroll
        for (int i = 0; i < Sums::COUNT; i += Sums::RUNS) {
            const i32 row = m * FRAGMENT + query_of(i), l = line_of(i);
            if (row >= rows) continue;
            const i32 token = sequence.first + query + row;
            T* out = a.out + (((i64)sequence.row * s.total + token) * s.heads + own.head) * s.value_dim;
            const f32 total = warp.total[m][l];
#pragma unroll
            for (int f = 0; f < warp.WIDE; ++f) {
                in_order();
                const i32 element = column + f * FRAGMENT + other_of(i);
                Pack<T, Sums::RUNS> pack;
#pragma unroll
                for (int e = 0; e < Sums::RUNS; ++e) {
                    pack.at[e] = narrow<T>(total == 0 ? 0.0f : warp.sums[m][f].at[i + e] / total);
                }
                if (element >= s.value_dim) continue;
                if (paired) {
                    store_pack<Sums::RUNS>(out + element, pack);
                } else {
#pragma unroll
                    for (int e = 0; e < Sums::RUNS; ++e) out[element + e] = pack.at[e];
                }
            }
            if (a.lse && column == 0 && other_of(i) == 0) {
                const i64 at = ((i64)sequence.row * s.heads + own.head) * s.total + token;
                a.lse[at] = math::log(total) + finite_top(warp.top[m][l]) * LN_2;
            }
        }
    }
}

#endif
