// Products with weights in the GGUF block formats, which are taken as they are, and so are the
// activations.  Semantics: core's propolis/ops/quantized.py; sums are in f32.
#include "propolis_blocks.h"
#include "propolis_product.h"

template <class Format>
struct BlockWeights {
    const u8* start;
    i64 rows, depth;
    i64 row;  // bytes

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

#define ARGUMENTS(T)                                                                         \
    T *out, const T *a, const u8 *w, i64 m, i64 n, i64 depth, i64 a_row, i64 a_step, i64 row, \
        i64 first
#define PRODUCT(T) \
    Product<T> { out, a, nullptr, m, n, depth, a_row, a_step, 0, first }

#define TILES(name, Format, T, side)                                                         \
    PROPOLIS_KERNEL qmatmul_tile##side##_##name##_##T(ARGUMENTS(T), Strided2 batches) {      \
        product_in_tiles<side>(PRODUCT(T), BlockWeights<Format>{w, n, depth, row}, batches); \
    }
#define ROWS(name, Format, T, m_, r_)                                                        \
    PROPOLIS_KERNEL qmatmul_rows##m_##_##name##_##T(ARGUMENTS(T), i64 lanes, Strided2 batches) { \
        product_of_rows<m_, r_>(PRODUCT(T), BlockWeights<Format>{w, n, depth, row}, batches, \
                                (int)lanes);                                                 \
    }
#define QMATMUL(name, Format, T)  \
    TILES(name, Format, T, 64)    \
    ROWS(name, Format, T, 1, 1)   \
    ROWS(name, Format, T, 2, 2)   \
    ROWS(name, Format, T, 4, 2)   \
    ROWS(name, Format, T, 8, 2)
#define FORMAT(name, Format)    \
    QMATMUL(name, Format, f32)  \
    QMATMUL(name, Format, f16)  \
    QMATMUL(name, Format, bf16)
PROPOLIS_EACH_FORMAT(FORMAT)
