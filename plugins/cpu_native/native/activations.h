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
// powers of 2.  What a panel has of a sub-block lies together, row beside row: four lower bytes at a time.  Behind all
// of these are the upper ones, so that who reads none goes through no memory in between; they are there if one of the
// rows that a kernel takes beside each other has some.  Each row has as many as if it lay alone.  Where a format's
// products are of words, all are in their place, without such halves.
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

// Sixteen numbers of 16 bits as high and low bytes, both signed.
PROPOLIS_INLINE void split(const I32s& numbers, i8* upper, i8* lower) {
#if defined(__AVX512F__)
    const __m512i v = (__m512i)numbers.part[0];
    _mm_storeu_si128((__m128i*)lower, _mm512_cvtepi32_epi8(v));
    const __m512i high = _mm512_srai_epi32(_mm512_add_epi32(v, _mm512_set1_epi32(128)), 8);
    _mm_storeu_si128((__m128i*)upper, _mm512_cvtepi32_epi8(high));
#else
    i32 each[LANES];
    std::memcpy(each, &numbers, sizeof each);
    for (int e = 0; e < LANES; ++e) {
        lower[e] = (i8)each[e];
        upper[e] = (i8)((each[e] + 128) >> 8);
    }
#endif
}

// The numbers of a sub-block, of 8 bits, as bytes.
PROPOLIS_INLINE void as_bytes(const I32s& first, const I32s& second, i8* to) {
#if defined(__AVX512F__)
    _mm_storeu_si128((__m128i*)to, _mm512_cvtepi32_epi8((__m512i)first.part[0]));
    _mm_storeu_si128((__m128i*)(to + LANES), _mm512_cvtepi32_epi8((__m512i)second.part[0]));
#elif defined(__AVX2__)
    // Halves are packed by themselves, so that fours lie as 0 2 4 6, 1 3 5 7.
    const __m256i a = _mm256_packs_epi32((__m256i)first.part[0], (__m256i)first.part[1]);
    const __m256i b = _mm256_packs_epi32((__m256i)second.part[0], (__m256i)second.part[1]);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_si256((__m256i*)to, _mm256_permutevar8x32_epi32(_mm256_packs_epi16(a, b), order));
#else
    i32 each[SUBBLOCK];
    std::memcpy(each, &first, sizeof first);
    std::memcpy(each + LANES, &second, sizeof second);
    for (int e = 0; e < SUBBLOCK; ++e) to[e] = (i8)each[e];
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
typedef i64 Pair __attribute__((may_alias, aligned(1)));

// The numbers of a sub-block as words, of each four the even ones and then the odd ones: fours `apart` from each other.
PROPOLIS_INLINE void as_words(const I32s& first, const I32s& second, Pair* to, i64 apart) {
    Pair each[GROUPS];
#if defined(__AVX2__) && !defined(__AVX512F__)
    const auto half = [](const I32s& a, Pair* to) {
        const __m256i words = _mm256_packs_epi32((__m256i)a.part[0], (__m256i)a.part[1]);
        const __m128i each = _mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
        const __m256i order = _mm256_broadcastsi128_si256(each);
        _mm256_storeu_si256((__m256i*)to, _mm256_permute4x64_epi64(_mm256_shuffle_epi8(words, order), 0xd8));
    };
    half(first, each);
    half(second, each + GROUPS / 2);
#else
    i32 numbers[SUBBLOCK];
    std::memcpy(numbers, &first, sizeof first);
    std::memcpy(numbers + LANES, &second, sizeof second);
    i16 words[SUBBLOCK];
    for (int e = 0; e < SUBBLOCK; ++e) words[(e & ~3) | (e & 1) << 1 | (e & 2) >> 1] = (i16)numbers[e];
    std::memcpy(each, words, sizeof words);
#endif
#pragma GCC unroll 8
    for (int g = 0; g < GROUPS; ++g) to[g * apart] = each[g];
}

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
                const I32s a = bits_as<I32s>(fma(load_wide(x) * up, inverse, rounder)) - rounded;
                const I32s b = bits_as<I32s>(fma(load_wide(x + LANES) * up, inverse, rounder)) - rounded;
                if (p.format->words) {
                    as_words(a, b, (Pair*)(r.bytes + 2 * first * p.k + 2 * (i + s) * SUBBLOCK * WIDTH) + row, WIDTH);
                    totals[0][s] = parts == 1 ? as_floats(a) + as_floats(b) : as_floats(a);
                    totals[1][s] = as_floats(b);
                    continue;
                }
                i8 apart[2 * SUBBLOCK];
                Word* const to = (Word*)(r.bytes + 2 * first * p.k + (i + s) * SUBBLOCK * WIDTH) + row;
                if (of.finer[s]) {
                    split(a, apart + SUBBLOCK, apart);
                    split(b, apart + SUBBLOCK + LANES, apart + LANES);
                } else {
                    as_bytes(a, b, apart);
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
