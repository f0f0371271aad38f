// The block formats of GGUF, repacked: sixteen rows of a weight together, so that one vector has the same
// place of all of them.  What a block has is what the file has, to the bit: scales in front, then the
// elements by groups of four neighbours of each row.
#pragma once

#include "bytes.h"

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
    static PROPOLIS_INLINE F32s byte(const u8* block, int i) {
        return as_floats(load_widened(block + 2 * TILE * halves + TILE * i));
    }
    static PROPOLIS_INLINE F32s signed_byte(const u8* block, int i) {
        return as_floats(load_widened((const i8*)block + 2 * TILE * halves + TILE * i));
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

// -- between rows of blocks and tiles -------------------------------------------------------------

// The elements of a row in a tile, a group at a time, whose bytes are neighbours: those of one word.
template <class F, class Visit>
inline void each_group(u8* block, int row, Visit visit) {
    for (int e = 0; e < F::K; e += GROUP) {
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

inline u32 word_at(const u8* at) {
    u32 word;
    std::memcpy(&word, at, 4);
    return word;
}
inline void set_word(u8* at, u32 word) { std::memcpy(at, &word, 4); }
// So many of the lowest bits of each byte.
constexpr u32 lowest(int bits) { return 0x01010101u * ((1u << bits) - 1); }

// One row of a tile from one row of blocks; the tile is zeroed before.
template <class F>
void put_row(u8* tile, int row, const u8* blocks, i64 count) {
    Fields f;
    for (i64 i = 0; i < count; ++i, tile += F::BYTES, blocks += F::SOURCE) {
        F::take(blocks, f);
        for (int h = 0; h < F::HALVES; ++h) std::memcpy(tile + 2 * (TILE * h + row), f.halves + h, 2);
        for (int s = 0; s < F::SCALES; ++s) tile[2 * TILE * F::HALVES + TILE * s + row] = f.bytes[s];
        each_group<F>(tile, row, [&](int e, u8* low, int low_shift, u8* high, int high_shift) {
            const u32 q = word_at(f.q + e);
            set_word(low, word_at(low) | (q & lowest(F::LOW)) << low_shift);
            if constexpr (F::HIGH != 0) {
                set_word(high, word_at(high) | (q >> F::LOW & lowest(F::HIGH)) << high_shift);
            }
        });
    }
}

template <class F>
void get_row(u8* blocks, const u8* tile, int row, i64 count) {
    Fields f;
    for (i64 i = 0; i < count; ++i, tile += F::BYTES, blocks += F::SOURCE) {
        for (int h = 0; h < F::HALVES; ++h) std::memcpy(f.halves + h, tile + 2 * (TILE * h + row), 2);
        for (int s = 0; s < F::SCALES; ++s) f.bytes[s] = tile[2 * TILE * F::HALVES + TILE * s + row];
        each_group<F>((u8*)tile, row, [&](int e, u8* low, int low_shift, u8* high, int high_shift) {
            u32 q = word_at(low) >> low_shift & lowest(F::LOW);
            if constexpr (F::HIGH != 0) {
                q |= (word_at(high) >> high_shift & lowest(F::HIGH)) << F::LOW;
            }
            set_word(f.q + e, q);
        });
        F::give(f, blocks);
    }
}

// A group of four as factors of `dot` or of words, and sixteen elements as numbers.
template <class F>
PROPOLIS_INLINE U8s factors(const u8* block, int subblock, int g) {
    const U8s v = F::stored(block, subblock, g);
    if constexpr (F::CODED) return as_dotted(look_up(F::TABLE, v));
    if constexpr (F::SIGNED) return as_dotted(v);
    return v;
}
template <class F>
constexpr bool BY_SIGN = F::CODED || F::SIGNED;
// Whether activations are words, of 8 bits or of 16.
template <class F>
constexpr bool IN_WORDS = BY_WORDS && BY_SIGN<F>;
template <class F>
constexpr i32 EXCESS = BY_SIGN<F> ? OFFSET : F::ZERO;  // of factors

PROPOLIS_INLINE F32s numbers(const U8s& v, int j, bool by_sign, int zero) {
    if (by_sign) return as_floats(bits_as<I32s>(v << (24 - 8 * j)) >> 24);
    const F32s q = as_floats((v >> (8 * j)) & splat<U32s>(255u));
    return zero ? q - splat((f32)zero) : q;
}

}  // namespace propolis
