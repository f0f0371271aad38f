// What a lane takes of a row of weights at a time, and its products with activations in two planes of
// signed bytes: of any block format, and of those of 32 weights (propolis_steps_k.h has those of 256).
#pragma once

#include "propolis_blocks.h"

constexpr f32 LARGEST = 127 * 256;  // of the rounded numbers: their upper byte is at most 127

// The larger; NaN where either is.
PROPOLIS_FN f32 larger_or_nan(f32 a, f32 b) { return a > b || math::is_nan(a) ? a : b; }

// Numbers times LARGEST / top, which is the largest magnitude among these and others, rounded: upper bytes, lower ones, and
// their sum.  0 where it is none.
template <int N>
PROPOLIS_FN i32 rounded_bytes(const f32 (&own)[N], f32 top, Pack<u32, N / 4>& upper, Pack<u32, N / 4>& lower) {
    const bool finite = top < PROPOLIS_INF;
    const f32 up = top < 0x1p-64f ? 0x1p64f : 1.0f;  // whose inverse is no infinity
    const f32 factor = finite && top > 0 ? LARGEST / (top * up) : 0.0f;
    i32 sum = 0;
#pragma unroll
    for (int word = 0; word < N / 4; ++word) {
        u32 high = 0, low = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const i32 q = finite ? (i32)math::rint(own[word * 4 + i] * up * factor) : 0;
            const i32 above = (q + 128) >> 8;
            high |= (u32)(above & 0xff) << 8 * i;
            low |= (u32)((q - above * 256) & 0xff) << 8 * i;
            sum += q;
        }
        upper.at[word] = high, lower.at[word] = low;
    }
    return sum;
}
// An infinity, and NaN, make all products of what was rounded NaN.
PROPOLIS_FN f32 most_or_nan(f32 top) { return top < PROPOLIS_INF ? top : PROPOLIS_NAN; }

// sum + the four products of signed bytes.
PROPOLIS_FN i32 dot_bytes(u32 a, u32 b, i32 sum) {
#if defined(__CUDACC__)
    return __dp4a((i32)a, (i32)b, sum);
#elif defined(PROPOLIS_AMD) && __has_builtin(__builtin_amdgcn_sudot4)
    return __builtin_amdgcn_sudot4(true, (i32)a, true, (i32)b, sum, false);
#elif defined(PROPOLIS_AMD) && __has_builtin(__builtin_amdgcn_sdot4)
    return __builtin_amdgcn_sdot4((i32)a, (i32)b, sum, false);
#else
    for (int i = 0; i < 32; i += 8) sum += (i32)(i8)(a >> i) * (i32)(i8)(b >> i);
    return sum;
#endif
}

// What sums are multiplied in by whole scales: AMD's compute units take four times as long for products of 32 bits, and
// NVIDIA's for conversions.
#if defined(PROPOLIS_AMD)
typedef f32 Scaled;
#else
typedef i32 Scaled;
#endif

// Twice sixteen activations: numbers are (256 * upper + lower) * most / LARGEST.
struct Activations {
    Pack<u32, 4> upper[2], lower[2];
    i32 total[2];  // sums
    f32 most[2];

    // With sixteen signed bytes.
    PROPOLIS_METHOD i32 dot(const u32 (&q)[4], int half) const {
        i32 high = 0, low = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            high = dot_bytes(q[i], upper[half].at[i], high);
            low = dot_bytes(q[i], lower[half].at[i], low);
        }
        return high * 256 + low;
    }
    // With 32, which share a scale, as their activations do.
    PROPOLIS_METHOD i32 dot(const u32 (&q)[8]) const {
        return dot({q[0], q[1], q[2], q[3]}, 0) + dot({q[4], q[5], q[6], q[7]}, 1);
    }
    PROPOLIS_METHOD i32 both() const { return total[0] + total[1]; }
};
// Sums of such products, which are below 2**31 where weights are bytes, and their activations too, over `most`.
template <class Sum>
PROPOLIS_FN f32 over_most(Sum sum) {
    return (f32)sum * (1 / LARGEST);
}

// A Step has PAIRS times twice sixteen weights of a row: of the row's sixteens that is `which(sixteen)` (below 2 * PAIRS)
// of step `step(sixteen)`.  dot is the product of a pair with such activations, multiplied by `most` last: scales
// up to 8e34 make no infinity of a finite product.
template <class Format>
struct Step {
    static constexpr int PAIRS = 1;
    Bytes run[4];

    PROPOLIS_FN u32 step(u32 sixteen) { return sixteen / 2; }
    PROPOLIS_FN u32 which(u32 sixteen) { return sixteen % 2; }
    PROPOLIS_METHOD void load(const u8* row, u32 step) {
        constexpr u32 EACH = Format::SIZE / PART;
        const u8* block = row + step / EACH * Format::BYTES;
#pragma unroll
        for (int i = 0; i < 4; ++i) Format::load(block, (int)(step % EACH) * 4 + i, run[i]);
    }
    PROPOLIS_METHOD f32 dot(u32, const Activations& x) const {
        f32 sum = 0;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const Bytes &a = run[half * 2], &b = run[half * 2 + 1];
            const i32 dot = x.dot({a.low, a.high, b.low, b.high}, half) - Format::less(true) * x.total[half];
            sum += over_most(dot) * a.scale;
            if constexpr (Format::shifted) sum += a.shift * over_most(x.total[half]);
        }
        return sum * x.most[0];
    }
};

// So many whole blocks of 32, which begin where ALIGN divides.
template <class Format, int BLOCKS, int ALIGN>
struct Whole {
    static constexpr int PAIRS = BLOCKS;
    Words<BLOCKS * Format::BYTES, ALIGN> words;

    PROPOLIS_FN u32 step(u32 sixteen) { return sixteen / (2 * PAIRS); }
    PROPOLIS_FN u32 which(u32 sixteen) { return sixteen % (2 * PAIRS); }
    PROPOLIS_METHOD void load(const u8* row, u32 step) { words.load(row + step * (BLOCKS * Format::BYTES)); }
    PROPOLIS_METHOD f32 dot(u32 pair, const Activations& x) const {
        const Within<decltype(words)> block{words, (int)pair * Format::BYTES};
        u32 q[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) q[i] = Format::template word<true>(block, i);
        Stored own;
        Format::scales(block, 0, own);
        f32 sum = over_most(x.dot(q) - Format::less(true) * x.both()) * own.scale;
        if constexpr (Format::shifted) sum += own.shift * over_most(x.both());
        return sum * x.most[0];
    }
};

template <>
struct Step<Q4_0> : Whole<Q4_0, 2, 4> {};
template <>
struct Step<Q4_1> : Whole<Q4_1, 2, 8> {};
template <>
struct Step<Q5_0> : Whole<Q5_0, 2, 4> {};
template <>
struct Step<Q5_1> : Whole<Q5_1, 2, 16> {};
template <>
struct Step<Q8_0> : Whole<Q8_0, 1, 2> {};
template <>
struct Step<Q8_1> : Whole<Q8_1, 1, 4> {};
template <>
struct Step<IQ4_NL> : Whole<IQ4_NL, 2, 4> {};
template <>
struct Step<MXFP4> : Whole<MXFP4, 2, 2> {};
