// The kernels of the simulated rocBLAS, compiled ahead into what stands for Tensile's code objects.
// Reference arithmetic: one thread an element, its sum in order, in f32 (f64 for doubles), rounded
// once.
#include "../common/hipsim_device.h"
#include "product.h"

using namespace hipsim;

namespace {
// Looked up: without instructions for it a conversion takes longer than the product.
struct Table {
  float values[65536];
  Table() {
    for (unsigned bits = 0; bits < 65536; ++bits)
      values[bits] = hipsim_half_to_float(static_cast<std::uint16_t>(bits));
  }
};
const Table halves;

struct Half {
  std::uint16_t bits;
  explicit operator float() const { return halves.values[bits]; }
  explicit Half(float value) : bits(hipsim_float_to_half(value)) {}
};

struct Brain {
  std::uint16_t bits;
  explicit operator float() const {
    return __builtin_bit_cast(float, static_cast<std::uint32_t>(bits) << 16);
  }
  explicit Brain(float value) {
    const auto wide = __builtin_bit_cast(std::uint32_t, value);
    bits = static_cast<std::uint16_t>(
        std::isnan(value) ? 0x7FC0 : (wide + 0x7FFF + (wide >> 16 & 1)) >> 16);
  }
};

template <class In, class Out, class Sum>
void gemm(Out* d, const Out* c, const In* a, const In* b, Product p) {
  const std::int64_t i = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x;
  if (i >= p.m * p.n * p.batches) return;
  const std::int64_t row = i % p.m, column = i / p.m % p.n, batch = i / (p.m * p.n);
  a += batch * p.a.stride + row * (p.a.transposed ? p.a.leading : 1);
  b += batch * p.b.stride + column * (p.b.transposed ? 1 : p.b.leading);
  const std::int64_t a_step = p.a.transposed ? 1 : p.a.leading;
  const std::int64_t b_step = p.b.transposed ? p.b.leading : 1;
  Sum sum = 0;
  if (p.alpha != 0)
    for (std::int64_t j = 0; j < p.k; ++j)
      sum += static_cast<Sum>(a[j * a_step]) * static_cast<Sum>(b[j * b_step]);
  sum *= static_cast<Sum>(p.alpha);
  // As BLAS has it: where beta is 0, C is not read.
  if (p.beta != 0)
    sum += static_cast<Sum>(p.beta) *
           static_cast<Sum>(c[batch * p.c.stride + column * p.c.leading + row]);
  d[batch * p.d.stride + column * p.d.leading + row] = static_cast<Out>(sum);
}

// Nothing in a workspace outlives the call that it was given for.
void scribble(std::uint32_t* workspace, std::int64_t words) {
  const std::int64_t i = threadIdx.x + blockIdx.x * static_cast<std::int64_t>(blockDim.x);
  if (i < words) workspace[i] = workspace[words - 1 - i] = 0x7FFAFFFA;
}

const bool registered[] = {
    hipsim_register<&gemm<double, double, double>>("gemm_f64_f64", true),
    hipsim_register<&gemm<float, float, float>>("gemm_f32_f32", true),
    hipsim_register<&gemm<Half, Half, float>>("gemm_f16_f16", true),
    hipsim_register<&gemm<Half, float, float>>("gemm_f16_f32", true),
    hipsim_register<&gemm<Brain, Brain, float>>("gemm_bf16_bf16", true),
    hipsim_register<&gemm<Brain, float, float>>("gemm_bf16_f32", true),
    hipsim_register<&scribble>("scribble", true),
};
}  // namespace
