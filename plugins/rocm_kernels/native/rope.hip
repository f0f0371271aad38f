// Rotary position embeddings.  Semantics: core's propolis/ops/rope.py.  A position outside the
// tables gives zeros, and nothing outside is read.
#include "propolis_elementwise.h"

// The tables, and which pairs are rotated: `half` of them; elements behind are copied.
struct Tables {
    const f32* cos;
    const f32* sin;
    i64 rows;
    i64 half;
    i64 row_stride[2];
    i64 stride[2];
};

// One thread: N pairs, or 2 * N elements to copy.  `units` of those make a head of `dim` elements.
template <int N, bool interleaved, class T, class P>
PROPOLIS_FN void rope(i64 heads, i64 dim, T* out, const T* x, i64 stride, const P* positions,
                      const Tables& tables, const Strided2& s) {
    typedef Compute<T> C;
    const i64 rotated = tables.half / N;
    const i64 units = rotated + (dim - 2 * tables.half + 2 * N - 1) / (2 * N);
    const Span span = span_of(1);
    for (i64 i = span.first; i < heads * units; i += span.step) {
        const i64 head = i / units;
        const i64 unit = i - head * units;
        const Offsets<2> at = locate(s, head);
        const T* from = x + at.at[0];
        T* to = out + head * dim;
        if (unit >= rotated) {
            const i64 start = 2 * (tables.half + (unit - rotated) * N);
            const i64 end = start + 2 * N < dim ? start + 2 * N : dim;
            for (i64 j = start; j < end; ++j) to[j] = from[j * stride];
            continue;
        }
        const i64 pair = unit * N;
        const i64 first = interleaved ? 2 * pair : pair;
        const i64 second = interleaved ? 2 * pair + N : pair + tables.half;
        Pack<T, N> a, b;
        if constexpr (N > 1) {
            a = load_pack<N>(from + first);
            b = load_pack<N>(from + second);
        } else {
            a.at[0] = from[first * stride];
            b.at[0] = from[second * stride];
        }
        T in[2][N], result[2][N];
#pragma unroll
        for (int k = 0; k < N; ++k) {
            in[0][k] = interleaved ? (2 * k < N ? a.at[2 * k % N] : b.at[2 * k % N]) : a.at[k];
            in[1][k] = interleaved && N > 1
                           ? (2 * k < N ? a.at[(2 * k + 1) % N] : b.at[(2 * k + 1) % N])
                           : b.at[k];
        }
        const i64 position = positions[at.at[1]];
        const bool known = position >= 0 && position < tables.rows;
#pragma unroll
        for (int k = 0; k < N; ++k) {
            C cosine = 0, sine = 0;
            if (known) {
                cosine = tables.cos[position * tables.row_stride[0] + (pair + k) * tables.stride[0]];
                sine = tables.sin[position * tables.row_stride[1] + (pair + k) * tables.stride[1]];
            }
            const C u = wide(in[0][k]), v = wide(in[1][k]);
            result[0][k] = narrow<T>(known ? u * cosine - v * sine : 0);
            result[1][k] = narrow<T>(known ? u * sine + v * cosine : 0);
        }
#pragma unroll
        for (int k = 0; k < N; ++k) {
            if (interleaved && N > 1) {
                a.at[k] = result[k % 2][k / 2];
                b.at[k] = result[k % 2][N / 2 + k / 2];
            } else {
                a.at[k] = result[0][k];
                b.at[k] = result[1][k];
            }
        }
        store_pack<N>(to + first, a);
        store_pack<N>(to + second, b);
    }
}

// Packs of PACK_BYTES where pairs and addresses allow; the host counts on it for `blocks` alone.
template <bool interleaved, class T, class P>
PROPOLIS_FN void rope_any(i64 heads, i64 dim, bool packed, T* out, const T* x, i64 stride,
                          const P* positions, const Tables& tables, const Strided2& s) {
    constexpr int N = pack_of(sizeof(T), true);
    if (packed && aligned<N>(out) && aligned<N>(x)) {
        rope<N, interleaved>(heads, dim, out, x, stride, positions, tables, s);
    } else {
        rope<1, interleaved>(heads, dim, out, x, stride, positions, tables, s);
    }
}

#define ROPE(T, P, name, interleaved)                                                            \
    PROPOLIS_KERNEL rope_##name##_##T##_##P(                                                     \
        T* out, const T* x, const P* positions, const f32* cos, const f32* sin, i64 heads,       \
        i64 dim, i64 stride, i64 rows, i64 half, i64 cos_row, i64 sin_row, i64 cos_stride,       \
        i64 sin_stride, i32 packed, Strided2 s) {                                                \
        const Tables tables = {cos, sin, rows, half, {cos_row, sin_row}, {cos_stride, sin_stride}}; \
        rope_any<interleaved>(heads, dim, packed != 0, out, x, stride, positions, tables, s);    \
    }
#define ROPES(T)                            \
    ROPE(T, i32, half, false)               \
    ROPE(T, i64, half, false)               \
    ROPE(T, i32, interleaved, true)         \
    ROPE(T, i64, interleaved, true)
ROPES(f64)
ROPES(f32)
ROPES(f16)
ROPES(bf16)
ROPES(f8e4m3)
ROPES(f8e5m2)
