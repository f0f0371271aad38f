// Elementwise ops of one tensor.  Semantics: core's propolis/ops/unary.py.
#include "propolis_activations.h"
#include "propolis_elementwise.h"

// A function of the compute type C, one struct each, so that it is inlined into the walk.
#define FUNCTION(name, formula)                     \
    struct name##_of {                              \
        static constexpr bool brief = false;        \
        template <class C>                          \
        PROPOLIS_FN C call(C x) {                   \
            return formula;                         \
        }                                           \
    };

// One that has a shorter way to what is rounded to 16 bits.
#define BRIEF_FUNCTION(name, formula, brief_formula) \
    struct name##_of {                               \
        static constexpr bool brief = true;          \
        template <class C>                           \
        PROPOLIS_FN C call(C x) {                    \
            return formula;                          \
        }                                            \
        PROPOLIS_FN f32 call_briefly(f32 x) {        \
            return brief_formula;                    \
        }                                            \
    };

// ln(1 + e**x): past either end, where e**x would overflow or vanish, x or e**x alone.
template <class C>
PROPOLIS_FN C softplus_of_sum(C x) {
    const C tail = math::log1p(math::exp(-math::fabs(x)));
    return (x > 0 ? x : 0) + (math::is_nan(x) ? x : tail);
}

FUNCTION(exp, math::exp(x))
FUNCTION(expm1, math::expm1(x))
FUNCTION(log, math::log(x))
FUNCTION(log1p, math::log1p(x))
FUNCTION(sin, math::sin(x))
FUNCTION(cos, math::cos(x))
FUNCTION(tanh, math::tanh(x))
BRIEF_FUNCTION(sqrt, math::sqrt(x), math::brief_sqrt(x))
FUNCTION(rsqrt, 1 / math::sqrt(x))
FUNCTION(recip, 1 / x)
FUNCTION(erf, math::erf(x))
FUNCTION(sigmoid, math::share((C)1, x))
BRIEF_FUNCTION(silu, math::share(x, x), math::brief_share(x, x))
FUNCTION(gelu, math::gelu(x))
FUNCTION(gelu_erf, math::gelu_erf(x))
FUNCTION(quick_gelu, math::share(x, (C)1.702 * x))
FUNCTION(softplus, softplus_of_sum(x))
FUNCTION(abs, math::fabs(x))
FUNCTION(neg, -x)
FUNCTION(sqr, x * x)
FUNCTION(relu, x < 0 ? (C)0 : x)
FUNCTION(sign, x > 0 ? (C)1 : x < 0 ? (C)-1 : x)
FUNCTION(floor, math::floor(x))
FUNCTION(ceil, math::ceil(x))
FUNCTION(trunc, math::trunc(x))
FUNCTION(round, math::rint(x))

#define WHOLE_FUNCTION(name, formula)               \
    struct whole_##name##_of {                      \
        static constexpr bool brief = false;        \
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
        if constexpr (F::brief && sizeof(T) == 2) {
            return narrow<T>(F::call_briefly(wide(x)));
        } else {
            return narrow<T>(F::call(wide(x)));
        }
    }
};

#define KERNELS(op, function, dtype)                                                             \
    PROPOLIS_KERNEL unary_##op##_##dtype(dtype* out, const dtype* x, i64 n) {                    \
        map<HEAVY_##op>(n, out, x, [](dtype v) { return Elementwise<function>::apply(v); });     \
    }                                                                                            \
    PROPOLIS_KERNEL unary_##op##_##dtype##_strided(dtype* out, const dtype* x, i64 n,            \
                                                   Strided s) {                                  \
        map_strided<HEAVY_##op>(n, out, x, s,                                                    \
                                [](dtype v) { return Elementwise<function>::apply(v); });        \
    }

#define FLOAT_OP(op)           \
    KERNELS(op, op##_of, f64)  \
    KERNELS(op, op##_of, f32)  \
    KERNELS(op, op##_of, f16)  \
    KERNELS(op, op##_of, bf16) \
    KERNELS(op, op##_of, f8e4m3) \
    KERNELS(op, op##_of, f8e5m2)
#define WHOLE_OP(op)                  \
    KERNELS(op, whole_##op##_of, u8)  \
    KERNELS(op, whole_##op##_of, u32) \
    KERNELS(op, whole_##op##_of, i8)  \
    KERNELS(op, whole_##op##_of, i16) \
    KERNELS(op, whole_##op##_of, i32) \
    KERNELS(op, whole_##op##_of, i64)

FLOAT_OP(exp)
FLOAT_OP(expm1)
FLOAT_OP(log)
FLOAT_OP(log1p)
FLOAT_OP(sin)
FLOAT_OP(cos)
FLOAT_OP(tanh)
FLOAT_OP(sqrt)
FLOAT_OP(rsqrt)
FLOAT_OP(recip)
FLOAT_OP(erf)
FLOAT_OP(sigmoid)
FLOAT_OP(silu)
FLOAT_OP(gelu)
FLOAT_OP(gelu_erf)
FLOAT_OP(quick_gelu)
FLOAT_OP(softplus)
FLOAT_OP(abs)
FLOAT_OP(neg)
FLOAT_OP(sqr)
FLOAT_OP(relu)
FLOAT_OP(sign)
FLOAT_OP(floor)
FLOAT_OP(ceil)
FLOAT_OP(trunc)
FLOAT_OP(round)
WHOLE_OP(abs)
WHOLE_OP(neg)
WHOLE_OP(sqr)
WHOLE_OP(relu)
WHOLE_OP(sign)
