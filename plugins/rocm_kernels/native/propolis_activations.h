// Activations that are their argument times a share of it.  Semantics: core's propolis/ops/unary.py.
#pragma once

#include "propolis_device.h"

namespace math {
// x * up * sigmoid(z), of which no part overflows or vanishes where the whole does not.  The
// exponential goes in by quarters, between which it meets both numbers; the rest of the sigmoid is
// at least one half, and must not make an infinity finite, nor round what is small.
template <class C>
PROPOLIS_FN C gated(C x, C z, C up) {
    const C quarter = exp((C)-0.25 * fabs(z));
    const C half = quarter * quarter;
    const C rest = 1 / (1 + half * half);
    const C f = z < 0 ? quarter : (C)1;
    const bool small = fabs(x) < 1;
    const C y = ((small ? x : x * rest) * f) * (up * f) * f * f;
    return small ? y * rest : y;
}

// x * sigmoid(z).  In f32 it is 0 where the exponential overflows, which core allows: who reads
// and writes bf16 has no time for more.
template <class C>
PROPOLIS_FN C share(C x, C z) {
    if constexpr (sizeof(C) == 8) {
        return gated(x, z, (C)1);
    } else {
        return x / (1 + exp(-z));
    }
}

// The same of what is rounded to 16 bits next: to 2**-20 of it.  On NVIDIA, where IEEE division is ten instructions
// and memory gives two numbers of 16 bits in the time of one of 32; AMD's divide as fast as memory brings them.
PROPOLIS_FN f32 brief_share(f32 x, f32 z) {
#if defined(__CUDACC__)
    f32 y;
    asm("rcp.approx.f32 %0, %1;" : "=f"(y) : "f"(1 + exp(-z)));
    return x * y;
#else
    return share(x, z);
#endif
}

// Square roots likewise.
PROPOLIS_FN f32 brief_sqrt(f32 x) {
#if defined(__CUDACC__)
    f32 y;
    asm("sqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return sqrt(x);
#endif
}

// The tanh form (Hendrycks, Gimpel 2016).
template <class C>
PROPOLIS_FN C gelu(C x) {
    const C inner = (C)0.79788456080286535588 * (x + (C)0.044715 * x * x * x);
    return (C)0.5 * x * (1 + tanh(inner));
}

template <class C>
PROPOLIS_FN C gelu_erf(C x) {
    return (C)0.5 * x * (1 + erf(x * (C)0.70710678118654752440));
}
}  // namespace math
