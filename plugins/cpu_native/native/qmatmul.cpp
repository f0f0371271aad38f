// Products with weights in blocks, repacked as tiles.h says.
#include "formats_256.h"
#include "formats_32.h"
#include "kernels.h"
#include "matrix.h"
#include "pool.h"
#include "room.h"
#include "tiles.h"

namespace propolis {
namespace {

// Rows of activations that share an unpacked weight: their sums stay in registers.
constexpr int MOST = VECTOR == 64 ? 8 : VECTOR == 32 ? 4 : 2;

// Of these so many at a time: a product waits for the one before it that it is added to.
template <int M>
constexpr int BESIDE = VECTOR == 64 && M > 1 ? 2 : 1;

template <class F>
constexpr int GRAIN = F::SUB < SUBBLOCK ? F::SUB : SUBBLOCK;

template <class F, int M>
void fast_tile(const Product& p, const u8* tile, i64 m, F32s (&sums)[M]) {
    constexpr int each = GROUPS * GRAIN<F> / SUBBLOCK;  // groups of a scale
    const i64 scales = p.k / SUBBLOCK, grains = p.k / GRAIN<F>;
    const i8 *high = p.bytes + m * p.k, *low = high + p.m * p.k;
    const f32* scale = p.scales + m * scales;
    const i32* starts = p.starts + m * grains;
    const f32* totals = p.sums + m * grains;
    for (int i = 0; i < M; ++i) sums[i] = splat(0.0f);
    for (i64 block = 0; block < p.k / F::K; ++block, tile += F::BYTES) {
        if constexpr (M >= 2) {
#pragma GCC unroll 8
            for (int l = 0; l < F::BYTES; l += 64) __builtin_prefetch(tile + p.k / F::K * F::BYTES + l);
        }
#pragma GCC unroll 1
        for (int sub = 0; sub < F::K / SUBBLOCK; ++sub) {
#pragma GCC unroll 2
            for (int part = 0; part < SUBBLOCK / GRAIN<F>; ++part) {
                const int which = sub * (SUBBLOCK / GRAIN<F>) + part;
                U8s w[each];
#pragma GCC unroll 8
                for (int g = 0; g < each; ++g) w[g] = factors<F>(tile, sub, part * each + g);
                const F32s d = F::scale(tile, which);
                [[maybe_unused]] const F32s shift = F::shift(tile, which);
#pragma GCC unroll 8
                for (int i = 0; i < M; i += BESIDE<M>) {
                    const Four *a[BESIDE<M>], *b[BESIDE<M>];
                    I32s sum[BESIDE<M>], rest[BESIDE<M>];
#pragma GCC unroll 4
                    for (int j = 0; j < BESIDE<M>; ++j) {
                        a[j] = (const Four*)(high + (i + j) * p.k + part * GRAIN<F>);
                        b[j] = (const Four*)(low + (i + j) * p.k + part * GRAIN<F>);
                        sum[j] = I32s{};
                        rest[j] = EXCESS<F> ? splat<I32s>(starts[(i + j) * grains + part]) : I32s{};
                    }
#pragma GCC unroll 8
                    for (int g = 0; g < each; ++g) {
#pragma GCC unroll 4
                        for (int j = 0; j < BESIDE<M>; ++j) {
                            sum[j] = BY_SIGN<F> ? dot_signed(sum[j], w[g], a[j][g]) : dot(sum[j], w[g], a[j][g]);
                            rest[j] = BY_SIGN<F> ? dot_signed(rest[j], w[g], b[j][g]) : dot(rest[j], w[g], b[j][g]);
                        }
                    }
#pragma GCC unroll 4
                    for (int j = 0; j < BESIDE<M>; ++j) {
                        const I32s both = (sum[j] << 8) + rest[j];
                        // The weights' scale last: with the other it might be no normal number.
                        sums[i + j] = fma(as_floats(both) * splat(scale[(i + j) * scales]), d, sums[i + j]);
                        if constexpr (F::SHIFTED) {
                            sums[i + j] = fma(shift, splat(totals[(i + j) * grains + part]), sums[i + j]);
                        }
                    }
                }
            }
            high += SUBBLOCK;
            low += SUBBLOCK;
            ++scale;
            starts += SUBBLOCK / GRAIN<F>;
            totals += SUBBLOCK / GRAIN<F>;
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

template <class F>
constexpr Format format(const char* name) {
    return {name, F::K, F::SOURCE, F::BYTES, put_row<F>, get_row<F>, rows<F, MOST, false>,
            rows<F, 4, true>, widen<F>, EXCESS<F>, GRAIN<F>};
}

const Format FORMATS[] = {
    format<Q4_0>("q4_0"),     format<Q4_1>("q4_1"),     format<Q5_0>("q5_0"),   format<Q5_1>("q5_1"),
    format<Q8_0>("q8_0"),     format<IQ4_NL>("iq4_nl"), format<MXFP4>("mxfp4"), format<Q2_K>("q2_k"),
    format<Q3_K>("q3_k"),     format<Q4_K>("q4_k"),     format<Q5_K>("q5_k"),   format<Q6_K>("q6_k"),
    format<IQ4_XS>("iq4_xs"), format<TQ1_0>("tq1_0"),   format<TQ2_0>("tq2_0"),
};

// -- activations ----------------------------------------------------------------------------------

// Memory that a thread keeps for its next call.
template <class T>
T* room(i64 count) {
    thread_local Room<T> memory;
    return memory.of(count);
}

constexpr f32 MOST_ROUNDED = 127 * 256 + 127;

struct Rounded {
    i8* bytes;
    f32* scales;
    i32* starts;
    f32* sums;
};

// Sixteen numbers of 16 bits as high and low bytes, both signed; their sum.  A low byte of -128, which has no
// opposite, that some machines' products need, is -127.
PROPOLIS_INLINE i32 split(const I32s& numbers, i8* upper, i8* lower) {
#if defined(__AVX512F__)
    __m512i v = (__m512i)numbers.part[0];
    const __mmask16 odd = _mm512_cmpeq_epi32_mask(_mm512_and_si512(v, _mm512_set1_epi32(0xff)), _mm512_set1_epi32(0x80));
    v = _mm512_mask_add_epi32(v, odd, v, _mm512_set1_epi32(1));
    _mm_storeu_si128((__m128i*)lower, _mm512_cvtepi32_epi8(v));
    const __m512i high = _mm512_srai_epi32(_mm512_add_epi32(v, _mm512_set1_epi32(128)), 8);
    _mm_storeu_si128((__m128i*)upper, _mm512_cvtepi32_epi8(high));
    return _mm512_reduce_add_epi32(v);
#else
    i32 each[LANES], total = 0;
    std::memcpy(each, &numbers, sizeof each);
    for (int e = 0; e < LANES; ++e) {
        each[e] += (i8)each[e] == -128;
        lower[e] = (i8)each[e];
        upper[e] = (i8)((each[e] + 128) >> 8);
        total += each[e];
    }
    return total;
#endif
}

// A row of activations in 16 bits, 32 with a scale: bytes of high bits, then bytes of low ones, both signed.
// Bytes alone would do for most rows, but not for those with an element a hundred times the others, which
// language models have: they made the logits wrong by 5 %.  NaN and infinities make the scale NaN.
template <class T>
void round_row(const Product& p, const Rounded& r, i64 m) {
    const Format& f = *p.format;
    const i64 grains = p.k / f.grain;
    const T* x = (const T*)p.x + m * p.k;
    for (i64 i = 0; i < p.k / SUBBLOCK; ++i) {
        F32s low = load_wide(x + SUBBLOCK * i), high = load_wide(x + SUBBLOCK * i + LANES);
        f32 top = largest(larger(magnitude(low), magnitude(high)));
        f32 unit = 1;
        if (top < 0x1p-100f) {  // 127 / top might be infinite
            unit = 0x1p-100f;
            top *= 0x1p100f;
            low = low * splat(0x1p100f);
            high = high * splat(0x1p100f);
        }
        const f32 odd = sum((low + high) * splat(0.0f));  // NaN where one is not finite
        if (odd != odd) low = high = splat(0.0f);          // the scale says it; NaN is no integer
        const F32s inverse = splat(top > 0 ? MOST_ROUNDED / top : 0.0f);
        // The nearest: 1.5 * 2**23 leaves no bit for fractions.
        const F32s rounder = splat(12582912.0f);
        const I32s a = bits_as<I32s>(fma(low, inverse, rounder)) - splat<I32s>(0x4b400000);
        const I32s b = bits_as<I32s>(fma(high, inverse, rounder)) - splat<I32s>(0x4b400000);
        i8 *upper = r.bytes + m * p.k + SUBBLOCK * i, *lower = upper + p.m * p.k;
        i32 total[2] = {split(a, upper, lower), split(b, upper + LANES, lower + LANES)};
        const f32 scale = top / MOST_ROUNDED * unit + odd;
        r.scales[m * (p.k / SUBBLOCK) + i] = scale;
        if (f.grain == SUBBLOCK) total[0] += total[1];
        const i64 at = m * grains + i * (SUBBLOCK / f.grain);
        for (int part = 0; part < SUBBLOCK / f.grain; ++part) {
            r.starts[at + part] = -f.excess * total[part];
            r.sums[at + part] = scale * (f32)total[part];
        }
    }
}

}  // namespace

const Format* format_named(const char* name) {
    for (const Format& format : FORMATS) {
        if (std::strcmp(format.name, name) == 0) return &format;
    }
    return nullptr;
}

void multiply(Product p, bool exact) {
    const Format& f = *p.format;
    if (p.k == 0) {
        std::memset(p.out, 0, p.m * p.n * size_of(p.kind));
        return;
    }
    const i64 tiles = (p.n + TILE - 1) / TILE;
    const int preparing = p.m * p.k > 8000 ? p.threads : 1;
    if (exact && p.kind == Kind::F32) {
        p.wide = (const f32*)p.x;
    } else if (exact) {
        f32* wide = room<f32>(p.m * p.k);
        parallel(preparing, p.m, [&](i64 m) {
            with_type(p.kind, [&](auto type) {
                const auto* x = (const decltype(type)*)p.x + m * p.k;
                for (i64 i = 0; i < p.k; i += LANES) store(wide + m * p.k + i, load_wide(x + i));
            });
        });
        p.wide = wide;
    } else {
        const i64 grains = p.k / f.grain, scales = p.k / SUBBLOCK;
        f32* const numbers = room<f32>(p.m * (scales + grains));
        const Rounded all{room<i8>(2 * p.m * p.k), numbers, room<i32>(p.m * grains),
                          numbers + p.m * scales};
        parallel(preparing, p.m, [&](i64 m) {
            with_type(p.kind, [&](auto type) { round_row<decltype(type)>(p, all, m); });
        });
        p.bytes = all.bytes;
        p.scales = all.scales;
        p.starts = all.starts;
        p.sums = all.sums;
    }
    const auto kernel = exact ? f.exact : f.fast;
    // Tasks of some ten microseconds: enough to share evenly, few enough to hand out.
    const i64 weight_bytes = p.k / f.block * f.tile;
    const i64 work = weight_bytes * (1 + p.m);
    constexpr i64 ROWS = 64, TASK = 1 << 16;
    const i64 row_parts = (p.m + ROWS - 1) / ROWS;
    i64 some = TASK / (weight_bytes * (1 + (p.m < ROWS ? p.m : ROWS) / MOST));
    const i64 fair = tiles / (2 * p.threads);
    some = some < 1 ? 1 : some;
    if (some > fair) some = fair < 1 ? 1 : fair;
    const i64 tile_parts = (tiles + some - 1) / some;
    const int threads = tiles * work < (1 << 15) ? 1 : p.threads;
    parallel(threads, tile_parts * row_parts, [&](i64 task) {
        const i64 t0 = task / row_parts * some, m0 = task % row_parts * ROWS;
        kernel(p, t0, t0 + some < tiles ? t0 + some : tiles, m0, m0 + ROWS < p.m ? m0 + ROWS : p.m);
    });
}

void repack(const Format& f, u8* tiles, const u8* blocks, i64 n, i64 k, int threads) {
    const i64 count = k / f.block, tile_bytes = count * f.tile, row_bytes = count * f.source;
    parallel(threads, (n + TILE - 1) / TILE, [&](i64 tile) {
        u8* to = tiles + tile * tile_bytes;
        std::memset(to, 0, tile_bytes);
        const i64 first = tile * TILE, rows = n - first < TILE ? n - first : TILE;
        for (i64 i = 0; i < count; ++i) {  // the part of a tile that all rows write stays in cache
            for (int row = 0; row < rows; ++row) {
                f.put(to + i * f.tile, row, blocks + (first + row) * row_bytes + i * f.source, 1);
            }
        }
    });
}

void unpack(const Format& f, u8* blocks, const u8* tiles, i64 n, i64 k, int threads) {
    const i64 count = k / f.block, tile_bytes = count * f.tile, row_bytes = count * f.source;
    parallel(threads, (n + TILE - 1) / TILE, [&](i64 tile) {
        for (int row = 0; row < TILE && tile * TILE + row < n; ++row) {
            f.get(blocks + (tile * TILE + row) * row_bytes, tiles + tile * tile_bytes, row, count);
        }
    });
}

}  // namespace propolis
