// Conversion between dtypes.  Semantics: core's propolis/ops/cast.py.
#include "propolis_convert.h"
#include "propolis_elementwise.h"

#define KERNELS(From, To)                                                                   \
    PROPOLIS_KERNEL cast_##From##_##To(To* out, const From* x, i64 n) {                     \
        map<false>(n, out, x, [](From v) { return convert<To>(v); });                       \
    }                                                                                       \
    PROPOLIS_KERNEL cast_##From##_##To##_strided(To* out, const From* x, i64 n, Strided s) { \
        map_strided<false>(n, out, x, s, [](From v) { return convert<To>(v); });            \
    }

#define FROM_FLOAT(From) \
    KERNELS(From, u8)    \
    KERNELS(From, u32)   \
    KERNELS(From, i8)    \
    KERNELS(From, i16)   \
    KERNELS(From, i32)   \
    KERNELS(From, i64)
#define FROM_INTEGER(From) \
    KERNELS(From, f64)     \
    KERNELS(From, f32)     \
    KERNELS(From, f16)     \
    KERNELS(From, bf16)    \
    KERNELS(From, f8e4m3)  \
    KERNELS(From, f8e5m2)
#define BOTH(A, B) KERNELS(A, B) KERNELS(B, A)

FROM_FLOAT(f64)
FROM_FLOAT(f32)
FROM_FLOAT(f16)
FROM_FLOAT(bf16)
FROM_FLOAT(f8e4m3)
FROM_FLOAT(f8e5m2)
FROM_INTEGER(u8)
FROM_INTEGER(u32)
FROM_INTEGER(i8)
FROM_INTEGER(i16)
FROM_INTEGER(i32)
FROM_INTEGER(i64)
BOTH(f64, f32)
BOTH(f64, f16)
BOTH(f64, bf16)
BOTH(f64, f8e4m3)
BOTH(f64, f8e5m2)
BOTH(f32, f16)
BOTH(f32, bf16)
BOTH(f32, f8e4m3)
BOTH(f32, f8e5m2)
BOTH(f16, bf16)
BOTH(f16, f8e4m3)
BOTH(f16, f8e5m2)
BOTH(bf16, f8e4m3)
BOTH(bf16, f8e5m2)
BOTH(f8e4m3, f8e5m2)
// Integers wrap around: what is written has the size of the target, whether or not it has a sign.
KERNELS(u8, i16)
KERNELS(u8, u32)
KERNELS(u8, i64)
KERNELS(i8, i16)
KERNELS(i8, u32)
KERNELS(i8, i64)
BOTH(i16, u32)
BOTH(i16, i64)
KERNELS(i16, u8)
KERNELS(u32, u8)
KERNELS(u32, i64)
KERNELS(i32, i64)
KERNELS(i64, u8)
KERNELS(i64, u32)
