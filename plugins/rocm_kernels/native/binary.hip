// Elementwise ops of two tensors.  Semantics: core's propolis/ops/binary.py.
#include "propolis_elementwise.h"

#define FUNCTION(name, formula)                     \
    struct name##_of {                              \
        template <class C>                          \
        PROPOLIS_FN C call(C a, C b) {              \
            return formula;                         \
        }                                           \
    };

template <class C>
PROPOLIS_FN C remainder_like_divisor(C a, C b) {
    const C rest = math::fmod(a, b);
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

FUNCTION(add, a + b)
FUNCTION(sub, a - b)
FUNCTION(mul, a * b)
FUNCTION(div, a / b)
FUNCTION(maximum, a > b || math::is_nan(a) ? a : b)
FUNCTION(minimum, a < b || math::is_nan(a) ? a : b)
FUNCTION(pow, math::pow(a, b))
FUNCTION(remainder, remainder_like_divisor(a, b))

template <class T>
PROPOLIS_FN T whole_quotient(T a, T b) {
    if (b == 0) return 0;
    if (negative(b) && b == (T)-1) return (T)(0 - (Unsigned<T>)a);  // of the minimum too
    return (T)(a / b);
}

template <class T>
PROPOLIS_FN T whole_remainder(T a, T b) {
    if (b == 0 || (negative(b) && b == (T)-1)) return 0;
    const T rest = (T)(a % b);
    return rest != 0 && negative(rest) != negative(b) ? (T)(rest + b) : rest;
}

template <class T>
PROPOLIS_FN T whole_power(T a, T b) {
    if (negative(b)) {
        if (a == 1) return 1;
        if (negative(a) && a == (T)-1) return b & 1 ? (T)-1 : (T)1;
        return 0;
    }
    u64 result = 1;
    u64 factor = (u64)a;
    for (u64 left = (u64)b; left != 0; left >>= 1) {
        if (left & 1) result *= factor;
        factor *= factor;
    }
    return (T)result;
}

#define WHOLE_FUNCTION(name, formula)               \
    struct whole_##name##_of {                      \
        template <class T>                          \
        PROPOLIS_FN T call(T a, T b) {              \
            return (T)(formula);                    \
        }                                           \
    };
WHOLE_FUNCTION(add, (Unsigned<T>)a + (Unsigned<T>)b)
WHOLE_FUNCTION(sub, (Unsigned<T>)a - (Unsigned<T>)b)
WHOLE_FUNCTION(mul, (u64)a * (u64)b)
WHOLE_FUNCTION(div, whole_quotient(a, b))
WHOLE_FUNCTION(maximum, a > b ? a : b)
WHOLE_FUNCTION(minimum, a < b ? a : b)
WHOLE_FUNCTION(remainder, whole_remainder(a, b))
WHOLE_FUNCTION(pow, whole_power(a, b))

template <class F>
struct Arithmetic {
    template <class T>
    PROPOLIS_FN T apply(T a, T b) {
        return narrow<T>(F::call(wide(a), wide(b)));
    }
};

#define COMPARISON(name, relation)                   \
    struct name##_of {                               \
        template <class T>                           \
        PROPOLIS_FN u8 apply(T a, T b) {             \
            return wide(a) relation wide(b) ? 1 : 0; \
        }                                            \
    };
COMPARISON(eq, ==)
COMPARISON(ne, !=)
COMPARISON(lt, <)
COMPARISON(le, <=)
COMPARISON(gt, >)
COMPARISON(ge, >=)

#define KERNELS(op, function, Out, T)                                                           \
    PROPOLIS_KERNEL binary_##op##_##T(Out* out, const T* a, const T* b, i64 n) {                \
        map<HEAVY_##op>(n, out, a, b, [](T x, T y) { return function::apply(x, y); });          \
    }                                                                                           \
    PROPOLIS_KERNEL binary_##op##_##T##_strided(Out* out, const T* a, const T* b, i64 n,        \
                                                Strided2 s) {                                   \
        map_strided<HEAVY_##op>(n, out, a, b, s,                                                \
                                [](T x, T y) { return function::apply(x, y); });                \
    }

#define FLOAT_OP(op)                                       \
    KERNELS(op, Arithmetic<op##_of>, f64, f64)             \
    KERNELS(op, Arithmetic<op##_of>, f32, f32)             \
    KERNELS(op, Arithmetic<op##_of>, f16, f16)             \
    KERNELS(op, Arithmetic<op##_of>, bf16, bf16)           \
    KERNELS(op, Arithmetic<op##_of>, f8e4m3, f8e4m3)       \
    KERNELS(op, Arithmetic<op##_of>, f8e5m2, f8e5m2)
#define PLAIN_OP(op)                                       \
    FLOAT_OP(op)                                           \
    KERNELS(op, Arithmetic<whole_##op##_of>, u8, u8)       \
    KERNELS(op, Arithmetic<whole_##op##_of>, u32, u32)     \
    KERNELS(op, Arithmetic<whole_##op##_of>, i8, i8)       \
    KERNELS(op, Arithmetic<whole_##op##_of>, i16, i16)     \
    KERNELS(op, Arithmetic<whole_##op##_of>, i32, i32)     \
    KERNELS(op, Arithmetic<whole_##op##_of>, i64, i64)
#define COMPARISON_OP(op)            \
    KERNELS(op, op##_of, u8, f64)    \
    KERNELS(op, op##_of, u8, f32)    \
    KERNELS(op, op##_of, u8, f16)    \
    KERNELS(op, op##_of, u8, bf16)   \
    KERNELS(op, op##_of, u8, f8e4m3) \
    KERNELS(op, op##_of, u8, f8e5m2) \
    KERNELS(op, op##_of, u8, u8)     \
    KERNELS(op, op##_of, u8, u32)    \
    KERNELS(op, op##_of, u8, i8)     \
    KERNELS(op, op##_of, u8, i16)    \
    KERNELS(op, op##_of, u8, i32)    \
    KERNELS(op, op##_of, u8, i64)

PLAIN_OP(add)
PLAIN_OP(sub)
PLAIN_OP(mul)
PLAIN_OP(div)
PLAIN_OP(maximum)
PLAIN_OP(minimum)
PLAIN_OP(pow)
PLAIN_OP(remainder)
COMPARISON_OP(eq)
COMPARISON_OP(ne)
COMPARISON_OP(lt)
COMPARISON_OP(le)
COMPARISON_OP(gt)
COMPARISON_OP(ge)
