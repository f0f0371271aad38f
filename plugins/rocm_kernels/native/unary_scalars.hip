// Elementwise ops of one tensor and scalars.  Semantics: core's propolis/ops/unary.py.
#include "propolis_elementwise.h"

// Scalars of floats come in what the op is computed in, those of integers as i64 in T's range.
template <class T>
struct ScalarOf {
    typedef i64 type;
};
#define SCALAR(T)                  \
    template <>                    \
    struct ScalarOf<T> {           \
        typedef Compute<T> type;   \
    };
SCALAR(f64)
SCALAR(f32)
SCALAR(f16)
SCALAR(bf16)
SCALAR(f8e4m3)
SCALAR(f8e5m2)
template <class T>
using Scalar = typename ScalarOf<T>::type;

struct affine {
    template <class T>
    PROPOLIS_FN T apply(T x, Scalar<T> mul, Scalar<T> add) {
        if constexpr (is_float<T>) {
            return narrow<T>(wide(x) * mul + add);
        } else {
            return (T)((u64)x * (u64)mul + (u64)add);
        }
    }
};

struct clamp {
    template <class T>
    PROPOLIS_FN T apply(T x, Scalar<T> low, Scalar<T> high) {
        const auto value = wide(x);
        return narrow<T>((Compute<T>)(value < low ? low : value > high ? high : value));
    }
};

struct powf {
    template <class T>
    PROPOLIS_FN T apply(T x, Scalar<T> exponent) {
        // One half is the square root, as in numpy and torch: NaN for -inf, where IEEE's pow has inf.
        const auto y = wide(x);
        return narrow<T>(exponent == 0.5f ? math::sqrt(y) : math::pow(y, exponent));
    }
};

struct elu {
    template <class T>
    PROPOLIS_FN T apply(T x, Scalar<T> alpha) {
        const auto value = wide(x);
        return narrow<T>(value > 0 ? value : alpha * math::expm1(value));
    }
};

#define KERNELS1(op, T)                                                                        \
    PROPOLIS_KERNEL unary_scalars_##op##_##T(T* out, const T* x, i64 n, Scalar<T> a) {         \
        map<HEAVY_##op>(n, out, x, [=](T v) { return op::apply(v, a); });                      \
    }                                                                                          \
    PROPOLIS_KERNEL unary_scalars_##op##_##T##_strided(T* out, const T* x, i64 n, Scalar<T> a, \
                                                Strided s) {                                   \
        map_strided<HEAVY_##op>(n, out, x, s, [=](T v) { return op::apply(v, a); });           \
    }
#define KERNELS2(op, T)                                                                             \
    PROPOLIS_KERNEL unary_scalars_##op##_##T(T* out, const T* x, i64 n, Scalar<T> a, Scalar<T> b) { \
        map<HEAVY_##op>(n, out, x, [=](T v) { return op::apply(v, a, b); });                        \
    }                                                                                               \
    PROPOLIS_KERNEL unary_scalars_##op##_##T##_strided(T* out, const T* x, i64 n, Scalar<T> a,      \
                                                Scalar<T> b, Strided s) {                           \
        map_strided<HEAVY_##op>(n, out, x, s, [=](T v) { return op::apply(v, a, b); });             \
    }
#define OF_FLOATS(KERNELS, op) \
    KERNELS(op, f64)           \
    KERNELS(op, f32)           \
    KERNELS(op, f16)           \
    KERNELS(op, bf16)          \
    KERNELS(op, f8e4m3)        \
    KERNELS(op, f8e5m2)
#define OF_INTEGERS(KERNELS, op) \
    KERNELS(op, u8)              \
    KERNELS(op, u32)             \
    KERNELS(op, i8)              \
    KERNELS(op, i16)             \
    KERNELS(op, i32)             \
    KERNELS(op, i64)

OF_FLOATS(KERNELS2, affine)
OF_INTEGERS(KERNELS2, affine)
OF_FLOATS(KERNELS2, clamp)
OF_INTEGERS(KERNELS2, clamp)
OF_FLOATS(KERNELS1, powf)
OF_FLOATS(KERNELS1, elu)
