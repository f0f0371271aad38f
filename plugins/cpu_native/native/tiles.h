// The block formats of GGUF, repacked: sixteen rows of a weight together, so that one vector has the same
// place of all of them.  What a block has is what the file has, to the bit: scales in front, then the
// elements by groups of four neighbours of each row.
#pragma once

#include "simd.h"

namespace propolis {

constexpr int TILE = 16;      // rows
constexpr int GROUP = 4;      // neighbours in a row, which one product of bytes takes
constexpr int SUBBLOCK = 32;  // elements whose planes of bits lie together
constexpr int GROUPS = SUBBLOCK / GROUP;
constexpr int VECTOR_BYTES = 64;
constexpr int LARGEST = 256;

// A block of one row, taken apart.
struct Fields {
    u16 halves[2];      // d, and m or dmin: f16
    u8 bytes[16];       // scales and mins, as the format has them once unpacked
    u8 q[LARGEST];      // elements without their offset; of formats of signed bytes, the bytes
};

// What all formats have in common.  K: elements of a block; SUB: elements of a scale; HALVES and SCALES:
// numbers of 2 and of 1 byte before the elements; LOW and HIGH: bits of an element, in two planes.
template <int k, int sub, int halves, int scales, int low, int high>
struct Planes {
    static constexpr int K = k, SUB = sub, HALVES = halves, SCALES = scales, LOW = low, HIGH = high;
    static constexpr int HEAD = TILE * (2 * halves + scales);
    static constexpr int LOW_BYTES = TILE * SUBBLOCK * low / 8, HIGH_BYTES = TILE * SUBBLOCK * high / 8;
    static constexpr int BYTES = HEAD + k / SUBBLOCK * (LOW_BYTES + HIGH_BYTES);
    static constexpr int ZERO = 0;            // what a stored element is less
    static constexpr bool SIGNED = false;     // elements are signed bytes
    static constexpr bool CODED = false;      // elements are numbers of entries of TABLE
    static constexpr bool SHIFTED = false;    // a number is added to what a scale multiplies
    static constexpr i8 TABLE[16] = {};

    static PROPOLIS_INLINE F32s half(const u8* block, int i) {
        return load_wide((const f16*)(block + 2 * TILE * i));
    }
    static PROPOLIS_INLINE F32s byte(const u8* block, int i) {  // unsigned
        i32 each[TILE];
        const u8* from = block + 2 * TILE * halves + TILE * i;
        for (int r = 0; r < TILE; ++r) each[r] = from[r];
        return as_floats(load_bytes<I32s>(each));
    }
    static PROPOLIS_INLINE F32s signed_byte(const u8* block, int i) {
        i32 each[TILE];
        const u8* from = block + 2 * TILE * halves + TILE * i;
        for (int r = 0; r < TILE; ++r) each[r] = (i8)from[r];
        return as_floats(load_bytes<I32s>(each));
    }
    static PROPOLIS_INLINE F32s shift(const u8*, int) { return splat(0.0f); }

    // Group g of a sub-block: of each row four elements, as they are stored.
    static PROPOLIS_INLINE U8s stored(const u8* block, int subblock, int g) {
        const u8* at = block + HEAD + subblock * (LOW_BYTES + HIGH_BYTES);
        U8s v = plane<low>(at, g);
        if constexpr (high != 0) v = v | (plane<high>(at + LOW_BYTES, g) << low);
        return v;
    }
    // Groups of a plane: with 4 bits, g and g + 4 share a vector; with 2, every second; with 1, all.
    template <int bits>
    static PROPOLIS_INLINE U8s plane(const u8* at, int g) {
        constexpr int vectors = GROUPS * bits / 8;
        const U8s v = load_u8s(at + g % vectors * VECTOR_BYTES);
        if constexpr (bits == 8) return v;
        return (v >> (g / vectors * bits)) & repeat_byte((1 << bits) - 1);
    }
    // The same, one element: where it lies.
    template <int bits>
    static u8* place(u8* at, int row, int element, int& shift) {
        constexpr int vectors = GROUPS * bits / 8;
        const int g = element / GROUP;
        shift = bits == 8 ? 0 : g / vectors * bits;
        return at + g % vectors * VECTOR_BYTES + row * GROUP + element % GROUP;
    }
};

// -- formats of 32 --------------------------------------------------------------------------------

// 16 bytes that have elements l and 16 + l in halves of byte l.
inline void nibbles(const u8* from, u8* q) {
    for (int l = 0; l < 16; ++l) {
        q[l] = from[l] & 15;
        q[16 + l] = from[l] >> 4;
    }
}
inline void to_nibbles(const u8* q, u8* to) {
    for (int l = 0; l < 16; ++l) to[l] = (u8)((q[l] & 15) | (q[16 + l] & 15) << 4);
}
inline void fifth_bits(const u8* from, u8* q) {
    u32 bits;
    std::memcpy(&bits, from, 4);
    for (int l = 0; l < 32; ++l) q[l] |= (u8)((bits >> l & 1) << 4);
}
inline void to_fifth_bits(const u8* q, u8* to) {
    u32 bits = 0;
    for (int l = 0; l < 32; ++l) bits |= (u32)(q[l] >> 4 & 1) << l;
    std::memcpy(to, &bits, 4);
}

struct Q4_0 : Planes<32, 32, 1, 0, 4, 0> {
    static constexpr int SOURCE = 18, ZERO = 8;
    static PROPOLIS_INLINE F32s scale(const u8* b, int) { return half(b, 0); }
    static void take(const u8* b, Fields& f) {
        std::memcpy(f.halves, b, 2);
        nibbles(b + 2, f.q);
    }
    static void give(const Fields& f, u8* b) {
        std::memcpy(b, f.halves, 2);
        to_nibbles(f.q, b + 2);
    }
};

struct Q4_1 : Planes<32, 32, 2, 0, 4, 0> {
    static constexpr int SOURCE = 20;
    static constexpr bool SHIFTED = true;
    static PROPOLIS_INLINE F32s scale(const u8* b, int) { return half(b, 0); }
    static PROPOLIS_INLINE F32s shift(const u8* b, int) { return half(b, 1); }
    static void take(const u8* b, Fields& f) {
        std::memcpy(f.halves, b, 4);
        nibbles(b + 4, f.q);
    }
    static void give(const Fields& f, u8* b) {
        std::memcpy(b, f.halves, 4);
        to_nibbles(f.q, b + 4);
    }
};

struct Q5_0 : Planes<32, 32, 1, 0, 4, 1> {
    static constexpr int SOURCE = 22, ZERO = 16;
    static PROPOLIS_INLINE F32s scale(const u8* b, int) { return half(b, 0); }
    static void take(const u8* b, Fields& f) {
        std::memcpy(f.halves, b, 2);
        nibbles(b + 6, f.q);
        fifth_bits(b + 2, f.q);
    }
    static void give(const Fields& f, u8* b) {
        std::memcpy(b, f.halves, 2);
        to_fifth_bits(f.q, b + 2);
        to_nibbles(f.q, b + 6);
    }
};

struct Q5_1 : Planes<32, 32, 2, 0, 4, 1> {
    static constexpr int SOURCE = 24;
    static constexpr bool SHIFTED = true;
    static PROPOLIS_INLINE F32s scale(const u8* b, int) { return half(b, 0); }
    static PROPOLIS_INLINE F32s shift(const u8* b, int) { return half(b, 1); }
    static void take(const u8* b, Fields& f) {
        std::memcpy(f.halves, b, 4);
        nibbles(b + 8, f.q);
        fifth_bits(b + 4, f.q);
    }
    static void give(const Fields& f, u8* b) {
        std::memcpy(b, f.halves, 4);
        to_fifth_bits(f.q, b + 4);
        to_nibbles(f.q, b + 8);
    }
};

struct Q8_0 : Planes<32, 32, 1, 0, 8, 0> {
    static constexpr int SOURCE = 34;
    static constexpr bool SIGNED = true;
    static PROPOLIS_INLINE F32s scale(const u8* b, int) { return half(b, 0); }
    static void take(const u8* b, Fields& f) {
        std::memcpy(f.halves, b, 2);
        std::memcpy(f.q, b + 2, 32);
    }
    static void give(const Fields& f, u8* b) {
        std::memcpy(b, f.halves, 2);
        std::memcpy(b + 2, f.q, 32);
    }
};

// Entries of ggml's table of non-linear quants, and twice those of FP4 (E2M1).
#define PROPOLIS_NONLINEAR \
    { -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113 }
#define PROPOLIS_FP4_DOUBLED \
    { 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12 }

struct IQ4_NL : Planes<32, 32, 1, 0, 4, 0> {
    static constexpr int SOURCE = 18;
    static constexpr bool CODED = true;
    static constexpr i8 TABLE[16] = PROPOLIS_NONLINEAR;
    static PROPOLIS_INLINE F32s scale(const u8* b, int) { return half(b, 0); }
    static void take(const u8* b, Fields& f) { Q4_0::take(b, f); }
    static void give(const Fields& f, u8* b) { Q4_0::give(f, b); }
};

struct MXFP4 : Planes<32, 32, 0, 1, 4, 0> {
    static constexpr int SOURCE = 17;
    static constexpr bool CODED = true;
    static constexpr i8 TABLE[16] = PROPOLIS_FP4_DOUBLED;
    // Half of 2 ** (e - 127): entries are doubled.  Below e = 2 it is no normal number.
    static PROPOLIS_INLINE F32s scale(const u8* b, int) {
        u32 each[TILE];
        for (int r = 0; r < TILE; ++r) each[r] = b[r] < 2 ? 0x00200000u << b[r] : (u32)(b[r] - 1) << 23;
        return load_bytes<F32s>(each);
    }
    static void take(const u8* b, Fields& f) {
        f.bytes[0] = b[0];
        nibbles(b + 1, f.q);
    }
    static void give(const Fields& f, u8* b) {
        b[0] = f.bytes[0];
        to_nibbles(f.q, b + 1);
    }
};

// -- formats of 256 -------------------------------------------------------------------------------

// Element 128 h + 32 k + l in bits 2 k and 2 k + 1 of byte 32 h + l, from `bit` of the element on.
inline void quarters(const u8* from, u8* q, int bit) {
    for (int e = 0; e < 256; ++e)
        q[e] |= (u8)((from[e / 128 * 32 + e % 32] >> (e % 128 / 32 * 2) & 3) << bit);
}
inline void to_quarters(const u8* q, u8* to, int bit) {
    std::memset(to, 0, 64);
    for (int e = 0; e < 256; ++e)
        to[e / 128 * 32 + e % 32] |= (u8)((q[e] >> bit & 3) << (e % 128 / 32 * 2));
}
// Element 64 h + l in bits 0-3 of byte 32 h + l, element 64 h + 32 + l in bits 4-7.
inline void long_nibbles(const u8* from, u8* q) {
    for (int e = 0; e < 256; ++e) q[e] = from[e / 64 * 32 + e % 32] >> (e % 64 / 32 * 4) & 15;
}
inline void to_long_nibbles(const u8* q, u8* to) {
    std::memset(to, 0, 128);
    for (int e = 0; e < 256; ++e)
        to[e / 64 * 32 + e % 32] |= (u8)((q[e] & 15) << (e % 64 / 32 * 4));
}
// One more bit: of element 32 k + l in bit k of byte l.
inline void eighths(const u8* from, u8* q, int bit) {
    for (int e = 0; e < 256; ++e) q[e] |= (u8)((from[e % 32] >> (e / 32) & 1) << bit);
}
inline void to_eighths(const u8* q, u8* to, int bit) {
    std::memset(to, 0, 32);
    for (int e = 0; e < 256; ++e) to[e % 32] |= (u8)((q[e] >> bit & 1) << (e / 32));
}
// 8 scales and 8 mins of 6 bits in 12 bytes: see ggml, or cpu_ref's _blocks_k.py.
inline void six_bits(const u8* from, u8* to) {
    for (int j = 0; j < 4; ++j) {
        to[j] = from[j] & 63;
        to[8 + j] = from[4 + j] & 63;
        to[4 + j] = (u8)((from[8 + j] & 15) | from[j] >> 6 << 4);
        to[12 + j] = (u8)(from[8 + j] >> 4 | from[4 + j] >> 6 << 4);
    }
}
inline void to_six_bits(const u8* from, u8* to) {
    for (int j = 0; j < 4; ++j) {
        to[j] = (u8)((from[j] & 63) | from[4 + j] >> 4 << 6);
        to[4 + j] = (u8)((from[8 + j] & 63) | from[12 + j] >> 4 << 6);
        to[8 + j] = (u8)((from[4 + j] & 15) | (from[12 + j] & 15) << 4);
    }
}

struct Q2_K : Planes<256, 16, 2, 16, 2, 0> {
    static constexpr int SOURCE = 84;
    static constexpr bool SHIFTED = true;
    static PROPOLIS_INLINE U32s packed(const u8* b, int s) {
        u32 each[TILE];
        for (int r = 0; r < TILE; ++r) each[r] = b[4 * TILE + TILE * s + r];
        return load_bytes<U32s>(each);
    }
    static PROPOLIS_INLINE F32s scale(const u8* b, int s) {
        return half(b, 0) * as_floats(packed(b, s) & splat<U32s>(15u));
    }
    static PROPOLIS_INLINE F32s shift(const u8* b, int s) {
        return splat(0.0f) - half(b, 1) * as_floats(packed(b, s) >> 4);
    }
    static void take(const u8* b, Fields& f) {
        std::memcpy(f.bytes, b, 16);
        std::memset(f.q, 0, 256);
        quarters(b + 16, f.q, 0);
        std::memcpy(f.halves, b + 80, 4);
    }
    static void give(const Fields& f, u8* b) {
        std::memcpy(b, f.bytes, 16);
        to_quarters(f.q, b + 16, 0);
        std::memcpy(b + 80, f.halves, 4);
    }
};

struct Q3_K : Planes<256, 16, 1, 16, 2, 1> {
    static constexpr int SOURCE = 110, ZERO = 4;
    static PROPOLIS_INLINE F32s scale(const u8* b, int s) { return half(b, 0) * signed_byte(b, s); }
    static void take(const u8* b, Fields& f) {
        std::memset(f.q, 0, 256);
        eighths(b, f.q, 2);
        quarters(b + 32, f.q, 0);
        const u8* s = b + 96;
        for (int j = 0; j < 16; ++j) {
            const int low = s[j % 8] >> (4 * (j / 8)) & 15, high = s[8 + j % 4] >> (2 * (j / 4)) & 3;
            f.bytes[j] = (u8)((low | high << 4) - 32);
        }
        std::memcpy(f.halves, b + 108, 2);
    }
    static void give(const Fields& f, u8* b) {
        to_eighths(f.q, b, 2);
        to_quarters(f.q, b + 32, 0);
        std::memset(b + 96, 0, 12);
        for (int j = 0; j < 16; ++j) {
            const u8 s = (u8)(f.bytes[j] + 32);
            b[96 + j % 8] |= (u8)((s & 15) << (4 * (j / 8)));
            b[96 + 8 + j % 4] |= (u8)((s >> 4) << (2 * (j / 4)));
        }
        std::memcpy(b + 108, f.halves, 2);
    }
};

struct Q4_K : Planes<256, 32, 2, 16, 4, 0> {
    static constexpr int SOURCE = 144;
    static constexpr bool SHIFTED = true;
    static PROPOLIS_INLINE F32s scale(const u8* b, int s) { return half(b, 0) * byte(b, s); }
    static PROPOLIS_INLINE F32s shift(const u8* b, int s) {
        return splat(0.0f) - half(b, 1) * byte(b, 8 + s);
    }
    static void take(const u8* b, Fields& f) {
        std::memcpy(f.halves, b, 4);
        six_bits(b + 4, f.bytes);
        long_nibbles(b + 16, f.q);
    }
    static void give(const Fields& f, u8* b) {
        std::memcpy(b, f.halves, 4);
        to_six_bits(f.bytes, b + 4);
        to_long_nibbles(f.q, b + 16);
    }
};

struct Q5_K : Planes<256, 32, 2, 16, 4, 1> {
    static constexpr int SOURCE = 176;
    static constexpr bool SHIFTED = true;
    static PROPOLIS_INLINE F32s scale(const u8* b, int s) { return half(b, 0) * byte(b, s); }
    static PROPOLIS_INLINE F32s shift(const u8* b, int s) {
        return splat(0.0f) - half(b, 1) * byte(b, 8 + s);
    }
    static void take(const u8* b, Fields& f) {
        std::memcpy(f.halves, b, 4);
        six_bits(b + 4, f.bytes);
        long_nibbles(b + 48, f.q);
        eighths(b + 16, f.q, 4);
    }
    static void give(const Fields& f, u8* b) {
        std::memcpy(b, f.halves, 4);
        to_six_bits(f.bytes, b + 4);
        to_eighths(f.q, b + 16, 4);
        to_long_nibbles(f.q, b + 48);
    }
};

struct Q6_K : Planes<256, 16, 1, 16, 4, 2> {
    static constexpr int SOURCE = 210, ZERO = 32;
    static PROPOLIS_INLINE F32s scale(const u8* b, int s) { return half(b, 0) * signed_byte(b, s); }
    static void take(const u8* b, Fields& f) {
        // Bits 0-3 of element 128 h + l in bits 0-3 of byte 64 h + l, of 128 h + 64 + l in bits 4-7.
        for (int e = 0; e < 256; ++e) f.q[e] = b[e / 128 * 64 + e % 64] >> (e % 128 / 64 * 4) & 15;
        quarters(b + 128, f.q, 4);
        std::memcpy(f.bytes, b + 192, 16);
        std::memcpy(f.halves, b + 208, 2);
    }
    static void give(const Fields& f, u8* b) {
        std::memset(b, 0, 128);
        for (int e = 0; e < 256; ++e)
            b[e / 128 * 64 + e % 64] |= (u8)((f.q[e] & 15) << (e % 128 / 64 * 4));
        to_quarters(f.q, b + 128, 4);
        std::memcpy(b + 192, f.bytes, 16);
        std::memcpy(b + 208, f.halves, 2);
    }
};

struct IQ4_XS : Planes<256, 32, 1, 8, 4, 0> {
    static constexpr int SOURCE = 136;
    static constexpr bool CODED = true;
    static constexpr i8 TABLE[16] = PROPOLIS_NONLINEAR;
    static PROPOLIS_INLINE F32s scale(const u8* b, int s) { return half(b, 0) * signed_byte(b, s); }
    static void take(const u8* b, Fields& f) {
        std::memcpy(f.halves, b, 2);
        u16 high;
        std::memcpy(&high, b + 2, 2);
        for (int s = 0; s < 8; ++s) {
            const int low = b[4 + s / 2] >> (s % 2 * 4) & 15;
            f.bytes[s] = (u8)((low | (high >> (2 * s) & 3) << 4) - 32);
            nibbles(b + 8 + 16 * s, f.q + 32 * s);
        }
    }
    static void give(const Fields& f, u8* b) {
        std::memcpy(b, f.halves, 2);
        std::memset(b + 2, 0, 6);
        u16 high = 0;
        for (int s = 0; s < 8; ++s) {
            const u8 scale = (u8)(f.bytes[s] + 32);
            b[4 + s / 2] |= (u8)((scale & 15) << (s % 2 * 4));
            high |= (u16)((scale >> 4 & 3) << (2 * s));
            to_nibbles(f.q + 32 * s, b + 8 + 16 * s);
        }
        std::memcpy(b + 2, &high, 2);
    }
};

struct TQ2_0 : Planes<256, 32, 1, 0, 2, 0> {
    static constexpr int SOURCE = 66, ZERO = 1;
    static PROPOLIS_INLINE F32s scale(const u8* b, int) { return half(b, 0); }
    static void take(const u8* b, Fields& f) {
        std::memset(f.q, 0, 256);
        quarters(b, f.q, 0);
        std::memcpy(f.halves, b + 64, 2);
    }
    static void give(const Fields& f, u8* b) {
        to_quarters(f.q, b, 0);
        std::memcpy(b + 64, f.halves, 2);
    }
};

// Five digits of base 3 in a byte, rounded up: 54 bytes become the 66 of TQ2_0.
struct TQ1_0 : TQ2_0 {
    static constexpr int SOURCE = 54;
    // Calls f(byte, digit, element, digits of the byte), as ggml orders elements.
    template <class F>
    static void each(F f) {
        int element = 0;
        for (int n = 0; n < 5; ++n)
            for (int m = 0; m < 32; ++m) f(m, n, element++, 5);
        for (int n = 0; n < 5; ++n)
            for (int m = 0; m < 16; ++m) f(32 + m, n, element++, 5);
        for (int n = 0; n < 4; ++n)
            for (int m = 0; m < 4; ++m) f(48 + m, n, element++, 4);
    }
    static void take(const u8* b, Fields& f) {
        static const u8 power[5] = {1, 3, 9, 27, 81};
        each([&](int byte, int digit, int element, int) {
            f.q[element] = (u8)((u8)(b[byte] * power[digit]) * 3 >> 8);
        });
        std::memcpy(f.halves, b + 52, 2);
    }
    static void give(const Fields& f, u8* b) {
        int digits[52] = {};
        each([&](int byte, int, int element, int) { digits[byte] = 3 * digits[byte] + f.q[element]; });
        for (int i = 0; i < 52; ++i) b[i] = (u8)(((i < 48 ? 1 : 3) * digits[i] * 256 + 242) / 243);
        std::memcpy(b + 52, f.halves, 2);
    }
};

// -- between rows of blocks and tiles -------------------------------------------------------------

template <class F, class Visit>
inline void each_element(u8* block, int row, Visit visit) {
    for (int e = 0; e < F::K; ++e) {
        u8* at = block + F::HEAD + e / SUBBLOCK * (F::LOW_BYTES + F::HIGH_BYTES);
        int shift;
        u8* low = F::template place<F::LOW>(at, row, e % SUBBLOCK, shift);
        const int low_shift = shift;
        u8* high = low;
        if constexpr (F::HIGH != 0) {
            high = F::template place<F::HIGH>(at + F::LOW_BYTES, row, e % SUBBLOCK, shift);
        }
        visit(e, low, low_shift, high, shift);
    }
}

// One row of a tile from one row of blocks; the tile is zeroed before.
template <class F>
void put_row(u8* tile, int row, const u8* blocks, i64 count) {
    Fields f;
    for (i64 i = 0; i < count; ++i, tile += F::BYTES, blocks += F::SOURCE) {
        F::take(blocks, f);
        for (int h = 0; h < F::HALVES; ++h) std::memcpy(tile + 2 * (TILE * h + row), f.halves + h, 2);
        for (int s = 0; s < F::SCALES; ++s) tile[2 * TILE * F::HALVES + TILE * s + row] = f.bytes[s];
        each_element<F>(tile, row, [&](int e, u8* low, int low_shift, u8* high, int high_shift) {
            *low |= (u8)((f.q[e] & ((1 << F::LOW) - 1)) << low_shift);
            if constexpr (F::HIGH != 0) *high |= (u8)(f.q[e] >> F::LOW << high_shift);
        });
    }
}

template <class F>
void get_row(u8* blocks, const u8* tile, int row, i64 count) {
    Fields f;
    for (i64 i = 0; i < count; ++i, tile += F::BYTES, blocks += F::SOURCE) {
        for (int h = 0; h < F::HALVES; ++h) std::memcpy(f.halves + h, tile + 2 * (TILE * h + row), 2);
        for (int s = 0; s < F::SCALES; ++s) f.bytes[s] = tile[2 * TILE * F::HALVES + TILE * s + row];
        each_element<F>((u8*)tile, row, [&](int e, u8* low, int low_shift, u8* high, int high_shift) {
            f.q[e] = (u8)(*low >> low_shift & ((1 << F::LOW) - 1));
            if constexpr (F::HIGH != 0) {
                f.q[e] |= (u8)((*high >> high_shift & ((1 << F::HIGH) - 1)) << F::LOW);
            }
        });
        F::give(f, blocks);
    }
}

// A group of four as factors of `dot` (or `dot_signed`), and sixteen elements as numbers.
template <class F>
PROPOLIS_INLINE U8s factors(const u8* block, int subblock, int g) {
    const U8s v = F::stored(block, subblock, g);
    if constexpr (F::CODED) return as_dotted(look_up(F::TABLE, v));
    if constexpr (F::SIGNED) return as_dotted(v);
    return v;
}
template <class F>
constexpr bool BY_SIGN = F::CODED || F::SIGNED;
template <class F>
constexpr i32 EXCESS = BY_SIGN<F> ? OFFSET : F::ZERO;  // of factors

PROPOLIS_INLINE F32s numbers(const U8s& v, int j, bool by_sign, int zero) {
    if (by_sign) return as_floats(bits_as<I32s>(v << (24 - 8 * j)) >> 24);
    const F32s q = as_floats((v >> (8 * j)) & splat<U32s>(255u));
    return zero ? q - splat((f32)zero) : q;
}

}  // namespace propolis
