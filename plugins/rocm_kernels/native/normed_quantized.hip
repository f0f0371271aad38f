// Products of the norm of a sum of two rows with weights in the block formats.
#include "propolis_normed.h"

#define OF_NORM(name, Format, GATED)                                                               \
    PROPOLIS_KERNEL_OF(THREADS)                                                                 \
    normed_quantized_##name(f32* total, f32* out, const f32* x, const f32* residual,          \
                                 const f32* weight, f32 eps, const u8* w, i64 n, i64 depth,        \
                                 i64 row, i64 lanes, i64 threads) {                                \
        product_of_normed<Rounded<Step<Format>>, GATED>(                                           \
            NormedRow<f32>{total, x, residual, weight, eps}, out, w, n, depth, row, (int)lanes,    \
            (int)threads);                                                                         \
    }
#define OF_NORM_TWICE(name, Format) \
    OF_NORM(name, Format, false)    \
    OF_NORM(name##_gated, Format, true)

PROPOLIS_EACH_FORMAT(OF_NORM_TWICE)
