// Products of up to 32 rows with weights of the same 16 or 8 bits, on matrix instructions.
#include "propolis_few.h"

#define KERNEL(rows, T)                                                                                 \
    PROPOLIS_KERNEL_TWICE(BLOCK)                                                                        \
    matmul_few_rows##rows##_##T(T* out, const T* x, const T* w, const T* bias, i64 bias_step, i64 m, i64 n, \
                                i64 depth, i64 x_row, i64 w_row)
#if PROPOLIS_FRAGMENTS
#define FEW(rows, T, wide)                                                                             \
    KERNEL(rows, T) {                                                                                  \
        product_of_few_plain<wide, (rows <= 8)>(out, x, w, bias, bias_step, m, n, depth, x_row, w_row); \
    }
#else
#define FEW(rows, T, wide)                                                                        \
    KERNEL(rows, T) {                                                                             \
        (void)out, (void)x, (void)w, (void)bias, (void)bias_step, (void)m, (void)n, (void)depth;  \
        (void)x_row, (void)w_row;                                                                 \
        __builtin_trap();                                                                         \
    }
#endif
#define EACH(T)   \
    FEW(8, T, 1)  \
    FEW(16, T, 1) \
    FEW(32, T, 2)
EACH(f16)
EACH(bf16)
EACH(f8e4m3)
EACH(f8e5m2)
