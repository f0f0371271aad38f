// Products of activations that are seldom, f64 and f8, with weights in any block format.
#include "propolis_qmatmul.h"

#define ARGUMENTS(T)                                                                          \
    T *out, const T *a, const u8 *w, i64 m, i64 n, i64 depth, i64 a_row, i64 a_step, i64 row, \
        i64 format, i64 first

#define TILES(T)                                                                       \
    PROPOLIS_KERNEL quantized_matmul_any_tile64_##T(ARGUMENTS(T), Strided2 batches) {  \
        const AnyWeights weights{w, n, depth, row, (i32)format};                       \
        product_in_tiles<64>(QMATMUL_PRODUCT(T), weights, batches);                    \
    }
#define ROWS(T, M, R)                                                              \
    PROPOLIS_KERNEL quantized_matmul_any_rows##M##_##T(ARGUMENTS(T), i64 lanes,    \
                                                       Strided2 batches) {         \
        const AnyWeights weights{w, n, depth, row, (i32)format};                   \
        product_of_rows<M, R>(QMATMUL_PRODUCT(T), weights, batches, (int)lanes);   \
    }
TILES(f64)
TILES(f8e4m3)
TILES(f8e5m2)
ROWS(f8e4m3, 4, ROWS_OF_4)
ROWS(f8e5m2, 4, ROWS_OF_4)
