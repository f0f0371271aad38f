// Products of plain matrices.  Semantics: core's propolis/ops/matmul.py; sums are in f32, of f64
// in f64.
#include "propolis_product.h"

#define ARGUMENTS(T)                                                                        \
    T *out, const T *a, const T *b, const T *bias, i64 m, i64 n, i64 depth, i64 a_row,      \
        i64 a_step, i64 b_row, i64 b_step, i64 bias_row, i64 bias_step, i64 first
#define PRODUCT(T) \
    Product<T> { out, a, bias, m, n, depth, a_row, a_step, bias_row, bias_step, first }

#define TILES(T, side)                                                                      \
    PROPOLIS_KERNEL matmul_tile##side##_##T(ARGUMENTS(T), Strided2 batches) {               \
        const PlainWeights<T> weights(b, n, depth, b_row, b_step);                          \
        product_in_tiles<side>(PRODUCT(T), weights, batches);                               \
    }
#define ROWS(T, m_, r_)                                                                     \
    PROPOLIS_KERNEL matmul_rows##m_##_##T(ARGUMENTS(T), i64 lanes, Strided2 batches) {      \
        const PlainWeights<T> weights(b, n, depth, b_row, b_step);                          \
        product_of_rows<m_, r_>(PRODUCT(T), weights, batches, (int)lanes);                  \
    }
#define MATMUL(T)         \
    TILES(T, 64)          \
    ROWS(T, 1, ROWS_OF_1) \
    ROWS(T, 4, ROWS_OF_4) \
    ROWS(T, 8, ROWS_OF_8)
MATMUL(f32)
MATMUL(f16)
MATMUL(bf16)
MATMUL(f8e4m3)
MATMUL(f64)
TILES(f32, 128)
TILES(f16, 128)
TILES(bf16, 128)
