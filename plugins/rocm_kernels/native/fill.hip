// Copies, constants and sequences.  Semantics: core's propolis/ops/fill.py.  Copies move elements
// as they are, so one kernel serves all dtypes of a size.
#include "propolis_convert.h"
#include "propolis_elementwise.h"
#include "propolis_turned.h"

// -- copies --------------------------------------------------------------------------------------

template <class T>
PROPOLIS_FN void copy_strided(i64 n, T* out, const T* x, const Strided2& s) {
    constexpr int N = PACK_BYTES / sizeof(T);
    const Span span = span_of(1);
    const i64 to = s.strides[0][s.rank - 1];
    const i64 from = s.strides[1][s.rank - 1];
    if (s.run >= N && to == 1 && aligned<N>(out) && row_aligned<N>(x, from)) {
        for (i64 i = span.first; i < n / N; i += span.step) {
            const Offsets<2> at = locate(s, i * N);
            store_pack<N>(out + at.at[0], load_row<N>(x + at.at[1], from));
        }
        return;
    }
    for (i64 i = span.first; i < n; i += span.step) {
        const Offsets<2> at = locate(s, i);
        out[at.at[0]] = x[at.at[1]];
    }
}

#define COPY(size, T)                                                                       \
    PROPOLIS_KERNEL fill_copy_b##size(T* out, const T* x, i64 n) {                          \
        map<false>(n, out, x, [](T v) { return v; });                                       \
    }                                                                                       \
    PROPOLIS_KERNEL fill_copy_b##size##_strided(T* out, const T* x, i64 n, Strided2 s) {    \
        copy_strided(n, out, x, s);                                                         \
    }                                                                                       \
    PROPOLIS_KERNEL fill_copy_b##size##_turned(T* out, const T* x, i64 rows, i64 columns,   \
                                               i64 out_row, i64 x_row, i64 packs_in,        \
                                               i64 packs_out, i64 first, Strided2 s) {      \
        copy_turned<TURNED_SIDE_B##size>(out, x, rows, columns, out_row, x_row, packs_in != 0, \
                                         packs_out != 0, first, s);                         \
    }
COPY(1, u8)
COPY(2, u16)
COPY(4, u32)
COPY(8, u64)

// cache[b, positions[b, t]] = x[b, t], walked in the order of x: cache (without its positions),
// x, positions.  A position outside the cache is not written.
template <class T, class P>
PROPOLIS_FN void kv_append(i64 n, T* cache, const T* x, const P* positions, i64 stride,
                           i64 capacity, const Strided3& s) {
    constexpr int N = PACK_BYTES / sizeof(T);
    const Span span = span_of(1);
    const int last = s.rank - 1;
    const bool rows = s.strides[0][last] == 1 && s.strides[1][last] == 1 && stride % N == 0;
    const bool packed = rows && s.run >= N && aligned<N>(cache) && aligned<N>(x);
    const int step = packed ? N : 1;
    for (i64 i = span.first; i < n / step; i += span.step) {
        const Offsets<3> at = locate(s, i * step);
        const i64 position = positions[at.at[2]];
        if (position < 0 || position >= capacity) continue;
        T* to = cache + at.at[0] + position * stride;
        if (packed) {
            store_pack<N>(to, load_pack<N>(x + at.at[1]));
        } else {
            *to = x[at.at[1]];
        }
    }
}

#define KV_APPEND(size, T, P)                                                                  \
    PROPOLIS_KERNEL fill_kv_append_b##size##_##P(T* cache, const T* x, const P* positions,     \
                                                 i64 n, i64 stride, i64 capacity, Strided3 s) { \
        kv_append(n, cache, x, positions, stride, capacity, s);                                \
    }
KV_APPEND(1, u8, i32)
KV_APPEND(2, u16, i32)
KV_APPEND(4, u32, i32)
KV_APPEND(8, u64, i32)
KV_APPEND(1, u8, i64)
KV_APPEND(2, u16, i64)
KV_APPEND(4, u32, i64)
KV_APPEND(8, u64, i64)

// -- constants and sequences ---------------------------------------------------------------------

template <class T>
PROPOLIS_FN void fill(i64 n, T* target, T value) {
    constexpr int N = PACK_BYTES / sizeof(T);
    Pack<T, N> pack;
    for (int k = 0; k < N; ++k) pack.at[k] = value;
    const i64 packs = aligned<N>(target) ? n / N : 0;
    const Span span = span_of(1);
    for (i64 i = span.first; i < packs; i += span.step) store_pack<N>(target + i * N, pack);
    for (i64 i = packs * N + span.first; i < n; i += span.step) target[i] = value;
}

#define FILL(size, T)                                                                       \
    PROPOLIS_KERNEL fill_fill_b##size(T* target, i64 n, u64 bits) { fill(n, target, (T)bits); } \
    PROPOLIS_KERNEL fill_fill_b##size##_strided(T* target, i64 n, u64 bits, Strided s) {    \
        const Span span = span_of(1);                                                       \
        for (i64 i = span.first; i < n; i += span.step) target[locate(s, i).at[0]] = (T)bits; \
    }
FILL(1, u8)
FILL(2, u16)
FILL(4, u32)
FILL(8, u64)

// Numbers of a sequence are computed in f64, of integers in u64, and rounded once.
#define ARANGE(T, C)                                                                        \
    PROPOLIS_KERNEL fill_arange_##T(T* target, i64 n, C start, C step, i64 first, Strided s) { \
        const Span span = span_of(1);                                                       \
        for (i64 i = span.first; i < n; i += span.step) {                                   \
            target[locate(s, i).at[0]] = convert<T>((C)(start + (C)(first + i) * step));    \
        }                                                                                   \
    }
ARANGE(f64, f64)
ARANGE(f32, f64)
ARANGE(f16, f64)
ARANGE(bf16, f64)
ARANGE(f8e4m3, f64)
ARANGE(f8e5m2, f64)
ARANGE(u8, u64)
ARANGE(u32, u64)
ARANGE(i8, u64)
ARANGE(i16, u64)
ARANGE(i32, u64)
ARANGE(i64, u64)
