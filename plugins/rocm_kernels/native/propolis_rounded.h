// Products that are rounded before they go into a sum, for results that are defined bit by bit.
#pragma once

#include "propolis_device.h"

// Compilers fuse within one expression alone (-ffp-contract=on), so a function's result is safe from
// them; nvcc fuses wherever it can.
PROPOLIS_FN f32 rounded_product(f32 a, f32 b) {
#if defined(__CUDACC__)
    return __fmul_rn(a, b);
#else
    return a * b;
#endif
}
PROPOLIS_FN f64 rounded_product(f64 a, f64 b) {
#if defined(__CUDACC__)
    return __dmul_rn(a, b);
#else
    return a * b;
#endif
}
