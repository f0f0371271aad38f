// The formats of 32 elements a block: where a file has their fields.
#pragma once

#include "tiles.h"

namespace propolis {

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

}  // namespace propolis
