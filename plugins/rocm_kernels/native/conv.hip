// Convolutions and their transposes.  Semantics: core's propolis/ops/conv.py; sums are in f32, of f64
// in f64.
#include "propolis_convolve.h"

#define ARGUMENTS(T) \
    T *out, const T *x, const T *w, const T *bias, ConvShape s, i64 first, Strided3 batches
#define GIVEN out, x, w, bias, s, first, batches

// Of any weights, transposed or not.
template <class T>
PROPOLIS_FN void gather_in_tiles(SEEN(T)) {
    constexpr int SIDE = 64;
    typedef Compute<T> C;
    __shared__ __attribute__((aligned(16))) C left[SIDE * DEPTH<SIDE>];
    __shared__ __attribute__((aligned(16))) C right[SIDE * DEPTH<SIDE>];
    const Part part = tile_of(s, first + block_x(), SIDE);
    const Offsets<3> at = locate(batches, part.batch);
    const Axis rows = axis_of(s, 0, part.phase[0]);
    const Axis columns = axis_of(s, 1, part.phase[1]);
    if (part.j >= (i64)rows.count * columns.count) return;
    const Windows<T, true> windows(x + at.at[0], s, rows, columns, DEPTH<SIDE>);
    const Taps<T> weights(w + at.at[1], s, rows, columns, windows.by);
    const i64 depth = (i64)s.channels * rows.taps * columns.taps;
    C sum[SIDE / 16][SIDE / 16] = {};
    tile_product<SIDE>(weights, windows, part.i, part.j, depth, left, right, sum);
    const ConvShape& shape = again(s);
    const Outputs outputs = outputs_of(shape, Flat{}, part.batch);
    const Scattered<T> to{out + outputs.start, bias ? bias + at.at[2] : nullptr,
                          outputs.apart,       shape, rows, columns};
    store_tile<SIDE, 1>(to, part.i, part.j, sum);
}

#define TILES(T, side) \
    PROPOLIS_KERNEL conv_tile##side##_##T(ARGUMENTS(T)) { convolve_in_tiles<side>(GIVEN, Flat{}); }
#define DIRECT(T, outs)                                                     \
    PROPOLIS_KERNEL conv_direct##outs##_##T(ARGUMENTS(T), i64 slices) {     \
        convolve_directly<outs>(GIVEN, (int)slices, Flat{});                        \
    }
#define CONV(T)                                                             \
    TILES(T, 64)                                                            \
    PROPOLIS_KERNEL conv_gather64_##T(ARGUMENTS(T)) { gather_in_tiles(GIVEN); } \
    DIRECT(T, 1)                                                            \
    DIRECT(T, 4)
CONV(f32)
CONV(f16)
CONV(bf16)
CONV(f8e4m3)
CONV(f8e5m2)
CONV(f64)
TILES(f32, 128)
TILES(f16, 128)
TILES(bf16, 128)
