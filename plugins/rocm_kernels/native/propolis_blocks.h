// The GGUF block formats: eight neighbouring weights of a block at a time, exactly as ggml's
// dequantize_row_* gives them.  Layouts of the blocks: plugins/cpu_ref's _blocks.py, _blocks_k.py
// and _blocks_coded.py.  Products of a scale, a group's scale and a quant are exact in f32 in every
// format, so it does not matter whether the minimum is added in the same instruction.
#pragma once

#include "propolis_e8m0.h"
#include "propolis_stored.h"

// -- formats of 32 weights -----------------------------------------------------------------------

// Nibbles: weights 0 to 15 are the low ones of 16 bytes, 16 to 31 the high ones.
PROPOLIS_FN u32 nibbles(u32 word, int four) { return word >> four / 4 * 4 & 0x0f0f0f0f; }
// As signed bytes, of which they are the upper half.
PROPOLIS_FN u32 upper_nibbles(u32 word, int four) {
    return masked_xor(word << (4 - four / 4 * 4), 0xf0f0f0f0, EACH_128);
}

struct Q4_0 : Runs<Q4_0> {
    static constexpr int SIZE = Q4_0_SIZE, BYTES = Q4_0_BYTES, NUMBER = Q4_0_NUMBER;
    static constexpr bool shifted = false;
    PROPOLIS_FN constexpr int less(bool) { return 8; }
    template <bool sign, class Block>
    PROPOLIS_FN u32 word(Block block, int four) {
        return nibbles(halves_at(block + 2 + four % 4 * 4), four);
    }
    static constexpr int UPPER = 16;
    template <class Block>
    PROPOLIS_FN u32 upper(Block block, int four) {
        return upper_nibbles(halves_at(block + 2 + four % 4 * 4), four);
    }
    template <class Block, class W>
    PROPOLIS_FN void scales(Block block, int, W& w) {
        w.scale = f16_at(block);
    }
};

struct Q4_1 : Runs<Q4_1> {
    static constexpr int SIZE = Q4_1_SIZE, BYTES = Q4_1_BYTES, NUMBER = Q4_1_NUMBER;
    static constexpr bool shifted = true;
    PROPOLIS_FN constexpr int less(bool) { return 0; }
    template <bool sign, class Block>
    PROPOLIS_FN u32 word(Block block, int four) {
        return nibbles(word_at(block + 4 + four % 4 * 4), four);
    }
    template <class Block, class W>
    PROPOLIS_FN void scales(Block block, int, W& w) {
        const u32 both = word_at(block);
        w.scale = to_f32(f16{(u16)both});
        w.shift = to_f32(f16{(u16)(both >> 16)});
    }
};

struct Q5_0 : Runs<Q5_0> {
    static constexpr int SIZE = Q5_0_SIZE, BYTES = Q5_0_BYTES, NUMBER = Q5_0_NUMBER;
    static constexpr bool shifted = false;
    PROPOLIS_FN constexpr int less(bool) { return 16; }
    template <bool sign, class Block>
    PROPOLIS_FN u32 word(Block block, int four) {
        return nibbles(halves_at(block + 6 + four % 4 * 4), four) | spread_fifths<4>(halves_at(block + 2), four);
    }
    static constexpr int UPPER = 8;
    template <class Block>
    PROPOLIS_FN u32 upper(Block block, int four) {
        const u32 word = halves_at(block + 6 + four % 4 * 4), fifths = spread_fifths<7>(halves_at(block + 2), four);
        return masked_xor(four / 4 ? word >> 1 : word << 3, 0x78787878, fifths ^ EACH_128);
    }
    template <class Block, class W>
    PROPOLIS_FN void scales(Block block, int, W& w) {
        w.scale = f16_at(block);
    }
};

struct Q5_1 : Runs<Q5_1> {
    static constexpr int SIZE = Q5_1_SIZE, BYTES = Q5_1_BYTES, NUMBER = Q5_1_NUMBER;
    static constexpr bool shifted = true;
    PROPOLIS_FN constexpr int less(bool) { return 0; }
    template <bool sign, class Block>
    PROPOLIS_FN u32 word(Block block, int four) {
        return nibbles(word_at(block + 8 + four % 4 * 4), four) | spread_fifths<4>(word_at(block + 4), four);
    }
    template <class Block, class W>
    PROPOLIS_FN void scales(Block block, int, W& w) {
        w.scale = f16_at(block);
        w.shift = f16_at(block + 2);
    }
};

struct Q8_0 : Runs<Q8_0> {
    static constexpr int SIZE = Q8_0_SIZE, BYTES = Q8_0_BYTES, NUMBER = Q8_0_NUMBER;
    static constexpr bool shifted = false;
    PROPOLIS_FN constexpr int less(bool sign) { return sign ? 0 : 128; }
    template <bool sign, class Block>
    PROPOLIS_FN u32 word(Block block, int four) {
        return halves_at(block + 2 + four * 4) ^ (sign ? 0 : EACH_128);
    }
    template <class Block, class W>
    PROPOLIS_FN void scales(Block block, int, W& w) {
        w.scale = f16_at(block);
    }
};

struct Q8_1 : Runs<Q8_1> {
    static constexpr int SIZE = Q8_1_SIZE, BYTES = Q8_1_BYTES, NUMBER = Q8_1_NUMBER;
    static constexpr bool shifted = false;
    PROPOLIS_FN constexpr int less(bool sign) { return sign ? 0 : 128; }
    template <bool sign, class Block>
    PROPOLIS_FN u32 word(Block block, int four) {
        return word_at(block + 4 + four * 4) ^ (sign ? 0 : EACH_128);
    }
    template <class Block, class W>
    PROPOLIS_FN void scales(Block block, int, W& w) {
        w.scale = f16_at(block);
    }
};

// -- formats of 256 weights ----------------------------------------------------------------------

// Pairs of bits: of weight 128 h + 32 k + l, bits 2 k of byte 32 h + l.
PROPOLIS_FN int pairs_byte(int four) { return four / 32 * 32 + four % 8 * 4; }
PROPOLIS_FN u32 pairs(u32 word, int four) { return word >> four / 8 % 4 * 2 & 0x03030303; }

struct Q2_K : Wholes<Q2_K> {
    static constexpr int SIZE = Q2_K_SIZE, BYTES = Q2_K_BYTES, NUMBER = Q2_K_NUMBER;
    static constexpr bool shifted = true;
    PROPOLIS_FN constexpr int less(bool) { return 0; }
    template <bool sign, class Block>
    PROPOLIS_FN u32 word(Block block, int four) {
        return pairs(word_at(block + 16 + pairs_byte(four)), four);
    }
    template <class Block>
    PROPOLIS_FN f32 unit(Block block) {
        return f16_at(block + 80);
    }
    template <class Block>
    PROPOLIS_FN f32 least_unit(Block block) {
        return f16_at(block + 82);
    }
    template <class Block>
    PROPOLIS_FN int whole(Block block, int part) {
        return (int)(block[part] & 15);
    }
    template <class Block>
    PROPOLIS_FN int least(Block block, int part) {
        return (int)(block[part] >> 4);
    }
    template <class Block>
    PROPOLIS_FN u32 leasts(Block block, int quarter) {
        return word_at(block + quarter * 4) >> 4 & 0x0f0f0f0f;
    }
};

struct Q3_K : Wholes<Q3_K> {
    static constexpr int SIZE = Q3_K_SIZE, BYTES = Q3_K_BYTES, NUMBER = Q3_K_NUMBER;
    static constexpr bool shifted = false;
    PROPOLIS_FN constexpr int less(bool) { return 4; }
    template <bool sign, class Block>
    PROPOLIS_FN u32 word(Block block, int four) {
        const u32 third = halves_at(block + four % 8 * 4) >> four / 8 & 0x01010101;
        return pairs(halves_at(block + 32 + pairs_byte(four)), four) | third << 2;
    }
    template <class Block>
    PROPOLIS_FN f32 unit(Block block) {
        return f16_at(block + 108);
    }
    template <class Block>
    PROPOLIS_FN int whole(Block block, int part) {
        const Block scales = block + 96;
        const int low = scales[part % 8] >> part / 8 * 4 & 15;
        const int high = scales[8 + part % 4] >> part / 4 * 2 & 3;
        return (low | high << 4) - 32;
    }
    template <class Block>
    PROPOLIS_FN void wholes(Block block, int group, i32 (&to)[2]) {
        const Block scales = block + 96;
        const u32 low = half_at(scales + group % 4 * 2) >> group / 4 * 4 & 0x0f0f;
        const u32 both = low | (half_at(scales + 8 + group % 2 * 2) << 4 >> group / 2 * 2 & 0x3030);
        to[0] = byte_of(both, 0) - 32, to[1] = byte_of(both, 1) - 32;
    }
};

// Scale and minimum of 6 bits of each group of 32, as q4_k and q5_k have them.
template <class Block>
PROPOLIS_FN int six_bits(Block scales, int group) {
    const u32 first = scales[group & 3], rest = scales[8 + (group & 3)];
    return (int)(group < 4 ? first & 63 : (rest & 15) | first >> 6 << 4);
}
template <class Block>
PROPOLIS_FN int six_bits_least(Block scales, int group) {
    const u32 second = scales[4 + (group & 3)], rest = scales[8 + (group & 3)];
    return (int)(group < 4 ? second & 63 : rest >> 4 | second >> 6 << 4);
}

// Of four groups at once, of the first or the second half.
PROPOLIS_FN u32 six_bits_of_four(u32 own, u32 rest, bool second) {
    return second ? (rest & 0x0f0f0f0f) | (own >> 2 & 0x30303030) : own & 0x3f3f3f3f;
}

template <class Format>
struct SixBits : Wholes<Format> {
    template <class Block>
    PROPOLIS_FN f32 unit(Block block) {
        return to_f32(f16{(u16)word_at(block)});
    }
    template <class Block>
    PROPOLIS_FN f32 least_unit(Block block) {
        return to_f32(f16{(u16)(word_at(block) >> 16)});
    }
    template <class Block>
    PROPOLIS_FN int whole(Block block, int part) {
        return six_bits(block + 4, part / 2);
    }
    template <class Block>
    PROPOLIS_FN int least(Block block, int part) {
        return six_bits_least(block + 4, part / 2);
    }
    template <class Block>
    PROPOLIS_FN void wholes(Block block, int group, i32 (&to)[2]) {
        const u32 four = six_bits_of_four(word_at(block + 4), word_at(block + 12), group >= 4);
        to[0] = to[1] = byte_of(four, group % 4);
    }
    template <class Block>
    PROPOLIS_FN u32 leasts(Block block, int quarter) {
        const u32 four = six_bits_of_four(word_at(block + 8), word_at(block + 12) >> 4, quarter >= 2);
        const u32 two = four >> quarter % 2 * 16;  // each for two sixteens
        return (two & 0xff) * 0x0101 | (two >> 8 & 0xff) * 0x01010000;
    }
};

// Nibbles of two groups: the low ones of 32 bytes, then the high ones.
PROPOLIS_FN int nibbles_byte(int four) { return four / 16 * 32 + four % 8 * 4; }
PROPOLIS_FN u32 group_nibbles(u32 word, int four) { return word >> four / 8 % 2 * 4 & 0x0f0f0f0f; }

struct Q4_K : SixBits<Q4_K> {
    static constexpr int SIZE = Q4_K_SIZE, BYTES = Q4_K_BYTES, NUMBER = Q4_K_NUMBER;
    static constexpr bool shifted = true;
    PROPOLIS_FN constexpr int less(bool) { return 0; }
    template <bool sign, class Block>
    PROPOLIS_FN u32 word(Block block, int four) {
        return group_nibbles(word_at(block + 16 + nibbles_byte(four)), four);
    }
};

struct Q5_K : SixBits<Q5_K> {
    static constexpr int SIZE = Q5_K_SIZE, BYTES = Q5_K_BYTES, NUMBER = Q5_K_NUMBER;
    static constexpr bool shifted = true;
    PROPOLIS_FN constexpr int less(bool) { return 0; }
    template <bool sign, class Block>
    PROPOLIS_FN u32 word(Block block, int four) {
        const u32 fifth = (word_at(block + 16 + four % 8 * 4) >> four / 8 & 0x01010101) << 4;
        return group_nibbles(word_at(block + 48 + nibbles_byte(four)), four) | fifth;
    }
};

struct Q6_K : Wholes<Q6_K> {
    static constexpr int SIZE = Q6_K_SIZE, BYTES = Q6_K_BYTES, NUMBER = Q6_K_NUMBER;
    static constexpr bool shifted = false;
    PROPOLIS_FN constexpr int less(bool) { return 32; }
    template <bool sign, class Block>
    PROPOLIS_FN u32 word(Block block, int four) {
        const int k = four / 8 % 4;
        const u32 low = halves_at(block + four / 32 * 64 + k % 2 * 32 + four % 8 * 4) >> k / 2 * 4 & 0x0f0f0f0f;
        return low | pairs(halves_at(block + 128 + pairs_byte(four)), four) << 4;
    }
    static constexpr int UPPER = 4;
    template <class Block>
    PROPOLIS_FN u32 upper(Block block, int four) {
        const int k = four / 8 % 4;
        const u32 low = halves_at(block + four / 32 * 64 + k % 2 * 32 + four % 8 * 4);
        const u32 high = halves_at(block + 128 + pairs_byte(four));
        return ((k / 2 ? low >> 2 : low << 2) & 0x3c3c3c3c) | masked_xor(high << (6 - 2 * k), 0xc0c0c0c0, EACH_128);
    }
    template <class Block>
    PROPOLIS_FN f32 unit(Block block) {
        return f16_at(block + 208);
    }
    template <class Block>
    PROPOLIS_FN int whole(Block block, int part) {
        return (i8)block[192 + part];
    }
};

struct Q8_K : Wholes<Q8_K> {
    static constexpr int SIZE = Q8_K_SIZE, BYTES = Q8_K_BYTES, NUMBER = Q8_K_NUMBER;
    static constexpr bool shifted = false;
    PROPOLIS_FN constexpr int less(bool sign) { return sign ? 0 : 128; }
    template <bool sign, class Block>
    PROPOLIS_FN u32 word(Block block, int four) {
        return word_at(block + 4 + four * 4) ^ (sign ? 0 : EACH_128);
    }
    template <class Block>
    PROPOLIS_FN f32 unit(Block block) {
        return bits_as<f32>(word_at(block));
    }
    template <class Block>
    PROPOLIS_FN int whole(Block, int) {
        return 1;
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

// The tables: of signed bytes, or made unsigned by 128 more, and by 12.
template <bool sign>
PROPOLIS_FN u32 iq4(u32 word, int upper) {
    return sign ? of_sixteen<0xbfad9881, 0xf6eaddcf, 0x26190d01, 0x71594535>(word, upper)
                : of_sixteen<0x3f2d1801, 0x766a5d4f, 0xa6998d81, 0xf1d9c5b5>(word, upper);
}
template <bool sign>
PROPOLIS_FN u32 mxfp4(u32 word, int upper) {
    return sign ? of_sixteen<0x03020100, 0x0c080604, 0xfdfeff00, 0xf4f8fafc>(word, upper)
                : of_sixteen<0x0f0e0d0c, 0x18141210, 0x090a0b0c, 0x00040608>(word, upper);
}

struct IQ4_NL : Runs<IQ4_NL> {
    static constexpr int SIZE = IQ4_NL_SIZE, BYTES = IQ4_NL_BYTES, NUMBER = IQ4_NL_NUMBER;
    static constexpr bool shifted = false;
    PROPOLIS_FN constexpr int less(bool sign) { return sign ? 0 : 128; }
    template <bool sign, class Block>
    PROPOLIS_FN u32 word(Block block, int four) {
        return iq4<sign>(halves_at(block + 2 + four % 4 * 4), four / 4);
    }
    template <class Block, class W>
    PROPOLIS_FN void scales(Block block, int, W& w) {
        w.scale = f16_at(block);
    }
};

struct IQ4_XS : Wholes<IQ4_XS> {
    static constexpr int SIZE = IQ4_XS_SIZE, BYTES = IQ4_XS_BYTES, NUMBER = IQ4_XS_NUMBER;
    static constexpr bool shifted = false;
    PROPOLIS_FN constexpr int less(bool sign) { return sign ? 0 : 128; }
    template <bool sign, class Block>
    PROPOLIS_FN u32 word(Block block, int four) {
        return iq4<sign>(word_at(block + 8 + four / 8 * 16 + four % 4 * 4), four / 4 % 2);
    }
    template <class Block>
    PROPOLIS_FN f32 unit(Block block) {
        return to_f32(f16{(u16)word_at(block)});
    }
    template <class Block>
    PROPOLIS_FN int whole(Block block, int part) {
        const int group = part / 2;
        const u32 low = block[4 + group / 2] >> group % 2 * 4 & 15;
        const u32 high = word_at(block) >> (16 + group * 2) & 3;
        return (int)(low | high << 4) - 32;
    }
};

struct MXFP4 : Runs<MXFP4> {
    static constexpr int SIZE = MXFP4_SIZE, BYTES = MXFP4_BYTES, NUMBER = MXFP4_NUMBER;
    static constexpr bool shifted = false;
    PROPOLIS_FN constexpr int less(bool sign) { return sign ? 0 : 12; }
    template <bool sign, class Block>
    PROPOLIS_FN u32 word(Block block, int four) {
        return mxfp4<sign>(bytes_at(block + 1 + four % 4 * 4), four / 4);
    }
    template <class Block, class W>
    PROPOLIS_FN void scales(Block block, int, W& w) {
        w.scale = half_of_e8m0(block[0]);
    }
};

// A digit of 3 of four bytes, each the fraction (in 256ths) that the digits after the point are:
// of the fractions that are left after multiplying by a power of 3 the first one.
PROPOLIS_FN u32 digits(u32 word, u32 power) {
    const u32 even = ((word & 0x00ff00ff) * power & 0x00ff00ff) * 3;
    const u32 odd = ((word >> 8 & 0x00ff00ff) * power & 0x00ff00ff) * 3;
#if defined(__CUDACC__)
    return __byte_perm(even, odd, 0x7351);
#elif defined(PROPOLIS_AMD)
    return __builtin_amdgcn_perm(odd, even, 0x07030501);
#else
    return (even >> 8 & 0x00030003) | (odd & 0x03000300);
#endif
}

// Weights 32 k + l are digit k of byte l, for k up to 4; 160 + 16 k + l digit k of byte 32 + l; and
// the last sixteen, 240 + 4 k + l, digit k of byte 48 + l, for k up to 3.
struct TQ1_0 : Wholes<TQ1_0> {
    static constexpr int SIZE = TQ1_0_SIZE, BYTES = TQ1_0_BYTES, NUMBER = TQ1_0_NUMBER;
    static constexpr bool shifted = false;
    PROPOLIS_FN constexpr int less(bool) { return 1; }
    PROPOLIS_FN u32 power(int digit) { return digit < 4 ? 0x1b090301u >> digit * 8 & 0xff : 81; }
    // Of both words of a run at once, which is faster than one by one.
    template <class W>
    PROPOLIS_FN void load(const u8* block, int run, W& w) {
        const bool wide = run < 20, last = run >= 30;
        const u8* qs = block + (wide ? run % 4 * 8 : last ? 48 : 32 + run % 2 * 8);
        const u32 by = power(wide ? run / 4 : last ? (run - 30) * 2 : (run - 20) / 2);
        const u32 low = halves_at(qs), high = last ? low : halves_at(qs + 4);
        set_quants(digits(low, by), digits(high, last ? by * 3 : by), 1.0f, w);
        w.scale = unit(block);
    }
    template <bool sign, class Block>
    PROPOLIS_FN u32 word(Block block, int four) {
        const bool wide = four < 40, last = four >= 60;
        const int at = wide ? four % 8 * 4 : last ? 48 : 32 + four % 4 * 4;
        return digits(halves_at(block + at), power(wide ? four / 8 : last ? four - 60 : (four - 40) / 4));
    }
    template <class Block>
    PROPOLIS_FN f32 unit(Block block) {
        return f16_at(block + 52);
    }
    template <class Block>
    PROPOLIS_FN int whole(Block, int) {
        return 1;
    }
};

struct TQ2_0 : Wholes<TQ2_0> {
    static constexpr int SIZE = TQ2_0_SIZE, BYTES = TQ2_0_BYTES, NUMBER = TQ2_0_NUMBER;
    static constexpr bool shifted = false;
    PROPOLIS_FN constexpr int less(bool) { return 1; }
    template <bool sign, class Block>
    PROPOLIS_FN u32 word(Block block, int four) {
        return pairs(halves_at(block + pairs_byte(four)), four);
    }
    template <class Block>
    PROPOLIS_FN f32 unit(Block block) {
        return f16_at(block + 64);
    }
    template <class Block>
    PROPOLIS_FN int whole(Block, int) {
        return 1;
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
