// Activations rounded to bytes, 32 with a scale, for products with weights in blocks.
#pragma once

#include <bit>

#include "kernels.h"
#include "simd.h"
#include "tiles.h"

namespace propolis {

// Rows of activations that share an unpacked weight: their sums stay in registers.
#ifdef PROPOLIS_MOST  // of a build with sanitizers, as these take the compiler long
constexpr int MOST = PROPOLIS_MOST;
#else
constexpr int MOST = VECTOR >= 32 ? 8 : BY_TWO_ROWS ? 4 : 2;
#endif

// Of M rows so many at a time: a product waits for the one before it that it is added to.
constexpr int beside(int rows) { return std::min(rows, VECTOR >= 32 ? 4 : BY_TWO_ROWS ? 2 : 1); }

constexpr f32 MOST_ROUNDED = 127 * 256 + 127, MOST_COARSE = 127;

// Rows of activations in panels of those that a kernel takes together: MOST rows each, and the last ones by
// powers of 2.  What a panel has of a sub-block lies together, row beside row: words of four lower bytes.  Behind all
// of these are the upper ones, so that who reads none goes through no memory in between; they are there if one of the
// rows that a kernel takes beside each other has some.  Each row has as many as if it lay alone.
struct Rounded {
    i8* bytes;
    f32* scales;
    i32* starts;
    f32* sums;
    u8* finer;
};

// The rows of a panel.
struct Span {
    i64 first, width;
};
inline i64 panels(i64 rows) { return rows / MOST + std::popcount((u64)rows % MOST); }
inline Span panel(i64 rows, i64 number) {
    const i64 whole = rows / MOST;
    if (number < whole) return {number * MOST, MOST};
    Span span{whole * MOST, MOST / 2};
    for (i64 before = number - whole;; span.width /= 2) {
        if (span.first + span.width > rows) continue;
        if (before-- == 0) return span;
        span.first += span.width;
    }
}

// Sixteen numbers of 16 bits as high and low bytes, both signed.  A low byte of -128, which has no opposite, that
// some machines' products need, becomes -127.
PROPOLIS_INLINE void split(I32s& numbers, i8* upper, i8* lower) {
#if defined(__AVX512F__)
    __m512i v = (__m512i)numbers.part[0];
    const __mmask16 odd = _mm512_cmpeq_epi32_mask(_mm512_and_si512(v, _mm512_set1_epi32(0xff)), _mm512_set1_epi32(0x80));
    v = _mm512_mask_add_epi32(v, odd, v, _mm512_set1_epi32(1));
    _mm_storeu_si128((__m128i*)lower, _mm512_cvtepi32_epi8(v));
    const __m512i high = _mm512_srai_epi32(_mm512_add_epi32(v, _mm512_set1_epi32(128)), 8);
    _mm_storeu_si128((__m128i*)upper, _mm512_cvtepi32_epi8(high));
    numbers.part[0] = (i32v)v;
#else
    i32 each[LANES];
    std::memcpy(each, &numbers, sizeof each);
    for (int e = 0; e < LANES; ++e) {
        each[e] += (i8)each[e] == -128;
        lower[e] = (i8)each[e];
        upper[e] = (i8)((each[e] + 128) >> 8);
    }
    std::memcpy(&numbers, each, sizeof each);
#endif
}

// Numbers of 8 bits as bytes.
PROPOLIS_INLINE void as_bytes(const I32s& numbers, i8* to) {
#if defined(__AVX512F__)
    _mm_storeu_si128((__m128i*)to, _mm512_cvtepi32_epi8((__m512i)numbers.part[0]));
#else
    i32 each[LANES];
    std::memcpy(each, &numbers, sizeof each);
    for (int e = 0; e < LANES; ++e) to[e] = (i8)each[e];
#endif
}

// A sub-block has two bytes of an element where its largest one is more than so many times its row's mean.  It
// depends on the row alone: what is rounded to bytes is rounded otherwise by the next digit's worth of noise, so
// that an answer would depend on who else is in its batch if any sum of a model did.
constexpr f32 OUTSTANDING = 10;

// What is more than this stands out of a row.
template <class T>
f32 outstanding(const T* x, i64 k) {
    F32s low = splat(0.0f), high = low;
    for (i64 i = 0; i < k; i += SUBBLOCK) {
        low = low + magnitude(load_wide(x + i));
        high = high + magnitude(load_wide(x + i + LANES));
    }
    return sum(low + high) / (f32)k * OUTSTANDING;
}

// Of sixteen sub-blocks of a row, or fewer: what elements are multiplied with, by two factors, as 127 by the least of
// numbers might be infinite; what integers are then multiplied with; and whether they have 16 bits.
struct Scales {
    f32 up[LANES], inverse[LANES], scale[LANES];
    bool finer[LANES];
};

template <class T>
PROPOLIS_INLINE void find_scales(Scales& found, const T* x, int count, f32 most) {
    F32s each[LANES];
    for (int s = 0; s < LANES; ++s, x += SUBBLOCK) {
        each[s] = s < count ? larger_bits(magnitude(load_wide(x)), magnitude(load_wide(x + LANES))) : splat(0.0f);
    }
    F32s top = folded_each(each, [](auto a, auto b) { return larger_bits(a, b); });
    const f32v zero{}, least = zero + 0x1p-100f, nan = zero + std::numeric_limits<f32>::quiet_NaN();
    F32s up, inverse, scale;
    PROPOLIS_EACH {
        const f32v t = top.part[p];
        up.part[p] = t < least ? zero + 0x1p100f : zero + 1;
        const f32v steps = t <= zero + most ? zero + MOST_COARSE : zero + MOST_ROUNDED;
        const f32v raised = t * up.part[p];
        const f32v finite = t < zero + INFINITE ? zero + 1 : nan;  // the scale says it: an integer cannot
        inverse.part[p] = raised > zero ? steps / raised : zero;
        scale.part[p] = raised / steps * (t < least ? least : zero + 1) * finite;
    }
    f32 tops[LANES];
    store(tops, top);
    store(found.up, up);
    store(found.inverse, inverse);
    store(found.scale, scale);
    for (int s = 0; s < LANES; ++s) found.finer[s] = !(tops[s] <= most);
}

typedef i32 Word __attribute__((may_alias, aligned(1)));

// Sub-blocks [i0, i1) of a panel's rows as integers with a scale: bytes, and where an element stands out, 16 bits as a
// lower and an upper byte, both signed.  Language models have rows with elements a hundred times the others: bytes
// alone made their logits wrong by 5 %.  NaN and infinities make the scale NaN.
template <class T, int WIDTH>
void round_panel(const Product& p, const Rounded& r, i64 first, i64 i0, i64 i1) {
    const i64 parts = SUBBLOCK / p.format->grain;
    constexpr int group = beside(WIDTH);
    f32 most[WIDTH];
    for (int row = 0; row < WIDTH; ++row) {
        most[row] = outstanding((const T*)p.x + (first + row) * p.k, p.k);
    }
    // The nearest: 1.5 * 2**23 leaves no bit for fractions.
    const F32s rounder = splat(12582912.0f);
    const I32s rounded = splat<I32s>(0x4b400000);
    for (i64 i = i0; i < i1; i += LANES) {
        const int count = i1 - i < LANES ? (int)(i1 - i) : LANES;
        Scales scales[WIDTH];
        bool any[WIDTH][LANES] = {};  // of the rows of a group
        for (int row = 0; row < WIDTH; ++row) {
            find_scales(scales[row], (const T*)p.x + (first + row) * p.k + i * SUBBLOCK, count, most[row]);
            for (int s = 0; s < LANES; ++s) any[row / group][s] |= scales[row].finer[s];
        }
        for (int row = 0; row < WIDTH; ++row) {
            const T* x = (const T*)p.x + (first + row) * p.k + i * SUBBLOCK;
            const Scales& of = scales[row];
            F32s totals[2][LANES];
            for (int s = 0; s < count; ++s, x += SUBBLOCK) {
                const F32s up = splat(of.up[s]), inverse = splat(of.inverse[s]);
                I32s a = bits_as<I32s>(fma(load_wide(x) * up, inverse, rounder)) - rounded;
                I32s b = bits_as<I32s>(fma(load_wide(x + LANES) * up, inverse, rounder)) - rounded;
                i8 apart[2 * SUBBLOCK];
                Word* const to = (Word*)(r.bytes + 2 * first * p.k + (i + s) * SUBBLOCK * WIDTH) + row;
                if (of.finer[s]) {
                    split(a, apart + SUBBLOCK, apart);
                    split(b, apart + SUBBLOCK + LANES, apart + LANES);
                } else {
                    as_bytes(a, apart);
                    as_bytes(b, apart + LANES);
                }
#pragma GCC unroll 8
                for (int g = 0; g < GROUPS; ++g) to[g * WIDTH] = ((const Word*)apart)[g];
                if (any[row / group][s]) {
                    if (!of.finer[s]) std::memset(apart + SUBBLOCK, 0, SUBBLOCK);
                    Word* const upper = to + p.k / GROUP * WIDTH;
#pragma GCC unroll 8
                    for (int g = 0; g < GROUPS; ++g) upper[g * WIDTH] = ((const Word*)apart)[GROUPS + g];
                }
                totals[0][s] = parts == 1 ? as_floats(a) + as_floats(b) : as_floats(a);
                totals[1][s] = as_floats(b);
            }
            for (int part = 0; part < parts; ++part) {
                for (int s = count; s < LANES; ++s) totals[part][s] = splat(0.0f);
                f32 total[LANES];  // below 2**24, so that f32 has it
                store(total, sum_each(totals[part]));
                for (int s = 0; s < count; ++s) {
                    const i64 at = (first * (p.k / SUBBLOCK) + (i + s) * WIDTH) * parts + part * WIDTH + row;
                    const bool odd = of.scale[s] != of.scale[s];
                    r.starts[at] = odd ? 0 : -p.format->excess * (i32)total[s];
                    r.sums[at] = of.scale[s] * total[s];
                }
            }
            for (int s = 0; s < count; ++s) {
                const i64 at = first * (p.k / SUBBLOCK) + (i + s) * WIDTH + row;
                r.scales[at] = of.scale[s];
                r.finer[at] = of.finer[s];
            }
        }
    }
}

// Part of a panel, of any width.
template <class T, int WIDTH = MOST>
void round_some(const Product& p, const Rounded& r, const Span& span, i64 i0, i64 i1) {
    if (span.width == WIDTH) {
        round_panel<T, WIDTH>(p, r, span.first, i0, i1);
    } else if constexpr (WIDTH > 1) {
        round_some<T, WIDTH / 2>(p, r, span, i0, i1);
    }
}

}  // namespace propolis
