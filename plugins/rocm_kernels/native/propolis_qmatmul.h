// Products with weights in the GGUF block formats, which are taken as they are, and so are the
// activations.  Semantics: core's propolis/ops/quantized.py; sums are in f32.
#pragma once

#include "propolis_blocks.h"
#include "propolis_product.h"

template <class Format>
struct BlockWeights {
    const u8* start;
    i64 rows, depth;
    i64 row;  // bytes

    typedef f32 C;
    static constexpr bool scaled = true;
    static constexpr bool shifted = Format::shifted;
    PROPOLIS_METHOD BlockWeights at(i64) const { return *this; }
    PROPOLIS_METHOD bool across() const { return false; }
    PROPOLIS_METHOD void weights(i64 i, i64 k, Weights<f32>& own) const {
        const i64 block = k / Format::SIZE;
        Format::load(start + i * row + block * Format::BYTES, (int)(k % Format::SIZE) / RUN, own);
    }
    PROPOLIS_METHOD void fetch(i64 i, i64 k, f32 (&run)[RUN]) const {
        const bool inside = i < rows && k < depth;
        Weights<f32> own;
        weights(inside ? i : 0, inside ? k : 0, own);
        dequantized<Format>(own, run);
#pragma unroll
        for (int e = 0; e < RUN; ++e) run[e] = inside ? run[e] : 0.0f;
    }
};

// Weights whose format is told at the launch, by its number in GGUF files: one kernel for all, where
// it matters little that their loads wait for each other.
struct AnyWeights {
    const u8* start;
    i64 rows, depth;
    i64 row;  // bytes
    i32 format;

    static constexpr bool scaled = false;
    static constexpr bool shifted = false;
    PROPOLIS_METHOD AnyWeights at(i64) const { return *this; }
    PROPOLIS_METHOD bool across() const { return false; }
    template <class C>
    PROPOLIS_METHOD void weights(i64 i, i64 k, Weights<C>& own) const {
        f32 run[RUN] = {};
        switch (format) {
#define PROPOLIS_CASE(name, Format)                                             \
    case Format::NUMBER: {                                                      \
        Weights<f32> found;                                                     \
        Format::load(start + i * row + k / Format::SIZE * Format::BYTES,        \
                     (int)(k % Format::SIZE) / RUN, found);                     \
        dequantized<Format>(found, run);                                        \
        break;                                                                  \
    }
            PROPOLIS_EACH_FORMAT(PROPOLIS_CASE)
#undef PROPOLIS_CASE
        }
#pragma unroll
        for (int e = 0; e < RUN; ++e) own.q[e] = run[e];
    }
    template <class C>
    PROPOLIS_METHOD void fetch(i64 i, i64 k, C (&run)[RUN]) const {
        const bool inside = i < rows && k < depth;
        Weights<C> own;
        weights(inside ? i : 0, inside ? k : 0, own);
#pragma unroll
        for (int e = 0; e < RUN; ++e) run[e] = inside ? own.q[e] : (C)0;
    }
};

#define QMATMUL_ARGUMENTS(T)                                                                     \
    T *out, const T *a, const u8 *w, i64 m, i64 n, i64 depth, i64 a_row, i64 a_step, i64 row,    \
        i64 first
#define QMATMUL_PRODUCT(T) \
    Product<T> { out, a, nullptr, m, n, depth, a_row, a_step, 0, 0, first }

#define QMATMUL_TILES(module, name, Format, T)                                                   \
    PROPOLIS_KERNEL module##_tile64_##name##_##T(QMATMUL_ARGUMENTS(T), Strided2 batches) {       \
        const BlockWeights<Format> weights{w, n, depth, row};                                    \
        product_in_tiles<64>(QMATMUL_PRODUCT(T), weights, batches);                              \
    }
#define QMATMUL_ROWS(module, name, Format, T, M, R)                                              \
    PROPOLIS_KERNEL module##_rows##M##_##name##_##T(QMATMUL_ARGUMENTS(T), i64 lanes,             \
                                                    Strided2 batches) {                          \
        const BlockWeights<Format> weights{w, n, depth, row};                                    \
        product_of_rows<M, R>(QMATMUL_PRODUCT(T), weights, batches, (int)lanes);                 \
    }
#define QMATMUL_OF(module, name, Format, T)             \
    QMATMUL_TILES(module, name, Format, T)              \
    QMATMUL_ROWS(module, name, Format, T, 1, ROWS_OF_1) \
    QMATMUL_ROWS(module, name, Format, T, 4, ROWS_OF_4) \
    QMATMUL_ROWS(module, name, Format, T, 8, ROWS_OF_8)

// All kernels of a format, of the module of that name.
#define QMATMUL(module, name, Format)     \
    QMATMUL_OF(module, name, Format, f32) \
    QMATMUL_OF(module, name, Format, f16) \
    QMATMUL_OF(module, name, Format, bf16)
