// Neighbouring bytes of memory in registers, as they come: what is loaded before it is computed with.
#pragma once

#include "propolis_device.h"

// What lies `bits` (below 32) from the beginning of two words.
PROPOLIS_FN u32 word_between(u32 low, u32 high, u32 bits) {
#if defined(__CUDACC__)
    return __funnelshift_r(low, high, bits);
#else
    return (u32)(((u64)high << 32 | low) >> bits);
#endif
}

PROPOLIS_FN i32 byte_of(u32 word, int i) {
#if defined(__CUDACC__)
    return (i32)__byte_perm(word, 0, 0x4440 | i);
#else
    return (i32)(word >> i * 8 & 0xff);
#endif
}

// BYTES from where ALIGN divides.  NVIDIA loads aligned words alone: it takes those that the bytes lie in, and shifts
// them where they are used.
template <int BYTES, int ALIGN>
struct Words {
#if defined(__CUDACC__)
    static constexpr int COUNT = ALIGN < 4 ? (BYTES + 4 - ALIGN + 3) / 4 : BYTES / 4;
    u32 bits;
#else
    static constexpr int COUNT = (BYTES + 3) / 4;
#endif
    u32 held[COUNT];

    PROPOLIS_METHOD void load(const u8* at) {
        if constexpr (ALIGN >= 4) {
            constexpr int N = ALIGN / 4;
            static_assert(BYTES % ALIGN == 0, "Words: packs are not whole");
#pragma unroll
            for (int first = 0; first < COUNT; first += N) {
                const Pack<u32, N> pack = load_pack<N>((const u32*)at + first);
#pragma unroll
                for (int i = 0; i < N; ++i) held[first + i] = pack.at[i];
            }
        } else {
#if defined(__CUDACC__)
            const u32 before = (u32)(size_t)at % 4;
            const u32* from = (const u32*)(at - before);
            bits = before * 8;
#pragma unroll
            for (int i = 0; i < COUNT; ++i) held[i] = i * 4 < BYTES || i * 4 < BYTES + (int)before ? from[i] : 0;
#else
            held[COUNT - 1] = 0;
            __builtin_memcpy(held, at, BYTES);
#endif
        }
    }
    PROPOLIS_METHOD u32 operator[](int i) const {
#if defined(__CUDACC__)
        if constexpr (ALIGN < 4) return word_between(held[i], i + 1 < COUNT ? held[i + 1] : 0, bits);
#endif
        return held[i];
    }
    // The i-th of them, whose bits are wanted from some on (below 16): of its last byte no more than are left.
    PROPOLIS_METHOD u32 from_bit(int i, u32 first) const {
#if defined(__CUDACC__)
        if constexpr (ALIGN < 4) return word_between(held[i], i + 1 < COUNT ? held[i + 1] : 0, bits + first);
#endif
        return held[i] >> first;
    }
    PROPOLIS_METHOD u32 byte(int i) const { return (*this)[i / 4] >> i % 4 * 8 & 0xff; }
};

// Such bytes from one on: formats load from there as from memory (propolis_blocks.h).
template <class Held>
struct Within {
    const Held& held;
    int at;
    PROPOLIS_METHOD Within operator+(int more) const { return {held, at + more}; }
    PROPOLIS_METHOD u32 operator[](int more) const { return held.byte(at + more); }
    PROPOLIS_METHOD u32 word() const {
        return at % 4 ? word_between(held[at / 4], held[at / 4 + 1], at % 4 * 8) : held[at / 4];
    }
    PROPOLIS_METHOD u16 half() const { return (u16)(held[at / 4] >> at % 4 * 8); }  // that lies in one word
};
