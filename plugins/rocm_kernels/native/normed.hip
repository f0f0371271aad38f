// Products of the norm of a sum of two rows with weights of the same dtype; of halves that are gated; of heads that
// are rotated.
#include "propolis_plain_row.h"

#define NORMED(T) T *total, T *out, const T *x, const T *residual, const T *weight, f32 eps, const u8 *w
#define SIZES i64 n, i64 depth, i64 row, i64 lanes, i64 threads
#define OF_NORM(T, name, GATED)                                                                           \
    PROPOLIS_KERNEL_OF(THREADS) normed_##name##_##T(NORMED(T), SIZES) {                                \
        product_of_normed<PlainRow<T>, GATED>(NormedRow<T>{total, x, residual, weight, eps}, out, w, n,   \
                                              depth, row, (int)lanes, (int)threads);                      \
    }
#define OF_NORMED(T)                                                                                      \
    OF_NORM(T, plain, false)                                                                              \
    OF_NORM(T, gated, true)                                                                               \
    PROPOLIS_KERNEL_OF(THREADS)                                                                        \
    normed_turned_##T(NORMED(T), const i32* position, const f32* cos, const f32* sin, void* cache,        \
                      const i32* slot, SIZES, i64 rows, i64 cos_row, i64 sin_row, i64 slot_stride,        \
                      i64 head_stride, i64 capacity, i32 pairs, i32 dim, i32 heads, i32 interleaved,      \
                      i32 queries, i32 bits) {                                                            \
        const Turn turn{position, cos, sin, rows, cos_row, sin_row, pairs, dim, heads, interleaved != 0}; \
        const Kept kept{cache, slot, slot_stride, head_stride, capacity, queries, bits};                  \
        product_of_turned<PlainRow<T>>(NormedRow<T>{total, x, residual, weight, eps}, out, w, n, depth,   \
                                       row, turn, kept, (int)lanes, (int)threads);                        \
    }

OF_NORMED(f32)
OF_NORMED(f16)
OF_NORMED(bf16)
