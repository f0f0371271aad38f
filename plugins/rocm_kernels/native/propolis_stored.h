// How weights lie in blocks, whatever their format: their bytes, in memory and in registers, and what is made of what a
// format says of itself (propolis_blocks.h).
#pragma once

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

PROPOLIS_FN u32 half_at(const u8* at) { return *(const u16*)at; }
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

// Eight weights as they are stored: scale * (byte - less) + shift.
struct Stored {
    u32 low, high;
    f32 less, scale, shift;
};
// The same, of signed bytes.
struct Bytes : Stored {};
PROPOLIS_FN void set_quants(u32 low, u32 high, f32 less, Stored& w) {
    w.low = low, w.high = high, w.less = less;
}

template <class W>
constexpr bool SIGNED = false;
template <>
constexpr bool SIGNED<Bytes> = true;

constexpr u32 EACH_128 = 0x80808080;  // from signed bytes to those that are 128 more

// Every format has
//
//     word<sign>(block, four)    four neighbours, weights 4 four to 4 four + 3, as bytes, signed or not,
//     less(sign)                 from which so much is to be taken,
//     scales(block, part, w)     and the scale and shift of sixteen, 16 part to 16 part + 15.
//
// Some have `upper(block, four)` too: signed bytes, UPPER times what is left after `less`.
//
// Of these it has, of its run r (0 to SIZE / 8 - 1), weights 8 r to 8 r + 7:
template <class Format>
struct Runs {
    template <class Block, class W>
    PROPOLIS_FN void load(Block block, int run, W& w) {
        constexpr bool sign = SIGNED<W>;
        set_quants(Format::template word<sign>(block, run * 2), Format::template word<sign>(block, run * 2 + 1),
                   (f32)Format::less(sign), w);
        Format::scales(block, run / 2, w);
    }
};

// Bits 4 four to 4 four + 3 become bit PLACE of four bytes.  Neither factor has more than 24 bits, which AMD's compute units
// multiply four times as fast.
template <int PLACE>
PROPOLIS_FN u32 spread_fifths(u32 fifths, int four) {
    constexpr u32 EACH = 0x00204081;  // times four bits: each is the first of a byte, among others
    const u32 at = word_between(fifths, fifths, (u32)(4 * four - PLACE) & 31);
    return (at & 15 << PLACE) * EACH & 0x01010101u << PLACE;
}

// Formats of 256 have, instead of scales,
//
//     unit(block), whole(block, part)         whose product is the scale of sixteen, and, where they are `shifted`,
//     least_unit(block), least(block, part)   whose product the shift takes away,
//
// and of both sixteens of a group of 32 at once wholes(block, group, to), of four sixteens as bytes leasts(block, quarter).
template <class Format>
struct Wholes : Runs<Format> {
    template <class Block, class W>
    PROPOLIS_FN void scales(Block block, int part, W& w) {
        w.scale = Format::unit(block) * (f32)Format::whole(block, part);
        if constexpr (Format::shifted) w.shift = -(Format::least_unit(block) * (f32)Format::least(block, part));
    }
    template <class Block>
    PROPOLIS_FN void wholes(Block block, int group, i32 (&to)[2]) {
        to[0] = Format::whole(block, group * 2), to[1] = Format::whole(block, group * 2 + 1);
    }
};
