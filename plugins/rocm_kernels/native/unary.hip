// Elementwise ops of one tensor.  Semantics: core's propolis/ops/unary.py.
#include "propolis_activations.h"
#include "propolis_elementwise.h"

// A function of the compute type C, one struct each, so that it is inlined into the walk.
#define FUNCTION(name, formula)                     \
    struct name##_of {                              \
        template <class C>                          \
        PROPOLIS_FN C call(C x) {                   \
            return formula;                         \
        }                                           \
    };

// ln(1 + e**x): past either end, where e**x would overflow or vanish, x or e**x alone.
template <class C>
PROPOLIS_FN C softplus_of_sum(C x) {
    const C tail = math::log1p(math::exp(-math::fabs(x)));
    return (x > 0 ? x : 0) + (math::is_nan(x) ? x : tail);
}

FUNCTION(exp, math::exp(x))
FUNCTION(log, math::log(x))
FUNCTION(sin, math::sin(x))
FUNCTION(cos, math::cos(x))
FUNCTION(tanh, math::tanh(x))
FUNCTION(sqrt, math::sqrt(x))
FUNCTION(rsqrt, 1 / math::sqrt(x))
FUNCTION(recip, 1 / x)
FUNCTION(erf, math::erf(x))
FUNCTION(sigmoid, math::share((C)1, x))
FUNCTION(silu, math::share(x, x))
FUNCTION(gelu, math::gelu(x))
FUNCTION(gelu_erf, (C)0.5 * x * (1 + math::erf(x * (C)0.70710678118654752440)))
FUNCTION(quick_gelu, math::share(x, (C)1.702 * x))
FUNCTION(softplus, softplus_of_sum(x))
FUNCTION(abs, math::fabs(x))
FUNCTION(neg, -x)
FUNCTION(sqr, x * x)
FUNCTION(relu, x < 0 ? (C)0 : x)
FUNCTION(sign, x > 0 ? (C)1 : x < 0 ? (C)-1 : x)
FUNCTION(floor, math::floor(x))
FUNCTION(ceil, math::ceil(x))
FUNCTION(round, math::rint(x))

#define WHOLE_FUNCTION(name, formula)               \
    struct whole_##name##_of {                      \
        template <class T>                          \
        PROPOLIS_FN T call(T x) {                   \
            typedef Unsigned<T> U;                  \
            return (T)(formula);                    \
        }                                           \
    };
WHOLE_FUNCTION(abs, negative(x) ? 0 - (U)x : (U)x)
WHOLE_FUNCTION(neg, 0 - (U)x)
WHOLE_FUNCTION(sqr, (u64)(U)x * (u64)(U)x)
WHOLE_FUNCTION(relu, negative(x) ? (U)0 : (U)x)
WHOLE_FUNCTION(sign, (U)((x != 0) - 2 * negative(x)))

template <class F>
struct Elementwise {
    template <class T>
    PROPOLIS_FN T apply(T x) {
        return narrow<T>(F::call(wide(x)));
    }
};

#define KERNELS(op, function, heavy, dtype)                                                      \
    PROPOLIS_KERNEL unary_##op##_##dtype(dtype* out, const dtype* x, i64 n) {                    \
        map<heavy>(n, out, x, [](dtype v) { return Elementwise<function>::apply(v); });          \
    }                                                                                            \
    PROPOLIS_KERNEL unary_##op##_##dtype##_strided(dtype* out, const dtype* x, i64 n, Strided s) { \
        map_strided<heavy>(n, out, x, s, [](dtype v) { return Elementwise<function>::apply(v); }); \
    }

#define FLOAT_OP(op, heavy)                   \
    KERNELS(op, op##_of, heavy, f64)          \
    KERNELS(op, op##_of, heavy, f32)          \
    KERNELS(op, op##_of, heavy, f16)          \
    KERNELS(op, op##_of, heavy, bf16)         \
    KERNELS(op, op##_of, heavy, f8e4m3)
#define WHOLE_OP(op)                          \
    KERNELS(op, whole_##op##_of, false, u8)   \
    KERNELS(op, whole_##op##_of, false, u32)  \
    KERNELS(op, whole_##op##_of, false, i16)  \
    KERNELS(op, whole_##op##_of, false, i32)  \
    KERNELS(op, whole_##op##_of, false, i64)

FLOAT_OP(exp, true)
FLOAT_OP(log, true)
FLOAT_OP(sin, true)
FLOAT_OP(cos, true)
FLOAT_OP(tanh, true)
FLOAT_OP(sqrt, true)
FLOAT_OP(rsqrt, true)
FLOAT_OP(recip, true)
FLOAT_OP(erf, true)
FLOAT_OP(sigmoid, true)
FLOAT_OP(silu, true)
FLOAT_OP(gelu, true)
FLOAT_OP(gelu_erf, true)
FLOAT_OP(quick_gelu, true)
FLOAT_OP(softplus, true)
FLOAT_OP(abs, false)
FLOAT_OP(neg, false)
FLOAT_OP(sqr, false)
FLOAT_OP(relu, false)
FLOAT_OP(sign, false)
FLOAT_OP(floor, false)
FLOAT_OP(ceil, false)
FLOAT_OP(round, false)
WHOLE_OP(abs)
WHOLE_OP(neg)
WHOLE_OP(sqr)
WHOLE_OP(relu)
WHOLE_OP(sign)
