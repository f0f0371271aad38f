// What a lane takes of a row of weights at a time, and its products with activations in two planes of
// signed bytes: of any block format, and of those whose bytes are better loaded together.
#pragma once

#include "propolis_blocks.h"

constexpr f32 LARGEST = 127 * 256;  // of the rounded numbers: their upper byte is at most 127

// sum + the four products of signed bytes.
PROPOLIS_FN i32 dot_bytes(u32 a, u32 b, i32 sum) {
#if defined(__CUDACC__)
    return __dp4a((i32)a, (i32)b, sum);
#elif defined(PROPOLIS_AMD) && __has_builtin(__builtin_amdgcn_sudot4)
    return __builtin_amdgcn_sudot4(true, (i32)a, true, (i32)b, sum, false);
#elif defined(PROPOLIS_AMD) && __has_builtin(__builtin_amdgcn_sdot4)
    return __builtin_amdgcn_sdot4((i32)a, (i32)b, sum, false);
#else
    for (int i = 0; i < 32; i += 8) sum += (i32)(i8)(a >> i) * (i32)(i8)(b >> i);
    return sum;
#endif
}

// A part of the activations: its numbers are (256 * upper + lower) * most / LARGEST.
struct Activations {
    Pack<u32, 4> upper[2], lower[2];  // of sixteen numbers each
    f32 total[2];                     // sums of as many, over LARGEST
    f32 most;

    // With sixteen signed bytes.
    PROPOLIS_METHOD i32 dot(const u32 (&q)[4], int half) const {
        i32 high = 0, low = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            high = dot_bytes(q[i], upper[half].at[i], high);
            low = dot_bytes(q[i], lower[half].at[i], low);
        }
        return high * 256 + low;
    }
};

// A Step has PARTS parts of a row, which are `which(part)` (below PARTS) of step `step(part)`; dot is
// its product with one of them, over `most`.  Of activations up to 1: scales up to 8e34 make no
// infinity of a finite product.
template <class Format>
struct Step {
    static constexpr int PARTS = 1;
    Bytes run[4];

    PROPOLIS_FN u32 step(u32 part) { return part; }
    PROPOLIS_FN u32 which(u32) { return 0; }
    PROPOLIS_METHOD void load(const u8* row, u32 step) {
        constexpr u32 EACH = Format::SIZE / PART;
        const u8* block = row + step / EACH * Format::BYTES;
#pragma unroll
        for (int i = 0; i < 4; ++i) Format::load(block, (int)(step % EACH) * 4 + i, run[i]);
    }
    PROPOLIS_METHOD f32 dot(u32, const Activations& x) const {
        f32 sum = 0;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const Bytes &a = run[half * 2], &b = run[half * 2 + 1];
            f32 dot = (f32)x.dot({a.low, a.high, b.low, b.high}, half) * (1 / LARGEST);
            dot = (dot - a.less * x.total[half]) * a.scale;
            if constexpr (Format::shifted) dot += a.shift * x.total[half];
            sum += dot;
        }
        return sum;
    }
};

// Two groups of a block of q4_k or q5_k, and the block's first four words: two scales, and eight pairs
// of 6 bits.
struct TwoGroups {
    static constexpr int PARTS = 2;
    Pack<u32, 4> head;
    u32 pair;  // groups 2 * pair and the next one

    PROPOLIS_FN u32 step(u32 part) { return part / 2; }
    PROPOLIS_FN u32 which(u32 part) { return part % 2; }

    // scale * sum - least * total, of a group of 32.
    PROPOLIS_METHOD f32 applied(u32 group, f32 sum, f32 total) const {
        const bool early = group < 4;
        const u32 first = head.at[1], second = head.at[2], rest = head.at[3];
        const u32 scales = early ? first : (rest & 0x0f0f0f0f) | (first >> 2 & 0x30303030);
        const u32 leasts = early ? second : (rest >> 4 & 0x0f0f0f0f) | (second >> 2 & 0x30303030);
        const u32 at = (group & 3) * 8;
        const f32 scale = to_f32(f16{(u16)head.at[0]}) * (f32)(scales >> at & 63);
        return scale * sum - to_f32(f16{(u16)(head.at[0] >> 16)}) * (f32)(leasts >> at & 63) * total;
    }
};

// Two groups whose nibbles share 32 bytes.
template <>
struct Step<Q4_K> : TwoGroups {
    Pack<u32, 4> nibbles[2];

    PROPOLIS_METHOD void load(const u8* row, u32 step) {
        const u32* block = (const u32*)(row + step / 4 * Q4_K_BYTES);
        pair = step % 4;
        head = load_pack<4>(block);
        nibbles[0] = load_pack<4>(block + 4 + pair * 8);
        nibbles[1] = load_pack<4>(block + 8 + pair * 8);
    }
    PROPOLIS_METHOD f32 dot(u32 which, const Activations& x) const {
        i32 sum = 0;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            u32 q[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) q[i] = nibbles[half].at[i] >> which * 4 & 0x0f0f0f0f;
            sum += x.dot(q, half);
        }
        return applied(pair * 2 + which, (f32)sum * (1 / LARGEST), x.total[0] + x.total[1]);
    }
};

// The same, and a fifth bit of each: bit g of 32 bytes is group g's.
template <>
struct Step<Q5_K> : TwoGroups {
    Pack<u32, 4> fifths[2], nibbles[2];

    PROPOLIS_METHOD void load(const u8* row, u32 step) {
        const u32* block = (const u32*)(row + step / 4 * Q5_K_BYTES);
        pair = step % 4;
        head = load_pack<4>(block);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            fifths[half] = load_pack<4>(block + 4 + half * 4);
            nibbles[half] = load_pack<4>(block + 12 + pair * 8 + half * 4);
        }
    }
    PROPOLIS_METHOD f32 dot(u32 which, const Activations& x) const {
        const u32 group = pair * 2 + which;
        i32 sum = 0;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            u32 q[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                q[i] = (nibbles[half].at[i] >> which * 4 & 0x0f0f0f0f) |
                       (fifths[half].at[i] >> group & 0x01010101) << 4;
            }
            sum += x.dot(q, half);
        }
        return applied(group, (f32)sum * (1 / LARGEST), x.total[0] + x.total[1]);
    }
};

// Two groups of 32 whose nibbles share 32 bytes, and so do their pairs of upper bits.
template <>
struct Step<Q6_K> {
    static constexpr int PARTS = 2;
    u32 nibbles[8], uppers[8];
    u32 scales;  // four signed bytes, two a part
    f32 scale;
    u32 odd;

    // Parts k and k + 2 of four, k up to 1.
    PROPOLIS_FN u32 step(u32 part) { return part / 4 * 2 + part % 2; }
    PROPOLIS_FN u32 which(u32 part) { return part / 2 % 2; }
    PROPOLIS_METHOD void load(const u8* row, u32 step) {
        const u8* block = row + step / 4 * Q6_K_BYTES;
        const u32 half = step / 2 % 2;
        odd = step % 2;
        halves_at(block + half * 64 + odd * 32, nibbles);
        halves_at(block + 128 + half * 32, uppers);
        const u8* own = block + 192 + half * 8 + odd * 2;
        scales = *(const u16*)own | (u32)*(const u16*)(own + 4) << 16;
        scale = f16_at(block + 208);
    }
    PROPOLIS_METHOD f32 dot(u32 which, const Activations& x) const {
        f32 sum = 0;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            u32 q[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                q[i] = (nibbles[half * 4 + i] >> which * 4 & 0x0f0f0f0f) |
                       (uppers[half * 4 + i] >> (which * 4 + odd * 2) & 0x03030303) << 4;
            }
            const f32 dot = (f32)x.dot(q, half) * (1 / LARGEST) - 32.0f * x.total[half];
            sum += dot * (scale * (f32)(i8)(scales >> (which * 16 + half * 8)));
        }
        return sum;
    }
};
