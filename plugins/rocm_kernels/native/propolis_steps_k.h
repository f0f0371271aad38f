// What a lane takes of a row of weights at a time (propolis_steps.h): of formats of 256 weights.
#pragma once

#include "propolis_steps.h"

// Two groups of a block of q4_k or q5_k, and the block's first four words: two scales, and eight pairs
// of 6 bits.
struct TwoGroups {
    static constexpr int PAIRS = 2;
    Pack<u32, 4> head;
    u32 pair;  // groups 2 * pair and the next one

    PROPOLIS_FN u32 step(u32 sixteen) { return sixteen / 4; }
    PROPOLIS_FN u32 which(u32 sixteen) { return sixteen % 4; }

    // Of a group of 32.
    PROPOLIS_METHOD f32 applied(u32 group, const u32 (&q)[8], const Activations& x) const {
        const bool early = group < 4;
        const u32 first = head.at[1], second = head.at[2], rest = head.at[3];
        const u32 scales = early ? first : (rest & 0x0f0f0f0f) | (first >> 2 & 0x30303030);
        const u32 leasts = early ? second : (rest >> 4 & 0x0f0f0f0f) | (second >> 2 & 0x30303030);
        const u32 at = (group & 3) * 8;
        const f32 scale = to_f32(f16{(u16)head.at[0]}) * (f32)(scales >> at & 63);
        const f32 least = to_f32(f16{(u16)(head.at[0] >> 16)}) * (f32)(leasts >> at & 63);
        return (scale * over_most(x.dot(q)) - least * over_most(x.both())) * x.most[0];
    }
};

// Two groups whose nibbles share 32 bytes.
template <>
struct Step<Q4_K> : TwoGroups {
    Words<32, 16> nibbles;

    PROPOLIS_METHOD void load(const u8* row, u32 step) {
        const u8* block = row + step / 4 * Q4_K_BYTES;
        pair = step % 4;
        head = load_pack<4>((const u32*)block);
        nibbles.load(block + 16 + pair * 32);
    }
    PROPOLIS_METHOD f32 dot(u32 which, const Activations& x) const {
        u32 q[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) q[i] = nibbles[i] >> which * 4 & 0x0f0f0f0f;
        return applied(pair * 2 + which, q, x);
    }
};

// The same, and a fifth bit of each: bit g of 32 bytes is group g's.
template <>
struct Step<Q5_K> : TwoGroups {
    Words<32, 16> fifths, nibbles;

    PROPOLIS_METHOD void load(const u8* row, u32 step) {
        const u8* block = row + step / 4 * Q5_K_BYTES;
        pair = step % 4;
        head = load_pack<4>((const u32*)block);
        fifths.load(block + 16);
        nibbles.load(block + 48 + pair * 32);
    }
    PROPOLIS_METHOD f32 dot(u32 which, const Activations& x) const {
        const u32 group = pair * 2 + which;
        u32 q[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            q[i] = (nibbles[i] >> which * 4 & 0x0f0f0f0f) | (fifths[i] >> group & 0x01010101) << 4;
        }
        return applied(group, q, x);
    }
};

// Half of a block, four groups of 32 whose pairs of bits share 32 bytes.
struct FourGroups {
    static constexpr int PAIRS = 4;

    PROPOLIS_FN u32 step(u32 sixteen) { return sixteen / 8; }
    PROPOLIS_FN u32 which(u32 sixteen) { return sixteen % 8; }
};

template <>
struct Step<Q2_K> : FourGroups {
    Words<32, 4> pairs;
    Words<8, 4> scales;  // two a group, and what is subtracted
    u32 both;

    PROPOLIS_METHOD void load(const u8* row, u32 step) {
        const u8* block = row + step / 2 * Q2_K_BYTES;
        pairs.load(block + 16 + step % 2 * 32);
        scales.load(block + step % 2 * 8);
        both = word_at(block + 80);
    }
    PROPOLIS_METHOD f32 dot(u32 group, const Activations& x) const {
        Scaled sum = 0, least = 0;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            u32 q[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) q[i] = pairs[half * 4 + i] >> group * 2 & 0x03030303;
            const u32 scale = scales.byte((int)group * 2 + half);
            sum += (Scaled)x.dot(q, half) * (Scaled)(scale & 15);
            least += (Scaled)x.total[half] * (Scaled)(scale >> 4);
        }
        const f32 scale = to_f32(f16{(u16)both}), less = to_f32(f16{(u16)(both >> 16)});
        return (scale * over_most(sum) - less * over_most(least)) * x.most[0];
    }
};

template <>
struct Step<TQ2_0> : FourGroups {
    Words<32, 2> pairs;
    u32 scale;

    PROPOLIS_METHOD void load(const u8* row, u32 step) {
        const u8* block = row + step / 2 * TQ2_0_BYTES;
        pairs.load(block + step % 2 * 32);
        scale = *(const u16*)(block + 64);
    }
    PROPOLIS_METHOD f32 dot(u32 group, const Activations& x) const {
        u32 q[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) q[i] = pairs[i] >> group * 2 & 0x03030303;
        return over_most(x.dot(q) - x.both()) * to_f32(f16{(u16)scale}) * x.most[0];
    }
};

// A whole block: of five groups of 32 a digit each of 32 bytes, of five of sixteen one each of sixteen more, and sixteen of
// four bytes.
template <>
struct Step<TQ1_0> {
    static constexpr int PAIRS = 8;
    Words<TQ1_0_BYTES, 2> words;

    PROPOLIS_FN u32 step(u32 sixteen) { return sixteen / 16; }
    PROPOLIS_FN u32 which(u32 sixteen) { return sixteen % 16; }
    PROPOLIS_METHOD void load(const u8* row, u32 step) { words.load(row + step * TQ1_0_BYTES); }
    PROPOLIS_METHOD f32 dot(u32 pair, const Activations& x) const {
        u32 q[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) q[i] = TQ1_0::word<true>(Within<decltype(words)>{words, 0}, (int)pair * 8 + i);
        const f32 scale = to_f32(f16{(u16)words[TQ1_0_BYTES / 4]});
        return over_most(x.dot(q) - x.both()) * scale * x.most[0];
    }
};

// Sixteen of each of four groups whose pairs of bits share 32 bytes, either half of them.
template <>
struct Step<Q3_K> {
    static constexpr int PAIRS = 2;
    Words<16, 2> pairs, thirds;  // bit 4 * half + group of a byte of the latter is a group's
    Words<14, 2> scales;         // sixteen of 6 bits, and that of the block
    u32 place;

    PROPOLIS_FN u32 step(u32 sixteen) { return sixteen / 8 * 2 + sixteen % 2; }
    PROPOLIS_FN u32 which(u32 sixteen) { return sixteen / 2 % 4; }
    PROPOLIS_METHOD void load(const u8* row, u32 step) {
        const u8* block = row + step / 4 * Q3_K_BYTES;
        place = step % 4;
        thirds.load(block + place % 2 * 16);
        pairs.load(block + 32 + place * 16);
        scales.load(block + 96);
    }
    PROPOLIS_METHOD f32 dot(u32 pair, const Activations& x) const {
        const u32 half = place / 2, column = place % 2;
        const u32 all = (scales[pair] >> half * 4 & 0x0f0f0f0f) |
                        (scales[2] >> (half * 2 + pair) * 2 & 0x03030303) << 4;
        f32 sum = 0;
#pragma unroll
        for (int which = 0; which < 2; ++which) {
            const u32 group = pair * 2 + which;
            u32 q[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const u32 third = thirds.from_bit(i, half * 4);
                const u32 top = group < 2 ? third << (2 - group) : third >> (group - 2);
                q[i] = (pairs[i] >> group * 2 & 0x03030303) | (top & 0x04040404);
            }
            const Scaled scale = (Scaled)(all >> (which * 2 + column) * 8 & 63) - 32;
            const f32 dot = over_most((Scaled)(x.dot(q, which) - 4 * x.total[which]) * scale);
            sum += dot * to_f32(f16{(u16)scales[3]}) * x.most[which];
        }
        return sum;
    }
};

// Two groups of 32 whose nibbles share 32 bytes, and so do their pairs of upper bits.
template <>
struct Step<Q6_K> {
    static constexpr int PAIRS = 2;
    Words<32, 2> nibbles, uppers;
    u32 scales;  // four signed bytes, two a group
    u32 scale, odd;

    // Groups k and k + 2 of four, k up to 1.
    PROPOLIS_FN u32 step(u32 sixteen) { return sixteen / 8 * 2 + sixteen / 2 % 2; }
    PROPOLIS_FN u32 which(u32 sixteen) { return sixteen / 4 % 2 * 2 + sixteen % 2; }
    PROPOLIS_METHOD void load(const u8* row, u32 step) {
        const u8* block = row + step / 4 * Q6_K_BYTES;
        const u32 half = step / 2 % 2;
        odd = step % 2;
        nibbles.load(block + half * 64 + odd * 32);
        uppers.load(block + 128 + half * 32);
        const u8* own = block + 192 + half * 8 + odd * 2;
        scales = *(const u16*)own | (u32)*(const u16*)(own + 4) << 16;
        scale = *(const u16*)(block + 208);
    }
    PROPOLIS_METHOD f32 dot(u32 pair, const Activations& x) const {
        f32 sum = 0, own[4];
        bytes_less(scales ^ EACH_128, 128, own);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            u32 q[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const u32 upper = uppers.from_bit(half * 4 + i, odd * 2);
                q[i] = (nibbles[half * 4 + i] >> pair * 4 & 0x0f0f0f0f) | ((pair ? upper : upper << 4) & 0x30303030);
            }
            sum += over_most(x.dot(q, half) - 32 * x.total[half]) * own[pair * 2 + half];
        }
        return sum * to_f32(f16{(u16)scale}) * x.most[0];
    }
};

// Two groups of 32.
template <>
struct Step<IQ4_XS> {
    static constexpr int PAIRS = 2;
    Words<8, 8> head;
    Words<32, 8> codes;
    u32 pair;

    PROPOLIS_FN u32 step(u32 sixteen) { return sixteen / 4; }
    PROPOLIS_FN u32 which(u32 sixteen) { return sixteen % 4; }
    PROPOLIS_METHOD void load(const u8* row, u32 step) {
        const u8* block = row + step / 4 * IQ4_XS_BYTES;
        pair = step % 4;
        head.load(block);
        codes.load(block + 8 + pair * 32);
    }
    PROPOLIS_METHOD f32 dot(u32 which, const Activations& x) const {
        u32 q[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) q[i] = iq4<true>(codes[(int)which * 4 + i % 4], i / 4);
        const u32 low = head[1] >> (pair * 8 + which * 4) & 15, high = head[0] >> (16 + (pair * 2 + which) * 2) & 3;
        const f32 scale = to_f32(f16{(u16)head[0]}) * ((f32)(low | high << 4) - 32.0f);
        return over_most(x.dot(q)) * scale * x.most[0];
    }
};
