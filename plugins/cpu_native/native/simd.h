// Sixteen numbers at a time, in as many of the machine's vectors as that takes.  Each kernel is compiled
// once for each level of instructions; what differs between them stands here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace propolis {

using std::size_t;
typedef int8_t i8;
typedef uint8_t u8;
typedef int16_t i16;
typedef uint16_t u16;
typedef int32_t i32;
typedef uint32_t u32;
typedef int64_t i64;
typedef uint64_t u64;
typedef float f32;
struct f16 {
    u16 bits;
};
struct bf16 {
    u16 bits;
};

#define PROPOLIS_INLINED __attribute__((always_inline))  // of lambdas
#define PROPOLIS_INLINE inline PROPOLIS_INLINED

#if defined(__AVX512F__)
constexpr int VECTOR = 64;
#elif defined(__AVX2__)
constexpr int VECTOR = 32;
#else
constexpr int VECTOR = 16;
#endif
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr unsigned REGISTERS = 32;  // for vectors
#else
constexpr unsigned REGISTERS = 16;
#endif
constexpr int LANES = 16;
constexpr int PARTS = LANES * 4 / VECTOR;  // vectors of 16 numbers of 4 bytes

typedef f32 f32v __attribute__((vector_size(VECTOR)));
typedef i32 i32v __attribute__((vector_size(VECTOR)));
typedef u32 u32v __attribute__((vector_size(VECTOR)));
// In memory, of whatever type and wherever: a struct of two vectors, copied as such, goes by way of a place that
// is written by halves, and waits for them.
typedef u32 anywhere __attribute__((vector_size(VECTOR), aligned(1), may_alias));

// -- sixteen of 4 bytes ---------------------------------------------------------------------------

template <class V>
struct Sixteen {
    V part[PARTS];
};
typedef Sixteen<f32v> F32s;
typedef Sixteen<i32v> I32s;
typedef Sixteen<u32v> U32s;

#define PROPOLIS_EACH                                            \
    _Pragma("GCC unroll 4") for (int p = 0; p < PARTS; ++p)

#define PROPOLIS_OPERATOR(op)                                                   \
    template <class V>                                                          \
    PROPOLIS_INLINE Sixteen<V> operator op(const Sixteen<V>& a, const Sixteen<V>& b) { \
        Sixteen<V> c;                                                           \
        PROPOLIS_EACH c.part[p] = a.part[p] op b.part[p];                       \
        return c;                                                               \
    }
PROPOLIS_OPERATOR(+)
PROPOLIS_OPERATOR(-)
PROPOLIS_OPERATOR(*)
PROPOLIS_OPERATOR(/)
PROPOLIS_OPERATOR(&)
PROPOLIS_OPERATOR(|)
PROPOLIS_OPERATOR(^)
#undef PROPOLIS_OPERATOR

template <class S, class T>
PROPOLIS_INLINE S splat(T value) {
    S s;
    typedef std::remove_reference_t<decltype(s.part[0])> V;
    PROPOLIS_EACH s.part[p] = value - V{};  // a scalar beside a vector is repeated
    return s;
}
PROPOLIS_INLINE F32s splat(f32 value) { return splat<F32s>(value); }

template <class V>
PROPOLIS_INLINE Sixteen<V> operator<<(const Sixteen<V>& a, int bits) {
    Sixteen<V> c;
    PROPOLIS_EACH c.part[p] = a.part[p] << bits;
    return c;
}
template <class V>
PROPOLIS_INLINE Sixteen<V> operator>>(const Sixteen<V>& a, int bits) {
    Sixteen<V> c;
    PROPOLIS_EACH c.part[p] = a.part[p] >> bits;
    return c;
}

template <class S>
PROPOLIS_INLINE S load_bytes(const void* from) {
    S s;
    typedef std::remove_reference_t<decltype(s.part[0])> V;
    PROPOLIS_EACH s.part[p] = (V)((const anywhere*)from)[p];
    return s;
}
PROPOLIS_INLINE F32s load(const f32* from) { return load_bytes<F32s>(from); }
PROPOLIS_INLINE void store(f32* to, const F32s& s) {
    PROPOLIS_EACH ((anywhere*)to)[p] = (anywhere)s.part[p];
}

// What is in memory is read again: with sixteen registers and fewer, the compiler would keep it by copies of it.
PROPOLIS_INLINE void read_again() {
    if constexpr (VECTOR < 64) asm volatile("" : : : "memory");
}

template <class To, class From>
PROPOLIS_INLINE To bits_as(const From& from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}
template <class To, class V>
PROPOLIS_INLINE To bits_as(const Sixteen<V>& from) {
    if constexpr (requires(To to) { to.part[PARTS - 1]; }) {
        To to;
        typedef std::remove_reference_t<decltype(to.part[0])> Other;
        PROPOLIS_EACH to.part[p] = (Other)from.part[p];
        return to;
    } else {
        return (To)from.part[0];
    }
}

// Rounded once wherever there is an instruction for it: by -ffp-contract=fast it depends on what the compiler makes of
// the code around, which with AVX-512 split products from their sums where these began in another branch.
PROPOLIS_INLINE f32v fma(const f32v& a, const f32v& b, const f32v& c) {
#if defined(__AVX512F__)
    return (f32v)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    return (f32v)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
    return (f32v)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}
PROPOLIS_INLINE F32s fma(const F32s& a, const F32s& b, const F32s& c) {
    F32s d;
    PROPOLIS_EACH d.part[p] = fma(a.part[p], b.part[p], c.part[p]);
    return d;
}
// A product that is rounded as such: of a sum of two products, the compiler may put either into its one rounding.
// And steps in the order that they are written in: it would put all products before all sums, and has no registers
// for that.
#if defined(__aarch64__)
#define PROPOLIS_ROUNDED(x) asm("" : "+w"(x))
#define PROPOLIS_IN_ORDER(x) asm volatile("" : "+w"(x))
#else
#define PROPOLIS_ROUNDED(x) asm("" : "+v"(x))
#define PROPOLIS_IN_ORDER(x) asm volatile("" : "+v"(x))
#endif
PROPOLIS_INLINE F32s product(const F32s& a, const F32s& b) {
    F32s c = a * b;
    PROPOLIS_EACH PROPOLIS_ROUNDED(c.part[p]);
    return c;
}
PROPOLIS_INLINE f32 product(f32 a, f32 b) {
    f32 c = a * b;
    PROPOLIS_ROUNDED(c);
    return c;
}
PROPOLIS_INLINE F32s larger(const F32s& a, const F32s& b) {  // of NaN and b: b
    F32s c;
    PROPOLIS_EACH c.part[p] = a.part[p] > b.part[p] ? a.part[p] : b.part[p];
    return c;
}
PROPOLIS_INLINE F32s magnitude(const F32s& a) {
    return bits_as<F32s>(bits_as<U32s>(a) & splat<U32s>(0x7fffffffu));
}
PROPOLIS_INLINE F32s as_floats(const I32s& a) {
    F32s c;
    PROPOLIS_EACH c.part[p] = __builtin_convertvector(a.part[p], f32v);
    return c;
}
PROPOLIS_INLINE F32s as_floats(const U32s& a) {  // below 2**31
    return as_floats(bits_as<I32s>(a));
}

// Halves are put on each other until one number is left (lanes 8 apart, 4, 2 and 1): in registers, as a loop over
// lanes is not.
template <class F>
PROPOLIS_INLINE f32 folded(const F32s& a, F f) {
    typedef f32 eight __attribute__((vector_size(32)));
    typedef f32 four __attribute__((vector_size(16)));
    f32v v = a.part[0];
    if constexpr (PARTS == 2) v = f(v, a.part[1]);
    if constexpr (PARTS == 4) v = f(f(v, a.part[2]), f(a.part[1], a.part[3]));
    four last[VECTOR / 16];
    std::memcpy(last, &v, sizeof v);
    if constexpr (VECTOR == 64) {
        eight half[2];
        std::memcpy(half, &v, sizeof v);
        half[0] = f(half[0], half[1]);
        std::memcpy(last, half, sizeof half[0]);
    }
    if constexpr (VECTOR >= 32) last[0] = f(last[0], last[1]);
    const four q = last[0];
    return f(f(q[0], q[2]), f(q[1], q[3]));
}
PROPOLIS_INLINE f32 sum(const F32s& a) {
    return 0 + folded(a, [](auto x, auto y) { return x + y; });  // 0, of zeros with a sign
}
// `folded` of each of sixteen vectors, to the bit.
template <class F>
PROPOLIS_INLINE F32s folded_each(const F32s (&a)[LANES], F f) {
#if defined(__AVX512F__)
    // Halves of two at a time share a vector, until all do: quarters are of vectors i, 4 + i, 8 + i, 12 + i.
    f32v fours[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
        const auto halves = [&](int j) PROPOLIS_INLINED {
            const __m512 x = (__m512)a[j].part[0], y = (__m512)a[j + 4].part[0];
            return (__m512)f((f32v)_mm512_shuffle_f32x4(x, y, 0x44), (f32v)_mm512_shuffle_f32x4(x, y, 0xee));
        };
        const __m512 x = halves(i), y = halves(i + 8);
        fours[i] = f((f32v)_mm512_shuffle_f32x4(x, y, 0x88), (f32v)_mm512_shuffle_f32x4(x, y, 0xdd));
    }
    const auto pairs = [&](f32v x, f32v y) PROPOLIS_INLINED {
        return (__m512d)f((f32v)_mm512_unpacklo_ps((__m512)x, (__m512)y), (f32v)_mm512_unpackhi_ps((__m512)x, (__m512)y));
    };
    const __m512d x = pairs(fours[0], fours[1]), y = pairs(fours[2], fours[3]);
    F32s all;
    all.part[0] = f((f32v)_mm512_unpacklo_pd(x, y), (f32v)_mm512_unpackhi_pd(x, y));
    return all;
#elif defined(__AVX2__)
    // The same, of vectors i, 4 + i | 8 + i, 12 + i; then of all: 0, 4, 2, 6 | 8, ... beside 1, 5, 3, 7 | 9, ...
    const auto halves = [&](int i) PROPOLIS_INLINED {
        const __m256 x = (__m256)f(a[i].part[0], a[i].part[1]), y = (__m256)f(a[i + 8].part[0], a[i + 8].part[1]);
        return (__m256)f((f32v)_mm256_permute2f128_ps(x, y, 0x20), (f32v)_mm256_permute2f128_ps(x, y, 0x31));
    };
    const auto quarters = [&](int i) PROPOLIS_INLINED {
        const __m256d x = (__m256d)halves(i), y = (__m256d)halves(i + 4);
        return (__m256)f((f32v)_mm256_unpacklo_pd(x, y), (f32v)_mm256_unpackhi_pd(x, y));
    };
    const auto eighths = [&](int i) PROPOLIS_INLINED {
        const __m256 x = quarters(i), y = quarters(i + 2);
        return (__m256)f((f32v)_mm256_shuffle_ps(x, y, 0x88), (f32v)_mm256_shuffle_ps(x, y, 0xdd));
    };
    const __m256 even = eighths(0), odd = eighths(1);
    const __m256d x = (__m256d)_mm256_unpacklo_ps(even, odd), y = (__m256d)_mm256_unpackhi_ps(even, odd);
    const __m256 low = (__m256)_mm256_unpacklo_pd(x, y), high = (__m256)_mm256_unpackhi_pd(x, y);
    F32s all;
    all.part[0] = (f32v)_mm256_permute2f128_ps(low, high, 0x20);
    all.part[1] = (f32v)_mm256_permute2f128_ps(low, high, 0x31);
    return all;
#else
    f32 each[LANES];
    for (int i = 0; i < LANES; ++i) each[i] = folded(a[i], f);
    return load(each);
#endif
}
PROPOLIS_INLINE F32s sum_each(const F32s (&a)[LANES]) {
    return folded_each(a, [](auto x, auto y) { return x + y; }) + splat(0.0f);  // 0, of zeros with a sign
}
PROPOLIS_INLINE f32 largest(const F32s& a) {
    return folded(a, [](auto x, auto y) { return y > x ? y : x; });
}

// Of numbers without a sign, the larger: infinity before others, and NaN before infinity.  Lanes or one number.
template <class V>
PROPOLIS_INLINE V larger_bits(V x, V y) {
    if constexpr (sizeof(V) == 4) {
        return bits_as<i32>(y) > bits_as<i32>(x) ? y : x;
    } else {
        typedef i32 ints __attribute__((vector_size(sizeof(V))));
        return (ints)y > (ints)x ? y : x;
    }
}
PROPOLIS_INLINE F32s larger_bits(const F32s& a, const F32s& b) {
    F32s c;
    PROPOLIS_EACH c.part[p] = larger_bits(a.part[p], b.part[p]);
    return c;
}

// -- between types --------------------------------------------------------------------------------

PROPOLIS_INLINE f32 wide(f32 x) { return x; }
PROPOLIS_INLINE f32 wide(bf16 x) { return bits_as<f32>((u32)x.bits << 16); }
PROPOLIS_INLINE f32 wide(f16 x) {
#if defined(__F16C__)
    return _cvtsh_ss(x.bits);
#elif defined(__aarch64__)
    return (f32)bits_as<__fp16>(x.bits);
#else
    // The exponent moves by 112; what was below the least normal number is renormalised by a product.
    const u32 sign = (u32)(x.bits & 0x8000) << 16, rest = (u32)(x.bits & 0x7fff) << 13;
    if (rest >= 0x0f800000) return bits_as<f32>(sign | (rest + 0x70000000));
    return bits_as<f32>(sign | bits_as<u32>(bits_as<f32>(rest) * 0x1p112f));
#endif
}

template <class T>
PROPOLIS_INLINE T narrow(f32 x);
template <>
PROPOLIS_INLINE f32 narrow<f32>(f32 x) {
    return x;
}
template <>
PROPOLIS_INLINE bf16 narrow<bf16>(f32 x) {
    const u32 u = bits_as<u32>(x);
    if (x != x) return {(u16)((u >> 16) | 0x40)};
    return {(u16)((u + 0x7fff + ((u >> 16) & 1)) >> 16)};
}
template <>
PROPOLIS_INLINE f16 narrow<f16>(f32 x) {
#if defined(__F16C__)
    return {(u16)_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT)};
#elif defined(__aarch64__)
    return {bits_as<u16>((__fp16)x)};
#else
    const u32 u = bits_as<u32>(x), sign = (u >> 16) & 0x8000, rest = u & 0x7fffffff;
    if (rest > 0x7f800000) return {(u16)(sign | 0x7e00 | ((rest >> 13) & 0x3ff))};
    if (rest >= 0x477ff000) return {(u16)(sign | 0x7c00)};
    if (rest < 0x38800000) {  // subnormal: the sum with 2**-1 * 2**-13 rounds as it should
        const f32 shifted = bits_as<f32>(rest) + 0.5f;
        return {(u16)(sign | (bits_as<u32>(shifted) - 0x3f000000))};
    }
    return {(u16)(sign | ((rest - 0x38000000 + 0xfff + ((rest >> 13) & 1)) >> 13))};
#endif
}

PROPOLIS_INLINE F32s load_wide(const f32* from) { return load(from); }
PROPOLIS_INLINE F32s load_wide(const bf16* from) {
#if defined(__AVX512F__)
    const __m512i u = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)from));
    return bits_as<F32s>(_mm512_slli_epi32(u, 16));
#elif defined(__AVX2__)
    F32s s;
    PROPOLIS_EACH {
        const __m256i u = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)(from + 8 * p)));
        s.part[p] = (f32v)_mm256_slli_epi32(u, 16);
    }
    return s;
#else
    U32s u;
    u32 each[LANES];
    for (int i = 0; i < LANES; ++i) each[i] = (u32)from[i].bits << 16;
    std::memcpy(&u, each, sizeof u);
    return bits_as<F32s>(u);
#endif
}
PROPOLIS_INLINE F32s load_wide(const f16* from) {
#if defined(__AVX512F__)
    return bits_as<F32s>(_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)from)));
#elif defined(__F16C__)
    F32s s;
    s.part[0] = (f32v)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)from));
    s.part[1] = (f32v)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(from + 8)));
    return s;
#else
    f32 each[LANES];
    for (int i = 0; i < LANES; ++i) each[i] = wide(from[i]);
    return load(each);
#endif
}
template <class T>
PROPOLIS_INLINE void store_narrow(T* to, const F32s& s) {
    f32 each[LANES];
    store(each, s);
    for (int i = 0; i < LANES; ++i) to[i] = narrow<T>(each[i]);
}
PROPOLIS_INLINE void store_narrow(f32* to, const F32s& s) { store(to, s); }
#if defined(__AVX512F__)
PROPOLIS_INLINE void store_narrow(f16* to, const F32s& s) {
    _mm256_storeu_si256((__m256i*)to,
                        _mm512_cvtps_ph(bits_as<__m512>(s), _MM_FROUND_TO_NEAREST_INT));
}
PROPOLIS_INLINE void store_narrow(bf16* to, const F32s& s) {
    const U32s u = bits_as<U32s>(s), even = (u >> 16) & splat<U32s>(1u);
    const __m512i up = (__m512i)(u + splat<U32s>(0x7fffu) + even).part[0];
    const __mmask16 nan = _mm512_cmp_ps_mask(bits_as<__m512>(s), bits_as<__m512>(s), _CMP_UNORD_Q);
    const __m512i quiet = _mm512_or_si512((__m512i)u.part[0], _mm512_set1_epi32(0x400000));
    const __m512i narrow = _mm512_srli_epi32(_mm512_mask_mov_epi32(up, nan, quiet), 16);
    _mm256_storeu_si256((__m256i*)to, _mm512_cvtepi32_epi16(narrow));
}
#elif defined(__AVX2__) && defined(__F16C__)
PROPOLIS_INLINE void store_narrow(f16* to, const F32s& s) {
    PROPOLIS_EACH {
        _mm_storeu_si128((__m128i*)(to + 8 * p), _mm256_cvtps_ph((__m256)s.part[p], _MM_FROUND_TO_NEAREST_INT));
    }
}
PROPOLIS_INLINE void store_narrow(bf16* to, const F32s& s) {
    const U32s u = bits_as<U32s>(s);
    U32s up = (u + splat<U32s>(0x7fffu) + ((u >> 16) & splat<U32s>(1u))) >> 16;
    const U32s quiet = (u >> 16) | splat<U32s>(0x40u);
    PROPOLIS_EACH up.part[p] = s.part[p] == s.part[p] ? up.part[p] : quiet.part[p];
    const __m256i halves = _mm256_packus_epi32((__m256i)up.part[0], (__m256i)up.part[1]);  // each by itself
    _mm256_storeu_si256((__m256i*)to, _mm256_permute4x64_epi64(halves, 0xd8));
}
#endif

// The first of sixteen; the others are 0, and nothing is read or written for them.
template <class T>
PROPOLIS_INLINE F32s load_some(const T* from, i64 count) {
    if (count >= LANES) return load_wide(from);
    T each[LANES] = {};
    std::memcpy(each, from, count * sizeof(T));
    return load_wide(each);
}
template <class T>
PROPOLIS_INLINE void store_some(T* to, const F32s& s, i64 count) {
    if (count >= LANES) return store_narrow(to, s);
    T each[LANES];
    store_narrow(each, s);
    std::memcpy(to, each, count * sizeof(T));
}

// Sixteen bytes as numbers of four.
template <class T>
PROPOLIS_INLINE I32s load_widened(const T* from) {
    static_assert(sizeof(T) == 1);
    I32s s;
#if defined(__AVX512F__)
    const __m128i bytes = _mm_loadu_si128((const __m128i*)from);
    s.part[0] = (i32v)(std::is_signed_v<T> ? _mm512_cvtepi8_epi32(bytes) : _mm512_cvtepu8_epi32(bytes));
#elif defined(__AVX2__)
    PROPOLIS_EACH {
        const __m128i bytes = _mm_loadl_epi64((const __m128i*)(from + 8 * p));
        s.part[p] = (i32v)(std::is_signed_v<T> ? _mm256_cvtepi8_epi32(bytes) : _mm256_cvtepu8_epi32(bytes));
    }
#else
    i32 each[LANES];
    for (int i = 0; i < LANES; ++i) each[i] = from[i];
    std::memcpy(&s, each, sizeof s);
#endif
    return s;
}

// -- functions ------------------------------------------------------------------------------------

constexpr f32 INFINITE = std::numeric_limits<f32>::infinity();

// exp of what is not above 0, to 2 units of the last place, and one more where it is denormal; NaN stays NaN.
PROPOLIS_INLINE F32s exp_below(const F32s& x) {
    // exp(x) = 2**n * exp(r), |r| <= ln(2) / 2; ln(2) in two parts, so that r is exact.
    F32s bounded;
    PROPOLIS_EACH bounded.part[p] = x.part[p] < -104.0f ? f32v{} - 104.0f : x.part[p];
    const F32s shifted = fma(bounded, splat(1.44269504f), splat(12582912.0f));
    const F32s n = shifted - splat(12582912.0f);
    F32s r = fma(n, splat(-0.693359375f), bounded);
    r = fma(n, splat(2.12194440e-4f), r);
    F32s y = splat(1.0f / 5040);
    y = fma(y, r, splat(1.0f / 720));
    y = fma(y, r, splat(1.0f / 120));
    y = fma(y, r, splat(1.0f / 24));
    y = fma(y, r, splat(1.0f / 6));
    y = fma(y, r, splat(0.5f));
    y = fma(y, r, splat(1.0f));
    y = fma(y, r, splat(1.0f));
    // Larger by 2**32 at first: no power of 2 is denormal. Unsigned: lanes beside a row may be above 0.
    const F32s power = bits_as<F32s>((bits_as<U32s>(shifted) << 23) + splat<U32s>((127 + 32) << 23));
    y = y * power * splat(0x1p-32f);
    F32s c;
    PROPOLIS_EACH c.part[p] = x.part[p] < -103.9721f ? f32v{} : y.part[p];
    return c;
}

PROPOLIS_INLINE F32s silu(const F32s& x) {
    // By the root of exp(-|x|), which is a normal number wherever the result is.
    const F32s root = exp_below(magnitude(x) * splat(-0.5f)), share = splat(1.0f) / fma(root, root, splat(1.0f));
    const F32s below = x * root * (root * share);
    F32s c = x * share;
    PROPOLIS_EACH c.part[p] = x.part[p] < 0 ? below.part[p] : c.part[p];
    return c;
}

// x / 2 * (1 + erf(x / sqrt(2))), the rest of 1 as a product: erfc(z) = t * exp(-z * z) * P(t) with
// t = 1 / (1 + 0.4 z), P fitted to scipy's erfcx up to z = 16, 3e-8 of it at most.
PROPOLIS_INLINE F32s gelu_erf(const F32s& x) {
    const F32s z = magnitude(x) * splat(0.70710678f);
    const F32s t = splat(1.0f) / fma(splat(0.4f), z, splat(1.0f));
    F32s y = splat(0.0303053348f);
    y = fma(y, t, splat(-0.0849564979f));
    y = fma(y, t, splat(-0.0356058274f));
    y = fma(y, t, splat(0.231847785f));
    y = fma(y, t, splat(-0.0255099592f));
    y = fma(y, t, splat(0.241269643f));
    y = fma(y, t, splat(0.188687695f));
    y = fma(y, t, splat(0.228457888f));
    y = fma(y, t, splat(0.225503968f));
    const F32s half = y * t * exp_below(splat(0.0f) - z * z) * splat(0.5f);
    F32s c;
    PROPOLIS_EACH c.part[p] = x.part[p] * (x.part[p] < 0 ? half.part[p] : 1 - half.part[p]);
    return c;
}

}  // namespace propolis
