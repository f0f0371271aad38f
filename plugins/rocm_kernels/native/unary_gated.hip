// Gated activations.  Semantics: core's propolis/ops/unary.py.
#include "propolis_activations.h"
#include "propolis_elementwise.h"

#define GATED(op, formula)                                                                       \
    struct op##_of {                                                                             \
        template <class T>                                                                       \
        PROPOLIS_FN T apply(T narrow_gate, T narrow_up) {                                        \
            const auto gate = wide(narrow_gate), up = wide(narrow_up);                           \
            return narrow<T>(formula);                                                           \
        }                                                                                        \
    };                                                                                           \
    KERNELS(op, f64)                                                                             \
    KERNELS(op, f32)                                                                             \
    KERNELS(op, f16)                                                                             \
    KERNELS(op, bf16)                                                                            \
    KERNELS(op, f8e4m3)                                                                          \
    KERNELS(op, f8e5m2)
#define KERNELS(op, T)                                                                           \
    PROPOLIS_KERNEL unary_gated_##op##_##T(T* out, const T* gate, const T* up, i64 n) {          \
        map<HEAVY_##op>(n, out, gate, up, [](T x, T y) { return op##_of::apply(x, y); });        \
    }                                                                                            \
    PROPOLIS_KERNEL unary_gated_##op##_##T##_strided(T* out, const T* gate, const T* up, i64 n,  \
                                                     Strided2 s) {                               \
        map_strided<HEAVY_##op>(n, out, gate, up, s,                                             \
                                [](T x, T y) { return op##_of::apply(x, y); });                  \
    }

GATED(silu_mul, math::gated(gate, gate, up))
GATED(gelu_erf_mul, math::gelu_erf(gate) * up)
GATED(gelu_mul, math::gelu(gate) * up)
