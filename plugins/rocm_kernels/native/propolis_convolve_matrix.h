// Convolutions of images on matrix instructions: products of weights, a row for each output channel, and of
// windows, whose depth is all channels of the first tap, then of the next.  So both lie in memory with their
// channels last, eight of which are copied at once, and images with their padding around them.
#pragma once

#include "propolis_matrix_product.h"

// All of a convolution but its tensors; [0] is of rows, [1] of columns.
struct ConvTiles {
    i64 bias;           // its stride
    i64 plane;          // outputs of a channel of an image, of which windows may be a part
    i32 outs, windows;  // output channels; windows of an image
    i32 all;            // and of all images
    i32 columns;        // windows of a row
    i32 channels;       // a multiple of eight
    i32 steps;          // of K, that each of those has who share the depth
    i32 size[2];        // with the padding
    i32 kernel[2], stride[2], dilation[2];
};

// Images as they are, and their padding.
struct ConvImages {
    i64 strides[4];  // image, channel, row, column
    i64 blocks;      // of 64 places of all images; behind them, blocks of places that are padding
    i32 channels, size[2];
    i32 before[2], padded[2];  // padding above and to the left; sizes with all of it
    i32 packs;                 // whether eight places are read at once
};

// Weights as they are.
struct ConvWeights {
    i64 strides[4];  // output channel, channel, row, column
    i32 outs, channels, rows, columns;
};

// Of a product out(outs, all): the place of a number in (images, outs, plane).
PROPOLIS_FN i64 place_of(i32 outs, i32 windows, i64 plane, i32 row, i32 column) {
    const i32 image = (i32)((u32)column / (u32)windows);
    return ((i64)image * outs + row) * plane + (column - image * windows);
}

#if PROPOLIS_FRAGMENTS

// The windows' part of a tile, which a thread copies eight channels at a time of (see Panel).
template <class T, int SIDE, int K>
struct WindowPanel {
    static constexpr int APART = GROUPED<K> ? DEPTHS : K + GAP;
    static constexpr int WIDE = K / COPIED;
    static constexpr int BELOW = BLOCK / WIDE;
    static constexpr int PACKS = SIDE / BELOW;
    static_assert(SIDE % BELOW == 0, "WindowPanel: threads have unequal shares");
    const T* x;       // where the thread's channels of the next stage are, of a window at the image's begin
    i32 from[PACKS];  // where its windows begin
    i32 place;
    i32 channel, column, rest;  // of the next stage; taps from that on
    i32 channels, columns, right, down;  // from a tap to the next, and to the next row of taps
#if !defined(PROPOLIS_MMA)
    Coming<T> coming[PACKS];
#endif

    // From window `first` and depth k on.
    PROPOLIS_METHOD WindowPanel(const T* images, const ConvTiles& s, i32 first, i32 k) {
        const i32 below = (i32)thread_x() / WIDE, along = (i32)thread_x() % WIDE * COPIED;
        place = GROUPED<K> ? place_of_pack(below, along / COPIED) : below * APART + along;
#pragma unroll
        for (int p = 0; p < PACKS; ++p) {
            i32 window = first + below + p * BELOW;
            if (window >= s.all) window = s.all - 1;  // whatever it is: nobody stores it
            const i32 image = window / s.windows;
            const i32 within = window - image * s.windows;
            const i32 i = within / s.columns, j = within - i * s.columns;
            from[p] = ((image * s.size[0] + i * s.stride[0]) * s.size[1] + j * s.stride[1]) * s.channels;
        }
        channels = s.channels;
        columns = s.kernel[1];
        right = (s.dilation[1] - 1) * channels;
        down = (s.dilation[0] * s.size[1] - s.dilation[1] * (columns - 1) - 1) * channels;
        k += along;
        const i32 tap = k / channels;
        const i32 row = tap / columns;
        channel = k - tap * channels;
        column = tap - row * columns;
        rest = s.kernel[0] * columns - tap;
        const i32 at = (row * s.dilation[0] * s.size[1] + column * s.dilation[1]) * channels;
        x = images + (rest > 0 ? at + channel : 0);
    }
    PROPOLIS_METHOD void next() {
        channel += K;
        x += K;
        while (channel >= channels) {
            channel -= channels;
            --rest;
            const bool end = ++column == columns;
            column = end ? 0 : column;
            x += end ? down : right;
        }
    }
#if defined(PROPOLIS_MMA)
    PROPOLIS_METHOD void copy(T* to, const T* any) {
        const bool there = rest > 0;
        const T* at = there ? x : any;
#pragma unroll
        for (int p = 0; p < PACKS; ++p) {
            copy_async(to + place + p * BELOW * APART, at + from[p], there ? 16 : 0);
        }
        next();
    }
#else
    PROPOLIS_METHOD void fetch(const T* any) {
        const bool there = rest > 0;
        const T* at = there ? x : any;
#pragma unroll
        for (int p = 0; p < PACKS; ++p) coming[p].load(at + from[p], there);
        next();
    }
    PROPOLIS_METHOD void put(T* to) const {
#pragma unroll
        for (int p = 0; p < PACKS; ++p) coming[p].store(to + place + p * BELOW * APART);
    }
#endif
};

// `parts` are sums in f32 by (part, output channel, window), where several share the depth; else null, and
// `out` is (images, output channels, windows).
template <int M, int N, int K, class T>
PROPOLIS_FN void convolve_in_fragments(T* out, f32* parts, const T* x, const T* w, const T* bias,
                                       const ConvTiles& s, i64 first, int stages) {
    PROPOLIS_DYNAMIC_SHARED(T, bytes);
    T* shared = operands_at<K>(bytes);
    const i32 down = (s.outs + M - 1) / M;
    const i32 along = (s.all + N - 1) / N;
    const i64 block = first + block_x();
    const i32 part = (i32)(block / ((i64)down * along));
    const TilePlace place = tile_place(block - (i64)part * down * along, down, along);
    const i32 i0 = (i32)place.i * M, j0 = (i32)place.j * N;
    const i32 depth = s.kernel[0] * s.kernel[1] * s.channels;
    const i32 start = part * s.steps * K;
    const i32 rest = (depth - start + K - 1) / K;
    Panel<T, M, K, false> left(w + start, i0, s.outs, depth - start, depth);
    WindowPanel<T, N, K> right(x, s, j0, start);
    WarpTile<M, N, GROUPED<K>> own;
    multiply_panels<M, N, K, false>(own, left, right, shared, rest < s.steps ? rest : s.steps, stages, w, x);
    if (parts) {
        store_rows(own, shared, parts + (i64)part * s.outs * s.all, s.all, i0, j0, s.outs, s.all);
        return;
    }
    if (bias) {  // loaded before anything is stored, lest each wait for the one before
        own.raise([&](int i, int) { return i0 + i < s.outs ? wide(bias[(i0 + i) * s.bias]) : 0.0f; });
    }
    const bool whole = s.windows % COPIED == 0 && s.plane % COPIED == 0 && aligned<COPIED>(out);
    own.template each_pack<T>(shared, [&](int i, int j, const Pack<T, COPIED>& pack) {
        const i32 row = i0 + i, column = j0 + j;
        if (row >= s.outs) return;
        if (whole) {
            store_run(out + place_of(s.outs, s.windows, s.plane, row, column), pack, s.all - column, true);
            return;
        }
        // Neighbours may be of two images.
#pragma unroll
        for (int k = 0; k < COPIED; ++k) {
            if (column + k < s.all) out[place_of(s.outs, s.windows, s.plane, row, column + k)] = pack.at[k];
        }
    });
}
#endif

// The sums of all parts, COUNT neighbouring windows of an image a thread.
template <int COUNT, class T>
PROPOLIS_FN void join_parts(T* out, const f32* parts, const T* bias, i64 bias_step, i32 outs, i32 windows,
                            i64 plane, i32 all, i32 count) {
    const i64 size = (i64)outs * all;
    const i64 at = ((i64)block_x() * BLOCK + thread_x()) * COUNT;
    if (at >= size) return;
    const i32 row = (i32)(at / all), column = (i32)(at - (i64)row * all);
    const Pack<f32, COUNT> sums = sum_of_parts<COUNT>(parts + at, size, count);
    const f32 more = bias ? wide(bias[row * bias_step]) : 0.0f;
    Pack<T, COUNT> pack;
#pragma unroll
    for (int k = 0; k < COUNT; ++k) pack.at[k] = narrow<T>(sums.at[k] + more);
    store_pack<COUNT>(out + place_of(outs, windows, plane, row, column), pack);
}

// -- channels last -------------------------------------------------------------------------------

// A place of an image with its padding, of the `which`-th place that is padding.
PROPOLIS_FN i64 padding_place(const ConvImages& s, i64 which) {
    const i64 columns = s.padded[1];
    const i64 above = s.before[0] * columns;
    if (which < above) return which;
    which -= above;
    const i64 beside = columns - s.size[1];
    if (which >= beside * s.size[0]) return which - beside * s.size[0] + above + s.size[0] * columns;
    const i64 row = which / beside;
    const i64 column = which - row * beside;
    return above + row * columns + column + (column < s.before[1] ? 0 : s.size[1]);
}

// Images of any strides as (image, row, column, channel), with rows and columns of zeros around, and zeros for
// channels that make up a multiple of eight.  A block has 64 channels of 64 places.
PROPOLIS_FN void turn_images(u16* out, const u16* x, const ConvImages& s, i64 first) {
    __shared__ u32 turned[TURNED][TURNED / 2 + 1];  // by channel; odd, so that columns are of all banks
    const i64 filled = (s.channels + RUN - 1) / RUN * RUN;
    const i32 along = (s.channels + TURNED - 1) / TURNED;
    const i64 places = (i64)s.size[0] * s.size[1];
    const i64 columns = s.padded[1];
    const i64 padded = s.padded[0] * columns;
    const i64 block = first + block_x();
    const i64 group = block / along;
    const i32 c0 = (i32)(block - group * along) * TURNED;
    constexpr int WIDE = TURNED / RUN;
    const bool outside = group >= s.blocks;
    const i64 count = outside ? padded - places : places;
    const i64 down = (count + TURNED - 1) / TURNED;
    const i64 own = outside ? group - s.blocks : group;
    const i64 image = own / down;
    const i64 p0 = (own - image * down) * TURNED;
    if (!outside) {
#pragma unroll
        for (int t = (int)thread_x(); t < TURNED * WIDE; t += BLOCK) {
            const int c = t / WIDE, p = t % WIDE * RUN;
            const u16* from = x + image * s.strides[0] + (i64)(c0 + c) * s.strides[1];
            const i64 there = c0 + c < s.channels ? places - p0 - p : 0;
            Pack<u16, RUN> pack = {};
            if (s.packs && there > 0) {
                pack = load_pack<RUN>(from + p0 + p);
            } else {
#pragma unroll
                for (int k = 0; k < RUN; ++k) {
                    if (k >= there) continue;
                    const i64 row = (p0 + p + k) / s.size[1], column = p0 + p + k - row * s.size[1];
                    pack.at[k] = from[row * s.strides[2] + column * s.strides[3]];
                }
            }
            const Pack<u32, RUN / 2> words = bits_as<Pack<u32, RUN / 2>>(pack);
#pragma unroll
            for (int k = 0; k < RUN / 2; ++k) turned[c][p / 2 + k] = words.at[k];
        }
        __syncthreads();
    }
#pragma unroll
    for (int t = (int)thread_x(); t < TURNED * WIDE; t += BLOCK) {
        const int p = t / WIDE, c = t % WIDE * RUN;
        if (p0 + p >= count || c0 + c >= filled) continue;
        Pack<u16, RUN> pack = {};
        i64 place;
        if (outside) {
            place = padding_place(s, p0 + p);
        } else {
            const i64 row = (p0 + p) / s.size[1], column = p0 + p - row * s.size[1];
            place = (row + s.before[0]) * columns + column + s.before[1];
#pragma unroll
            for (int k = 0; k < RUN; ++k) pack.at[k] = (u16)(turned[c + k][p / 2] >> p % 2 * 16);
        }
        store_pack<RUN>(out + ((image * padded + place) * filled + c0 + c), pack);
    }
}

// Weights (output channel, channel, row, column) of any strides as (output channel, row, column, channel).
PROPOLIS_FN void turn_weights(u16* out, const u16* w, const ConvWeights& s) {
    const i32 packs = (s.channels + RUN - 1) / RUN;
    const i64 at = (i64)block_x() * BLOCK + thread_x();
    i64 rest = at / packs;
    const i32 channel = (i32)(at - rest * packs) * RUN;
    const i64 tap = rest;
    rest = tap / s.columns;
    const i32 column = (i32)(tap - rest * s.columns);
    const i64 out_channel = rest / s.rows;
    const i32 row = (i32)(rest - out_channel * s.rows);
    if (out_channel >= s.outs) return;
    const u16* from = w + out_channel * s.strides[0] + row * s.strides[2] + column * s.strides[3];
    Pack<u16, RUN> pack;
#pragma unroll
    for (int k = 0; k < RUN; ++k) {
        const bool there = channel + k < s.channels;
        const u16 weight = from[(there ? channel + k : 0) * s.strides[1]];
        pack.at[k] = there ? weight : (u16)0;
    }
    store_pack<RUN>(out + at * RUN, pack);
}
