// Products of plain matrices.  Semantics: core's propolis/ops/matmul.py; sums are in f32, of f64
// in f64, of i8 in 32 bits, without a sign: they wrap around.
#include "propolis_product.h"

#define ARGUMENTS(T, Out)                                                                   \
    Out *out, const T *a, const T *b, const Out *bias, i64 m, i64 n, i64 depth, i64 a_row,  \
        i64 a_step, i64 b_row, i64 b_step, i64 bias_row, i64 bias_step, i64 first
#define PRODUCT(T, Out) \
    Product<T, Out> { out, a, bias, m, n, depth, a_row, a_step, bias_row, bias_step, first }

#define TILES(T, Out, side)                                                                 \
    PROPOLIS_KERNEL matmul_tile##side##_##T(ARGUMENTS(T, Out), Strided2 batches) {          \
        const PlainWeights<T, Compute<Out>> weights(b, n, depth, b_row, b_step);            \
        product_in_tiles<side>(PRODUCT(T, Out), weights, batches);                          \
    }
#define ROWS(T, Out, m_, r_)                                                                \
    PROPOLIS_KERNEL matmul_rows##m_##_##T(ARGUMENTS(T, Out), i64 lanes, Strided2 batches) { \
        const PlainWeights<T, Compute<Out>> weights(b, n, depth, b_row, b_step);            \
        product_of_rows<m_, r_>(PRODUCT(T, Out), weights, batches, (int)lanes);             \
    }
#define MATMUL(T, Out)         \
    TILES(T, Out, 64)          \
    ROWS(T, Out, 1, ROWS_OF_1) \
    ROWS(T, Out, 4, ROWS_OF_4) \
    ROWS(T, Out, 8, ROWS_OF_8)
MATMUL(f32, f32)
MATMUL(f16, f16)
MATMUL(bf16, bf16)
MATMUL(f8e4m3, f8e4m3)
MATMUL(f8e5m2, f8e5m2)
MATMUL(f64, f64)
MATMUL(i8, u32)
TILES(f32, f32, 128)
TILES(f16, f16, 128)
TILES(bf16, bf16, 128)
