// Products of one row of activations with weights in the block formats.
#include "propolis_decode.h"

#define QMATMUL_ONE(name, Format)                                                              \
    PROPOLIS_KERNEL_OF(THREADS)                                                             \
    quantized_matmul_one_##name(f32* out, const f32* x, const u8* w, i64 n, i64 depth, i64 row, \
                                i64 lanes, i64 threads) {                                      \
        product_of_one<Format>(out, x, w, n, depth, row, (int)lanes, (int)threads);           \
    }

PROPOLIS_EACH_FORMAT(QMATMUL_ONE)
