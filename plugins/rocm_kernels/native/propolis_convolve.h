// Convolutions of images and, a plane at a time, of videos, which say `planes` (propolis_windows.h).
#pragma once

#include "propolis_windows.h"

// What all of them take.
#define SEEN(T)                                                                       \
    T *out, const T *x, const T *w, const T *bias, const ConvShape &s, i64 first,     \
        const Strided3 &batches

// Which image, group and kind of output a block works on, and which tile of that.
struct Part {
    i64 batch;  // image and group, and plane
    i64 i, j;   // of tiles: output channels, windows
    i32 phase[2];
};
// Neighbours share windows: these are dearer to fetch than weights.
PROPOLIS_FN Part part_of(const ConvShape& s, i64 tile, i64 down, i64 along) {
    Part part;
    i64 rest = tile / down;
    part.i = tile - rest * down;
    tile = rest;
    rest = tile / along;
    part.j = tile - rest * along;
    const i32 columns = phases_of(s, 1);
    const i64 phases = (i64)phases_of(s, 0) * columns;
    part.batch = rest / phases;
    const i64 phase = rest - part.batch * phases;
    part.phase[0] = (i32)(phase / columns);
    part.phase[1] = (i32)(phase - (i64)part.phase[0] * columns);
    return part;
}
PROPOLIS_FN Part tile_of(const ConvShape& s, i64 tile, int side) {
    const i64 down = (s.outs + side - 1) / side;
    const i64 along = (windows_of(s, 0) * windows_of(s, 1) + side - 1) / side;
    Part part = part_of(s, tile, down, along);
    part.i *= side;
    part.j *= side;
    return part;
}

// Of weights whose rows are runs, times windows padded with zeros.
template <int SIDE, class T, class Depth>
PROPOLIS_FN void convolve_in_tiles(SEEN(T), const Depth& planes) {
    typedef Compute<T> C;
    __shared__ __attribute__((aligned(16))) C left[SIDE * DEPTH<SIDE>];
    __shared__ __attribute__((aligned(16))) C right[SIDE * DEPTH<SIDE>];
    const Part part = tile_of(s, first + block_x(), SIDE);
    const Offsets<3> at = locate(batches, part.batch);
    const Axis rows = axis_of(s, 0, 0);
    const Axis columns = axis_of(s, 1, 0);
    const PlainRows<T> weights(w + at.at[1], s.outs, s.depth, s.w[0], s.w[3]);
    const auto frames = frames_of(planes, part.batch);
    typedef decltype(frames_of(planes, 0)) Own;
    const Windows<T, false, Own> windows(x + at.at[0], s, rows, columns, DEPTH<SIDE>, frames);
    C sum[SIDE / 16][SIDE / 16] = {};
    tile_product<SIDE>(weights, windows, part.i, part.j, s.depth, left, right, sum);
    const ConvShape& shape = again(s);
    const Outputs outputs = outputs_of(shape, frames, part.batch);
    const Target<T> to{out + outputs.start,
                       bias ? bias + at.at[2] : nullptr,
                       shape.bias,
                       0,
                       shape.outs,
                       (i64)shape.out[0] * shape.out[1],
                       outputs.apart};
    store_tile<SIDE, STORED<T>>(to, part.i, part.j, sum);
}

// Of few output channels a group: a thread has OUTS of a window, or, where `slices` > 1, its share of
// their channels; these are summed up in order.
template <int OUTS, class T, class Depth>
PROPOLIS_FN void convolve_directly(SEEN(T), int slices, const Depth& planes) {
    typedef Compute<T> C;
    __shared__ C parts[OUTS * BLOCK];
    const int width = BLOCK / slices;
    const int place = (int)thread_x() & (width - 1);
    const int slice = (int)thread_x() / width;
    const i64 down = (s.outs + OUTS - 1) / OUTS;
    const i64 along = (windows_of(s, 0) * windows_of(s, 1) + width - 1) / width;
    const Part part = part_of(s, first + block_x(), down, along);
    const Offsets<3> at = locate(batches, part.batch);
    const auto frames = frames_of(planes, part.batch);
    const Axis rows = axis_of(s, 0, part.phase[0]);
    const Axis columns = axis_of(s, 1, part.phase[1]);
    const i64 window = part.j * width + place;
    const i64 i = window / columns.count;
    const i64 j = window - i * columns.count;
    const i32 height = i < rows.count ? s.size[0] : 0;  // past the last window all is outside
    const i32 row = (i32)i * rows.step + rows.start;
    const i32 column = (i32)j * columns.step + columns.start;
    const i64 o = part.i * OUTS;
    const T* weights = w + at.at[1] + o * s.w[0] + rows.tap * s.w[2] + columns.tap * s.w[3];
    const T* image = x + at.at[0];
    C sum[OUTS] = {};
#pragma unroll 1
    for (i32 channel = slice; channel < s.channels; channel += slices) {
        const Channel own = channel_of(s, frames, channel);
#pragma unroll 1
        for (i32 ti = 0; ti < rows.taps; ++ti) {
            const i32 r = row + ti * rows.spread;
            const bool in_row = own.there && (u32)r < (u32)height;
            const T* tap = weights + own.w + ti * rows.skip * s.w[2];
            for (i32 tj = 0; tj < columns.taps; ++tj) {
                const i32 c = column + tj * columns.spread;
                const bool inside = in_row && (u32)c < (u32)s.size[1];
                const C there = wide(image[inside ? own.x + r * s.x[1] + c * s.x[2] : 0]);
                const C value = inside ? there : (C)0;
                const bool counts = inside || !s.transposed;
#pragma unroll
                for (int k = 0; k < OUTS; ++k) {
                    const C weight = wide(tap[o + k < s.outs ? k * s.w[0] : 0]);
                    sum[k] = counts ? sum[k] + value * weight : sum[k];
                }
                tap += columns.skip * s.w[3];
            }
        }
    }
    if (slices > 1) {
#pragma unroll
        for (int k = 0; k < OUTS; ++k) parts[k * BLOCK + thread_x()] = sum[k];
        __syncthreads();
        if (slice > 0) return;
        for (int other = 1; other < slices; ++other) {
#pragma unroll
            for (int k = 0; k < OUTS; ++k) sum[k] += parts[k * BLOCK + other * width + place];
        }
    }
    const ConvShape& shape = again(s);
    const Outputs outputs = outputs_of(shape, frames, part.batch);
    const Scattered<T> to{out + outputs.start, bias ? bias + at.at[2] : nullptr,
                          outputs.apart,       shape, rows, columns};
#pragma unroll
    for (int k = 0; k < OUTS; ++k) store_sums(to, o + k, window, &sum[k]);
}
