// Pooling.  Semantics: core's propolis/ops/pool.py; sums are in f32, of f64 in f64.
#include "propolis_convert.h"
#include "propolis_images.h"

// Windows of a volume; [0] is of planes, [1] of rows, [2] of columns.  Where `adaptive`, `out` of them
// share the size, and nothing else counts.
struct PoolShape {
    i64 strides[3];  // of x
    i64 size[3], kernel[3], stride[3], padding[3], dilation[3];
    i64 out[3];
    u64 magic[3];  // to divide by `out`
    i32 shift[3];
    i32 adaptive;
};

// One dimension of a window: places first + i * dilation, i < count.
struct Reach {
    i64 first, count;
};
PROPOLIS_FN Reach reach_of(const PoolShape& shape, int d, i64 i) {
    const PoolShape& w = again(shape);
    if (!w.adaptive) return Reach{i * w.stride[d] - w.padding[d], w.kernel[d]};
    const i64 first = divided(i * w.size[d], w.magic[d], w.shift[d]);
    const i64 end = divided((i + 1) * w.size[d] + w.out[d] - 1, w.magic[d], w.shift[d]);
    return Reach{first, end - first};
}
PROPOLIS_FN bool within(const PoolShape& w, int d, i64 place) {
    return (u64)place < (u64)w.size[d];
}

// f(value) for each element of x in the window at `at`: x, plane, row and column.
template <class T, class F>
PROPOLIS_FN void each_tap(const T* x, const PoolShape& shape, const Offsets<4>& at, F f) {
    const Reach planes = reach_of(shape, 0, at.at[1]);
    const Reach rows = reach_of(shape, 1, at.at[2]);
    const Reach columns = reach_of(shape, 2, at.at[3]);
    const PoolShape& w = again(shape);
    for (i64 h = 0; h < planes.count; ++h) {
        const i64 plane = planes.first + h * w.dilation[0];
        if (!within(w, 0, plane)) continue;
        for (i64 i = 0; i < rows.count; ++i) {
            const i64 row = rows.first + i * w.dilation[1];
            if (!within(w, 1, row)) continue;
            const T* from = x + at.at[0] + plane * w.strides[0] + row * w.strides[1];
            for (i64 j = 0; j < columns.count; ++j) {
                const i64 column = columns.first + j * w.dilation[2];
                if (within(w, 2, column)) f(from[column * w.strides[2]]);
            }
        }
    }
}

// Of a window's elements along a dimension those before the end of the padding.
PROPOLIS_FN i64 padded(const PoolShape& w, int d, i64 i) {
    const Reach reach = reach_of(w, d, i);
    const i64 left = again(w).size[d] + again(w).padding[d] - reach.first;
    return reach.count < left ? reach.count : left;
}

template <class T>
PROPOLIS_FN void average(T* out, const T* x, i64 n, i64 width, bool padding, const PoolShape& w,
                         const Strided4& s) {
    typedef Compute<T> C;
    each_element<1>(out, n, width, s, [&](const Offsets<4>& at) {
        C sum = 0;
        i64 count = 0;
        each_tap(x, w, at, [&](T value) {
            sum += wide(value);
            ++count;
        });
        if (padding) {
            count = padded(w, 0, at.at[1]) * padded(w, 1, at.at[2]) * padded(w, 2, at.at[3]);
        }
        return narrow<T>(sum / (C)count);
    });
}

template <class T>
PROPOLIS_FN Compute<T> least() {
    if constexpr (is_float<T>) {
        return -(Compute<T>)PROPOLIS_INF;
    } else {
        return Limits<T>::low;
    }
}

template <class T>
PROPOLIS_FN void largest(T* out, const T* x, i64 n, i64 width, const PoolShape& w,
                         const Strided4& s) {
    typedef Compute<T> C;
    each_element<1>(out, n, width, s, [&](const Offsets<4>& at) {
        C most = least<T>();
        each_tap(x, w, at, [&](T element) {
            const C value = wide(element);
            most = value > most || math::is_nan(value) ? value : most;
        });
        return narrow<T>(most);
    });
}

#define MAX(T)                                                                                 \
    PROPOLIS_KERNEL pool_max_##T(T* out, const T* x, i64 n, i64 width, PoolShape w,          \
                                 Strided4 s) {                                                 \
        largest(out, x, n, width, w, s);                                                       \
    }
#define BOTH(T)                                                                                \
    PROPOLIS_KERNEL pool_avg_##T(T* out, const T* x, i64 n, i64 width, i64 padding,            \
                                 PoolShape w, Strided4 s) {                                  \
        average(out, x, n, width, padding != 0, w, s);                                         \
    }                                                                                          \
    MAX(T)
BOTH(f64)
BOTH(f32)
BOTH(f16)
BOTH(bf16)
BOTH(f8e4m3)
BOTH(f8e5m2)
MAX(u8)
MAX(u32)
MAX(i8)
MAX(i16)
MAX(i32)
MAX(i64)
