// The kernels of the simulated rocBLAS, compiled ahead into what stands for Tensile's code objects.
// Reference arithmetic: one thread an element, its sum in order, in f32 (f64 for doubles), rounded
// once.
#include "../common/library_kernels.h"
#include "product.h"

using namespace hipsim;

namespace {
template <class In, class Out, class Sum>
void gemm(Out* d, const Out* c, const In* a, const In* b, Product p) {
  const std::int64_t i = thread_number();
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
