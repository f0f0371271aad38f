// How elementwise kernels walk their tensors.  Contiguous: packs of up to 16 bytes, several in
// flight a thread, neighbours of a warp side by side.  Strided: dimensions that the host has
// collapsed; where rows are whole packs, these are loaded at once too (a broadcast bias, a slice).
#pragma once

#include "propolis_device.h"

// -- strided layouts -----------------------------------------------------------------------------

// K tensors walked together, in elements; the last dimension is the innermost.  Filled in by
// strided_of() of _layouts.py.  Dimension 0 needs no division, so no magic either.
template <int K>
struct StridedOf {
    i64 shape[MAX_RANK];
    u64 magic[MAX_RANK];  // i / shape[d] is the high half of i * magic[d], shifted
    i64 strides[K][MAX_RANK];
    i32 shift[MAX_RANK];
    i32 rank;
    i32 run;  // so many neighbours (a power of two) lie in one row wherever a pack starts
};
typedef StridedOf<1> Strided;
typedef StridedOf<2> Strided2;
typedef StridedOf<3> Strided3;
typedef StridedOf<4> Strided4;

// A layout, or another structure, of the launch, read again where it is used: kept through a loop
// beside much else, it takes more scalar registers than there are.
template <class Layout>
PROPOLIS_FN const Layout& again(const Layout& layout) {
#if defined(PROPOLIS_AMD)
    int none = 0;
    asm volatile("" : "+s"(none));
    return (&layout)[none];
#else
    return layout;
#endif
}

PROPOLIS_FN u64 high_product(u64 a, u64 b) {
#if defined(__CUDACC__)
    return __umul64hi(a, b);
#else
    return (u64)((unsigned __int128)a * b >> 64);
#endif
}

template <int K>
struct Offsets {
    i64 at[K];
};

// Where element i, counted in row-major order, lies in each of the tensors.
template <int K>
PROPOLIS_FN Offsets<K> locate(const StridedOf<K>& s, i64 i) {
    Offsets<K> offsets = {};
    for (int d = s.rank - 1; d > 0; --d) {
        const i64 rest = (i64)(high_product((u64)i, s.magic[d]) >> s.shift[d]);
        const i64 index = i - rest * s.shape[d];
        for (int k = 0; k < K; ++k) offsets.at[k] += index * s.strides[k][d];
        i = rest;
    }
    for (int k = 0; k < K; ++k) offsets.at[k] += i * s.strides[k][0];
    return offsets;
}

// N elements of one row: at once where they are neighbours, once where they are one element.
template <int N, class T>
PROPOLIS_FN Pack<T, N> load_row(const T* from, i64 stride) {
    if (stride == 1) return load_pack<N>(from);
    Pack<T, N> pack;
    if (stride == 0) {
        const T one = *from;
        for (int k = 0; k < N; ++k) pack.at[k] = one;
    } else {
        for (int k = 0; k < N; ++k) pack.at[k] = from[k * stride];
    }
    return pack;
}

template <int N, class T>
PROPOLIS_FN bool row_aligned(const T* at, i64 stride) {
    return stride != 1 || aligned<N>(at);
}

// -- how much a thread does at once --------------------------------------------------------------

PROPOLIS_FN constexpr int smaller(int a, int b) { return a < b ? a : b; }
PROPOLIS_FN constexpr int larger(int a, int b) { return a > b ? a : b; }

// Elements of a pack of the largest type.  Functions of many instructions are inlined for each
// element, so those take fewer.
PROPOLIS_FN constexpr int pack_of(int largest, bool heavy) {
    return smaller(PACK_BYTES / largest, heavy ? HEAVY_PACK : PACK_BYTES);
}
PROPOLIS_FN constexpr int packs_of(bool heavy) { return heavy ? 1 : UNROLLED; }  // of two inputs

// A kernel's loop over i, `step` threads apart: `base` is the first of this thread's `unroll`.
struct Span {
    i64 first;
    i64 step;
};
PROPOLIS_FN Span span_of(int unroll) {
    return Span{(i64)block_x() * (BLOCK * unroll) + thread_x(),
                (i64)blocks_x() * (BLOCK * unroll)};
}

// -- one input -----------------------------------------------------------------------------------

template <bool heavy, class Out, class In, class F>
PROPOLIS_FN void map(i64 n, Out* out, const In* x, F f) {
    constexpr int N = pack_of(larger(sizeof(Out), sizeof(In)), heavy);
    const i64 packs = aligned<N>(out) && aligned<N>(x) ? n / N : 0;
    const Span span = span_of(1);
    if constexpr (heavy) {
        // One pack is computed while the next one is on its way; the host sees to it that a
        // thread of a large tensor has several.
        i64 i = span.first;
        if (i < packs) {
            Pack<In, N> next = load_pack<N>(x + i * N);
#pragma unroll 1
            for (bool more = true; more;) {
                const Pack<In, N> in = next;
                const i64 at = i;
                i += span.step;
                more = i < packs;
                if (more) next = load_pack<N>(x + i * N);
                Pack<Out, N> result;
#pragma unroll
                for (int k = 0; k < N; ++k) result.at[k] = f(in.at[k]);
                store_pack<N>(out + at * N, result);
            }
        }
    } else {
        constexpr int U = UNROLLED;
        const Span wide_span = span_of(U);
        for (i64 i = wide_span.first; i < packs; i += wide_span.step) {
            Pack<In, N> in[U];
#pragma unroll
            for (int u = 0; u < U; ++u) {
                const i64 j = i + u * BLOCK;
                if (j < packs) in[u] = load_pack<N>(x + j * N);
            }
#pragma unroll
            for (int u = 0; u < U; ++u) {
                const i64 j = i + u * BLOCK;
                Pack<Out, N> result;
#pragma unroll
                for (int k = 0; k < N; ++k) result.at[k] = f(in[u].at[k]);
                if (j < packs) store_pack<N>(out + j * N, result);
            }
        }
    }
    for (i64 i = packs * N + span.first; i < n; i += span.step) out[i] = f(x[i]);
}

template <bool heavy, class Out, class In, class F>
PROPOLIS_FN void map_strided(i64 n, Out* out, const In* x, const Strided& s, F f) {
    constexpr int N = pack_of(larger(sizeof(Out), sizeof(In)), heavy);
    const Span span = span_of(1);
    const i64 inner = s.strides[0][s.rank - 1];
    if (N > 1 && s.run >= N && aligned<N>(out) && row_aligned<N>(x, inner)) {
        for (i64 i = span.first; i < n / N; i += span.step) {
            const Pack<In, N> in = load_row<N>(x + locate(s, i * N).at[0], inner);
            Pack<Out, N> result;
#pragma unroll
            for (int k = 0; k < N; ++k) result.at[k] = f(in.at[k]);
            store_pack<N>(out + i * N, result);
        }
        return;
    }
    for (i64 i = span.first; i < n; i += span.step) out[i] = f(x[locate(s, i).at[0]]);
}

// -- two inputs ----------------------------------------------------------------------------------

template <bool heavy, class Out, class In, class F>
PROPOLIS_FN void map(i64 n, Out* out, const In* a, const In* b, F f) {
    constexpr int N = pack_of(larger(sizeof(Out), sizeof(In)), heavy);
    constexpr int U = packs_of(heavy);
    const i64 packs = aligned<N>(out) && aligned<N>(a) && aligned<N>(b) ? n / N : 0;
    const Span wide_span = span_of(U);
    for (i64 i = wide_span.first; i < packs; i += wide_span.step) {
        Pack<In, N> left[U], right[U];
#pragma unroll
        for (int u = 0; u < U; ++u) {
            const i64 j = i + u * BLOCK;
            if (j < packs) left[u] = load_pack<N>(a + j * N);
            if (j < packs) right[u] = load_pack<N>(b + j * N);
        }
#pragma unroll
        for (int u = 0; u < U; ++u) {
            const i64 j = i + u * BLOCK;
            Pack<Out, N> result;
#pragma unroll
            for (int k = 0; k < N; ++k) result.at[k] = f(left[u].at[k], right[u].at[k]);
            if (j < packs) store_pack<N>(out + j * N, result);
        }
    }
    const Span span = span_of(1);
    for (i64 i = packs * N + span.first; i < n; i += span.step) out[i] = f(a[i], b[i]);
}

template <bool heavy, class Out, class In, class F>
PROPOLIS_FN void map_strided(i64 n, Out* out, const In* a, const In* b, const Strided2& s, F f) {
    constexpr int N = pack_of(larger(sizeof(Out), sizeof(In)), heavy);
    const Span span = span_of(1);
    const i64 inner_a = s.strides[0][s.rank - 1];
    const i64 inner_b = s.strides[1][s.rank - 1];
    if (N > 1 && s.run >= N && aligned<N>(out) && row_aligned<N>(a, inner_a) &&
        row_aligned<N>(b, inner_b)) {
        for (i64 i = span.first; i < n / N; i += span.step) {
            const Offsets<2> at = locate(s, i * N);
            const Pack<In, N> left = load_row<N>(a + at.at[0], inner_a);
            const Pack<In, N> right = load_row<N>(b + at.at[1], inner_b);
            Pack<Out, N> result;
#pragma unroll
            for (int k = 0; k < N; ++k) result.at[k] = f(left.at[k], right.at[k]);
            store_pack<N>(out + i * N, result);
        }
        return;
    }
    for (i64 i = span.first; i < n; i += span.step) {
        const Offsets<2> at = locate(s, i);
        out[i] = f(a[at.at[0]], b[at.at[1]]);
    }
}
