// Products of one row, or of the norm of a sum of two, with weights of the same dtype.
#include "propolis_plain_row.h"

#define NORMED(T) T *total, T *out, const T *x, const T *residual, const T *weight, f32 eps, const u8 *w
#define SIZES i64 n, i64 depth, i64 row, i64 lanes, i64 threads
#define OF_NORM(T, name, GATED)                                                                           \
    PROPOLIS_KERNEL_TWICE(THREADS) matmul_one_##name##_##T(NORMED(T), SIZES) {                            \
        product_of_normed<PlainRow<T>, GATED>(NormedRow<T>{total, x, residual, weight, eps}, out, w, n,   \
                                              depth, row, (int)lanes, (int)threads);                      \
    }
#define LINEAR_ONE(T)                                                                                     \
    PROPOLIS_KERNEL_TWICE(THREADS)                                                                        \
    matmul_one_plain_##T(T* out, const T* x, const T* bias, i64 bias_step, const u8* w, SIZES) {          \
        product_of_plain<T>(out, x, bias, bias_step, w, n, depth, row, (int)lanes, (int)threads);         \
    }                                                                                                     \
    OF_NORM(T, normed, false)                                                                             \
    OF_NORM(T, gated, true)                                                                               \
    PROPOLIS_KERNEL_TWICE(THREADS)                                                                        \
    matmul_one_turned_##T(NORMED(T), const i32* position, const f32* cos, const f32* sin, SIZES, i64 rows, \
                          i64 cos_row, i64 sin_row, i32 pairs, i32 dim, i32 heads, i32 interleaved) {     \
        const Turn turn{position, cos, sin, rows, cos_row, sin_row, pairs, dim, heads, interleaved != 0}; \
        product_of_turned<PlainRow<T>>(NormedRow<T>{total, x, residual, weight, eps}, out, w, n, depth,   \
                                       row, turn, (int)lanes, (int)threads);                              \
    }

LINEAR_ONE(f32)
LINEAR_ONE(f16)
LINEAR_ONE(bf16)
