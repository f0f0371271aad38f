// Convolutions as products: rows of weights, one for each output channel, times windows of an image.
// Both have an element for each channel and tap of the kernel, the last tap first to change, and who
// goes through them carries over from tap to row of taps to channel: there is no division on the way.
//
// A transposed convolution is one of several kinds of output, `phases`: elements a stride apart see
// the same taps, and are windows with a stride of 1, which go through the input backwards.
#pragma once

#include "propolis_elementwise.h"
#include "propolis_tile.h"

// All of a convolution but its tensors; [0] is of rows, [1] of columns.
struct ConvShape {
    i64 x[3];        // strides: channel, row, column
    i64 w[4];        // output channel, channel, row, column
    i64 bias;
    i64 depth;       // channels * taps, if one stride leads from each to the next
    i64 outs;        // output channels of a group
    i32 channels;    // of x, in a group
    i32 transposed;  // 0 or 1
    i32 size[2];     // of x
    i32 out[2];
    i32 kernel[2], stride[2], padding[2], dilation[2];
    i32 skip[2];     // transposed: every so-manieth tap meets an element of x
};

// One dimension of those windows whose outputs are of one kind.
struct Axis {
    i32 count;                // windows
    i32 first, apart;         // window i gives output element first + i * apart
    i32 step, start, spread;  // its tap t sees input element i * step + start + t * spread
    i32 taps, tap, skip;      // which is tap + t * skip of the kernel
};

PROPOLIS_FN Axis axis_of(const ConvShape& s, int d, i32 phase) {
    if (!s.transposed) {
        return Axis{s.out[d], 0, 1, s.stride[d], -s.padding[d], s.dilation[d], s.kernel[d], 0, 1};
    }
    const i32 stride = s.stride[d];
    Axis axis{(s.out[d] - phase + stride - 1) / stride, phase, stride, 1, 0, 0, 0, 0, s.skip[d]};
    for (i32 tap = 0; tap < s.kernel[d] && tap < axis.skip; ++tap) {
        const i32 from = phase + s.padding[d] - tap * s.dilation[d];
        if (from % stride) continue;
        axis.tap = tap;
        axis.taps = (s.kernel[d] - tap + axis.skip - 1) / axis.skip;
        axis.start = from / stride;
        axis.spread = -(i32)((i64)axis.skip * s.dilation[d] / stride);
        break;
    }
    return axis;
}

// How many kinds of output there are along a dimension, and windows of one, at most.
PROPOLIS_FN i32 phases_of(const ConvShape& s, int d) {
    return s.transposed ? (s.stride[d] < s.out[d] ? s.stride[d] : s.out[d]) : 1;
}
PROPOLIS_FN i64 windows_of(const ConvShape& s, int d) {
    return s.transposed ? (s.out[d] - 1) / s.stride[d] + 1 : s.out[d];
}

// -- the third dimension -------------------------------------------------------------------------

// A video is done plane by plane of the output, as images are; the taps of a kernel from plane to plane
// count among its channels, of which ConvShape then has `kernel` times as many.
struct ConvPlanes {
    i64 x, w;  // strides
    i32 size, out, kernel, stride, padding, dilation;
};

// What one plane of the output is made of.
struct Frames {
    const ConvPlanes& p;
    i32 start;  // the first tap sees this plane of the input
};
struct Flat {};  // of images
template <class Depth>
constexpr bool is_deep = true;
template <>
constexpr bool is_deep<Flat> = false;

PROPOLIS_FN Frames frames_of(const ConvPlanes& p, i64 batch) {
    return Frames{p, (i32)(batch % p.out) * p.stride - p.padding};
}
PROPOLIS_FN Flat frames_of(Flat flat, i64) { return flat; }

// Where a channel begins, in the image and in the weights of an output channel.
struct Channel {
    bool there;  // in the image
    i64 x, w;
};
PROPOLIS_FN Channel channel_of(const ConvShape& s, Flat, i32 channel) {
    return Channel{channel < s.channels, channel * s.x[0], channel * s.w[1]};
}
PROPOLIS_FN Channel channel_of(const ConvShape& s, const Frames& frames, i32 channel) {
    const ConvPlanes& p = again(frames.p);
    const i32 whole = (i32)((u32)channel / (u32)p.kernel);
    const i32 tap = channel - whole * p.kernel;
    const i32 plane = frames.start + tap * p.dilation;
    const bool there = channel < s.channels && (u32)plane < (u32)p.size;
    return Channel{there, whole * s.x[0] + plane * p.x, whole * s.w[1] + tap * p.w};
}

// Where the outputs of an image and group, or of a plane of them, begin; and how far channels are apart.
struct Outputs {
    i64 start, apart;
};
PROPOLIS_FN Outputs outputs_of(const ConvShape& s, Flat, i64 batch) {
    const i64 n = (i64)s.out[0] * s.out[1];
    return Outputs{batch * s.outs * n, n};
}
PROPOLIS_FN Outputs outputs_of(const ConvShape& s, const Frames& frames, i64 batch) {
    const ConvPlanes& p = again(frames.p);
    const i64 n = (i64)s.out[0] * s.out[1];
    const i64 image = batch / p.out;
    return Outputs{(image * s.outs * p.out + (batch - image * p.out)) * n, p.out * n};
}

// -- elements along the depth of a product -------------------------------------------------------

// Where one stands.
struct Tap {
    i32 channel, row, column;
};
PROPOLIS_FN Tap tap_of(const Axis& rows, const Axis& columns, i32 k) {
    const u32 row = (u32)k / (u32)columns.taps;
    const u32 channel = row / (u32)rows.taps;
    return Tap{(i32)channel, (i32)(row - channel * rows.taps), (i32)(k - row * columns.taps)};
}
PROPOLIS_FN Tap further(const Axis& rows, const Axis& columns, Tap at, const Tap& by) {
    at.column += by.column;
    at.row += by.row;
    at.channel += by.channel;
    const bool next_row = at.column >= columns.taps;
    at.column -= next_row ? columns.taps : 0;
    at.row += next_row ? 1 : 0;
    const bool next_channel = at.row >= rows.taps;
    at.row -= next_channel ? rows.taps : 0;
    at.channel += next_channel ? 1 : 0;
    return at;
}

// -- windows of an image -------------------------------------------------------------------------

// Row i is window i, of one image and group.  Where `marked`, the image has nothing outside where
// that is so (transposed), elsewhere zeros.
template <class T, bool marked, class Depth = Flat>
struct Windows {
    const T* x;
    const ConvShape& s;
    const Axis &rows, &columns;
    Depth frames;
    Tap by;  // of one step

    typedef Compute<T> C;
    PROPOLIS_METHOD Windows(const T* x, const ConvShape& s, const Axis& rows, const Axis& columns,
                            int step, const Depth& frames = Depth{})
        : x(x), s(s), rows(rows), columns(columns), frames(frames), by() {
        if (rows.taps && columns.taps) by = tap_of(rows, columns, step);
    }
    PROPOLIS_METHOD bool across() const { return true; }
};
template <class T>
constexpr bool has_absent<Windows<T, true>> = true;

template <class T, bool marked, class Depth>
struct Walk<Windows<T, marked, Depth>> {
    const Windows<T, marked, Depth>& w;
    Tap at;
    i32 row, column;  // of the input, that the first tap of the first window sees
    i32 rest;         // windows in its row, from the first on
    i32 there;        // of the run

    typedef Compute<T> C;
    PROPOLIS_METHOD Walk(const Windows<T, marked, Depth>& w, i64 window, i64 k)
        : w(w), at(tap_of(w.rows, w.columns, (i32)k)) {
        const i64 i = window / w.columns.count;
        const i32 j = (i32)(window - i * w.columns.count);
        row = (i32)i * w.rows.step + w.rows.start;
        column = j * w.columns.step + w.columns.start;
        rest = w.columns.count - j;
        const i64 after = (w.rows.count - i) * w.columns.count - j;
        there = after < RUN ? (i32)after : RUN;
    }
    PROPOLIS_METHOD void deeper(int) { at = further(w.rows, w.columns, at, w.by); }
    PROPOLIS_METHOD void fetch(C (&run)[RUN]) const {
        const ConvShape& s = marked || is_deep<Depth> ? again(w.s) : w.s;
        const Channel channel = channel_of(s, w.frames, at.channel);
        const i32 count = channel.there ? there : 0;
        const C nothing = marked && s.transposed ? absent<C>() : (C)0;
        i32 i = row + at.row * w.rows.spread;
        i32 j = column + at.column * w.columns.spread;
        i32 left = anew(rest);
        i64 from = channel.x + i * s.x[1] + j * s.x[2];
        const i32 back = w.columns.count * w.columns.step;
        const i64 step = w.columns.step * s.x[2];
        const i64 over = w.rows.step * s.x[1] - back * s.x[2];
#pragma unroll
        for (int e = 0; e < RUN; ++e) {
            const bool inside = e < count && (u32)i < (u32)s.size[0] && (u32)j < (u32)s.size[1];
            // Without a branch: what is outside reads the first element, and does not take it.
            C value = wide(w.x[inside ? from : 0]);
            if constexpr (marked) value = math::is_nan(value) ? (C)PROPOLIS_NAN : value;
            run[e] = inside ? value : nothing;
            const bool end = --left == 0;
            i += end ? w.rows.step : 0;
            j += w.columns.step - (end ? back : 0);
            from += step + (end ? over : 0);
            left = end ? w.columns.count : left;
        }
    }
};

// -- taps of any strides -------------------------------------------------------------------------

// Row o is what output channel o has for each channel and tap that matters.
template <class T>
struct Taps {
    const T* w;
    const ConvShape& s;
    const Axis &rows, &columns;
    Tap by;

    typedef Compute<T> C;
    PROPOLIS_METHOD Taps(const T* w, const ConvShape& s, const Axis& rows, const Axis& columns,
                         const Tap& by)
        : w(w + rows.tap * s.w[2] + columns.tap * s.w[3]), s(s), rows(rows), columns(columns),
          by(by) {}
    PROPOLIS_METHOD bool across() const { return false; }
};

template <class T>
struct Walk<Taps<T>> {
    const Taps<T>& w;
    i64 out;
    Tap at;

    typedef Compute<T> C;
    PROPOLIS_METHOD Walk(const Taps<T>& w, i64 out, i64 k)
        : w(w), out(out), at(tap_of(w.rows, w.columns, (i32)k)) {}
    PROPOLIS_METHOD void deeper(int) { at = further(w.rows, w.columns, at, w.by); }
    PROPOLIS_METHOD void fetch(C (&run)[RUN]) const {
        const ConvShape& s = again(w.s);
        const i64 row = w.rows.skip * s.w[2];
        const i64 column = w.columns.skip * s.w[3];
        Tap to = at;
#pragma unroll
        for (int e = 0; e < RUN; ++e) {
            const bool inside = out < s.outs && to.channel < s.channels;
            const i64 from = out * s.w[0] + to.channel * s.w[1] + to.row * row + to.column * column;
            const C value = wide(w.w[inside ? from : 0]);
            run[e] = inside ? value : (C)0;
            to = further(w.rows, w.columns, to, Tap{0, 0, 1});
        }
    }
};

// -- where outputs go ----------------------------------------------------------------------------

// (channels, rows, columns) of which rows and columns are `apart`; the bias is of a channel.
template <class T>
struct Scattered {
    T* out;
    const T* bias;  // or null
    i64 channel;    // from one to the next
    const ConvShape& s;
    const Axis &rows, &columns;
};

template <class T>
PROPOLIS_FN void store_sums(const Scattered<T>& to, i64 channel, i64 window,
                            const Compute<T>* sum) {
    const i64 i = window / to.columns.count;
    const i64 j = window - i * to.columns.count;
    if (channel >= to.s.outs || i >= to.rows.count) return;
    Compute<T> value = *sum;
    if (to.bias) value += wide(to.bias[channel * to.s.bias]);
    const i64 row = channel * to.channel + (to.rows.first + i * to.rows.apart) * to.s.out[1];
    to.out[row + to.columns.first + j * to.columns.apart] = narrow<T>(value);
}
