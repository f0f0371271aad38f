// The one header of every kernel: what differs between AMD (clang ahead of time, hipRTC), NVIDIA
// (nvcc) and the simulator's host flavour is here and nowhere else.  It includes no other header
// on a GPU: hipRTC has none, and a kernel compiles in half the time without them.
//
// Rules: no kernel assumes a warp of 32; indices are 64 bits; every thread of a block reaches every
// barrier; f16, bf16, f8e4m3 and f8e5m2 are computed in f32 and rounded once, to nearest even.
//
// Numbers that Python knows too (BLOCK, PACK_BYTES and their like) are Python's: _constants.py and
// MODULE.constant() say them, and what is compiled begins with those that it names.
#pragma once

#if defined(HIPSIM_HOST)
#include "hipsim_device.h"
#include <cmath>
#elif defined(__CUDACC__)
// nvcc brings everything.
#elif defined(__HIPCC_RTC__) || defined(__HIP__)
#define PROPOLIS_AMD 1
#else
#error "propolis_device.h: compile with clang -x hip, hipRTC, nvcc or the simulator's driver"
#endif

#if defined(PROPOLIS_AMD) && !defined(__HIPCC_RTC__)
#define PROPOLIS_AOT 1
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define __launch_bounds__(threads) __attribute__((amdgpu_flat_work_group_size(1, threads)))
#endif

#if !defined(PROPOLIS_WARP)
#if defined(__AMDGCN_WAVEFRONT_SIZE__)
#define PROPOLIS_WARP __AMDGCN_WAVEFRONT_SIZE__
#elif defined(__CUDACC__)
#define PROPOLIS_WARP 32
#else
#error "propolis_device.h: -DPROPOLIS_WARP=32 or 64 must be given"
#endif
#endif

#if defined(HIPSIM_HOST)
#define PROPOLIS_FN static inline
#define PROPOLIS_METHOD inline
#else
#define PROPOLIS_METHOD __device__ __attribute__((always_inline)) inline
#define PROPOLIS_FN static PROPOLIS_METHOD
#endif

// Most kernels run in blocks of BLOCK threads, and are compiled for at most so many.
#define PROPOLIS_KERNEL extern "C" __global__ void __launch_bounds__(BLOCK)
#define PROPOLIS_KERNEL_OF(threads) extern "C" __global__ void __launch_bounds__(threads)
// Where two blocks are to be on a unit at once, and of matrix instructions.  For CDNA this says that a thread has 256
// registers, which is what lets sums stay in those that other instructions take: else they are moved there and back.
#if defined(PROPOLIS_AMD)
#define PROPOLIS_KERNEL_TWICE(threads) PROPOLIS_KERNEL_OF(threads) __attribute__((amdgpu_waves_per_eu(2)))
#define PROPOLIS_KERNEL_OF_MATRICES PROPOLIS_KERNEL_TWICE(BLOCK)
#else
#if defined(__CUDACC__)
#define PROPOLIS_KERNEL_TWICE(threads) extern "C" __global__ void __launch_bounds__(threads, 2)
#else
#define PROPOLIS_KERNEL_TWICE(threads) PROPOLIS_KERNEL_OF(threads)
#endif
#define PROPOLIS_KERNEL_OF_MATRICES PROPOLIS_KERNEL
#endif

// -- types ---------------------------------------------------------------------------------------

typedef signed char i8;
typedef unsigned char u8;
typedef short i16;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;
typedef float f32;
typedef double f64;

// Narrow floats are stored as bits alone, so that no arithmetic happens in them by accident.
struct f16 {
    u16 bits;
};
struct bf16 {
    u16 bits;
};
struct f8e4m3 {  // OCP E4M3: no infinity, NaN is 0x7f and 0xff
    u8 bits;
};
struct f8e5m2 {  // OCP E5M2: the upper half of an f16
    u8 bits;
};

// Integers wrap around, so sums and products of theirs are computed without a sign.
template <class T>
struct UnsignedOf {
    typedef T type;
};
template <>
struct UnsignedOf<i8> {
    typedef u8 type;
};
template <>
struct UnsignedOf<i16> {
    typedef u16 type;
};
template <>
struct UnsignedOf<i32> {
    typedef u32 type;
};
template <>
struct UnsignedOf<i64> {
    typedef u64 type;
};
template <class T>
using Unsigned = typename UnsignedOf<T>::type;

template <class T>
PROPOLIS_FN bool negative(T x) {
    if constexpr ((T)-1 < (T)1) {
        return x < 0;
    } else {
        return false;
    }
}

template <class To, class From>
PROPOLIS_FN To bits_as(From from) {
    static_assert(sizeof(To) == sizeof(From), "bits_as: sizes differ");
    To to;
    __builtin_memcpy(&to, &from, sizeof(To));
    return to;
}

// -- where a thread is ---------------------------------------------------------------------------

#if defined(PROPOLIS_AOT)
// Code object version 5: the number of blocks stands first among the hidden arguments.
typedef const __attribute__((address_space(4))) u32 HiddenArgument;
PROPOLIS_FN u32 grid_dim(int axis) {
    return ((HiddenArgument*)__builtin_amdgcn_implicitarg_ptr())[axis];
}
PROPOLIS_FN u32 thread_x() { return __builtin_amdgcn_workitem_id_x(); }
PROPOLIS_FN u32 thread_y() { return __builtin_amdgcn_workitem_id_y(); }
PROPOLIS_FN u32 block_x() { return __builtin_amdgcn_workgroup_id_x(); }
PROPOLIS_FN u32 block_y() { return __builtin_amdgcn_workgroup_id_y(); }
PROPOLIS_FN u32 block_z() { return __builtin_amdgcn_workgroup_id_z(); }
PROPOLIS_FN u32 blocks_x() { return grid_dim(0); }
PROPOLIS_FN u32 blocks_y() { return grid_dim(1); }
PROPOLIS_FN u32 blocks_z() { return grid_dim(2); }
PROPOLIS_FN void __syncthreads() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
#else
PROPOLIS_FN u32 thread_x() { return threadIdx.x; }
PROPOLIS_FN u32 thread_y() { return threadIdx.y; }
PROPOLIS_FN u32 block_x() { return blockIdx.x; }
PROPOLIS_FN u32 block_y() { return blockIdx.y; }
PROPOLIS_FN u32 block_z() { return blockIdx.z; }
PROPOLIS_FN u32 blocks_x() { return gridDim.x; }
PROPOLIS_FN u32 blocks_y() { return gridDim.y; }
PROPOLIS_FN u32 blocks_z() { return gridDim.z; }
#endif

// Shared memory whose size the launch gives; one array a kernel, aligned for any vector.
#if !defined(PROPOLIS_DYNAMIC_SHARED)
#define PROPOLIS_DYNAMIC_SHARED(T, name)                                 \
    extern __shared__ __attribute__((aligned(16))) unsigned char name##_bytes[]; \
    T* name = (T*)name##_bytes
#endif

// What comes before is computed before: else AMD's compiler loads ahead until no registers are left.
PROPOLIS_FN void in_order() {
#if defined(PROPOLIS_AMD)
    __builtin_amdgcn_sched_barrier(0);
#endif
}
// And `x` is: else the sums of several rows are made side by side, of all that is loaded for them.
// A value is computed here, neither later nor, as far as it goes into what follows, together with that.
template <class T>
PROPOLIS_FN void kept_here(T& x) {
#if defined(PROPOLIS_AMD)
    asm volatile("" : "+v"(x));
#else
    (void)x;
#endif
}
PROPOLIS_FN void in_order(f32& x) {
    kept_here(x);
    in_order();
}

// A number of a thread, of which nothing is known here that was known before: what follows of it is
// computed where it is used, and not kept through a loop.
PROPOLIS_FN i32 anew(i32 x) {
#if defined(PROPOLIS_AMD)
    asm volatile("" : "+v"(x));
#endif
    return x;
}

// (x & mask) ^ bits: of constants NVIDIA's compiler would take two instructions.
PROPOLIS_FN u32 masked_xor(u32 x, u32 mask, u32 bits) {
#if defined(__CUDACC__)
    u32 made;
    asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(made) : "r"(x), "r"(mask), "r"(bits));
    return made;
#else
    return (x & mask) ^ bits;
#endif
}

// Of numbers within 24 bits: AMD multiplies all 32 four times as slowly.
PROPOLIS_FN i32 product_of_24(i32 a, i32 b) {
#if defined(PROPOLIS_AMD)
    return ((i32)((u32)a << 8) >> 8) * ((i32)((u32)b << 8) >> 8);
#else
    return a * b;
#endif
}

// A number that is computed here, and kept: NVIDIA's compiler would rather compute it again within a loop.
PROPOLIS_FN u32 kept(u32 x) {
#if defined(__CUDACC__)
    asm volatile("" : "+r"(x));
#endif
    return x;
}

// -- mathematics: IEEE, never the fast approximations --------------------------------------------

#if defined(PROPOLIS_AMD)
extern "C" {
#define PROPOLIS_OCML(name)                                               \
    __device__ __attribute__((const)) float __ocml_##name##_f32(float);   \
    __device__ __attribute__((const)) double __ocml_##name##_f64(double);
PROPOLIS_OCML(exp)
PROPOLIS_OCML(expm1)
PROPOLIS_OCML(log)
PROPOLIS_OCML(log1p)
PROPOLIS_OCML(tanh)
PROPOLIS_OCML(erf)
#undef PROPOLIS_OCML
// These read tables through a pointer or a mode, so they are not const everywhere.
__device__ float __ocml_sin_f32(float);
__device__ double __ocml_sin_f64(double);
__device__ float __ocml_cos_f32(float);
__device__ double __ocml_cos_f64(double);
__device__ __attribute__((const)) float __ocml_sqrt_f32(float);
__device__ __attribute__((const)) double __ocml_sqrt_f64(double);
__device__ __attribute__((const)) float __ocml_pow_f32(float, float);
__device__ __attribute__((const)) double __ocml_pow_f64(double, double);
__device__ __attribute__((const)) float __ocml_fmod_f32(float, float);
__device__ __attribute__((const)) double __ocml_fmod_f64(double, double);
}
#define PROPOLIS_MATH(name)                                                 \
    PROPOLIS_FN f32 name(f32 x) { return __ocml_##name##_f32(x); }          \
    PROPOLIS_FN f64 name(f64 x) { return __ocml_##name##_f64(x); }
#define PROPOLIS_MATH2(name)                                                          \
    PROPOLIS_FN f32 name(f32 x, f32 y) { return __ocml_##name##_f32(x, y); }          \
    PROPOLIS_FN f64 name(f64 x, f64 y) { return __ocml_##name##_f64(x, y); }
#define PROPOLIS_ROUND(name)                                                \
    PROPOLIS_FN f32 name(f32 x) { return __builtin_##name##f(x); }          \
    PROPOLIS_FN f64 name(f64 x) { return __builtin_##name(x); }
#else
#define PROPOLIS_MATH(name)                                                 \
    PROPOLIS_FN f32 name(f32 x) { return ::name##f(x); }                    \
    PROPOLIS_FN f64 name(f64 x) { return ::name(x); }
#define PROPOLIS_MATH2(name)                                                \
    PROPOLIS_FN f32 name(f32 x, f32 y) { return ::name##f(x, y); }          \
    PROPOLIS_FN f64 name(f64 x, f64 y) { return ::name(x, y); }
#define PROPOLIS_ROUND(name) PROPOLIS_MATH(name)
#endif

namespace math {
PROPOLIS_MATH(exp)
PROPOLIS_MATH(expm1)
PROPOLIS_MATH(log)
PROPOLIS_MATH(log1p)
PROPOLIS_MATH(sin)
PROPOLIS_MATH(cos)
PROPOLIS_MATH(tanh)
PROPOLIS_MATH(erf)
PROPOLIS_MATH(sqrt)
PROPOLIS_MATH2(pow)
PROPOLIS_MATH2(fmod)
PROPOLIS_ROUND(floor)
PROPOLIS_ROUND(ceil)
PROPOLIS_ROUND(rint)
PROPOLIS_ROUND(trunc)
PROPOLIS_ROUND(fabs)
PROPOLIS_FN bool is_nan(f32 x) { return x != x; }
PROPOLIS_FN bool is_nan(f64 x) { return x != x; }
template <class T>
PROPOLIS_FN bool is_nan(T) {
    return false;
}
}  // namespace math

// -- conversions ---------------------------------------------------------------------------------

#define PROPOLIS_NAN (__builtin_nanf(""))
#define PROPOLIS_INF (__builtin_huge_valf())

PROPOLIS_FN f32 to_f32(f32 x) { return x; }
PROPOLIS_FN f32 to_f32(bf16 x) { return bits_as<f32>((u32)x.bits << 16); }

#if defined(PROPOLIS_AMD)
PROPOLIS_FN f32 to_f32(f16 x) { return (f32)bits_as<_Float16>(x.bits); }
PROPOLIS_FN u16 f16_bits(f32 x) { return bits_as<u16>((_Float16)x); }
#elif defined(__CUDACC__)
PROPOLIS_FN f32 to_f32(f16 x) {
    f32 y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}
PROPOLIS_FN u16 f16_bits(f32 x) {
    u16 y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
}
#else
// Bits alone: the simulator's host compiler need not know f16.
PROPOLIS_FN f32 to_f32(f16 x) {
    // Exponent and fraction moved into place are 2**112 times too small, denormals included.
    const f32 scaled = bits_as<f32>((u32)(x.bits & 0x7fff) << 13) * 0x1p112f;
    const u32 high = (x.bits & 0x7c00) == 0x7c00 ? 0x7f800000u : 0u;  // inf and NaN stay
    return bits_as<f32>(bits_as<u32>(scaled) | high | (u32)(x.bits & 0x8000) << 16);
}
PROPOLIS_FN u16 f16_bits(f32 x) {
    const u32 sign = bits_as<u32>(x) >> 16 & 0x8000;
    u32 u = bits_as<u32>(x) & 0x7fffffff;
    if (u > 0x7f800000) return (u16)(sign | 0x7e00);
    if (u >= 0x477ff000) return (u16)(sign | 0x7c00);  // 65520 and above
    if (u < 0x38800000) {  // denormal: the sum rounds at 2**-24, as the result must
        return (u16)(sign | (bits_as<u32>(bits_as<f32>(u) + 0.5f) - 0x3f000000));
    }
    u += 0xfff + (u >> 13 & 1);
    return (u16)(sign | ((u >> 13) - (112 << 10)));
}
#endif

PROPOLIS_FN f32 to_f32(f8e4m3 x) {
    // Moved into the place of an f16 it is 2**8 times too small, denormals included.
    const f32 y = to_f32(f16{(u16)((x.bits & 0x80) << 8 | (x.bits & 0x7f) << 7)}) * 256.0f;
    return (x.bits & 0x7f) == 0x7f ? PROPOLIS_NAN : y;
}

PROPOLIS_FN f32 to_f32(f8e5m2 x) { return to_f32(f16{(u16)(x.bits << 8)}); }

PROPOLIS_FN u16 bf16_bits(f32 x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    u16 bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
#else
    // Both are computed: of a return for each AMD's compiler makes branches, at each number.
    const u32 u = bits_as<u32>(x), quiet = u | 0x400000, rounded = u + 0x7fff + (u >> 16 & 1);
    return (u16)((x != x ? quiet : rounded) >> 16);  // NaN stays NaN
#endif
}

PROPOLIS_FN u8 f8e4m3_bits(f32 x) {
    const u32 sign = bits_as<u32>(x) >> 24 & 0x80;
    const u32 u = bits_as<u32>(x) & 0x7fffffff;
    const f32 size = bits_as<f32>(u);
    // Below 2**-6 numbers are 2**-9 apart, which is where adding 2**14 rounds.
    const u32 small = bits_as<u32>(size + 16384.0f) - bits_as<u32>(16384.0f);
    const u32 normal = ((u + 0x7ffff + (u >> 20 & 1)) >> 20) - (120 << 3);
    const u32 code = size < 0.015625f ? small : normal;
    return (u8)(sign | (size <= 464.0f ? code : 0x7f));  // past 448 and its rounding: NaN
}

PROPOLIS_FN u8 f8e5m2_bits(f32 x) {
    const u32 sign = bits_as<u32>(x) >> 24 & 0x80;
    const u32 u = bits_as<u32>(x) & 0x7fffffff;
    const f32 size = bits_as<f32>(u);
    // Below 2**-14 numbers are 2**-16 apart, which is where adding 2**7 rounds.
    const u32 small = bits_as<u32>(size + 128.0f) - bits_as<u32>(128.0f);
    const u32 normal = ((u + 0xfffff + (u >> 21 & 1)) >> 21) - (112 << 2);
    const u32 code = size < 0x1p-14f ? small : normal;
    const u32 past = math::is_nan(x) ? 0x7e : 0x7c;
    return (u8)(sign | (size < 61440.0f ? code : past));  // past 57344 and its rounding: infinity
}

// The nearest f32 whose last bit remembers what was cut off ("round to odd"): rounding it again,
// to a narrower float, rounds the number itself.
PROPOLIS_FN f32 odd_f32(f64 x) {
    const f32 near = (f32)x;
    const f64 back = (f64)near;
    u32 bits = bits_as<u32>(near);
    if (back != x && !math::is_nan(x) && !(bits & 1)) {
        bits += math::fabs(back) < math::fabs(x) ? 1 : -1;
    }
    return bits_as<f32>(bits);
}

// What a number of T is computed in.
template <class T>
struct ComputeOf {
    typedef T type;
    static constexpr bool is_float = false;
};
#define PROPOLIS_COMPUTED(T, C)               \
    template <>                               \
    struct ComputeOf<T> {                     \
        typedef C type;                       \
        static constexpr bool is_float = true; \
    };
PROPOLIS_COMPUTED(f64, f64)
PROPOLIS_COMPUTED(f32, f32)
PROPOLIS_COMPUTED(f16, f32)
PROPOLIS_COMPUTED(bf16, f32)
PROPOLIS_COMPUTED(f8e4m3, f32)
PROPOLIS_COMPUTED(f8e5m2, f32)
#undef PROPOLIS_COMPUTED
template <class T>
using Compute = typename ComputeOf<T>::type;
template <class T>
constexpr bool is_float = ComputeOf<T>::is_float;

// From storage to where it is computed: exact.
PROPOLIS_FN f64 wide(f64 x) { return x; }
PROPOLIS_FN f32 wide(f32 x) { return x; }
PROPOLIS_FN f32 wide(f16 x) { return to_f32(x); }
PROPOLIS_FN f32 wide(bf16 x) { return to_f32(x); }
PROPOLIS_FN f32 wide(f8e4m3 x) { return to_f32(x); }
PROPOLIS_FN f32 wide(f8e5m2 x) { return to_f32(x); }
template <class T>
PROPOLIS_FN T wide(T x) {
    return x;
}

// Back to storage: rounded once.
template <class T>
struct Narrow {
    PROPOLIS_FN T from(T x) { return x; }
};
template <>
struct Narrow<f16> {
    PROPOLIS_FN f16 from(f32 x) { return f16{f16_bits(x)}; }
};
template <>
struct Narrow<bf16> {
    PROPOLIS_FN bf16 from(f32 x) { return bf16{bf16_bits(x)}; }
};
template <>
struct Narrow<f8e4m3> {
    PROPOLIS_FN f8e4m3 from(f32 x) { return f8e4m3{f8e4m3_bits(x)}; }
};
template <>
struct Narrow<f8e5m2> {
    PROPOLIS_FN f8e5m2 from(f32 x) { return f8e5m2{f8e5m2_bits(x)}; }
};
template <class T>
PROPOLIS_FN T narrow(Compute<T> x) {
    return Narrow<T>::from(x);
}

// -- vectors -------------------------------------------------------------------------------------

// N neighbours that are loaded and stored at once; at most PACK_BYTES.
template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
    T at[N];
};

template <int bytes>
struct Word;
template <>
struct Word<1> {
    typedef u8 type;
};
template <>
struct Word<2> {
    typedef u16 type;
};
template <>
struct Word<4> {
    typedef u32 type;
};
template <>
struct Word<8> {
    typedef u64 type;
};
#if defined(__CUDACC__)
template <>
struct Word<16> {
    typedef uint4 type;
};
#else
typedef u32 Word128 __attribute__((vector_size(16)));
template <>
struct Word<16> {
    typedef Word128 type;
};
#endif

template <int N, class T>
PROPOLIS_FN Pack<T, N> load_pack(const T* from) {
    typedef typename Word<sizeof(T) * N>::type W;
    return bits_as<Pack<T, N>>(*(const W*)from);
}

template <int N, class T>
PROPOLIS_FN void store_pack(T* to, Pack<T, N> pack) {
    typedef typename Word<sizeof(T) * N>::type W;
    *(W*)to = bits_as<W>(pack);
}

template <int N, class T>
PROPOLIS_FN bool aligned(const T* at) {
    return ((u64)at & (sizeof(T) * N - 1)) == 0;
}
