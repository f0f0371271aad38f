// Products of one row with weights of the same dtype.
#include "propolis_plain_row.h"

#define LINEAR_ONE(T)                                                                             \
    PROPOLIS_KERNEL_OF(THREADS)                                                                \
    matmul_one_##T(T* out, const T* x, const T* bias, i64 bias_step, const u8* w, i64 n, i64 depth, \
                   i64 row, i64 lanes, i64 threads) {                                             \
        product_of_plain<T>(out, x, bias, bias_step, w, n, depth, row, (int)lanes, (int)threads); \
    }

LINEAR_ONE(f32)
LINEAR_ONE(f16)
LINEAR_ONE(bf16)
