// Rows and elements by index.  Semantics: core's propolis/ops/indexing.py.  An id outside the
// dimension reads as a masked one, 0, and writes nothing.
#include "propolis_elementwise.h"
#include "propolis_ids.h"

// -- reading: out[i] = x[id * stride] for each place i, walked as x (without the dimension), ids --

template <class Out, class In, class F>
PROPOLIS_FN void take(i64 n, Out* out, const In* x, const void* ids, i32 kind, i64 size,
                      i64 stride, const Strided2& s, F f) {
    constexpr int N = pack_of(larger(sizeof(Out), sizeof(In)), true);
    const Span span = span_of(1);
    const int last = s.rank - 1;
    const bool rows = s.strides[0][last] == 1 && s.strides[1][last] == 0 && stride % N == 0;
    if (rows && s.run >= N && aligned<N>(out) && aligned<N>(x)) {
        for (i64 i = span.first; i < n / N; i += span.step) {
            const Offsets<2> at = locate(s, i * N);
            const i64 id = load_id(ids, kind, at.at[1]);
            Pack<Out, N> result = {};
            if (inside(id, size)) {
                const Pack<In, N> in = load_pack<N>(x + at.at[0] + id * stride);
#pragma unroll
                for (int k = 0; k < N; ++k) result.at[k] = f(in.at[k]);
            }
            store_pack<N>(out + i * N, result);
        }
        return;
    }
    for (i64 i = span.first; i < n; i += span.step) {
        const Offsets<2> at = locate(s, i);
        const i64 id = load_id(ids, kind, at.at[1]);
        out[i] = inside(id, size) ? f(x[at.at[0] + id * stride]) : Out{};
    }
}

#define TAKE(name, Out, In, f)                                                               \
    PROPOLIS_KERNEL indexing_take_##name(Out* out, const In* x, const u8* ids, i64 n,        \
                                         i64 size, i64 stride, i32 kind, Strided2 s) {       \
        take(n, out, x, ids, kind, size, stride, s, f);                                      \
    }
#define TAKE_BYTES(size, T) TAKE(b##size, T, T, [](T v) { return v; })
TAKE_BYTES(1, u8)
TAKE_BYTES(2, u16)
TAKE_BYTES(4, u32)
TAKE_BYTES(8, u64)

template <class To, class From>
PROPOLIS_FN To rounded(From x) {
    if constexpr (sizeof(From) == 8 && sizeof(To) < 4) {
        return narrow<To>(odd_f32(x));
    } else {
        return narrow<To>((Compute<To>)wide(x));
    }
}
#define TAKE_AS(In, Out) \
    TAKE(In##_##Out, Out, In, [](In v) { return (rounded<Out>(v)); })
#define TAKE_AS_OTHERS(In, A, B, C, D, E) \
    TAKE_AS(In, A)                        \
    TAKE_AS(In, B)                        \
    TAKE_AS(In, C)                        \
    TAKE_AS(In, D)                        \
    TAKE_AS(In, E)
TAKE_AS_OTHERS(f64, f32, f16, bf16, f8e4m3, f8e5m2)
TAKE_AS_OTHERS(f32, f64, f16, bf16, f8e4m3, f8e5m2)
TAKE_AS_OTHERS(f16, f64, f32, bf16, f8e4m3, f8e5m2)
TAKE_AS_OTHERS(bf16, f64, f32, f16, f8e4m3, f8e5m2)
TAKE_AS_OTHERS(f8e4m3, f64, f32, f16, bf16, f8e5m2)
TAKE_AS_OTHERS(f8e5m2, f64, f32, f16, bf16, f8e4m3)

// -- writing: lines along the dimension, each with `count` ids; walked as target, ids, source -----
//
// Who names an element first, for sums, or last, for copies, writes it, with all that the others
// have: in order and without atomics, so equal inputs give equal bits.  It looks through all ids of
// its line, which neighbours share.  Where that would take too long, one thread goes along a line.

struct Lines {
    const void* ids;
    i32 kind;
    i64 count;
    i64 size;
    i64 stride[3];  // along the dimension: of target, ids, source
};

PROPOLIS_FN i64 id_of(const Lines& l, i64 at, i64 j) {
    return load_id(l.ids, l.kind, at + j * l.stride[1]);
}

template <class T>
PROPOLIS_FN void scatter(T* target, const T* source, i64 lines, const Lines& l, bool serial,
                         const Strided3& s) {
    const Span span = span_of(1);
    if (serial) {
        for (i64 line = span.first; line < lines; line += span.step) {
            const Offsets<3> at = locate(s, line);
            for (i64 j = 0; j < l.count; ++j) {
                const i64 id = id_of(l, at.at[1], j);
                if (!inside(id, l.size)) continue;
                target[at.at[0] + id * l.stride[0]] = source[at.at[2] + j * l.stride[2]];
            }
        }
        return;
    }
    for (i64 i = span.first; i < lines * l.count; i += span.step) {
        const i64 j = i / lines;
        const Offsets<3> at = locate(s, i - j * lines);
        const i64 id = id_of(l, at.at[1], j);
        bool mine = inside(id, l.size);
        for (i64 k = j + 1; mine && k < l.count; ++k) mine = id_of(l, at.at[1], k) != id;
        if (mine) target[at.at[0] + id * l.stride[0]] = source[at.at[2] + j * l.stride[2]];
    }
}

template <class T>
PROPOLIS_FN void scatter_add(T* target, const T* source, i64 lines, const Lines& l, bool serial,
                             const Strided3& s) {
    typedef Unsigned<Compute<T>> C;
    const Span span = span_of(1);
    if (serial) {
        for (i64 line = span.first; line < lines; line += span.step) {
            const Offsets<3> at = locate(s, line);
            for (i64 j = 0; j < l.count; ++j) {
                const i64 id = id_of(l, at.at[1], j);
                if (!inside(id, l.size)) continue;
                T& one = target[at.at[0] + id * l.stride[0]];
                one = narrow<T>((Compute<T>)((C)wide(one) +
                                             (C)wide(source[at.at[2] + j * l.stride[2]])));
            }
        }
        return;
    }
    for (i64 i = span.first; i < lines * l.count; i += span.step) {
        const i64 j = i / lines;
        const Offsets<3> at = locate(s, i - j * lines);
        const i64 id = id_of(l, at.at[1], j);
        bool mine = inside(id, l.size);
        for (i64 k = 0; mine && k < j; ++k) mine = id_of(l, at.at[1], k) != id;
        if (!mine) continue;
        T& one = target[at.at[0] + id * l.stride[0]];
        C sum = (C)wide(one);
        for (i64 k = j; k < l.count; ++k) {
            if (id_of(l, at.at[1], k) == id) sum += (C)wide(source[at.at[2] + k * l.stride[2]]);
        }
        one = narrow<T>((Compute<T>)sum);
    }
}

#define WRITE(op, name, T)                                                                      \
    PROPOLIS_KERNEL indexing_##op##_##name(                                                     \
        T* target, const u8* ids, const T* source, i64 lines, i64 count, i64 size,              \
        i64 target_stride, i64 ids_stride, i64 source_stride, i32 kind, i32 serial, Strided3 s) { \
        const Lines l = {ids, kind, count, size, {target_stride, ids_stride, source_stride}};   \
        op(target, source, lines, l, serial != 0, s);                                           \
    }
WRITE(scatter, b1, u8)
WRITE(scatter, b2, u16)
WRITE(scatter, b4, u32)
WRITE(scatter, b8, u64)
WRITE(scatter_add, f64, f64)
WRITE(scatter_add, f32, f32)
WRITE(scatter_add, f16, f16)
WRITE(scatter_add, bf16, bf16)
WRITE(scatter_add, f8e4m3, f8e4m3)
WRITE(scatter_add, f8e5m2, f8e5m2)
WRITE(scatter_add, u8, u8)
WRITE(scatter_add, u32, u32)
WRITE(scatter_add, i8, i8)
WRITE(scatter_add, i16, i16)
WRITE(scatter_add, i32, i32)
WRITE(scatter_add, i64, i64)
