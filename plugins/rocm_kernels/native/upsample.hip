// Interpolation to a size.  Semantics: core's propolis/ops/upsample.py.  Places are computed in whole
// numbers, exactly; blends in f32, of f64 in f64.
#include "propolis_images.h"

// Element i of the result lies at (i * step + start) / by of x, not before its first; [0] is of rows,
// [1] of columns.
struct Scale {
    i64 strides[2];  // of x
    i64 last[2];     // element of x
    i64 step[2], start[2], by[2];
    u64 magic[2];
    i32 shift[2];
};

struct Source {
    i64 low, rest;  // whole, and parts
};
PROPOLIS_FN Source source_of(const Scale& s, int d, i64 i) {
    i64 place = i * s.step[d] + s.start[d];
    place = place > 0 ? place : 0;
    const i64 low = divided(place, s.magic[d], s.shift[d]);
    return Source{low, place - low * s.by[d]};
}

template <class T>
PROPOLIS_FN void nearest(T* out, const T* x, i64 n, i64 width, const Scale& scale,
                         const Strided3& s) {
    constexpr int N = pack_of(sizeof(T), true);
    each_element<N>(out, n, width, s, [&](const Offsets<3>& at) {
        const i64 row = source_of(scale, 0, at.at[1]).low;
        const i64 column = source_of(scale, 1, at.at[2]).low;
        return x[at.at[0] + row * scale.strides[0] + column * scale.strides[1]];
    });
}

template <class C>
PROPOLIS_FN C blend(C low, C high, C share) {
    return low * (1 - share) + high * share;
}

template <class T>
PROPOLIS_FN void bilinear(T* out, const T* x, i64 n, i64 width, const Scale& scale,
                          const Strided3& s) {
    typedef Compute<T> C;
    each_element<1>(out, n, width, s, [&](const Offsets<3>& at) {
        const Source row = source_of(scale, 0, at.at[1]);
        const Source column = source_of(scale, 1, at.at[2]);
        const i64 down = row.low < scale.last[0] ? scale.strides[0] : 0;
        const i64 along = column.low < scale.last[1] ? scale.strides[1] : 0;
        const T* from = x + at.at[0] + row.low * scale.strides[0] + column.low * scale.strides[1];
        const C share = (C)row.rest / (C)scale.by[0];
        const C left = blend(wide(from[0]), wide(from[down]), share);
        const C right = blend(wide(from[along]), wide(from[down + along]), share);
        return narrow<T>(blend(left, right, (C)column.rest / (C)scale.by[1]));
    });
}

#define NEAREST(size, T)                                                                       \
    PROPOLIS_KERNEL upsample_nearest_b##size(T* out, const T* x, i64 n, i64 width, Scale scale, \
                                             Strided3 s) {                                     \
        nearest(out, x, n, width, scale, s);                                                   \
    }
#define BILINEAR(T)                                                                            \
    PROPOLIS_KERNEL upsample_bilinear_##T(T* out, const T* x, i64 n, i64 width, Scale scale,   \
                                          Strided3 s) {                                        \
        bilinear(out, x, n, width, scale, s);                                                  \
    }
NEAREST(1, u8)
NEAREST(2, u16)
NEAREST(4, u32)
NEAREST(8, u64)
BILINEAR(f64)
BILINEAR(f32)
BILINEAR(f16)
BILINEAR(bf16)
BILINEAR(f8e4m3)
BILINEAR(f8e5m2)
