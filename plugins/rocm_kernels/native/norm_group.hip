// Group normalisation.  Semantics: core's propolis/ops/norm.py.  A group is one run of memory:
// blocks find the moments of its chunks, and others, after them, merge these and write.
#include "propolis_accumulate.h"

// Chunk c of group g is block g * chunks + c.
template <class T>
PROPOLIS_FN void moments_of_chunks(u32* scratch, const T* x, i64 length, i64 chunk, i64 chunks) {
    constexpr int N = PACK_BYTES / sizeof(T);
    typedef Compute<T> C;
    const i64 group = block_x() / chunks;
    const i64 begin = (block_x() - group * chunks) * chunk;
    const i64 end = begin + chunk < length ? begin + chunk : length;
    const T* from = x + group * length;
    const i64 packs = aligned<N>(from + begin) ? (end - begin) / N : 0;
    Moments<C> a = Var<T>::identity();
#pragma unroll 1
    for (i64 p = thread_x(); p < packs; p += BLOCK) {
        const Pack<T, N> pack = load_pack<N>(from + begin + p * N);
        C sum = 0, squares = 0;
#pragma unroll
        for (int k = 0; k < N; ++k) sum += wide(pack.at[k]);
        const C mean = sum / N;
#pragma unroll
        for (int k = 0; k < N; ++k) {
            const C delta = wide(pack.at[k]) - mean;
            squares += delta * delta;
        }
        a = merged(a, Moments<C>{N, mean, squares});
    }
#pragma unroll 1
    for (i64 i = begin + packs * N + thread_x(); i < end; i += BLOCK) {
        Var<T>::add(a, from[i], 0);
    }
    a = block_merge<Var<T>>(a);
    if (thread_x() == 0) partials<Moments<C>>(scratch)[block_x()] = a;
}

template <bool silu, class T>
PROPOLIS_FN void write_chunks(T* out, const u32* scratch, const T* x, const T* weight,
                              const T* bias, i64 length, i64 chunk, i64 chunks, i64 groups,
                              i64 positions, Compute<T> eps) {
    constexpr int N = PACK_BYTES / sizeof(T);
    typedef Compute<T> C;
    const i64 group = block_x() / chunks;
    const Moments<C>* parts = partials<const Moments<C>>(scratch) + group * chunks;
    Moments<C> a = Var<T>::identity();
    for (i64 k = thread_x(); k < chunks; k += BLOCK) a = merged(a, parts[k]);
    a = block_merge<Var<T>>(a);
    const C scale = 1 / math::sqrt(a.squares / (C)length + eps);
    const C mean = a.mean;
    const i64 first_channel = group % groups * (length / positions);
    const i64 begin = (block_x() - group * chunks) * chunk;
    const i64 end = begin + chunk < length ? begin + chunk : length;
    const T* from = x + group * length;
    T* to = out + group * length;
    const auto one = [&](T v, i64 channel) {
        C y = (wide(v) - mean) * scale;
        if (weight) y *= wide(weight[channel]);
        if (bias) y += wide(bias[channel]);
        if (silu) y = y / (1 + math::exp(-y));
        return narrow<T>(y);
    };
    // Packs that lie in one channel each.
    const bool packed = aligned<N>(from + begin) && aligned<N>(to + begin) && positions % N == 0;
    const i64 packs = packed ? (end - begin) / N : 0;
#pragma unroll 1
    for (i64 p = thread_x(); p < packs; p += BLOCK) {
        const i64 i = begin + p * N;
        const Pack<T, N> pack = load_pack<N>(from + i);
        const i64 channel = first_channel + (u32)i / (u32)positions;
        Pack<T, N> result;
#pragma unroll
        for (int k = 0; k < N; ++k) result.at[k] = one(pack.at[k], channel);
        store_pack<N>(to + i, result);
    }
#pragma unroll 1
    for (i64 i = begin + packs * N + thread_x(); i < end; i += BLOCK) {
        to[i] = one(from[i], first_channel + (u32)i / (u32)positions);
    }
}

#define WRITES(op, silu, T)                                                                      \
    PROPOLIS_KERNEL norm_group_##op##_##T(T* out, const u32* scratch, const T* x,                \
                                          const T* weight, const T* bias, i64 length, i64 chunk, \
                                          i64 chunks, i64 groups, i64 positions,                 \
                                          Compute<T> eps) {                                      \
        write_chunks<silu>(out, scratch, x, weight, bias, length, chunk, chunks, groups,         \
                           positions, eps);                                                      \
    }
#define GROUP_NORM(T)                                                                           \
    PROPOLIS_KERNEL norm_group_moments_##T(u32* scratch, const T* x, i64 length, i64 chunk,     \
                                           i64 chunks) {                                        \
        moments_of_chunks(scratch, x, length, chunk, chunks);                                   \
    }                                                                                           \
    WRITES(group_norm, false, T)                                                                \
    WRITES(group_norm_silu, true, T)
GROUP_NORM(f64)
GROUP_NORM(f32)
GROUP_NORM(f16)
GROUP_NORM(bf16)
GROUP_NORM(f8e4m3)
GROUP_NORM(f8e5m2)
