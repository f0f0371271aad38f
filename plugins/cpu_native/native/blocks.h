// The kernels of products with weights in blocks, of any format.
#pragma once

#include <utility>

#include "activations.h"
#include "kernels.h"
#include "matrix.h"
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

// What one scale's weights add to the sums.
template <class F, int M, int FIRST, bool FINER>
PROPOLIS_INLINE void add_products(F32s (&sums)[M], const U8s (&w)[GROUPS * GRAIN<F> / SUBBLOCK], const F32s& d,
                                  const F32s& shift, const Panel& at, int part) {
    constexpr int each = GROUPS * GRAIN<F> / SUBBLOCK;
    I32s upper[beside(M)] = {}, lower[beside(M)];
    for_each<beside(M)>([&](auto j) PROPOLIS_INLINED {
        lower[j] = EXCESS<F> ? splat<I32s>(at.starts[part * M + FIRST + j]) : I32s{};
    });
    constexpr int some = BY_SIGN<F> ? 1 : std::min(each, IN_16_BITS<(1 << (F::LOW + F::HIGH)) - 1>);
    const auto products = [&](const I32s& sums, int g, const Four* a) PROPOLIS_INLINED {
        return BY_SIGN<F> ? dot_signed(sums, w[g], *a) : dot_groups<some>(sums, w + g, a, M);
    };
    if constexpr (BY_TWO_ROWS && beside(M) == 2) {
        static_assert(each % 2 == 0);
        const auto both_rows = [&](const i8* bytes, I32s (&to)[beside(M)]) PROPOLIS_INLINED {
            I32s even{}, odd{};
            for_each<each / 2>([&](auto pair) PROPOLIS_INLINED {
                const Four* four = (const Four*)bytes + (part * each + 2 * pair) * M + FIRST;
                dot_two_rows(even, odd, w + 2 * pair, four, four + M);
            });
            I32s first, second;
            part_rows(even, odd, first, second);
            to[0] = to[0] + first;
            to[1] = to[1] + second;
        };
        both_rows(at.lower, lower);
        if constexpr (FINER) both_rows(at.upper, upper);
    } else {
        for_each<each / some>([&](auto number) PROPOLIS_INLINED {
            constexpr int g = number * some;
            const int four = (part * each + g) * M + FIRST;
            for_each<beside(M)>([&](auto j) PROPOLIS_INLINED {
                lower[j] = products(lower[j], g, (const Four*)at.lower + four + j);
                if constexpr (FINER) upper[j] = products(upper[j], g, (const Four*)at.upper + four + j);
            });
        });
    }
    for_each<beside(M)>([&](auto j) PROPOLIS_INLINED {
        constexpr int i = FIRST + j;
        const I32s both = FINER ? (upper[j] << 8) + lower[j] : lower[j];
        // The weights' scale last: with the other it might be no normal number.
        sums[i] = fma(as_floats(both) * splat(at.scales[i]), d, sums[i]);
        if constexpr (F::SHIFTED) sums[i] = fma(shift, splat(at.totals[part * M + i]), sums[i]);
    });
}

template <class F, int M>
PROPOLIS_INLINE void fast_tile(const Product& p, const u8* tile, i64 m, F32s (&sums)[M]) {
    constexpr int each = GROUPS * GRAIN<F> / SUBBLOCK, parts = SUBBLOCK / GRAIN<F>;
    const i64 scales = p.k / SUBBLOCK;
    const i8* const bytes = p.bytes + 2 * m * p.k;
    Panel at{bytes, bytes + M * p.k, p.scales + m * scales, p.starts + m * scales * parts,
             p.sums + m * scales * parts, p.finer + m * scales};
    for_each<M>([&](auto i) PROPOLIS_INLINED { sums[i] = splat(0.0f); });
    for (i64 block = 0; block < p.k / F::K; ++block, tile += F::BYTES) {
        const i64 ahead = M == 1 ? AHEAD : p.k / F::K * F::BYTES;
#pragma GCC unroll 8
        for (int l = 0; l < F::BYTES; l += 64) __builtin_prefetch(tile + ahead + l);
#pragma GCC unroll 1
        for (int sub = 0; sub < F::K / SUBBLOCK; ++sub) {
            for_each<parts>([&](auto part) PROPOLIS_INLINED {
                const int which = sub * parts + part;
                U8s w[each];
                for_each<each>([&](auto g) PROPOLIS_INLINED { w[g] = factors<F>(tile, sub, part * each + g); });
                const F32s d = F::scale(tile, which), shift = F::shift(tile, which);
                for_each<M / beside(M)>([&](auto some) PROPOLIS_INLINED {
                    constexpr int first = some * beside(M);
                    if (any_finer<beside(M), M>(at.finer + first)) {
                        add_products<F, M, first, true>(sums, w, d, shift, at, part);
                    } else {
                        add_products<F, M, first, false>(sums, w, d, shift, at, part);
                    }
                });
            });
            at.lower += SUBBLOCK * M;
            at.upper += SUBBLOCK * M;
            at.scales += M;
            at.starts += parts * M;
            at.totals += parts * M;
            at.finer += M;
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
        i64 m = m0;
        for (; m + M <= m1; m += M) {
            F32s sums[M];
            if constexpr (exact) {
                exact_tile<F, M>(p, p.tiles + tile * tile_bytes, m, sums);
            } else {
                fast_tile<F, M>(p, p.tiles + tile * tile_bytes, m, sums);
            }
            write<M>(p, tile, m, sums);
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
            rows<F, 4, true>, widen<F>, decode<F>, EXCESS<F>, GRAIN<F>};
}

}  // namespace propolis
