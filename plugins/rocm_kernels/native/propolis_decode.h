// Products of one row of activations with weights in blocks, in integers: activations are rounded to
// 16 bits, 32 with a scale, and multiplied as two planes of signed bytes, four products an
// instruction.  The rounded row lies in shared memory; each block rounds it for itself.
#pragma once

#include "propolis_blocks.h"
#include "propolis_reduce.h"

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

// The larger; NaN where either is.
PROPOLIS_FN f32 larger_or_nan(f32 a, f32 b) { return a > b || math::is_nan(a) ? a : b; }

// A row in ROUNDED_BYTES bytes of shared memory for each part: its numbers times LARGEST / most, most
// being the largest magnitude of the part.
struct Rounded {
    u32* words;  // 4 x parts x 4: upper bytes of sixteen and sixteen, then lower ones
    f32* most;   // parts
    i32* sums;   // 2 x parts: of sixteen numbers each
    int parts;

    PROPOLIS_METHOD Rounded(u32* at, int parts)
        : words(at), most((f32*)(at + 16 * parts)), sums((i32*)(at + 17 * parts)), parts(parts) {}

    // Of all threads of the block; eight have a part.
    template <class T>
    PROPOLIS_METHOD void fill(const T* x) const {
        const int lane = (int)thread_x() % 8;
        for (int first = 0; first < parts; first += BLOCK / 8) {
            const int part = first + (int)thread_x() / 8;
            f32 own[4] = {};
            f32 top = 0;
            if (part < parts) {
                const Pack<T, 4> pack = load_pack<4>(x + part * PART + lane * 4);
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    own[i] = wide(pack.at[i]);
                    top = larger_or_nan(top, math::fabs(own[i]));
                }
            }
            for (int mask = 1; mask < 8; mask *= 2) top = larger_or_nan(top, warp_shfl_xor(top, mask));
            // An infinity, and NaN, make all products of the part NaN: they are `most`.
            const bool finite = top < PROPOLIS_INF;
            const f32 up = top < 0x1p-64f ? 0x1p64f : 1.0f;  // whose inverse is no infinity
            const f32 factor = finite && top > 0 ? LARGEST / (top * up) : 0.0f;
            u32 upper = 0, lower = 0;
            i32 sum = 0;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const i32 q = finite ? (i32)math::rint(own[i] * up * factor) : 0;
                const i32 high = (q + 128) >> 8;
                upper |= (u32)(high & 0xff) << 8 * i;
                lower |= (u32)((q - high * 256) & 0xff) << 8 * i;
                sum += q;
            }
            sum += warp_shfl_xor(sum, 1);
            sum += warp_shfl_xor(sum, 2);
            if (part < parts) {
                const int half = lane / 4;
                words[(half * parts + part) * 4 + lane % 4] = upper;
                words[((2 + half) * parts + part) * 4 + lane % 4] = lower;
                if (lane % 4 == 0) sums[half * parts + part] = sum;
                if (lane == 0) most[part] = finite ? top : PROPOLIS_NAN;
            }
        }
        __syncthreads();
    }
};

// R rows of weights from `row` on by a row of activations: lanes have a part each at a time.
template <class Format, int R>
PROPOLIS_FN void sums_of_parts(const Rounded& x, const u8* w, i64 row_bytes, i64 row, i64 n,
                               int lanes, f32 (&sum)[R]) {
    constexpr int PARTS = Format::SIZE / PART;  // of a block
    const int lane = (int)thread_x() & (lanes - 1);
#pragma unroll 2
    for (int part = lane; part < x.parts; part += lanes) {
        Bytes own[R][4];
#pragma unroll
        for (int r = 0; r < R; ++r) {
            const i64 there = row + r < n ? row + r : n - 1;  // beyond the last row, that once more
            const u8* block = w + there * row_bytes + part / PARTS * Format::BYTES;
            const int group = part % PARTS;
#pragma unroll
            for (int run = 0; run < 4; ++run) Format::load(block, group * 4 + run, own[r][run]);
        }
        const f32 most = x.most[part];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const Pack<u32, 4> upper = load_pack<4>(x.words + (half * x.parts + part) * 4);
            const Pack<u32, 4> lower = load_pack<4>(x.words + ((2 + half) * x.parts + part) * 4);
            const f32 total = (f32)x.sums[half * x.parts + part] * (1 / LARGEST);
#pragma unroll
            for (int r = 0; r < R; ++r) {
                i32 high = 0, low = 0;
#pragma unroll
                for (int run = 0; run < 2; ++run) {
                    const Bytes& b = own[r][half * 2 + run];
                    high = dot_bytes(b.low, upper.at[run * 2], high);
                    high = dot_bytes(b.high, upper.at[run * 2 + 1], high);
                    low = dot_bytes(b.low, lower.at[run * 2], low);
                    low = dot_bytes(b.high, lower.at[run * 2 + 1], low);
                }
                const Bytes& b = own[r][half * 2];
                // Of activations up to 1: scales up to 8e34 make no infinity of a finite product.
                f32 dot = (f32)(high * 256 + low) * (1 / LARGEST) - b.less * total;
                dot *= b.scale;
                if constexpr (Format::shifted) dot += b.shift * total;
                sum[r] += dot * most;
            }
        }
    }
#pragma unroll
    for (int r = 0; r < R; ++r) {
        for (int mask = lanes / 2; mask > 0; mask >>= 1) sum[r] += warp_shfl_xor(sum[r], mask);
    }
}

// A block has BLOCK / lanes * R rows of weights at a time, and then those of as many blocks on.
template <class Format, int R, class T>
PROPOLIS_FN void product_of_one(T* out, const T* x, const u8* w, i64 n, i64 depth, i64 row_bytes,
                                int lanes) {
    PROPOLIS_DYNAMIC_SHARED(u32, shared);
    const Rounded rounded(shared, (int)(depth / PART));
    rounded.fill(x);
    const i64 each = BLOCK / lanes * R;
    for (i64 first = block_x() * each; first < n; first += blocks_x() * each) {
        const i64 row = first + (i64)thread_x() / lanes * R;
        f32 sum[R] = {};
        sums_of_parts<Format, R>(rounded, w, row_bytes, row, n, lanes, sum);
        if ((thread_x() & (lanes - 1)) != 0) continue;
#pragma unroll
        for (int r = 0; r < R; ++r) {
            if (row + r < n) out[row + r] = narrow<T>(sum[r]);
        }
    }
}
