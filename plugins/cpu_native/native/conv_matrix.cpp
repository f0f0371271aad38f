// Convolutions of stride and dilation 1 by tiles of matrices: weights on the left, pixels on the right.
#include "matrix.h"

#ifdef PROPOLIS_MATRIX
#include <algorithm>
#include <vector>

#include "pool.h"
#include "room.h"

namespace propolis {
namespace {

constexpr i64 HIGH = 8;          // most blocks of outputs of a task, whose chunks stay in the second cache
constexpr i64 LONG = 8;          // and of pixels
constexpr i64 ROOM = 16 << 20;   // bytes of packed pixels, where that is enough
constexpr i64 SMALL = 8 << 20;   // bytes up to which each tap may have pixels of its own

// -- weights ---------------------------------------------------------------------------------------

// Where the elements of one tap lie among those of 32 channels, which are so many vectors: of each two
// neighbours, which places of theirs, and for which elements.
struct Gather {
    i64 taps, pairs;
    std::vector<u16> places;    // [tap][pair][32]
    std::vector<u32> masks;     // [tap][pair]
    explicit Gather(i64 taps) : taps(taps), pairs(parts(taps, 2)), places(taps * pairs * DEPTH), masks(taps * pairs) {
        for (i64 tap = 0; tap < taps; ++tap) {
            for (i64 i = 0; i < DEPTH; ++i) {
                const i64 at = i * taps + tap, pair = at / (2 * DEPTH);
                places[(tap * pairs + pair) * DEPTH + i] = (u16)(at % (2 * DEPTH));
                masks[tap * pairs + pair] |= 1u << i;
            }
        }
    }
    // to[tap]: a row of each tap's tile, from (32, taps).
    void operator()(const bf16* from, bf16* to) const {
        for (i64 tap = 0; tap < taps; ++tap, to += TILE_SIZE) {
            __m512i row = _mm512_setzero_si512();
            for (i64 pair = 0; pair < pairs; ++pair) {
                const bf16* at = from + pair * 2 * DEPTH;
                const __m512i low = _mm512_loadu_si512(at);
                const __m512i high = 2 * pair + 1 < taps ? _mm512_loadu_si512(at + DEPTH) : low;
                const __m512i place = _mm512_loadu_si512(&places[(tap * pairs + pair) * DEPTH]);
                row = _mm512_mask_mov_epi16(row, masks[tap * pairs + pair], _mm512_permutex2var_epi16(low, place, high));
            }
            _mm512_store_si512(to, row);
        }
    }
};

// to[output / 16][channel / 32][tap][16][32].
void pack_weights(const Convolution& c, const Gather& gather, i64 first, bf16* to) {
    const i64 taps = gather.taps, depths = parts(c.channels, DEPTH);
    for (i64 k = first; k < first + LANES; ++k) {
        for (i64 depth = 0; depth < depths; ++depth) {
            const i64 some = k < c.outputs ? std::min(DEPTH, c.channels - depth * DEPTH) : 0;
            const bf16* from = (const bf16*)c.w + (k * c.channels + depth * DEPTH) * taps;
            bf16* tile = to + (first / LANES * depths + depth) * taps * TILE_SIZE + (k - first) * DEPTH;
            if (some == DEPTH) {
                gather(from, tile);
                continue;
            }
            for (i64 tap = 0; tap < taps; ++tap, tile += TILE_SIZE) {
                for (i64 i = 0; i < some; ++i) tile[i] = from[i * taps + tap];
                std::fill(tile + some, tile + DEPTH, bf16{0});
            }
        }
    }
}

// -- pixels ----------------------------------------------------------------------------------------

// Sixteen pixels of two channels, turn by turn.
void put_pixels(const bf16* even, const bf16* odd, bf16* to) {
    const __m512i a = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i*)even));
    const __m512i b = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i*)odd));
    _mm512_store_si512(to, paired(a, b));
}

// Pixels of a strip of rows of an image as tiles, [copy][channel / 32][...][16][16][2].  There is a copy for
// each column of the window, of [row][x / 16]: a row of the window is so many tiles further on.  Small images
// have one for each tap, of all pixels in a row: theirs are cut into tiles anew only at their end.
struct Strip {
    i64 first, rows;          // of the output
    bool flat;                // whether each tap has a copy
    i64 across, tiles;        // tiles of a row, and of a tap
    i64 plane, copy, copies;  // elements of 32 channels, and of a copy; how many there are
    Strip(const Convolution& c, bool flat, i64 first, i64 rows)
        : first(first), rows(rows), flat(flat), across(parts(c.out_width, LANES)),
          tiles(flat ? parts(rows * c.out_width, LANES) : rows * across),
          plane((flat ? tiles : (rows + c.kernel[0] - 1) * across) * TILE_SIZE), copy(parts(c.channels, DEPTH) * plane),
          copies(flat ? c.kernel[0] * c.kernel[1] : c.kernel[1]) {}
    i64 bytes() const { return copies * copy * (i64)sizeof(bf16); }
    i64 offset(const Convolution& c, i64 depth, i64 tap) const {
        if (flat) return tap * copy + depth * plane;
        return tap % c.kernel[1] * copy + depth * plane + tap / c.kernel[1] * across * TILE_SIZE;
    }
};

// Row `y` of a channel from pixel `x` on, with zeros around it: `count` pixels.
void read_row(const Convolution& c, const bf16* image, i64 channel, i64 y, i64 x, i64 count, bf16* to) {
    const bool there = channel < c.channels && y >= 0 && y < c.height;
    const i64 begin = there ? std::clamp<i64>(-x, 0, count) : count;
    const i64 end = there ? std::clamp<i64>(c.width - x, begin, count) : count;
    std::fill(to, to + begin, bf16{0});
    if (end > begin) {
        std::memcpy(to + begin, image + (channel * c.height + y) * c.width + x + begin, (end - begin) * sizeof(bf16));
    }
    std::fill(to + end, to + count, bf16{0});
}

void pack_pixels(const Convolution& c, const Strip& strip, const bf16* image, i64 depth, i64 pair, bf16* to) {
    thread_local Room<bf16> room;
    const i64 channel = depth * DEPTH + 2 * pair;
    to += depth * strip.plane + pair * DEPTH;
    if (strip.flat) {
        const i64 length = strip.tiles * LANES;
        bf16* pixels = room.of(2 * length);
        std::fill(pixels, pixels + 2 * length, bf16{0});
        for (i64 tap = 0; tap < strip.copies; ++tap) {
            for (i64 y = 0; y < strip.rows; ++y) {
                const i64 row = strip.first + y + tap / c.kernel[1] - c.padding[0];
                const i64 column = tap % c.kernel[1] - c.padding[1];
                for (i64 i = 0; i < 2; ++i) {
                    read_row(c, image, channel + i, row, column, c.out_width, pixels + i * length + y * c.out_width);
                }
            }
            for (i64 t = 0; t < strip.tiles; ++t) {
                put_pixels(pixels + t * LANES, pixels + length + t * LANES, to + tap * strip.copy + t * TILE_SIZE);
            }
        }
        return;
    }
    const i64 length = strip.across * LANES + c.kernel[1] - 1;
    bf16* rows = room.of(2 * (length + LANES));
    for (i64 y = 0; y < strip.rows + c.kernel[0] - 1; ++y) {
        for (i64 i = 0; i < 2; ++i) {
            read_row(c, image, channel + i, strip.first + y - c.padding[0], -c.padding[1], length, rows + i * length);
        }
        for (i64 copy = 0; copy < strip.copies; ++copy) {
            bf16* tile = to + copy * strip.copy + y * strip.across * TILE_SIZE;
            for (i64 x = 0; x < strip.across; ++x) {
                const bf16* at = rows + copy + x * LANES;
                put_pixels(at, at + length, tile + x * TILE_SIZE);
            }
        }
    }
}

}  // namespace

void convolve_tiled(const Convolution& c) {
    if (c.batch * c.outputs * c.out_height * c.out_width == 0) return;
    const i64 taps = c.kernel[0] * c.kernel[1], depths = parts(c.channels, DEPTH), steps = depths * taps;
    const i64 outputs = parts(c.outputs, SIDE) * 2, step = steps * TILE_SIZE;
    const bool flat = c.out_width % LANES && Strip(c, true, 0, c.out_height).bytes() <= SMALL;
    const i64 row_bytes = std::max<i64>(Strip(c, false, 0, 1).bytes() / c.kernel[0], 1);
    const i64 fitting = std::clamp<i64>(ROOM / row_bytes - c.kernel[0] + 1, 1, c.out_height);
    const i64 most = flat ? c.out_height : fitting, strips = parts(c.out_height, most);
    thread_local Room<bf16> weight_room, pixel_room;
    thread_local Room<i64> offset_room;
    bf16* weights = weight_room.of(outputs * step);
    bf16* pixels = pixel_room.of(Strip(c, flat, 0, most).bytes() / (i64)sizeof(bf16) + TILE_SIZE);
    i64 *in_order = offset_room.of(2 * steps), *offsets = in_order + steps;
    for (i64 i = 0; i < steps; ++i) in_order[i] = i * TILE_SIZE;
    const Gather gather(taps);
    parallel(c.threads, outputs, [&](i64 task) { pack_weights(c, gather, task * LANES, weights); });
    for (i64 number = 0; number < c.batch * strips; ++number) {
        const i64 image = number / strips, first = number % strips * most;
        const Strip strip(c, flat, first, std::min(most, c.out_height - first));
        for (i64 i = 0; i < steps; ++i) offsets[i] = strip.offset(c, i / taps, i % taps);
        const bf16* x = (const bf16*)c.x + image * c.channels * c.height * c.width;
        parallel(c.threads, depths * LANES, [&](i64 task) {
            pack_pixels(c, strip, x, task / LANES, task % LANES, pixels);
        });
        const i64 blocks = outputs / 2, pairs = parts(strip.tiles, 2);
        i64 tall = std::min(HIGH, blocks), wide = std::min(LONG, pairs);
        while (parts(blocks, tall) * parts(pairs, wide) < 4 * c.threads && tall * wide > 1) {
            (tall >= wide ? tall : wide) = parts(std::max(tall, wide), 2);
        }
        const i64 high = parts(blocks, tall);
        const Chunks chunks{steps};
        parallel(c.threads, high * parts(pairs, wide), [&](i64 task) {
            const Registers registers;
            thread_local Room<> sum_room;
            f32* all = sum_room.of(tall * wide * SIDE * SIDE);
            const i64 k0 = task % high * tall, k1 = std::min(k0 + tall, blocks);
            const i64 p0 = task / high * wide * 2, p1 = std::min(p0 + wide * 2, strip.tiles);
            const auto sums_of = [&](i64 k, i64 p) { return all + ((k - k0) * wide + (p - p0) / 2) * SIDE * SIDE; };
            for (i64 chunk = 0; chunk < chunks.count; ++chunk) {
                const i64 from = chunks[chunk], some = chunks[chunk + 1] - from;
                for (i64 p = p0; p < p1; p += 2) {
                    for (i64 k = k0; k < k1; ++k) {
                        // An odd last tile has no neighbour.
                        f32* sums = sums_of(k, p);
                        multiply_tiles(sums, SIDE, weights + 2 * k * step, step, pixels + p * TILE_SIZE,
                                       p + 1 < p1 ? TILE_SIZE : 0, {in_order + from, offsets + from},
                                       {.steps = some, .onto = chunk ? sums : nullptr, .onto_row = SIDE});
                    }
                }
            }
            for (i64 k = k0; k < k1; ++k) {
                for (i64 p = p0; p < p1; p += 2) {
                    const f32* sums = sums_of(k, p);
                    for (i64 i = 0; i < std::min(SIDE, c.outputs - k * SIDE); ++i) {
                        const i64 output = k * SIDE + i;
                        const F32s bias = splat(c.bias ? propolis::wide(((const bf16*)c.bias)[output]) : 0.0f);
                        bf16* to = (bf16*)c.out + ((image * c.outputs + output) * c.out_height + first) * c.out_width;
                        for (i64 j = 0; j < std::min<i64>(2, p1 - p); ++j) {
                            const F32s y = load(sums + i * SIDE + j * LANES) + bias;
                            const i64 column = (p + j) % strip.across * LANES;
                            if (flat) {
                                const i64 at = (p + j) * LANES;
                                store_some(to + at, y, strip.rows * c.out_width - at);
                            } else {
                                store_some(to + (p + j) / strip.across * c.out_width + column, y, c.out_width - column);
                            }
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
