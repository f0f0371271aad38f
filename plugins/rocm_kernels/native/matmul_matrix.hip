// Products of plain matrices of 16-bit numbers on matrix instructions, in tiles of m x n and k
// deep; of those named `across`, neighbours in memory are neighbouring rows of b.  Sums are in f32,
// and of those named `wide` so is the output.  And what joins sums of parts of the depth.
#include "propolis_matrix_product.h"

#define ARGUMENTS(T, Out)                                                                     \
    Out *out, f32 *parts, const T *a, const T *b, const Out *bias, i64 m, i64 n, i64 depth,   \
        i64 a_row, i64 b_apart, i64 bias_row, i64 bias_step, i64 out_row, i64 steps,          \
        i64 first, i64 stages, Strided2 batches
#define KERNEL(T, Out, m_, n_, k_, name) \
    PROPOLIS_KERNEL_OF_MATRICES matmul_matrix_##name##m_##x##n_##x##k_##_##T(ARGUMENTS(T, Out))
#define FRAGMENTS(T, Out, m_, n_, k_, name, across)                                              \
    KERNEL(T, Out, m_, n_, k_, name) {                                                           \
        const Product<T, Out> product{out,   a, bias,     m,         n,    depth,                \
                                      a_row, 1, bias_row, bias_step, first};                     \
        product_of_fragments<m_, n_, k_, across>(product, parts, b, b_apart, out_row, batches,   \
                                                 (i32)steps, (int)stages);                       \
    }
#define ABSENT(T, Out, m_, n_, k_, name, across)                                                \
    KERNEL(T, Out, m_, n_, k_, name) {                                                          \
        (void)out, (void)a, (void)b, (void)bias, (void)m, (void)n, (void)depth, (void)a_row;    \
        (void)b_apart, (void)bias_row, (void)bias_step, (void)out_row, (void)first;             \
        (void)parts, (void)steps, (void)stages, (void)batches;                                  \
        __builtin_trap();                                                                       \
    }

#if PROPOLIS_FRAGMENTS
#define SMALL FRAGMENTS
#else
#define SMALL ABSENT
#endif
// More than AMD's GPUs have shared memory for.
#if defined(PROPOLIS_MMA)
#define LARGE FRAGMENTS
#else
#define LARGE ABSENT
#endif

#define TILES(KIND, T, m_, n_, k_)       \
    KIND(T, T, m_, n_, k_, along, false) \
    KIND(T, T, m_, n_, k_, across, true)
#define EACH(DO, T)               \
    DO(SMALL, T, 64, 64, 64)      \
    DO(SMALL, T, 128, 128, 32)    \
    DO(LARGE, T, 128, 128, 64)    \
    DO(LARGE, T, 128, 256, 64)
EACH(TILES, f16)
EACH(TILES, bf16)

#define WIDE(KIND, T, m_, n_, k_) KIND(T, f32, m_, n_, k_, wide, false)
EACH(WIDE, bf16)

#define JOIN(T, count)                                                                            \
    PROPOLIS_KERNEL matmul_matrix_join##count##_##T(                                              \
        T *out, const f32 *parts, const T *bias, i64 bias_row, i64 bias_step, i64 m, i64 n,       \
        i64 out_row, i64 shared_by, i64 first) {                                                  \
        join_products<count>(out, parts, bias, bias_row, bias_step, m, n, out_row, shared_by,     \
                             first);                                                              \
    }
#define JOINS(T) JOIN(T, 1) JOIN(T, 4)
JOINS(f16)
JOINS(bf16)
JOINS(f32)
