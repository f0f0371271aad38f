// The GGUF block formats: eight neighbouring weights of a block at a time, exactly as ggml's
// dequantize_row_* gives them.  Layouts of the blocks: plugins/cpu_ref's _blocks.py, _blocks_k.py
// and _blocks_coded.py.  Products of a scale, a group's scale and a quant are exact in f32 in every
// format, so it does not matter whether the minimum is added in the same instruction.
#pragma once

#include "propolis_e8m0.h"
#include "propolis_runs.h"
#include "propolis_words.h"

// -- what lies at an address ---------------------------------------------------------------------

PROPOLIS_FN u32 word_at(const u8* at) { return *(const u32*)at; }  // of 4-byte alignment

// Of 2-byte alignment: AMD loads it at once all the same.
PROPOLIS_FN u32 halves_at(const u8* at) {
#if defined(PROPOLIS_AMD)
    typedef u32 Word __attribute__((aligned(2)));
    return *(const Word*)at;
#else
    return ((const u16*)at)[0] | (u32)((const u16*)at)[1] << 16;
#endif
}

// Of any alignment: likewise.
PROPOLIS_FN u32 bytes_at(const u8* at) {
#if defined(PROPOLIS_AMD)
    typedef u32 Word __attribute__((aligned(1)));
    return *(const Word*)at;
#else
    return at[0] | (u32)at[1] << 8 | (u32)at[2] << 16 | (u32)at[3] << 24;
#endif
}

// Neighbouring words of 2-byte alignment: on NVIDIA of the aligned words that they lie in, from the one
// that `at` is in on.
template <int N>
PROPOLIS_FN void halves_at(const u8* at, u32 (&words)[N]) {
#if defined(__CUDACC__)
    const bool between = (size_t)at & 2;
    const u32* from = (const u32*)(at - (between ? 2 : 0));
    u32 word = from[0];
#pragma unroll
    for (int i = 0; i < N; ++i) {
        const u32 next = i + 1 < N || between ? from[i + 1] : 0;
        words[i] = __funnelshift_r(word, next, between ? 16 : 0);
        word = next;
    }
#else
#pragma unroll
    for (int i = 0; i < N; ++i) words[i] = halves_at(at + 4 * i);
#endif
}

PROPOLIS_FN f32 f16_at(const u8* at) { return to_f32(f16{*(const u16*)at}); }

// Of bytes in registers.
template <class Held>
PROPOLIS_FN u32 word_at(Within<Held> at) { return at.word(); }
template <class Held>
PROPOLIS_FN u32 halves_at(Within<Held> at) { return at.word(); }
template <class Held>
PROPOLIS_FN u32 bytes_at(Within<Held> at) { return at.word(); }
template <class Held>
PROPOLIS_FN f32 f16_at(Within<Held> at) { return to_f32(f16{at.half()}); }

// The four bytes of a word, less the same number: exact.
PROPOLIS_FN void bytes_less(u32 word, f32 less, f32* to) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#if defined(__CUDACC__)
        // The byte as the last of a number of 2**23: conversions are slow there.
        const u32 bits = __byte_perm(word, 0x4b000000, 0x7440 | i);
        to[i] = bits_as<f32>(bits) - (8388608.0f + less);
#else
        to[i] = (f32)(word >> 8 * i & 0xff) - less;  // one instruction each
#endif
    }
}

PROPOLIS_FN void set_quants(u32 low, u32 high, f32 less, Weights<f32>& w) {
    bytes_less(low, less, w.q);
    bytes_less(high, less, w.q + 4);
}

// Eight weights as they are stored: scale * (byte - less) + shift, of signed bytes.
struct Bytes {
    u32 low, high;
    f32 less, scale, shift;
};
PROPOLIS_FN void set_quants(u32 low, u32 high, f32 less, Bytes& w) {
    const bool large = less == 128.0f;  // only then is a byte larger than 127
    w.low = large ? low ^ 0x80808080 : low;
    w.high = large ? high ^ 0x80808080 : high;
    w.less = large ? 0.0f : less;
}

// The same, of bytes as they are: what is loaded, before it is computed with.
struct Stored {
    u32 low, high;
    f32 less, scale, shift;
};
PROPOLIS_FN void set_quants(u32 low, u32 high, f32 less, Stored& w) {
    w.low = low, w.high = high, w.less = less;
}

// Signed bytes, made unsigned by 128 more.
template <class W>
PROPOLIS_FN void set_signed(u32 low, u32 high, W& w) {
    set_quants(low ^ 0x80808080, high ^ 0x80808080, 128.0f, w);
}

// Bit i of the four becomes bit 4 of byte i.
PROPOLIS_FN u32 spread_fifth(u32 four) { return (four * 0x00204081 & 0x01010101) << 4; }

// -- formats of 32 weights -----------------------------------------------------------------------

// Nibbles: weights 0 to 15 are the low ones of 16 bytes, 16 to 31 the high ones.
PROPOLIS_FN u32 nibbles(u32 word, int run) { return word >> run / 2 * 4 & 0x0f0f0f0f; }

// Of run r (0 to SIZE / 8 - 1) of the block: weights 8 r to 8 r + 7.
struct Q4_0 {
    static constexpr int SIZE = Q4_0_SIZE, BYTES = Q4_0_BYTES, NUMBER = Q4_0_NUMBER;
    static constexpr bool shifted = false;
    template <class Block, class W>
    PROPOLIS_FN void load(Block block, int run, W& w) {
        const auto qs = block + 2 + run % 2 * 8;
        set_quants(nibbles(halves_at(qs), run), nibbles(halves_at(qs + 4), run), 8.0f, w);
        w.scale = f16_at(block);
    }
};

struct Q4_1 {
    static constexpr int SIZE = Q4_1_SIZE, BYTES = Q4_1_BYTES, NUMBER = Q4_1_NUMBER;
    static constexpr bool shifted = true;
    template <class Block, class W>
    PROPOLIS_FN void load(Block block, int run, W& w) {
        const auto qs = block + 4 + run % 2 * 8;
        set_quants(nibbles(word_at(qs), run), nibbles(word_at(qs + 4), run), 0.0f, w);
        const u32 both = word_at(block);
        w.scale = to_f32(f16{(u16)both});
        w.shift = to_f32(f16{(u16)(both >> 16)});
    }
};

struct Q5_0 {
    static constexpr int SIZE = Q5_0_SIZE, BYTES = Q5_0_BYTES, NUMBER = Q5_0_NUMBER;
    static constexpr bool shifted = false;
    template <class Block, class W>
    PROPOLIS_FN void load(Block block, int run, W& w) {
        const auto qs = block + 6 + run % 2 * 8;
        const u32 fifth = halves_at(block + 2) >> 8 * run;
        const u32 low = nibbles(halves_at(qs), run) | spread_fifth(fifth & 15);
        const u32 high = nibbles(halves_at(qs + 4), run) | spread_fifth(fifth >> 4 & 15);
        set_quants(low, high, 16.0f, w);
        w.scale = f16_at(block);
    }
};

struct Q5_1 {
    static constexpr int SIZE = Q5_1_SIZE, BYTES = Q5_1_BYTES, NUMBER = Q5_1_NUMBER;
    static constexpr bool shifted = true;
    template <class Block, class W>
    PROPOLIS_FN void load(Block block, int run, W& w) {
        const auto qs = block + 8 + run % 2 * 8;
        const u32 fifth = word_at(block + 4) >> 8 * run;
        const u32 low = nibbles(word_at(qs), run) | spread_fifth(fifth & 15);
        const u32 high = nibbles(word_at(qs + 4), run) | spread_fifth(fifth >> 4 & 15);
        set_quants(low, high, 0.0f, w);
        w.scale = f16_at(block);
        w.shift = f16_at(block + 2);
    }
};

struct Q8_0 {
    static constexpr int SIZE = Q8_0_SIZE, BYTES = Q8_0_BYTES, NUMBER = Q8_0_NUMBER;
    static constexpr bool shifted = false;
    template <class Block, class W>
    PROPOLIS_FN void load(Block block, int run, W& w) {
        const auto qs = block + 2 + run * 8;
        set_signed(halves_at(qs), halves_at(qs + 4), w);
        w.scale = f16_at(block);
    }
};

struct Q8_1 {
    static constexpr int SIZE = Q8_1_SIZE, BYTES = Q8_1_BYTES, NUMBER = Q8_1_NUMBER;
    static constexpr bool shifted = false;
    template <class Block, class W>
    PROPOLIS_FN void load(Block block, int run, W& w) {
        const auto qs = block + 4 + run * 8;
        set_signed(word_at(qs), word_at(qs + 4), w);
        w.scale = f16_at(block);
    }
};

// -- formats of 256 weights ----------------------------------------------------------------------

// Pairs of bits: of weight 128 h + 32 k + l, bits 2 k of byte 32 h + l.
PROPOLIS_FN int pairs_byte(int run) { return run / 16 * 32 + run % 4 * 8; }
PROPOLIS_FN u32 pairs(u32 word, int run) { return word >> run / 4 % 4 * 2 & 0x03030303; }

struct Q2_K {
    static constexpr int SIZE = Q2_K_SIZE, BYTES = Q2_K_BYTES, NUMBER = Q2_K_NUMBER;
    static constexpr bool shifted = true;
    template <class W>
    PROPOLIS_FN void load(const u8* block, int run, W& w) {
        const u8* qs = block + 16 + pairs_byte(run);
        set_quants(pairs(word_at(qs), run), pairs(word_at(qs + 4), run), 0.0f, w);
        const u32 both = block[run / 2];
        w.scale = f16_at(block + 80) * (f32)(both & 15);
        w.shift = -(f16_at(block + 82) * (f32)(both >> 4));
    }
};

struct Q3_K {
    static constexpr int SIZE = Q3_K_SIZE, BYTES = Q3_K_BYTES, NUMBER = Q3_K_NUMBER;
    static constexpr bool shifted = false;
    template <class W>
    PROPOLIS_FN void load(const u8* block, int run, W& w) {
        const u8* qs = block + 32 + pairs_byte(run);
        const u8* mask = block + run % 4 * 8;
        const int bit = run / 4;
        const u32 third = halves_at(mask) >> bit & 0x01010101;
        const u32 fourth = halves_at(mask + 4) >> bit & 0x01010101;
        set_quants(pairs(halves_at(qs), run) | third << 2,
                   pairs(halves_at(qs + 4), run) | fourth << 2, 4.0f, w);
        const int group = run / 2;
        const u8* scales = block + 96;
        const int low = scales[group % 8] >> group / 8 * 4 & 15;
        const int high = scales[8 + group % 4] >> group / 4 * 2 & 3;
        w.scale = f16_at(block + 108) * (f32)((low | high << 4) - 32);
    }
};

// Scale and minimum of 6 bits of each group of 32, as q4_k and q5_k have them.
template <class W>
PROPOLIS_FN void six_bit_pair(const u8* block, int group, W& w) {
    const u8* scales = block + 4;
    const u32 first = scales[group & 3], second = scales[4 + (group & 3)];
    const u32 rest = scales[8 + (group & 3)];
    const bool early = group < 4;
    const u32 scale = early ? first & 63 : (rest & 15) | first >> 6 << 4;
    const u32 least = early ? second & 63 : rest >> 4 | second >> 6 << 4;
    const u32 both = word_at(block);
    w.scale = to_f32(f16{(u16)both}) * (f32)scale;
    w.shift = -(to_f32(f16{(u16)(both >> 16)}) * (f32)least);
}

// Nibbles of two groups: the low ones of 32 bytes, then the high ones.
PROPOLIS_FN int nibbles_byte(int run) { return run / 8 * 32 + run % 4 * 8; }
PROPOLIS_FN u32 group_nibbles(u32 word, int run) { return word >> run / 4 % 2 * 4 & 0x0f0f0f0f; }

struct Q4_K {
    static constexpr int SIZE = Q4_K_SIZE, BYTES = Q4_K_BYTES, NUMBER = Q4_K_NUMBER;
    static constexpr bool shifted = true;
    template <class W>
    PROPOLIS_FN void load(const u8* block, int run, W& w) {
        const u8* qs = block + 16 + nibbles_byte(run);
        set_quants(group_nibbles(word_at(qs), run), group_nibbles(word_at(qs + 4), run), 0.0f, w);
        six_bit_pair(block, run / 4, w);
    }
};

struct Q5_K {
    static constexpr int SIZE = Q5_K_SIZE, BYTES = Q5_K_BYTES, NUMBER = Q5_K_NUMBER;
    static constexpr bool shifted = true;
    template <class W>
    PROPOLIS_FN void load(const u8* block, int run, W& w) {
        const u8* qs = block + 48 + nibbles_byte(run);
        const u8* fifth = block + 16 + run % 4 * 8;
        const int bit = run / 4;
        const u32 low = (word_at(fifth) >> bit & 0x01010101) << 4;
        const u32 high = (word_at(fifth + 4) >> bit & 0x01010101) << 4;
        set_quants(group_nibbles(word_at(qs), run) | low, group_nibbles(word_at(qs + 4), run) | high,
                   0.0f, w);
        six_bit_pair(block, run / 4, w);
    }
};

struct Q6_K {
    static constexpr int SIZE = Q6_K_SIZE, BYTES = Q6_K_BYTES, NUMBER = Q6_K_NUMBER;
    static constexpr bool shifted = false;
    template <class W>
    PROPOLIS_FN void load(const u8* block, int run, W& w) {
        const int k = run / 4 % 4;
        const u8* ql = block + run / 16 * 64 + k % 2 * 32 + run % 4 * 8;
        const u8* qh = block + 128 + pairs_byte(run);
        const u32 low = halves_at(ql) >> k / 2 * 4 & 0x0f0f0f0f;
        const u32 high = halves_at(ql + 4) >> k / 2 * 4 & 0x0f0f0f0f;
        set_quants(low | pairs(halves_at(qh), run) << 4, high | pairs(halves_at(qh + 4), run) << 4,
                   32.0f, w);
        w.scale = f16_at(block + 208) * (f32)(i8)block[192 + run / 2];
    }
};

struct Q8_K {
    static constexpr int SIZE = Q8_K_SIZE, BYTES = Q8_K_BYTES, NUMBER = Q8_K_NUMBER;
    static constexpr bool shifted = false;
    template <class W>
    PROPOLIS_FN void load(const u8* block, int run, W& w) {
        const u8* qs = block + 4 + run * 8;
        set_signed(word_at(qs), word_at(qs + 4), w);
        w.scale = bits_as<f32>(word_at(block));
    }
};

// -- formats whose quants are codes ---------------------------------------------------------------

// Of sixteen bytes those that the nibbles of a word tell: which half of it, as `nibbles` has them.
template <u32 first, u32 second, u32 third, u32 fourth>
PROPOLIS_FN u32 of_sixteen(u32 word, int upper) {
#if defined(__CUDACC__)
    // An instruction looks up four nibbles in eight bytes; the fourth bit chooses between two such.
    const u32 at = word & 0x77777777, chosen = (word >> 1 & 0x44444444) | 0x32103210;
    const u32 low = __byte_perm(__byte_perm(first, second, at), __byte_perm(third, fourth, at), chosen);
    const u32 high =
        __byte_perm(__byte_perm(first, second, at >> 16), __byte_perm(third, fourth, at >> 16), chosen >> 16);
    return __byte_perm(low, high, upper ? 0x7531 : 0x6420);
#else
    const u32 codes = word >> upper * 4 & 0x0f0f0f0f;
#if defined(PROPOLIS_AMD)
    const u32 at = codes & 0x07070707, chosen = (codes >> 1 & 0x04040404) | 0x03020100;
    return __builtin_amdgcn_perm(__builtin_amdgcn_perm(fourth, third, at), __builtin_amdgcn_perm(second, first, at),
                                 chosen);
#else
    constexpr u32 table[4] = {first, second, third, fourth};
    u32 found = 0;
    for (int i = 0; i < 32; i += 8) found |= (table[codes >> (i + 2) & 3] >> (codes >> i & 3) * 8 & 0xff) << i;
    return found;
#endif
#endif
}

// The tables: of signed bytes, or, where bytes are to become floats, made unsigned by 128 more, and by 12.
PROPOLIS_FN void set_iq4(u32 low, u32 high, int upper, Bytes& w) {
    w.low = of_sixteen<0xbfad9881, 0xf6eaddcf, 0x26190d01, 0x71594535>(low, upper);
    w.high = of_sixteen<0xbfad9881, 0xf6eaddcf, 0x26190d01, 0x71594535>(high, upper);
    w.less = 0;
}
template <class W>
PROPOLIS_FN void set_iq4(u32 low, u32 high, int upper, W& w) {
    set_quants(of_sixteen<0x3f2d1801, 0x766a5d4f, 0xa6998d81, 0xf1d9c5b5>(low, upper),
               of_sixteen<0x3f2d1801, 0x766a5d4f, 0xa6998d81, 0xf1d9c5b5>(high, upper), 128.0f, w);
}
PROPOLIS_FN void set_mxfp4(u32 low, u32 high, int upper, Bytes& w) {
    w.low = of_sixteen<0x03020100, 0x0c080604, 0xfdfeff00, 0xf4f8fafc>(low, upper);
    w.high = of_sixteen<0x03020100, 0x0c080604, 0xfdfeff00, 0xf4f8fafc>(high, upper);
    w.less = 0;
}
template <class W>
PROPOLIS_FN void set_mxfp4(u32 low, u32 high, int upper, W& w) {
    set_quants(of_sixteen<0x0f0e0d0c, 0x18141210, 0x090a0b0c, 0x00040608>(low, upper),
               of_sixteen<0x0f0e0d0c, 0x18141210, 0x090a0b0c, 0x00040608>(high, upper), 12.0f, w);
}

struct IQ4_NL {
    static constexpr int SIZE = IQ4_NL_SIZE, BYTES = IQ4_NL_BYTES, NUMBER = IQ4_NL_NUMBER;
    static constexpr bool shifted = false;
    template <class Block, class W>
    PROPOLIS_FN void load(Block block, int run, W& w) {
        const auto qs = block + 2 + run % 2 * 8;
        set_iq4(halves_at(qs), halves_at(qs + 4), run / 2, w);
        w.scale = f16_at(block);
    }
};

struct IQ4_XS {
    static constexpr int SIZE = IQ4_XS_SIZE, BYTES = IQ4_XS_BYTES, NUMBER = IQ4_XS_NUMBER;
    static constexpr bool shifted = false;
    template <class W>
    PROPOLIS_FN void load(const u8* block, int run, W& w) {
        const int group = run / 4, inner = run % 4;
        const u8* qs = block + 8 + group * 16 + inner % 2 * 8;
        set_iq4(word_at(qs), word_at(qs + 4), inner / 2, w);
        const u32 both = word_at(block);
        const u32 low = block[4 + group / 2] >> group % 2 * 4 & 15;
        const u32 high = both >> (16 + group * 2) & 3;
        w.scale = to_f32(f16{(u16)both}) * ((f32)(low | high << 4) - 32.0f);
    }
};

struct MXFP4 {
    static constexpr int SIZE = MXFP4_SIZE, BYTES = MXFP4_BYTES, NUMBER = MXFP4_NUMBER;
    static constexpr bool shifted = false;
    template <class Block, class W>
    PROPOLIS_FN void load(Block block, int run, W& w) {
        const auto qs = block + 1 + run % 2 * 8;
        set_mxfp4(bytes_at(qs), bytes_at(qs + 4), run / 2, w);
        w.scale = half_of_e8m0(block[0]);
    }
};

// A digit of 3 of four bytes, each the fraction (in 256ths) that the digits after the point are:
// of the fractions that are left after multiplying by a power of 3 the first one.
PROPOLIS_FN u32 digits(u32 word, u32 power) {
    const u32 even = (word & 0x00ff00ff) * power & 0x00ff00ff;
    const u32 odd = (word >> 8 & 0x00ff00ff) * power & 0x00ff00ff;
    return (even * 3 >> 8 & 0x00030003) | (odd * 3 & 0x03000300);
}

// Weights 32 k + l are digit k of byte l, for k up to 4; 160 + 16 k + l digit k of byte 32 + l; and
// the last sixteen, 240 + 4 k + l, digit k of byte 48 + l, for k up to 3.
struct TQ1_0 {
    static constexpr int SIZE = TQ1_0_SIZE, BYTES = TQ1_0_BYTES, NUMBER = TQ1_0_NUMBER;
    static constexpr bool shifted = false;
    template <class W>
    PROPOLIS_FN void load(const u8* block, int run, W& w) {
        const bool wide = run < 20, last = run >= 30;
        const u8* qs = block + (wide ? run % 4 * 8 : last ? 48 : 32 + run % 2 * 8);
        const int digit = wide ? run / 4 : last ? (run - 30) * 2 : (run - 20) / 2;
        const u32 power = digit < 4 ? 0x1b090301u >> digit * 8 & 0xff : 81;
        const u32 low = halves_at(qs), high = last ? low : halves_at(qs + 4);
        set_quants(digits(low, power), digits(high, last ? power * 3 : power), 1.0f, w);
        w.scale = f16_at(block + 52);
    }
};

struct TQ2_0 {
    static constexpr int SIZE = TQ2_0_SIZE, BYTES = TQ2_0_BYTES, NUMBER = TQ2_0_NUMBER;
    static constexpr bool shifted = false;
    template <class W>
    PROPOLIS_FN void load(const u8* block, int run, W& w) {
        const u8* qs = block + pairs_byte(run);
        set_quants(pairs(halves_at(qs), run), pairs(halves_at(qs + 4), run), 1.0f, w);
        w.scale = f16_at(block + 64);
    }
};

#define PROPOLIS_EACH_FORMAT(DO) \
    DO(q4_0, Q4_0)               \
    DO(q4_1, Q4_1)               \
    DO(q5_0, Q5_0)               \
    DO(q5_1, Q5_1)               \
    DO(q8_0, Q8_0)               \
    DO(q8_1, Q8_1)               \
    DO(q2_k, Q2_K)               \
    DO(q3_k, Q3_K)               \
    DO(q4_k, Q4_K)               \
    DO(q5_k, Q5_K)               \
    DO(q6_k, Q6_K)               \
    DO(q8_k, Q8_K)               \
    DO(iq4_nl, IQ4_NL)           \
    DO(iq4_xs, IQ4_XS)           \
    DO(tq1_0, TQ1_0)             \
    DO(tq2_0, TQ2_0)             \
    DO(mxfp4, MXFP4)

// The value of each weight, in f32.
template <class Format>
PROPOLIS_FN void dequantized(const Weights<f32>& w, f32 (&run)[RUN]) {
#pragma unroll
    for (int e = 0; e < RUN; ++e) {
        run[e] = w.scale * w.q[e];
        if constexpr (Format::shifted) run[e] += w.shift;
    }
}
