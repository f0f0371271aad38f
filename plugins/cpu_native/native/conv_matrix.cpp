// Convolutions of stride and dilation 1 by tiles of matrices: weights on the left, pixels on the right.
#include "matrix.h"

#ifdef PROPOLIS_MATRIX
#include <algorithm>

#include "pool.h"
#include "room.h"

namespace propolis {
namespace {

constexpr i64 HIGH = 2;          // blocks of outputs of a task
constexpr i64 LONG = 8;          // blocks of pixels
constexpr i64 ROOM = 16 << 20;   // bytes of packed pixels, where that is enough

// Weights: to[output / 16][channel / 32][tap][16][32].
void pack_weights(const Convolution& c, i64 first, bf16* to) {
    const i64 taps = c.kernel[0] * c.kernel[1], depths = parts(c.channels, DEPTH);
    for (i64 k = first; k < first + LANES; ++k) {
        for (i64 depth = 0; depth < depths; ++depth) {
            const i64 some = k < c.outputs ? std::min(DEPTH, c.channels - depth * DEPTH) : 0;
            const bf16* from = (const bf16*)c.w + (k * c.channels + depth * DEPTH) * taps;
            bf16* tile = to + (first / LANES * depths + depth) * taps * TILE + (k - first) * DEPTH;
            for (i64 tap = 0; tap < taps; ++tap, tile += TILE) {
                for (i64 i = 0; i < some; ++i) tile[i] = from[i * taps + tap];
                std::fill(tile + some, tile + DEPTH, bf16{0});
            }
        }
    }
}

// Pixels of a strip of rows, a copy for each column of the window: to[copy][channel / 32][row][x / 16][16][16][2].
// A row of the window is then so many tiles further on.
struct Strip {
    i64 first, rows;                // of the output
    i64 across, plane, copy;        // tiles of a row; elements of 32 planes, and of a copy
    Strip(const Convolution& c, i64 first, i64 rows)
        : first(first), rows(rows), across(parts(c.out_width, LANES)),
          plane((rows + c.kernel[0] - 1) * across * TILE), copy(parts(c.channels, DEPTH) * plane) {}
};

void pack_pixels(const Convolution& c, const Strip& strip, const bf16* image, i64 depth, i64 pair, bf16* to) {
    thread_local Room<bf16> room;
    const i64 length = strip.across * LANES + c.kernel[1] + LANES;
    bf16* rows = room.of(2 * length);
    for (i64 y = 0; y < strip.rows + c.kernel[0] - 1; ++y) {
        for (i64 i = 0; i < 2; ++i) {
            const i64 channel = depth * DEPTH + 2 * pair + i, row = strip.first + y - c.padding[0];
            bf16* at = rows + i * length;
            std::fill(at, at + length, bf16{0});
            if (channel >= c.channels || row < 0 || row >= c.height) continue;
            const i64 count = std::min(c.width, length - c.padding[1]);
            if (count > 0) std::memcpy(at + c.padding[1], image + (channel * c.height + row) * c.width, count * sizeof(bf16));
        }
        for (i64 copy = 0; copy < c.kernel[1]; ++copy) {
            bf16* tile = to + copy * strip.copy + depth * strip.plane + y * strip.across * TILE + pair * DEPTH;
            for (i64 x = 0; x < strip.across; ++x) {
                const bf16* at = rows + copy + x * LANES;
                const __m512i even = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i*)at));
                const __m512i odd = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i*)(at + length)));
                _mm512_store_si512(tile + x * TILE, paired(even, odd));
            }
        }
    }
}

}  // namespace

void convolve_tiled(const Convolution& c) {
    if (c.batch * c.outputs * c.out_height * c.out_width == 0) return;
    const i64 taps = c.kernel[0] * c.kernel[1], depths = parts(c.channels, DEPTH), steps = depths * taps;
    const i64 outputs = parts(c.outputs, SIDE) * 2, step = steps * TILE;
    const i64 row_bytes = c.kernel[1] * Strip(c, 0, 1).copy / c.kernel[0] * (i64)sizeof(bf16);
    const i64 most = std::clamp<i64>(ROOM / std::max<i64>(row_bytes, 1) - c.kernel[0] + 1, 1, c.out_height);
    thread_local Room<bf16> weight_room, pixel_room;
    thread_local Room<i64> offset_room;
    bf16* weights = weight_room.of(outputs * step);
    bf16* pixels = pixel_room.of(c.kernel[1] * Strip(c, 0, most).copy + TILE);
    i64* offsets = offset_room.of(steps);
    parallel(c.threads, outputs, [&](i64 task) { pack_weights(c, task * LANES, weights); });
    for (i64 number = 0; number < c.batch * parts(c.out_height, most); ++number) {
        const i64 image = number / parts(c.out_height, most), first = number % parts(c.out_height, most) * most;
        const Strip strip(c, first, std::min(most, c.out_height - first));
        for (i64 i = 0; i < steps; ++i) {
            const i64 tap = i % taps, row = tap / c.kernel[1], column = tap % c.kernel[1];
            offsets[i] = column * strip.copy + i / taps * strip.plane + row * strip.across * TILE;
        }
        const bf16* x = (const bf16*)c.x + image * c.channels * c.height * c.width;
        parallel(c.threads, depths * LANES, [&](i64 task) {
            pack_pixels(c, strip, x, task / LANES, task % LANES, pixels);
        });
        const i64 tiles = strip.rows * strip.across;
        const i64 high = parts(outputs / 2, HIGH), across = parts(parts(tiles, 2), LONG);
        parallel(c.threads, high * across, [&](i64 task) {
            const Registers registers;
            alignas(64) f32 sums[SIDE * SIDE];
            const i64 k0 = task % high * HIGH, k1 = std::min(k0 + HIGH, outputs / 2);
            const i64 p0 = task / high * LONG * 2, p1 = std::min(p0 + LONG * 2, tiles);
            for (i64 k = k0; k < k1; ++k) {
                for (i64 p = p0; p < p1; p += 2) {
                    // An odd last tile has no neighbour.
                    multiply_tiles(sums, SIDE, weights + 2 * k * step, step, pixels + p * TILE, p + 1 < p1 ? TILE : 0,
                                   offsets, {steps});
                    for (i64 i = 0; i < std::min(SIDE, c.outputs - k * SIDE); ++i) {
                        const i64 output = k * SIDE + i;
                        const F32s bias = splat(c.bias ? wide(((const bf16*)c.bias)[output]) : 0.0f);
                        bf16* to = (bf16*)c.out + (image * c.outputs + output) * c.out_height * c.out_width;
                        for (i64 j = 0; j < std::min<i64>(2, p1 - p); ++j) {
                            const i64 row = first + (p + j) / strip.across, column = (p + j) % strip.across * LANES;
                            store_some(to + row * c.out_width + column, load(sums + i * SIDE + j * LANES) + bias,
                                       c.out_width - column);
                        }
                    }
                }
            }
        });
    }
}

}  // namespace propolis

#else

namespace propolis {

void convolve_tiled(const Convolution&) {}

}  // namespace propolis
#endif
