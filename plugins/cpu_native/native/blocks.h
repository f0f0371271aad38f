// The kernels of products with weights in blocks, of any format.
#pragma once

#include <utility>

#include "activations.h"
#include "kernels.h"
#include "matrix.h"
#include "room.h"
#include "tiles.h"

namespace propolis {

// What is fetched before it is wanted: by several rows the next tile, as the panels after the first find this one in
// cache; by one row, who is done with it sooner, so many bytes on.
constexpr i64 AHEAD = 4096;

template <class F>
constexpr int GRAIN = F::SUB < SUBBLOCK ? F::SUB : SUBBLOCK;

// f(0), f(1), ... of so many: as loops in loops, sums would be taken for an array in memory.
template <int COUNT, class Function>
PROPOLIS_INLINE void for_each(Function f) {
    [&]<int... i>(std::integer_sequence<int, i...>) PROPOLIS_INLINED { (f(std::integral_constant<int, i>{}), ...); }
    (std::make_integer_sequence<int, COUNT>{});
}

// Whether any of so many rows of a panel has upper bytes in a sub-block.
template <int ROWS, int M>
PROPOLIS_INLINE bool any_finer(const u8* finer) {
    u32 all = 0;
    std::memcpy(&all, finer, ROWS);
    return all;
}

// Where a panel of M rows of activations has a sub-block; see `Rounded`.
struct Panel {
    const i8 *lower, *upper;
    const f32* scales;
    const i32* starts;
    const f32* totals;
    const u8* finer;
};

// The weights of one scale in sixteen rows, as products take them.
template <class F>
struct Weights {
    static constexpr int EACH = GROUPS * GRAIN<F> / SUBBLOCK;  // groups
    std::conditional_t<IN_WORDS<F>, I32s[2 * EACH], U8s[EACH]> w;
    F32s d, shift;

    PROPOLIS_INLINE void take(const u8* tile, int sub, int part) {
        const int which = sub * (SUBBLOCK / GRAIN<F>) + part;
        for_each<EACH>([&](auto g) PROPOLIS_INLINED {
            const U8s own = factors<F>(tile, sub, part * EACH + g);
            if constexpr (IN_WORDS<F>) {
                widen_bytes(own, w[2 * g], w[2 * g + 1]);
            } else {
                w[g] = own;
            }
        });
        d = F::scale(tile, which);
        shift = F::shift(tile, which);
    }
};

// What one scale's weights add to the sums.  Those that are TAKEN are in memory: each is read once for some rows.
template <class F, int M, int FIRST, bool TAKEN>
PROPOLIS_INLINE void add_products(F32s (&sums)[M], const Weights<F>& own, const Panel& at, int part) {
    constexpr int each = Weights<F>::EACH;
    constexpr int some = BY_SIGN<F> ? 1 : std::min(each, IN_16_BITS<(1 << (F::LOW + F::HIGH)) - 1>);
    I32s all[beside(M)];
    const auto start = [&](auto j) PROPOLIS_INLINED {
        return EXCESS<F> ? splat<I32s>(at.starts[part * M + FIRST + j]) : I32s{};
    };
    // Weights of more rows than are beside each other, if not TAKEN, the compiler keeps better by itself.
    constexpr bool once = TAKEN || (M > 1 && M == beside(M));
    constexpr bool late = once && some > 1;  // there are no registers for what sums begin with, too
    for_each<beside(M)>([&](auto j) PROPOLIS_INLINED { all[j] = late ? I32s{} : start(j); });
    const bool finer = any_finer<beside(M), M>(at.finer + FIRST);
    if constexpr (BY_TWO_ROWS && beside(M) == 2) {
        static_assert(each % 2 == 0);
        const auto both_rows = [&](const i8* bytes, I32s& one, I32s& other) PROPOLIS_INLINED {
            I32s even{}, odd{};
            for_each<each / 2>([&](auto pair) PROPOLIS_INLINED {
                const Four* four = (const Four*)bytes + (part * each + 2 * pair) * M + FIRST;
                dot_two_rows(even, odd, own.w + 2 * pair, four, four + M);
            });
            part_rows(even, odd, one, other);
        };
        I32s one, other;
        both_rows(at.lower, one, other);
        all[0] = all[0] + one;
        all[1] = all[1] + other;
        if (finer) {
            both_rows(at.upper, one, other);
            all[0] = all[0] + (one << 8);
            all[1] = all[1] + (other << 8);
        }
    } else {
        // Of as many rows as there are sums, from the j-th on.
        const auto products = [&]<int count>(const i8* bytes, I32s (&to)[count], int j) PROPOLIS_INLINED {
            for_each<each / some>([&](auto number) PROPOLIS_INLINED {
                constexpr int g = number * some;
                const Four* const four = (const Four*)bytes + (part * each + g) * M + FIRST + j;
                if constexpr (some > 1) {
                    dot_groups<some, once>(to, own.w + g, four, M);
                } else {
                    for_each<count>([&](auto i) PROPOLIS_INLINED {
                        to[i] = dot(to[i], own.w[g], four[i]);
                    });
                }
            });
        };
        products(at.lower, all, 0);
        if constexpr (late) for_each<beside(M)>([&](auto j) PROPOLIS_INLINED { all[j] = all[j] + start(j); });
        if (finer) {
            for_each<beside(M)>([&](auto j) PROPOLIS_INLINED {
                if (!at.finer[FIRST + j]) return;
                if constexpr (M > 1) read_again();
                I32s upper[1] = {};
                products(at.upper, upper, j);
                all[j] = all[j] + (upper[0] << 8);
            });
        }
    }
    for_each<beside(M)>([&](auto j) PROPOLIS_INLINED {
        constexpr int i = FIRST + j;
        // The weights' scale first: that of activations may be as large as these are, or as small.
        sums[i] = fma(as_floats(all[j]) * own.d, splat(at.scales[i]), sums[i]);
        if constexpr (F::SHIFTED) sums[i] = fma(own.shift, splat(at.totals[part * M + i]), sums[i]);
    });
}

// The same by words.
template <class F, int M, int FIRST>
PROPOLIS_INLINE void add_word_products(F32s (&sums)[M], const Weights<F>& own, const Panel& at, int part) {
    constexpr int each = 2 * Weights<F>::EACH;
    const auto& w = own.w;
    I32s all[beside(M)];
    for_each<beside(M)>([&](auto j) PROPOLIS_INLINED {
        all[j] = EXCESS<F> ? splat<I32s>(at.starts[part * M + FIRST + j]) : I32s{};
    });
    for_each<each>([&](auto h) PROPOLIS_INLINED {
        for_each<beside(M)>([&](auto j) PROPOLIS_INLINED {
            const i32v two = repeated(((const Four*)at.lower)[((part * each / 2 + h / 2) * M + FIRST + j) * 2 + h % 2]);
            PROPOLIS_EACH {
                all[j].part[p] += pairs_of_words(w[h].part[p], two);
                if constexpr (beside(M) > 1) PROPOLIS_IN_ORDER(all[j].part[p]);
            }
        });
    });
    for_each<beside(M)>([&](auto j) PROPOLIS_INLINED {
        constexpr int i = FIRST + j;
        sums[i] = fma(as_floats(all[j]) * own.d, splat(at.scales[i]), sums[i]);
        if constexpr (F::SHIFTED) sums[i] = fma(own.shift, splat(at.totals[part * M + i]), sums[i]);
    });
}

// A tile, or its weights as products take them.
template <class F, int M, class Tile>
PROPOLIS_INLINE void fast_tile(const Product& p, const Tile* tile, i64 m, F32s (&sums)[M]) {
    constexpr bool TAKEN = std::is_same_v<Tile, Weights<F>>;
    constexpr int parts = SUBBLOCK / GRAIN<F>, subs = F::K / SUBBLOCK, share = (F::BYTES + subs - 1) / subs;
    const i64 scales = p.k / SUBBLOCK;
    const i8* const bytes = p.bytes + 2 * m * p.k;
    Panel at{bytes, bytes + M * p.k, p.scales + m * scales, p.starts + m * scales * parts,
             p.sums + m * scales * parts, p.finer + m * scales};
    for_each<M>([&](auto i) PROPOLIS_INLINED { sums[i] = splat(0.0f); });
    for (i64 block = 0; block < p.k / F::K; ++block, tile += TAKEN ? subs * parts : F::BYTES) {
#pragma GCC unroll 1
        for (int sub = 0; sub < subs; ++sub) {
            if constexpr (!TAKEN) {
                const u8* const later = tile + sub * share + (M == 1 ? AHEAD : p.k / F::K * F::BYTES);
#pragma GCC unroll 16
                for (int l = 0; l < share; l += 64) __builtin_prefetch(later + l);
            }
            for_each<parts>([&](auto part) PROPOLIS_INLINED {
                const auto add = [&](const Weights<F>& own) PROPOLIS_INLINED {
                    for_each<M / beside(M)>([&](auto some) PROPOLIS_INLINED {
                        constexpr int first = some * beside(M);
                        if constexpr (TAKEN) read_again();
                        if constexpr (IN_WORDS<F>) {
                            add_word_products<F, M, first>(sums, own, at, part);
                        } else {
                            add_products<F, M, first, TAKEN>(sums, own, at, part);
                        }
                    });
                };
                if constexpr (TAKEN) {
                    add(tile[sub * parts + part]);
                } else {
                    Weights<F> own;
                    own.take(tile, sub, part);
                    add(own);
                }
            });
            at.lower += (IN_WORDS<F> ? 2 : 1) * SUBBLOCK * M;
            at.upper += SUBBLOCK * M;
            at.scales += M;
            at.starts += parts * M;
            at.totals += parts * M;
            at.finer += M;
        }
    }
}

// Of a thread, for a tile's weights as products take them.
inline u8* room_for_weights(i64 size) {
    thread_local Room<u8> memory;
    return memory.of(size);
}

// All of them.
template <class F>
void take_all(const u8* tile, i64 k, Weights<F>* to) {
    constexpr int parts = SUBBLOCK / GRAIN<F>, subs = F::K / SUBBLOCK;
    for (i64 block = 0; block < k / F::K; ++block, tile += F::BYTES) {
        for (int sub = 0; sub < subs; ++sub) {
            for_each<parts>([&](auto part) PROPOLIS_INLINED { (to++)->take(tile, sub, part); });
        }
    }
}

template <class F, int M>
void exact_tile(const Product& p, const u8* tile, i64 m, F32s (&sums)[M]) {
    const f32* x = p.wide + m * p.k;
    for (int i = 0; i < M; ++i) sums[i] = splat(0.0f);
    for (i64 block = 0; block < p.k / F::K; ++block, tile += F::BYTES) {
#pragma GCC unroll 1
        for (int sub = 0; sub < F::K / SUBBLOCK; ++sub) {
#pragma GCC unroll 1
            for (int g = 0; g < GROUPS; ++g, x += GROUP) {
                const int which = (sub * SUBBLOCK + g * GROUP) / GRAIN<F>;
                U8s v = F::stored(tile, sub, g);
                if constexpr (F::CODED) v = look_up(F::TABLE, v);
                const F32s d = F::scale(tile, which), shift = F::shift(tile, which);
#pragma GCC unroll 4
                for (int j = 0; j < GROUP; ++j) {
                    F32s w = numbers(v, j, BY_SIGN<F>, F::ZERO) * d;
                    if constexpr (F::SHIFTED) w = w + shift;
#pragma GCC unroll 8
                    for (int i = 0; i < M; ++i) sums[i] = fma(w, splat(x[i * p.k + j]), sums[i]);
                }
            }
        }
    }
}

template <int M>
PROPOLIS_INLINE void write(const Product& p, i64 tile, i64 m, const F32s (&sums)[M]) {
    const i64 n0 = tile * TILE;
    with_type(p.kind, [&](auto type) {
        typedef decltype(type) T;
        for (int i = 0; i < M; ++i) {
            store_some((T*)p.out + (m + i) * p.n + n0, sums[i], p.n - n0);
        }
    });
}

template <class F, int M, bool exact>
void rows(const Product& p, i64 t0, i64 t1, i64 m0, i64 m1) {
    const i64 tile_bytes = p.k / F::K * F::BYTES;
    for (i64 tile = t0; tile < t1; ++tile) {
        const u8* const at = p.tiles + tile * tile_bytes;
        i64 m = m0;
        const auto each = [&](auto kernel) PROPOLIS_INLINED {
            for (; m + M <= m1; m += M) {
                F32s sums[M];
                kernel(sums);
                write<M>(p, tile, m, sums);
            }
        };
        if constexpr (exact) {
            each([&](auto& sums) PROPOLIS_INLINED { exact_tile<F, M>(p, at, m, sums); });
        } else {
            if constexpr (M == MOST && M > 1) {
                if (m1 - m0 >= 2 * M) {  // taken apart once for all of them
                    auto* const taken = (Weights<F>*)room_for_weights(p.k / GRAIN<F> * (i64)sizeof(Weights<F>));
                    take_all<F>(at, p.k, taken);
                    each([&](auto& sums) PROPOLIS_INLINED { fast_tile<F, M>(p, taken, m, sums); });
                }
            }
            each([&](auto& sums) PROPOLIS_INLINED { fast_tile<F, M>(p, at, m, sums); });
        }
        if constexpr (M > 1) {
            if (m < m1) rows<F, exact ? 1 : M / 2, exact>(p, tile, tile + 1, m, m1);
        }
    }
}

// Sub-blocks [first, first + count) of sixteen rows as tiles of the right, whose columns the rows are.
#ifdef PROPOLIS_MATRIX
template <class F>
void widen(const u8* tile, i64 first, i64 count, bf16* to) {
    constexpr i64 subs = F::K / SUBBLOCK;
    static_assert(SUBBLOCK == DEPTH);
    for (i64 s = first; s < first + count; ++s, to += DEPTH * LANES) {
        const u8* block = tile + s / subs * F::BYTES;
        const int sub = (int)(s % subs);
#pragma GCC unroll 8
        for (int g = 0; g < GROUPS; ++g) {
            const int which = (sub * SUBBLOCK + g * GROUP) / GRAIN<F>;
            U8s v = F::stored(block, sub, g);
            if constexpr (F::CODED) v = look_up(F::TABLE, v);
            const F32s d = F::scale(block, which), shift = F::shift(block, which);
            F32s w[GROUP];
#pragma GCC unroll 4
            for (int j = 0; j < GROUP; ++j) {
                w[j] = numbers(v, j, BY_SIGN<F>, F::ZERO) * d;
                if constexpr (F::SHIFTED) w[j] = w[j] + shift;
            }
            _mm512_store_si512(to + 2 * g * DEPTH, rounded_pairs(w[0], w[1]));
            _mm512_store_si512(to + (2 * g + 1) * DEPTH, rounded_pairs(w[2], w[3]));
        }
    }
}
#else
template <class F>
void widen(const u8*, i64, i64, bf16*) {}
#endif

// Rows in a tile of their own, a block at a time: so all formats are read by the same lines.
template <class F>
void decode(f32* out, const u8* const* rows, int count, i64 k) {
    for (i64 block = 0; block < k / F::K; ++block) {
        alignas(VECTOR_BYTES) u8 tile[F::BYTES] = {};
        for (int r = 0; r < count; ++r) {
            if (rows[r]) put_row<F>(tile, r, rows[r] + block * F::SOURCE, 1);
        }
        for (int sub = 0; sub < F::K / SUBBLOCK; ++sub) {
            f32 each[SUBBLOCK][LANES];
            for (int g = 0; g < GROUPS; ++g) {
                const int which = (sub * SUBBLOCK + g * GROUP) / GRAIN<F>;
                U8s v = F::stored(tile, sub, g);
                if constexpr (F::CODED) v = look_up(F::TABLE, v);
                for (int j = 0; j < GROUP; ++j) {
                    F32s w = numbers(v, j, BY_SIGN<F>, F::ZERO) * F::scale(tile, which);
                    if constexpr (F::SHIFTED) w = w + F::shift(tile, which);
                    store(each[g * GROUP + j], w);
                }
            }
            for (int r = 0; r < count; ++r) {
                f32* to = out + r * k + block * F::K + sub * SUBBLOCK;
                for (int e = 0; e < SUBBLOCK; ++e) to[e] = each[e][r];
            }
        }
    }
}

template <class F>
constexpr Format format(const char* name) {
    return {name, F::K, F::SOURCE, F::BYTES, put_row<F>, get_row<F>, rows<F, MOST, false>,
            rows<F, 4, true>, widen<F>, decode<F>, EXCESS<F>, GRAIN<F>, IN_WORDS<F>};
}

}  // namespace propolis
