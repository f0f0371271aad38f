// Convolutions of images, channels first.  Any window is a product of the weights with columns of pixels;
// 3 x 3 of stride 1 may be Winograd's F(4 x 4, 3 x 3) (Lavin and Gray 2015, arXiv:1509.09308): a quarter of
// the multiplications, and errors of some units of the last place of the largest terms.
#include <algorithm>
#include <atomic>

#include "kernels.h"
#include "pool.h"
#include "products.h"
#include "room.h"

namespace propolis {
namespace {

// Memory that a thread keeps from call to call.
f32* scratch(int which, i64 count) {
    thread_local Room<> rooms[3];
    return rooms[which].of(count);
}
enum { COLUMNS, SUMS, FACTORS };

i64 parts(i64 count, i64 size) { return (count + size - 1) / size; }

// -- any window ------------------------------------------------------------------------------------

constexpr i64 DEEP = 192;                              // elements of a window that are summed at a time
constexpr i64 PANELS = 3;                              // of pixels, in a task
constexpr i64 PANEL = LANES * MOST_ACROSS;             // pixels that one block of products takes
constexpr i64 PIXELS = PANELS * PANEL;

// Elements [d0, d0 + depth) of the windows of pixels [p0, p0 + count), by panels: to[panel][d][PANEL].
template <class T>
void columns_of(const Convolution& c, const T* image, i64 d0, i64 depth, i64 p0, i64 count, f32* to) {
    const i64 taps = c.kernel[0] * c.kernel[1];
    for (i64 d = 0; d < depth; ++d) {
        const i64 channel = (d0 + d) / taps, tap = (d0 + d) % taps;
        const T* plane = image + channel * c.height * c.width;
        const i64 down = tap / c.kernel[1] * c.dilation[0] - c.padding[0];
        const i64 right = tap % c.kernel[1] * c.dilation[1] - c.padding[1];
        for (i64 p = 0; p < parts(count, PANEL) * PANEL;) {
            const i64 y = (p0 + p) / c.out_width, x = (p0 + p) % c.out_width, in_panel = p % PANEL;
            f32* at = to + (p / PANEL * depth + d) * PANEL + in_panel;
            const i64 run = std::min(PANEL - in_panel, p < count ? std::min(count - p, c.out_width - x) : PANEL);
            const i64 row = y * c.stride[0] + down;
            if (p >= count || row < 0 || row >= c.height) {
                std::fill(at, at + run, 0.0f);
            } else {
                const T* from = plane + row * c.width + x * c.stride[1] + right;
                const i64 first = x * c.stride[1] + right, step = c.stride[1];
                i64 i = 0;
                for (; i < run && first + i * step < 0; ++i) at[i] = 0;
                const i64 end = std::clamp(parts(c.width - first, step), i, run);
                if (step == 1) {
                    for (; i + LANES <= end; i += LANES) store(at + i, load_wide(from + i));
                }
                for (; i < end; ++i) at[i] = wide(from[i * step]);
                for (; i < run; ++i) at[i] = 0;
            }
            p += run;
        }
    }
}

template <class T>
void by_columns(const Convolution& c) {
    const i64 pixels = c.out_height * c.out_width, depth = c.channels * c.kernel[0] * c.kernel[1];
    const i64 across = parts(pixels, PIXELS) * c.batch;
    // Where there are few pixels, outputs are shared out too.
    const i64 splits = std::clamp<i64>(parts(4 * c.threads, across), 1, parts(c.outputs, 8 * ROWS));
    const i64 outputs = parts(parts(c.outputs, splits), ROWS) * ROWS;
    parallel(c.threads, across * splits, [&](i64 task) {
        const i64 block = task / splits, k0 = task % splits * outputs;
        const i64 image = block / parts(pixels, PIXELS), p0 = block % parts(pixels, PIXELS) * PIXELS;
        const i64 count = std::min(PIXELS, pixels - p0), k1 = std::min(c.outputs, k0 + outputs);
        if (k0 >= k1) return;
        f32* columns = scratch(COLUMNS, DEEP * PIXELS);
        f32* sums = scratch(SUMS, outputs * PIXELS);
        f32* factors = scratch(FACTORS, outputs * DEEP);
        const T* x = (const T*)c.x + image * c.channels * c.height * c.width;
        if (depth == 0) std::fill(sums, sums + outputs * PIXELS, 0.0f);
        for (i64 d0 = 0; d0 < depth; d0 += DEEP) {
            const i64 deep = std::min(DEEP, depth - d0);
            columns_of(c, x, d0, deep, p0, count, columns);
            for (i64 k = k0; k < parts(k1, ROWS) * ROWS; ++k) {
                const T* from = (const T*)c.w + std::min(k, k1 - 1) * depth + d0;
                f32* to = factors + (k - k0) * DEEP;
                for (i64 d = 0; d < deep; d += LANES) store_some(to + d, load_some(from + d, deep - d), deep - d);
            }
            for (i64 panel = 0; panel < parts(count, PANEL); ++panel) {
                for (i64 k = 0; k < k1 - k0; k += ROWS) {
                    multiply_block<MOST_ACROSS>(sums + k * PIXELS + panel * PANEL, PIXELS, factors + k * DEEP,
                                                DEEP, columns + panel * deep * PANEL, deep, d0 > 0);
                }
            }
        }
        for (i64 k = k0; k < k1; ++k) {
            const F32s bias = splat(c.bias ? wide(((const T*)c.bias)[k]) : 0.0f);
            T* to = (T*)c.out + (image * c.outputs + k) * pixels + p0;
            const f32* from = sums + (k - k0) * PIXELS;
            for (i64 p = 0; p < count; p += LANES) store_some(to + p, load(from + p) + bias, count - p);
        }
    });
}

// -- 3 x 3 -----------------------------------------------------------------------------------------

constexpr i64 EDGE = 4;                   // pixels of a tile of the output
constexpr i64 POINTS = 6;                 // along a side, that tiles are multiplied at
constexpr i64 PLACES = POINTS * POINTS;   // products of matrices
constexpr i64 CHANNELS = 32;              // that are summed at a time
constexpr i64 OUTPUTS = 64 / ROWS * ROWS;  // of a task
constexpr i64 TOGETHER = 2;               // panels of tiles of a task
constexpr i64 WEIGHTS = OUTPUTS * CHANNELS + LANES;  // from place to place: no power of two
constexpr i64 ROOM = 24 << 20;            // bytes of transformed tiles, where that is enough

// The three transforms, of vectors of sixteen tiles or weights.
PROPOLIS_INLINE void at_points(const F32s& a, const F32s& b, const F32s& c, F32s* u, i64 step) {
    const F32s outer = (a + c) * splat(-1.0f / 6), inner = b * splat(-1.0f / 6);
    const F32s even = fma(a, splat(1.0f / 24), c * splat(1.0f / 6)), odd = b * splat(1.0f / 12);
    u[0] = a * splat(0.25f);
    u[step] = outer + inner;
    u[2 * step] = outer - inner;
    u[3 * step] = even + odd;
    u[4 * step] = even - odd;
    u[5 * step] = c;
}
PROPOLIS_INLINE void differences(const F32s& a, const F32s& b, const F32s& c, const F32s& d, const F32s& e,
                                 const F32s& f, F32s (&v)[POINTS]) {
    const F32s four = splat(4.0f), five = splat(5.0f), two = splat(2.0f);
    const F32s p = e - four * c, q = d - four * b, r = e - c, s = two * (d - b);
    v[0] = fma(four, a, e - five * c);
    v[1] = p + q;
    v[2] = p - q;
    v[3] = r + s;
    v[4] = r - s;
    v[5] = fma(four, b, f - five * d);
}
PROPOLIS_INLINE void back(const F32s& a, const F32s& b, const F32s& c, const F32s& d, const F32s& e,
                          const F32s& f, F32s* y, i64 step) {
    const F32s p = b + c, q = b - c, r = d + e, s = d - e;
    y[0] = a + p + r;
    y[step] = fma(splat(2.0f), s, q);
    y[2 * step] = fma(splat(4.0f), r, p);
    y[3 * step] = fma(splat(8.0f), s, q) + f;
}

// to[place][OUTPUTS][CHANNELS]: weights of outputs from k0 on and channels from c0 on; 0 beyond the last.
template <class T>
void transform_weights(const Convolution& c, i64 k0, i64 c0, f32* to) {
    const i64 channels = std::min(CHANNELS, c.channels - c0);
    for (i64 k = 0; k < std::min(OUTPUTS, parts(c.outputs - k0, ROWS) * ROWS); ++k) {
        const T* from = (const T*)c.w + (std::min(k0 + k, c.outputs - 1) * c.channels + c0) * 9;
        for (i64 first = 0; first < CHANNELS; first += LANES) {
            f32 taps[9][LANES];
            const i64 some = std::clamp<i64>(channels - first, 0, LANES);
            for (i64 i = 0; i < some; ++i) {
#pragma GCC unroll 9
                for (int tap = 0; tap < 9; ++tap) taps[tap][i] = wide(from[(first + i) * 9 + tap]);
            }
            for (i64 i = some; i < LANES; ++i) {
                for (int tap = 0; tap < 9; ++tap) taps[tap][i] = 0;
            }
            F32s rows[POINTS * 3], u[POINTS];
#pragma GCC unroll 3
            for (int s = 0; s < 3; ++s) at_points(load(taps[s]), load(taps[3 + s]), load(taps[6 + s]), rows + s, 3);
#pragma GCC unroll 6
            for (i64 i = 0; i < POINTS; ++i) {
                at_points(rows[3 * i], rows[3 * i + 1], rows[3 * i + 2], u, 1);
#pragma GCC unroll 6
                for (i64 j = 0; j < POINTS; ++j) {
                    store(to + (i * POINTS + j) * WEIGHTS + k * CHANNELS + first, u[j]);
                }
            }
        }
    }
}

struct Tiles {
    i64 down, across, total;
    explicit Tiles(const Convolution& c)
        : down(parts(c.out_height, EDGE)), across(parts(c.out_width, EDGE)), total(c.batch * down * across) {}
};

// to[place][t - t0] of one channel's tiles [t0, t1); up to a vector more is written.
template <class T>
void transform_plane(const Convolution& c, const Tiles& tiles, i64 channel, i64 t0, i64 t1, f32* rows,
                     f32* to, i64 to_place) {
    const i64 wide_row = parts(tiles.across * EDGE + 2, LANES) * LANES + LANES;
    f32* phases = rows + POINTS * wide_row;  // every fourth element, from the first to the fourth
    const i64 phase = wide_row / EDGE + LANES;
    for (i64 t = t0; t < t1;) {
        const i64 strip = t / tiles.across, x0 = t % tiles.across;
        const i64 image = strip / tiles.down, y0 = strip % tiles.down * EDGE - c.padding[0];
        const i64 count = std::min(t1 - t, tiles.across - x0);
        const T* plane = (const T*)c.x + (image * c.channels + channel) * c.height * c.width;
        const i64 left = x0 * EDGE - c.padding[1], width = count * EDGE + 2;
        const i64 begin = std::clamp<i64>(-left, 0, width), end = std::clamp<i64>(c.width - left, begin, width);
        for (i64 r = 0; r < POINTS; ++r) {
            f32* row = rows + r * wide_row;
            if (y0 + r < 0 || y0 + r >= c.height) {
                std::fill(row, row + width, 0.0f);
                continue;
            }
            const T* from = plane + (y0 + r) * c.width + left;
            std::fill(row, row + begin, 0.0f);
            for (i64 i = begin; i < end; i += LANES) store_some(row + i, load_some(from + i, end - i), end - i);
            std::fill(row + end, row + width, 0.0f);
        }
        for (i64 i = 0; i < width; i += LANES) {
            F32s d[POINTS], v[POINTS];
            for (i64 r = 0; r < POINTS; ++r) d[r] = load(rows + r * wide_row + i);
            differences(d[0], d[1], d[2], d[3], d[4], d[5], v);
            for (i64 r = 0; r < POINTS; ++r) store(rows + r * wide_row + i, v[r]);
        }
        for (i64 r = 0; r < POINTS; ++r) {
            const f32* row = rows + r * wide_row;
            for (i64 i = 0; i <= count; ++i) {
                for (i64 j = 0; j < EDGE; ++j) phases[j * phase + i] = row[i * EDGE + j];
            }
            for (i64 i = 0; i < count; i += LANES) {
                const f32* p = phases + i;
                F32s v[POINTS];
                differences(load(p), load(p + phase), load(p + 2 * phase), load(p + 3 * phase), load(p + 1),
                            load(p + phase + 1), v);
                for (i64 j = 0; j < POINTS; ++j) store(to + (r * POINTS + j) * to_place + t - t0 + i, v[j]);
            }
        }
        t += count;
    }
}

// Sums of sixteen tiles of one output, at all places, as pixels.  Whether all of them are finite.
template <class T>
bool put_tiles(const Convolution& c, const Tiles& tiles, i64 k, const f32* sums, i64 step, i64 t0, i64 count) {
    F32s rows[EDGE * POINTS], y[EDGE * EDGE];
    for (i64 j = 0; j < POINTS; ++j) {
        const f32* at = sums + j * step;
        const i64 down = POINTS * step;
        back(load(at), load(at + down), load(at + 2 * down), load(at + 3 * down), load(at + 4 * down),
             load(at + 5 * down), rows + j, POINTS);
    }
    const F32s bias = splat(c.bias ? wide(((const T*)c.bias)[k]) : 0.0f);
    F32s odd = splat(0.0f);
    f32 each[EDGE * EDGE][LANES];
    for (i64 i = 0; i < EDGE; ++i) {
        const F32s* m = rows + i * POINTS;
        back(m[0], m[1], m[2], m[3], m[4], m[5], y + i * EDGE, 1);
        for (i64 j = 0; j < EDGE; ++j) {
            const F32s pixel = y[i * EDGE + j] + bias;
            odd = odd + (pixel - pixel);  // 0 of what is finite
            store(each[i * EDGE + j], pixel);
        }
    }
    for (i64 lane = 0; lane < count; ++lane) {
        const i64 strip = (t0 + lane) / tiles.across, x = (t0 + lane) % tiles.across * EDGE;
        const i64 image = strip / tiles.down, row = strip % tiles.down * EDGE;
        T* to = (T*)c.out + ((image * c.outputs + k) * c.out_height + row) * c.out_width + x;
        const i64 high = std::min(EDGE, c.out_height - row), across = std::min(EDGE, c.out_width - x);
        if (high == EDGE && across == EDGE) {
#pragma GCC unroll 4
            for (i64 i = 0; i < EDGE; ++i) {
#pragma GCC unroll 4
                for (i64 j = 0; j < EDGE; ++j) to[i * c.out_width + j] = narrow<T>(each[i * EDGE + j][lane]);
            }
            continue;
        }
        for (i64 i = 0; i < high; ++i) {
            for (i64 j = 0; j < across; ++j) to[i * c.out_width + j] = narrow<T>(each[i * EDGE + j][lane]);
        }
    }
    return sum(odd) == 0;
}

// False where something is infinite or NaN, which a tile would spread among its pixels.
template <int ACROSS, class T>
bool by_tiles(const Convolution& c) {
    constexpr i64 panel = ACROSS * LANES, columns = TOGETHER * panel, step = OUTPUTS * columns + LANES;
    const Tiles tiles(c);
    const i64 depths = parts(c.channels, CHANNELS), blocks = parts(c.outputs, OUTPUTS);
    const i64 fitting = ROOM / (PLACES * depths * CHANNELS * columns * 4);
    const i64 groups = std::clamp<i64>(fitting, 1, parts(tiles.total, columns));
    const i64 panels = groups * TOGETHER, most = panels * panel;
    thread_local Room<> kept;
    f32* factors = kept.of(depths * PLACES * panels * CHANNELS * panel);
    std::atomic<bool> finite = true;
    for (i64 t0 = 0; t0 < tiles.total && finite; t0 += most) {
        const i64 t1 = std::min(tiles.total, t0 + most), used = parts(t1 - t0, panel);
        // factors[depth][place][panel][CHANNELS][panel]
        parallel(c.threads, depths * (CHANNELS / 8), [&](i64 task) {
            const i64 depth = task / (CHANNELS / 8), row = most + LANES;
            f32* planes = scratch(SUMS, PLACES * row);
            f32* rows = scratch(COLUMNS, 2 * POINTS * (tiles.across * EDGE + 8 * LANES));
            for (i64 i = task % (CHANNELS / 8) * 8, end = i + 8; i < end; ++i) {
                const i64 channel = depth * CHANNELS + i;
                if (channel < c.channels) transform_plane<T>(c, tiles, channel, t0, t1, rows, planes, row);
                for (i64 place = 0; place < PLACES; ++place) {
                    f32* from = planes + place * row;
                    if (channel < c.channels) std::fill(from + t1 - t0, from + used * panel, 0.0f);
                    else std::fill(from, from + used * panel, 0.0f);
                    for (i64 p = 0; p < used; ++p) {
                        f32* to = factors + (((depth * PLACES + place) * panels + p) * CHANNELS + i) * panel;
#pragma GCC unroll 3
                        for (int v = 0; v < ACROSS; ++v) store(to + v * LANES, load(from + p * panel + v * LANES));
                    }
                }
            }
        });
        parallel(c.threads, blocks * parts(used, TOGETHER), [&](i64 task) {
            const i64 k0 = task % blocks * OUTPUTS, p0 = task / blocks * TOGETHER;
            const i64 p1 = std::min(used, p0 + TOGETHER), rows = std::min(OUTPUTS, c.outputs - k0);
            f32* weights = scratch(FACTORS, PLACES * WEIGHTS);
            f32* sums = scratch(SUMS, PLACES * step);
            for (i64 depth = 0; depth < depths; ++depth) {
                transform_weights<T>(c, k0, depth * CHANNELS, weights);
                for (i64 place = 0; place < PLACES; ++place) {
                    for (i64 p = p0; p < p1; ++p) {
                        const f32* b = factors + ((depth * PLACES + place) * panels + p) * CHANNELS * panel;
                        for (i64 k = 0; k < rows; k += ROWS) {
                            multiply_block<ACROSS>(
                                sums + place * step + k * columns + (p - p0) * panel, columns,
                                weights + place * WEIGHTS + k * CHANNELS, CHANNELS, b, CHANNELS, depth > 0);
                        }
                    }
                }
            }
            bool sound = true;
            for (i64 k = 0; k < rows; ++k) {
                for (i64 t = t0 + p0 * panel, i = 0; t < std::min(t1, t0 + p1 * panel); t += LANES, i += LANES) {
                    sound &= put_tiles<T>(c, tiles, k0 + k, sums + k * columns + i, step, t,
                                          std::min<i64>(LANES, t1 - t));
                }
            }
            if (!sound) finite = false;
        });
    }
    return finite;
}

}  // namespace

void convolve(const Convolution& c, bool exact) {
    if (c.batch * c.outputs * c.out_height * c.out_width == 0) return;
    with_type(c.kind, [&](auto type) {
        typedef decltype(type) T;
        if (!exact && c.channels > 0) {
            const i64 vectors = parts(Tiles(c).total, LANES);
            bool done = false;
            if (MOST_ACROSS == 1 || vectors == 1) done = by_tiles<1, T>(c);
            else if (vectors == 2) done = by_tiles<std::min(2, MOST_ACROSS), T>(c);
            else done = by_tiles<MOST_ACROSS, T>(c);
            if (done) return;
        }
        by_columns<T>(c);
    });
}

}  // namespace propolis
