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

// A head is worked on in units: of N pairs, and behind those that are rotated of 2 * N elements.
template <int N>
PROPOLIS_FN i64 units_of(i64 dim, i64 half) {
    return half / N + (dim - 2 * half + 2 * N - 1) / (2 * N);
}

// The same bits where nothing changes.
template <class T>
PROPOLIS_FN void put(T* to, T value) {
    *to = value;
}
template <class O>
PROPOLIS_FN void put(O* to, f32 value) {
    *to = narrow<O>(value);
}
PROPOLIS_FN void put(f32* to, f32 value) { *to = value; }

template <int N, class O, class T>
PROPOLIS_FN void copy_unit(O* to, i64 to_stride, const T* from, i64 stride, i64 first, i64 dim) {
#pragma unroll
    for (int part = 0; part < 2; ++part, first += N) {
        if (first >= dim) continue;
        if constexpr (N > 1) {
            const Pack<T, N> pack = load_pack<N>(from + first);
            Pack<O, N> kept;
#pragma unroll
            for (int k = 0; k < N; ++k) put(kept.at + k, pack.at[k]);
            store_pack<N>(to + first, kept);
        } else {
            put(to + first * to_stride, from[first * stride]);
        }
    }
}

// One unit of a head, rotated or copied.  Packs have to be whole and aligned, at strides of 1.
template <int N, bool interleaved, class O, class T>
PROPOLIS_FN void turn_unit(O* to, i64 to_stride, const T* from, i64 stride, i64 unit, i64 dim,
                           i64 position, const Tables& tables) {
    typedef Compute<T> C;
    const i64 rotated = tables.half / N;
    if (unit >= rotated) {
        const i64 first = 2 * (tables.half + (unit - rotated) * N);
        copy_unit<N>(to, to_stride, from, stride, first, dim);
        return;
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
    T in[2][N];
    O result[2][N];
#pragma unroll
    for (int k = 0; k < N; ++k) {
        in[0][k] = interleaved ? (2 * k < N ? a.at[2 * k % N] : b.at[2 * k % N]) : a.at[k];
        in[1][k] = interleaved && N > 1
                       ? (2 * k < N ? a.at[(2 * k + 1) % N] : b.at[(2 * k + 1) % N])
                       : b.at[k];
    }
    const bool known = position >= 0 && position < tables.rows;
#pragma unroll
    for (int k = 0; k < N; ++k) {
        C cosine = 0, sine = 0;
        if (known) {
            cosine = tables.cos[position * tables.row_stride[0] + (pair + k) * tables.stride[0]];
            sine = tables.sin[position * tables.row_stride[1] + (pair + k) * tables.stride[1]];
        }
        const C u = wide(in[0][k]), v = wide(in[1][k]);
        result[0][k] = narrow<O>(known ? u * cosine - v * sine : 0);
        result[1][k] = narrow<O>(known ? u * sine + v * cosine : 0);
    }
    if constexpr (N > 1) {
        Pack<O, N> c, d;
#pragma unroll
        for (int k = 0; k < N; ++k) {
            c.at[k] = interleaved ? result[k % 2][k / 2] : result[0][k];
            d.at[k] = interleaved ? result[k % 2][N / 2 + k / 2] : result[1][k];
        }
        store_pack<N>(to + first, c);
        store_pack<N>(to + second, d);
    } else {
        to[first * to_stride] = result[0][0];
        to[second * to_stride] = result[1][0];
    }
}

// Packs of PACK_BYTES where pairs and addresses allow; the host counts on it for `blocks` alone.
template <int N, bool interleaved, class T, class P>
PROPOLIS_FN void rope(i64 heads, i64 dim, T* out, const T* x, i64 stride, const P* positions,
                      const Tables& tables, const Strided2& s) {
    const i64 units = units_of<N>(dim, tables.half);
    const Span span = span_of(1);
    for (i64 i = span.first; i < heads * units; i += span.step) {
        const i64 head = i / units;
        const Offsets<2> at = locate(s, head);
        turn_unit<N, interleaved>(out + head * dim, 1, x + at.at[0], stride, i - head * units, dim,
                                  positions[at.at[1]], tables);
    }
}

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

// -- into a cache ---------------------------------------------------------------------------------

struct Places {
    const i32* slots;
    const i32* positions;
    i64 stride;  // of the cache's slots
    i64 capacity;
};

// Heads of new tokens into a cache, `each` of a token, of which the first half, keys, are rotated.
// Walked in the order of x: x, cache (without its slots), slots, positions.  A slot outside the
// cache is not written.
template <int N, bool interleaved, class O, class T>
PROPOLIS_FN void append(i64 heads, i64 each, i64 dim, O* cache, i64 to_stride, const T* x,
                        i64 stride, const Places& places, const Tables& tables,
                        const Strided4& s) {
    const i64 units = units_of<N>(dim, tables.half);
    const Span span = span_of(1);
    for (i64 i = span.first; i < heads * units; i += span.step) {
        const i64 head = i / units, unit = i - head * units;
        const Offsets<4> at = locate(s, head);
        const i64 slot = places.slots[at.at[2]];
        if (slot < 0 || slot >= places.capacity) continue;
        O* to = cache + at.at[1] + slot * places.stride;
        const T* from = x + at.at[0];
        if (head % each < each / 2) {
            turn_unit<N, interleaved>(to, to_stride, from, stride, unit, dim,
                                      places.positions[at.at[3]], tables);
        } else {
            copy_unit<N>(to, to_stride, from, stride, 2 * N * unit, dim);
        }
    }
}

template <bool interleaved, class O, class T>
PROPOLIS_FN void append_any(i64 heads, i64 each, i64 dim, bool packed, O* cache, i64 to_stride,
                            const T* x, i64 stride, const Places& places, const Tables& tables,
                            const Strided4& s) {
    constexpr int N = pack_of(sizeof(f32), true);  // of 16 bits too: for more gfx90a has no registers
    if (packed && aligned<N>(cache) && aligned<N>(x)) {
        append<N, interleaved>(heads, each, dim, cache, 1, x, 1, places, tables, s);
    } else {
        append<1, interleaved>(heads, each, dim, cache, to_stride, x, stride, places, tables, s);
    }
}

#define APPEND(O, T, name, interleaved)                                                          \
    PROPOLIS_KERNEL rope_append_##name##_##T##_##O(                                              \
        O* cache, const T* x, const i32* slots, const i32* positions, const f32* cos,          \
        const f32* sin, i64 heads, i64 each, i64 dim, i64 to_stride, i64 stride, i64 slot_stride, \
        i64 capacity, i64 rows, i64 half, i64 cos_row, i64 sin_row, i64 cos_stride,              \
        i64 sin_stride, i32 packed, Strided4 s) {                                                \
        const Tables tables = {cos, sin, rows, half, {cos_row, sin_row}, {cos_stride, sin_stride}}; \
        const Places places = {slots, positions, slot_stride, capacity};                         \
        append_any<interleaved>(heads, each, dim, packed != 0, cache, to_stride, x, stride,      \
                                places, tables, s);                                              \
    }
#define APPENDS(O, T)         \
    APPEND(O, T, half, false) \
    APPEND(O, T, interleaved, true)
APPENDS(f32, f32)
APPENDS(f16, f32)
APPENDS(bf16, f32)
APPENDS(f16, f16)
APPENDS(bf16, bf16)
