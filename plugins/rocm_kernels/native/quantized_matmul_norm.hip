// Products of the norm of a sum of two rows with weights in the block formats.
#include "propolis_normed.h"

#define OF_NORM(name, Format)                                                                      \
    PROPOLIS_KERNEL_TWICE(THREADS)                                                                 \
    quantized_matmul_norm_##name(f32* total, f32* out, const f32* x, const f32* residual,          \
                                 const f32* weight, f32 eps, const u8* w, i64 n, i64 depth,        \
                                 i64 row, i64 lanes, i64 threads) {                                \
        product_of_normed<Format, false>({total, x, residual, weight, eps}, out, w, n, depth, row, \
                                         (int)lanes, (int)threads);                                \
    }                                                                                              \
    PROPOLIS_KERNEL_TWICE(THREADS)                                                                 \
    quantized_matmul_norm_##name##_gated(f32* total, f32* out, const f32* x, const f32* residual,  \
                                         const f32* weight, f32 eps, const u8* w, i64 n,           \
                                         i64 depth, i64 row, i64 lanes, i64 threads) {             \
        product_of_normed<Format, true>({total, x, residual, weight, eps}, out, w, n, depth, row,  \
                                        (int)lanes, (int)threads);                                 \
    }

PROPOLIS_EACH_FORMAT(OF_NORM)
