// What a kernel source sees when it is compiled for the host simulator: HIP's execution
// model (threadIdx, __shared__, barriers, shuffles, atomics) and the registration of kernels.
// Included by native/propolis_device.h when HIPSIM_HOST is defined, and always by the
// simulator's hipRTC. The functions declared `extern "C" hipsim_*` live in the device process.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <type_traits>

#ifndef PROPOLIS_WARP
#error "the simulator's compiler driver defines PROPOLIS_WARP as 32 or 64"
#endif

#define __host__
#define __device__
#define __constant__ static const
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
// A block's threads are fibers of one operating-system thread, so what is thread-local to the
// latter is shared by the block and private to it.
#define __shared__ static thread_local
// Rewritten by hipRTC, which finds the kernels by it after preprocessing.
#define __global__ __hipsim_global__

#include "hipsim_execution.h"

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
};

#define threadIdx (::hipsim_self.thread)
#define blockIdx (::hipsim_self.block)
#define blockDim (::hipsim_self.block_dim)
#define gridDim (::hipsim_self.grid_dim)
constexpr int warpSize = PROPOLIS_WARP;

#define PROPOLIS_DYNAMIC_SHARED(T, name) \
  T* name = reinterpret_cast<T*>(::hipsim_self.dynamic_shared)
#define HIP_DYNAMIC_SHARED(T, name) PROPOLIS_DYNAMIC_SHARED(T, name)

// ---- barriers and warp operations --------------------------------------------------------

#define HIPSIM_SITE int line = __builtin_LINE(), const char *file = __builtin_FILE()

inline void __syncthreads(HIPSIM_SITE) { hipsim_barrier(line, file); }
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

inline int hipsim_lane() { return static_cast<int>(hipsim_self.index % PROPOLIS_WARP); }

template <class T>
inline T hipsim_shuffle(T value, int source, int line, const char* file) {
  static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>, "shuffles move up to 8 bytes");
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = hipsim_exchange(bits, source, line, file);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

template <class T>
inline T __shfl(T value, int source, int width = PROPOLIS_WARP, HIPSIM_SITE) {
  const int lane = hipsim_lane();
  return hipsim_shuffle(value, (lane & ~(width - 1)) | (source & (width - 1)), line, file);
}

template <class T>
inline T __shfl_xor(T value, int mask, int width = PROPOLIS_WARP, HIPSIM_SITE) {
  const int lane = hipsim_lane();
  const int source = lane ^ mask;
  return hipsim_shuffle(value, (source & ~(width - 1)) > lane ? lane : source, line, file);
}

template <class T>
inline T __shfl_down(T value, unsigned delta, int width = PROPOLIS_WARP, HIPSIM_SITE) {
  const int lane = hipsim_lane();
  const int within = static_cast<int>((lane & (width - 1)) + delta);
  return hipsim_shuffle(value, within < width ? lane + static_cast<int>(delta) : lane, line, file);
}

template <class T>
inline T __shfl_up(T value, unsigned delta, int width = PROPOLIS_WARP, HIPSIM_SITE) {
  const int lane = hipsim_lane();
  const int within = (lane & (width - 1)) - static_cast<int>(delta);
  return hipsim_shuffle(value, within >= 0 ? lane - static_cast<int>(delta) : lane, line, file);
}

inline std::uint64_t __ballot(int predicate, HIPSIM_SITE) {
  std::uint64_t active;
  return hipsim_ballot(predicate != 0, &active, line, file);
}
inline int __any(int predicate, HIPSIM_SITE) { return __ballot(predicate, line, file) != 0; }
inline int __all(int predicate, HIPSIM_SITE) {
  std::uint64_t active;
  return hipsim_ballot(predicate != 0, &active, line, file) == active;
}
inline std::uint64_t __activemask(HIPSIM_SITE) {
  std::uint64_t active;
  hipsim_ballot(1, &active, line, file);
  return active;
}
inline void __syncwarp(std::uint64_t = ~std::uint64_t{0}, HIPSIM_SITE) {
  std::uint64_t active;
  hipsim_ballot(1, &active, line, file);
}

template <class T>
inline T __shfl_sync(std::uint64_t, T v, int source, int width = PROPOLIS_WARP, HIPSIM_SITE) {
  return __shfl(v, source, width, line, file);
}
template <class T>
inline T __shfl_xor_sync(std::uint64_t, T v, int mask, int width = PROPOLIS_WARP, HIPSIM_SITE) {
  return __shfl_xor(v, mask, width, line, file);
}
template <class T>
inline T __shfl_down_sync(std::uint64_t, T v, unsigned delta, int width = PROPOLIS_WARP,
                          HIPSIM_SITE) {
  return __shfl_down(v, delta, width, line, file);
}
template <class T>
inline T __shfl_up_sync(std::uint64_t, T v, unsigned delta, int width = PROPOLIS_WARP,
                        HIPSIM_SITE) {
  return __shfl_up(v, delta, width, line, file);
}

// std::type_identity_t, which C++17 lacks: an argument that deduces nothing.
template <class T>
struct hipsim_identity {
  using type = T;
};
template <class T>
using hipsim_identity_t = typename hipsim_identity<T>::type;

// ---- atomics ---------------------------------------------------------------------------

template <class T>
inline T hipsim_load_relaxed(const T* p) {
  T v;
  __atomic_load(const_cast<T*>(p), &v, __ATOMIC_RELAXED);
  return v;
}

// Apply `f` to *p atomically; gives the old value, as every HIP atomic does.
template <class T, class F>
inline T hipsim_atomic(T* p, F f) {
  T old = hipsim_load_relaxed(p);
  T desired = f(old);
  while (!__atomic_compare_exchange(p, &old, &desired, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
    desired = f(old);
  return old;
}

template <class T>
inline T atomicAdd(T* p, hipsim_identity_t<T> v) {
  if constexpr (std::is_integral_v<T>)
    return __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
  else
    return hipsim_atomic(p, [v](T old) { return static_cast<T>(old + v); });
}
template <class T>
inline T atomicSub(T* p, hipsim_identity_t<T> v) {
  return hipsim_atomic(p, [v](T old) { return static_cast<T>(old - v); });
}
template <class T>
inline T atomicMax(T* p, hipsim_identity_t<T> v) {
  return hipsim_atomic(p, [v](T old) { return old < v ? v : old; });
}
template <class T>
inline T atomicMin(T* p, hipsim_identity_t<T> v) {
  return hipsim_atomic(p, [v](T old) { return v < old ? v : old; });
}
template <class T>
inline T atomicExch(T* p, hipsim_identity_t<T> v) {
  return hipsim_atomic(p, [v](T) { return v; });
}
template <class T>
inline T atomicAnd(T* p, hipsim_identity_t<T> v) {
  return __atomic_fetch_and(p, v, __ATOMIC_RELAXED);
}
template <class T>
inline T atomicOr(T* p, hipsim_identity_t<T> v) {
  return __atomic_fetch_or(p, v, __ATOMIC_RELAXED);
}
template <class T>
inline T atomicXor(T* p, hipsim_identity_t<T> v) {
  return __atomic_fetch_xor(p, v, __ATOMIC_RELAXED);
}
template <class T>
inline T atomicCAS(T* p, hipsim_identity_t<T> expected, hipsim_identity_t<T> desired) {
  __atomic_compare_exchange_n(p, &expected, desired, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return expected;
}

// ---- device functions that C++ lacks ---------------------------------------------------------

inline float __int_as_float(int v) { return __builtin_bit_cast(float, v); }
inline float __uint_as_float(unsigned v) { return __builtin_bit_cast(float, v); }
inline int __float_as_int(float v) { return __builtin_bit_cast(int, v); }
inline unsigned __float_as_uint(float v) { return __builtin_bit_cast(unsigned, v); }
inline double __longlong_as_double(long long v) { return __builtin_bit_cast(double, v); }
inline long long __double_as_longlong(double v) { return __builtin_bit_cast(long long, v); }
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
inline int __clz(int v) { return v ? __builtin_clz(static_cast<unsigned>(v)) : 32; }
inline int __clzll(long long v) {
  return v ? __builtin_clzll(static_cast<unsigned long long>(v)) : 64;
}
inline int __ffs(int v) { return __builtin_ffs(v); }
inline int __ffsll(long long v) { return __builtin_ffsll(v); }
inline float rsqrtf(float v) { return 1.0f / std::sqrt(v); }
inline double rsqrt(double v) { return 1.0 / std::sqrt(v); }
inline float __expf(float v) { return std::exp(v); }
inline float __logf(float v) { return std::log(v); }
inline float __fdividef(float a, float b) { return a / b; }
inline float exp10f(float v) { return __builtin_exp10f(v); }
inline float normcdff(float v) { return 0.5f * std::erfc(-v * 0.70710678118654752f); }
inline double normcdf(double v) { return 0.5 * std::erfc(-v * 0.70710678118654752); }
template <class T>
inline T __ldg(const T* p) {
  return *p;
}

// HIP's min and max: the common type for integers, fmin and fmax for floats.
template <class A, class B>
inline std::common_type_t<A, B> min(A a, B b) {
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<T>)
    return std::fmin(static_cast<T>(a), static_cast<T>(b));
  else
    return static_cast<T>(b) < static_cast<T>(a) ? static_cast<T>(b) : static_cast<T>(a);
}
template <class A, class B>
inline std::common_type_t<A, B> max(A a, B b) {
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<T>)
    return std::fmax(static_cast<T>(a), static_cast<T>(b));
  else
    return static_cast<T>(a) < static_cast<T>(b) ? static_cast<T>(b) : static_cast<T>(a);
}

#define HIPSIM_VECTOR(T, name, alignment)                    \
  struct alignas(alignment / 2) name##2 { T x, y; };         \
  struct name##3 { T x, y, z; };                             \
  struct alignas(alignment) name##4 { T x, y, z, w; };       \
  inline name##2 make_##name##2(T x, T y) { return {x, y}; } \
  inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
HIPSIM_VECTOR(float, float, 16)
HIPSIM_VECTOR(int, int, 16)
HIPSIM_VECTOR(signed char, char, 4)
HIPSIM_VECTOR(unsigned char, uchar, 4)
HIPSIM_VECTOR(short, short, 8)
HIPSIM_VECTOR(unsigned short, ushort, 8)
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(16) double2 {
  double x, y;
};
struct alignas(16) longlong2 {
  long long x, y;
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
#undef HIPSIM_VECTOR

// ---- storage types -------------------------------------------------------------------------

// IEEE half to float and back, rounding to nearest even; F16C where the compiler may use it.
inline float hipsim_half_to_float(std::uint16_t bits) {
  return static_cast<float>(__builtin_bit_cast(_Float16, bits));
}
inline std::uint16_t hipsim_float_to_half(float v) {
  return __builtin_bit_cast(std::uint16_t, static_cast<_Float16>(v));
}

// ---- registration of kernels -----------------------------------------------------------------

extern "C" {
__attribute__((visibility("default"))) const hipsim_kernel* hipsim_kernels = nullptr;
}

#if defined(__x86_64__) && defined(__AVX2__) && defined(__F16C__) && defined(__FMA__)
#define HIPSIM_ISA 3
#else
#define HIPSIM_ISA 0
#endif
extern "C" {
extern const hipsim_mark hipsim_module_mark;
__attribute__((section(".hipsim"), used))
const hipsim_mark hipsim_module_mark = {"HIPSIM-MODULE-1", 1, PROPOLIS_WARP, HIPSIM_ISA, 0};
}

template <auto Kernel, class Signature = decltype(Kernel)>
struct hipsim_entry;

template <auto Kernel, class... A>
struct hipsim_entry<Kernel, void (*)(A...)> {
  // Laid out as a C struct of the parameters, each at its natural alignment.
  struct Layout {
    hipsim_parameter parameters[sizeof...(A) + 1] = {};
    constexpr Layout() {
      [[maybe_unused]] std::uint32_t end = 0, i = 0;
      ((end = (end + alignof(A) - 1) / alignof(A) * alignof(A), parameters[i++] = {end, sizeof(A)},
        end += sizeof(A)),
       ...);
    }
  };
  static constexpr Layout layout{};

  template <class T>
  static T load(const char* at) {
    static_assert(std::is_trivially_copyable_v<T>, "kernel parameters are passed as bytes");
    alignas(T) unsigned char bytes[sizeof(T)];
    std::memcpy(bytes, at, sizeof(T));
    return __builtin_bit_cast(T, bytes);
  }
  template <std::size_t... I>
  struct Indices {};
  template <std::size_t N, std::size_t... I>
  static auto count() {
    if constexpr (N == 0)
      return Indices<I...>{};
    else
      return count<N - 1, N - 1, I...>();
  }
  template <std::size_t... I>
  static void run_all(const char* packed, Indices<I...>) {
    do Kernel(load<A>(packed + layout.parameters[I].offset)...);
    while (hipsim_next());
  }
  static void run(const char* packed) { run_all(packed, count<sizeof...(A)>()); }
};

template <auto Kernel>
bool hipsim_register(const char* name, bool by_expression = false) {
  using Entry = hipsim_entry<Kernel>;
  static const hipsim_kernel kernel = {
      hipsim_kernels,
      name,
      reinterpret_cast<void (*)()>(Kernel),
      &Entry::run,
      Entry::layout.parameters,
      sizeof(Entry::layout.parameters) / sizeof(hipsim_parameter) - 1,
      by_expression};
  hipsim_kernels = &kernel;
  return true;
}
