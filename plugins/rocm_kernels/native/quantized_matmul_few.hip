// Products of up to 64 rows of activations, rounded to bf16, with weights in any block format.
#include "propolis_few.h"

#define KERNEL(rows, name)                                                                     \
    PROPOLIS_KERNEL_OF_MATRICES quantized_matmul_few_rows##rows##_##name(                                  \
        f32* out, const bf16* x, const u8* w, i64 m, i64 n, i64 depth, i64 x_row, i64 row)
#if PROPOLIS_FRAGMENTS
#define FEW(rows, name, Format, tall, wide)                                                      \
    KERNEL(rows, name) {                                                                         \
        product_of_few<Format, tall, wide, (rows <= 8)>(out, x, w, m, n, depth, x_row, row);     \
    }
#else
#define FEW(rows, name, Format, tall, wide)                                       \
    KERNEL(rows, name) {                                                          \
        (void)out, (void)x, (void)w, (void)m, (void)n, (void)depth, (void)x_row;  \
        (void)row;                                                                \
        __builtin_trap();                                                         \
    }
#endif
#define EACH(name, Format)        \
    FEW(8, name, Format, 1, 1)    \
    FEW(16, name, Format, 1, 1)   \
    FEW(32, name, Format, 2, 2)   \
    FEW(64, name, Format, 2, 4)
PROPOLIS_EACH_FORMAT(EACH)
