// Conversion between any two dtypes.  Semantics: core's propolis/ops/cast.py.
#pragma once

#include "propolis_device.h"

template <class T>
struct Limits;
#define PROPOLIS_LIMITS(T, least, most, past)       \
    template <>                                     \
    struct Limits<T> {                              \
        static constexpr T low = least;             \
        static constexpr T high = most;             \
        static constexpr f32 beyond = past; /* the first whole number above high */ \
    };
PROPOLIS_LIMITS(u8, 0, 255, 256.0f)
PROPOLIS_LIMITS(i8, -128, 127, 128.0f)
PROPOLIS_LIMITS(i16, -32768, 32767, 32768.0f)
PROPOLIS_LIMITS(i32, -2147483647 - 1, 2147483647, 2147483648.0f)
PROPOLIS_LIMITS(u32, 0, 4294967295u, 4294967296.0f)
PROPOLIS_LIMITS(i64, -9223372036854775807ll - 1, 9223372036854775807ll, 9223372036854775808.0f)
#undef PROPOLIS_LIMITS

// Truncated toward zero, saturated, NaN to 0.
template <class To, class Float>
PROPOLIS_FN To saturated(Float x) {
    if (math::is_nan(x)) return 0;
    if (x >= (Float)Limits<To>::beyond) return Limits<To>::high;
    if (x < (Float)Limits<To>::low) return Limits<To>::low;
    return (To)x;
}

// An integer as a f64 that rounds to narrower floats as the integer itself does: of more than
// 53 bits, the last one kept remembers those that are cut off.
template <class Int>
PROPOLIS_FN f64 odd_f64(Int x) {
    if constexpr (sizeof(Int) == 8) {
        const bool below = x < 0;
        u64 size = below ? 0 - (u64)x : (u64)x;
        if (size >> 53) size = (size | ((size & 0x7ff) ? 0x800 : 0)) & ~0x7ffull;
        return below ? -(f64)size : (f64)size;
    } else {
        return (f64)x;
    }
}

template <class To, class From>
PROPOLIS_FN To convert(From x) {
    if constexpr (is_float<From> && !is_float<To>) {
        return saturated<To>(wide(x));
    } else if constexpr (!is_float<To> || sizeof(To) == 8) {
        return (To)wide(x);
    } else if constexpr (sizeof(To) == 4) {
        return (f32)wide(x);
    } else if constexpr (sizeof(From) < (is_float<From> ? 8 : 4)) {  // exact in f32
        return narrow<To>((f32)wide(x));
    } else if constexpr (is_float<From>) {
        return narrow<To>(odd_f32(x));
    } else {
        return narrow<To>(odd_f32(odd_f64(x)));
    }
}
