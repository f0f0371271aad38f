// The formats of 256 elements a block: where a file has their fields.
#pragma once

#include "formats_32.h"

namespace propolis {

// Bits of 256 elements, each in its byte of q from `bit` on: so many of element
// SPAN * (8 / BITS * h + k) + l in byte SPAN * h + l, from its bit BITS * k on.
template <int BITS, int SPAN = 32>
inline void spread(const u8* from, u8* q, int bit) {
    for (int first = 0; first < 256; first += SPAN * 8 / BITS, from += SPAN) {
        for (int k = 0; k < 8 / BITS; ++k) {
            u8* const to = q + first + SPAN * k;
            for (int l = 0; l < SPAN; ++l) {
                to[l] |= (u8)((from[l] >> BITS * k & ((1 << BITS) - 1)) << bit);
            }
        }
    }
}
template <int BITS, int SPAN = 32>
inline void gather(const u8* q, u8* to, int bit) {
    std::memset(to, 0, 32 * BITS);
    for (int first = 0; first < 256; first += SPAN * 8 / BITS, to += SPAN) {
        for (int k = 0; k < 8 / BITS; ++k) {
            const u8* const from = q + first + SPAN * k;
            for (int l = 0; l < SPAN; ++l) {
                to[l] |= (u8)((from[l] >> bit & ((1 << BITS) - 1)) << BITS * k);
            }
        }
    }
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
        spread<2>(b + 16, f.q, 0);
        std::memcpy(f.halves, b + 80, 4);
    }
    static void give(const Fields& f, u8* b) {
        std::memcpy(b, f.bytes, 16);
        gather<2>(f.q, b + 16, 0);
        std::memcpy(b + 80, f.halves, 4);
    }
};

struct Q3_K : Planes<256, 16, 1, 16, 2, 1> {
    static constexpr int SOURCE = 110, ZERO = 4;
    static PROPOLIS_INLINE F32s scale(const u8* b, int s) { return half(b, 0) * signed_byte(b, s); }
    static void take(const u8* b, Fields& f) {
        std::memset(f.q, 0, 256);
        spread<1>(b, f.q, 2);
        spread<2>(b + 32, f.q, 0);
        const u8* s = b + 96;
        for (int j = 0; j < 16; ++j) {
            const int low = s[j % 8] >> (4 * (j / 8)) & 15, high = s[8 + j % 4] >> (2 * (j / 4)) & 3;
            f.bytes[j] = (u8)((low | high << 4) - 32);
        }
        std::memcpy(f.halves, b + 108, 2);
    }
    static void give(const Fields& f, u8* b) {
        gather<1>(f.q, b, 2);
        gather<2>(f.q, b + 32, 0);
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
        std::memset(f.q, 0, 256);
        spread<4>(b + 16, f.q, 0);
    }
    static void give(const Fields& f, u8* b) {
        std::memcpy(b, f.halves, 4);
        to_six_bits(f.bytes, b + 4);
        gather<4>(f.q, b + 16, 0);
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
        std::memset(f.q, 0, 256);
        spread<4>(b + 48, f.q, 0);
        spread<1>(b + 16, f.q, 4);
    }
    static void give(const Fields& f, u8* b) {
        std::memcpy(b, f.halves, 4);
        to_six_bits(f.bytes, b + 4);
        gather<1>(f.q, b + 16, 4);
        gather<4>(f.q, b + 48, 0);
    }
};

struct Q6_K : Planes<256, 16, 1, 16, 4, 2> {
    static constexpr int SOURCE = 210, ZERO = 32;
    static PROPOLIS_INLINE F32s scale(const u8* b, int s) { return half(b, 0) * signed_byte(b, s); }
    static void take(const u8* b, Fields& f) {
        std::memset(f.q, 0, 256);
        spread<4, 64>(b, f.q, 0);
        spread<2>(b + 128, f.q, 4);
        std::memcpy(f.bytes, b + 192, 16);
        std::memcpy(f.halves, b + 208, 2);
    }
    static void give(const Fields& f, u8* b) {
        gather<4, 64>(f.q, b, 0);
        gather<2>(f.q, b + 128, 4);
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
        spread<2>(b, f.q, 0);
        std::memcpy(f.halves, b + 64, 2);
    }
    static void give(const Fields& f, u8* b) {
        gather<2>(f.q, b, 0);
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

}  // namespace propolis
