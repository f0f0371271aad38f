// Convolutions by tiles of matrices: weights on the left, pixels on the right.
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
constexpr i64 SMALL = 8 << 20;   // bytes up to which each tap may have pixels of its own, and images go together

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

// to[output / 16][channel / 32][tap][16][32], of sixteen outputs.
void pack_outputs(const bf16* w, i64 outputs, i64 channels, const Gather& gather, i64 first, bf16* to) {
    const i64 taps = gather.taps, depths = parts(channels, DEPTH);
    for (i64 k = first; k < first + LANES; ++k) {
        for (i64 depth = 0; depth < depths; ++depth) {
            const i64 some = k < outputs ? std::min(DEPTH, channels - depth * DEPTH) : 0;
            const bf16* from = w + (k * channels + depth * DEPTH) * taps;
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

// Pixels of some images, or of a strip of rows of one, as tiles, [copy][channel / 32][...][16][16][2].  There is a
// copy for each column of the window, of [image][row][x / 16]: a row of the window is so many tiles further on.  Small
// images, and what is read in steps, have one for each tap, of all pixels in a row: theirs are cut into tiles anew only
// at their end.
struct Strip {
    i64 images;
    i64 first, rows;          // of the output
    bool flat;                // whether each tap has a copy
    i64 across, tiles;        // tiles of a row, and of a tap
    i64 plane, copy, copies;  // elements of 32 channels, and of a copy; how many there are
    i64 skipped;              // elements of rows above an image, and below the one before
    Strip(const Convolution& c, bool flat, i64 images, i64 first, i64 rows)
        : images(images), first(first), rows(rows), flat(flat), across(parts(c.out_width, LANES)),
          tiles(flat ? parts(images * rows * c.out_width, LANES) : images * rows * across),
          plane((flat ? tiles : images * (rows + c.kernel[0] - 1) * across) * TILE_SIZE),
          copy(parts(c.channels, DEPTH) * plane), copies(flat ? c.kernel[0] * c.kernel[1] : c.kernel[1]),
          skipped(flat ? 0 : (c.kernel[0] - 1) * across * TILE_SIZE) {}
    i64 bytes() const { return copies * copy * (i64)sizeof(bf16); }
    i64 offset(const Convolution& c, i64 depth, i64 tap) const {
        if (flat) return tap * copy + depth * plane;
        return tap % c.kernel[1] * copy + depth * plane + tap / c.kernel[1] * across * TILE_SIZE;
    }
    i64 at(i64 tile) const { return tile * TILE_SIZE + tile / (rows * across) * skipped; }
};

// Row `y` of a channel, every `step`-th pixel from `x` on, with zeros around it: `count` pixels.
void read_row(const Convolution& c, const bf16* image, i64 channel, i64 y, i64 x, i64 step, i64 count, bf16* to) {
    const bool there = channel < c.channels && y >= 0 && y < c.height;
    const i64 begin = there ? std::clamp<i64>(parts(std::max<i64>(-x, 0), step), 0, count) : count;
    const i64 end = there ? std::clamp<i64>(parts(std::max<i64>(c.width - x, 0), step), begin, count) : count;
    std::fill(to, to + begin, bf16{0});
    const bf16* from = image + (channel * c.height + y) * c.width + x;
    if (step == 1 && end > begin) std::memcpy(to + begin, from + begin, (end - begin) * sizeof(bf16));
    else for (i64 i = begin; i < end; ++i) to[i] = from[i * step];
    std::fill(to + end, to + count, bf16{0});
}

void pack_pixels(const Convolution& c, const Strip& strip, const bf16* images, i64 depth, i64 pair, bf16* to) {
    thread_local Room<bf16> room;
    const i64 channel = depth * DEPTH + 2 * pair, size = c.channels * c.height * c.width;
    to += depth * strip.plane + pair * DEPTH;
    if (strip.flat) {
        const i64 length = strip.tiles * LANES;
        bf16* pixels = room.of(2 * length);
        std::fill(pixels, pixels + 2 * length, bf16{0});
        for (i64 tap = 0; tap < strip.copies; ++tap) {
            const i64 above = tap / c.kernel[1] * c.dilation[0] - c.padding[0];
            const i64 column = tap % c.kernel[1] * c.dilation[1] - c.padding[1];
            for (i64 y = 0; y < strip.images * strip.rows; ++y) {
                const bf16* image = images + y / strip.rows * size;
                const i64 row = (strip.first + y % strip.rows) * c.stride[0] + above;
                for (i64 i = 0; i < 2; ++i) {
                    bf16* line = pixels + i * length + y * c.out_width;
                    read_row(c, image, channel + i, row, column, c.stride[1], c.out_width, line);
                }
            }
            for (i64 t = 0; t < strip.tiles; ++t) {
                put_pixels(pixels + t * LANES, pixels + length + t * LANES, to + tap * strip.copy + t * TILE_SIZE);
            }
        }
        return;
    }
    const i64 length = strip.across * LANES + c.kernel[1] - 1, high = strip.rows + c.kernel[0] - 1;
    bf16* lines = room.of(2 * (length + LANES));
    for (i64 y = 0; y < strip.images * high; ++y) {
        const bf16* image = images + y / high * size;
        for (i64 i = 0; i < 2; ++i) {
            const i64 row = strip.first + y % high - c.padding[0];
            read_row(c, image, channel + i, row, -c.padding[1], 1, length, lines + i * length);
        }
        for (i64 copy = 0; copy < strip.copies; ++copy) {
            bf16* tile = to + copy * strip.copy + y * strip.across * TILE_SIZE;
            for (i64 x = 0; x < strip.across; ++x) {
                const bf16* at = lines + copy + x * LANES;
                put_pixels(at, at + length, tile + x * TILE_SIZE);
            }
        }
    }
}

// How images are cut: of how many at once, of so many rows each.
struct Cut {
    bool flat;
    i64 images = 1, rows;
    explicit Cut(const Convolution& c) : rows(c.out_height) {
        const bool steps = c.stride[0] * c.stride[1] * c.dilation[0] * c.dilation[1] != 1;
        flat = steps || (c.out_width % LANES && Strip(c, true, 1, 0, rows).bytes() <= SMALL);
        const i64 bytes = Strip(c, flat, 1, 0, rows).bytes();
        if (bytes <= ROOM) {
            images = std::clamp<i64>(SMALL / std::max<i64>(bytes, 1), 1, c.batch);
        } else {
            const i64 row = std::max<i64>(Strip(c, flat, 1, 0, 1).bytes() / (flat ? 1 : c.kernel[0]), 1);
            rows = std::clamp<i64>(ROOM / row - (flat ? 0 : c.kernel[0] - 1), 1, c.out_height);
        }
    }
};

// Sixteen results of an output, from pixel `at` of an image on: they may go on in the next one.
void put_results(const Convolution& c, i64 image, i64 output, i64 at, const F32s& y, i64 count) {
    const i64 size = c.out_height * c.out_width;
    bf16* to = (bf16*)c.out + ((image + at / size) * c.outputs + output) * size;
    at %= size;
    if (at + count <= size) return store_some(to + at, y, count);
    bf16 some[LANES];
    store_some(some, y, LANES);
    for (i64 i = 0; i < count; ++i) to[(at + i) / size * c.outputs * size + (at + i) % size] = some[i];
}

}  // namespace

i64 packed_filter_bytes(i64 outputs, i64 channels, i64 taps) {
    return packed_bytes(outputs, parts(channels, DEPTH) * DEPTH * taps);
}

void pack_filter(void* tiles, const void* w, i64 outputs, i64 channels, i64 taps, int threads) {
    const Gather gather(taps);
    parallel(threads, parts(outputs, SIDE) * 2, [&](i64 task) {
        pack_outputs((const bf16*)w, outputs, channels, gather, task * LANES, (bf16*)tiles);
    });
}

void unpack_filter(void* w, const void* tiles, i64 outputs, i64 channels, i64 taps, int threads) {
    const i64 depths = parts(channels, DEPTH);
    parallel(threads, outputs, [&](i64 k) {
        const bf16* from = (const bf16*)tiles + k / LANES * depths * taps * TILE_SIZE + k % LANES * DEPTH;
        bf16* to = (bf16*)w + k * channels * taps;
        for (i64 channel = 0; channel < channels; ++channel) {
            const bf16* at = from + channel / DEPTH * taps * TILE_SIZE + channel % DEPTH;
            for (i64 tap = 0; tap < taps; ++tap) to[channel * taps + tap] = at[tap * TILE_SIZE];
        }
    });
}

void convolve_tiled(const Convolution& c) {
    if (c.batch * c.outputs * c.out_height * c.out_width == 0) return;
    const i64 taps = c.kernel[0] * c.kernel[1], depths = parts(c.channels, DEPTH), steps = depths * taps;
    const i64 outputs = parts(c.outputs, SIDE) * 2, step = steps * TILE_SIZE;
    const Cut cut(c);
    const i64 strips = parts(c.out_height, cut.rows);
    thread_local Room<bf16> weight_room, pixel_room;
    thread_local Room<i64> offset_room;
    const bf16* weights = (const bf16*)c.tiles;
    if (!weights) {
        bf16* packed = weight_room.of(outputs * step);
        pack_filter(packed, c.w, c.outputs, c.channels, taps, c.threads);
        weights = packed;
    }
    const i64 most = Strip(c, cut.flat, cut.images, 0, cut.rows).bytes() / (i64)sizeof(bf16);
    bf16* pixels = pixel_room.of(most + TILE_SIZE);
    i64 *in_order = offset_room.of(2 * steps), *offsets = in_order + steps;
    for (i64 i = 0; i < steps; ++i) in_order[i] = i * TILE_SIZE;
    for (i64 number = 0; number < parts(c.batch, cut.images) * strips; ++number) {
        const i64 image = number / strips * cut.images, first = number % strips * cut.rows;
        const Strip strip(c, cut.flat, std::min(cut.images, c.batch - image), first,
                          std::min(cut.rows, c.out_height - first));
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
                        multiply_tiles(sums, SIDE, weights + 2 * k * step, step, pixels + strip.at(p),
                                       p + 1 < p1 ? strip.at(p + 1) - strip.at(p) : 0, {in_order + from, offsets + from},
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
                        for (i64 j = 0; j < std::min<i64>(2, p1 - p); ++j) {
                            const F32s y = load(sums + i * SIDE + j * LANES) + bias;
                            if (cut.flat) {
                                const i64 at = (p + j) * LANES, there = strip.images * strip.rows * c.out_width;
                                put_results(c, image, output, first * c.out_width + at, y, std::min<i64>(LANES, there - at));
                            } else {
                                const i64 row = (p + j) / strip.across, column = (p + j) % strip.across * LANES;
                                const i64 at = (first + row % strip.rows) * c.out_width + column;
                                put_results(c, image + row / strip.rows, output, at, y, std::min<i64>(LANES, c.out_width - column));
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

i64 packed_filter_bytes(i64, i64, i64) { return 0; }
void pack_filter(void*, const void*, i64, i64, i64, int) {}
void unpack_filter(void*, const void*, i64, i64, i64, int) {}
void convolve_tiled(const Convolution&) {}

}  // namespace propolis
#endif
