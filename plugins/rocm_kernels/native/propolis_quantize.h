// What making blocks shares, whatever their format: rounding, what threads of a block have in common,
// and packing.  LANES threads take a block; quants meet in shared memory.
#pragma once

#include "propolis_reduce.h"
#include "propolis_rounded.h"

// What the threads of a block share, beside what each of them knows.
struct Shared {
    u8 quants[256];  // signed ones as their bits
    u8 scales[16];
    u8 mins[16];
};
struct Found {
    f32 d;
    f32 m;  // what else the format has: its minimum, or the scale of minima, or a sum
};

// -- rounding ------------------------------------------------------------------------------------

PROPOLIS_FN f32 inverse(f32 d) { return d == 0 ? 0.0f : 1.0f / d; }
PROPOLIS_FN f32 over(f32 a, f32 b) { return b == 0 ? 0.0f : a / b; }
PROPOLIS_FN f32 as_half(f32 x) { return to_f32(f16{f16_bits(x)}); }
PROPOLIS_FN f32 clipped(f32 x, f32 low, f32 high) { return x < low ? low : x > high ? high : x; }

// The nearest whole number, ties away from zero.
PROPOLIS_FN f32 half_away(f32 x) {
    const f32 size = math::fabs(x);
    const f32 below = math::floor(size);
    const f32 whole = below + math::floor(2.0f * (size - below));
    return x < 0 ? -whole : whole;
}

// -- what neighbours have in common, the same bits in each ---------------------------------------

template <int lanes, class T, class F>
PROPOLIS_FN T across(T value, F f) {
#pragma unroll
    for (int mask = lanes / 2; mask > 0; mask >>= 1) value = f(value, warp_shfl_xor(value, mask));
    return value;
}
template <int lanes>
PROPOLIS_FN f32 most_of(f32 x) {
    return across<lanes>(x, [](f32 a, f32 b) { return a > b ? a : b; });
}
template <int lanes>
PROPOLIS_FN f32 least_of(f32 x) {
    return across<lanes>(x, [](f32 a, f32 b) { return a < b ? a : b; });
}

// An element and its place as a number that is largest for the first one of the largest magnitude.
PROPOLIS_FN u64 peak_code(f32 x, int place) {
    const u32 bits = bits_as<u32>(x);
    return (u64)(bits & 0x7fffffff) << 32 | (u32)(255 - place) << 1 | bits >> 31;
}
PROPOLIS_FN f32 peak_value(u64 code) {
    return bits_as<f32>((u32)(code >> 32) | (u32)(code & 1) << 31);
}
template <int lanes>
PROPOLIS_FN u64 peak_of(u64 code) {
    return across<lanes>(code, [](u64 a, u64 b) { return a > b ? a : b; });
}

// -- bytes ---------------------------------------------------------------------------------------

// Byte b of quants of `bits` bits that share bytes with those `rows` further on.
template <int rows, int bits>
PROPOLIS_FN u8 spread(const u8* q, int b, int shift = 0) {
    constexpr int parts = 8 / bits;
    const u8* from = q + b / rows * parts * rows + b % rows;
    u32 byte = 0;
#pragma unroll
    for (int part = 0; part < parts; ++part) {
        byte |= (from[part * rows] >> shift & ((1 << bits) - 1)) << part * bits;
    }
    return (u8)byte;
}

// f(b) for each of `count` bytes, shared by the threads of the block.
template <int count, class F>
PROPOLIS_FN void bytes(u8* to, int lane, F f) {
#pragma unroll 1
    for (int b = lane; b < count; b += LANES) to[b] = f(b);
}

PROPOLIS_FN void put_half(u8* to, f32 x) { *(u16*)to = f16_bits(x); }
