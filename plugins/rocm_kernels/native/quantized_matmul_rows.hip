// Products of up to four rows of activations with weights in the block formats, in integers.
#include "propolis_decode.h"

#define QMATMUL_ROWS(rows, name, Format)                                                           \
    PROPOLIS_KERNEL_OF(THREADS)                                                                    \
    quantized_matmul_rows_##rows##_##name(f32* out, const f32* x, const u8* w, i64 m, i64 n, i64 depth, i64 row, \
                                          i64 lanes, i64 threads) {                                \
        product_of_rows<Format, rows>(out, x, w, m, n, depth, row, (int)lanes, (int)threads);      \
    }
#define EACH(name, Format)        \
    QMATMUL_ROWS(2, name, Format) \
    QMATMUL_ROWS(4, name, Format)

PROPOLIS_EACH_FORMAT(EACH)
