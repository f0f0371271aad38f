// Numbers to the GGUF block formats.  Semantics: core's propolis/ops/quantized.py; the bytes are those
// of plugins/cpu_ref's _quantize.py, _quantize_k.py and _quantize_coded.py, operation by operation.
// LANES threads take a block, each as many neighbouring elements of it.
#include "propolis_e8m0.h"
#include "propolis_elementwise.h"
#include "propolis_kinds.h"
#include "propolis_quantize.h"

constexpr int GROUPS = BLOCK / LANES;

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

// -- formats whose quants are codes ---------------------------------------------------------------

// The code of the nearest number of the table: how many of what lies half way between are below.
PROPOLIS_FN u8 iq4_code(f32 x) {
    constexpr f32 between[15] = {-115.5f, -93.5f, -74.0f, -57.0f, -42.0f, -28.5f, -16.0f, -4.5f,
                                 7.0f,    19.0f,  31.5f,  45.5f,  61.0f,  79.0f,  101.0f};
    u32 code = 0;
#pragma unroll
    for (int i = 0; i < 15; ++i) code += x <= between[i] ? 0 : 1;  // of NaN the last, as numpy
    return (u8)code;
}

struct IQ4_NL {
    static constexpr int SIZE = IQ4_NL_SIZE, BYTES = IQ4_NL_BYTES;
    PROPOLIS_FN Found find(const f32 (&x)[1], int lane, Shared& s) {
        const f32 d = as_half(peak_value(peak_of<LANES>(peak_code(x[0], lane))) / -127.0f);
        s.quants[lane] = iq4_code(over(x[0], d));
        return Found{d, 0.0f};
    }
    PROPOLIS_FN void pack(u8* to, int lane, const Shared& s, Found f) {
        if (lane == 0) put_half(to, f.d);
        bytes<16>(to + 2, lane, [&](int b) { return spread<16, 4>(s.quants, b); });
    }
};

struct IQ4_XS {
    static constexpr int SIZE = IQ4_XS_SIZE, BYTES = IQ4_XS_BYTES;
    PROPOLIS_FN Found find(const f32 (&x)[8], int lane, Shared& s) {
        const u64 code = peak_of<4>(own_peak(x, lane));
        const f32 span = peak_value(code) / -127.0f;
        const f32 d = as_half(peak_value(peak_of<LANES>(code)) / -127.0f / -32.0f);
        const f32 scale = clipped(math::rint(over(span, d)), -32.0f, 31.0f);
        const f32 step = d * scale;
#pragma unroll
        for (int e = 0; e < 8; ++e) s.quants[lane * 8 + e] = iq4_code(over(x[e], step));
        if (lane % 4 == 0) s.scales[lane / 4] = (u8)(scale + 32.0f);
        return Found{d, 0.0f};
    }
    PROPOLIS_FN void pack(u8* to, int lane, const Shared& s, Found f) {
        if (lane == 0) put_half(to, f.d);
        if (lane == 1) {
            u32 high = 0;
#pragma unroll
            for (int j = 0; j < 8; ++j) high |= (u32)(s.scales[j] >> 4) << 2 * j;
            *(u16*)(to + 2) = (u16)high;
        }
        bytes<4>(to + 4, lane, [&](int b) {
            return (u8)((s.scales[2 * b] & 15) | (s.scales[2 * b + 1] & 15) << 4);
        });
        bytes<128>(to + 8, lane, [&](int b) { return spread<16, 4>(s.quants, b); });
    }
};

// d * (q - 1): the largest magnitude is 1.
PROPOLIS_FN Found ternary(const f32 (&x)[8], int lane, Shared& s) {
    f32 most = 0;
#pragma unroll
    for (int e = 0; e < 8; ++e) {
        const f32 size = math::fabs(x[e]);
        most = size > most ? size : most;
    }
    const f32 d = most_of<LANES>(most);
    const f32 per = inverse(d);
#pragma unroll
    for (int e = 0; e < 8; ++e) {
        const f32 q = clipped(half_away(rounded_product(x[e], per)), -1.0f, 1.0f);
        s.quants[lane * 8 + e] = (u8)(q + 1.0f);
    }
    return Found{d, 0.0f};
}

struct TQ1_0 {
    static constexpr int SIZE = TQ1_0_SIZE, BYTES = TQ1_0_BYTES;
    PROPOLIS_FN Found find(const f32 (&x)[8], int lane, Shared& s) { return ternary(x, lane, s); }
    PROPOLIS_FN void pack(u8* to, int lane, const Shared& s, Found f) {
        bytes<52>(to, lane, [&](int b) {
            const bool wide = b < 32, last = b >= 48;
            const u8* from = s.quants + (wide ? b : last ? 240 + b - 48 : 160 + b - 32);
            const int apart = wide ? 32 : last ? 4 : 16;
            u32 whole = 0;
#pragma unroll
            for (int k = 0; k < 5; ++k) whole = whole * 3 + (k < 4 || !last ? from[k * apart] : 0);
            return (u8)((whole * 256 + 242) / 243);
        });
        if (lane == 0) put_half(to + 52, f.d);
    }
};

struct TQ2_0 {
    static constexpr int SIZE = TQ2_0_SIZE, BYTES = TQ2_0_BYTES;
    PROPOLIS_FN Found find(const f32 (&x)[8], int lane, Shared& s) { return ternary(x, lane, s); }
    PROPOLIS_FN void pack(u8* to, int lane, const Shared& s, Found f) {
        bytes<64>(to, lane, [&](int b) { return spread<32, 2>(s.quants, b); });
        if (lane == 0) put_half(to + 64, f.d);
    }
};

// The whole part of a normal number's logarithm to the base of 2, which is rounded to f32 first:
// what is just below 2**n counts as 2**n if no f32 lies between.  Where n is larger, more does.
PROPOLIS_FN i32 log2_floor(f32 x) {
    const u32 bits = bits_as<u32>(x);
    const i32 below = (i32)(bits >> 23) - 127;
    const f32 next = (f32)(below + 1);
    const u32 code = bits_as<u32>(next);
    const f32 gap = below == -1 ? 0.0f : next - bits_as<f32>(next > 0 ? code - 1 : code + 1);
    // What lacks is so many 2**-24 of it, and 1 / ln(2) times that of its logarithm.
    const f32 lacks = (f32)(0x00800000 - (bits & 0x007fffff));
    return lacks <= gap * 5814540.0f ? below + 1 : below;
}

struct MXFP4 {
    static constexpr int SIZE = MXFP4_SIZE, BYTES = MXFP4_BYTES;
    PROPOLIS_FN Found find(const f32 (&x)[1], int lane, Shared& s) {
        constexpr f32 values[16] = {0.0f, 1.0f,  2.0f,  3.0f,  4.0f,  6.0f,  8.0f,  12.0f,
                                    0.0f, -1.0f, -2.0f, -3.0f, -4.0f, -6.0f, -8.0f, -12.0f};
        const i32 found = log2_floor(most_of<LANES>(math::fabs(x[0]))) - 2 + 127;
        const i32 e = found < 0 ? 0 : found > 254 ? 254 : found;
        const f32 d = half_of_e8m0((u32)e);
        f32 least = math::fabs(x[0]);
        u32 code = 0;
#pragma unroll
        for (int i = 1; i < 16; ++i) {
            const f32 error = math::fabs(d * values[i] - x[0]);  // the product is exact
            code = error < least ? i : code;
            least = error < least ? error : least;
        }
        s.quants[lane] = (u8)code;
        return Found{(f32)e, 0.0f};
    }
    PROPOLIS_FN void pack(u8* to, int lane, const Shared& s, Found f) {
        if (lane == 0) to[0] = (u8)f.d;
        bytes<16>(to + 1, lane, [&](int b) { return spread<16, 4>(s.quants, b); });
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
QUANTIZE(iq4_nl, IQ4_NL)
QUANTIZE(iq4_xs, IQ4_XS)
QUANTIZE(tq1_0, TQ1_0)
QUANTIZE(tq2_0, TQ2_0)
QUANTIZE(mxfp4, MXFP4)
