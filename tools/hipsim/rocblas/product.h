// What the library and its kernels agree on: one product D = alpha * op(A) * op(B) + beta * C of
// column-major matrices, as many times as there are batches.
#pragma once
#include <cstdint>

namespace hipsim {

struct Operand {
  std::int64_t leading, stride;  // in elements: between columns, between batches
  std::int64_t transposed;       // 0 or 1
};

struct Product {
  std::int64_t m, n, k, batches;
  Operand a, b, c, d;
  double alpha, beta;
};

}  // namespace hipsim
