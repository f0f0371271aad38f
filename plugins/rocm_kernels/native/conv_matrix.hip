// Convolutions of 16-bit images on matrix instructions, in tiles of m output channels x n windows and k deep;
// what brings images and weights to the order that these read; and sums of parts.
#include "propolis_convolve_matrix.h"

#define KERNEL(T, m_, n_, k_)                                                                       \
    PROPOLIS_KERNEL_OF_MATRICES conv_matrix_##m_##x##n_##x##k_##_##T(                                           \
        T *out, f32 *parts, const T *x, const T *w, const T *bias, ConvTiles s, i64 first, i64 stages)
#define FRAGMENTS(T, m_, n_, k_)                                                                    \
    KERNEL(T, m_, n_, k_) {                                                                         \
        convolve_in_fragments<m_, n_, k_>(out, parts, x, w, bias, s, first, (int)stages);           \
    }
#define ABSENT(T, m_, n_, k_)                                                                       \
    KERNEL(T, m_, n_, k_) {                                                                         \
        (void)out, (void)parts, (void)x, (void)w, (void)bias, (void)s, (void)first, (void)stages;   \
        __builtin_trap();                                                                           \
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

#define JOIN(T, count)                                                                              \
    PROPOLIS_KERNEL conv_matrix_join##count##_##T(T *out, const f32 *parts, const T *bias,          \
                                                  i64 bias_step, i64 outs, i64 windows, i64 plane,  \
                                                  i64 all, i64 shared_by) {                         \
        join_parts<count>(out, parts, bias, bias_step, (i32)outs, (i32)windows, plane,              \
                          (i32)all, (i32)shared_by);                                                \
    }
#define EACH(T)               \
    SMALL(T, 64, 64, 64)      \
    SMALL(T, 128, 128, 32)    \
    LARGE(T, 128, 128, 64)    \
    LARGE(T, 128, 192, 64)    \
    LARGE(T, 128, 256, 64)    \
    JOIN(T, 1)                \
    JOIN(T, 4)
EACH(f16)
EACH(bf16)

PROPOLIS_KERNEL conv_matrix_images(u16 *out, const u16 *x, ConvImages s, i64 first) {
    turn_images(out, x, s, first);
}
PROPOLIS_KERNEL conv_matrix_weights(u16 *out, const u16 *w, ConvWeights s) { turn_weights(out, w, s); }
