// Reductions.  Where the reduced elements are neighbours
// a warp or a block takes an output ("rows"), where the outputs are, a thread does ("columns").  Few
// outputs of many elements are split among blocks; the last of them merges what all have found, in
// an order that does not depend on which it is.
#pragma once

#include "propolis_accumulate.h"
#include "propolis_elementwise.h"

// Elements [begin, end) of those that one output is made of, shared by `threads` threads: where
// they lie one after the other, U packs at once.
template <class R, int threads, class T>
PROPOLIS_FN typename R::A along_run(const T* x, i64 begin, i64 end) {
    constexpr int N = PACK_BYTES / sizeof(T);
    // An element and its place take many scalar registers while they are compared.
    constexpr bool few = R::placed && sizeof(T) >= 4;  // elements of a pack, all of which may be passed over
    constexpr int U = R::placed && !few ? 1 : few || sizeof(T) == 1 ? 2 : 4;
    const int lane = (int)(thread_x() % threads);
    const i64 packs = (end - begin) / N;
    const T* from = x + begin;
    typename R::A a = R::identity();
#pragma unroll 1
    for (i64 p = lane; p < packs; p += threads * U) {
        Pack<T, N> in[U];
#pragma unroll
        for (int u = 0; u < U; ++u) {
            if (p + u * threads < packs) in[u] = load_pack<N>(from + (p + u * threads) * N);
        }
#pragma unroll
        for (int u = 0; u < U; ++u) {
            const i64 i = (p + u * threads) * N;
            if (p + u * threads >= packs) continue;
            if constexpr (few) {  // most packs of a row have nothing that counts
                if (R::beats_none(a, in[u])) continue;
            }
            add_pack<R, N>(a, in[u], begin + i);
        }
    }
    const i64 rest = begin + packs * N + lane;
    if (rest < end) R::add(a, x[rest], rest);  // less than a pack is left
    return a;
}

template <class R, int threads, class T>
PROPOLIS_FN typename R::A along(const T* x, i64 begin, i64 end, const Strided& inner) {
    constexpr int N = PACK_BYTES / sizeof(T);
    const i64 step = inner.strides[0][inner.rank - 1];
    if (inner.rank == 1 && step == 1 && aligned<N>(x)) return along_run<R, threads>(x, begin, end);
    const int lane = (int)(thread_x() % threads);
    typename R::A a = R::identity();
    if (step == 1 && inner.run >= N && aligned<N>(x)) {
#pragma unroll 1
        for (i64 i = begin + lane * N; i < end; i += threads * N) {
            add_pack<R, N>(a, load_pack<N>(x + locate(again(inner), i).at[0]), i);
        }
    } else {
#pragma unroll 1
        for (i64 i = begin + lane; i < end; i += threads) {
            R::add(a, x[locate(again(inner), i).at[0]], i);
        }
    }
    return a;
}

template <class R>
PROPOLIS_FN void reduce_warps(typename R::Out* out, const typename R::In* x, i64 outputs, i64 n,
                              i64 extra, const Strided& kept, const Strided& inner) {
    constexpr int warps = BLOCK / PROPOLIS_WARP;
    for (i64 o = (i64)block_x() * warps + warp_of_block(); o < outputs;
         o += (i64)blocks_x() * warps) {
        const auto a =
            warp_merge<R>(along<R, PROPOLIS_WARP>(x + locate(again(kept), o).at[0], 0, n, inner));
        if (lane_of_warp() == 0) out[o] = R::finish(a, n, extra);
    }
}

// Blocks that share an output have neighbouring numbers.
template <class R>
PROPOLIS_FN void reduce_blocks(typename R::Out* out, const typename R::In* x, u32* scratch,
                               i64 outputs, i64 n, i64 chunk, i64 extra, i32 splits,
                               const Strided& kept, const Strided& inner) {
    typedef typename R::A A;
    for (i64 i = block_x(); i < outputs * splits; i += blocks_x()) {
        const i64 o = i / splits;
        const i64 begin = (i - o * splits) * chunk;
        const i64 end = begin + chunk < n ? begin + chunk : n;
        A a = along<R, BLOCK>(x + locate(again(kept), o).at[0], begin, end, inner);
        a = block_merge<R>(a);
        if (splits > 1) {
            A* parts = partials<A>(scratch) + o * splits;
            if (thread_x() == 0) parts[i - o * splits] = a;
            if (!last_to_come(scratch + o, (u32)splits)) continue;
            a = R::identity();
            for (int k = (int)thread_x(); k < splits; k += BLOCK) {
                a = R::merge(a, parts[k]);
            }
            a = block_merge<R>(a);
        }
        if (thread_x() == 0) out[o] = R::finish(a, n, extra);
    }
}

// Packs of V outputs side by side (of integers one at a time: columns of theirs are rare), COLUMN_LANES of a block, each shared by SHARERS threads.
constexpr int SHARERS = BLOCK / COLUMN_LANES;

// Elements of a pack: each has an accumulator, and 16 or 8 of bytes do not all stay in registers.
template <class T>
constexpr int WIDTH = sizeof(T) < 2 ? BYTE_COLUMNS : PACK_BYTES / sizeof(T);

// Each element of a pack to its own output.
template <class R, int V, class A>
PROPOLIS_FN void add_each(A* a, Pack<typename R::In, V> pack, i64 index) {
#pragma unroll
    for (int v = 0; v < V; ++v) R::add(a[v], pack.at[v], index);
}

template <class R, int V>
PROPOLIS_FN void reduce_columns(typename R::Out* out, const typename R::In* x, u32* scratch,
                                i64 outputs, i64 n, i64 chunk, i64 extra, i32 splits,
                                const Strided& kept, const Strided& inner) {
    typedef typename R::A A;
    typedef typename R::In T;
    // What is compared with its place, or widened from f8, takes the most registers.
    constexpr int U = R::placed ? 1 : sizeof(T) > 1 ? 4 : is_float<T> ? 1 : 2;
    __shared__ A shared[SHARERS][COLUMN_LANES];
    const int lane = (int)thread_x() % COLUMN_LANES;
    const int sharer = (int)thread_x() / COLUMN_LANES;
    const bool flat = inner.rank == 1;
    const i64 step = inner.strides[0][0];
    const i64 begin = block_y() * chunk;
    const i64 end = begin + chunk < n ? begin + chunk : n;
    const i64 tiles = (outputs + COLUMN_LANES * V - 1) / (COLUMN_LANES * V);
    for (i64 tile = block_x(); tile < tiles; tile += blocks_x()) {
        const i64 o = (tile * COLUMN_LANES + lane) * V;
        const bool there = o < outputs;
        const T* from = x + locate(again(kept), there ? o : 0).at[0];
        A a[V];
#pragma unroll
        for (int v = 0; v < V; ++v) a[v] = R::identity();
        const i64 stop = there ? end : begin;
        if (flat) {
#pragma unroll 1
            for (i64 j = begin + sharer; j < stop; j += SHARERS * U) {
                Pack<T, V> in[U];
#pragma unroll
                for (int u = 0; u < U; ++u) {
                    const i64 k = j + u * SHARERS;
                    if (k < stop) in[u] = load_pack<V>(from + k * step);
                }
#pragma unroll
                for (int u = 0; u < U; ++u) {
                    const i64 k = j + u * SHARERS;
                    if (k < stop) add_each<R, V>(a, in[u], k);
                }
            }
        } else {
#pragma unroll 1
            for (i64 k = begin + sharer; k < stop; k += SHARERS) {
                add_each<R, V>(a, load_pack<V>(from + locate(again(inner), k).at[0]), k);
            }
        }
        A* parts = partials<A>(scratch);
#pragma unroll
        for (int v = 0; v < V; ++v) {
            __syncthreads();  // what was shared before is read
            shared[sharer][lane] = a[v];
            __syncthreads();
            if (sharer == 0 && there) {
                A all = shared[0][lane];
                for (int k = 1; k < SHARERS; ++k) all = R::merge(all, shared[k][lane]);
                if (splits > 1) {
                    parts[block_y() * outputs + o + v] = all;
                } else {
                    out[o + v] = R::finish(all, n, extra);
                }
            }
        }
        if (splits > 1 && last_to_come(scratch + tile, (u32)splits)) {
            const i64 next = (tile + 1) * COLUMN_LANES * V;
            const i64 last = outputs < next ? outputs : next;
            for (i64 c = tile * COLUMN_LANES * V + thread_x(); c < last; c += BLOCK) {
                A all = R::identity();
                for (i64 k = 0; k < splits; ++k) all = R::merge(all, parts[k * outputs + c]);
                out[c] = R::finish(all, n, extra);
            }
        }
    }
}

#define REDUCE_COLUMNS(module, op, R, T, name, V)                                                \
    PROPOLIS_KERNEL module##_##op##_##T##_##name(                                                \
        R<T>::Out* out, const T* x, u32* scratch, i64 outputs, i64 n, i64 extra, i64 chunk,      \
        i32 splits, Strided kept, Strided inner) {                                               \
        reduce_columns<R<T>, V>(out, x, scratch, outputs, n, chunk, extra, splits, kept, inner); \
    }
#define REDUCE(module, op, R, T)                                                                 \
    PROPOLIS_KERNEL module##_##op##_##T##_warps(R<T>::Out* out, const T* x, i64 outputs, i64 n,  \
                                              i64 extra, Strided kept, Strided inner) {          \
        reduce_warps<R<T>>(out, x, outputs, n, extra, kept, inner);                              \
    }                                                                                            \
    PROPOLIS_KERNEL module##_##op##_##T##_blocks(                                                \
        R<T>::Out* out, const T* x, u32* scratch, i64 outputs, i64 n, i64 extra, i64 chunk,      \
        i32 splits, Strided kept, Strided inner) {                                               \
        reduce_blocks<R<T>>(out, x, scratch, outputs, n, chunk, extra, splits, kept, inner);     \
    }                                                                                            \
    REDUCE_COLUMNS(module, op, R, T, columns, 1)
#define REDUCE_FLOAT(module, op, R, T) \
    REDUCE(module, op, R, T)           \
    REDUCE_COLUMNS(module, op, R, T, packs, WIDTH<T>)
#define REDUCE_FLOATS(module, op, R)    \
    REDUCE_FLOAT(module, op, R, f64)    \
    REDUCE_FLOAT(module, op, R, f32)    \
    REDUCE_FLOAT(module, op, R, f16)    \
    REDUCE_FLOAT(module, op, R, bf16)   \
    REDUCE_FLOAT(module, op, R, f8e4m3) \
    REDUCE_FLOAT(module, op, R, f8e5m2)
#define REDUCE_ALL(module, op, R)  \
    REDUCE_FLOATS(module, op, R)   \
    REDUCE(module, op, R, u8)      \
    REDUCE(module, op, R, u32)     \
    REDUCE(module, op, R, i8)      \
    REDUCE(module, op, R, i16)     \
    REDUCE(module, op, R, i32)     \
    REDUCE(module, op, R, i64)
