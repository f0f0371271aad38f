// Interpolation by filters.  Semantics: core's propolis/ops/upsample.py.  Places, and how far elements
// are from the middle of a filter, are computed in f64: in f32 what an edge cuts off could be another
// element.  Weights and sums are in f32, of f64 in f64.
#include "propolis_images.h"

// [0] is of rows, [1] of columns.
struct Filters {
    i64 strides[2];            // of x
    i64 size[2];               // of x
    f64 ratio[2], start[2];    // element i of the result lies at i * ratio + start of x
    f64 reach[2];              // of a filter, on both sides
    f64 step[2];               // from element to element of x, in widths of the filter
    i32 cubic;                 // else triangles
    i32 cut;                   // filters end at the image's edge; else the edge is repeated
};

// Elements of x, from `first` to before `end`, that a filter covers; the first one's place in it.
template <class C>
struct Covered {
    i64 first, end;
    C at, step;
};
template <class C>
PROPOLIS_FN Covered<C> covered_by(const Filters& f, int d, i64 i) {
    const f64 size = (f64)f.size[d];
    f64 middle = (f64)i * f.ratio[d] + f.start[d];
    if (!f.cut) {  // so far outside there is nothing but the edge
        middle = middle < -2 ? -2 : middle;
        middle = middle > size + 1 ? size + 1 : middle;
    }
    f64 first = math::floor(middle - f.reach[d] + 1);
    f64 end = math::floor(middle + f.reach[d] + 1);
    if (f.cut) {
        first = first < 0 ? 0 : first < size ? first : size;
        end = end < size ? end : size;
    }
    return Covered<C>{(i64)first, (i64)end, (C)((first - middle) * f.step[d]), (C)f.step[d]};
}

// The filter's height so far from its middle.
template <class C>
PROPOLIS_FN C height_at(const Filters& f, C x) {
    x = math::fabs(x);
    if (!f.cubic) return x < 1 ? 1 - x : 0;
    const C a = f.cut ? (C)-0.5 : (C)-0.75;  // Keys (1981)
    const C near = ((a + 2) * x - (a + 3)) * x * x + 1;
    const C far = (((x - 5) * x + 8) * x - 4) * a;
    return x < 1 ? near : x < 2 ? far : (C)0;
}

// f(place, weight) of all that is covered, outside the edge's; the sum of weights, which is about 1.
template <class C, class F>
PROPOLIS_FN C each_covered(const Filters& filters, int d, const Covered<C>& covered, F f) {
    const i64 last = filters.size[d] - 1;
    C total = 0;
    C number = 0;
    for (i64 i = covered.first; i < covered.end; ++i, number += 1) {
        const C weight = height_at(filters, covered.at + number * covered.step) * covered.step;
        f(i < 0 ? 0 : i < last ? i : last, weight);
        total += weight;
    }
    return total;
}

template <class T>
PROPOLIS_FN void resize(T* out, const T* x, i64 n, i64 width, const Filters& filters,
                        const Strided3& s) {
    typedef Compute<T> C;
    each_element<1>(out, n, width, s, [&](const Offsets<3>& at) {
        const Covered<C> rows = covered_by<C>(filters, 0, at.at[1]);
        const Covered<C> columns = covered_by<C>(filters, 1, at.at[2]);
        const T* image = x + at.at[0];
        C sum = 0;
        C across = 0;
        const C down = each_covered(filters, 0, rows, [&](i64 i, C weight) {
            const T* row = image + i * filters.strides[0];
            C blend = 0;
            across = each_covered(filters, 1, columns, [&](i64 j, C own) {
                blend += own * wide(row[j * filters.strides[1]]);
            });
            sum += weight * blend;
        });
        const C total = down * across;
        return narrow<T>(total == 0 ? sum : sum / total);
    });
}

#define RESIZE(T)                                                                                \
    PROPOLIS_KERNEL upsample_filters_##T(T* out, const T* x, i64 n, i64 width, Filters filters, \
                                         Strided3 s) {                                          \
        resize(out, x, n, width, filters, s);                                                   \
    }
RESIZE(f64)
RESIZE(f32)
RESIZE(f16)
RESIZE(bf16)
RESIZE(f8e4m3)
RESIZE(f8e5m2)
