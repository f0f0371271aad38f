// Numbers to the GGUF block formats.  Semantics: core's propolis/ops/quantized.py; the bytes are those
// of plugins/cpu_ref's _quantize.py and _quantize_k.py, operation by operation.  LANES threads take a
// block, each as many neighbouring elements of it; quants meet in shared memory, where they are packed.
#include "propolis_elementwise.h"
#include "propolis_kinds.h"
#include "propolis_reduce.h"
#include "propolis_rounded.h"

constexpr int GROUPS = BLOCK / LANES;

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

// -- formats of 32: a thread has one element -----------------------------------------------------

template <int levels>
PROPOLIS_FN f32 symmetric(f32 x, int lane, Shared& shared) {
    const f32 d = peak_value(peak_of<LANES>(peak_code(x, lane))) / (f32)-levels;
    const f32 scaled = rounded_product(x, inverse(d));
    const f32 q = math::trunc(scaled + ((f32)levels + 0.5f));
    shared.quants[lane] = (u8)clipped(q, 0.0f, 2 * levels - 1);
    return d;
}

template <int top>
PROPOLIS_FN Found affine(f32 x, int lane, Shared& shared) {
    const f32 low = least_of<LANES>(x);
    const f32 d = (most_of<LANES>(x) - low) / (f32)top;
    const f32 scaled = rounded_product(x - low, inverse(d));
    shared.quants[lane] = (u8)clipped(math::trunc(scaled + 0.5f), 0.0f, (f32)top);
    return Found{d, low};
}

PROPOLIS_FN Found whole_bytes(f32 x, int lane, Shared& shared) {
    const f32 d = most_of<LANES>(math::fabs(x)) / 127.0f;
    const i32 q = (i32)clipped(half_away(x * inverse(d)), -128.0f, 127.0f);
    shared.quants[lane] = (u8)q;
    const i32 sum = across<LANES>(q, [](i32 a, i32 b) { return a + b; });
    return Found{d, (f32)sum * d};
}

PROPOLIS_FN void fifth_bits(u8* to, int lane, const u8* q) {
    bytes<4>(to, lane, [&](int b) {
        u32 byte = 0;
#pragma unroll
        for (int i = 0; i < 8; ++i) byte |= (u32)(q[8 * b + i] >> 4) << i;
        return (u8)byte;
    });
}

struct Q4_0 {
    static constexpr int SIZE = Q4_0_SIZE, BYTES = Q4_0_BYTES;
    PROPOLIS_FN Found find(const f32 (&x)[1], int lane, Shared& s) {
        return Found{symmetric<8>(x[0], lane, s), 0.0f};
    }
    PROPOLIS_FN void pack(u8* to, int lane, const Shared& s, Found f) {
        if (lane == 0) put_half(to, f.d);
        bytes<16>(to + 2, lane, [&](int b) { return spread<16, 4>(s.quants, b); });
    }
};

struct Q4_1 {
    static constexpr int SIZE = Q4_1_SIZE, BYTES = Q4_1_BYTES;
    PROPOLIS_FN Found find(const f32 (&x)[1], int lane, Shared& s) {
        return affine<15>(x[0], lane, s);
    }
    PROPOLIS_FN void pack(u8* to, int lane, const Shared& s, Found f) {
        if (lane == 0) put_half(to, f.d);
        if (lane == 1) put_half(to + 2, f.m);
        bytes<16>(to + 4, lane, [&](int b) { return spread<16, 4>(s.quants, b); });
    }
};

struct Q5_0 {
    static constexpr int SIZE = Q5_0_SIZE, BYTES = Q5_0_BYTES;
    PROPOLIS_FN Found find(const f32 (&x)[1], int lane, Shared& s) {
        return Found{symmetric<16>(x[0], lane, s), 0.0f};
    }
    PROPOLIS_FN void pack(u8* to, int lane, const Shared& s, Found f) {
        if (lane == 0) put_half(to, f.d);
        fifth_bits(to + 2, lane, s.quants);
        bytes<16>(to + 6, lane, [&](int b) { return spread<16, 4>(s.quants, b); });
    }
};

struct Q5_1 {
    static constexpr int SIZE = Q5_1_SIZE, BYTES = Q5_1_BYTES;
    PROPOLIS_FN Found find(const f32 (&x)[1], int lane, Shared& s) {
        return affine<31>(x[0], lane, s);
    }
    PROPOLIS_FN void pack(u8* to, int lane, const Shared& s, Found f) {
        if (lane == 0) put_half(to, f.d);
        if (lane == 1) put_half(to + 2, f.m);
        fifth_bits(to + 4, lane, s.quants);
        bytes<16>(to + 8, lane, [&](int b) { return spread<16, 4>(s.quants, b); });
    }
};

struct Q8_0 {
    static constexpr int SIZE = Q8_0_SIZE, BYTES = Q8_0_BYTES;
    PROPOLIS_FN Found find(const f32 (&x)[1], int lane, Shared& s) {
        return whole_bytes(x[0], lane, s);
    }
    PROPOLIS_FN void pack(u8* to, int lane, const Shared& s, Found f) {
        if (lane == 0) put_half(to, f.d);
        to[2 + lane] = s.quants[lane];
    }
};

struct Q8_1 {
    static constexpr int SIZE = Q8_1_SIZE, BYTES = Q8_1_BYTES;
    PROPOLIS_FN Found find(const f32 (&x)[1], int lane, Shared& s) {
        return whole_bytes(x[0], lane, s);
    }
    PROPOLIS_FN void pack(u8* to, int lane, const Shared& s, Found f) {
        if (lane == 0) put_half(to, f.d);
        if (lane == 1) put_half(to + 2, f.m);
        to[4 + lane] = s.quants[lane];
    }
};

// -- formats of 256: a thread has eight elements -------------------------------------------------

// (d * scale) * q - (dmin * min) for each group of 8 * lanes elements.
template <int lanes, int top, int scale_top>
PROPOLIS_FN Found affine_groups(const f32 (&x)[8], int lane, Shared& shared) {
    f32 low = x[0], high = x[0];
#pragma unroll
    for (int e = 1; e < 8; ++e) {
        low = x[e] < low ? x[e] : low;
        high = x[e] > high ? x[e] : high;
    }
    low = least_of<lanes>(low);
    low = low < 0 ? low : 0.0f;
    const f32 span = (most_of<lanes>(high) - low) / (f32)top;
    const f32 d = as_half(most_of<LANES>(span) / (f32)scale_top);
    const f32 dmin = as_half(most_of<LANES>(-low) / (f32)scale_top);
    const f32 scale = clipped(math::rint(over(span, d)), 0.0f, (f32)scale_top);
    const f32 min = clipped(math::rint(over(-low, dmin)), 0.0f, (f32)scale_top);
    const f32 step = d * scale;
    const f32 shift = rounded_product(dmin, min);
#pragma unroll
    for (int e = 0; e < 8; ++e) {
        const f32 q = math::rint(over(x[e] + shift, step));
        shared.quants[lane * 8 + e] = (u8)clipped(q, 0.0f, (f32)top);
    }
    if (lane % lanes == 0) {
        shared.scales[lane / lanes] = (u8)scale;
        shared.mins[lane / lanes] = (u8)min;
    }
    return Found{d, dmin};
}

PROPOLIS_FN u64 own_peak(const f32 (&x)[8], int lane) {
    u64 code = 0;
#pragma unroll
    for (int e = 0; e < 8; ++e) {
        const u64 other = peak_code(x[e], lane * 8 + e);
        code = other > code ? other : code;
    }
    return code;
}

// (d * scale) * (q - levels) for each 16 elements; the largest maps to quant 0.
template <int levels, int scale_top>
PROPOLIS_FN Found symmetric_groups(const f32 (&x)[8], int lane, Shared& shared) {
    const u64 code = peak_of<2>(own_peak(x, lane));
    const f32 span = peak_value(code) / (f32)-levels;
    const f32 largest = peak_value(peak_of<LANES>(code)) / (f32)-levels;
    const f32 d = as_half(largest / (f32)(-scale_top - 1));
    const f32 scale = clipped(math::rint(over(span, d)), -scale_top - 1, scale_top);
    const f32 step = d * scale;
#pragma unroll
    for (int e = 0; e < 8; ++e) {
        const f32 q = math::rint(over(x[e], step)) + (f32)levels;
        shared.quants[lane * 8 + e] = (u8)clipped(q, 0.0f, 2 * levels - 1);
    }
    if (lane % 2 == 0) shared.scales[lane / 2] = (u8)(i32)scale;
    return Found{d, 0.0f};
}

// The scales and minima of q4_k and q5_k, of 6 bits each.
PROPOLIS_FN void six_bit_pairs(u8* to, int lane, const Shared& s) {
    bytes<12>(to, lane, [&](int b) {
        const int j = b % 4;
        const u32 scale = s.scales[4 + j], min = s.mins[4 + j];
        if (b < 4) return (u8)(s.scales[j] | scale >> 4 << 6);
        if (b < 8) return (u8)(s.mins[j] | min >> 4 << 6);
        return (u8)((scale & 15) | (min & 15) << 4);
    });
}

struct Q2_K {
    static constexpr int SIZE = Q2_K_SIZE, BYTES = Q2_K_BYTES;
    PROPOLIS_FN Found find(const f32 (&x)[8], int lane, Shared& s) {
        return affine_groups<2, 3, 15>(x, lane, s);
    }
    PROPOLIS_FN void pack(u8* to, int lane, const Shared& s, Found f) {
        bytes<16>(to, lane, [&](int b) { return (u8)(s.scales[b] | s.mins[b] << 4); });
        bytes<64>(to + 16, lane, [&](int b) { return spread<32, 2>(s.quants, b); });
        if (lane == 0) put_half(to + 80, f.d);
        if (lane == 1) put_half(to + 82, f.m);
    }
};

struct Q3_K {
    static constexpr int SIZE = Q3_K_SIZE, BYTES = Q3_K_BYTES;
    PROPOLIS_FN Found find(const f32 (&x)[8], int lane, Shared& s) {
        return symmetric_groups<4, 31>(x, lane, s);
    }
    PROPOLIS_FN void pack(u8* to, int lane, const Shared& s, Found f) {
        bytes<32>(to, lane, [&](int b) { return spread<32, 1>(s.quants, b, 2); });
        bytes<64>(to + 32, lane, [&](int b) { return spread<32, 2>(s.quants, b); });
        bytes<12>(to + 96, lane, [&](int b) {
            const auto of = [&](int j) { return (u32)(u8)(s.scales[j] + 32); };
            if (b < 8) return (u8)((of(b) & 15) | (of(8 + b) & 15) << 4);
            u32 high = 0;
#pragma unroll
            for (int i = 0; i < 4; ++i) high |= of(4 * i + b - 8) >> 4 << 2 * i;
            return (u8)high;
        });
        if (lane == 0) put_half(to + 108, f.d);
    }
};

struct Q4_K {
    static constexpr int SIZE = Q4_K_SIZE, BYTES = Q4_K_BYTES;
    PROPOLIS_FN Found find(const f32 (&x)[8], int lane, Shared& s) {
        return affine_groups<4, 15, 63>(x, lane, s);
    }
    PROPOLIS_FN void pack(u8* to, int lane, const Shared& s, Found f) {
        if (lane == 0) put_half(to, f.d);
        if (lane == 1) put_half(to + 2, f.m);
        six_bit_pairs(to + 4, lane, s);
        bytes<128>(to + 16, lane, [&](int b) { return spread<32, 4>(s.quants, b); });
    }
};

struct Q5_K {
    static constexpr int SIZE = Q5_K_SIZE, BYTES = Q5_K_BYTES;
    PROPOLIS_FN Found find(const f32 (&x)[8], int lane, Shared& s) {
        return affine_groups<4, 31, 63>(x, lane, s);
    }
    PROPOLIS_FN void pack(u8* to, int lane, const Shared& s, Found f) {
        if (lane == 0) put_half(to, f.d);
        if (lane == 1) put_half(to + 2, f.m);
        six_bit_pairs(to + 4, lane, s);
        bytes<32>(to + 16, lane, [&](int b) { return spread<32, 1>(s.quants, b, 4); });
        bytes<128>(to + 48, lane, [&](int b) { return spread<32, 4>(s.quants, b); });
    }
};

struct Q6_K {
    static constexpr int SIZE = Q6_K_SIZE, BYTES = Q6_K_BYTES;
    PROPOLIS_FN Found find(const f32 (&x)[8], int lane, Shared& s) {
        return symmetric_groups<32, 127>(x, lane, s);
    }
    PROPOLIS_FN void pack(u8* to, int lane, const Shared& s, Found f) {
        bytes<128>(to, lane, [&](int b) { return spread<64, 4>(s.quants, b); });
        bytes<64>(to + 128, lane, [&](int b) { return spread<32, 2>(s.quants, b, 4); });
        bytes<16>(to + 192, lane, [&](int b) { return s.scales[b]; });
        if (lane == 0) put_half(to + 208, f.d);
    }
};

struct Q8_K {
    static constexpr int SIZE = Q8_K_SIZE, BYTES = Q8_K_BYTES;
    PROPOLIS_FN Found find(const f32 (&x)[8], int lane, Shared& s) {
        const f32 d = peak_value(peak_of<LANES>(own_peak(x, lane))) / -127.0f;
#pragma unroll
        for (int e = 0; e < 8; ++e) {
            const f32 q = clipped(math::rint(over(x[e], d)), -128.0f, 127.0f);
            s.quants[lane * 8 + e] = (u8)(i32)q;
        }
        return Found{d, 0.0f};
    }
    PROPOLIS_FN void pack(u8* to, int lane, const Shared& s, Found f) {
        if (lane == 0) *(f32*)to = f.d;
        bytes<256>(to + 4, lane, [&](int b) { return s.quants[b]; });
        if (lane < 16) {
            i32 sum = 0;
#pragma unroll
            for (int e = 0; e < 16; ++e) sum += (i8)s.quants[lane * 16 + e];
            ((i16*)(to + 260))[lane] = (i16)sum;
        }
    }
};

// -- the kernels ---------------------------------------------------------------------------------

// `s` walks elements; blocks follow each other in the output.
template <class Format>
PROPOLIS_FN void quantize(u8* out, const void* x, i64 blocks, i32 kind, const Strided& s) {
    constexpr int EACH = Format::SIZE / LANES;
    __shared__ Shared shared[GROUPS];
    const int lane = (int)thread_x() % LANES;
    const int group = (int)thread_x() / LANES;
    for (i64 first = (i64)block_x() * GROUPS; first < blocks; first += (i64)blocks_x() * GROUPS) {
        const i64 number = first + group;
        const bool there = number < blocks;
        f32 values[EACH];
#pragma unroll
        for (int e = 0; e < EACH; ++e) {
            const i64 place = (there ? number : 0) * Format::SIZE + lane * EACH + e;
            values[e] = load_f32(x, kind, locate(again(s), place).at[0]);
        }
        __syncthreads();  // the blocks before are packed
        const Found found = Format::find(values, lane, shared[group]);
        __syncthreads();
        if (there) Format::pack(out + number * Format::BYTES, lane, shared[group], found);
    }
}

#define QUANTIZE(name, Format)                                                             \
    PROPOLIS_KERNEL quantized_quantize_##name(u8* out, const u8* x, i64 blocks, i32 kind,  \
                                              Strided s) {                                 \
        quantize<Format>(out, x, blocks, kind, s);                                         \
    }
QUANTIZE(q4_0, Q4_0)
QUANTIZE(q4_1, Q4_1)
QUANTIZE(q5_0, Q5_0)
QUANTIZE(q5_1, Q5_1)
QUANTIZE(q8_0, Q8_0)
QUANTIZE(q8_1, Q8_1)
QUANTIZE(q2_k, Q2_K)
QUANTIZE(q3_k, Q3_K)
QUANTIZE(q4_k, Q4_K)
QUANTIZE(q5_k, Q5_K)
QUANTIZE(q6_k, Q6_K)
QUANTIZE(q8_k, Q8_K)
