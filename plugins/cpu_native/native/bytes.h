// Sixty-four bytes as one value, and their products: four neighbours of each of sixteen rows.
#pragma once

#include "simd.h"

namespace propolis {

// Sixteen groups of four bytes: of each of sixteen rows four neighbours.
typedef U32s U8s;

PROPOLIS_INLINE U8s load_u8s(const u8* from) { return load_bytes<U8s>(from); }
PROPOLIS_INLINE U8s repeat_byte(u8 value) { return splat<U8s>(0x01010101u * value); }

// Four bytes where they lie, which a product repeats as it reads them.  Copied as an array, they are read by
// eights and taken apart again.
typedef i32 Four __attribute__((may_alias, aligned(1)));

// One instruction sums four products of bytes, one of them unsigned, in 32 bits.
#if defined(__AVX512VNNI__)
#define PROPOLIS_VNNI
PROPOLIS_INLINE i32v dot4(i32v sums, u32v w, i32v a) {
    return (i32v)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)w, (__m512i)a);
}
#elif defined(__AVXVNNI__)
#define PROPOLIS_VNNI
PROPOLIS_INLINE i32v dot4(i32v sums, u32v w, i32v a) {
    return (i32v)_mm256_dpbusd_avx_epi32((__m256i)sums, (__m256i)w, (__m256i)a);
}
#endif

// Products of bytes by pairs: `pairs_of` sums two in 16 bits, `whole` two of these in 32.
#if defined(__AVX512BW__)
PROPOLIS_INLINE i32v pairs_of(u32v w, i32v a) { return (i32v)_mm512_maddubs_epi16((__m512i)w, (__m512i)a); }
PROPOLIS_INLINE i32v whole(i32v pairs) { return (i32v)_mm512_madd_epi16((__m512i)pairs, _mm512_set1_epi16(1)); }
#elif defined(__AVX2__)
PROPOLIS_INLINE i32v pairs_of(u32v w, i32v a) { return (i32v)_mm256_maddubs_epi16((__m256i)w, (__m256i)a); }
PROPOLIS_INLINE i32v whole(i32v pairs) { return (i32v)_mm256_madd_epi16((__m256i)pairs, _mm256_set1_epi16(1)); }
#elif defined(__SSSE3__)
PROPOLIS_INLINE i32v pairs_of(u32v w, i32v a) { return (i32v)_mm_maddubs_epi16((__m128i)w, (__m128i)a); }
PROPOLIS_INLINE i32v whole(i32v pairs) { return (i32v)_mm_madd_epi16((__m128i)pairs, _mm_set1_epi16(1)); }
#endif
#if defined(__SSSE3__)
typedef i16 i16v __attribute__((vector_size(VECTOR)));
PROPOLIS_INLINE i32v repeated(i32 a) { return a - i32v{}; }
#endif

// Sums of four products of bytes: sixteen sums.  `w` is unsigned, up to 127; `a` four signed bytes.
PROPOLIS_INLINE I32s dot(const I32s& sums, const U8s& w, i32 a) {
    I32s c;
#if defined(PROPOLIS_VNNI)
    PROPOLIS_EACH c.part[p] = dot4(sums.part[p], w.part[p], repeated(a));
#elif defined(__SSSE3__)
    PROPOLIS_EACH c.part[p] = sums.part[p] + whole(pairs_of(w.part[p], repeated(a)));
#elif defined(__ARM_FEATURE_DOTPROD)
    const int8x16_t four = vreinterpretq_s8_s32(vdupq_n_s32(a));
    PROPOLIS_EACH c.part[p] = (i32v)vdotq_s32((int32x4_t)sums.part[p], (int8x16_t)w.part[p], four);
#else
    i32 each[LANES];
    u8 bytes[4 * LANES];
    i8 four[4];
    std::memcpy(each, &sums, sizeof each);
    std::memcpy(bytes, &w, sizeof bytes);
    std::memcpy(four, &a, sizeof four);
    for (int i = 0; i < LANES; ++i)
        for (int j = 0; j < 4; ++j) each[i] += (i32)(i8)bytes[4 * i + j] * four[j];
    std::memcpy(&c, each, sizeof c);
#endif
    return c;
}

// The same of signed bytes from -128 on, where they are not widened to words (below).  What is given is made by
// `as_dotted`, and sums are too large by OFFSET times the sum of the other factors.
#if defined(PROPOLIS_VNNI)
constexpr i32 OFFSET = 128;
PROPOLIS_INLINE U8s as_dotted(const U8s& w) { return w ^ repeat_byte(0x80); }
#else
constexpr i32 OFFSET = 0;
PROPOLIS_INLINE U8s as_dotted(const U8s& w) { return w; }
#endif

// The same of two rows of weights and two of activations at once (i8mm): `even` has of each four rows of weights the
// products of the first two, row by row those with both rows of activations, and `odd` those of the last two.  `w` are
// two groups, and `first` and `second` the fours of both rows of activations that go with them.
#if defined(__ARM_FEATURE_MATMUL_INT8)
constexpr bool BY_TWO_ROWS = true;
PROPOLIS_INLINE void dot_two_rows(I32s& even, I32s& odd, const U8s* w, const Four* first, const Four* second) {
    int32x2_t a, b;
    std::memcpy(&a, first, sizeof a);
    std::memcpy(&b, second, sizeof b);
    const int8x16_t x = vreinterpretq_s8_s32(vcombine_s32(vzip1_s32(a, b), vzip2_s32(a, b)));
    PROPOLIS_EACH {
        const int32x4_t near = (int32x4_t)w[0].part[p], far = (int32x4_t)w[1].part[p];
        even.part[p] = (i32v)vmmlaq_s32((int32x4_t)even.part[p], vreinterpretq_s8_s32(vzip1q_s32(near, far)), x);
        odd.part[p] = (i32v)vmmlaq_s32((int32x4_t)odd.part[p], vreinterpretq_s8_s32(vzip2q_s32(near, far)), x);
    }
}
// What both rows of activations have of that.
PROPOLIS_INLINE void part_rows(const I32s& even, const I32s& odd, I32s& first, I32s& second) {
    PROPOLIS_EACH {
        first.part[p] = (i32v)vuzp1q_s32((int32x4_t)even.part[p], (int32x4_t)odd.part[p]);
        second.part[p] = (i32v)vuzp2q_s32((int32x4_t)even.part[p], (int32x4_t)odd.part[p]);
    }
}
#else
constexpr bool BY_TWO_ROWS = false;
PROPOLIS_INLINE void dot_two_rows(I32s&, I32s&, const U8s*, const Four*, const Four*) {}
PROPOLIS_INLINE void part_rows(const I32s&, const I32s&, I32s&, I32s&) {}
#endif

// Of so many groups products may be added as pairs are, in 16 bits, where no factor of `w` is above `most`: without
// VNNI, whose sums have 32.
template <int most>
constexpr int IN_16_BITS =
#if defined(__SSSE3__) && !defined(PROPOLIS_VNNI)
    2 * 127 * most * 8 <= 32767 ? 8 : 2 * 127 * most * 4 <= 32767 ? 4 : 2 * 127 * most * 2 <= 32767 ? 2 : 1;
#else
    1;
#endif
// What is read once for several rows, though the compiler would rather read it for each; or as it likes.
template <bool once, class V>
PROPOLIS_INLINE decltype(auto) read_group(const Sixteen<V>& from) {
    if constexpr (once) {
        Sixteen<V> own;
        PROPOLIS_EACH {
            own.part[p] = from.part[p];
            PROPOLIS_IN_ORDER(own.part[p]);
        }
        return own;
    } else {
        return (from);
    }
}
// To the sums of so many rows the products of so many groups, whose fours lie `apart` from each other, side by side;
// where it is `once`, each group is read once for all of them.
template <int groups, bool once, int rows>
PROPOLIS_INLINE void dot_groups([[maybe_unused]] I32s (&sums)[rows], [[maybe_unused]] const U8s* w,
                                [[maybe_unused]] const Four* a, [[maybe_unused]] int apart) {
#if defined(__SSSE3__)
    i16v pairs[rows][PARTS];
#pragma GCC unroll 8
    for (int g = 0; g < groups; ++g) {
        const auto& own_w = read_group<once>(w[g]);
#pragma GCC unroll 8
        for (int j = 0; j < rows; ++j) {
            const i32v four = repeated(a[g * apart + j]);
            PROPOLIS_EACH {
                const i16v own = (i16v)pairs_of(own_w.part[p], four);
                pairs[j][p] = g == 0 ? own : pairs[j][p] + own;
                PROPOLIS_IN_ORDER(pairs[j][p]);
            }
        }
    }
#pragma GCC unroll 8
    for (int j = 0; j < rows; ++j) PROPOLIS_EACH sums[j].part[p] += whole((i32v)pairs[j][p]);
#endif
}

// Signed bytes by way of words, as pairs of products of bytes with signs do not fit 16 bits: of each four the even ones
// and the odd ones, and sums of two products of these.
#if defined(__SSSE3__) && !defined(PROPOLIS_VNNI)
constexpr bool BY_WORDS = true;
PROPOLIS_INLINE void widen_bytes(const U8s& bytes, I32s& even, I32s& odd) {
    PROPOLIS_EACH {
        even.part[p] = (i32v)((i16v)bytes.part[p] << 8 >> 8);
        odd.part[p] = (i32v)((i16v)bytes.part[p] >> 8);
    }
}
PROPOLIS_INLINE i32v pairs_of_words(i32v w, i32v a) {
#if defined(__AVX512BW__)
    return (i32v)_mm512_madd_epi16((__m512i)w, (__m512i)a);
#elif defined(__AVX2__)
    return (i32v)_mm256_madd_epi16((__m256i)w, (__m256i)a);
#else
    return (i32v)_mm_madd_epi16((__m128i)w, (__m128i)a);
#endif
}
#else
constexpr bool BY_WORDS = false;
PROPOLIS_INLINE void widen_bytes(const U8s&, I32s&, I32s&) {}
PROPOLIS_INLINE i32v pairs_of_words(i32v w, i32v) { return w; }
#endif

// One of sixteen bytes for each of sixty-four numbers below 16.
PROPOLIS_INLINE U8s look_up(const i8* table, const U8s& index) {
    U8s c;
#if defined(__AVX512BW__)
    const __m512i t = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)table));
    c.part[0] = (u32v)_mm512_shuffle_epi8(t, (__m512i)index.part[0]);
#elif defined(__AVX2__)
    const __m256i t = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)table));
    PROPOLIS_EACH c.part[p] = (u32v)_mm256_shuffle_epi8(t, (__m256i)index.part[p]);
#elif defined(__SSSE3__)
    const __m128i t = _mm_loadu_si128((const __m128i*)table);
    PROPOLIS_EACH c.part[p] = (u32v)_mm_shuffle_epi8(t, (__m128i)index.part[p]);
#elif defined(__aarch64__)
    const int8x16_t t = vld1q_s8(table);
    PROPOLIS_EACH c.part[p] = (u32v)vqtbl1q_s8(t, (uint8x16_t)index.part[p]);
#else
    u8 bytes[4 * LANES];
    std::memcpy(bytes, &index, sizeof bytes);
    for (u8& byte : bytes) byte = (u8)table[byte];
    std::memcpy(&c, bytes, sizeof c);
#endif
    return c;
}

}  // namespace propolis
